"""What the report of a job tells, read from the store: whole tables of items are never read."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from smartbatch._version import __version__
from smartbatch.core.limits.error_patterns import pattern_of
from smartbatch.core.routing.outcome import ListDecision
from smartbatch.errors import StoreError, kind_name
from smartbatch.jobs.batch_timeline import timeline_rows
from smartbatch.jobs.incident_titles import incident_title
from smartbatch.jobs.payload import (
    Shared,
    decode_error,
    decode_params,
    decode_result,
    item_id,
    with_earlier_tries,
)
from smartbatch.jobs.records import IncidentRow, JobRow, JobState, ResultRow
from smartbatch.jobs.status import first_rescue, span
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import FailedRequest
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.jobs.versioned_records import JobPolicy
from smartbatch.reports.report_data import ReportData, ReportedJob, ReportIncident
from smartbatch.reports.sampling import MOST_SAMPLED, EvenSample, FailureGroups, RequestFigures
from smartbatch.types import Generation, Result

_PAGES = 80
"""Places of a job at which results are read."""
_FAILURES = 5_000
"""Failed requests that are read; of more, those at evenly chosen places."""
_PLAIN_PARAMETERS = ("max_tokens", "temperature", "top_p", "seed")


def job_report(store: SqlStore, row: JobRow, wall: float) -> ReportData:
    """Return what the report of a job tells.

    Args:
        wall: Unix seconds.

    Raises:
        StoreError: the store cannot be read.
    """
    seen = _Seen(store, row)
    return ReportData(
        title=f"Job {row.key or row.id}",
        place=store.place,
        made_at=wall,
        kind=row.kind,
        models=(row.model, *row.policy.models),
        parameters=_parameters(row),
        labels=tuple((name, str(value)) for name, value in row.metadata.items()),
        total=row.total,
        succeeded=row.succeeded,
        failed=row.failed,
        cancelled=row.cancelled,
        truncated=row.truncated,
        empty=row.empty,
        refused=row.refused,
        dropped=tuple(seen.dropped.items()),
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        estimated=seen.estimated,
        unknown=seen.unknown,
        cost=row.cost,
        unpriced=row.unpriced,
        sample=seen.sample.kept(),
        sampled_of=seen.sample.seen if seen.is_whole else row.succeeded,
        deduplicated=seen.deduplicated if seen.is_whole else None,
        failures=seen.failures.largest(),
        failures_read=seen.failures_read,
        jobs=(job_figures(store, row, wall),),
        versions=versions(),
    )


def job_figures(store: SqlStore, row: JobRow, wall: float) -> ReportedJob:
    """Return how a job went, without its results."""
    incidents = store.facts.incidents(row.id)
    ended = row.state is JobState.DONE
    known = ended and not row.unpriced
    paid = row.cost + sum(one.money or 0.0 for one in incidents)
    stored = store.summaries.decision(row.id)
    measured = None if stored is None else stored.measured
    shards = store.shards.of_job(row.id)
    rescue = first_rescue(shards)
    route = None if row.policy.route is None else row.policy.route.value
    return ReportedJob(
        id=row.id,
        key=row.key,
        state=row.state.value if row.note is None or ended else f"{row.state.value}: {row.note}",
        route=route if stored is None else stored.route,
        decision=None if stored is None else stored.decision,
        rescue=rescue and f"requests of a batch were sent in real time instead: {rescue}",
        settings=tuple(_settings(row.policy, row.created_at)),
        created=row.created_at,
        finished=row.finished_at if ended else None,
        paid=paid if known else None,
        individual_cost=row.realtime_cost if known else None,
        batch_cost=None if measured is None else measured.batch_cost,
        timeline=timeline_rows(row.created_at, shards, wall),
        incidents=tuple(map(_incident, incidents)),
    )


def list_figures(one: StoredDecision | ListDecision, *, key: str | None = None) -> ReportedJob:
    """Return how a list in real time went, of which there is no job.

    Args:
        key: of the job that it was, where it was one.
    """
    measured = one.measured
    return ReportedJob(
        id="",
        key=key,
        state="active" if measured is None else "done",
        route=one.route,
        decision=one.decision,
        created=one.at,
        finished=None if measured is None else one.at + measured.seconds,
        paid=None if measured is None else measured.cost,
        individual_cost=None if measured is None else measured.individual_cost,
        batch_cost=None if measured is None else measured.batch_cost,
        timeline=None,
        incidents=None,
    )


def versions() -> tuple[tuple[str, str], ...]:
    """Return what makes a report."""
    return (("smartbatch", __version__), ("Python", ".".join(map(str, sys.version_info[:3]))))


class _Seen:
    """Results of a job, of a large one at evenly chosen places.

    Attributes:
        is_whole: the job is so small that all of its results were read.
        deduplicated: answers of equal requests, which have no cost and no time of their own.
        estimated, unknown: results some of whose tokens are an estimate, or are not known.
    """

    def __init__(self, store: SqlStore, row: JobRow) -> None:
        self.sample, self.failures = EvenSample(), FailureGroups()
        self.dropped: dict[str, str] = {}
        self.is_whole = row.total <= MOST_SAMPLED
        self.deduplicated = self.estimated = self.unknown = 0
        for result_row in _places(store, row):
            if result_row.follower:
                self.deduplicated += result_row.outcome == "succeeded"
            else:
                self._add(_result(result_row, row.id))
        self.failures_read = 0
        for each in _failed(store, row):
            request_id = item_id(row.id, each.ix, each.user_id)
            error = decode_error(each.body, request_id=request_id)
            self.failures_read += 1
            if error is not None:
                self.failures.add(kind_name(error), pattern_of(error.message), request_id)

    def _add(self, result: Result) -> None:
        self.dropped.update(result.dropped)
        self.estimated += result.usage.estimated
        self.unknown += result.usage.unknown
        if result.ok:
            self.sample.add(figures_of(result))


def figures_of(result: Result) -> RequestFigures:
    """Return the figures of an answered request."""
    return RequestFigures(
        route="" if result.route is None else result.route.value,
        latency=result.latency,
        cost=result.cost,
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
        attempts=result.attempts,
    )


def _places(store: SqlStore, row: JobRow) -> Iterator[ResultRow]:
    """Yield results at evenly chosen places of a job; all of one that has few."""
    size = MOST_SAMPLED // _PAGES
    if row.total <= MOST_SAMPLED:
        starts = range(0, row.total, size)
    else:
        starts = range(0, row.total - size + 1, (row.total - size) // (_PAGES - 1))
    last = -1
    for start in starts:
        page = store.items.results(row.id, after=max(start - 1, last), limit=size)
        if page:
            last = page[-1].ix
            yield from page


def _failed(store: SqlStore, row: JobRow) -> Iterator[FailedRequest]:
    """Yield requests that failed: all, or those at evenly chosen places of a job that has many."""
    line = store.overview.get(row.id)
    if line is None:
        return
    if row.failed <= _FAILURES:
        yield from store.overview.failed(line, limit=_FAILURES, cancelled=False)
        return
    first = 0
    for start in range(0, row.total, max(1, row.total // _PAGES)):
        first = max(first, start)
        page = store.overview.failed(line, first=first, limit=_FAILURES // _PAGES, cancelled=False)
        yield from page
        first = page[-1].ix + 1 if page else row.total


def _result(row: ResultRow, job_id: str) -> Result:
    result = decode_result(row.body, request_id=item_id(job_id, row.ix, row.user_id))
    return with_earlier_tries(result, row.earlier)


def _parameters(row: JobRow) -> tuple[tuple[str, str], ...]:
    """Return what all requests share, without what may be a prompt."""
    try:
        shared = decode_params(row.params)
    except StoreError:
        return (("parameters", "of a newer release, which this one cannot read"),)
    return tuple(_shared(shared))


def _shared(shared: Shared) -> Iterator[tuple[str, str]]:
    params = shared.params
    for name in _PLAIN_PARAMETERS:
        if (value := getattr(params, name)) is not None:
            yield name, str(value)
    yield from _told_by_size(params)
    if shared.embedding is not None:
        yield "task_type", str(shared.embedding.task_type)
        yield "dimensions", str(shared.embedding.dimensions)


def _told_by_size(params: Generation) -> Iterator[tuple[str, str]]:
    """Yield parameters whose contents may be confidential, each by its size."""
    if params.system is not None:
        yield "system", f"{len(params.system):,} characters"
    if params.stop is not None:
        yield "stop", f"{len(params.stop):,} texts"
    if params.schema is not None:
        yield "schema", f"{len(params.schema.get('properties', ())):,} properties"
    if params.response_format is not None:
        yield "response_format", str(params.response_format.get("type", "given"))
    if params.extra is not None:
        yield "extra", ", ".join(params.extra)


def _settings(policy: JobPolicy, created_at: float) -> Iterator[tuple[str, str]]:
    if policy.deadline is not None:
        yield "deadline", f"{span(max(0.0, policy.deadline - created_at))} after it was accepted"
    if policy.budget is not None:
        yield "budget", f"{policy.budget:g} USD"
    yield "what a batch has not run", "goes in real time" if policy.fallback == "individual" else "goes again"
    if policy.timeout is not None:
        yield "a batch is cancelled after", span(policy.timeout)
    if policy.attended:
        yield "goes in real time", "only while a process waits for it"


def _incident(incident: IncidentRow) -> ReportIncident:
    return ReportIncident(
        at=incident.at,
        title=incident_title(incident.kind),
        detail=incident.detail,
        money=incident.money,
    )
