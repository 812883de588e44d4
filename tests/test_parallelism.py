"""The parallelism of a running client can be changed, and nothing else."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait

import pytest
from jobs.remote import Remote
from realtime.scenes import Scripted

from smartbatch import BatchingClient, ConfigError
from smartbatch._clock import VirtualClock
from smartbatch.providers import Capabilities
from smartbatch.types import Result

ClientOf = Callable[..., BatchingClient]
LONG = 3_600.0


def seconds_for(clock: VirtualClock, futures: list[Future[Result]]) -> float:
    began = clock.now()
    assert wait(futures, LONG).not_done == set()
    return clock.now() - began


def test_more_parallelism_takes_effect_at_once(client_of, clock):
    client = client_of(Remote(clock, latency=1.0), parallelism=2)
    assert seconds_for(clock, [client.submit(f"a{n}") for n in range(8)]) == pytest.approx(4.0, abs=0.1)
    client.set_parallelism(8)
    assert client.config.parallelism == 8
    assert seconds_for(clock, [client.submit(f"b{n}") for n in range(16)]) == pytest.approx(2.0, abs=0.1)


def test_waiting_requests_start_when_the_parallelism_grows(client_of, clock):
    client = client_of(Remote(clock, latency=1.0), parallelism=1)
    with clock.held():
        futures = [client.submit(f"a{n}") for n in range(8)]
    clock.sleep(0.5)
    client.set_parallelism(8)
    assert seconds_for(clock, futures) == pytest.approx(1.0, abs=0.1)


def test_less_parallelism_interrupts_no_call(client_of, clock):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, parallelism=8)
    with clock.held():
        futures = [client.submit(f"a{n}") for n in range(16)]
    clock.sleep(0.5)
    client.set_parallelism(2)
    assert seconds_for(clock, futures) == pytest.approx(4.5, abs=0.1)
    assert all(future.result().attempts == 1 for future in futures)


def test_running_lists_and_jobs_follow(client_of, clock, store):
    client = client_of(Remote(clock, latency=1.0), parallelism=1, store=store)
    job = client.submit_batch([f"a{n}" for n in range(33)], strategy="individual")
    clock.sleep(1.5)
    client.set_parallelism(16)
    began = clock.now()
    job.wait(LONG)
    assert clock.now() - began < 6.0
    results = client.map([f"b{n}" for n in range(32)], strategy="individual")
    next(results)
    client.set_parallelism(4)
    began = clock.now()
    assert len(list(results)) == 31
    assert clock.now() - began == pytest.approx(5.0, abs=1.1)


@pytest.mark.parametrize("calls", [0, -1, 1.5, "many", None, 100_000])
def test_one_out_of_range_is_refused(calls, client_of, clock):
    client = client_of(Remote(clock), parallelism=3)
    with pytest.raises(ConfigError, match="parallelism"):
        client.set_parallelism(calls)  # type: ignore[arg-type]
    assert client.config.parallelism == 3


def test_a_forked_child_inherits_the_parallelism(client_of, clock):
    client = client_of(Remote(clock), parallelism=3)
    client.set_parallelism(7)
    child = os.fork()
    if child == 0:
        os._exit(client.config.parallelism)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("parallelism", r"client\.set_parallelism\(16\)"),
        ("max_rpm", "BatchingClient\\(model, max_rpm=…\\)"),
        ("temperature", "temperature=…"),
        ("config", "config=…"),
        ("model", "model"),
        ("spnt", "did you mean spent"),
        ("something_else", "no attribute 'something_else'"),
    ],
)
def test_setting_an_attribute_raises_and_says_what_works(name, advice, client_of, clock):
    client = client_of(Remote(clock))
    with pytest.raises(AttributeError, match=advice):
        setattr(client, name, 16)


def test_a_model_has_at_most_the_calls_that_its_host_allows(client_of, clock):
    provider = Scripted(clock, latency=1.0)
    provider.capabilities = Capabilities(max_calls={"big": 2})
    client = client_of(provider, parallelism=16)
    with clock.held():
        futures = [client.submit(f"{name} {n}", model=name) for n in range(6) for name in ("big-1", "small")]
    assert seconds_for(clock, futures) == pytest.approx(3.0)
    began = Counter((start.prompt.partition(" ")[0], start.at) for start in provider.starts)
    assert sorted(began.values()) == [2, 2, 2, 6]
