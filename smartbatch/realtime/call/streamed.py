"""The innermost layer of a call whose answer is handed on while it is made.

Pieces go to the request's feed; the call returns the whole answer at its end, like any other, so the layers
around it, the gates and the verdicts need not know.
"""

from __future__ import annotations

from attrs import evolve

from smartbatch.core.preparation import tokens
from smartbatch.errors import ErrorKind, ProviderError, RequestCancelled
from smartbatch.providers.base import AnswerStream, Provider
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Answer, Request, Usage


def streamed(
    provider: Provider,
    request: Request,
    feed: ChunkBox,
    model: str,
    attempt: int,
    end: float,
    timeout: float,
) -> Answer:
    """Make a call and hand its pieces to ``feed``; ``timeout`` seconds, which are over at ``end``.

    The cases, in order: pieces of an earlier call were read, so it cannot be asked for again; the reader has
    gone, and nothing is sent; the provider does not stream, and the answer comes whole; a stream, which is
    closed however it ends.

    Raises:
        Exception: as :meth:`Provider.generate <smartbatch.providers.base.Provider.generate>`.
    """
    if feed.begun:
        raise ProviderError(
            "a part of the answer was handed on already, so it cannot be asked for again",
            kind=ErrorKind.CLIENT_ERROR,
        )
    if feed.over:
        raise RequestCancelled("the stream was closed before its call; nothing was sent")
    if not provider.capabilities.streams:
        return provider.generate(request, model=model, attempt=attempt, timeout=timeout)
    stream: AnswerStream | None = None
    try:
        stream = provider.stream(request, model=model, attempt=attempt, timeout=timeout)
        feed.attach(stream.close)
        for piece in stream:
            if not isinstance(piece, str):
                raise ProviderError(
                    f"the stream has a {type(piece).__name__} as a piece of text",
                    kind=ErrorKind.INVALID_RESPONSE,
                )
            if piece:
                feed.put(piece, end)
        answer = stream.answer
    finally:
        feed.detach()
        if stream is not None:
            stream.close()
    if isinstance(answer, Answer) and answer.usage is None:
        return evolve(answer, usage=_estimated(request, feed))
    return answer


def cut(error: ProviderError, request: Request, feed: ChunkBox) -> ProviderError:
    """Return what an error means for a stream: whether the provider failed, and about what was used.

    That is an estimate in any case: what was made and did not arrive is billed as well.
    """
    if feed.over and not isinstance(error, RequestCancelled):
        error = RequestCancelled("the stream was closed before its end", maybe_billed=True)
    elif feed.held_up and error.kind is ErrorKind.TIMEOUT:
        # No sign against the provider: it could not send what was not read.
        error = RequestCancelled("the stream was read too slowly for its time-out", maybe_billed=True)
    if feed.begun or (error.maybe_billed and isinstance(error, RequestCancelled)):
        error.maybe_billed = True
        if error.usage is None:
            error.usage = _estimated(request, feed)
    if error.usage is not None:  # a count from before the end
        made = max(error.usage.output_tokens, feed.tokens)
        error.usage = evolve(error.usage, output_tokens=made, estimated=True)
    return error


def _estimated(request: Request, feed: ChunkBox) -> Usage:
    return Usage(tokens.estimate_request(request), feed.tokens, estimated=True)
