"""During an outage, requests wait for the provider without using up their tries (A16)."""

from __future__ import annotations

import itertools

import pytest
from inside import own_registry
from scenes import PATIENCE, Embedder, InTime, Scripted, broken, failure, submit_all, unavailable

from smartbatch.client import BatchingClient
from smartbatch.errors import (
    ConfigError,
    ErrorKind,
    InvalidRequest,
    ProviderError,
    ProviderUnavailable,
    RequestTimeout,
)
from smartbatch.events import BreakerChanged
from smartbatch.providers.registry import register
from smartbatch.types import Route


class Down:
    def __init__(self, clock, start, end, **settings):
        self.provider = Scripted(
            clock,
            lambda prompt, _: unavailable() if start <= clock.now() < end else f"re: {prompt}",
            **settings,
        )
        self.start, self.end = start, end

    def probes(self):
        return [call.at for call in self.provider.starts if self.start + 4 <= call.at < self.end - 1]


def changes(events):
    return [(event.before, event.after) for event in events if isinstance(event, BreakerChanged)]


@pytest.mark.full
def test_ten_minutes_of_outage_cost_a_few_probes(clock, client_of):
    down = Down(clock, 5.0, 605.0)
    client = client_of(down.provider, parallelism=16, queue_capacity=2_000)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(2_000)])
    assert all(future.result(PATIENCE).ok for future in futures)
    extra = len(down.provider.starts) - 2_000
    assert extra <= 200 + 3 + 16
    probes = down.probes()
    assert probes
    assert all(1.0 <= after - before <= 5.0 for before, after in itertools.pairwise(probes))
    assert max(future.result().attempts for future in futures) <= 4  # no single request serves as every probe


def test_the_breaker_opens_probes_and_closes(clock, client_of):
    events = []
    down = Down(clock, 0.0, 4.0)
    client = client_of(down.provider, parallelism=4, observers=[events.append])
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(20)])
    assert all(future.result(PATIENCE).ok for future in futures)
    client.stop()
    told = changes(events)
    assert told[0] == ("closed", "open")
    assert told[-1] == ("half_open", "closed")
    assert all(after == "half_open" for before, after in told if before == "open")


def test_while_it_is_open_requests_may_fail_fast(clock, client_of):
    down = Down(clock, 0.0, 1_000.0)
    client = client_of(down.provider, parallelism=1, on_breaker_open="fail", breaker_threshold=3, retries=0)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(50)])
    errors = [future.exception(PATIENCE) for future in futures]
    assert all(isinstance(error, ProviderError) for error in errors)
    unsent = [error for error in errors if isinstance(error, ProviderUnavailable)]
    assert len(unsent) >= 47
    assert "failing for less than a second and the circuit breaker is open" in str(unsent[0])
    assert not [error for error in unsent if "e-" in str(error)]
    assert len(down.provider.starts) == 3
    assert clock.now() < 10


def test_another_model_may_take_over(clock, client_of):
    down = Down(clock, 0.0, 1_000.0)
    client = client_of(
        down.provider,
        parallelism=2,
        on_breaker_open="fallback",
        fallback_model="sim:spare",
        breaker_threshold=2,
    )
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(20)])
    results = [future.result(PATIENCE) for future in futures]
    assert all(result.ok for result in results)
    assert {result.model for result in results} == {"sim:spare"}
    assert clock.now() < 60


@pytest.mark.parametrize(
    "error",
    [
        failure(ErrorKind.SERVER_ERROR, status=500),
        failure(ErrorKind.TIMEOUT),
        failure(ErrorKind.NETWORK_ERROR),
        failure(ErrorKind.CLIENT_ERROR, status=404),
    ],
    ids=["server_error", "timeout", "network", "unknown_model"],
)
def test_a_single_request_reaches_its_fallback_model(clock, client_of, error):
    provider = Scripted(clock, lambda *_: error)
    client = client_of(provider, on_breaker_open="fallback", fallback_model="sim:spare", breaker_threshold=50)
    result = client.submit("alone").result(PATIENCE)
    assert (result.ok, result.model, result.route) == (True, "sim:spare", Route.INDIVIDUAL)
    assert result.attempts == len(provider.starts) + 1


def test_an_invalid_request_is_not_sent_to_the_fallback_model(clock, client_of):
    refused = failure(ErrorKind.CLIENT_ERROR, status=400)
    provider = Scripted(clock, lambda *_: refused)
    client = client_of(provider, on_breaker_open="fallback", fallback_model="sim:spare")
    error = client.submit("alone").exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert (error.kind, len(provider.starts)) == (ErrorKind.CLIENT_ERROR, 1)


def test_a_fallback_model_does_not_ignore_what_it_lacks(clock, client_of, monkeypatch):
    class Spare(Scripted):
        def check(self, request, *, model):
            if request.params.reasoning_effort is not None:
                raise InvalidRequest(f"{model} does not reason", field="reasoning_effort")

    spare = Spare(clock, lambda *_: "from the spare", name="spare")
    own_registry(monkeypatch)
    register("spare", lambda *_a, **_k: (spare, "m"))
    down = Scripted(clock, lambda *_: broken())
    client = client_of(down, on_breaker_open="fallback", fallback_model="spare:m", retries=1)
    assert client.submit("plain").result(PATIENCE).text == "from the spare"
    error = client.submit("alone", reasoning_effort="low").exception(PATIENCE)
    assert "the fallback model m cannot take over: m does not reason" in str(error)
    assert (error.kind, error.code) == (ErrorKind.CLIENT_ERROR, "invalid_request")
    assert [call.prompt for call in spare.starts] == ["plain"]


def test_a_fallback_that_fails_too_ends_the_request(clock, client_of, monkeypatch):
    own, spare = (Scripted(clock, lambda *_: broken(), name=name, latency=2.0) for name in ("own", "spare"))
    own_registry(monkeypatch)
    register("spare", lambda *_a, **_k: (spare, "m"))
    client = client_of(own, on_breaker_open="fallback", fallback_model="spare:m", retries=1)
    results = client.map(["alone"], on_error="result")
    (result,) = list(results)
    assert (len(own.starts), len(spare.starts), result.attempts) == (2, 2, 4)
    assert (result.model, result.route, result.latency) == ("spare:m", Route.INDIVIDUAL, 2.0)


@pytest.mark.parametrize("instead", ["fail", "fallback"])
def test_a_later_client_notices_that_an_outage_has_ended(clock, client_of, tmp_path, instead):
    more = {"fallback_model": "sim:spare"} if instead == "fallback" else {}
    down = Down(clock, 0.0, 600.0, priced=True)
    for _ in range(2):
        shared = f"sqlite:///{tmp_path / 'limits.db'}"
        client = client_of(down.provider, shared=shared, on_breaker_open=instead, retries=0, **more)
        with clock.held():
            futures = submit_all(client, [f"p{i}" for i in range(40)])
        texts = [None if future.exception(PATIENCE) else future.result().text for future in futures]
        client.stop()
        clock.sleep(3_600.0)
    assert texts == [f"re: p{i}" for i in range(40)]


def test_a_vector_is_not_asked_of_another_model(clock, client_of):
    down = Embedder(clock, lambda *_: unavailable() if clock.now() < 20 else "fine")
    client = client_of(
        down, on_breaker_open="fallback", fallback_model="sim:spare", breaker_threshold=2, retries=5
    )
    with clock.held():
        futures = [client.submit_embedding(f"t{i}") for i in range(20)]
    assert {future.result(PATIENCE).model for future in futures} == {"scripted:default"}


def test_the_same_model_of_another_server_takes_over(clock, client_of, monkeypatch):
    gateway = Scripted(clock, lambda *_: unavailable(), name="acme")
    vendor = Scripted(clock, lambda prompt, _: f"vendor: {prompt}", name="acme")
    own_registry(monkeypatch)
    register("acme", lambda *_a, **_k: (vendor, "default"))
    client = client_of(
        gateway, on_breaker_open="fallback", fallback_model="acme:default", breaker_threshold=2
    )
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(20)])
    assert [future.result(PATIENCE).text for future in futures] == [f"vendor: p{i}" for i in range(20)]


def test_a_fallback_that_cannot_be_used_is_refused_at_construction(clock, client_of, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        client_of(Scripted(clock), on_breaker_open="fallback", fallback_model="openai:gpt-5-mini")


def test_patience_with_an_outage_ends(clock, client_of):
    down = Down(clock, 0.0, 10_000.0)
    client = client_of(down.provider, parallelism=4, outage_patience=120.0)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(50)])
    for future in futures:
        error = future.exception(PATIENCE)
        assert isinstance(error, ProviderError)
        assert error.kind is ErrorKind.SERVER_ERROR
    assert 120 <= clock.now() <= 140


def test_each_request_waits_as_long_as_the_others_did(clock, client_of):
    down = Down(clock, 0.0, 200.0)
    client = client_of(down.provider, parallelism=4, outage_patience=120.0)
    with clock.held():
        first = submit_all(client, [f"p{i}" for i in range(50)])
    assert all(isinstance(future.exception(PATIENCE), ProviderError) for future in first)
    late = client.submit("late")
    assert late.result(PATIENCE).text == "re: late"
    assert 200.0 <= clock.now() <= 265.0


def test_later_requests_do_not_prolong_the_wait_of_earlier_ones(clock, client_of):
    down = Down(clock, 0.0, 9_000.0)
    client = client_of(down.provider, parallelism=4, outage_patience=10.0, breaker_threshold=1)
    ended = []

    def ask():
        for number in range(25):
            client.submit(f"urgent {number}", priority="urgent")
            clock.sleep(4.0)

    with clock.held():
        early = submit_all(client, [f"p{i}" for i in range(3)])
        for future in early:
            future.add_done_callback(lambda _: ended.append(clock.now()))
        asking = InTime(clock, ask)
    assert all(isinstance(future.exception(PATIENCE), ProviderError) for future in early)
    asking.result()
    client.stop()
    assert max(ended) <= 15.0


def test_patience_ends_also_where_a_limit_lets_no_probe_go(clock, client_of):
    down = Down(clock, 0.0, 9_000.0)
    client = client_of(down.provider, parallelism=4, outage_patience=3.0, breaker_threshold=1, max_rpm=1)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(20)])
    assert all(isinstance(future.exception(PATIENCE), ProviderError) for future in futures)
    assert clock.now() <= 10.0


@pytest.mark.parametrize("patience", [0.0, 60.0, 10_800.0])
def test_an_outage_that_ended_while_nobody_asked_is_over(patience, clock, client_of):
    down = Down(clock, 0.0, 20.0)
    client = client_of(down.provider, outage_patience=patience)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(40)], timeout=8)
    assert all(isinstance(future.exception(PATIENCE), ProviderError | RequestTimeout) for future in futures)
    clock.sleep(4 * 3600.0)
    assert client.submit("in the morning").result(PATIENCE).text == "re: in the morning"


def test_after_a_long_outage_the_fallback_hands_back(clock, client_of, monkeypatch):
    down = Down(clock, 0.0, 200.0)
    own_registry(monkeypatch)
    register("other", lambda *_a, **_k: (Scripted(clock, lambda *_: "from the other", name="other"), "m"))
    client = client_of(
        down.provider, outage_patience=60.0, on_breaker_open="fallback", fallback_model="other:m"
    )

    with clock.held():
        first = submit_all(client, [f"p{i}" for i in range(20)])
    texts = [future.result(PATIENCE).text for future in first]
    for number in range(45):
        texts.append(client.submit(f"q{number}").result(PATIENCE).text)
        clock.sleep(8.0)
    assert set(texts[:35]) == {"from the other"}
    assert texts[-1] == "re: q44"


def test_an_address_that_never_answers_fails_everybody_soon(clock, client_of):
    provider = Scripted(clock, lambda *_: failure(ErrorKind.NETWORK_ERROR), latency=0.01)
    client = client_of(provider, parallelism=8, queue_capacity=200)

    def ask():
        futures = []
        for i in range(200):
            futures.append(client.submit(f"p{i}"))
            clock.sleep(0.001)
        return futures

    futures = InTime(clock, ask).result()
    assert all(isinstance(future.exception(PATIENCE), ProviderError) for future in futures)
    assert clock.now() <= 60
    assert len(provider.starts) <= 100


def test_after_a_while_a_mended_key_is_tried_again(clock, client_of):
    provider = Scripted(
        clock, lambda *_: failure(ErrorKind.AUTH_ERROR, status=401) if clock.now() < 10 else "fine"
    )
    client = client_of(provider, parallelism=1)
    assert client.submit("x").exception(PATIENCE)

    def later():
        clock.sleep(60.0)
        return client.submit("y")

    assert InTime(clock, later).result().result(PATIENCE).ok


def test_a_request_that_always_fails_does_not_keep_the_breaker_open(clock, client_of):
    provider = Scripted(
        clock,
        lambda prompt, _: unavailable() if prompt == "failing" or clock.now() < 3 else "fine",
    )
    client = client_of(provider, parallelism=4, outage_patience=600.0)
    with clock.held():
        failing = client.submit("failing")
        others = submit_all(client, [f"p{i}" for i in range(100)])
    assert all(future.result(PATIENCE).ok for future in others)
    assert isinstance(failing.exception(PATIENCE), ProviderError)
    assert clock.now() <= 120


def test_requests_that_always_fail_let_the_breaker_close_again(clock, client_of):
    provider = Scripted(clock, lambda prompt, _: broken() if prompt.startswith("failing") else "fine")
    client = client_of(provider, parallelism=4)
    ended = []

    def ask():
        failing_ones = submit_all(client, [f"failing {i}" for i in range(40)])
        clock.sleep(0.5)
        others = submit_all(client, [f"p{i}" for i in range(100)])
        for other in others:
            other.add_done_callback(lambda _: ended.append(clock.now()))
        return [*failing_ones, *others]

    futures = InTime(clock, ask).result()
    assert all(isinstance(future.exception(PATIENCE), ProviderError) for future in futures[:40])
    assert all(future.result(PATIENCE).ok for future in futures[40:])
    client.stop()
    assert max(ended) <= 600  # one probe per failing request, and no second round


def test_a_failing_callable_does_not_open_the_breaker(clock, client_of):
    events = []

    def script(prompt, _):
        raise ValueError("a mistake")

    client = client_of(Scripted(clock, script), observers=[events.append])
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(30)])
    assert all(future.exception(PATIENCE) for future in futures)
    assert changes(events) == []


def test_a_fallback_of_the_same_provider_gets_the_options_of_the_client(clock, monkeypatch):
    own_registry(monkeypatch)
    opened = []

    def made(prefix):
        def factory(name, _, options):
            opened.append((f"{prefix}:{name}", options))
            return Scripted(clock, name=prefix), name

        return factory

    for prefix in ("acme", "other"):
        register(prefix, made(prefix))
    own = {"base_url": "http://localhost:1"}
    for fallback in ("acme:spare", "other:spare"):
        BatchingClient(
            "acme:main",
            provider_options=own,
            on_breaker_open="fallback",
            fallback_model=fallback,
            clock=clock,
            shared="off",
        )
    assert opened == [("acme:main", own), ("acme:spare", own), ("acme:main", own), ("other:spare", {})]


def test_an_outage_that_ends_in_one_lane_is_over_in_all(clock, client_of):
    down = Embedder(clock, lambda *_: unavailable() if clock.now() < 10 else "fine", latency=0.1)
    client = client_of(down, parallelism=4, breaker_threshold=2, outage_patience=60.0)
    with clock.held():
        texts = submit_all(client, ["one", "two"])

        def come_later():
            clock.sleep(0.5)
            client.submit_embedding("a vector", priority="urgent")  # the probe
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

        def come_later():
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
