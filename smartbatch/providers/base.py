"""The interface of every provider: it answers requests, states its capabilities and classifies its
errors.

An adapter imports only types and errors. It makes one call within a total deadline and returns an
:class:`~smartbatch.types.Answer` or raises; it never retries, logs or waits for a limit.
:meth:`Provider.classify` converts every exception to a :class:`~smartbatch.errors.ProviderError`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import evolve, field, frozen

from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError, scrub
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Answer, Request

if TYPE_CHECKING:
    from smartbatch.providers.batch_api import BatchApi
    from smartbatch.providers.cache_api import CacheApi
    from smartbatch.providers.file_api import FileApi
    from smartbatch.providers.http.endpoint import HttpNetwork

NOT_YET = "has batches, which smartbatch does not support yet"
"""See :attr:`Provider.without_batches`."""

FLEX_TIER_NAME = "flex"
"""Name of the slower tier in both APIs."""

_NAMES_IT = re.compile(r"\bflex\b|service[_ ]?tier", re.I)


def _nothing() -> None: ...


@frozen
class Capabilities:
    """The abilities of a provider.

    Attributes:
        max_shared: maximum requests per call; 1 if calls cannot be shared.
        max_texts: maximum texts per embeddings call; 0 without embeddings.
        max_text_tokens: maximum total tokens of the texts in an embeddings call, as estimated by the client.
        streams: whether answers can be streamed.
        schemas: whether the provider itself enforces JSON schemas.
        output_limit: maximum tokens of an answer to a request without ``max_tokens``; ``None`` if unknown.
        schema_modes: supported values of ``schema_mode``.
        priced: False if calls never cost anything, so that a missing price is not an error.
        max_calls: maximum concurrent calls of a client, by the beginning of models' names.
    """

    max_shared: int = 1
    max_texts: int = 0
    max_text_tokens: int = 0
    streams: bool = False
    schemas: bool = False
    output_limit: int | None = None
    schema_modes: frozenset[str] = frozenset({"auto", "json_schema"})
    priced: bool = True
    max_calls: Mapping[str, int] = field(factory=dict)

    def calls_of(self, model: str) -> float:
        """Return the maximum concurrent calls to ``model``; infinity without one."""
        found = [calls for start, calls in self.max_calls.items() if model.startswith(start)]
        return min(found, default=math.inf)


class AnswerStream(ABC):
    """An answer that arrives in pieces. One thread iterates over it, once; any thread may close it.

    Attributes:
        begun: called when the first part of the answer arrives, if the adapter notices it before its text.
    """

    begun: Callable[[], None] = staticmethod(_nothing)

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text as they arrive.

        Raises:
            Exception: as in :meth:`Provider.generate`, or if the stream ends without the provider's end
                mark.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection; an iteration in progress soon fails. May be called twice."""

    @property
    @abstractmethod
    def answer(self) -> Answer:
        """The complete answer with usage and finish reason, available after the iteration."""


@frozen
class FlexTier:
    """The cheaper, slower tier of one API.

    OpenAI selects it with ``service_tier``. If it has no capacity, it answers "429 Resource Unavailable",
    which is not billed; tokens cost the same as in batches. Google selects it with ``serviceTier``. If it
    has no capacity, it answers 503 or 429; it never moves a request to the standard tier. In both APIs,
    the tier shares the limits of the model, and requests to a model without the tier get a 400.

    Args:
        field: the parameter that names a tier.
        also: other spellings of that parameter.
        full: whether an error means that the tier currently has no capacity.
    """

    field: str
    also: tuple[str, ...]
    full: Callable[[ProviderError], bool]

    def suits(self, request: Request) -> bool:
        """True if ``request`` generates an answer and names no tier itself."""
        if request.embedding is not None or request.call is not None:
            return False
        extra = request.params.extra
        return not extra or not any(name in extra for name in (self.field, *self.also))

    def named_in(self, request: Request) -> str | None:
        """Return the tier that ``request`` itself names."""
        extra = request.params.extra or {}
        return next((str(extra[name]) for name in (self.field, *self.also) if name in extra), None)

    def apply_to(self, request: Request) -> Request:
        """Select the tier for ``request``."""
        params = request.params
        return evolve(
            request, params=evolve(params, extra={**(params.extra or {}), self.field: FLEX_TIER_NAME})
        )

    def is_missing(self, error: ProviderError) -> bool:
        """True if an error means that the model or the account does not have the tier."""
        return error.kind is ErrorKind.CLIENT_ERROR and _NAMES_IT.search(error.message) is not None


def processing_of(tier: str | None) -> Literal["flex", "priority"] | None:
    """Return the prices of a service tier with prices of its own; OpenAI also calls ``priority`` ``fast``."""
    if tier == FLEX_TIER_NAME:
        return "flex"
    return "priority" if tier in ("priority", "fast") else None


class Provider(ABC):
    """Base class of all adapters, including user-defined ones.

    Creating a provider opens no thread, lock, socket or connection. Resources belong to the process
    that opened them.

    Attributes:
        name: the prefix in ``provider:model``.
        scope: identifies the quota by key fingerprint, base URL, organization and project; never
            contains the key.
        capabilities: see :class:`Capabilities`.
        own_code: True if calls run user code, whose exceptions are kept as the cause of errors.
        without_batches: why :meth:`batches` returns ``None``, as the end of a sentence about the provider.
        network: opened and closed together with the provider; classifies exceptions before the provider
            does. ``None`` for a provider that uses no network or manages its own.
    """

    name: str
    scope: str
    capabilities: Capabilities = Capabilities()
    own_code: bool = False
    without_batches: str = "has no Batch API"
    network: HttpNetwork | None = None

    @abstractmethod
    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        """Make one call for one request.

        Args:
            request: with every parameter filled in; ``prompt`` is a string or a tuple of messages.
            model: the model's name without the provider's prefix.
            attempt: 0 for the first call of this request, then 1, 2, …
            timeout: total seconds for the call, including connection and body.

        Raises:
            Exception: any exception; :meth:`classify` converts it.
        """

    def generate_many(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        """Make one call for several requests; only used if ``capabilities.max_shared`` is above 1.

        Returns:
            one entry per request, in order; ``None`` if the answer is missing, an exception if only that
            request failed.
        """
        raise NotImplementedError(f"{self.name} cannot send several requests in one call")

    def embed(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        """Make one call for the vectors of several texts; only used if ``max_texts`` is set.

        All requests have the same ``embedding``. The adapter orders vectors by index and checks their
        number, their dimensions, and that all numbers are finite.

        Returns:
            one entry per request, in order, as in :meth:`generate_many`, with ``Answer.embedding`` set.
        """
        raise NotImplementedError(f"{self.name} does not support embeddings")

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:
        """Start streaming one answer; only used if ``capabilities.streams``.

        ``timeout`` applies to the whole stream. The method may return before the request is sent.
        Iterating then sends the request and raises the provider's errors, and closing interrupts the wait
        for the answer.
        """
        raise NotImplementedError(f"{self.name} does not support streaming")

    def check(self, request: Request, *, model: str) -> None:
        """Raise ``InvalidRequest`` for a request that this provider cannot send, before it is queued."""

    def takes_temperature(self, model: str) -> bool:  # noqa: ARG002
        """Whether ``model`` is known to accept a temperature; checked before the client sets one itself."""
        return False

    def flex(self, model: str) -> FlexTier | None:  # noqa: ARG002
        """Return the cheaper, slower tier of real-time calls; ``None`` if there is none.

        The tier is used only for models that have a price for it.
        """
        return None

    def caching(self, model: str) -> CachingRules | None:  # noqa: ARG002
        """Return how the provider caches prefixes of prompts to ``model``.

        ``Request.cache`` is set only if this returns rules.
        """
        return None

    def batches(self) -> BatchApi | None:
        """Return the provider's Batch API, created on first use; ``None`` if there is none."""
        return None

    def files(self) -> FileApi | None:
        """Return the provider's Files API, opened on first use; ``None`` if it has none."""
        return None

    def caches(self) -> CacheApi | None:
        """Return the provider's explicit prompt caches, opened on first use; ``None`` if it has none."""
        return None

    def classify(self, error: Exception) -> ProviderError:
        """Convert an exception that :meth:`generate` raised."""
        if isinstance(error, ProviderError):
            return error
        if isinstance(error, InvalidRequest):  # found when the body was made, such as a file that has changed
            return ProviderError(error.message, kind=ErrorKind.CLIENT_ERROR, code="invalid_request")
        if self.network is not None and (found := self.network.meaning_of(error)) is not None:
            return found
        kind = ErrorKind.TIMEOUT if isinstance(error, TimeoutError) else ErrorKind.UNKNOWN
        if isinstance(error, ConnectionError):
            kind = ErrorKind.NETWORK_ERROR
        return ProviderError(scrub(f"{type(error).__name__}: {error}"), kind=kind)

    def check_access(self, timeout: float) -> None:
        """Read the model list, which costs nothing, to check the address and the key.

        Raises:
            Exception: as in :meth:`generate`; also if the service has no such list.
        """

    def open(self, workers: int) -> None:
        """Start preparing for ``workers`` concurrent calls; called before the first call.

        It does not wait, and repeated calls are cheap.
        """
        if self.network is not None:
            self.network.open(workers)

    def ready(self) -> None:
        """Wait until calls can be made; called after :meth:`open`, without holding a lock."""
        if self.network is not None:
            self.network.ready()

    def close(self) -> None:
        """Close connections; calls in progress soon fail. May be called twice."""
        if self.network is not None:
            self.network.close()

    def abandon(self) -> None:
        """In a forked child, forget inherited resources without touching the parent's sockets or locks.

        For user-defined providers; the library's adapters handle forks themselves.
        """


class MadeStream(AnswerStream):
    """A stream made from a generator, for providers without a network.

    ``pieces`` yields the text and returns the complete answer. Closing takes effect at the next
    piece, because the generator may be sleeping.
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
        self._closed = True

    @property
    def answer(self) -> Answer:
        if self._answer is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._answer

    def _check_open(self) -> None:
        if self._closed:
            raise ProviderError(
                "the stream was closed", kind=ErrorKind.NETWORK_ERROR, code="closed", maybe_billed=True
            )
