"""Bounded summaries of any number of results: an even sample, and failures by kind and message."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field, frozen

from smartbatch.core.limits.failures import pattern_of
from smartbatch.errors import SmartbatchError, kind_name
from smartbatch.types import Result

MAX_SAMPLED = 4_000
"""Requests in a sample."""
MAX_GROUPS = 200
"""Groups of failures; further ones of a kind are counted as one group."""
_OTHERS = "(further messages)"


@frozen
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
    """Keeps at most :data:`MAX_SAMPLED` of the requests it is given, evenly spread over them.

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
            if len(self._kept) > MAX_SAMPLED:
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
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            key = (kind, _OTHERS)
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = FailureGroup(*key, 0, example)
        group.count += 1

    def largest(self) -> tuple[FailureGroup, ...]:
        """Return the groups, the largest first."""
        return tuple(sorted(self._groups.values(), key=lambda group: -group.count))


def by_route(sample: Iterable[RequestFigures]) -> dict[str, list[RequestFigures]]:
    """Return requests by their route, the most frequent first."""
    groups: dict[str, list[RequestFigures]] = {}
    for each in sample:
        groups.setdefault(each.route, []).append(each)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


@define
class SeenResults:
    """What results have in common, in bounded memory.

    Attributes:
        sample: figures of answered requests, those that share another request's answer left out.
        failures: groups of failed requests.
        failures_read: failed requests that the groups are made of.
        dropped: parameters that were left out, with the reasons.
        input_tokens, output_tokens: of all results.
        estimated, unknown: results some of whose tokens are an estimate, or are not known.
        deduplicated: answers of identical requests, without cost and time of their own.
        is_whole: whether these are all results; of a large job they are a sample.
    """

    sample: EvenSample = field(factory=EvenSample)
    failures: FailureGroups = field(factory=FailureGroups)
    failures_read: int = 0
    dropped: dict[str, str] = field(factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: int = 0
    unknown: int = 0
    deduplicated: int = 0
    is_whole: bool = True

    def add(self, result: Result) -> None:
        """Add a result that is not the answer of an identical request."""
        usage = result.usage
        self.dropped.update(result.dropped)
        self.estimated += usage.estimated
        self.unknown += usage.unknown
        if result.ok:
            route = "" if result.route is None else result.route.value
            tokens = usage.input_tokens, usage.output_tokens
            self.sample.add(RequestFigures(route, result.latency, result.cost, *tokens, result.attempts))

    def add_failure(self, error: SmartbatchError, request_id: str) -> None:
        """Add a request that failed."""
        self.failures_read += 1
        self.failures.add(kind_name(error), pattern_of(error.message), request_id)
