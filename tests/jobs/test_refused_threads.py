"""A system that allows no further thread for a moment: what needed one goes on in the next."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from jobs.remote import Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient

ClientOf = Callable[..., BatchingClient]
MINUTES = 600.0


def refuse_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Have the next start of a thread of that name fail; return the names of those that did."""
    start, refused = threading.Thread.start, list[str]()

    def refuses(thread: threading.Thread) -> None:
        if thread.name == name and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    return refused


@pytest.mark.parametrize("how", ["wait", "futures"])
def test_a_job_runs_although_its_thread_was_refused_at_first(
    how: str, client_of: ClientOf, clock: VirtualClock, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the job has it tried again."""
    refused = refuse_once(monkeypatch, "smartbatch-supervisor")
    job = client_of(Remote(clock), store=store).submit_batch(["a", "b"])
    if how == "wait":
        assert job.wait(MINUTES).completed == 2
    else:
        futures = job.futures()
        clock.sleep(MINUTES)
        assert [future.result(0).ok for future in futures] == [True, True]
    assert refused


@pytest.mark.catches("RuntimeError")
@pytest.mark.parametrize("name", ["smartbatch-realtime", "smartbatch-results"])
def test_real_time_items_run_although_a_thread_was_refused_at_first(
    name: str, client_of: ClientOf, clock: VirtualClock, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step of their job has it tried again."""
    refused = refuse_once(monkeypatch, name)
    client = client_of(Remote(clock), store=store)
    job = client.submit_batch(["a", "b"], strategy="individual", batch_fallback="individual")
    assert job.wait(MINUTES).completed == 2
    assert refused
