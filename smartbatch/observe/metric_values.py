"""The values of metrics, added up from events by the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from attrs import field, frozen

from smartbatch.events import Event
from smartbatch.observe import labels
from smartbatch.observe.histogram import Histogram
from smartbatch.observe.metric import Metric
from smartbatch.observe.metrics_snapshot import METRICS, DecisionFigures, RouteFigures

_COUNTED = {metric.name: metric for metric in METRICS if metric.counts}


@frozen
class _Row:
    """What a metric takes from an event."""

    metric: Metric
    amount: Callable[[Any], Any] | None


@frozen
class _Group:
    """Rows that count the same events; those under one label together."""

    only: Callable[[Any], Any] | None
    by_label: dict[Callable[[Any], str] | None, list[_Row]] = field(factory=dict)


def _groups() -> dict[type[Event], list[_Group]]:
    found: dict[type[Event], dict[Any, _Group]] = {}
    for metric in _COUNTED.values():
        for count in metric.counts:
            group = found.setdefault(count.event, {}).setdefault(count.only, _Group(count.only))
            group.by_label.setdefault(count.label, []).append(_Row(metric, count.amount))
    return {event: list(groups.values()) for event, groups in found.items()}


_GROUPS = _groups()


def _parts(events: Sequence[Event], label: Callable[[Any], str] | None) -> dict[str, Sequence[Event]]:
    """Return the events by label."""
    if label is None:
        return {"": events}
    parts: dict[str, Any] = {}
    for event, key in zip(events, map(label, events), strict=True):
        parts.setdefault(key, []).append(event)
    return parts


class MetricValues:
    """What events added to each metric since the last reset; not thread-safe.

    Many events are added at once, as that takes a fraction of the time.
    """

    def __init__(self) -> None:
        self._values = {
            name: {} if metric.is_table else {"": metric.start()} for name, metric in _COUNTED.items()
        }
        self._values["by_priority"] = dict.fromkeys(labels.PRIORITIES.values(), 0)
        self._values["pending_by_priority"] = self._values["by_priority"].copy()

    def after_reset(self) -> MetricValues:
        """Return values that begin with the requests that have not ended, as if they were submitted anew."""
        fresh = MetricValues()
        for name in ("by_priority", "pending_by_priority"):
            # below 0 where an end was reported before its submission
            fresh._values[name] = self._values["pending_by_priority"].copy()
        return fresh

    def add(self, events: Iterable[Event]) -> None:
        """Add what each metric takes from events; nothing from those of unknown classes."""
        by_class: dict[type[Event], list[Event]] = {}
        for event in events:
            by_class.setdefault(type(event), []).append(event)
        for kind, alike in by_class.items():
            for group in _GROUPS.get(kind, ()):
                selected = alike if group.only is None else [*filter(group.only, alike)]
                if selected:
                    self._add_group(group, selected)

    def _add_group(self, group: _Group, events: Sequence[Event]) -> None:
        for by, rows in group.by_label.items():
            for label, part in _parts(events, by).items():
                for row in rows:
                    self._add(row, label, part)

    def _add(self, row: _Row, label: str, events: Sequence[Event]) -> None:
        amounts: Iterable[Any] = repeat(1, len(events)) if row.amount is None else map(row.amount, events)
        metric = row.metric
        values = self._values[metric.name]
        values[label] = metric.fold(values[label] if label in values else metric.start(), amounts)

    def values(self) -> dict[str, Any]:
        """Return what was counted, by the attributes of a snapshot. Tables are copies."""
        whole: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {"by_route": {}, "decisions": {}}
        for name, metric in _COUNTED.items():
            part, _, attribute = name.rpartition(".")
            value = self._values[name] if metric.is_table else self._values[name][""]
            (parts[part] if part else whole)[attribute] = _copied(value)
        columns = parts["by_route"]
        whole["by_route"] = {
            route: RouteFigures(**{name: column[route] for name, column in columns.items()})
            for route in columns["cost"]
        }
        return whole | {"decisions": DecisionFigures(**parts["decisions"])}


def _copied(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.stats()
    return value.copy() if isinstance(value, dict) else value
