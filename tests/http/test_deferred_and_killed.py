"""Deferred requests through a Batch API, and a process that is killed while their batch runs.

The client is a process of its own on a real store. It is killed with SIGKILL while its batch is created, and
the same requests are deferred again by another one, in another order and in other groups.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from smartbatch.testing import emulator

PATIENCE = 60.0
"""Seconds for a thing to happen that takes a moment."""

SCRIPT = """
import json, sys
from smartbatch import BatchingClient

place, groups = sys.argv[1], json.loads(sys.argv[2])
settings = {"store": place, "deferrable": "batch", "batch_poll_interval": 0.05, "batch_threshold": 5}
client = BatchingClient("openai:gpt-5-mini", max_tokens=20, **settings)
futures = {}
for group in groups:
    futures |= {name: client.submit_background(name, id=name) for name in group}
    client.flush()
results = {name: future.result() for name, future in futures.items()}
client.stop()
assert all(result.request_id == name for name, result in results.items())
print(json.dumps({name: [result.route.value, result.cost] for name, result in results.items()}))
"""


class Created:
    def __init__(self) -> None:
        self.seen = threading.Event()

    def __call__(self, index: int, _label: Mapping[str, str]) -> None:
        self.seen.set()


@pytest.mark.full
def test_what_a_killed_process_deferred_is_answered_once_to_the_next(tmp_path: Path) -> None:
    names, created = [f"question {n}" for n in range(20)], Created()
    with emulator(batch_turnaround=0.5, batch_fault_for=created) as emu:
        surroundings = os.environ | {
            "OPENAI_BASE_URL": emu.base_url,
            "OPENAI_API_KEY": "sk-test-of-deferred",
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        line = [sys.executable, "-c", SCRIPT, str(tmp_path / "jobs.db")]

        first = subprocess.Popen([*line, json.dumps([names])], env=surroundings, stdout=subprocess.PIPE)
        assert created.seen.wait(PATIENCE), "no create came"
        first.send_signal(signal.SIGKILL)
        out, _ = first.communicate()
        assert (first.returncode, out) == (-signal.SIGKILL, b"")

        again = [*line, json.dumps([names[12:][::-1], names[:12]])]
        second = subprocess.run(again, env=surroundings, capture_output=True, timeout=PATIENCE)
        assert second.returncode == 0, second.stderr
        answered = json.loads(second.stdout)
        assert sorted(answered) == sorted(names)
        assert {route for route, _ in answered.values()} == {"batch"}
        assert all(cost > 0 for _, cost in answered.values())
        assert emu.ledger.paid_twice(excluding_lost=False) == []
        assert not [call for call in emu.ledger.calls if call.billed], "one went in real time"
        assert [record.created_at is not None for record in emu.ledger.batches].count(True) == 1
