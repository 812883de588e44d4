"""What happens before a create: a process that was away sends nothing, and what fits no batch goes alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from jobs.remote import LONG, Api, Remote

from smartbatch import Price
from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import BudgetExceeded, ErrorKind, InvalidRequest, ProviderError, StoreError
from smartbatch.events import Event, JobIncident, ShardChanged
from smartbatch.jobs.store.leases import LeaseTable
from smartbatch.providers.batch_api import Creation, RemoteBatch, RemoteFile
from smartbatch.types import Route

ClientOf = Callable[..., BatchingClient]


@pytest.fixture
def api(remote: Remote) -> Api:
    assert remote.api is not None
    return remote.api


def test_a_page_instead_of_the_batch_api_is_waited_out_and_told(
    client_of: ClientOf, remote: Remote, api: Api, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be a gateway's, whose server is unavailable for long: nothing fails or goes in real time."""
    upload, find_file = Api.upload, Api.find_file
    until = clock.now() + 150  # some tries more than are made before it is told
    waited_for: list[str | None] = []
    told: list[JobIncident] = []

    def page_before(real: Callable[..., object], *args: object) -> object:
        if clock.now() < until:
            raise ProviderError("a page", kind=ErrorKind.CLIENT_ERROR, status=404, maybe_billed=True)
        waited_for.append(client.job("pages").status().note)
        return real(*args)

    def heard(event: Event) -> None:
        if isinstance(event, JobIncident):
            told.append(event)

    monkeypatch.setattr(Api, "upload", lambda *args: page_before(upload, *args))
    monkeypatch.setattr(Api, "find_file", lambda *args: page_before(find_file, *args))
    client = client_of(remote, observers=[heard])
    results = client.submit_batch(["a", "b"], key="pages", batch_fallback="batch").results(timeout=LONG)
    assert [result.route for result in results] == [Route.BATCH] * 2
    assert [incident.kind for incident in told] == ["no_batch_api"]
    assert told[0].detail == (
        "waits for the Batch API: the server answers with a web page (404). "
        "If it has no batches, cancel the job and send its requests in real time"
    )
    assert waited_for[0] == told[0].detail


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
def test_a_request_too_large_for_a_batch_may_use_real_time(
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
        assert "exceeds the limits of a batch" in str(large.error)


@pytest.mark.catches("StoreError")
@pytest.mark.parametrize("kept_out", ["by its budget", "by its size"])
def test_excluded_requests_stay_out_of_batches_while_the_store_fails(
    kept_out: str,
    client_of: ClientOf,
    remote: Remote,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each write of the job fails at the first try; its requests end as failed, and none of them is sent."""
    tries = itertools.count()
    write = LeaseTable.write

    def failing_first(*given: Any) -> object:
        if next(tries) % 2 == 0:
            raise StoreError("the store is locked")
        return write(*given)

    monkeypatch.setattr(LeaseTable, "write", failing_first)
    settings: dict[str, Any] = {}
    if kept_out == "by its budget":
        settings = {"budget": 0.001, "prices": {"remote:default": Price(input=1000.0, output=1000.0)}}
    else:
        api.abilities = evolve(api.abilities, max_bytes=2000)
    client = client_of(remote, store=str(tmp_path / "jobs.db"), **settings)
    job = client.submit_batch(["x" * 3000, "y" * 3000], batch_fallback="batch")
    error = BudgetExceeded if kept_out == "by its budget" else InvalidRequest
    assert [type(result.error) for result in job.results(timeout=LONG)] == [error] * 2
    assert "create" not in api.calls
    assert remote.asked == []


@pytest.mark.full
@pytest.mark.parametrize("labels", [True, False])
def test_an_unknown_create_delays_the_next_one_only_without_labels(
    labels: bool,
    client_of: ClientOf,
    remote: Remote,
    api: Api,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without labels a batch that turns up could be either's, so the first is searched for before."""
    api.abilities = evolve(api.abilities, labels=labels, fence=labels)
    create = Api.create
    sent: list[float] = []

    def first_is_lost(self: Api, creation: Creation, timeout: float) -> RemoteBatch:
        sent.append(clock.now())
        if len(sent) == 1:
            raise ProviderError("cut", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)
        batch = create(self, creation, timeout)
        return batch if labels else evolve(batch, mark=None)

    monkeypatch.setattr(Api, "create", first_is_lost)
    client = client_of(remote, batch_max_requests=6, batch_settle=600)
    assert client.submit_batch([f"p{n}" for n in range(12)]).wait(LONG).completed == 12
    assert (sent[1] - sent[0] < 60.0) == labels
    assert (sent[1] - sent[0] >= 600.0) == (not labels)


def test_a_create_that_is_refused_for_a_moment_goes_again_after_a_pause(
    client_of: ClientOf, remote: Remote, api: Api, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was made, so nothing is searched for, and no incident tells of it."""
    create = Api.create
    sent: list[float] = []

    def busy_once(self: Api, creation: Creation, timeout: float) -> RemoteBatch:
        sent.append(clock.now())
        if len(sent) == 1:
            raise ProviderError("busy", kind=ErrorKind.SERVER_ERROR, status=503)
        return create(self, creation, timeout)

    monkeypatch.setattr(Api, "create", busy_once)
    job = client_of(remote).submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert len(api.made) == 1
    assert 0.5 <= sent[1] - sent[0] <= 10.0
    assert job.incidents() == []


@pytest.mark.parametrize("lost", [False, True], ids=["told", "found"])
def test_a_file_that_the_provider_still_processes_is_waited_for(
    lost: bool, client_of: ClientOf, remote: Remote, api: Api, clock: VirtualClock, monkeypatch: Any
) -> None:
    """It is looked at again every two seconds, whether its upload was answered or it found by its name."""
    upload, find_file = Api.upload, Api.find_file
    ready = clock.now() + 9.0
    looks: list[float] = []

    def processed(file: RemoteFile) -> RemoteFile:
        return evolve(file, ready=clock.now() >= ready)

    def sent(self: Api, name: str, source: Path, timeout: float) -> RemoteFile:
        file = upload(self, name, source, timeout)
        if lost:
            raise ProviderError("no answer", kind=ErrorKind.TIMEOUT, maybe_billed=True)
        looks.append(clock.now())
        return processed(file)

    def found(self: Api, name: str, timeout: float) -> RemoteFile | None:
        looks.append(clock.now())
        file = find_file(self, name, timeout)
        return None if file is None else processed(file)

    monkeypatch.setattr(Api, "upload", sent)
    monkeypatch.setattr(Api, "find_file", found)
    assert client_of(remote).submit_batch(["a"]).wait(LONG).completed == 1
    assert api.calls.count("upload") == api.calls.count("create") == 1
    assert [round(later - look, 1) for look, later in pairwise(looks)] == [2.0] * (len(looks) - 1)
    assert ready <= looks[-1] < ready + 2.0
