"""The policy ``hold``: what may exist is never sent again, and no question stays that was answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import Api, Remote

from smartbatch.client import BatchingClient
from smartbatch.clock import VirtualClock
from smartbatch.errors import ErrorKind, JobTimeout, ProviderError
from smartbatch.jobs.job import Job
from smartbatch.providers.batches import BatchPage, Creation, RemoteBatch

ClientOf = Callable[..., BatchingClient]
HOUR = 3600.0


class Lost:
    """Loses the answer of the second create; its batch is in the list after ``lag`` seconds, or never."""

    def __init__(
        self, api: Api, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, lag: float | None
    ) -> None:
        self.sizes: list[int] = []
        create, page = api.create, api.page
        hidden: dict[str, float] = {}

        def losing(creation: Creation, timeout: float) -> RemoteBatch:
            self.sizes.append(creation.size)
            if len(self.sizes) != 2:
                return create(creation, timeout)
            if lag is not None:
                hidden[create(creation, timeout).id] = clock.now() + lag
            raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

        def lagging(after: str | None, timeout: float) -> BatchPage:
            batches = page(after, timeout).batches
            return BatchPage(tuple(b for b in batches if hidden.get(b.id, 0.0) <= clock.now()))

        monkeypatch.setattr(api, "create", losing)
        monkeypatch.setattr(api, "page", lagging)


@pytest.fixture
def start(
    client_of: ClientOf, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float | None], tuple[Job, Lost]]:
    """Submit a job of three batches, of which the second is lost for ``lag`` seconds, or for ever."""

    def begin(lag: float | None) -> tuple[Job, Lost]:
        remote = Remote(clock)
        assert remote.api is not None
        lost = Lost(remote.api, clock, monkeypatch, lag)
        settings = {"batch_on_unknown": "hold", "batch_max_requests": 1, "store": str(tmp_path / "jobs.db")}
        return client_of(remote, **settings).submit_batch(["a", "b", "c"]), lost

    return begin


def test_a_job_that_waits_says_what_for_and_sends_nothing(
    start: Callable[[float | None], tuple[Job, Lost]],
) -> None:
    job, lost = start(None)
    with pytest.raises(JobTimeout, match="nobody knows yet whether its batch was created"):
        job.wait(60.0)
    with pytest.raises(JobTimeout, match="by its policy the job waits 26 hours"):
        job.wait(20 * HOUR)
    assert job.status().state == "held"
    assert len(lost.sizes) <= 3


def test_a_batch_that_is_found_late_answers_the_question(
    start: Callable[[float | None], tuple[Job, Lost]],
) -> None:
    """Nobody has to resume a job that knows again what became of its creates."""
    job, lost = start(HOUR)
    assert job.wait(3 * HOUR).completed == 3
    assert lost.sizes == [1, 1, 1]


def test_after_26_hours_it_is_certain_and_goes_again(
    start: Callable[[float | None], tuple[Job, Lost]],
) -> None:
    job, lost = start(None)
    assert job.wait(30 * HOUR).completed == 3
    assert job.status().elapsed > 26 * HOUR
    assert lost.sizes == [1, 1, 1, 1]


def test_a_person_who_resumes_it_is_believed(start: Callable[[float | None], tuple[Job, Lost]]) -> None:
    job, lost = start(None)
    with pytest.raises(JobTimeout):
        job.wait(HOUR)
    job.resume()
    assert job.wait(3 * HOUR).completed == 3
    assert lost.sizes == [1, 1, 1, 1]
