"""Faults and the flex tier, as a raw client and the ledger see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_client import RawClient, chat, request_bytes

from smartbatch.emulator import EmulatorSettings
from smartbatch.emulator.settings import MIXED, FaultPlan
from smartbatch.errors import ConfigError
from smartbatch.testing import Emulator


def faulty_client(emu: Emulator, fault: str, **fields: object) -> RawClient:
    emu.configure(faults={fault: 1.0})
    client = RawClient(emu.port)
    client.send(request_bytes(chat(**fields)))
    return client


@pytest.mark.parametrize(
    ("fault", "status", "type_"),
    [
        ("500", 500, "server_error"),
        ("503", 503, "server_error"),
        ("429", 429, "requests"),
        ("429_no_header", 429, "requests"),
    ],
)
def test_error_statuses_come_in_the_services_shape_and_are_not_billed(emu, fault, status, type_):
    with faulty_client(emu, fault) as client:
        got, headers, body = client.answer()
        assert (got, json.loads(body)["error"]["type"]) == (status, type_)
        assert ("retry-after" in headers) == (fault == "429")
        emu.configure(faults=0)
        assert client.ask(chat())[0] == 200
    assert (emu.ledger.calls[0].fault, emu.ledger.calls[0].billed) == (fault, 0)


def test_an_injected_limit_asks_for_the_configured_pause(emu):
    emu.configure(fault_retry_after=0.25)
    with faulty_client(emu, "429") as client:
        _, headers, _ = client.answer()
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "250")


@pytest.mark.parametrize(("fault", "billed"), [("reset", True), ("reset_before", False)])
def test_a_reset_is_billed_only_when_the_work_was_done(emu, fault, billed):
    with faulty_client(emu, fault) as client, pytest.raises(ConnectionResetError):
        client.answer()
    [call] = emu.ledger.calls
    assert (call.billed > 0, call.delivered, call.status) == (billed, False, None)


def test_a_hanging_answer_never_comes(emu):
    with faulty_client(emu, "hang") as client:
        assert client.rest() == b""
    [call] = emu.ledger.calls
    assert (call.billed > 0, call.delivered, call.status) == (True, False, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stalled_answer_stays_in_its_middle(emu, stream):
    with faulty_client(emu, "stall", stream=stream) as client:
        data = client.rest()
    assert data.startswith(b"HTTP/1.1 200")
    assert b'{"id"' in data
    assert not data.endswith(b"0\r\n\r\n" if stream else b"}")
    assert (emu.ledger.calls[0].billed > 0, emu.ledger.calls[0].delivered) == (True, False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_truncated_answer_ends_in_its_middle(emu, stream):
    with faulty_client(emu, "truncated", stream=stream) as client:
        data = client.rest()
    assert data.startswith(b"HTTP/1.1 200")
    assert not data.endswith(b"0\r\n\r\n" if stream else b"}")
    assert (emu.ledger.calls[0].billed > 0, emu.ledger.calls[0].delivered) == (True, False)


@pytest.mark.parametrize(
    ("fault", "status", "type_"),
    [
        ("bad_json", 200, "application/json"),
        ("empty", 200, "application/json"),
        ("html", 502, "text/html"),
        ("html_200", 200, "text/html"),
    ],
)
def test_bodies_that_are_no_json_arrive_whole(emu, fault, status, type_):
    with faulty_client(emu, fault) as client:
        got, headers, body = client.answer()
    assert (got, headers["content-type"]) == (status, type_)
    assert len(body) == int(headers["content-length"])
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(body)
    assert (emu.ledger.calls[0].billed > 0) == (status == 200)


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_body_trickles_in_but_is_whole(emu, stream):
    with faulty_client(emu, "slow_body", stream=stream) as client:
        status, _, body = client.answer()
        assert status == 200
        assert body.endswith(b"data: [DONE]\n\n") if stream else json.loads(body)
    assert emu.ledger.calls[0].delivered


def test_a_fault_can_be_chosen_by_content(emu, raw):
    emu.configure(fault_for=lambda index, body: "500" if body["messages"][0]["content"] == "bad" else None)
    assert [raw.ask(chat(text))[0] for text in ("good", "bad", "good")] == [200, 500, 200]


def test_a_fault_for_that_fails_is_an_answer_and_not_a_traceback(emu, raw):
    """A mistake in a test's own function is reported to the client, and the emulator serves on."""
    emu.configure(fault_for=lambda index, body: "explode")
    status, _, body = raw.ask(chat())
    assert status == 500
    assert "unknown fault 'explode'" in body["error"]["message"]
    assert emu.ledger.calls[0].done


def test_an_outage_answers_503_for_its_count_of_requests(emu, raw):
    emu.configure(outage=(2, 3))
    assert [raw.ask(chat())[0] for _ in range(7)] == [200, 200, 503, 503, 503, 200, 200]
    assert emu.ledger.summary()["by_fault"] == {"outage": 3}


def test_an_outage_can_be_a_span_of_time():
    plan = FaultPlan(EmulatorSettings(outage_between=(1.0, 2.0)))
    assert [plan.in_outage(0, t) for t in (0.0, 0.9, 1.0, 1.9, 2.0)] == [False, False, True, True, False]


@given(seed=st.integers(0, 2**63), rate=st.floats(0, 1))
def test_the_same_seed_gives_the_same_faults(seed, rate):
    one, other = (FaultPlan(EmulatorSettings(seed=seed, faults=rate)) for _ in range(2))
    assert [one.fault(i) for i in range(30)] == [other.fault(i) for i in reversed(range(30))][::-1]


def test_a_rate_is_kept_in_the_long_run():
    plan = FaultPlan(EmulatorSettings(seed=5, faults=0.02))
    found = [fault for i in range(20_000) if (fault := plan.fault(i))]
    assert 300 < len(found) < 500
    assert set(found) == set(MIXED)


def test_latencies_spread_around_their_median():
    assert {FaultPlan(EmulatorSettings(latency=0.4)).latency(i, 9) for i in range(9)} == {0.4}
    assert FaultPlan(EmulatorSettings(latency=0.4, per_token=0.01)).latency(0, 10) == pytest.approx(0.5)
    plan = FaultPlan(EmulatorSettings(latency=0.4, latency_sigma=0.5))
    above = sum(plan.latency(i, 0) > 0.4 for i in range(2000))
    assert 900 < above < 1100


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"faults": {"gremlin": 0.1}}, "gremlin"),
        ({"faults": 1.5}, "faults"),
        ({"faults": {"500": 0.7, "503": 0.7}}, "add up"),
        ({"latency": -1}, "latency"),
        ({"latency": float("nan")}, "latency"),
        ({"rpm": 0}, "rpm"),
        ({"enforce": "hour"}, "enforce"),
        ({"burst": 5}, "burst"),
        ({"burst": 5, "rpm": 60, "enforce": "second"}, "burst"),
        ({"outage": (-1, 2)}, "outage"),
        ({"gremlins": 1}, "gremlins"),
        ({"host": "0.0.0.0"}, "loopback"),
        ({"host": "example.org"}, "loopback"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, named):
    with pytest.raises(ConfigError, match=named):
        Emulator(**settings)


def test_settings_that_are_refused_change_nothing(emu):
    before = emu.settings
    for changes in ({"latency": 1.0, "rpm": -5}, {"gremlins": 1}):
        with pytest.raises(ConfigError):
            emu.configure(**changes)
    assert emu.settings is before


Ask = Callable[..., tuple[int, dict[str, Any]]]
APIS = ("chat", "responses", "gemini")


def _asking(raw: RawClient, api: str) -> Ask:
    def ask(tier: str | None = None, **fields: Any) -> tuple[int, dict[str, Any]]:
        if api == "gemini":
            body = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}], **fields}
            where: dict[str, Any] = {
                "path": "/v1beta/models/m:generateContent",
                "headers": "x-goog-api-key: k\r\n",
                "key": None,
            }
        else:
            body = chat(**fields) if api == "chat" else {"model": "m", "input": "hello", **fields}
            where = {"path": "/v1/chat/completions" if api == "chat" else "/v1/responses"}
        name = "serviceTier" if api == "gemini" else "service_tier"
        status, _, answer = raw.ask(body | ({name: tier} if tier else {}), **where)
        return status, answer

    return ask


@pytest.fixture(params=APIS)
def ask(request, raw):
    return _asking(raw, request.param)


def tier_of(answer: dict[str, Any]) -> str:
    found = answer.get("service_tier") or answer["usageMetadata"]["serviceTier"]
    assert isinstance(found, str)
    return found


def test_an_answer_says_its_tier_and_the_ledger_knows_it(emu, ask):
    assert tier_of(ask("flex")[1]) == "flex"
    assert tier_of(ask()[1]) in ("default", "standard")
    slow, plain = emu.ledger.calls
    assert (slow.tier, plain.tier == "flex") == ("flex", False)
    assert slow.billed == plain.billed > 0
    assert emu.ledger.summary()["billed_flex_tokens"] == slow.billed


def test_flex_takes_three_times_as_long_or_a_configured_factor(emu, ask):
    emu.configure(latency=0.001, per_token=0.001)
    ask("flex"), ask()
    slow, plain = emu.ledger.calls
    emu.configure(flex_slower=7.0)
    ask("flex")
    assert slow.latency == pytest.approx(3 * plain.latency)
    assert emu.ledger.calls[2].latency == pytest.approx(7 * plain.latency)


def test_missing_capacity_is_reported_as_by_the_api_and_not_billed(emu, ask):
    emu.configure(faults={"no_room": 1.0})
    status, answer = ask("flex")
    assert (status, answer["error"]["code"]) in [(429, "resource_unavailable"), (503, 503)]
    assert ask()[0] == 200, "others do not meet it"
    assert [(call.fault, call.billed > 0) for call in emu.ledger.calls] == [("no_room", False), (None, True)]


def test_models_without_the_tier_refuse_it(emu, ask):
    emu.configure(flex=False)
    status, answer = ask("flex")
    assert status == 400
    assert "tier" in answer["error"]["message"]
    assert ask()[0] == 200
