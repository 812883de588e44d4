"""Bounded summaries of any number of requests: an even sample, quantiles, failures by kind and message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, frozen

MOST_SAMPLED = 4_000
"""Requests that distributions are made of."""
MOST_GROUPS = 200
"""Groups of failures that are told apart; further ones are counted as one group."""
_OTHERS = "(further messages)"


@frozen(kw_only=True)
class RequestFigures:
    """The figures of one request that was answered.

    Attributes:
        route: how; empty where that is not recorded.
        latency: seconds of the call that answered, or of its batch.
        cost: USD; ``None`` where the price is unknown.
        input_tokens, output_tokens: over all attempts.
        attempts: calls made.
    """

    route: str
    latency: float
    cost: float | None
    input_tokens: int
    output_tokens: int
    attempts: int


class EvenSample:
    """Keeps at most :data:`MOST_SAMPLED` of the requests it is given, evenly spread over them.

    Attributes:
        seen: how many it was given.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._step = 1
        self._kept: list[RequestFigures] = []

    def add(self, figures: RequestFigures) -> None:
        """Keep it, if its turn has come; past the bound every second one that is kept is left out."""
        if self.seen % self._step == 0:
            self._kept.append(figures)
            if len(self._kept) > MOST_SAMPLED:
                self._kept = self._kept[::2]
                self._step *= 2
        self.seen += 1

    def kept(self) -> tuple[RequestFigures, ...]:
        """Return those that were kept, in their order."""
        return tuple(self._kept)


@define
class FailureGroup:
    """Requests that failed alike.

    Attributes:
        kind: see :class:`~smartbatch.ErrorKind`, or the error's class.
        message: what their messages have in common.
        count: how many.
        example: the id of one of them.
    """

    kind: str
    message: str
    count: int
    example: str


class FailureGroups:
    """Counts failures by kind and message, those of further messages together."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], FailureGroup] = {}

    def add(self, kind: str, message: str, example: str) -> None:
        """Count one."""
        key = (kind, message)
        if key not in self._groups and len(self._groups) >= MOST_GROUPS:
            key = (kind, _OTHERS)
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = FailureGroup(*key, 0, example)
        group.count += 1

    def largest(self) -> tuple[FailureGroup, ...]:
        """Return the groups, the largest first."""
        return tuple(sorted(self._groups.values(), key=lambda group: -group.count))


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value below which a share ``q`` of ``values`` lies; they are sorted and not empty."""
    place = q * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def by_route(sample: Iterable[RequestFigures]) -> dict[str, list[RequestFigures]]:
    """Return requests by their route, the most frequent first."""
    groups: dict[str, list[RequestFigures]] = {}
    for each in sample:
        groups.setdefault(each.route, []).append(each)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
