"""Many threads at one client, over real connections and with jobs in a store.

Where the interpreter has no global lock, none of the packages that the library imports may bring it back: a
single wheel that was not made for that turns the lock on for the whole process.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from smartbatch import BatchingClient
from smartbatch.testing import answer_for, emulator

THREADS = 200


@pytest.mark.full
def test_two_hundred_threads_share_a_client_and_its_store(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0000")
    together = threading.Barrier(THREADS)
    with emulator(latency=0.005) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        settings = {"parallelism": 32, "store": str(tmp_path / "jobs.db"), "batch_poll_interval": 0.05}
        with BatchingClient("openai:gpt-5-mini", **settings) as client:

            def ask(number: int) -> list[str | None]:
                together.wait()
                kept = client.submit(f"kept {number}", durable=True)
                futures = [client.submit(f"{number}, {n}") for n in range(5)]
                return [future.result().text for future in (*futures, kept)]

            with ThreadPoolExecutor(THREADS) as pool:
                answers = list(pool.map(ask, range(THREADS)))
            counts = client.counts
    asked = [[*(f"{number}, {n}" for n in range(5)), f"kept {number}"] for number in range(THREADS)]
    assert answers == [[answer_for(prompt, "gpt-5-mini") for prompt in prompts] for prompts in asked]
    assert (counts.submitted, counts.succeeded) == (6 * THREADS, 6 * THREADS)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled()  # type: ignore[attr-defined]  # of Python 3.13
