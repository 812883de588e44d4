"""A budget reserves at least the billed cost of a call, for every provider and prompt."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smartbatch.chats import Tool
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.errors import BudgetExceeded
from smartbatch.testing import emulator
from smartbatch.types import Generation, Request
from tests.http.test_unknown_bills import BUDGET, billed, client_at, each_provider

HEX = "0f3a-9c " * 15
PIECES = [
    "Tell me more. ",
    "0f3a-9c ",
    "if (x == 1) { return; }\n",
    "質問です。",
    "😀👍🏽",
    "aGVsbG8gd29",
    '\\"',
]
SCHEMA = {"type": "object", "properties": {"名前": {"type": "string", "description": "who it is"}}}
TOOLS = [Tool("look_up", "Looks it up.", parameters=SCHEMA)]
pieces = st.one_of(st.sampled_from(PIECES), st.text(st.characters(codec="utf-8")))
prompts = st.lists(pieces, min_size=1, max_size=60).map("".join).filter(str.strip)


@each_provider
def test_a_first_call_reserves_at_least_its_bill(provider):
    with emulator() as emu, client_at(emu, provider, budget=None) as client:

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(prompts, st.none() | prompts, st.sampled_from([{}, {"schema": SCHEMA}, {"tools": TOOLS}]))
        def reserves_enough(prompt, system, more):
            client.submit(prompt, system=system, max_tokens=16, **more).result()
            request = Request(prompt, Generation(system=system, max_tokens=16, **more))
            assert 0 < emu.ledger.calls[-1].billed <= Calibration().most(request).total_tokens

        reserves_enough()


@each_provider
def test_lost_answers_to_long_prompts_are_held_back_in_full(provider):
    with emulator() as emu, client_at(emu, provider, max_tokens=1) as client:
        client.generate([f"q {n}" for n in range(30)])
        emu.configure(faults={"reset": 1.0})
        errors = [client.submit(f"{HEX} {n}").exception() for n in range(40)]
        assert any(isinstance(error, BudgetExceeded) for error in errors)
        assert client.spent < billed(emu) <= client.spent + client.unconfirmed_cost <= BUDGET


@each_provider
def test_a_budget_too_small_for_one_call_says_what_the_call_can_cost(provider):
    with emulator() as emu, client_at(emu, provider, budget=0.0001, max_tokens=1) as client:
        error = client.submit(HEX).exception()
        assert isinstance(error, BudgetExceeded)
        assert "the request could cost up to $0.0013" in str(error)
        assert "nothing was sent" in str(error)
        assert not emu.ledger.calls
