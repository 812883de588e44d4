"""Limits as the service enforces them; time is an argument, so a minute costs nothing."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_client import chat

from smartbatch.emulator import EmulatorSettings
from smartbatch.emulator.limits import Limits, go_duration


def test_a_full_bucket_is_there_at_the_first_request_and_refills_evenly():
    limits = Limits(EmulatorSettings(rpm=600))
    assert sum(limits.admit(100.0, 1) is None for _ in range(700)) == 600
    assert limits.admit(100.05, 1).wait == pytest.approx(0.05)
    assert limits.admit(100.1, 1) is None
    assert limits.allowed_requests(130.0) == pytest.approx(900)


def test_burst_is_another_size_of_the_bucket():
    limits = Limits(EmulatorSettings(rpm=600, burst=5))
    assert sum(limits.admit(0.0, 1) is None for _ in range(9)) == 5
    assert limits.allowed_requests(10.0) == pytest.approx(105)


def test_second_by_second_there_is_no_burst():
    """A sixtieth in each second of the clock; what is not used is lost."""
    limits = Limits(EmulatorSettings(rpm=600, enforce="second"))
    assert sum(limits.admit(5.2, 1) is None for _ in range(50)) == 10
    assert limits.admit(5.9, 1).wait == pytest.approx(0.1)
    assert sum(limits.admit(9.0, 1) is None for _ in range(50)) == 10
    assert limits.allowed_requests(9.5) == 50


def test_a_sixtieth_that_is_no_whole_number_is_rounded_over_the_sum():
    limits = Limits(EmulatorSettings(rpm=90, enforce="second"))
    counts = [sum(limits.admit(second + 0.5, 1) is None for _ in range(9)) for second in range(4)]
    assert counts == [1, 2, 1, 2]
    assert limits.allowed_requests(3.9) == 6


def test_less_than_one_a_second_says_which_second_is_next():
    limits = Limits(EmulatorSettings(rpm=20, enforce="second"))
    admitted = [second for second in range(12) if limits.admit(second + 0.0, 1) is None]
    assert admitted == [2, 5, 8, 11]
    wait = limits.admit(11.0, 1).wait
    assert limits.admit(11.0 + wait, 1) is None


def test_tokens_are_charged_all_or_nothing_with_the_request():
    """A request that lacks tokens takes no request either; one larger than the limit can never pass."""
    limits = Limits(EmulatorSettings(rpm=600, tpm=6000))
    assert limits.admit(0.0, 6000) is None
    refused = limits.admit(0.0, 100)
    assert (refused.what, refused.wait) == ("tokens", pytest.approx(1.0))
    assert limits.admit(0.0, 7000).wait is None
    assert limits.headers(0.0)[1] == ("x-ratelimit-remaining-requests", "599")


def test_refused_requests_count_only_when_configured():
    kind, strict = (Limits(EmulatorSettings(rpm=60, count_refused=flag)) for flag in (False, True))
    for limits in (kind, strict):
        for _ in range(70):
            limits.admit(0.0, 1)
    assert kind.admit(1.0, 1) is None
    assert strict.admit(1.0, 1) is not None


@given(
    rpm=st.integers(1, 5000),
    second=st.booleans(),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), max_size=30),
)
def test_never_more_is_admitted_than_allowed(rpm, second, steps):
    limits = Limits(EmulatorSettings(rpm=rpm, enforce="second" if second else "minute"))
    now, admitted = 1000.25, 0
    for pause, count in steps:
        now += pause
        admitted += sum(limits.admit(now, 1) is None for _ in range(count))
        assert admitted <= limits.allowed_requests(now) + 1e-6


@given(rpm=st.integers(1, 5000), second=st.booleans(), now=st.floats(0, 1000), extra=st.integers(0, 20))
def test_a_request_is_admitted_after_its_wait(rpm, second, now, extra):
    limits = Limits(EmulatorSettings(rpm=rpm, enforce="second" if second else "minute"))
    refused = None
    for _ in range(rpm + extra + 1):
        refused = refused or limits.admit(now, 1)
    assert limits.admit(now + refused.wait + 1e-6, 1) is None


@given(st.floats(0, 200_000))
def test_go_durations_mean_the_seconds_they_were_made_of(seconds):
    """Read back by the grammar of the service's headers they are at most a millisecond longer."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", go_duration(seconds))
    total = sum(float(number) * units[unit] for number, unit in parts)
    assert seconds - 1e-6 <= total <= seconds + 0.001 + 1e-6


def test_go_durations_look_like_those_of_the_service():
    assert [go_duration(s) for s in (0, 0.0121, 1, 1.5, 360, 3723.5)] == [
        "0s", "13ms", "1s", "1.5s", "6m0s", "1h2m3.5s",
    ]  # fmt: skip


def test_over_http_a_refusal_says_when_to_come_back(emu, raw):
    """429 in the service's shape, with both forms of Retry-After and the limit headers."""
    emu.configure(rpm=60, burst=2)
    _, headers, _ = raw.ask(chat())
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    raw.ask(chat())
    status, headers, body = raw.ask(chat())
    assert status == 429
    assert (body["error"]["type"], body["error"]["code"]) == ("requests", "rate_limit_exceeded")
    assert "Please try again in" in body["error"]["message"]
    assert headers["retry-after"] == "1"
    assert 0 < int(headers["retry-after-ms"]) <= 1000
    summary = emu.ledger.summary()
    assert (summary["admitted"], summary["by_fault"]) == (2, {"limit": 1})
    assert summary["utilisation"] == pytest.approx(1.0, abs=0.05)


def test_hints_can_be_switched_off(emu, raw):
    emu.configure(rpm=60, burst=1, retry_after=False, limit_headers=False)
    raw.ask(chat())
    status, headers, _ = raw.ask(chat())
    assert status == 429
    assert not {name for name in headers if "retry" in name or "ratelimit" in name}


def test_a_request_larger_than_the_token_limit_has_its_own_error(emu, raw):
    emu.configure(tpm=100)
    status, headers, body = raw.ask(chat(max_tokens=101))
    assert status == 429
    assert "Request too large" in body["error"]["message"]
    assert "retry-after" not in headers


def test_without_a_limit_everything_is_allowed(emu, raw):
    _, headers, _ = raw.ask(chat())
    assert not any("ratelimit" in name for name in headers)
    assert emu.ledger.allowed_requests(1e12) == math.inf
    assert emu.ledger.utilisation() is None
