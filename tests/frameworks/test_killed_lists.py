"""Real-time work that outlives its process: one is killed in the middle, the same call in another goes on."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections import Counter

import pytest
from frameworks.incidents import named_in_incidents

from smartbatch import BatchingClient
from smartbatch.testing import Emulator, answer_for, emulator

ROWS = 200
LATENCY = 0.1
UNCERTAIN = ROWS // 2
"""The calls in flight, as many that came next, and the answers that gather while others are stored: how many
that are depends on how fast the store is, but they are far fewer than the rows that are left."""
WORKER = """
import sys
from smartbatch import BatchingClient
url, store, how = sys.argv[1:]
prompts = [f"question {number}" for number in range(200)]
options = {"base_url": url, "api_key": "any"}
with BatchingClient("openai:gpt-5-mini", provider_options=options, store=store, parallelism=8) as client:
    if how == "list":
        results = client.as_completed(prompts, key="questions", strategy="individual")
    else:
        futures = [client.submit(prompt, durable=True) for prompt in prompts]
        results = (future.result() for future in futures)
    for result in results:
        print(result.text, flush=True)
"""


def start(server: Emulator, store: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, server.base_url, store, how], stdout=subprocess.PIPE, text=True
    )


def read(process: subprocess.Popen[str], lines: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(lines)]


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def rest(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    with process:
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    return lines


def asked_twice(server: Emulator) -> set[int]:
    asked = Counter(call.prompt for call in server.ledger.calls)
    numbers = {hashlib.sha256(f"question {n}".encode()).hexdigest(): n for n in range(ROWS)}
    return {numbers[prompt] for prompt, times in asked.items() if times > 1}


def named_rows(store: str) -> set[int]:
    with BatchingClient("sim:demo", store=store) as client:
        details = [incident.detail for incident in client.job("questions").incidents()]
    found = [re.search(r"rows ([\d, ]+)", detail) for detail in details]
    return {int(row) for rows in found if rows for row in rows.group(1).split(", ")}


@pytest.mark.full
@pytest.mark.parametrize("how", ["list", "requests"])
def test_the_same_call_goes_on_where_a_killed_process_stopped(how, store):
    with emulator(latency=LATENCY) as server:
        first = start(server, store, how)
        read(first, 40)
        kill(first)
        answers = rest(start(server, store, how))
        assert sorted(answers) == sorted(answer_for(f"question {n}", "gpt-5-mini") for n in range(ROWS))
        twice = server.ledger.received - ROWS
        if how == "list":
            assert asked_twice(server) <= named_rows(store)
    assert 0 <= twice <= named_in_incidents(store) <= UNCERTAIN


@pytest.mark.full
def test_a_second_process_continues_when_the_first_is_killed(store):
    with emulator(latency=LATENCY) as server:
        first = start(server, store, "list")
        read(first, 20)
        second = start(server, store, "list")
        read(second, 40)
        kill(first)
        assert len(rest(second)) == ROWS - 40
        assert asked_twice(server) <= named_rows(store)
        assert server.ledger.received - ROWS <= named_in_incidents(store) <= UNCERTAIN
