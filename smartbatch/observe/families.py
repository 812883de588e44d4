"""Metric families and their values, for Prometheus and for the records that processes share.

Labels have a fixed set of values, so the number of series is bounded. Only the combined figures of all
processes have models as labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from smartbatch.observe.metric import Family, Metric, TimeStats, Values
from smartbatch.observe.metrics_snapshot import METRICS, MetricsSnapshot
from smartbatch.observe.participants import Participants, RealtimeStatus, merged
from smartbatch.types import Usage


def families_of(s: MetricsSnapshot) -> Iterator[tuple[Family, Values]]:
    """Yield all families with their current values, except those of durations."""
    found: dict[Family, dict[str, float]] = {}
    for metric in METRICS:
        family = metric.family
        if family is not None and family.kind != "Histogram":
            values = found.setdefault(family, {})
            for label, value in _values(metric, s).items():
                values[label] = values.get(label, 0) + value
    yield from found.items()


def _values(metric: Metric, s: MetricsSnapshot) -> Values:
    part, _, attribute = metric.name.rpartition(".")
    if part == "by_route":
        return {route: getattr(figures, attribute) for route, figures in s.by_route.items()}
    value = getattr(s.decisions if part else s, attribute)
    if isinstance(value, Usage):
        return {"input": value.input_tokens, "output": value.output_tokens}
    return value if isinstance(value, dict) else {metric.value: value}


_OF_ONE_CLIENT = {metric.family.name: metric.family for metric in METRICS if metric.family is not None}


def _now(name: str, help_text: str, label: str = "") -> Family:
    return Family(name, help_text, label, "Gauge", adds_up=False)


OPERATIONS = Family("shared_operations", "Operations on the store of shared limits.", "operation")
OPERATION_SECONDS = Family(
    "shared_seconds", "Time taken by operations on the store of shared limits.", "operation"
)
OPERATED = (OPERATIONS, OPERATION_SECONDS)

REACHABLE = _now("shared_reachable", "Whether the store of shared limits responds: 1 or 0.")

_LIMITS = {
    "requests_per_minute": _now(
        "limit_requests_per_minute", "Request limit of a model, configured, reported or discovered.", "model"
    ),
    "tokens_per_minute": _now("limit_tokens_per_minute", "Limit of a model on all tokens.", "model"),
    "input_tokens_per_minute": _now(
        "limit_input_tokens_per_minute", "Limit of a model on input tokens.", "model"
    ),
    "output_tokens_per_minute": _now(
        "limit_output_tokens_per_minute", "Limit of a model on output tokens.", "model"
    ),
    "requests_left": _now(
        "limit_requests_left", "Part of the request limit that no process has leased.", "model"
    ),
    "tokens_left": _now("limit_tokens_left", "Part of the token limit that no process has leased.", "model"),
    "cooldown": _now("cooldown_left_seconds", "Time until the pause after a refusal ends.", "model"),
}
_MAX_MODELS = 100  # models used as labels: those with the most requests


def live_families(found: Participants) -> Iterator[tuple[Family, Values]]:
    """Yield the current figures of all processes combined."""
    living = [one.realtime for one in found.living]
    ended = sum(one.ended for one in found.processes)
    states = {"living": len(living), "lost": len(found.lost), "ended": ended}
    yield _now("participants", "Processes that shared limits in the last ten minutes.", "state"), states
    all_of = merged(living)
    yield _OF_ONE_CLIENT["requests_pending"], {"waiting": all_of.waiting, "in_flight": all_of.in_flight}
    yield _OF_ONE_CLIENT["pending_by_priority"], all_of.pending
    cause = "Waiting requests, by the reason why the first request of their model is waiting."
    yield _now("requests_waiting", cause, "cause"), all_of.waits
    oldest = _now("oldest_wait_seconds", "Time since the oldest waiting request was submitted.")
    yield oldest, {"": all_of.oldest_wait}
    yield _now("blocked_threads", "Threads waiting for space in the queue."), {"": all_of.blocked}
    yield _OF_ONE_CLIENT["workers"], {"": all_of.workers}
    yield _OF_ONE_CLIENT["limits_unshared"], {"": all_of.unshared}
    errors: dict[str, float] = {}
    for one in found.processes:
        for kind, age in one.errors.items():
            errors[kind] = min(errors.get(kind, math.inf), one.age + age)
    yield _now("last_error_age_seconds", "Time since the last failure, by kind.", "kind"), errors
    yield from _of_models(living, {lane.model for lane in all_of.lanes[:_MAX_MODELS]})


def _of_models(living: list[RealtimeStatus], models: set[str]) -> Iterator[tuple[Family, Values]]:
    """Yield figures by model. If limits differ between processes, the lowest applies."""
    lanes = [lane for one in living for lane in one.lanes if lane.model in models]
    for name, family in _LIMITS.items():
        known: dict[str, list[float]] = {}
        for lane in lanes:
            limit = name.removesuffix("_left") + "_per_minute" if name.endswith("_left") else name
            if getattr(lane, limit) > 0.0:
                known.setdefault(lane.model, []).append(getattr(lane, name))
        choose = max if name == "cooldown" else min
        yield family, {model: choose(values) for model, values in known.items()}
    broken = Counter(lane.model for lane in lanes if lane.breaker != "closed")
    yield _now("breakers_open", "Processes whose circuit breaker for a model is not closed.", "model"), broken


def times_of(s: MetricsSnapshot) -> Iterator[tuple[Family, TimeStats]]:
    for metric in METRICS:
        if metric.family is not None and metric.family.kind == "Histogram":
            yield metric.family, getattr(s, metric.name)


def sums_of(s: MetricsSnapshot) -> dict[str, float]:
    """Return the figures that add up and are not 0, by ``family`` or ``family:label``.

    A family of durations has their number in each octave, by the octave's upper end in seconds, and their
    ``sum``.
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
    return f"{family.name}:{label}" if label else family.name
