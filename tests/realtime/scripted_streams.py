"""A provider with scripted streams, and readers of streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from scenes import Aside, failure

from smartbatch import TextStream
from smartbatch._clock import Clock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, SmartbatchError
from smartbatch.providers.base import AnswerStream, Capabilities, Provider
from smartbatch.types import Answer, Request, Usage

Part = str | float | Exception

USED = Usage(7, 3)
_scopes = itertools.count(1)


class Speaker(Provider):
    """Streams a script: strings are chunks, numbers are seconds of silence, and errors end the stream.

    Args:
        usage: reported at the end of the stream.
    """

    name = "speaker"
    capabilities = Capabilities(streams=True, priced=False)

    def __init__(
        self,
        clock: Clock,
        script: Callable[[str, int], Iterable[Part]] = lambda prompt, _: (1.0, "re: ", 1.0, prompt),
        *,
        usage: Usage | None = USED,
        max_shared: int = 1,
        priced: bool = False,
    ) -> None:
        self.scope = f"speaker:{next(_scopes)}"
        self.capabilities = Capabilities(max_shared=max_shared, streams=True, priced=priced)
        self.clock = clock
        self.script = script
        self.usage = usage
        self.speeches: list[Speech] = []
        self.shared_calls = 0

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        speech = self.stream(request, model=model, attempt=attempt, timeout=timeout)
        list(speech)
        return speech.answer

    def generate_many(self, requests: Sequence[Request], **_: Any) -> Any:
        self.shared_calls += 1
        raise NotImplementedError

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> Speech:
        speech = Speech(self, str(request.prompt), attempt, timeout)
        self.speeches.append(speech)
        return speech

    @property
    def prompts(self) -> list[str]:
        return [speech.prompt for speech in self.speeches]


class Speech(AnswerStream):
    def __init__(self, speaker: Speaker, prompt: str, attempt: int, timeout: float) -> None:
        self.prompt = prompt
        self.began = speaker.clock.now()
        self.ended: float | None = None
        self.spoken = 0
        self.closed = False
        self._speaker = speaker
        self._attempt = attempt
        self._deadline = self.began + timeout
        self._room = speaker.clock.monitor()
        self._text = ""

    def __iter__(self) -> Iterator[str]:
        try:
            for part in self._speaker.script(self.prompt, self._attempt):
                if isinstance(part, Exception):
                    raise part
                if isinstance(part, str):
                    self._text += part
                    self.spoken += 1
                    yield part
                else:
                    self._pause(part)
        finally:
            self.ended = self._speaker.clock.now()

    def close(self) -> None:
        with self._room:
            self.closed = True
            self._room.notify_all()

    @property
    def answer(self) -> Answer:
        return Answer(self._text, self._speaker.usage)

    def _pause(self, seconds: float) -> None:
        end = self._speaker.clock.now() + seconds
        with self._room:
            while (now := self._speaker.clock.now()) < min(end, self._deadline) and not self.closed:
                self._room.wait(min(end, self._deadline) - now)
        if self.closed:
            raise failure(ErrorKind.NETWORK_ERROR, code="closed")
        if self._speaker.clock.now() >= self._deadline:
            raise failure(ErrorKind.TIMEOUT)


def read(stream: TextStream) -> list[str]:
    return Aside(lambda: list(stream)).result()


def read_error(stream: TextStream) -> tuple[list[str], SmartbatchError]:
    chunks: list[str] = []

    def work() -> None:
        for chunk in stream:
            chunks.append(chunk)  # noqa: PERF402

    with pytest.raises(SmartbatchError) as caught:
        Aside(work).result()
    return chunks, caught.value


def balanced(client: BatchingClient) -> bool:
    counts = client.counts
    return counts.balanced() and counts.waiting == counts.in_flight == 0


def begun(client: BatchingClient, speaker: Speaker) -> TextStream:
    speaker.script = lambda prompt, _: ["be", 1000.0, "late"] if prompt == "long" else [prompt]
    stream = client.stream("long")
    assert Aside(lambda: next(stream)).result() == "be"
    return stream
