"""A request as it is handed to the engine: one value, made where the request was checked."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Request, Result


@frozen
class CallOptions:
    """How one request is asked, besides what the request itself says.

    Attributes:
        model: that answers.
        sink: gets the result before anybody who waits for the future runs on.
        stream: takes the answer piece by piece.
        raw: whether the result is left as it came, because it is post-processed when it is read.
        own_budget: pays for it, within the client's budget; ``None`` where the client's budget pays.
        alone: whether it shares its call with no other request.
        flex: whether it goes in the provider's slower tier, where there is one.
        keeps_going: whether it is sent although the provider refuses the key, the account or the model.
    """

    model: OpenedModel
    sink: Callable[[Result], None] | None = None
    stream: ChunkBox | None = None
    raw: bool = False
    own_budget: Budget | None = None
    alone: bool = False
    flex: bool = False
    keeps_going: bool = False


@frozen
class Submission:
    """A checked request with everything that decides how it travels.

    Attributes:
        request: as it is to be sent.
        request_id: its own id, or the one it was given.
        lane: where it waits.
        options: how it is asked.
        fingerprint: equal for requests that may share one answer; ``None`` for one that must not.
        cache_key: where the cache keeps the answer of the model that is asked; ``None`` where there is no
            cache, or it must not.
        input_tokens: estimated from the text alone.
        tokens: input and output together, as far as its lane has learned.
        reserve: the most it can cost, USD.
    """

    request: Request
    request_id: str
    lane: Lane
    options: CallOptions
    fingerprint: bytes | None
    cache_key: bytes | None = None
    input_tokens: int = 0
    tokens: int = 0
    reserve: float = 0.0
