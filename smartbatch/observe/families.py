"""The families of figures: their names, kinds and meanings, alike for Prometheus and for shared records.

Labels come from closed sets (priority, outcome, failure kind, breaker state, token type), so no prompt or id
can become a label and the number of series is bounded. Models become labels of what all processes share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal

from attrs import fields, frozen

from smartbatch.observe.histogram import TimeStats
from smartbatch.observe.metrics_snapshot import DecisionFigures, MetricsSnapshot
from smartbatch.observe.participants import Participants, RealtimeStatus, merged


@frozen
class Family:
    """Figures of one name.

    Attributes:
        name: without the ``smartbatch_`` that Prometheus puts before it.
        help: what it means.
        label: what tells its figures apart; none where there is one figure.
        kind: as Prometheus has it.
        adds_up: whether what happened is added, so that those of processes that ended stay in a sum.
    """

    name: str
    help: str
    label: str = ""
    kind: Literal["Counter", "Gauge", "Histogram"] = "Counter"
    adds_up: bool = True


Figures = Mapping[str, float]
"""The figures of a family by the value of its label; the key is empty where there is no label."""


def families_of(s: MetricsSnapshot) -> Iterator[tuple[Family, Figures]]:
    """Yield all families but those of times, with their figures at one moment."""
    yield Family("requests_submitted", "Requests taken, by priority.", "priority"), s.by_priority
    outcomes = {"succeeded": s.succeeded, "failed": s.failed, "cancelled": s.cancelled}
    yield Family("requests_ended", "Requests that ended, by outcome.", "outcome"), outcomes
    pending = {"waiting": s.waiting, "in_flight": s.in_flight}
    yield PENDING, pending
    routes = s.by_route
    requests = {name: figures.requests for name, figures in routes.items()}
    yield Family("route_requests", "Requests that ended, by route.", "route"), requests
    cost = {name: figures.cost for name, figures in routes.items()}
    yield Family("route_cost_usd", "USD of requests whose price is known, by route.", "route"), cost
    tokens_of = {name: figures.input_tokens + figures.output_tokens for name, figures in routes.items()}
    yield Family("route_tokens", "Tokens of requests, by route.", "route"), tokens_of
    retries = {"counted": s.retries_counted, "uncounted": s.retries_uncounted}
    yield Family("retries", "Retries, by whether they cost a try.", "tries"), retries
    tokens = {"input": s.usage.input_tokens, "output": s.usage.output_tokens}
    yield Family("tokens", "Tokens of all calls and batches.", "type"), tokens
    yield Family("cost_usd", "USD of calls and batches whose price is known."), {"": s.cost}
    d = s.decisions
    yield Family("routes", "Lists and jobs, by the route that was chosen.", "route"), d.chosen
    deadlines = {"met": d.deadlines_met, "missed": d.deadlines_missed}
    yield Family("deadlines", "Lists with a deadline, by whether it was met.", "outcome"), deadlines
    within = {"p50": d.within_p50, "p95": d.within_p95, "all": d.scored}
    yield Family("forecasts", "Lists that ended, by what was forecast.", "within"), within
    yield Family("batches_rescued", "Batches taken back for a deadline."), {"": d.rescued}
    yield from _of_their_names(s)
    yield from _of_their_names(d, "routes_")


def _now(name: str, help_text: str, label: str = "") -> Family:
    return Family(name, help_text, label, "Gauge", adds_up=False)


PENDING = _now("requests_pending", "Requests not ended yet, by state.", "state")

QUEUE_SECONDS = Family("queue_seconds", "Submission to the start of the call that answered.", "", "Histogram")
CALL_SECONDS = Family("call_seconds", "Time of one call.", "", "Histogram")
RESPONSE_SECONDS = Family("response_seconds", "Submission to the end.", "", "Histogram")

OPERATIONS = Family("shared_operations", "Operations at the place where processes share limits.", "operation")
OPERATION_SECONDS = Family("shared_seconds", "Time that these operations took.", "operation")
OPERATED = (OPERATIONS, OPERATION_SECONDS)

REACHABLE = _now("shared_reachable", "Whether the place where processes share limits answers: 1 or 0.")

_LIMITS = {
    "requests_per_minute": _now("limit_requests_per_minute", "Limit of a model, told or learned.", "model"),
    "tokens_per_minute": _now("limit_tokens_per_minute", "Likewise, of all tokens.", "model"),
    "input_tokens_per_minute": _now("limit_input_tokens_per_minute", "Likewise, of tokens in.", "model"),
    "output_tokens_per_minute": _now("limit_output_tokens_per_minute", "Likewise, of tokens out.", "model"),
    "requests_left": _now("limit_requests_left", "What no process has leased of the limit.", "model"),
    "tokens_left": _now("limit_tokens_left", "Likewise, of all tokens.", "model"),
    "cooldown": _now("cooldown_left_seconds", "Until the pause after a refusal is over.", "model"),
}
_MOST_MODELS = 100
"""Models that become labels; those with the most requests."""


def live_families(found: Participants) -> Iterator[tuple[Family, Figures]]:
    """Yield what is now: sums, or the longest times, over the processes that live."""
    living = [one.realtime for one in found.living]
    ended = sum(one.ended for one in found.processes)
    states = {"living": len(living), "lost": len(found.lost), "ended": ended}
    yield _now("participants", "Processes that share limits, of the last ten minutes.", "state"), states
    all_of = merged(living)
    yield PENDING, {"waiting": all_of.waiting, "in_flight": all_of.in_flight}
    yield _now("pending_by_priority", "Requests not ended yet, by priority.", "priority"), all_of.pending
    cause = "Requests that wait, by what the first of their model waits for."
    yield _now("requests_waiting", cause, "cause"), all_of.waits
    oldest = _now("oldest_wait_seconds", "Since the oldest request that waits was submitted.")
    yield oldest, {"": all_of.oldest_wait}
    yield _now("blocked_threads", "Threads that wait for room in the queue."), {"": all_of.blocked}
    yield _now("workers", "Threads that make calls."), {"": all_of.workers}
    unshared = "Limits that are not shared now, because that place is unavailable."
    yield _now("limits_unshared", unshared), {"": all_of.unshared}
    errors: dict[str, float] = {}
    for one in found.processes:
        for kind, age in one.errors.items():
            errors[kind] = min(errors.get(kind, math.inf), one.age + age)
    yield _now("last_error_age_seconds", "Since the last failure, by kind.", "kind"), errors
    yield from _of_models(living, {lane.model for lane in all_of.lanes[:_MOST_MODELS]})


def _of_models(living: list[RealtimeStatus], models: set[str]) -> Iterator[tuple[Family, Figures]]:
    """Yield the figures by model. Of a limit that processes know differently, the tightest holds."""
    lanes = [lane for one in living for lane in one.lanes if lane.model in models]
    for name, family in _LIMITS.items():
        told: dict[str, list[float]] = {}
        for lane in lanes:
            limit = name.removesuffix("_left") + "_per_minute" if name.endswith("_left") else name
            if getattr(lane, limit) > 0.0:
                told.setdefault(lane.model, []).append(getattr(lane, name))
        choose = max if name == "cooldown" else min
        yield family, {model: choose(values) for model, values in told.items()}
    broken = Counter(lane.model for lane in lanes if lane.breaker != "closed")
    yield _now("breakers_open", "Processes that find a model's provider down.", "model"), broken


def times_of(s: MetricsSnapshot) -> Iterator[tuple[Family, TimeStats]]:
    """Yield the families of times."""
    yield QUEUE_SECONDS, s.queue_time
    yield CALL_SECONDS, s.batch_time
    yield RESPONSE_SECONDS, s.response_time


def sums_of(s: MetricsSnapshot) -> dict[str, float]:
    """Return the figures that add up and are not 0, as ``family``, or ``family:label``.

    Of times there is the number that ended in each doubling, by its upper end in seconds, and their ``sum``.
    """
    sums = {
        key_of(family, label): float(value)
        for family, figures in families_of(s)
        if family.adds_up
        for label, value in figures.items()
    }
    for family, times in times_of(s):
        before = 0
        for bound, count in times.octaves:
            sums[key_of(family, repr(bound))] = float(count - before)
            before = count
        sums[key_of(family, "sum")] = times.total
    return {key: value for key, value in sums.items() if value}


def key_of(family: Family, label: str) -> str:
    """Return the name under which a figure is added up."""
    return f"{family.name}:{label}" if label else family.name


def _of_their_names(
    figures: MetricsSnapshot | DecisionFigures, prefix: str = ""
) -> Iterator[tuple[Family, Figures]]:
    """Yield the figures that are declared as families of their own."""
    for one in fields(type(figures)):
        kind, label = one.metadata["family"], one.metadata["label"]
        if kind:
            value = getattr(figures, one.name)
            family = Family(prefix + one.name, one.metadata["help"], label, kind, one.metadata["adds_up"])
            yield family, value if label else {"": value}
