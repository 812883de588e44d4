"""The view of a report: requests, answers, cost, and the route with the reason for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, evolve, field, frozen

from smartbatch._version import __version__
from smartbatch._words import UNKNOWN, Unit, duration, moment, money, plural, share, worded
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import decision_parts, expected_reads
from smartbatch.core.routing.options import Option
from smartbatch.errors import SmartbatchError, kind_name
from smartbatch.failure_groups import FailureGroups, remedy_for
from smartbatch.jobs.status import JobStatus, batch_parts, incident_parts
from smartbatch.results import defects_in_words
from smartbatch.types import DEFECTS, NO_USAGE, Result, Usage
from smartbatch.views.drawings import quantile
from smartbatch.views.model import (
    Cell,
    DataTable,
    Facts,
    Note,
    Part,
    ProgressBar,
    ProgressOverTime,
    Section,
    State,
    Tile,
    ValueDistribution,
    View,
)

_MAX_BATCHES = 40
_MAX_ROUTES, _MAX_RUNS, _MAX_MODELS = 4, 3, 5
_UNNAMED_ROUTE = "route not recorded"
_FIGURES: tuple[tuple[str, Unit], ...] = (
    ("latency", "duration"),
    ("cost", "money"),
    ("tokens in", "number"),
    ("tokens out", "number"),
    ("attempts", "number"),
)


# -- summary of results ------------------------------------------------------------------------------------

MAX_SAMPLED = 4_000
"""Maximum number of requests in a sample."""


@frozen
class RequestFigures:
    """Figures of one answered request."""

    route: str  # empty if not recorded
    latency: float  # seconds of the successful call, or of the batch
    cost: float | None  # USD; None if the price is unknown
    input_tokens: int  # of all attempts, like the next two figures
    output_tokens: int
    attempts: int


class EvenSample:
    """Keeps an evenly spaced sample of at most :data:`MAX_SAMPLED` requests."""

    def __init__(self) -> None:
        self.seen = 0
        self._step = 1
        self._kept: list[RequestFigures] = []

    def take(self, figures: RequestFigures) -> None:
        """Keep every n-th request. When the sample is full, drop every second one and double n."""
        if self.seen % self._step == 0:
            self._kept.append(figures)
            if len(self._kept) > MAX_SAMPLED:
                self._kept = self._kept[::2]
                self._step *= 2
        self.seen += 1

    def sampled(self) -> tuple[RequestFigures, ...]:
        return tuple(self._kept)


@define
class SeenResults:
    """Summarizes results in bounded memory."""

    sample: EvenSample = field(factory=EvenSample)  # answered requests, without those that share an answer
    failures: FailureGroups = field(factory=FailureGroups)
    failures_read: int = 0  # failed requests in the groups
    dropped: dict[str, str] = field(factory=dict)  # omitted parameters and the reasons
    input_tokens: int = 0  # of all results
    output_tokens: int = 0
    cached: Usage = NO_USAGE  # of the results counted
    estimated: int = 0  # results with estimated tokens
    unknown: int = 0  # results with unknown tokens
    deduplicated: int = 0  # requests that share the answer of an identical one, without cost and time
    is_whole: bool = True  # false for a sample of the results

    def count(self, result: Result) -> None:
        """Add a result. Results that share the answer of an identical request must not be counted here."""
        usage = result.usage
        self.dropped.update(result.dropped)
        read, written = usage.cached_tokens, usage.cache_write_tokens
        self.cached += Usage(usage.input_tokens, cached_tokens=read, cache_write_tokens=written)
        self.estimated += usage.estimated
        self.unknown += usage.unknown
        if result.ok:
            route = "" if result.route is None else result.route.value
            tokens = usage.input_tokens, usage.output_tokens
            self.sample.take(RequestFigures(route, result.latency, result.cost, *tokens, result.attempts))

    def count_failure(self, error: SmartbatchError, request_id: str) -> None:
        self.failures_read += 1
        self.failures.count(kind_name(error), error.message, request_id)


def _by_route(sample: Iterable[RequestFigures]) -> dict[str, list[RequestFigures]]:
    """Group the sample by route; the most frequent route comes first."""
    groups: dict[str, list[RequestFigures]] = {}
    for each in sample:
        groups.setdefault(each.route, []).append(each)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


@frozen(kw_only=True)
class ReportedRun:
    """The outcome of a job or a real-time list. ``None`` means unknown."""

    title: str
    job: JobStatus | None = None  # None for a real-time list
    route: str | None
    decision: Decision | None = field(default=None, repr=False)
    rescue: str | None = None  # why requests planned as a batch were sent in real time
    settings: tuple[tuple[str, str], ...] = ()  # further facts, such as the deadline
    created: float  # Unix seconds
    finished: float | None  # Unix seconds; None while it runs
    paid: float | None  # USD in total
    individual_cost: float | None  # USD for the same tokens in real time
    batch_cost: float | None  # USD for the same tokens in batches
    progress: ProgressOverTime | None = field(default=None, repr=False)


@frozen(kw_only=True)
class ReportedRequests:
    """Parameters shared by the requests of a report."""

    kind: str | None  # "generate" or "embed"; None if not recorded
    models: tuple[str, ...]  # provider:model, most frequent first
    # shared by all requests, without prompts; None if not recorded
    parameters: tuple[tuple[str, str], ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    skipped: int = 0  # file rows without a request
    place: str  # the store or file that was read, without a password
    made_at: float  # Unix seconds
    written_at: float | None = None  # Unix seconds of the file's last change


# -- the report ----------------------------------------------------------------------------------------------


def report_view(
    title: str, status: JobStatus, seen: SeenResults, runs: Sequence[ReportedRun], asked: ReportedRequests
) -> View:
    """Return the view of a report.

    Args:
        status: status of the job; for a list or a file, the totals.
        seen: the summary of the results.
        runs: the job, or the jobs with the answers in a file, oldest first.
    """
    sections = (
        Section("asked", "Requests", tuple(_asked(status, seen, asked))),
        Section("results", "Results", (_results(status, seen, asked, runs),)),
        Section("route", "Route", (*_routes(seen), *_each(runs, _route)), empty=_NO_ROUTE),
        Section("cost", "Cost and alternatives", tuple(_costs(status, runs))),
        Section("time", "Time", (*_written(asked, runs), *_each(runs, _time))),
        Section(
            "distributions",
            "Latency, cost and tokens per request",
            tuple(_distributions(status, seen)),
            empty="No request was answered.",
        ),
        Section("failures", "Failures", tuple(_failures(status, seen)), empty="No request failed."),
        Section("incidents", "Incidents", tuple(_incidents(runs)), empty=_no_incidents(runs)),
        Section("versions", "About this report", (_versions(asked),)),
    )
    return View(title, sections, _state(status), _sentence(status, runs, asked), tuple(_tiles(status, runs)))


_NO_ROUTE = "The file does not record the route, and the store has no job for it."


def _state(s: JobStatus) -> State:
    return State("done" if s.done else s.state, "good" if s.done and not s.failed else "warn")


def _tiles(s: JobStatus, runs: Sequence[ReportedRun]) -> Iterator[Tile]:
    bar = ProgressBar("requests with a result", s.finished, s.total)
    yield Tile("Answered", f"{s.completed:,} of {s.total:,}", progress=bar)
    yield Tile("Failed", f"{s.failed:,}", tone="bad" if s.failed else "")
    yield Tile("Cost", _cost(s), f"{plural(s.unpriced, 'result')} without a price" if s.unpriced else "")
    if (took := _took(runs)) is not None:
        yield Tile("Time", duration(took))


def _took(runs: Sequence[ReportedRun]) -> float | None:
    took = [run.finished - run.created for run in runs if run.finished is not None]
    return max(took) if took and len(took) == len(runs) else None


def _cost(s: JobStatus) -> str:
    return UNKNOWN if s.unpriced and s.unpriced >= s.finished else money(s.cost)


def _sentence(s: JobStatus, runs: Sequence[ReportedRun], asked: ReportedRequests) -> str:
    took = _took(runs)
    words = f"{s.completed:,} of {s.total:,} requests were answered"
    words += "" if took is None else f" in {duration(took)}"
    words += f" ({defects})" if (defects := defects_in_words(s)) else ""
    words += f", {s.failed:,} failed" if s.failed else ""
    words += f", {s.cancelled:,} were cancelled" if s.cancelled else ""
    words += f", {s.total - s.finished:,} have no result yet" if s.total > s.finished else ""
    skipped = plural(asked.skipped, "row was", "rows were")
    return f"{words}. {_paid(s)}." + (f" {skipped} skipped." if asked.skipped else "")


def _paid(s: JobStatus) -> str:
    if _cost(s) == UNKNOWN:
        return "Their cost is unknown"
    least = f", without {plural(s.unpriced, 'result')} whose cost is unknown" if s.unpriced else ""
    return f"They cost {money(s.cost)}{least}"


# -- requests and results


def _asked(s: JobStatus, seen: SeenResults, asked: ReportedRequests) -> Iterator[Part]:
    more = len(asked.models) - _MAX_MODELS
    models = ", ".join(asked.models[:_MAX_MODELS]) or UNKNOWN
    rows: list[tuple[str, Cell]] = [
        ("requests", f"{s.total:,}"),
        ("model", models + (f" and {more:,} more" if more > 0 else "")),
        ("kind", asked.kind or UNKNOWN),
        *([("parameters", "not recorded")] if asked.parameters is None else asked.parameters),
        *((f"label {name}", words) for name, words in asked.labels),
        *((f"left out: {name}", why) for name, why in seen.dropped.items()),
    ]
    yield Facts(tuple(rows))
    yield Note("Prompts and answers are not part of a report.")


def _results(s: JobStatus, seen: SeenResults, asked: ReportedRequests, runs: Sequence[ReportedRun]) -> Facts:
    rows: list[tuple[str, Cell]] = [
        ("answered", f"{s.completed:,}"),
        *((name, State(f"{count:,}", "warn")) for name in DEFECTS if (count := getattr(s, name))),
        ("failed", State(f"{s.failed:,}", "bad") if s.failed else "0"),
        ("cancelled", f"{s.cancelled:,}"),
        *([("rows skipped, not sent", f"{asked.skipped:,}")] if asked.skipped else []),
        ("without a result", f"{s.total - s.finished:,}"),
        ("tokens in", _tokens(seen, seen.input_tokens)),
        ("tokens out", _tokens(seen, seen.output_tokens)),
        ("cost", _cost(s)),
        ("results without a known cost", f"{s.unpriced:,}"),
    ]
    decisions = [run.decision for run in runs if run.decision is not None]
    expected = expected_reads(decisions) if len(decisions) == len(runs) else ""
    if expected or seen.cached.cached_tokens or seen.cached.cache_write_tokens:
        read = share(seen.cached.cached_share) + (f" ({expected})" if expected else "")
        rows.insert(-3, ("of these, read from the provider's cache", read))
    if written := seen.cached.cache_write_tokens:
        rows.insert(-3, ("of these, written to it", share(written / seen.cached.input_tokens)))
    rows += [("results with estimated tokens", f"{seen.estimated:,}")] if seen.estimated else []
    rows += [("results with unknown usage", f"{seen.unknown:,}")] if seen.unknown else []
    if seen.deduplicated and seen.is_whole:
        rows.append(("answers of identical requests", f"{seen.deduplicated:,}"))
    return Facts(tuple(rows))


def _tokens(seen: SeenResults, tokens: int) -> str:
    return UNKNOWN if seen.unknown and not tokens else f"{tokens:,}"


# -- route, cost, time


def _each(runs: Sequence[ReportedRun], show: Callable[[ReportedRun], Iterator[Part]]) -> Iterator[Part]:
    """A title precedes each run if there are several."""
    for run in runs[:_MAX_RUNS]:
        if len(runs) > 1:
            yield Note(run.title)
        yield from show(run)
    if len(runs) > _MAX_RUNS:
        yield Note(f"{len(runs) - _MAX_RUNS:,} further jobs are left out.")


def _routes(seen: SeenResults) -> Iterator[Part]:
    """The shares are estimates if only a sample was read."""
    sample = seen.sample.sampled()
    groups = _by_route(sample)
    if sample and list(groups) != [""]:
        about = "" if len(sample) == seen.sample.seen and seen.is_whole else "about "
        shares = (
            f"{route or _UNNAMED_ROUTE} {about}{share(len(each) / len(sample))}"
            for route, each in groups.items()
        )
        yield Note(f"Answered by route: {', '.join(shares)}.")


def _route(run: ReportedRun) -> Iterator[Part]:
    yield Note(f"Route: {run.route or 'none was chosen; it was submitted as a job'}")
    if run.rescue:
        yield Note(f"Rescued: {run.rescue}.", "warn")
    if run.settings:
        yield Facts(run.settings)
    if run.decision is None:
        yield Note("The reason is not recorded: the route was given, or the job has no stored decision.")
    else:
        yield from decision_parts(run.decision)


def _costs(s: JobStatus, runs: Sequence[ReportedRun]) -> Iterator[Part]:
    if not runs:
        yield Note(f"{_paid(s)}. No forecast or alternative is recorded.")
    for run in runs[:_MAX_RUNS]:
        yield from _alternatives(run)


def _alternatives(run: ReportedRun) -> Iterator[Part]:
    took = None if run.finished is None else run.finished - run.created
    if run.paid is not None and run.individual_cost is not None:
        saved = run.individual_cost - run.paid
        yield Note(
            f"{money(abs(saved))} {'less' if saved >= 0 else 'more'} than if all requests had been sent in "
            "real time."
        )
    if took is None:
        yield Note("The job is still running, so its total cost is unknown.")
    chosen = alone = batch = None
    if run.decision is not None:
        chosen, alone, batch = run.decision.chosen, run.decision.alone, run.decision.batch
    yield DataTable.of(
        f"Forecast and outcome of {run.title}",
        "route, cost forecast, cost of the tokens used, p50 forecast, p95 forecast, time measured",
        [
            _alternative("actual", chosen, run.paid, took),
            _alternative(
                "always individual", alone, run.individual_cost, took if run.route == "individual" else None
            ),
            _alternative("always batch", batch, run.batch_cost, took if run.route == "batch" else None),
        ],
    )
    yield Note(
        "For the other routes, the cost is calculated from the tokens actually used, and the time is a "
        "forecast."
    )


def _alternative(
    name: str, option: Option | None, paid: float | None, took: float | None
) -> tuple[Cell, ...]:
    cost = None if option is None else option.cost
    return (
        name,
        UNKNOWN if cost is None else f"{money(cost.expected)} ({money(cost.low)} to {money(cost.high)})",
        money(paid),
        UNKNOWN if option is None else duration(option.p50),
        UNKNOWN if option is None else duration(option.p95),
        UNKNOWN if took is None else duration(took),
    )


def _written(asked: ReportedRequests, runs: Sequence[ReportedRun]) -> Iterator[Part]:
    if asked.written_at is not None:
        known = "" if runs else " When its requests were sent is not recorded."
        yield Note(f"The file was last written at {moment(asked.written_at)} UTC.{known}")


def _time(run: ReportedRun) -> Iterator[Part]:
    took = "still running" if run.finished is None else duration(run.finished - run.created)
    rows: list[tuple[str, Cell]] = [
        ("accepted", f"{moment(run.created)} UTC"),
        ("finished", UNKNOWN if run.finished is None else f"{moment(run.finished)} UTC"),
        ("took", took),
    ]
    job = run.job
    if job is None:
        yield Facts(tuple(rows))
        return
    rows.append(("state", f"{job.state}: {job.note}" if job.note else job.state))
    rows.append(("batches", f"{len(job.shards):,}"))
    yield Facts(tuple(rows))
    if run.progress is not None:
        yield run.progress
    if job.shards:
        yield from batch_parts(job, _MAX_BATCHES)


# -- distributions, failures, versions


def _distributions(s: JobStatus, seen: SeenResults) -> Iterator[Part]:
    sample = seen.sample.sampled()
    if not sample:
        return
    answered = seen.sample.seen if seen.is_whole else s.completed
    part = f", estimated from an evenly spaced sample of {len(sample):,}" if len(sample) < answered else ""
    yield Note(f"Of {plural(answered, 'answered request')}{part}.")
    groups = list(_by_route(sample).items())
    yield DataTable.of(
        "Quantiles by route",
        "route, figure, p50, p95, p99, mean, maximum",
        [row for route, each in groups for row in _quantiles(route, each)],
    )
    for route, each in groups[:_MAX_ROUTES]:
        named = route or _UNNAMED_ROUTE
        for name, unit in _FIGURES[:2]:
            title = f"{name.capitalize()} per request, {named}"
            yield ValueDistribution(title, tuple(_values(each, name)), unit)


def _values(sample: Sequence[RequestFigures], name: str) -> list[float]:
    of = {"latency": "latency", "cost": "cost", "tokens in": "input_tokens", "tokens out": "output_tokens"}
    known = (getattr(one, of.get(name, name)) for one in sample)
    return sorted(float(value) for value in known if value is not None and (value or name != "latency"))


def _quantiles(route: str, sample: Sequence[RequestFigures]) -> Iterator[tuple[str, ...]]:
    for name, unit in _FIGURES:
        if values := _values(sample, name):
            figures = (
                *(quantile(values, q) for q in (0.5, 0.95, 0.99)),
                sum(values) / len(values),
                values[-1],
            )
            yield (route or _UNNAMED_ROUTE, name, *(worded(value, unit) for value in figures))


def _failures(s: JobStatus, seen: SeenResults) -> Iterator[Part]:
    if not s.failed:
        return
    rows = [
        (one.kind, one.message, one.count, one.example, remedy_for(one.kind).action)
        for one in seen.failures.largest()
    ]
    columns = "kind, message, requests:number, example, suggested action"
    yield DataTable.of("Failures by kind and message", columns, rows)
    if seen.failures_read < s.failed:
        yield Note(
            f"The groups count an evenly spaced sample of {seen.failures_read:,} of {s.failed:,} failures."
        )


def _incidents(runs: Sequence[ReportedRun]) -> Iterator[Part]:
    incidents = sorted(
        (one for run in runs if run.job is not None for one in run.job.incidents), key=lambda one: one.at
    )
    if incidents:
        yield from incident_parts(incidents)


def _no_incidents(runs: Sequence[ReportedRun]) -> str:
    if all(run.job is None for run in runs):
        return "Incidents are recorded only for jobs, and the store has no job for this report."
    return "No incidents."


def _versions(asked: ReportedRequests) -> Facts:
    python = ".".join(map(str, sys.version_info[:3]))
    rows = [("smartbatch", __version__), ("Python", python), ("made at", f"{moment(asked.made_at)} UTC")]
    return Facts((*rows, ("read from", asked.place)))


def totals(model: str, *, total: int, completed: int, failed: int, **known: float) -> JobStatus:
    """Totals of finished requests outside a job."""
    status = JobStatus(
        id="",
        key=None,
        model=model,
        state="done",
        total=total,
        submitted=total,
        completed=completed,
        failed=failed,
        cancelled=0,
        running=0,
        remaining=0.0,
        elapsed=0.0,
        cost=0.0,
        realtime_cost=0.0,
        unpriced=0,
    )
    return evolve(status, **known)  # type: ignore[arg-type]
