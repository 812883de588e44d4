"""Generating, packing and embedding with one model are lanes that stand and fall together (A16)."""

from __future__ import annotations

from scenes import PATIENCE, Embedder, InTime, failure, submit_all, unavailable

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.realtime.ticket import ResultFuture


def test_an_outage_that_ends_in_one_lane_is_over_in_all(clock, client_of):
    down = Embedder(clock, lambda *_: unavailable() if clock.now() < 10 else "fine", latency=0.1)
    client = client_of(down, parallelism=4, breaker_threshold=2, outage_patience=60.0)
    with clock.held():
        texts = submit_all(client, ["one", "two"])

        def come_later() -> ResultFuture:
            clock.sleep(0.5)
            client.submit_embedding("a vector", priority="urgent")  # it becomes the probe
            clock.sleep(200.0)
            return client.submit("another text")

        later = InTime(clock, come_later)
    assert all(text.result(PATIENCE).ok for text in texts)
    assert later.result().result(PATIENCE).ok


def test_patience_with_an_outage_ends_in_all_lanes(clock, client_of):
    down = Embedder(clock, lambda *_: unavailable(), latency=0.1)
    client = client_of(down, parallelism=4, breaker_threshold=2, outage_patience=60.0)
    with clock.held():
        submit_all(client, ["one", "two"])

        def come_later() -> float:
            clock.sleep(0.5)
            future = client.submit_embedding("a vector")
            while not future.done():
                clock.sleep(1.0)
            return clock.now()

        later = InTime(clock, come_later)
    assert 60 <= later.result() <= 80


def test_answered_texts_count_when_the_first_vector_fails(clock, client_of):
    flaky = Embedder(
        clock, lambda prompt, _: failure(ErrorKind.NETWORK_ERROR) if prompt == "vector" else "fine"
    )
    client = client_of(flaky, retries=0)
    assert client.submit("before").result(PATIENCE).ok
    assert isinstance(client.submit_embedding("vector").exception(PATIENCE), ProviderError)
    assert client.submit("after").result(PATIENCE).ok
