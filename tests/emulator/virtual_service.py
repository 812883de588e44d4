"""An emulated service in virtual time, called by a real SDK without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from smartbatch.emulator.http.head import parse_head
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.request_handling import RequestHandler
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.testing import answer_for

START = 1e9  # monotonic seconds, later than any real monotonic clock, which the ledger reads


class VirtualService(httpx2.BaseTransport):
    """Transport that sends an SDK's requests to an emulated service.

    Attributes:
        now: monotonic seconds, set by tests.
    """

    def __init__(self, **settings: Any) -> None:
        self.now = START
        self.ledger = Ledger()
        self.service = RequestHandler(EmulatorSettings(**settings), self.ledger)
        self.replies: list[httpx2.Response] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = request.read()
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b" % each for each in request.headers.raw]
        reply = self.service.handle(parse_head(b"\r\n".join(lines) + b"\r\n\r\n"), body, self.now)
        if reply.damage is not None:
            raise httpx2.ReadError(f"connection: {reply.damage}", request=request)
        if reply.delivered is not None:
            reply.delivered()
        headers = [("content-type", reply.content_type), *reply.headers]
        content = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
        self.replies.append(httpx2.Response(reply.status, headers=headers, content=content))
        return self.replies[-1]

    def client(self) -> httpx2.Client:
        return httpx2.Client(transport=self, base_url="http://emulator.localhost", timeout=10)


def one_batch(faults: str | None = None, line_fault: str | None = None, **settings: Any) -> VirtualService:
    """Return a service in which the first batch, or the second line of each, has a fault."""
    return VirtualService(
        batch_fault_for=lambda index, _label: faults if index == 0 else (),
        batch_line_fault_for=lambda _index, position, _id: line_fault if position == 1 else (),
        **settings,
    )


def check_odd_lines(texts: Callable[[str], list[tuple[str, str]]], model: str) -> None:
    """Check three lines, ``j-0`` to ``j-2``, of which the second is doubled, foreign or swapped.

    Args:
        texts: returns IDs and texts of the lines of a batch with a fault.
    """
    first, second, third = ((f"j-{n}", answer_for(f"j{n}", model)) for n in range(3))
    swapped = (second[0], third[1])
    assert texts("doubled_lines") == [first, second, swapped, third]
    foreign = texts("foreign_lines")
    assert len(foreign) == 4
    assert not foreign[2][0].startswith("j-")
    assert texts("swapped_answers") == [first, swapped, third]
