"""Servers that report wrong times to wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.utils import formatdate

import pytest
from small_servers import JSONHandler, served

from smartbatch import BatchingClient
from smartbatch.providers.openai.provider import OpenAIProvider
from tests.levels import sampled

CALLS = 40
ANSWER = {
    "id": "chat-1",
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
REFUSAL = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
WRONG: dict[str, Callable[[], str]] = {
    "zero": lambda: "0",
    "negative": lambda: "-5",
    "a date of an hour ago": lambda: formatdate(time.time() - 3600.0, usegmt=True),
}


def asked(seconds, headers, *, ahead=0.0):
    """Ask a server that refuses for some seconds and whose clock is ahead; return results and calls."""
    calls = []

    class Handler(JSONHandler):
        def date_time_string(self, timestamp=None):
            return formatdate(time.time() + ahead, usegmt=True)

        def answer(self):
            self.read_json()
            calls.append(time.monotonic())
            refused = calls[-1] - calls[0] < seconds
            self.reply(
                json.dumps(REFUSAL if refused else ANSWER).encode(), 429 if refused else 200, headers(refused)
            )

    with served(Handler) as url:
        provider = OpenAIProvider("sk-of-nobody", f"{url}/v1")
        with BatchingClient("openai:m", provider=provider, parallelism=CALLS) as client:
            return client.generate(f"question {n}" for n in range(CALLS)), len(calls)


@pytest.mark.full
@pytest.mark.parametrize("wrong", sampled(WRONG))
def test_a_server_that_asks_for_no_wait_gets_one(wrong):
    results, calls = asked(1.5, lambda refused: {"retry-after": WRONG[wrong]()} if refused else {})
    assert results.failed == 0
    assert calls <= 3 * CALLS


@pytest.mark.full
def test_a_date_to_wait_for_is_read_by_the_servers_clock():
    def in_two_seconds(refused):
        return {"retry-after": formatdate(time.time() - 60.0 + 2.0, usegmt=True)} if refused else {}

    results, calls = asked(1.0, in_two_seconds, ahead=-60.0)
    assert results.failed == 0
    assert calls <= 2 * CALLS


@pytest.mark.full
def test_a_moment_at_which_a_limit_is_full_again_is_no_duration():
    def full_in_a_second(refused):
        limit = {"limit": "6000", "remaining": "0", "reset": str(int(time.time()) + 1)}
        return {f"x-ratelimit-{name}-requests": value for name, value in limit.items()}

    results, calls = asked(0.0, full_in_a_second)
    assert results.failed == 0
    assert calls == CALLS
