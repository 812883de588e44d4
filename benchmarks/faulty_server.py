"""A small, fast server of one API with scripted faults: the other side of ``benchmarks.brownouts``.

    python -m benchmarks.faulty_server

It answers OpenAI's chat completions and shares no code with the library or its emulator. ``POST /_case`` sets
the faults and forgets all calls; ``GET /_calls`` returns what became of each call. Calls for the model
``warm-up`` are answered at once and not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import asdict, define, field, frozen

__all__ = ["FAULTS", "GOOD", "Fault", "Faults", "NamedLimit", "Script", "as_json", "served"]

GOOD: Final = "good"
WARM_UP: Final = "warm-up"
BLOCK: Final = 200
"""In each run of so many calls every fault has exactly its share, so that all clients meet equally many."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_PAGE = b"<html><head><title>Welcome</title></head><body><h1>Please sign in</h1></body></html>\n"


@frozen
class Fault:
    """How a call fails.

    Attributes:
        status: of the answer; 0 resets the connection.
        body: bytes of a page, or type, code and text of an error.
        late: True when the fault comes after the latency of an answer and not at once.
    """

    status: int
    body: bytes | tuple[str, str | None, str]
    headers: tuple[tuple[str, str], ...] = ()
    late: bool = False


FAULTS: Final[Mapping[str, Fault]] = {
    "500": Fault(500, ("server_error", None, "The server had an error."), late=True),
    "503": Fault(503, ("service_unavailable", None, "The engine is currently overloaded.")),
    "529": Fault(529, ("overloaded_error", None, "Overloaded")),
    "429": Fault(429, ("requests", "rate_limit_exceeded", "Rate limit reached.")),
    "429 after 1 s": Fault(
        429, ("requests", "rate_limit_exceeded", "Rate limit reached."), (("retry-after", "1"),)
    ),
    "401": Fault(401, ("invalid_request_error", "invalid_api_key", "Incorrect API key provided.")),
    "403": Fault(403, ("permission_denied", None, "You have no access to this model.")),
    "404": Fault(404, ("invalid_request_error", "model_not_found", "The model does not exist.")),
    "no money": Fault(429, ("insufficient_quota", "insufficient_quota", "You exceeded your current quota.")),
    "reset": Fault(0, b"", late=True),
    "page": Fault(200, _PAGE, (("content-type", "text/html"),)),
    "empty": Fault(200, b""),
}
"""The faults by name; ``slow`` is one more, an answer that takes :attr:`Faults.slow` seconds."""


@frozen(kw_only=True)
class Faults:
    """What a server does wrong. Without arguments it does nothing wrong.

    Attributes:
        rates: the share of calls with each fault of :data:`FAULTS`.
        always: a fault that every call has.
        poisoned: so many rows, spread over the list, are answered 500 however often they come.
        refused: ``(start, count)``: so many calls from number ``start`` on are answered 503.
        outage: ``(answers, seconds)``: after so many good answers every call is answered 503 for so long.
        named_limit: requests a minute that the headers of answers name and nobody enforces.
        named_from: the call from which on they do.
        named_for: for how many calls.
        latency: seconds of a good answer.
        slow: seconds of a slow one.
        seed: of the order of faults.
    """

    rates: Mapping[str, float] = field(factory=dict)
    always: str | None = None
    poisoned: int = 0
    refused: tuple[int, int] | None = None
    outage: tuple[int, float] | None = None
    named_limit: int | None = None
    named_from: int = 0
    named_for: int = 1_000_000_000
    latency: float = 0.05
    slow: float = 1.0
    seed: int = 0


@define
class Script:
    """One case as it runs: which fault the next call has, and what became of those before."""

    faults: Faults
    calls: list[list[Any]] = field(factory=list)  # [arrived, name, answered or None]
    good: int = 0
    outage_began: float | None = None
    _block: list[str] = field(factory=list)
    _rng: random.Random = field(init=False)
    _left: float = 0.0
    _left_at: float | None = None

    def __attrs_post_init__(self) -> None:
        self._rng = random.Random(self.faults.seed)
        self._left = float(self.faults.named_limit or 0)

    def arrive(self, now: float, prompt: str) -> list[Any]:
        """Note a call; its second entry is its fault, or :data:`GOOD`."""
        call = [now, self._next(now, prompt), None]
        self.calls.append(call)
        return call

    def _next(self, now: float, prompt: str) -> str:
        faults, number = self.faults, len(self.calls)
        if faults.always is not None:
            return faults.always
        if faults.poisoned and _row(prompt) % _APART == 0 and _row(prompt) < faults.poisoned * _APART:
            return "500"
        if faults.refused is not None and faults.refused[0] <= number < sum(faults.refused):
            return "503"
        began = self.outage_began
        if began is not None and faults.outage is not None and now < began + faults.outage[1]:
            return "503"
        if not faults.rates:
            return GOOD
        if not self._block:
            block = [name for name, share in faults.rates.items() for _ in range(round(share * BLOCK))]
            block += [GOOD] * (BLOCK - len(block))
            self._rng.shuffle(block)
            self._block = block
        return self._block.pop()

    def answer(self, call: list[Any], now: float) -> None:
        """Note that a call is answered."""
        call[2] = now
        self.good += 1
        outage = self.faults.outage
        if outage is not None and self.outage_began is None and self.good >= outage[0]:
            self.outage_began = now

    def named(self, now: float) -> NamedLimit | None:
        """Return what the answer to the latest call says of a limit, as a bucket of one minute would have it.

        Nobody enforces it.
        """
        faults, number = self.faults, len(self.calls) - 1
        limit = faults.named_limit
        if limit is None or not faults.named_from <= number < faults.named_from + faults.named_for:
            return None
        if self._left_at is not None:
            self._left = min(limit, self._left + (now - self._left_at) * limit / 60)
        self._left_at = now
        self._left = max(0.0, self._left - 1.0)
        return NamedLimit(limit, int(self._left), (limit - self._left) / limit * 60)


@frozen
class NamedLimit:
    """A limit of requests a minute, how many are left, and the seconds until all are."""

    limit: int
    left: int
    reset: float

    @property
    def headers(self) -> bytes:
        return (
            f"x-ratelimit-limit-requests: {self.limit}\r\n"
            f"x-ratelimit-remaining-requests: {self.left}\r\n"
            f"x-ratelimit-reset-requests: {self.reset:.3f}s\r\n"
        ).encode()


_APART = 100
"""Rows from one poisoned one to the next."""


def _row(prompt: str) -> int:
    """Return the number in ``row 17: …``."""
    return int(prompt.partition(":")[0].removeprefix("row "))


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n") + 4) >= 4:
            head = bytes(self._buffer[:end])
            found = _LENGTH.search(head)
            size = end + (int(found[1]) if found else 0)
            if len(self._buffer) < size:
                return
            body = bytes(self._buffer[end:size])
            del self._buffer[:size]
            self._server.handle(self, head, body)

    def send(self, status: int, body: bytes, headers: bytes) -> None:
        if self._transport.is_closing():
            return
        if status:
            head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n" % (status, len(body), headers)
            self._transport.write(head + body)
            return
        sock: Any = self._transport.get_extra_info("socket")
        # A linger time of zero makes the kernel send a reset instead of a regular end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class _Server:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._state = Script(Faults())

    def handle(self, connection: _Connection, head: bytes, body: bytes) -> None:
        now = time.monotonic()
        if head.startswith(b"POST /_case"):
            self._state = Script(Faults(**json.loads(body)))
            connection.send(200, b"{}", _JSON)
        elif head.startswith(b"GET /_calls"):
            page = {"calls": self._state.calls, "outage_began": self._state.outage_began}
            connection.send(200, json.dumps(page).encode(), _JSON)
        else:
            self._answer(connection, json.loads(body), now)

    def _answer(self, connection: _Connection, request: dict[str, Any], now: float) -> None:
        prompt = request["messages"][-1]["content"]
        if request["model"] == WARM_UP:
            connection.send(200, _completion(prompt), _JSON)
            return
        state = self._state
        call = state.arrive(now, prompt)
        name: str = call[1]
        named = state.named(now)
        limits = b"" if named is None else named.headers
        fault = FAULTS.get(name)
        if fault is None:
            wait = state.faults.slow if name == "slow" else state.faults.latency
            self._loop.call_later(wait, self._complete, connection, state, call, prompt, limits)
            return
        headers = b"".join(f"{name}: {value}\r\n".encode() for name, value in fault.headers)
        if isinstance(fault.body, bytes):
            data = fault.body
        else:
            type_, code, message = fault.body
            data = json.dumps({"error": {"message": message, "type": type_, "code": code}}).encode()
            headers += _JSON
        if fault.late:
            self._loop.call_later(state.faults.latency, connection.send, fault.status, data, headers + limits)
        else:
            connection.send(fault.status, data, headers + limits)

    def _complete(
        self, connection: _Connection, state: Script, call: list[Any], prompt: str, limits: bytes
    ) -> None:
        state.answer(call, time.monotonic())
        connection.send(200, _completion(prompt), _JSON + limits)


_JSON = b"content-type: application/json\r\n"


def _completion(prompt: str) -> bytes:
    message = {"role": "assistant", "content": f"answer to {prompt}"}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_790_000_000,
            "model": "gpt-5-mini",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 12, "total_tokens": 24},
        }
    ).encode()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = _Server(loop)
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
    port = listening.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    loop.add_reader(sys.stdin.fileno(), loop.stop)  # whoever started this process has ended
    await listening.serve_forever()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Run the server in a process of its own and yield its address."""
    command = [sys.executable, "-m", "benchmarks.faulty_server"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def as_json(faults: Faults) -> bytes:
    """Return the body that sets a case."""
    return json.dumps(asdict(faults)).encode()


if __name__ == "__main__":
    with contextlib.suppress(RuntimeError):  # the loop was stopped
        asyncio.run(_serve())
