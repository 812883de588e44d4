"""What happens before a create: a process that was away sends nothing, and what fits no batch goes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from jobs.remote import Api, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import InvalidRequest
from smartbatch.events import Event, ShardChanged
from smartbatch.types import Route

ClientOf = Callable[..., BatchingClient]
LONG = 1e6


@pytest.fixture
def remote(clock: VirtualClock) -> Remote:
    return Remote(clock)


@pytest.fixture
def api(remote: Remote) -> Api:
    assert remote.api is not None
    return remote.api


@pytest.mark.parametrize("sleeps", [False, True], ids=["frozen", "asleep"])
def test_an_intent_that_became_old_is_taken_back_and_not_sent(
    sleeps: bool, client_of: ClientOf, remote: Remote, api: Api, clock: VirtualClock, tmp_path: Path
) -> None:
    """Another machine may own the job by then. A machine that sleeps stops the monotonic clock, too."""
    changes: list[ShardChanged] = []
    created: list[int] = []

    def away(event: Event) -> None:
        if not isinstance(event, ShardChanged):
            return
        if event.after == "submitting" and not created:
            created.append(api.calls.count("create"))
            if sleeps:
                clock.set_wall(3600.0)
            else:
                clock.sleep(6.0)
        changes.append(event)

    client = client_of(remote, store=str(tmp_path / "jobs.db"), observers=[away])
    assert client.submit_batch(["a"]).wait(LONG).completed == 1
    ways = [(change.before, change.after) for change in changes]
    assert ways.count(("ready", "submitting")) == 2
    assert ("submitting", "ready") in ways
    assert created == [0]
    assert api.calls.count("create") == 1


@pytest.mark.parametrize("fallback", ["individual", "batch"])
def test_a_request_that_fits_no_batch_goes_in_real_time_where_the_job_allows_it(
    fallback: str, client_of: ClientOf, remote: Remote, api: Api, tmp_path: Path
) -> None:
    api.abilities = evolve(api.abilities, max_bytes=2000)
    client = client_of(remote, store=str(tmp_path / "jobs.db"))
    job = client.submit_batch(["x" * 3000, "small"], batch_fallback=fallback)  # type: ignore[arg-type]
    large, small = job.results(timeout=LONG)
    assert small.route is Route.BATCH
    if fallback == "individual":
        assert (large.ok, large.route) == (True, Route.INDIVIDUAL)
    else:
        assert isinstance(large.error, InvalidRequest)
        assert "above what a batch may have" in str(large.error)
