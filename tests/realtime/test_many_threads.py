"""Many threads share a client: each future completes once, and the counts always balance (A5, E8)."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from inside import inside
from scenes import PATIENCE, Scripted, broken, failure, limited, unavailable

from smartbatch._clock import VirtualClock
from smartbatch.errors import ErrorKind
from smartbatch.events import RequestFinished, RequestSubmitted
from smartbatch.types import Answer, Usage
from tests.levels import sampled
from tests.threads_together import run_together

FAULTS = (
    broken,
    unavailable,
    limited,
    lambda: failure(ErrorKind.TIMEOUT, maybe_billed=True),
    lambda: failure(ErrorKind.NETWORK_ERROR),
    lambda: failure(ErrorKind.CLIENT_ERROR, status=400),
    lambda: failure(ErrorKind.UNKNOWN, usage=Usage(1, 0)),
)


class Watch:
    def __init__(self):
        self.client = None
        self.unbalanced = []
        self.ended = Counter()
        self.submitted = Counter()

    def __call__(self, event):
        if self.client is not None:
            counts = self.client.counts
            if not counts.balanced() or min(counts.waiting, counts.in_flight) < 0:
                self.unbalanced.append(counts)
        if isinstance(event, RequestFinished):
            self.ended[event.request_id] += 1
        elif isinstance(event, RequestSubmitted):
            self.submitted[event.request_id] += 1


@pytest.mark.full
@pytest.mark.parametrize("shared", sampled([1, 10]))
def test_two_hundred_threads_submit_fifty_requests_each(shared, clock, client_of):
    provider = Scripted(clock, max_shared=shared, latency=0.05)
    watch = Watch()
    client = client_of(provider, parallelism=32, queue_capacity=10_000, observers=[watch], deduplicate=False)
    watch.client = client
    settled = Counter()
    wrong = []

    def work(number):
        futures = []
        for i in range(50):
            name = f"{number}/{i}"
            future = client.submit(name, context=name, priority=("low", "normal", "high")[i % 3])
            future.add_done_callback(lambda future: settled.update([str(future.result().context)]))
            futures.append((name, future))
        for name, future in futures:
            result = future.result(PATIENCE)
            if (result.text, result.context) != (f"re: {name}", name):
                wrong.append((name, result))

    run_together(work, range(200))
    client.stop()
    assert wrong == []
    assert len(settled) == 10_000
    assert set(settled.values()) == {1}
    assert set(watch.ended.values()) == set(watch.submitted.values()) == {1}
    assert len(watch.ended) == len(watch.submitted) == 10_000
    assert watch.unbalanced == []
    assert sum(provider.sizes) == 10_000


@pytest.mark.full
def test_two_hundred_items_with_faults_are_all_accounted_for(clock, client_of):
    for seed in range(20):
        rng = random.Random(seed)
        plan = [[rng.choice(FAULTS) if rng.random() < 0.3 else None for _ in range(5)] for _ in range(200)]

        def script(prompt, attempt, plan=plan):
            fault = plan[int(prompt)][min(attempt, 4)]
            return Answer(f"re: {prompt}", usage=Usage(1, 1)) if fault is None else fault()

        virtual = VirtualClock()
        provider = Scripted(virtual, script, latency=0.1)
        watch = Watch()
        client = client_of(
            provider, clock=virtual, parallelism=20, retries=2, observers=[watch], seed_of_rng=seed
        )
        watch.client = client
        results = client.generate([str(i) for i in range(200)])
        assert len(results) == 200 == results.succeeded + results.failed
        assert all(result.text == f"re: {i}" for i, result in enumerate(results) if result.ok)
        assert sum(result.attempts for result in results) == len(provider.starts)
        engine = inside(client).realtime.engine
        assert engine is not None
        client.stop()
        counts = engine.counts()
        assert (counts.submitted, counts.waiting, counts.in_flight) == (200, 0, 0)
        assert (counts.succeeded, counts.failed) == (results.succeeded, results.failed)
        assert engine.gates.permits_out == 0
        assert watch.unbalanced == []


def test_cancelling_threads_and_workers_agree_on_every_future(clock, client_of):
    watch = Watch()
    client = client_of(
        Scripted(clock, latency=0.01),
        parallelism=16,
        queue_capacity=10_000,
        observers=[watch],
        deduplicate=False,
    )
    engine = inside(client.start()).realtime.engine
    assert engine is not None
    watch.client = client
    outcomes = Counter()

    def work(number):
        rng = random.Random(number)
        mine = Counter()
        futures = [client.submit(f"{number}/{i}") for i in range(30)]
        for future in rng.sample(futures, 15):
            future.cancel()
        for future in futures:
            mine["cancelled" if future.cancelled() else "ok" if future.result(PATIENCE).ok else "failed"] += 1
        with lock:
            outcomes.update(mine)

    lock = threading.Lock()
    run_together(work, range(10))
    client.stop()
    counts = engine.counts()
    assert (counts.submitted, counts.waiting, counts.in_flight, counts.failed) == (300, 0, 0, 0)
    assert (counts.succeeded, counts.cancelled) == (outcomes["ok"], outcomes["cancelled"])
    assert len(watch.ended) == 300
    assert set(watch.ended.values()) == {1}
    assert watch.unbalanced == []
