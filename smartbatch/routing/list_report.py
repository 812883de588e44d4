"""The report of a list: its results, and the decision on its route."""

from __future__ import annotations

from collections import Counter

from attrs import evolve

from smartbatch._clock import RealClock
from smartbatch.core.routing.outcome import ListDecision
from smartbatch.jobs.job_report import run_of_list
from smartbatch.jobs.report_view import ReportedRequests, ReportedRun, report_view, totals
from smartbatch.jobs.sampling import SeenResults
from smartbatch.results import ResultList
from smartbatch.types import Kind, Usage
from smartbatch.views.html import Report


def list_report(model: str, began: float, decided: ListDecision | None, results: ResultList) -> Report:
    """Make the report of a list from its results.

    Args:
        model: ``provider:model``.
        began: Unix seconds of the first submission.
        decided: the decision on its route; ``None`` if it was read lazily, or is still running.
    """
    usage = sum((result.usage for result in results), Usage())
    seen = SeenResults(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    for result in results:
        if result.error is not None:
            seen.add_failure(result.error, result.request_id)
        seen.deduplicated += result.deduplicated
        if not result.deduplicated:
            seen.add(result)
    embeds = any(result.embedding is not None for result in results)
    models = Counter(result.model or model for result in results)
    asked = ReportedRequests(
        kind=(Kind.EMBED if embeds else Kind.GENERATE).value,
        models=tuple(name for name, _ in models.most_common()),
        place="the results in memory",
        made_at=RealClock.wall(),
    )
    status = totals(
        model,
        total=len(results),
        completed=results.succeeded,
        failed=results.failed,
        truncated=results.truncated,
        empty=results.empty,
        refused=results.refused,
        cost=results.cost,
        unpriced=sum(result.cost is None for result in results),
        elapsed=results.wall,
    )
    title = f"List of {len(results):,} requests"
    runs = (_run(began, decided, results),)
    return Report(report_view(title, status, seen, runs, asked), len(results))


def _run(began: float, decided: ListDecision | None, results: ResultList) -> ReportedRun:
    """Return how the list went as a whole."""
    paid, finished = results.cost if results.cost_known else None, began + results.wall
    if decided is not None:
        return evolve(run_of_list(decided), rescue=decided.rescue, finished=finished, paid=paid)
    routes = {result.route.value for result in results if result.route is not None}
    return ReportedRun(
        title="the list",
        route=", ".join(sorted(routes)) or None,
        created=began,
        finished=finished,
        paid=paid,
        individual_cost=None,
        batch_cost=None,
    )
