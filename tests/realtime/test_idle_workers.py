"""Workers grow with the load and end when there is none for a while (E9)."""

from __future__ import annotations

import threading

from scenes import PATIENCE, InTime, Scripted


def test_an_idle_client_ends_its_workers_and_still_works(clock, client_of):
    workers: set[threading.Thread] = set()

    def answer(prompt: str, attempt: int) -> str:
        workers.add(threading.current_thread())
        return "yes"

    client = client_of(Scripted(clock, answer), parallelism=8)
    client.generate([f"p{n}" for n in range(8)])
    busy = set(workers)
    assert len(busy) == 8
    still = []

    def wait() -> None:
        clock.sleep(20.0)
        client.submit("in between")
        clock.sleep(29.0)  # the call took 1 s of it
        still.extend(worker for worker in busy if worker.is_alive())
        clock.sleep(3.0)

    InTime(clock, wait).result()
    assert set(still) == busy
    for worker in busy:
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert client.submit("again").result(PATIENCE).text == "yes"
    assert not workers.isdisjoint(threading.enumerate())


def test_a_call_of_an_hour_is_no_idle_time(clock, client_of):
    workers: list[threading.Thread] = []

    def answer(prompt: str, attempt: int) -> str:
        workers.append(threading.current_thread())
        return "yes"

    provider = Scripted(clock, answer, latency=lambda prompt: 3600.0 if prompt == "long" else 1.0)
    client = client_of(provider, parallelism=1, call_timeout=7200.0)
    with clock.held():
        futures = [client.submit("long"), client.submit("short")]
    assert [future.result(PATIENCE).ok for future in futures] == [True, True]
    assert workers[0] is workers[1]


def test_the_queue_is_free_while_a_worker_is_started(clock, client_of, monkeypatch):
    client = client_of(Scripted(clock, lambda *_: "yes"), parallelism=4)
    free: list[bool] = []
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith("smartbatch-worker"):
            other = threading.Thread(target=lambda: client.counts, daemon=True)
            start(other)
            other.join(PATIENCE)
            free.append(not other.is_alive())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    assert client.generate([f"p{n}" for n in range(4)]).texts == ["yes"] * 4
    assert free
    assert all(free)
