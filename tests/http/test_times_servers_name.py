"""Times that a server names wrongly: how long to wait, and when its limit is full again."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate

import pytest
from refusing_server import RefusingServer, refusing_server

from smartbatch import BatchingClient, ResultList
from tests.levels import sampled

CALLS = 40

WRONG: dict[str, Callable[[], str]] = {
    "zero": lambda: "0",
    "negative": lambda: "-5",
    "a date of an hour ago": lambda: formatdate(time.time() - 3600.0, usegmt=True),
}


def ask(server: RefusingServer) -> ResultList:
    with BatchingClient("openai:m", provider=server.provider, parallelism=CALLS) as client:
        return client.generate(f"question {n}" for n in range(CALLS))


@pytest.mark.full
@pytest.mark.parametrize("wrong", sampled(WRONG))
def test_a_server_that_asks_for_no_wait_gets_one(wrong: str) -> None:
    with refusing_server(1.5, lambda refused: {"retry-after": WRONG[wrong]()} if refused else {}) as server:
        results = ask(server)
    assert results.failed == 0
    assert server.calls <= 3 * CALLS


@pytest.mark.full
def test_a_date_to_wait_for_is_read_by_the_servers_clock() -> None:
    def in_two_seconds(refused: bool) -> dict[str, str]:
        return {"retry-after": formatdate(time.time() - 60.0 + 2.0, usegmt=True)} if refused else {}

    with refusing_server(1.0, in_two_seconds, ahead=-60.0) as server:
        results = ask(server)
    assert results.failed == 0
    assert server.calls <= 2 * CALLS


@pytest.mark.full
def test_a_moment_at_which_a_limit_is_full_again_is_no_duration() -> None:
    def full_in_a_second(refused: bool) -> dict[str, str]:
        limit = {"limit": "6000", "remaining": "0", "reset": str(int(time.time()) + 1)}
        return {f"x-ratelimit-{name}-requests": value for name, value in limit.items()}

    with refusing_server(0.0, full_in_a_second) as server:
        results = ask(server)
    assert results.failed == 0
    assert server.calls == CALLS
