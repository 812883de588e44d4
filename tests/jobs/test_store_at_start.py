"""A store that is named and cannot be used as the client starts: requests do not wait for it, jobs do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs.remote import LONG, Remote

import smartbatch
from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import StoreError
from smartbatch.events import Event, PauseChanged
from smartbatch.jobs import client_store
from smartbatch.jobs.store import SqlStore

ClientOf = Callable[..., BatchingClient]
HANGS = 10.0
"""Seconds after which a server that accepts a connection and never answers is given up."""


class Server:
    def __init__(self, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.hangs, self.asked = False, HANGS, 0
        really = client_store.open_store

        def opened(*args: Any, **options: Any) -> SqlStore:
            self.asked += 1
            clock.sleep(self.hangs)
            if not self.there:
                raise StoreError("the store cannot be reached")
            return really(*args, **options)

        monkeypatch.setattr(client_store, "open_store", opened)


@pytest.fixture
def server(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, client_of: ClientOf) -> Server:
    client_of(
        Remote(clock), store=None
    ).start()  # so that what ends the process is there, whose time moves on
    return Server(clock, monkeypatch)


@pytest.mark.catches("StoreError")
def test_a_first_request_waits_three_seconds_for_a_store_that_hangs(
    server: Server, clock: VirtualClock, client_of: ClientOf, store: str
) -> None:
    client = client_of(Remote(clock, latency=0.01), store=store)
    began = clock.now()
    assert client.submit("a").result(LONG).ok
    assert clock.now() - began < 3.1
    began = clock.now()
    assert client.submit("b").result(LONG).ok
    assert clock.now() - began < 0.1


def test_a_store_that_answers_slowly_is_heard_before_the_first_request(
    server: Server, clock: VirtualClock, client_of: ClientOf, store: str
) -> None:
    server.there, server.hangs = True, 0.0
    smartbatch.pause("remote", "default", store=store)
    server.hangs = 2.5
    client = client_of(Remote(clock), store=store)
    future = client.submit("a")
    assert clock.now() == pytest.approx(2.5, abs=0.1)
    clock.sleep(60.0)
    assert not future.done()
    smartbatch.resume("remote", "default", store=store)
    assert future.result(LONG).ok


@pytest.mark.catches("StoreError")
@pytest.mark.parametrize("hangs", [0.0, HANGS])
def test_a_store_that_comes_later_is_heard_and_its_jobs_are_carried_on(
    hangs: float, server: Server, clock: VirtualClock, client_of: ClientOf, store: str
) -> None:
    server.there, server.hangs = True, 0.0
    earlier = client_of(Remote(clock), store=store)
    job = earlier.submit_batch(["p"])
    earlier.stop(timeout=0)
    server.there, server.hangs = False, hangs
    told: list[Event] = []
    later = client_of(Remote(clock), store=store, observers=[told.append])
    assert later.submit("a").result(LONG).ok
    clock.sleep(60.0)
    server.there = True
    smartbatch.pause("sim", "demo", store=store)
    clock.sleep(600.0)
    assert [event.model for event in told if isinstance(event, PauseChanged)] == ["sim:demo"]
    assert later.job(job.id).status().state == "done"


@pytest.mark.catches("StoreError")
def test_a_store_is_not_tried_after_a_stop(
    server: Server, clock: VirtualClock, client_of: ClientOf, store: str
) -> None:
    client = client_of(Remote(clock), store=store)
    assert client.submit("a").result(LONG).ok
    clock.sleep(60.0)
    client.stop()
    clock.sleep(HANGS)
    asked = server.asked
    clock.sleep(60.0)
    assert server.asked == asked > 3


@pytest.mark.catches("StoreError")
def test_a_second_start_does_not_end_the_tries(
    server: Server, clock: VirtualClock, client_of: ClientOf, store: str
) -> None:
    client = client_of(Remote(clock), store=store)
    client.start()
    with client:
        clock.sleep(60.0)
        asked = server.asked
        clock.sleep(60.0)
        assert server.asked > asked + 2
