"""Batches the provider no longer knows: nothing is sent again by guess, and a job can always be ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import Api, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, JobTimeout, ProviderError, RequestCancelled
from smartbatch.jobs.job import Job

ClientOf = Callable[..., BatchingClient]
HOUR = 3600.0


@pytest.fixture
def remote(clock: VirtualClock) -> Remote:
    return Remote(clock, turnaround=10 * HOUR)


@pytest.fixture
def api(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A service that says 404 to the cancel of a batch it does not know, as all three do."""
    api = remote.api
    assert api is not None
    cancel = api.cancel

    def strict(batch_id: str, timeout: float) -> None:
        if batch_id not in api.made:
            raise ProviderError("no such batch", kind=ErrorKind.CLIENT_ERROR, status=404)
        cancel(batch_id, timeout)

    monkeypatch.setattr(api, "cancel", strict)
    return api


@pytest.fixture
def job(client_of: ClientOf, remote: Remote, api: Api, clock: VirtualClock, tmp_path: Path) -> Job:
    """A job whose one batch has vanished for hours."""
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    clock.sleep(60.0)
    api.made.clear()
    clock.sleep(2 * HOUR)
    return job


@pytest.mark.full
def test_a_vanished_batch_is_told_and_not_sent_again(job: Job, api: Api) -> None:
    with pytest.raises(JobTimeout, match="no longer knows the batch"):
        job.wait(HOUR)
    assert [incident.kind for incident in job.incidents()] == ["batch_vanished"]
    assert api.calls.count("create") == 1


@pytest.mark.full
def test_a_job_whose_batch_has_vanished_ends_when_it_is_cancelled(job: Job, api: Api) -> None:
    """So says the incident; its requests can be submitted anew then."""
    job.cancel()
    status = job.wait(HOUR)
    assert (status.state, status.cancelled) == ("done", 2)
    assert {type(result.error) for result in job.results()} == {RequestCancelled}
    assert api.calls.count("create") == 1


def test_a_batch_cancelled_before_it_is_seen_is_cancelled(
    client_of: ClientOf, remote: Remote, api: Api, clock: VirtualClock, tmp_path: Path
) -> None:
    """Just after its create the provider may not know it yet: that is no reason to let it run."""
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    clock.sleep(1.0)
    hidden = dict(api.made)
    api.made.clear()
    job.cancel()
    clock.sleep(20.0)
    api.made.update(hidden)
    assert job.wait(HOUR).cancelled == 2
    assert all(batch.cancelled for batch in api.made.values())
