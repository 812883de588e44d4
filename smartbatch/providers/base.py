"""The interface of every provider: it answers one request, states its capabilities and classifies its errors.

An adapter imports types and errors only. It never retries, never waits for a limit, never logs; it makes one
call within a total deadline and returns an :class:`~smartbatch.types.Answer` or raises. Whatever it raises
is turned into a :class:`~smartbatch.errors.ProviderError` by :meth:`Provider.classify`, in one place.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from smartbatch.errors import ErrorKind, ProviderError, scrub
from smartbatch.types import Answer, Request

if TYPE_CHECKING:
    from smartbatch.providers.batch_api import BatchApi
    from smartbatch.providers.http.endpoint import HttpNetwork

FLEX = "flex"
"""The name of the tier in requests and answers of both APIs."""

_NAMES_IT = re.compile(r"\bflex\b|service[_ ]?tier", re.I)


@frozen
class Capabilities:
    """What a provider can do.

    Attributes:
        max_shared: most requests one call can carry; 1 when calls cannot be shared.
        max_texts: most texts one embeddings call can carry; 0 when there are no embeddings.
        max_text_tokens: most tokens of all texts of an embeddings call, as our estimate counts them.
        streams: whether answers can be streamed.
        schemas: whether the provider itself makes answers follow a JSON schema.
        output_limit: most tokens of an answer to a request without ``max_tokens``; ``None`` where it is
            unknown.
        schema_modes: values of ``schema_mode`` that it takes.
        priced: False for providers whose calls cost nothing by nature, so a missing price is not an error.
    """

    max_shared: int = 1
    max_texts: int = 0
    max_text_tokens: int = 0
    streams: bool = False
    schemas: bool = False
    output_limit: int | None = None
    schema_modes: frozenset[str] = frozenset({"auto", "json_schema"})
    priced: bool = True


class AnswerStream(ABC):
    """An answer that comes in pieces. One thread iterates it, once; any thread may close it."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text as they come.

        Raises:
            Exception: as :meth:`Provider.generate`; an end without the provider's end mark is an error too.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection; an iteration under way ends soon, with an error. May be called twice."""

    @property
    @abstractmethod
    def answer(self) -> Answer:
        """The whole answer with usage and finish reason, once the iteration has ended."""


@frozen
class FlexTier:
    """How one API names its slower tier.

    Args:
        field: the parameter that names a tier.
        also: other spellings of it.
        full: tells whether an error says that the tier has no capacity now, and nothing about the request
            or its limits.
    """

    field: str
    also: tuple[str, ...]
    full: Callable[[ProviderError], bool]

    def is_open_to(self, request: Request) -> bool:
        """Whether ``request`` may use the tier: a generation whose sender named no tier."""
        if request.embedding is not None or request.call is not None:
            return False
        extra = request.params.extra
        return not extra or not any(name in extra for name in (self.field, *self.also))

    def asked_by(self, request: Request) -> Request:
        """Return ``request`` as it asks for the tier."""
        params = request.params
        return evolve(request, params=evolve(params, extra={**(params.extra or {}), self.field: FLEX}))

    def declines(self, error: ProviderError) -> bool:
        """Whether an error says that this model or account does not have the tier."""
        return error.kind is ErrorKind.CLIENT_ERROR and _NAMES_IT.search(error.message) is not None


class Provider(ABC):
    """Base of the adapters; also the base of a user's own.

    Making a provider opens nothing: no thread, lock, socket or connection. What is opened belongs to the
    process that opened it.

    Attributes:
        name: the prefix in ``provider:model``.
        scope: names the quota: key fingerprint, base URL, organisation, project. Never the key itself.
        capabilities: see :class:`Capabilities`.
        own_code: True when the calls run the user's own code, whose exceptions are kept as a cause.
        network: is opened and closed with the provider, and asked first what an exception means; ``None`` for
            a provider that has none, or takes care of it by itself.
    """

    name: str
    scope: str
    capabilities: Capabilities = Capabilities()
    own_code: bool = False
    network: HttpNetwork | None = None

    @abstractmethod
    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        """Make one call for one request.

        Args:
            request: with every parameter filled in; ``prompt`` is a text or a tuple of messages.
            model: the model's name without the provider's prefix.
            attempt: 0 for the first call of this request, then 1, 2, …
            timeout: total seconds the call may take, connection and body included.

        Raises:
            Exception: anything; :meth:`classify` gives it a meaning.
        """

    def generate_many(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        """Make one call for several requests; only called when ``capabilities.max_shared`` is above 1.

        Returns:
            one entry for each request, in their order; ``None`` where the answer is missing, an exception
            where that request failed alone.
        """
        raise NotImplementedError(f"{self.name} cannot share a call")

    def embed(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        """Make one call for the vectors of several texts; only called where ``max_texts`` is set.

        All have the same ``embedding``. The adapter places vectors by index and checks that there are
        as many as texts, that each has the dimensions asked for, and that all numbers are finite.

        Returns:
            one entry for each request, in their order, as :meth:`generate_many`; ``Answer.embedding`` is set.
        """
        raise NotImplementedError(f"{self.name} has no embeddings")

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:
        """Begin to stream one answer; only called when ``capabilities.streams``.

        ``timeout`` counts for the whole stream. It may return before the request is sent: then reading sends
        it and raises what the provider says, and closing cuts the wait for the answer short.
        """
        raise NotImplementedError(f"{self.name} does not stream")

    def check(self, request: Request, *, model: str) -> None:
        """Raise ``InvalidRequest`` for what this provider cannot send; called before a request is queued."""

    def takes_temperature(self, model: str) -> bool:  # noqa: ARG002
        """Whether ``model`` surely takes a temperature; asked before one is set that nobody asked for."""
        return False

    def flex(self, model: str) -> FlexTier | None:  # noqa: ARG002
        """Return the cheaper, slower tier of real-time calls; ``None`` where there is none.

        Whether a model has it is for the price table to say: it is asked for where it has a price.
        """
        return None

    def batches(self) -> BatchApi | None:
        """Return the provider's Batch API, made when first asked for; ``None`` where there is none."""
        return None

    def classify(self, error: Exception) -> ProviderError:
        """Return the meaning of an exception that :meth:`generate` raised."""
        if isinstance(error, ProviderError):
            return error
        if self.network is not None and (found := self.network.meaning_of(error)) is not None:
            return found
        kind = ErrorKind.TIMEOUT if isinstance(error, TimeoutError) else ErrorKind.UNKNOWN
        if isinstance(error, ConnectionError):
            kind = ErrorKind.NETWORK_ERROR
        return ProviderError(scrub(f"{type(error).__name__}: {error}"), kind=kind)

    def open(self, workers: int) -> None:
        """Begin to prepare for ``workers`` calls at once; called before the first call. It waits for nothing,
        and is cheap when that is done.
        """
        if self.network is not None:
            self.network.open(workers)

    def ready(self) -> None:
        """Wait until calls can be made; called after :meth:`open`, with no lock held."""
        if self.network is not None:
            self.network.ready()

    def close(self) -> None:
        """Close connections. Calls under way end soon, with an error. May be called twice."""
        if self.network is not None:
            self.network.close()

    def abandon(self) -> None:
        """In a forked child: forget what was inherited without touching the parent's sockets or locks.

        For providers of a user's own; the adapters of the library need not be told.
        """


class MadeStream(AnswerStream):
    """A stream over the pieces that a generator yields, with its waits and errors.

    Closing takes effect when the generator hands out its next piece: it may be asleep.

    Args:
        pieces: yields the pieces and returns the whole answer.
    """

    def __init__(self, pieces: Generator[str, None, Answer]) -> None:
        self._pieces = pieces
        self._answer: Answer | None = None
        self._closed = False

    def __iter__(self) -> Iterator[str]:
        try:
            while True:
                piece = next(self._pieces)
                self._check_open()
                yield piece
        except StopIteration as end:
            self._check_open()
            self._answer = end.value
        finally:
            self._pieces.close()

    def close(self) -> None:
        """End the iteration at its next piece."""
        self._closed = True

    @property
    def answer(self) -> Answer:
        """The answer the pieces are of."""
        if self._answer is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._answer

    def _check_open(self) -> None:
        if self._closed:
            raise ProviderError(
                "the stream was closed", kind=ErrorKind.NETWORK_ERROR, code="closed", maybe_billed=True
            )
