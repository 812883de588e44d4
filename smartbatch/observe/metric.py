"""Defines metrics, their Prometheus families, histograms of durations, and labels.

A histogram uses constant memory: it counts durations in buckets whose bounds grow by a constant factor.
Each bucket spans an eighth of an octave (9 %), so quantiles are accurate to 4.5 % from 61 µs to 36 hours.
Labels come from closed sets, so that neither memory nor the number of series grows; unknown values become
``other``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from attrs import define, evolve, field, fields, frozen

from smartbatch import errors
from smartbatch.events import Event
from smartbatch.types import NO_USAGE, Priority, Route, Usage

BUCKETS_PER_OCTAVE = 8  # bounds grow by a factor of 2 ** (1/8) = 1.09
LOWEST_EXPONENT = -14  # the first bucket has all durations up to 2 ** -14 s = 61 µs
HIGHEST_EXPONENT = 17  # the last bucket ends at 2 ** 17 s = 36 h, above the slowest batch job (24 h)

_BUCKET_COUNT = (HIGHEST_EXPONENT - LOWEST_EXPONENT) * BUCKETS_PER_OCTAVE + 1
_MIN_SECONDS = 2.0**LOWEST_EXPONENT
_MAX_SECONDS = 2.0**HIGHEST_EXPONENT
_BUCKET_OFFSET = -LOWEST_EXPONENT * BUCKETS_PER_OCTAVE


@frozen
class TimeStats:
    """Figures of a histogram of durations, in seconds.

    Attributes:
        count: number of durations.
        total: sum of the durations.
        mean: ``total / count``; 0 without durations.
        p50, p95: quantiles, accurate to 4.5 %.
        longest: exact maximum.
        octaves: pairs of an upper end and the number of durations up to it, one per octave, from the smallest
            to the largest duration.
    """

    count: int = 0
    total: float = 0.0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    longest: float = 0.0
    octaves: tuple[tuple[float, int], ...] = ()


@define
class Histogram:
    """Counts durations. Not thread-safe: the owner holds a lock."""

    counts: list[int] = field(factory=lambda: [0] * _BUCKET_COUNT)
    count: int = 0
    total: float = 0.0
    shortest: float = math.inf
    longest: float = 0.0

    def record(self, *seconds: float) -> None:
        """Count durations; the first bucket includes NaN."""
        counts = self.counts
        for each in seconds:
            index = 0
            if each > _MIN_SECONDS:
                index = (
                    math.ceil(math.log2(each if each < _MAX_SECONDS else _MAX_SECONDS) * BUCKETS_PER_OCTAVE)
                    + _BUCKET_OFFSET
                )
            counts[index] += 1
        self.count += len(seconds)
        self.total += sum(seconds)
        self.longest = max(self.longest, *seconds)
        self.shortest = min(self.shortest, *seconds)

    def quantile(self, share: float) -> float:
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                # geometric middle of the bucket, limited to the range of recorded durations
                middle: float = 2.0 ** ((index - _BUCKET_OFFSET - 0.5) / BUCKETS_PER_OCTAVE)
                return min(max(middle, self.shortest), self.longest)
        return 0.0

    def stats(self) -> TimeStats:
        if not self.count:
            return TimeStats()
        return TimeStats(
            self.count,
            self.total,
            self.total / self.count,
            self.quantile(0.50),
            self.quantile(0.95),
            self.longest,
            self._octaves(),
        )

    def _octaves(self) -> tuple[tuple[float, int], ...]:
        pairs = []
        seen = start = 0
        for power in range(LOWEST_EXPONENT, HIGHEST_EXPONENT + 1):
            end = (power - LOWEST_EXPONENT) * BUCKETS_PER_OCTAVE + 1
            seen += sum(self.counts[start:end])
            start = end
            if seen:
                pairs.append((2.0**power, seen))
            if seen == self.count:
                break
        return tuple(pairs)


_E = TypeVar("_E", bound=Event)
_T = TypeVar("_T", bound=type)

Kind: TypeAlias = Literal["Counter", "Gauge", "Histogram"]


@frozen
class Family:
    name: str  # without the prefix ``smartbatch_``
    help: str
    label: str = ""  # empty for a single value
    kind: Kind = "Counter"
    adds_up: bool = True  # whether values of several processes add up, including those of ended processes


Values = Mapping[str, float]
"""The values of a family by label value; the key is empty if there is no label."""

Fold: TypeAlias = Callable[[Any, Iterable[Any]], Any]
"""Adds the amounts of several events to a value; ``None`` is an unknown amount and adds nothing."""


@frozen
class Count:
    """The contribution of one class of events to a metric."""

    event: type[Event]
    only: Callable[[Any], Any] | None  # selects events; None for all
    amount: Callable[[Any], Any] | None  # returns an event's amount; None for 1
    label: Callable[[Any], str] | None  # returns an event's label; None for a metric without labels


@frozen
class Events(Generic[_E]):
    """The events of one class that ``only`` selects; all events of the class if ``only`` is ``None``."""

    event: type[_E]
    only: Callable[[_E], Any] | None = None

    def __call__(
        self, amount: str | Callable[[_E], Any] | None = None, *, label: Callable[[_E], str] | None = None
    ) -> Count:
        """Return the contribution of these events: 1 each, or ``amount``, given as a function or an attribute
        name.
        """
        return Count(self.event, self.only, attrgetter(amount) if isinstance(amount, str) else amount, label)


def _added(total: Any, amounts: Iterable[Any]) -> Any:
    return total + sum(filter(None, amounts))


def largest(most: int, amounts: Iterable[int]) -> int:
    return max(most, *amounts)


def _recorded(times: Histogram, seconds: Iterable[float]) -> Histogram:
    times.record(*seconds)
    return times


def _used(total: Usage, usages: Iterable[Usage]) -> Usage:
    """Add many usages in one step, because creating a :class:`Usage` per sum would take longer than all other
    metrics together.
    """
    known = [total, *(usage for usage in usages if usage is not NO_USAGE)]
    columns = zip(*map(attrgetter(*_USED), known), strict=True)
    return Usage(
        *((any if flag else sum)(column) for flag, column in zip(_USED.values(), columns, strict=True))
    )


_USED: Final = {each.name: each.default is False for each in fields(Usage)}
"""Whether an attribute of a :class:`Usage` is a flag, by name."""


@frozen
class Metric:
    help: str
    counts: tuple[Count, ...] = ()  # empty if it is calculated for each snapshot
    family: Family | None = None  # the family in Prometheus
    value: str = ""  # label value, if several metrics share a family
    start: Callable[[], Any] = int  # returns the initial value of the metric or of each label
    fold: Fold = _added  # adds amounts to the value
    name: str = ""  # path of the attribute in a snapshot

    @property
    def is_table(self) -> bool:
        """Whether the metric has one value per label."""
        return any(count.label for count in self.counts)


_COUNTED_AS: Final[Mapping[Any, tuple[Callable[[], Any], Fold]]] = {
    dict: (int, _added),
    TimeStats: (Histogram, _recorded),
    Usage: (Usage, _used),
}
_METADATA_KEY: Final = "metric"


def metric(
    help: str,
    *counts: Count,
    start: Callable[[], Any] | None = None,
    fold: Fold = _added,
    family: Family | None = None,
    value: str = "",
    kind: Kind | None = None,
    named: str = "",
    label: str = "",
    adds_up: bool = True,
) -> Any:
    """Declare a metric; arguments as in :class:`Metric`.

    Args:
        help: the meaning of the metric.
        counts: the events it counts.
        start: returns the initial value.
        fold: adds amounts to the value.
        family: its family in Prometheus.
        value: label value, if several metrics share the family.
        kind: creates a family for this metric alone, named like its attribute unless ``named`` is given.
        named: the name of that family.
        label, adds_up: as in :class:`Family`. A metric with a label is a table.
    """
    if kind is not None:
        family = Family(named, help, label, kind, adds_up)
    made: Callable[[], Any] = start or (dict if label else int)
    first, fold = _COUNTED_AS.get(made, (made, fold))
    return field(factory=made, metadata={_METADATA_KEY: Metric(help, counts, family, value, first, fold)})


counter = partial(metric, kind="Counter")
balance = partial(metric, kind="Gauge")  # a sum that may decrease
gauge = partial(metric, kind="Gauge", adds_up=False)
times = partial(metric, start=TimeStats, kind="Histogram")


def metrics_of(snapshot: type, part: str = "", prefix: str = "") -> Iterator[Metric]:
    """Yield the metrics that a class declares.

    Args:
        snapshot: the class.
        part: the attribute of a snapshot that contains an instance of the class, or instances by label.
        prefix: the prefix of the names in Prometheus.
    """
    for attribute in fields(snapshot):
        declared: Metric | None = attribute.metadata.get(_METADATA_KEY)
        if declared is not None:
            family = declared.family
            if family is not None and not family.name:
                family = evolve(family, name=prefix + attribute.name)
            yield evolve(declared, family=family, name=f"{part}.{attribute.name}" if part else attribute.name)


def documented(kind: _T) -> _T:
    lines = [f"        {one.name}: {one.help}" for one in metrics_of(kind)]
    kind.__doc__ = "\n".join([(kind.__doc__ or "").rstrip(), "", "    Attributes:", *lines])
    return kind


# -- labels ---


def _failure_names() -> dict[str, str]:
    """Map every error name used in events to the kind under which it is counted."""
    names = {kind.value: kind.value for kind in errors.ErrorKind}
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.SmartbatchError):
            names[cls.__name__] = names[errors.snake_case(cls.__name__)] = errors.snake_case(cls.__name__)
    return names


_OTHER_LABEL: Final = "other"
_FAILURES = _failure_names()
KINDS: Final = (*dict.fromkeys(_FAILURES.values()), _OTHER_LABEL)
PRIORITIES: Final = {each: each.name.lower() for each in Priority}
ROUTES: Final[dict[Route | None, str]] = {None: "none"} | {route: route.value for route in Route}
_BREAKER_STATES: Final = frozenset({"closed", "open", "half_open", "stopped"})
_SHARD_STATES: Final = frozenset(
    (
        *("planned", "uploading", "ready", "submitting", "uncertain", "provisional", "fenced", "submitted"),
        *("ended", "ingesting", "settled", "dead"),
    )
)


def failure_kind(error: str | None) -> str:
    return _FAILURES.get(error or "unknown", _OTHER_LABEL)


def breaker_state(state: str) -> str:
    return state if state in _BREAKER_STATES else _OTHER_LABEL


def shard_state(state: str) -> str:
    return state if state in _SHARD_STATES else _OTHER_LABEL
