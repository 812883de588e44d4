"""What the report of a list tells: its results, and by what its route was chosen."""

from __future__ import annotations

from collections import Counter

from attrs import evolve

from smartbatch._clock import RealClock
from smartbatch.core.limits.error_patterns import pattern_of
from smartbatch.core.routing.outcome import ListDecision
from smartbatch.errors import kind_name
from smartbatch.jobs.job_report import figures_of, list_figures, versions
from smartbatch.reports.report import Report
from smartbatch.reports.report_data import ReportData, ReportedJob
from smartbatch.reports.sampling import EvenSample, FailureGroups
from smartbatch.results import ResultList
from smartbatch.types import Kind, Usage


def list_report(model: str, began: float, decided: ListDecision | None, results: ResultList) -> Report:
    """Make the report of a list from its results.

    Args:
        model: ``provider:model``.
        began: Unix seconds of the first submission.
        decided: by what its route was chosen; ``None`` where it was read lazily, or goes on.
    """
    sample, failures = EvenSample(), FailureGroups()
    dropped: dict[str, str] = {}
    for result in results:
        dropped.update(result.dropped)
        if result.error is not None:
            failures.add(kind_name(result.error), pattern_of(result.error.message), result.request_id)
        elif not result.deduplicated:
            sample.add(figures_of(result))
    models = Counter(result.model or model for result in results)
    usage = sum((result.usage for result in results), Usage())
    embeds = any(result.embedding is not None for result in results)
    data = ReportData(
        title=f"List of {len(results):,} requests",
        place="the results in memory",
        made_at=RealClock.wall(),
        kind=(Kind.EMBED if embeds else Kind.GENERATE).value,
        models=tuple(model for model, _ in models.most_common()),
        total=len(results),
        succeeded=results.succeeded,
        failed=results.failed,
        truncated=results.truncated,
        empty=results.empty,
        refused=results.refused,
        deduplicated=sum(result.deduplicated for result in results),
        dropped=tuple(dropped.items()),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        estimated=sum(result.usage.estimated for result in results),
        unknown=sum(result.usage.unknown for result in results),
        cost=results.cost,
        unpriced=sum(result.cost is None for result in results),
        sample=sample.kept(),
        sampled_of=sample.seen,
        failures=failures.largest(),
        failures_read=results.failed,
        jobs=(_whole(began, decided, results),),
        versions=versions(),
    )
    return Report(data)


def _whole(began: float, decided: ListDecision | None, results: ResultList) -> ReportedJob:
    """Return how the list went as a whole."""
    paid = results.cost if results.cost_known else None
    if decided is not None:
        known = list_figures(decided)
        return evolve(known, rescue=decided.rescue, finished=began + results.wall, state="done", paid=paid)
    routes = {result.route for result in results if result.route is not None}
    return ReportedJob(
        id="",
        key=None,
        state="done",
        route=", ".join(sorted(route.value for route in routes)) or None,
        created=began,
        finished=began + results.wall,
        paid=paid,
        individual_cost=None,
        batch_cost=None,
        timeline=None,
        incidents=None,
    )
