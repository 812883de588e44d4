"""Rate limits with time as an argument, and the ledger."""

from __future__ import annotations

import hashlib
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_client import RawClient, chat, request_bytes

from smartbatch.emulator import Call, EmulatorSettings, Ledger
from smartbatch.emulator.limits import Limits, go_duration
from smartbatch.errors import ConfigError
from smartbatch.testing import emulator


def test_a_full_bucket_is_there_at_the_first_request_and_refills_evenly():
    limits = Limits(EmulatorSettings(rpm=600))
    assert sum(limits.admit(100.0, 1) is None for _ in range(700)) == 600
    assert limits.admit(100.05, 1).wait == pytest.approx(0.05)
    assert limits.admit(100.1, 1) is None
    assert limits.allowed_requests(130.0) == pytest.approx(900)


def test_second_by_second_there_is_no_burst():
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


def test_tokens_are_charged_all_or_nothing_with_the_request():
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
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", go_duration(seconds))
    total = sum(float(number) * units[unit] for number, unit in parts)
    assert seconds - 1e-6 <= total <= seconds + 0.001 + 1e-6


def test_go_durations_look_like_those_of_the_service():
    assert [go_duration(s) for s in (0, 0.0121, 1, 1.5, 360, 3723.5)] == [
        "0s", "13ms", "1s", "1.5s", "6m0s", "1h2m3.5s",
    ]  # fmt: skip


def test_over_http_a_refusal_says_when_to_come_back(emu, raw):
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


def ledger_of(*entries: tuple[str, int, bool]) -> Ledger:
    ledger = Ledger()
    for index, (prompt, billed, delivered) in enumerate(entries):
        call = Call(index, float(index), "POST /v1/chat/completions", prompt=prompt)
        ledger.open(call)
        ledger.close(call, status=200, billed=billed, delivered=delivered)
    return ledger


def test_asking_again_after_a_lost_answer_is_not_paying_twice():
    ledger = ledger_of(
        ("a", 5, False), ("a", 5, True), ("b", 5, True), ("b", 5, True), ("c", 0, True), ("c", 5, True)
    )
    assert ledger.paid_twice() == ["b"]
    assert ledger.paid_twice(excluding_lost=False) == ["a", "b"]
    assert {prompt: len(calls) for prompt, calls in ledger.billed_by_prompt.items()} == {
        "a": 2,
        "b": 2,
        "c": 1,
    }


def test_the_ledger_is_served_as_json_and_can_be_reset(emu, raw):
    emu.configure(keys=["k"], keep_prompts=True)
    raw.ask(chat("one"))
    status, _, summary = raw.ask(method="GET", path="/_ledger", key=None)
    assert (status, summary["received"], summary["answered"]) == (200, 1, 1)
    full = raw.ask(method="GET", path="/_ledger?full=1", key=None)[2]
    assert full["calls"][0]["text"] == "one"
    assert raw.ask(method="POST", path="/_ledger/reset", key=None)[0] == 200
    assert emu.ledger.summary()["received"] == 0
    raw.ask(chat("two"))
    assert emu.ledger.calls[0].index == 0


def test_a_client_that_leaves_is_billed_but_not_served(emu):
    emu.configure(latency=0.02)
    with RawClient(emu.port) as staying:
        with RawClient(emu.port) as leaving:
            leaving.send(request_bytes(chat("left")))
        # The second question starts when the first is answered, so it also ends after the lost one.
        for _ in range(2):
            assert staying.ask(chat("stayed"))[0] == 200
    [lost] = [call for call in emu.ledger.calls if not call.delivered]
    assert lost.prompt == hashlib.sha256(b"left").hexdigest()
    assert lost.billed > 0
    assert lost.status is None


@pytest.mark.full
def test_an_answer_sent_in_parts_counts_as_delivered_at_its_end(emu):
    """A huge answer to a slow reader is recorded as delivered only once its last byte is out."""
    emu.configure(answers={"hello": "x" * 30_000_000})
    with RawClient(emu.port) as slow, RawClient(emu.port) as other:
        slow.send(request_bytes(chat()))
        slow.socket.recv(1)
        assert other.ask(method="GET", path="/_ledger")[2]["answered"] == 0
        while len(slow.socket.recv(1 << 20)) and other.ask(method="GET", path="/_ledger")[2]["answered"] == 0:
            pass
    assert emu.ledger.calls[0].delivered


def test_the_file_has_each_call_as_it_ends(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with emulator(ledger_file=path, faults={"reset": 0.0}) as emu, RawClient(emu.port) as client:
        for prompt in ("one", "two"):
            client.ask(chat(prompt))
            assert Ledger.read(path).calls == emu.ledger.calls
        emu.reset()
        assert path.read_bytes() == b""
        client.ask(chat("three"))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0]


def test_a_torn_last_line_is_ignored(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with emulator(ledger_file=path) as emu, RawClient(emu.port) as client:
        client.ask(chat())
    path.write_bytes(path.read_bytes() + b'{"index": 1, "at')
    assert Ledger.read(path).received == 1


def test_a_file_that_is_no_ledger_is_not_overwritten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        with emulator(ledger_file=path) as emu, RawClient(emu.port) as client:
            client.ask(chat())
    assert Ledger.read(path).received == 1
    path.write_text("precious\n")
    with pytest.raises(ConfigError, match="something other than a ledger"):
        emulator(ledger_file=path)
    assert path.read_text() == "precious\n"
    with pytest.raises(ConfigError, match="ledger file"):
        emulator(ledger_file=tmp_path / "none" / "x")


def test_a_call_from_before_a_reset_leaves_no_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    old, new = (Call(0, 0.0, "POST /v1/responses", prompt=prompt) for prompt in ("old", "new"))
    ledger.open(old)
    ledger.reset()
    ledger.open(new)
    ledger.close(old, status=200, billed=1, delivered=True)
    ledger.close(new, status=200, billed=2, delivered=True)
    ledger.end()
    assert [json.loads(line)["prompt"] for line in path.read_text().splitlines()] == ["new"]
