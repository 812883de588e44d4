"""A request as it is handed to the engine: one value, made where the request was checked."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Request, Result

__all__ = ["Delivery", "Keys", "RequestDemand", "Submission"]


@frozen
class Keys:
    """What makes requests the same.

    Attributes:
        fingerprint: equal for requests that may share one call; ``None`` for one that must not.
        cache: where the cache keeps the answer; ``None`` where there is no cache, or it must not.
    """

    fingerprint: bytes | None = None
    cache: bytes | None = None


@frozen
class RequestDemand:
    """What one request is expected to use.

    Attributes:
        input_tokens: estimated from the text alone.
        tokens: input and output together, as far as its lane has learned.
        reserve: the most it can cost, USD.
        own_budget: pays for it, within the client's budget; ``None`` where the client's budget pays.
    """

    input_tokens: int = 0
    tokens: int = 0
    reserve: float = 0.0
    own_budget: Budget | None = None


@frozen
class Delivery:
    """Where the answer goes, besides the future.

    Attributes:
        sink: gets the result before anybody who waits for the future runs on.
        stream: takes the answer piece by piece.
        raw: whether the result is left as it came, because it is post-processed when it is read.
    """

    sink: Callable[[Result], None] | None = None
    stream: ChunkBox | None = None
    raw: bool = False


_NO_KEYS = Keys()
_NO_DEMAND = RequestDemand()
_FUTURE_ONLY = Delivery()


@frozen
class Submission:
    """A checked request with everything that decides how it travels.

    Attributes:
        request: as it is to be sent.
        request_id: its own id, or the one it was given.
        lane: where it waits.
        keys: what it may share with others.
        demand: what it is expected to use.
        delivery: where its answer goes.
        alone: whether it shares its call with no other request.
    """

    request: Request
    request_id: str
    lane: Lane
    keys: Keys = field(default=_NO_KEYS)
    demand: RequestDemand = field(default=_NO_DEMAND)
    delivery: Delivery = field(default=_FUTURE_ONLY)
    alone: bool = False
