"""The sections of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import frozen

from smartbatch._html import Child, Html, el, fragment
from smartbatch.core.routing.options import Option
from smartbatch.reports.axes import Axis, moment, seconds, share, usd
from smartbatch.reports.charts import binned, histogram, thinned, timeline
from smartbatch.reports.components import facts, progress, section, state, table
from smartbatch.reports.decision_view import decision_view
from smartbatch.reports.report_data import ReportData, ReportedJob, ReportIncident
from smartbatch.reports.sampling import RequestFigures, by_route, quantile
from smartbatch.results import defects_in_words
from smartbatch.types import DEFECTS

UNKNOWN = "unknown"
_QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
_ROUTES_SHOWN = 4
_JOBS_SHOWN = 3
_ALTERNATIVES = (
    "",
    "cost, forecast",
    "cost of the tokens used",
    "half done, forecast",
    "95 of 100, forecast",
    "time, measured",
)
_LATENCY = Axis("seconds", seconds, log=True)
_COST = Axis("USD for a request", usd, log=True)


@frozen
class Bounds:
    """How much is shown.

    Attributes:
        rows: of a table.
        timeline: batches on a time line.
        text: characters of a name or a message.
    """

    rows: int = 40
    timeline: int = 30
    text: int = 240


def body(data: ReportData, bounds: Bounds) -> Html:
    """Return the whole report."""
    jobs, when = data.jobs, partial(_when, bounds=bounds)
    return el(
        "main",
        el("h1", data.title),
        el("p", _sentence(data)),
        section("asked", "What was asked", _asked(data)),
        section("results", "What came", _results(data)),
        section("route", "By which route, and why", _how(data), _each(jobs, _route) or _no_route()),
        section("cost", "What it cost, and what the alternatives would have", _costs(data)),
        section("time", "When", _written(data), _each(jobs, when)),
        section("distributions", "Latency, cost and tokens of a request", _distributions(data)),
        section("failures", "Failures", _failures(data, bounds)),
        section("incidents", "Incidents", _incidents(jobs, bounds)),
        section("versions", "Made by", _versions(data)),
    )


# -- what was asked, and what came


def _sentence(data: ReportData) -> str:
    """Return the whole in a sentence."""
    took = [job.finished - job.created for job in data.jobs if job.finished is not None]
    time = f" in {seconds(max(took))}" if took and len(took) == len(data.jobs) else ""
    open_ = data.total - data.succeeded - data.failed - data.cancelled
    more = f", {open_:,} have no result yet" if open_ > 0 else ""
    failed = f", {data.failed:,} failed" if data.failed else ""
    cancelled = f", {data.cancelled:,} were cancelled" if data.cancelled else ""
    skipped = ""
    if data.skipped:
        skipped = f" {data.skipped:,} {'row was' if data.skipped == 1 else 'rows were'} skipped."
    defects = f" ({defects})" if (defects := defects_in_words(data)) else ""
    return (
        f"{data.succeeded:,} of {data.total:,} requests were answered{time}{defects}{failed}{cancelled}"
        f"{more}. "
        f"{_paid(data)}.{skipped}"
    )


def _paid(data: ReportData) -> str:
    results = data.succeeded + data.failed + data.cancelled
    if data.unpriced and data.unpriced >= results:
        return "What they cost is unknown"
    least = f", without {data.unpriced:,} results whose cost is unknown" if data.unpriced else ""
    return f"They cost {money(data.cost)}{least}"


def money(amount: float | None) -> str:
    """Return an amount, or that it is unknown."""
    if amount is None:
        return UNKNOWN
    return usd(amount) if abs(amount) >= 100 else f"{amount:.6f} USD"


def _asked(data: ReportData) -> Html:
    rows: list[tuple[str, Child]] = [
        ("requests", f"{data.total:,}"),
        ("model", _joined(data.models[:5], len(data.models))),
        ("kind", data.kind or UNKNOWN),
    ]
    if data.parameters is None:
        rows.append(("parameters", "not recorded"))
    rows += [(name, words) for name, words in data.parameters or ()]
    rows += [(f"label {name}", words) for name, words in data.labels[:12]]
    rows += [(f"left out: {name}", why) for name, why in data.dropped[:12]]
    return fragment(facts(rows), el("p", "Prompts and answers are not part of a report.", class_="soft"))


def _joined(names: Sequence[str], total: int) -> str:
    more = f" and {total - len(names):,} more" if total > len(names) else ""
    return (", ".join(names) or UNKNOWN) + more


def _tokens(data: ReportData, tokens: int) -> str:
    """Return tokens; never 0 if they are unknown."""
    return UNKNOWN if data.unknown and not tokens else f"{tokens:,}"


def _results(data: ReportData) -> Html:
    finished = data.succeeded + data.failed + data.cancelled
    rows: list[tuple[str, Child]] = [
        ("answered", f"{data.succeeded:,}"),
        *((name, state(f"{number:,}", "warn")) for name in DEFECTS if (number := getattr(data, name))),
        ("failed", state(f"{data.failed:,}", "bad") if data.failed else "0"),
        ("cancelled", f"{data.cancelled:,}"),
        *([("rows skipped, not sent", f"{data.skipped:,}")] if data.skipped else []),
        ("without a result", f"{data.total - finished:,}"),
        ("tokens in", _tokens(data, data.input_tokens)),
        ("tokens out", _tokens(data, data.output_tokens)),
        ("cost", money(data.cost) if data.unpriced < max(finished, 1) else UNKNOWN),
        ("results without a known cost", f"{data.unpriced:,}"),
    ]
    if data.estimated:
        rows.append(("results with estimated tokens", f"{data.estimated:,}"))
    if data.unknown:
        rows.append(("results of unknown usage", f"{data.unknown:,}"))
    if data.deduplicated:
        rows.append(("answers of equal requests", f"{data.deduplicated:,}"))
    return fragment(progress("requests with a result", finished, data.total), facts(rows))


# -- route, cost, time


def _each(jobs: Sequence[ReportedJob], show: Callable[[ReportedJob], Html]) -> Html | None:
    """Return a part for each job, under its name where there are several."""
    if len(jobs) == 1:
        return show(jobs[0])
    parts = [fragment(el("h3", _heading(job)), show(job)) for job in jobs[:_JOBS_SHOWN]]
    more = len(jobs) - len(parts)
    return fragment(parts, el("p", f"{more:,} further jobs are left out.") if more else None) or None


def _heading(job: ReportedJob) -> str:
    return f"Job {job.key or job.id}" if job.id else f"Requests of {moment(job.created)} UTC"


def _no_route() -> Html:
    return el("p", "The file does not say by which route its rows went, and no job of it is in the store.")


def _how(data: ReportData) -> Html | None:
    """Return by which routes requests were answered; of a sample, estimates."""
    groups = by_route(data.sample)
    if not data.sample or list(groups) == [""]:
        return None
    about = "" if len(data.sample) == data.sampled_of else "about "
    shares = (
        f"{_named(route)} {about}{share(len(each) / len(data.sample))}" for route, each in groups.items()
    )
    return el("p", f"Answered by route: {', '.join(shares)}.")


def _route(job: ReportedJob) -> Html:
    chosen = el("p", "Route: ", el("strong", job.route or "none was chosen, it was submitted as a job"))
    rescued = el("p", f"Rescued: {job.rescue}.") if job.rescue else None
    settings = fragment(rescued, facts((name, words) for name, words in job.settings))
    if job.decision is None:
        why = el("p", "Why is not recorded: the route was given, or no decision is stored with the job.")
        return fragment(chosen, settings, why)
    return fragment(chosen, settings, decision_view(job.decision))


def _costs(data: ReportData) -> Html:
    if not data.jobs:
        return el("p", f"{_paid(data)}. No forecast and no alternative is recorded.")
    return fragment(_alternatives(job) for job in data.jobs[:_JOBS_SHOWN])


def _alternatives(job: ReportedJob) -> Html:
    """Return the table of cost and time, as it was done and by the plain routes, which were not."""
    decision, took = job.decision, None if job.finished is None else job.finished - job.created
    chosen = alone = batch = None
    if decision is not None:
        chosen, alone, batch = decision.chosen, decision.alone, decision.batch
    rows = [
        _alternative("as it was done", chosen, job.paid, took),
        _alternative(
            "always individual", alone, job.individual_cost, took if job.route == "individual" else None
        ),
        _alternative("always batch", batch, job.batch_cost, took if job.route == "batch" else None),
    ]
    notes = [
        "What was not done was not measured: its cost is that of the tokens that were really used, at its "
        "price, and how long it would have taken is a forecast."
    ]
    if job.paid is not None and job.individual_cost is not None:
        saved = job.individual_cost - job.paid
        notes.insert(0, f"{money(abs(saved))} {'less' if saved >= 0 else 'more'} than always individual.")
    if job.finished is None:
        notes.insert(0, "The job has not ended, so what it takes in all is unknown.")
    caption = f"forecast and measured, {job.name}"
    return fragment(
        table(caption, _ALTERNATIVES, rows, numbers=range(1, 6)), (el("p", note) for note in notes)
    )


def _alternative(
    name: str, option: Option | None, paid: float | None, took: float | None
) -> tuple[Child, ...]:
    cost = None if option is None else option.cost
    return (
        name,
        UNKNOWN if cost is None else f"{cost.expected:.6f} ({cost.low:.6f} to {cost.high:.6f}) USD",
        money(paid),
        UNKNOWN if option is None else seconds(option.p50),
        UNKNOWN if option is None else seconds(option.p95),
        UNKNOWN if took is None else seconds(took),
    )


def _written(data: ReportData) -> Html | None:
    if data.written_at is None:
        return None
    known = "" if data.jobs else " When its requests were sent is not recorded."
    return el("p", f"The file was last written at {moment(data.written_at)} UTC.{known}")


def _when(job: ReportedJob, bounds: Bounds) -> Html:
    rows = [
        ("accepted", f"{moment(job.created)} UTC"),
        ("ended", UNKNOWN if job.finished is None else f"{moment(job.finished)} UTC"),
        ("took", "goes on" if job.finished is None else seconds(job.finished - job.created)),
        ("state", job.state),
    ]
    if job.timeline is None:
        return facts(rows)
    rows.append(("batches", f"{len(job.timeline):,}"))
    batches = [row for row in job.timeline if row.spans]
    shown = thinned(batches, bounds.timeline) if len(batches) > bounds.timeline else batches
    if not batches:
        drawn = el("p", "No batch was created.") if job.timeline == () else None
    else:
        drawn = timeline(f"Batches of {job.name}", shown, most=bounds.timeline) if bounds.timeline else None
    note = f"{len(shown):,} of {len(batches):,} batches are drawn." if len(shown) < len(batches) else None
    return fragment(facts(rows), drawn, el("p", note) if note else None)


# -- distributions


def _distributions(data: ReportData) -> Html:
    if not data.sample:
        return el("p", "No request was answered.")
    whole = len(data.sample) == data.sampled_of
    words = f"Of {data.sampled_of:,} answered requests" + (
        "." if whole else f" {len(data.sample):,}, evenly chosen: figures are estimates."
    )
    groups = list(by_route(data.sample).items())
    parts = [part for route, sample in groups[:_ROUTES_SHOWN] for part in _histograms(route, sample)]
    rows = [row for route, sample in groups for row in _quantile_rows(route, sample)]
    head = ("route", "figure", *(name for _, name in _QUANTILES), "mean", "most")
    quantiles = table("quantiles by route", head, rows, numbers=range(2, len(head)))
    return fragment(el("p", words), quantiles, parts)


def _named(route: str) -> str:
    return route or "route not recorded"


def _values(sample: Iterable[RequestFigures]) -> dict[str, tuple[list[float], Axis]]:
    """Return sorted values by what they are, with how they are told."""
    tokens, calls = Axis("tokens"), Axis("calls")
    kept = list(sample)
    return {
        "latency": (sorted(one.latency for one in kept if one.latency > 0), _LATENCY),
        "cost": (sorted(one.cost for one in kept if one.cost is not None), _COST),
        "tokens in": (sorted(float(one.input_tokens) for one in kept), tokens),
        "tokens out": (sorted(float(one.output_tokens) for one in kept), tokens),
        "attempts": (sorted(float(one.attempts) for one in kept), calls),
    }


def _quantile_rows(route: str, sample: Sequence[RequestFigures]) -> Iterator[tuple[str, ...]]:
    for name, (values, axis) in _values(sample).items():
        if values:
            told = (*(quantile(values, q) for q, _ in _QUANTILES), sum(values) / len(values), values[-1])
            yield (_named(route), name, *map(axis.words, told))


def _histograms(route: str, sample: Sequence[RequestFigures]) -> Iterator[Html]:
    for name, (values, axis) in _values(sample).items():
        if axis.log and any(value > 0 for value in values):
            marks = [(label, quantile(values, q)) for q, label in _QUANTILES[:2]]
            positive = [(label, value) for label, value in marks if value > 0]
            title = f"{name.capitalize()} of a request, {_named(route)}"
            yield histogram(title, binned(values), axis, marks=positive)


# -- what went wrong, and versions


def _failures(data: ReportData, bounds: Bounds) -> Html:
    if not data.failed:
        return el("p", state("No request failed.", "good"))
    rows = [
        (group.kind, group.message, f"{group.count:,}", group.example)
        for group in data.failures[: bounds.rows]
    ]
    notes = []
    if data.failures_read < data.failed:
        notes.append(
            f"The groups are made of {data.failures_read:,} of {data.failed:,} failures, evenly chosen."
        )
    if len(data.failures) > len(rows):
        notes.append(f"{len(data.failures) - len(rows):,} smaller groups are left out.")
    head = ("kind", "message", "requests", "one of them")
    shown = table("failures by kind and message", head, rows, numbers=[2])
    return fragment(shown, (el("p", note) for note in notes))


def _incidents(jobs: Sequence[ReportedJob], bounds: Bounds) -> Html:
    incidents = [incident for job in jobs for incident in job.incidents or ()]
    if all(job.incidents is None for job in jobs):
        return el("p", "Incidents are kept with jobs, and no job of this is in the store.")
    if not incidents:
        return el("p", state("Nothing happened that should not have.", "good"))
    shown = incidents[-bounds.rows :]
    left = len(incidents) - len(shown)
    more = el("p", f"{left:,} earlier ones are left out.") if left else None
    return fragment(el("ul", (_incident(one) for one in shown)), more)


def _incident(incident: ReportIncident) -> Html:
    cost = "" if incident.money is None else f" It cost {money(incident.money)} besides the results."
    return el(
        "li",
        el("strong", incident.title),
        f" ({moment(incident.at)} UTC): {incident.detail}{cost}",
    )


def _versions(data: ReportData) -> Html:
    made = ("made at", f"{moment(data.made_at)} UTC")
    return facts([*data.versions, made, ("read from", data.place)])
