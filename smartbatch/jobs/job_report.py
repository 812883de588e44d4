"""Reports on jobs and lists. Jobs are read from the store, and large ones are sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import evolve

from smartbatch._clock import RealClock
from smartbatch._words import duration, moment, money
from smartbatch.core.routing.outcome import ListDecision
from smartbatch.errors import StoreError
from smartbatch.jobs.payload import (
    Shared,
    decode_error,
    decode_params,
    decode_result,
    item_id,
    with_earlier_tries,
)
from smartbatch.jobs.records import JobPolicy, JobRow, ResultRow
from smartbatch.jobs.report_view import (
    MAX_SAMPLED,
    ReportedRequests,
    ReportedRun,
    SeenResults,
    report_view,
    totals,
)
from smartbatch.jobs.status import progress_chart, status_of
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import FailedRequest
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.results import ResultList
from smartbatch.types import Generation, Kind, Result, Usage
from smartbatch.views.html import Report

_SAMPLED_PLACES = 80
"""Number of positions at which the results of a large job are sampled."""
_MAX_FAILURES = 5_000
"""If there are more failed requests, evenly spaced ones are read."""
_FALLBACKS = ("are sent in another batch", "are sent in real time")
_PLAIN_PARAMETERS = ("max_tokens", "temperature", "top_p", "seed", "reasoning_effort")


def job_report(store: SqlStore, row: JobRow, wall: float) -> Report:
    run = reported_run(store, row, wall)
    assert run.job is not None
    asked = ReportedRequests(
        kind=row.kind,
        models=(row.model, *row.policy.models),
        parameters=_parameters(row),
        labels=tuple((name, str(value)) for name, value in row.metadata.items()),
        place=store.place,
        made_at=wall,
    )
    return Report(report_view(run.title, run.job, _seen(store, row), (run,), asked), row.total)


def reported_run(store: SqlStore, row: JobRow, wall: float) -> ReportedRun:
    shards, incidents = store.shards.of_job(row.id), store.facts.incidents(row.id)
    status = status_of(row, shards, asking=0, incidents=incidents, remaining=None, note=None, wall=wall)
    known = status.done and not row.unpriced
    stored = store.summaries.decision(row.id)
    measured = None if stored is None else stored.measured
    route = None if row.policy.route is None else row.policy.route.value
    rescue = status.rescue
    return ReportedRun(
        title=f"Job {row.key or row.id}",
        job=status,
        route=route if stored is None else stored.route,
        decision=None if stored is None else stored.decision,
        rescue=rescue and f"requests of a batch were sent in real time instead: {rescue}",
        settings=tuple(_settings(row.policy, row.created_at)),
        created=row.created_at,
        finished=row.finished_at if status.done else None,
        paid=row.cost + status.wasted if known else None,
        individual_cost=row.realtime_cost if known else None,
        batch_cost=None if measured is None else measured.batch_cost,
        progress=progress_chart(row, shards, wall),
    )


def run_of_list(one: StoredDecision | ListDecision, key: str | None = None) -> ReportedRun:
    """``key`` is the key of a deleted job; ``None`` for a list that had no job."""
    measured = one.measured
    return ReportedRun(
        title=f"Job {key}" if key else f"Requests of {moment(one.at)} UTC",
        route=one.route,
        decision=one.decision,
        created=one.at,
        finished=None if measured is None else one.at + measured.seconds,
        paid=None if measured is None else measured.cost,
        individual_cost=None if measured is None else measured.individual_cost,
        batch_cost=None if measured is None else measured.batch_cost,
    )


def _seen(store: SqlStore, row: JobRow) -> SeenResults:
    seen = SeenResults(
        input_tokens=row.input_tokens, output_tokens=row.output_tokens, is_whole=row.total <= MAX_SAMPLED
    )
    for each in _places(store, row):
        if each.follower:
            seen.deduplicated += each.outcome == "succeeded"
        else:
            seen.count(_result(each, row.id))
    for failed in _failed(store, row):
        request_id = item_id(row.id, failed.ix, failed.user_id)
        error = decode_error(failed.body, request_id=request_id)
        if error is not None:
            seen.count_failure(error, request_id)
    return seen


def _places(store: SqlStore, row: JobRow) -> Iterator[ResultRow]:
    size = MAX_SAMPLED // _SAMPLED_PLACES
    if row.total <= MAX_SAMPLED:
        starts = range(0, row.total, size)
    else:
        starts = range(0, row.total - size + 1, (row.total - size) // (_SAMPLED_PLACES - 1))
    last = -1
    for start in starts:
        page = store.items.results(row.id, after=max(start - 1, last), limit=size)
        if page:
            last = page[-1].ix
            yield from page


def _failed(store: SqlStore, row: JobRow) -> Iterator[FailedRequest]:
    if row.failed <= _MAX_FAILURES:
        yield from store.overview.failed(row, limit=_MAX_FAILURES, cancelled=False)
        return
    first = 0
    for start in range(0, row.total, max(1, row.total // _SAMPLED_PLACES)):
        first = max(first, start)
        page = store.overview.failed(
            row, first=first, limit=_MAX_FAILURES // _SAMPLED_PLACES, cancelled=False
        )
        yield from page
        first = page[-1].ix + 1 if page else row.total


def _result(row: ResultRow, job_id: str) -> Result:
    result = decode_result(row.body, request_id=item_id(job_id, row.ix, row.user_id))
    return with_earlier_tries(result, row.earlier)


def _parameters(row: JobRow) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a job, without those that may contain a prompt."""
    try:
        shared = decode_params(row.params)
    except StoreError:
        return (("parameters", "written by a newer release; this release cannot read it"),)
    return tuple(_shared(shared))


def _shared(shared: Shared) -> Iterator[tuple[str, str]]:
    params = shared.params
    for name in _PLAIN_PARAMETERS:
        if (value := getattr(params, name)) is not None:
            yield name, str(value)
    yield from _confidential(params)
    if shared.embedding is not None:
        yield "task_type", str(shared.embedding.task_type)
        yield "dimensions", str(shared.embedding.dimensions)


def _confidential(params: Generation) -> Iterator[tuple[str, str]]:
    """Yield only the sizes of parameters whose contents may be confidential."""
    if params.system is not None:
        yield "system", f"{len(params.system):,} characters"
    if params.stop is not None:
        yield "stop", f"{len(params.stop):,} strings"
    if params.schema is not None:
        yield "schema", f"{len(params.schema.get('properties', ())):,} properties"
    if params.response_format is not None:
        yield "response_format", str(params.response_format.get("type", "given"))
    if params.extra is not None:
        yield "extra", ", ".join(params.extra)


def _settings(policy: JobPolicy, created_at: float) -> Iterator[tuple[str, str]]:
    if policy.deadline is not None:
        yield "deadline", f"{duration(policy.deadline - created_at)} after it was accepted"
    if policy.budget is not None:
        yield "budget", money(policy.budget)
    yield "requests a batch did not process", _FALLBACKS[policy.fallback == "individual"]
    if policy.timeout is not None:
        yield "a batch is cancelled after", duration(policy.timeout)
    if policy.attended:
        yield "sent in real time", "only while a process waits for it"


def list_report(model: str, began: float, decided: ListDecision | None, results: ResultList) -> Report:
    """Return the report of a list.

    Args:
        model: ``provider:model``.
        began: Unix seconds of the first submission.
        decided: the route decision; ``None`` if the list was read lazily or is still running.
    """
    usage = sum((result.usage for result in results), Usage())
    seen = SeenResults(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    for result in results:
        if result.error is not None:
            seen.count_failure(result.error, result.request_id)
        seen.deduplicated += result.deduplicated
        if not result.deduplicated:
            seen.count(result)
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
    runs = (_reported_list(began, decided, results),)
    return Report(report_view(title, status, seen, runs, asked), len(results))


def _reported_list(began: float, decided: ListDecision | None, results: ResultList) -> ReportedRun:
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
