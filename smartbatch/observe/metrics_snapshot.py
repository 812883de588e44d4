"""The figures of one moment, each declared once, and their plain form for JSON.

A figure that Prometheus has under its own name says of which kind it is there.
"""

# ruff: noqa: RUF009 - figures are declared by functions

from __future__ import annotations

import json
from functools import partial
from typing import Any, TypeVar

from attrs import asdict, define, field, fields, frozen, has

from smartbatch._display import table
from smartbatch.observe.histogram import TimeStats
from smartbatch.types import Usage

_T = TypeVar("_T", bound=type)


def _figure(help: str, default: Any = 0, *, family: str = "", label: str = "", adds_up: bool = True) -> Any:
    """Declare a figure.

    Args:
        help: what it means, for the docstring and for Prometheus.
        default: its value before anything was counted, or what makes it.
        family: ``Counter`` or ``Gauge`` where Prometheus has it under its own name.
        label: what the keys of a table are there.
        adds_up: see :class:`~smartbatch.observe.families.Family`.
    """
    made = {"factory": default} if callable(default) else {"default": default}
    return field(**made, metadata={"help": help, "family": family, "label": label, "adds_up": adds_up})


_counter = partial(_figure, family="Counter")
_balance = partial(_figure, family="Gauge")
_gauge = partial(_figure, family="Gauge", adds_up=False)


def _documented(kind: _T) -> _T:
    """Add the meanings of the figures to a class's docstring."""
    lines = [f"        {one.name}: {one.metadata['help']}" for one in fields(kind) if not one.inherited]
    kind.__doc__ = "\n".join([(kind.__doc__ or "").rstrip(), "", "    Attributes:", *lines])
    return kind


@_documented
@define
class DecisionFigures:
    """The choices of routes of a session."""

    chosen: dict[str, int] = _figure("Lists and jobs, by the route that was chosen.", dict)
    forecasts_moved: int = _counter("Changes of forecasts by more than a quarter.")
    thresholds_moved: int = _counter("Changes of the number of requests from which lists go by batch.")
    scored: int = _figure("Lists and jobs whose end was seen, which the figures below are about.")
    saved_usd: float = _balance("USD less than the same tokens individually.", 0.0)
    extra_usd: float = _balance("USD more than the same tokens by batch.", 0.0)
    saved_seconds: float = _balance("Seconds sooner than always by batch, by the forecast.", 0.0)
    lost_seconds: float = _balance("Seconds later than always individually, by the forecast.", 0.0)
    within_p50: int = _figure("Lists that ended within what was forecast for half.")
    within_p95: int = _figure("Lists that ended within what was forecast for 95 of 100.")
    deadlines_met: int = _figure("Lists with a deadline that was met.")
    deadlines_missed: int = _figure("Lists with a deadline that was missed.")
    rescued: int = _figure("Batches taken back for a deadline.")


@_documented
@define
class RouteFigures:
    """The requests that ended by one route."""

    succeeded: int = _figure("Requests that were answered.")
    failed: int = _figure("Requests that failed for good.")
    cancelled: int = _figure("Requests that were cancelled.")
    input_tokens: int = _figure("Tokens in, of all their calls, as far as they are known.")
    output_tokens: int = _figure("Tokens out, likewise.")
    cost: float = _figure("USD of those whose price is known.", 0.0)

    @property
    def requests(self) -> int:
        """Requests that ended."""
        return self.succeeded + self.failed + self.cancelled


@_documented
@define(kw_only=True)
class EventCounts:
    """What the events of a client add up to, since its start or the last ``reset()``.

    A request of a job that was not asked in real time counts when this process stores its result, as
    submitted and as ended. The routes are ``individual``, ``shared`` (packed ones, too), ``flex``, ``batch``,
    ``cached``, ``local``, or ``none`` for requests without an answer in real time and those of jobs that were
    not sent.
    """

    by_route: dict[str, RouteFigures] = _figure("Requests that ended, by route.", dict)
    deduplicated: int = _counter("Requests that joined an identical one in flight, or in their job.")
    local: int = _counter("Requests answered without a call, by preprocessing.")
    batches: int = _counter("Calls started, retries included; each carries one batch.")
    shared_batches: int = _counter("Batches of two requests or more.")
    failed_batches: int = _counter("Calls that failed.")
    retried_batches: int = _counter("Calls whose most urgent request had been in a call before.")
    sent: int = _counter("Requests in calls, once for each call.")
    batched: int = _counter("Requests in calls that were shared, once for each call.")
    largest_batch: int = _figure("Requests of the largest call.")
    call_failures: dict[str, int] = _counter("Calls that failed, by kind.", dict, label="kind")
    request_failures: dict[str, int] = _counter("Requests that failed for good, by kind.", dict, label="kind")
    retries_counted: int = _figure("Retries that cost the request one of its tries.")
    retries_uncounted: int = _figure("Retries after a limit or during an outage, which cost it none.")
    rate_limits: int = _counter("Calls the provider refused for its limits.")
    cooldowns: int = _counter("Pauses begun after a limit.")
    cooldown_seconds: float = _counter("Announced length of the pauses, overlaps counted once.", 0.0)
    shared_limits_lost: int = _counter("Times the place where processes share a limit was found unavailable.")
    limits_unshared: int = _gauge("Limits that are not shared now, because that place is unavailable.")
    breaker_changes: dict[str, int] = _counter(
        "Circuit breaker changes, by state entered.", dict, label="state"
    )
    parameters_dropped: int = _counter("Parameters left out because the provider does not take them.")
    usage: Usage = _figure("Tokens of all calls and batches, failed ones as far as is known.", Usage)
    cost: float = _figure("USD of all calls and batches whose price is known.", 0.0)
    unpriced: int = _counter("Ended requests whose calls have no known price: the cost lacks them.")
    unconfirmed_cost: float = _counter("USD that calls may have cost whose answer was lost.", 0.0)
    possible_double_bills: int = _counter("Retries after a call that may have been carried out.")
    failed_at_stop: int = _figure("Requests failed because the time-out of stop ended.")
    jobs_accepted: int = _counter("Jobs stored.")
    jobs_finished: int = _counter("Jobs whose last result was stored by this client.")
    shard_changes: dict[str, int] = _counter(
        "Changes of jobs' batches, by state entered.", dict, label="state"
    )
    job_incidents: int = _counter("Things that should not have happened to jobs.")
    jobs_cost: float = _counter("The part of the cost that is of jobs, USD.", 0.0)
    jobs_saved: float = _balance("USD that jobs cost less than the same tokens in real time.", 0.0)
    decisions: DecisionFigures = _figure("What the choices of routes brought.", DecisionFigures)


@_documented
@frozen(kw_only=True)
class MetricsSnapshot(EventCounts):
    """All figures of a client at one moment; they belong together.

    ``submitted == waiting + in_flight + succeeded + failed + cancelled`` always holds.
    """

    elapsed: float = _figure("Seconds the client has been running.", 0.0)
    workers: int = _gauge("Threads that make calls.")
    submitted: int = _figure("Requests taken, joined ones included.")
    waiting: int = _figure("Requests in no call now: queued, gathered, or due for a retry.")
    in_flight: int = _figure("Requests in a call now.")
    succeeded: int = _figure("Requests that were answered.")
    failed: int = _figure("Requests that failed for good.")
    cancelled: int = _figure("Requests that were cancelled.")
    by_priority: dict[str, int] = _figure(
        "Requests taken, by the priority's name; job for those of jobs that were not asked in real time.",
        dict,
    )
    pending_by_priority: dict[str, int] = _gauge(
        "Requests not ended yet, by priority.", dict, label="priority"
    )
    resets: int = _figure("Times the figures were reset.")
    mean_batch_size: float = _figure("Requests a call.", 0.0)
    max_batch_size: int = _figure("The most requests a call may have.", 1)
    queue_time: TimeStats = _figure("Submission to the start of the call that answered.", TimeStats)
    batch_time: TimeStats = _figure("Time of one call, failed ones included.", TimeStats)
    response_time: TimeStats = _figure("Submission to the end, cancelled ones left out.", TimeStats)
    busy_seconds: float = _counter("Time workers spent in calls.", 0.0)
    efficiency: float = _gauge(
        "Mean batch size by its maximum, times the share of requests that shared a call; 0 to 1.", 0.0
    )
    queue_utilisation: float = _gauge("Requests that wait, as a share of the queue's capacity.", 0.0)
    utilisation: float = _gauge("Share of the workers' time spent in calls.", 0.0)

    @property
    def total(self) -> int:
        """Requests that ended: ``succeeded + failed + cancelled``."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def retries(self) -> int:
        """All retries, counted or not."""
        return self.retries_counted + self.retries_uncounted

    def __repr__(self) -> str:
        states = ("waiting", "in_flight", "succeeded", "failed", "cancelled")
        counts = ", ".join(f"{getattr(self, state):,} {state.replace('_', ' ')}" for state in states)
        return f"<MetricsSnapshot {self.submitted:,} submitted: {counts}; {self.cost:.6f} USD>"

    def _repr_html_(self) -> str:
        rows = [(one.name, getattr(self, one.name), one.metadata["help"]) for one in fields(type(self))]
        told = [(name, _words(value), help) for name, value, help in rows if value]
        return table(("figure", "value", "what it is"), [row for row in told if row[1]])

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain dicts, numbers and strings; ``total`` and ``retries`` included."""
        plain: dict[str, Any] = asdict(self, filter=lambda attribute, _: attribute.name != "octaves")
        return plain | {"total": self.total, "retries": self.retries}

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`as_dict` as JSON text.

        Args:
            indent: spaces a level; one line when ``None``.
        """
        return json.dumps(self.as_dict(), indent=indent)


def _words(figure: Any) -> str:
    """Return a figure for a table; empty where there is nothing to tell."""
    if isinstance(figure, TimeStats):
        return f"mean {figure.mean:.3g} s, 95 of 100 in {figure.p95:.3g} s" if figure.count else ""
    if isinstance(figure, dict):
        return ", ".join(f"{name}: {_words(value)}" for name, value in figure.items() if value)
    if has(type(figure)):
        plain = asdict(figure)
        return ", ".join(
            f"{name.replace('_', ' ')} {_words(value)}" for name, value in plain.items() if value
        )
    return f"{figure:,.6g}" if isinstance(figure, float) else f"{figure:,}"
