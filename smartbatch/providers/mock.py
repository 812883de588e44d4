"""A provider for tests: scripted answers, failures on chosen calls, and a record of every call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import evolve, frozen

from smartbatch._fork import PerProcess
from smartbatch._words import seconds_of
from smartbatch.emulator.composed_answers import answer_for, count_tokens, words_of
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream, Capabilities, MadeStream, Provider
from smartbatch.providers.callable import normalise
from smartbatch.providers.sim.provider import prompt_text
from smartbatch.types import Answer, Duration, Request, Usage

Script: TypeAlias = "Sequence[Any] | Mapping[str, Any] | Callable[[Request], Any]"


@frozen(eq=False)
class MockCall:
    """One recorded call.

    Attributes:
        number: 1 for the first call.
        requests: the requests of the call; more than one for a shared call.
        model: without the provider's prefix.
        attempt: 0 for a request's first call.
        timeout: seconds allowed for the call.
        thread: name of the calling thread.
    """

    number: int
    requests: tuple[Request, ...]
    model: str
    attempt: int
    timeout: float
    thread: str

    @property
    def request(self) -> Request:
        """The first request."""
        return self.requests[0]


class MockProvider(Provider):
    """Answers from a script and fails on demand; safe from any number of threads.

    Args:
        answers: a list with one entry per request, a mapping from prompts, or a function of the request. An
            entry is a string, an ``Answer``, any other object, or an exception, which is raised. Without a
            script the answer is a sentence with a digest of the prompt.
        latency: time of a call, or until the first word of a stream; needs ``sleep``.
        throughput: time between the words of a stream; needs ``sleep``.
        sleep: waits, such as ``time.sleep`` or a virtual clock's ``sleep``.
        rate_limit_on: numbers of the calls, from 1, that are refused with a rate limit.
        retry_after: the waiting time in such a refusal, if any.
        fail_on: call number → :class:`~smartbatch.errors.ErrorKind` or the exception to raise.
        fail_after: words that a stream of such a call yields before it fails.
        streams: whether answers can be streamed, word by word.
        max_shared: maximum requests per call; above 1, requests share calls.
        name: the prefix in ``provider:model``.

    Attributes:
        calls: all calls, in the order in which they started.
        max_in_flight: maximum number of concurrent calls so far.
        opened, closed: how many times the client opened and closed it.
    """

    def __init__(
        self,
        answers: Script | None = None,
        *,
        latency: Duration = 0.0,
        throughput: Duration = 0.0,
        sleep: Callable[[float], None] | None = None,
        rate_limit_on: Collection[int] = (),
        retry_after: Duration | None = None,
        fail_on: Mapping[int, ErrorKind | Exception] | None = None,
        fail_after: int = 0,
        streams: bool = True,
        max_shared: int = 1,
        name: str = "mock",
    ) -> None:
        self._latency = seconds_of("latency", latency)
        self._throughput = seconds_of("throughput", throughput)
        if (self._latency or self._throughput) and sleep is None:
            raise ConfigError(
                "latency and throughput need sleep=, such as time.sleep or that of a VirtualClock"
            )
        self.name = name
        self.scope = f"{name}:{id(self):x}"
        self.capabilities = Capabilities(max_shared=max_shared, streams=streams, priced=False)
        self.calls: list[MockCall] = []
        self.max_in_flight = 0
        self.opened = self.closed = 0
        self._script = answers
        self._next_answer = 0
        self._sleep = sleep
        self._rate_limit_on = frozenset(rate_limit_on)
        self._retry_after = seconds_of("retry_after", retry_after)
        self._fail_on = dict(fail_on or {})
        self._fail_after = fail_after
        self._in_flight = 0
        self._lock = PerProcess(threading.Lock)

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        with self._call((request,), model, attempt, timeout) as number:
            self._fail(number)
            return self._sure_answer(request, model)

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:
        return MadeStream(self._speak(request, model, attempt, timeout))

    def _speak(
        self, request: Request, model: str, attempt: int, timeout: float
    ) -> Generator[str, None, Answer]:
        with self._call((request,), model, attempt, timeout) as number:
            if not self._fail_after:
                self._fail(number)
            answer = self._sure_answer(request, model)
            words = words_of(answer.text or "")
            for position, word in enumerate(words):
                if position and self._sleep is not None and self._throughput:
                    self._sleep(self._throughput)
                if position and position == self._fail_after:
                    self._fail(number)
                yield word
            if self._fail_after >= len(words):
                self._fail(number)
        return answer

    def generate_many(
        self, requests: Sequence[Request], *, model: str, attempt: int, timeout: float
    ) -> Sequence[Answer | Exception | None]:
        """A scripted exception fails only its own request."""
        with self._call(tuple(requests), model, attempt, timeout) as number:
            self._fail(number)
            return [self._answer(request, model) for request in requests]

    def takes_temperature(self, model: str) -> bool:  # noqa: ARG002
        return True

    def open(self, workers: int) -> None:  # noqa: ARG002
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def abandon(self) -> None:
        """Start with an empty record in a forked child."""
        self._in_flight = 0
        self.calls = []

    @property
    def prompts(self) -> list[str]:
        """The prompts of all calls, in order."""
        return [prompt_text(request) for call in self.calls for request in call.requests]

    @contextmanager
    def _call(self, requests: tuple[Request, ...], model: str, attempt: int, timeout: float) -> Iterator[int]:
        with self._lock.get():
            number = len(self.calls) + 1
            thread = threading.current_thread().name
            self.calls.append(MockCall(number, requests, model, attempt, timeout, thread))
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            if self._sleep is not None and self._latency:
                self._sleep(self._latency)
            yield number
        finally:
            with self._lock.get():
                self._in_flight -= 1

    def _fail(self, number: int) -> None:
        if number in self._rate_limit_on:
            raise ProviderError(
                f"mock: call {number} is rate limited",
                kind=ErrorKind.RATE_LIMIT,
                status=429,
                retry_after=self._retry_after,
            )
        failure = self._fail_on.get(number)
        if isinstance(failure, ErrorKind):
            raise ProviderError(f"mock: call {number} fails with {failure.value}", kind=failure)
        if failure is not None:
            raise failure

    def _answer(self, request: Request, model: str) -> Answer | Exception:
        said = self._scripted(request, model)
        if isinstance(said, Exception):
            return said
        answer = normalise(said)
        if answer.usage is None:
            usage = Usage(count_tokens(prompt_text(request)), count_tokens(answer.text or ""))
            answer = evolve(answer, usage=usage)
        return answer

    def _sure_answer(self, request: Request, model: str) -> Answer:
        answer = self._answer(request, model)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _scripted(self, request: Request, model: str) -> Any:
        script = self._script
        if script is None:
            return answer_for(prompt_text(request), model)
        if callable(script):
            return script(request)
        if isinstance(script, Mapping):
            prompt = prompt_text(request)
            return script[prompt] if prompt in script else LookupError("mock: the script has no such prompt")
        with self._lock.get():
            position = self._next_answer
            self._next_answer += 1
        if position >= len(script):
            return LookupError(f"mock: the script has {len(script)} answers; this is request {position + 1}")
        return script[position]
