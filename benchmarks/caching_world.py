"""An emulated provider in virtual time, without sockets, and the client's own adapters on it.

The adapters build real requests and read real answers; only their connections are replaced. A list is sent in
real time or as a batch, and the emulator's ledger says what it cost.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

from attrs import field, frozen

from benchmarks.serial_clock import SerialClock
from smartbatch import BatchingClient, Request
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.http.head import parse_head
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.emulator.request_handling import RequestHandler
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.http.endpoint import checked_url
from smartbatch.providers.http.replies import LiveReply, Reply
from smartbatch.providers.http.transport import Body, Cutoff, Transport
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import PromptCaching

__all__ = ["MODELS", "Mode", "Sent", "World"]

Mode = Literal["real time", "batch"]
MODELS = {
    "OpenAI ≤ 5.5": "gpt-5-mini",
    "OpenAI ≥ 5.6": "gpt-5.6",
    "Anthropic": "claude-haiku-5-5",
    "Gemini": "gemini-3.8-flash",
}
OUTPUT_TOKENS = 4
"""Tokens of each answer of the emulator."""
_URL, _KEY = "http://127.0.0.1:9", "benchmark"
_ADAPTERS: Mapping[str, Callable[[], Provider]] = {
    "gpt": lambda: OpenAIProvider(_KEY, f"{_URL}/v1", prompt_cache=True),
    "claude": lambda: AnthropicProvider(_KEY, _URL),
    "gemini": lambda: GeminiProvider(_KEY, _URL),
}


class _Service(RequestHandler):
    def __init__(self, settings: EmulatorSettings, clock: SerialClock) -> None:
        super().__init__(settings, Ledger())
        self.clock = clock
        self.backend = BatchBackend(settings, self.ledger, epoch=clock.wall() - clock.now())
        self.ledger.update_with(lambda: self.backend.advance(clock.now()))

    def reply(self, head: bytes, body: Body) -> ServerReply:
        content = body if isinstance(body, bytes) else b"".join(body)
        parsed = parse_head(b"%b%d\r\n\r\n" % (head, len(content)))
        reply = self.handle(parsed, content, self.clock.now())
        if reply.delivered is not None:
            reply.delivered()
        if reply.call is not None:
            self.ledger.close(reply.call, status=reply.status, billed=reply.billed, delivered=True)
        self.clock.sleep(reply.delay)
        return reply


class _EmulatedTransport(Transport):
    """Requests that are answered by a service in this process, after its latency in virtual time."""

    def __init__(self, service: _Service, url: str) -> None:
        address = checked_url(url, (), None, carries_secret=False, allow_http=True)
        super().__init__(address, {"Authorization": f"Bearer {_KEY}"})
        self._service = service

    def send(self, head: bytes, body: Body, timeout: float) -> Reply:  # noqa: ARG002
        return _EmulatedReply(self._service, self._service.reply(head, body)).whole()

    def begin(self, head: bytes, body: Body, timeout: float, cutoff: Cutoff | None = None) -> LiveReply:  # noqa: ARG002
        return cast("LiveReply", _EmulatedReply(self._service, self._service.reply(head, body)))


class _EmulatedReply:
    """Behaves like :class:`LiveReply`."""

    def __init__(self, service: _Service, reply: ServerReply) -> None:
        self._service, self._reply = service, reply
        self.status = reply.status
        self.headers = {name.lower(): value for name, value in reply.headers}
        self.headers["content-type"] = reply.content_type

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces()

    def pieces(self, cap: int | None = None) -> Iterator[bytes]:  # noqa: ARG002
        body = self._reply.body
        events = body if isinstance(body, list) else [body]
        yield from events[:1]
        self._service.clock.sleep(self._reply.event_interval * (len(events) - 1))
        yield from events[1:]

    def whole(self) -> Reply:
        return Reply(self.status, self.headers, b"".join(self.pieces()))

    def close(self) -> None: ...

    def drain(self) -> None: ...


@frozen
class Sent:
    """What a workload has cost, in input tokens: those read from a cache count less, those written more.

    Attributes:
        full: the cost without any cache.
        cost: the cost of input, cache writes and storage.
        read: tokens read.
        written: tokens written at a surcharge.
        seconds: virtual seconds.
        failed: requests without an answer.
    """

    full: float
    cost: float
    read: float
    written: float
    seconds: float
    failed: int


@frozen
class World:
    """A provider, and the client that sends a workload to it.

    Attributes:
        model: the model's name at the provider.
        caching: settings of the prompt caches.
        settings: other settings of the emulator.
        client: settings of the client.
    """

    model: str
    caching: PromptCaching = field(factory=PromptCaching)
    settings: Mapping[str, Any] = field(factory=dict)
    client: Mapping[str, Any] = field(factory=dict)

    def send(self, requests: Sequence[Request], mode: Mode, *, gaps: Sequence[float] = ()) -> Sent:
        """Send requests as one list or, with gaps, one by one at these intervals in seconds, repeated."""
        clock = SerialClock()
        service = _Service(EmulatorSettings(prompt_caching=self.caching, **self.settings), clock)
        # threads of the client that was stopped without a timeout may still be closing the store
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            clock.spawned()
            clock.began()
            client = BatchingClient(
                self.model,
                provider=self._adapter(service),
                clock=clock,
                rng=Random(5),
                store=str(Path(folder) / "jobs.db"),
                shared="off",
                **self.client,
            )
            failed = _send(client, clock, requests, mode, gaps)
            seconds = clock.now()
            clock.ended()
            client.stop(timeout=0, cancel_waiting=True)
        return _bill(service.ledger, seconds, failed)

    def _adapter(self, service: _Service) -> Provider:
        make = next(make for name, make in _ADAPTERS.items() if self.model.startswith(name))
        provider = make()
        network = provider.network
        assert network is not None
        network.realtime = _EmulatedTransport(service, network.url)
        network.batches = _EmulatedTransport(service, network.url)
        return provider


def _send(
    client: BatchingClient, clock: SerialClock, requests: Sequence[Request], mode: Mode, gaps: Sequence[float]
) -> int:
    if mode == "batch":
        job = client.submit_batch(requests)
        job.wait()
        return sum(not result.ok for result in job.results())
    if not gaps:
        return client.generate(requests, strategy="individual", progress=False).failed
    failed = 0
    for request, gap in zip(requests, cycle(gaps), strict=False):
        [result] = client.generate([request], strategy="individual", progress=False)
        failed += not result.ok
        clock.sleep(gap)
    return failed


def _bill(ledger: Ledger, seconds: float, failed: int) -> Sent:
    calls = [call for call in ledger.calls if call.billed and call.prompt is not None]
    lines = [line for batch in ledger.batches for line in batch.lines.values() if line.billed]
    billed = [call.billed for call in calls] + [line.billed for line in lines]
    full = float(sum(billed) - OUTPUT_TOKENS * len(billed))
    cache = ledger.prompt_cache()
    return Sent(full, full - cache["saved"], cache["read"], cache["written"], seconds, failed)
