"""The slower tier in the emulator: what it answers, how long it takes, when it declines, what it records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient, chat

from smartbatch.testing import Emulator

Ask = Callable[..., tuple[int, dict[str, Any]]]
APIS = ("chat", "responses", "gemini")


def _asking(raw: RawClient, api: str) -> Ask:
    """Return what asks one API, with the tier in its own words."""

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
def ask(request: pytest.FixtureRequest, raw: RawClient) -> Ask:
    return _asking(raw, request.param)


def tier_of(answer: dict[str, Any]) -> str:
    """The tier an answer says it came from."""
    found = answer.get("service_tier") or answer["usageMetadata"]["serviceTier"]
    assert isinstance(found, str)
    return found


def test_an_answer_says_its_tier_and_the_ledger_knows_it(emu: Emulator, ask: Ask) -> None:
    assert tier_of(ask("flex")[1]) == "flex"
    assert tier_of(ask()[1]) in ("default", "standard")
    slow, plain = emu.ledger.calls
    assert (slow.tier, plain.tier == "flex") == ("flex", False)
    assert slow.billed == plain.billed > 0
    assert emu.ledger.summary()["billed_flex_tokens"] == slow.billed


def test_flex_takes_three_times_as_long_or_a_configured_factor(emu: Emulator, ask: Ask) -> None:
    emu.configure(latency=0.001, per_token=0.001)
    ask("flex"), ask()
    slow, plain = emu.ledger.calls
    emu.configure(flex_slower=7.0)
    ask("flex")
    assert slow.latency == pytest.approx(3 * plain.latency)
    assert emu.ledger.calls[2].latency == pytest.approx(7 * plain.latency)


def test_missing_capacity_is_reported_as_by_the_api_and_not_billed(emu: Emulator, ask: Ask) -> None:
    emu.configure(faults={"no_room": 1.0})
    status, answer = ask("flex")
    assert (status, answer["error"]["code"]) in [(429, "resource_unavailable"), (503, 503)]
    assert ask()[0] == 200, "others do not meet it"
    assert [(call.fault, call.billed > 0) for call in emu.ledger.calls] == [("no_room", False), (None, True)]


def test_models_without_the_tier_refuse_it(emu: Emulator, ask: Ask) -> None:
    emu.configure(flex=False)
    status, answer = ask("flex")
    assert status == 400
    assert "tier" in answer["error"]["message"]
    assert ask()[0] == 200


def test_a_tier_nobody_knows_is_refused(ask: Ask) -> None:
    status, answer = ask("turbo")
    assert status == 400
    assert "tier" in answer["error"]["message"]
