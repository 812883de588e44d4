"""Providers and helpers the runtime tests share."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from smartbatch.clock import VirtualClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.models import Answer, Request, Usage
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.providers.callable import normalise

PATIENCE = 30.0
"""Real seconds a test waits for a future before it calls it hung."""

_scopes = itertools.count(1)


@frozen
class Start:
    """One call, as the provider saw it begin."""

    at: float
    prompts: tuple[str, ...]
    attempt: int
    timeout: float

    @property
    def prompt(self) -> str:
        return self.prompts[0]


class Scripted(Provider):
    """Answers in virtual time by a function of prompt and attempt, and notes when each call began.

    Args:
        clock: its ``sleep`` is the latency.
        script: ``script(prompt, attempt)`` returns a text, an answer or an exception (which is raised).
        latency: seconds, or a function of the prompt.
        max_shared: most requests a call carries.
        priced: whether the calls cost money.
        scope: names the quota; its own when ``None``.
    """

    name = "scripted"

    def __init__(
        self,
        clock: VirtualClock,
        script: Callable[[str, int], Any] = lambda prompt, attempt: f"re: {prompt}",
        *,
        latency: float | Callable[[str], float] = 1.0,
        max_shared: int = 1,
        priced: bool = False,
        scope: str | None = None,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.scope = scope or f"scripted:{next(_scopes)}"
        self.capabilities = Capabilities(max_shared=max_shared, priced=priced)
        self.starts: list[Start] = []
        self.in_flight = self.max_in_flight = 0
        self.opened = self.closed = 0
        self._clock = clock
        self._script = script
        self._latency = latency
        self._lock = threading.Lock()

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        self._call((request,), attempt, timeout)
        said = self._script(str(request.prompt), attempt)
        if isinstance(said, BaseException):
            raise said
        return normalise(said)

    def generate_many(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        self._call(tuple(requests), attempt, timeout)
        said = [self._script(str(request.prompt), attempt) for request in requests]
        return [one if one is None or isinstance(one, Exception) else normalise(one) for one in said]

    def open(self, workers: int) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    @property
    def prompts(self) -> list[str]:
        """The prompts in the order their calls began."""
        return [prompt for start in self.starts for prompt in start.prompts]

    @property
    def sizes(self) -> list[int]:
        """How many requests each call carried."""
        return [len(start.prompts) for start in self.starts]

    def _call(self, requests: tuple[Request, ...], attempt: int, timeout: float) -> None:
        prompts = tuple(str(request.prompt) for request in requests)
        with self._lock:
            self.starts.append(Start(self._clock.now(), prompts, attempt, timeout))
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        latency = self._latency if isinstance(self._latency, float | int) else self._latency(prompts[0])
        try:
            self._clock.sleep(latency)
        finally:
            with self._lock:
                self.in_flight -= 1


def failure(kind: ErrorKind, **details: Any) -> ProviderError:
    """A fresh error of ``kind``, as an adapter would raise it."""
    return ProviderError(f"scripted {kind.value}", kind=kind, **details)


def unavailable() -> ProviderError:
    """A 503."""
    return failure(ErrorKind.SERVER_ERROR, status=503)


def broken() -> ProviderError:
    """A 500: the request's own fault as likely as the provider's."""
    return failure(ErrorKind.SERVER_ERROR, status=500)


def limited(retry_after: float | None = None) -> ProviderError:
    """A 429."""
    return failure(ErrorKind.RATE_LIMIT, status=429, retry_after=retry_after)


def paid(text: str, cost: float) -> Answer:
    """An answer that says what it cost."""
    return Answer(text=text, usage=Usage(1, 1), cost=cost)
