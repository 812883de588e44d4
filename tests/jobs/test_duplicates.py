"""Creates that something below the library repeats: one batch is kept, the others are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from jobs.remote import Api, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.job import Job
from smartbatch.providers.batch_api import Creation, RemoteBatch

HOUR = 3600.0
BETWEEN = 5.0
"""Seconds from one create to its repetition."""


@pytest.fixture
def repeated(
    client_of: Callable[..., BatchingClient],
    clock: VirtualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[Job, Api]]:
    """Submit a job whose create arrives three times, and whose last answer does, or is lost."""

    def run(answered: bool, *, labels: bool = True) -> tuple[Job, Api]:
        remote = Remote(clock, turnaround=HOUR)
        api = remote.api
        assert api is not None
        api.abilities = evolve(api.abilities, labels=labels, fence=api.abilities.fence and labels)
        create = api.create

        def repeating(creation: Creation, timeout: float) -> RemoteBatch:
            for _ in range(2):
                create(creation, timeout)
                clock.sleep(BETWEEN)
            last = create(creation, timeout)
            if answered:
                return last
            raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

        monkeypatch.setattr(api, "create", repeating)
        return client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"]), api

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("answered", "cancelled"), [(True, [True, True, False]), (False, [False, True, True])]
)
def test_of_a_create_that_was_repeated_one_batch_runs_to_its_end(
    answered: bool, cancelled: list[bool], repeated: Callable[..., tuple[Job, Api]]
) -> None:
    """The one that was answered, or else the oldest, which has been paid for longest.

    What the cancelled ones cost is told by further incidents, some time after the last result of the job.
    """
    job, api = repeated(answered)
    assert job.wait(10 * HOUR).completed == 2
    assert [batch.cancelled for batch in api.made.values()] == cancelled
    cancels = [incident for incident in job.incidents() if "second time" in incident.detail][:2]
    assert [incident.kind for incident in cancels] == ["double_submission"] * 2
    assert all("and cancelled" in incident.detail for incident in cancels)


def test_what_the_search_for_a_lost_create_finds_is_cancelled_at_once(
    repeated: Callable[..., tuple[Job, Api]], clock: VirtualClock
) -> None:
    """Not when the list is searched once more, two minutes after the create."""
    _, api = repeated(False)
    clock.sleep(60.0)
    assert [batch.cancelled for batch in api.made.values()] == [False, True, True]


@pytest.mark.full
def test_of_batches_without_a_label_the_oldest_counts_and_the_others_are_named(
    repeated: Callable[..., tuple[Job, Api]], clock: VirtualClock
) -> None:
    """Their results say that they are the shard's, each when it has ended."""
    job, api = repeated(False, labels=False)
    assert job.wait(10 * HOUR).completed == 2
    clock.sleep(10 * HOUR)
    oldest, *others = api.made
    named = [incident.detail for incident in job.incidents() if incident.kind == "double_submission"]
    assert all(any(f"batch {name} " in detail for detail in named) for name in others)
    assert not any(f"batch {oldest} " in detail for detail in named)


@pytest.mark.full
@pytest.mark.parametrize("labels", [True, False])
def test_a_batch_that_comes_after_it_was_given_up_is_cancelled_where_its_label_proves_it(
    labels: bool,
    client_of: Callable[..., BatchingClient],
    clock: VirtualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes effect while its rows run in a second batch. Without a label it may be another program's, so
    it runs to its end."""
    remote = Remote(clock, turnaround=2 * HOUR)
    api = remote.api
    assert api is not None
    api.abilities = evolve(api.abilities, labels=labels, fence=False)
    create = api.create
    late: list[Creation] = []

    def creating(creation: Creation, timeout: float) -> RemoteBatch:
        if late:
            return create(creation, timeout)
        late.append(creation)
        raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

    monkeypatch.setattr(api, "create", creating)
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    while not api.made:
        clock.sleep(60.0)
    create(late[0], 60.0)
    assert job.wait(10 * HOUR).completed == 2
    clock.sleep(10 * HOUR)
    assert [batch.cancelled for batch in api.made.values()] == [False, labels]
