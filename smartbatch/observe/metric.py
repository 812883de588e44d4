"""What a metric is: its meaning, the events it counts, and its family in Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from attrs import evolve, field, fields, frozen

from smartbatch.events import Event
from smartbatch.observe.histogram import Histogram, TimeStats
from smartbatch.types import NO_USAGE, Usage

_E = TypeVar("_E", bound=Event)
_T = TypeVar("_T", bound=type)

Kind: TypeAlias = Literal["Counter", "Gauge", "Histogram"]


@frozen
class Family:
    """Values of one name in Prometheus.

    Attributes:
        name: without the prefix ``smartbatch_``.
        help: what it means.
        label: tells its values apart; empty where there is one value.
        kind: as Prometheus names it.
        adds_up: whether values of several processes, ended ones included, are added.
    """

    name: str
    help: str
    label: str = ""
    kind: Kind = "Counter"
    adds_up: bool = True


Values = Mapping[str, float]
"""The values of a family by the value of its label; the key is empty where there is no label."""

Fold: TypeAlias = Callable[[Any, Iterable[Any]], Any]
"""Returns a value with amounts of several events added; an amount of ``None`` is unknown and adds nothing."""


@frozen
class Count:
    """What a metric takes from the events of one class.

    Attributes:
        event: the class.
        only: which of them count; all where ``None``.
        amount: what each adds; 1 where ``None``.
        label: where in the metric's table it is added; ``None`` where the metric is no table.
    """

    event: type[Event]
    only: Callable[[Any], Any] | None
    amount: Callable[[Any], Any] | None
    label: Callable[[Any], str] | None


@frozen
class Events(Generic[_E]):
    """The events of one class that ``only`` selects; all of the class where it is ``None``."""

    event: type[_E]
    only: Callable[[_E], Any] | None = None

    def __call__(
        self, amount: str | Callable[[_E], Any] | None = None, *, label: Callable[[_E], str] | None = None
    ) -> Count:
        """Return what a metric takes from them: 1 each, or an amount, which may be named as an attribute."""
        return Count(self.event, self.only, attrgetter(amount) if isinstance(amount, str) else amount, label)


def _added(total: Any, amounts: Iterable[Any]) -> Any:
    return total + sum(filter(None, amounts))


def largest(most: int, amounts: Iterable[int]) -> int:
    """Return the largest amount."""
    return max(most, *amounts)


def _recorded(times: Histogram, seconds: Iterable[float]) -> Histogram:
    times.record(*seconds)
    return times


def _used(total: Usage, usages: Iterable[Usage]) -> Usage:
    """Add many at once: a :class:`Usage` for each sum would take longer than all other metrics together."""
    known = [total, *(usage for usage in usages if usage is not NO_USAGE)]
    columns = zip(*map(attrgetter(*_USED), known), strict=True)
    return Usage(
        *((any if flag else sum)(column) for flag, column in zip(_USED.values(), columns, strict=True))
    )


_USED: Final = {each.name: each.default is False for each in fields(Usage)}
"""Each attribute of a :class:`Usage`, with whether it is a flag."""


@frozen
class Metric:
    """One metric, declared as an attribute of a snapshot.

    Attributes:
        help: what it means.
        counts: what it takes from events; nothing where it is calculated when a snapshot is made.
        family: its family in Prometheus; ``None`` where it has none.
        value: its value of the family's label, where several metrics share a family.
        start: makes its value, or that of each label, before anything is counted.
        fold: adds amounts to its value.
        name: its attribute, after a dot where it is in a part of the snapshot.
    """

    help: str
    counts: tuple[Count, ...] = ()
    family: Family | None = None
    value: str = ""
    start: Callable[[], Any] = int
    fold: Fold = _added
    name: str = ""

    @property
    def is_table(self) -> bool:
        """Whether it has a value for each label."""
        return any(count.label for count in self.counts)


_COUNTED_AS: Final[Mapping[Any, tuple[Callable[[], Any], Fold]]] = {
    dict: (int, _added),
    TimeStats: (Histogram, _recorded),
    Usage: (Usage, _used),
}
_KEY: Final = "metric"


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
    """Declare a metric; arguments as of :class:`Metric`.

    Args:
        kind: has a family made for this metric alone, named as its attribute unless ``named`` is given.
        label, adds_up: as of :class:`Family`. A metric with a label is a table.
    """
    if kind is not None:
        family = Family(named, help, label, kind, adds_up)
    made: Callable[[], Any] = start or (dict if label else int)
    first, fold = _COUNTED_AS.get(made, (made, fold))
    return field(factory=made, metadata={_KEY: Metric(help, counts, family, value, first, fold)})


counter = partial(metric, kind="Counter")
balance = partial(metric, kind="Gauge")
"""A sum that may fall."""
gauge = partial(metric, kind="Gauge", adds_up=False)
times = partial(metric, start=TimeStats, kind="Histogram")


def metrics_of(snapshot: type, part: str = "", prefix: str = "") -> Iterator[Metric]:
    """Yield the metrics that a class declares.

    Args:
        part: the attribute of a whole snapshot that holds an instance, or instances by label.
        prefix: of the names in Prometheus.
    """
    for attribute in fields(snapshot):
        declared: Metric | None = attribute.metadata.get(_KEY)
        if declared is not None:
            family = declared.family
            if family is not None and not family.name:
                family = evolve(family, name=prefix + attribute.name)
            yield evolve(declared, family=family, name=f"{part}.{attribute.name}" if part else attribute.name)


def documented(kind: _T) -> _T:
    """Add the meanings of the metrics to a class's docstring."""
    lines = [f"        {one.name}: {one.help}" for one in metrics_of(kind)]
    kind.__doc__ = "\n".join([(kind.__doc__ or "").rstrip(), "", "    Attributes:", *lines])
    return kind
