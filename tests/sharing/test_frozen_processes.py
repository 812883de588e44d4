"""A process frozen between read and write: the others continue, and its write changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import pytest
from sharing.servers import KINDS, address_of

from smartbatch import BatchingClient
from smartbatch._clock import RealClock
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant, MemberLimits, QuotaKind, Totals
from smartbatch.events import Event, SharedLimitsLost
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import TIMEOUT_SECONDS, BackEnd, BackEndBusy
from smartbatch.testing import emulator
from tests.levels import sampled

FREEZES = """
import os, signal, sys
from smartbatch.sharing import back_end

rule = back_end.exchange

def freeze(record, ask, now):
    granted = rule(record, ask, now)
    if max(ask.wanted) > 0.0:
        back_end.exchange = rule  # once
        os.kill(os.getpid(), signal.SIGSTOP)
    return granted

back_end.exchange = freeze
"""
"""The start of a process that stops itself after it has read a record and before it writes it."""

EXCHANGE = """
from smartbatch._clock import RealClock
from smartbatch.core.limits.shared_limit import MemberLimits, LeaseAsk, QuotaKind, Totals
from smartbatch.sharing.addresses import open_back_end

address, key = sys.argv[1:]
opened = open_back_end(address, RealClock.now)
opened.prepare()
money = [0.6, 0.0, 0.0, 0.0]
limits, totals = MemberLimits([1.0, 0.0, 0.0, 0.0]), Totals(number=1)
ask = LeaseAsk("frozen", QuotaKind.BUDGET, limits=limits, totals=totals, least=money, wanted=money)
try:
    print(opened.exchange(key, ask).granted[0])
except back_end.BackEndUnavailable as error:
    print(type(error).__name__)
"""

REQUEST = """
from smartbatch import BatchingClient

url, address = sys.argv[1:]
options = {"base_url": url, "api_key": "any"}
with BatchingClient("openai:gpt-5-mini", provider_options=options, shared=address, max_rpm=6000) as client:
    print(client.generate(["one"]).failed)
"""


@contextmanager
def frozen(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a program until it has stopped itself."""
    command = [sys.executable, "-c", FREEZES + program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"it ended: {status}"
            yield process
        finally:
            process.kill()


def woken(process: subprocess.Popen[str]) -> str:
    """Resume a frozen process; return what it prints until it ends."""
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate()
    return out.strip()


def in_turn(back_end: BackEnd, key: str, ask: LeaseAsk) -> LeaseGrant:
    """Exchange. The wait for the lock may time out just before the server ends the frozen session."""
    try:
        return back_end.exchange(key, ask)
    except BackEndBusy:
        return back_end.exchange(key, ask)


@pytest.mark.parametrize("kind", sampled(KINDS, first=1))
def test_money_that_a_frozen_process_was_about_to_take_is_taken_once(kind, request, tmp_path):
    """It and another process want 60 cents each of a dollar. Redis and PostgreSQL give them to the other
    one. A file stays locked, so the other one gives up after two seconds."""
    address, key = address_of(kind, request, tmp_path), f"budget {uuid4()}"
    back_end = open_back_end(address, RealClock.now)
    back_end.prepare()
    money = [0.6, 0.0, 0.0, 0.0]
    ask = partial(
        LeaseAsk,
        "other",
        kind=QuotaKind.BUDGET,
        limits=MemberLimits(caps=[1.0, 0.0, 0.0, 0.0]),
        least=money,
        wanted=money,
    )
    with frozen(EXCHANGE, address, key) as process:
        began = RealClock.now()
        if kind == "sqlite":
            with pytest.raises(BackEndBusy):
                back_end.exchange(key, ask(totals=Totals(number=1)))
        else:
            assert in_turn(back_end, key, ask(totals=Totals(number=1))).granted[0] == 0.6
        assert RealClock.now() - began <= TIMEOUT_SECONDS + 1.0
        refused = {"sqlite": "0.6", "redis": "0.0", "postgresql": "BackEndUnavailable"}
        assert woken(process) == refused[kind]
    later = back_end.exchange(key, ask(totals=Totals(2, 0.0 if kind == "sqlite" else 0.6)))
    assert (later.granted[0], later.left[0]) == (0.0, 0.4)
    back_end.close()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_clients_continue_while_another_process_is_frozen(kind, request, tmp_path):
    address = address_of(kind, request, tmp_path)
    seen: list[Event] = []
    with emulator(latency=0.01) as server:
        options = {"base_url": server.base_url, "api_key": "any"}
        with BatchingClient(
            "openai:gpt-5-mini",
            provider_options=options,
            shared=address,
            max_rpm=6000,
            observers=[seen.append],
        ) as client:
            assert client.generate(f"before {number}" for number in range(20)).failed == 0
            with frozen(REQUEST, server.base_url, address) as process:
                results = client.generate(f"meanwhile {number}" for number in range(200))
                assert results.failed == 0
                assert results.wall <= 200 / 100 + TIMEOUT_SECONDS + 1.0
                assert woken(process) == "0"
            assert client.generate(f"after {number}" for number in range(20)).failed == 0
    lost = [event.reason for event in seen if isinstance(event, SharedLimitsLost)]
    assert len(lost) <= (kind != "redis"), lost
