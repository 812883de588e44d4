"""Providers and helpers for tests of the real-time path."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from attrs import evolve, frozen
from inside import inside

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.providers.callable import normalise
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.types import Answer, Request, Usage

PATIENCE = 100.0
"""Real seconds until a future counts as hung."""

_scopes = itertools.count(1)
_T = TypeVar("_T")


@frozen
class Start:
    at: float
    prompts: tuple[str, ...]
    attempt: int
    timeout: float

    @property
    def prompt(self) -> str:
        return self.prompts[0]


class Scripted(Provider):
    """Answers in virtual time by a function of prompt and attempt, and records the start of each call.

    Args:
        script: returns a text, an answer, or an exception to raise.
        latency: seconds, or a function of the prompt.
        max_shared: maximum number of requests per call.
        scope: name of the quota; ``None`` for a new one.
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
        self._begun = threading.Condition(self._lock)

    def wait_for(self, calls: int) -> None:
        with self._begun:
            assert self._begun.wait_for(lambda: len(self.starts) >= calls, PATIENCE), "no such call"

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
        return [prompt for start in self.starts for prompt in start.prompts]

    @property
    def sizes(self) -> list[int]:
        return [len(start.prompts) for start in self.starts]

    def _call(self, requests: tuple[Request, ...], attempt: int, timeout: float) -> None:
        prompts = tuple(str(request.prompt) for request in requests)
        with self._lock:
            self.starts.append(Start(self._clock.now(), prompts, attempt, timeout))
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            self._begun.notify_all()
        latency = self._latency if isinstance(self._latency, float | int) else self._latency(prompts[0])
        try:
            self._clock.sleep(latency)
        finally:
            with self._lock:
                self.in_flight -= 1


class Embedder(Scripted):
    """A :class:`Scripted` provider that also returns vectors with one number."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.capabilities = evolve(self.capabilities, max_texts=100, max_text_tokens=100_000)

    def embed(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        self._call(tuple(requests), attempt, timeout)
        said = [self._script(str(request.prompt), attempt) for request in requests]
        for one in said:
            if isinstance(one, BaseException):
                raise one
        return [Answer(embedding=array("f", [1.0]), usage=Usage(1, 0)) for _ in said]


class Aside:
    """Runs ``work`` on a thread that virtual time does not know, like a user's thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._outcome: Future[Any] = Future()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._outcome.set_result(work())
        except BaseException as error:
            self._outcome.set_exception(error)

    def result(self) -> Any:
        return self._outcome.result(PATIENCE)

    def done(self) -> bool:
        return self._outcome.done()


class InTime:
    """Runs ``work`` on a thread that takes part in virtual time."""

    def __init__(self, clock: VirtualClock, work: Callable[[], Any]) -> None:
        def registered() -> Any:
            clock.began()
            try:
                return work()
            finally:
                clock.ended()

        clock.spawned()
        self._aside = Aside(registered)

    def result(self) -> Any:
        return self._aside.result()


def eventually(condition: Callable[[], _T]) -> _T:
    pause = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if found := condition():
            return found
        pause.wait(0.001)
    raise AssertionError("it never happened")


def blocked(client: BatchingClient) -> int:
    engine = inside(client).realtime.engine
    return 0 if engine is None else engine.queue.blocked


def submit_all(client: BatchingClient, prompts: Iterable[str], **params: Any) -> list[ResultFuture]:
    return [client.submit(prompt, **params) for prompt in prompts]


def failure(kind: ErrorKind, **details: Any) -> ProviderError:
    return ProviderError(f"scripted {kind.value}", kind=kind, **details)


def unavailable() -> ProviderError:
    return failure(ErrorKind.SERVER_ERROR, status=503)


def broken() -> ProviderError:
    return failure(ErrorKind.SERVER_ERROR, status=500)


def limited(retry_after: float | None = None) -> ProviderError:
    return failure(ErrorKind.RATE_LIMIT, status=429, retry_after=retry_after)
