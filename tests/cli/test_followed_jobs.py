"""Following jobs: results as they come; once interrupted, what is stored when calls under way have ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import define

from smartbatch._clock import VirtualClock
from smartbatch.cli.followed_jobs import FollowedJobs
from smartbatch.errors import JobTimeout
from smartbatch.jobs.status import JobStatus
from smartbatch.types import Result


@define
class Kept:
    """Stands in for a job: the first ``stored`` of ``total`` results are there."""

    total: int
    stored: int
    id: str = "job-1"

    def status(self, *, forecast: bool = True) -> JobStatus:
        return JobStatus(
            *(self.id, None, "sim:demo", "active", self.total, self.total, self.stored, 0, 0, 0),
            *(None, 1.0, 0.0, 0.0, 0),
        )

    def results(
        self, *, after: int = -1, wait: bool = True, timeout: float | None = None
    ) -> Iterator[Result]:
        for ix in range(after + 1, self.stored):
            yield Result(f"r-{ix}", text=f"answer {ix}")
        if wait and self.stored < self.total:
            assert timeout is not None
            raise JobTimeout("later", job_id=self.id)


@pytest.mark.parametrize(("rest", "found"), [(True, 7), (False, 3)])
def test_after_an_interruption_calls_under_way_end_before_the_rest_is_read(
    clock: VirtualClock, rest: bool, found: int
) -> None:
    """What ends within the grace is among the results; a reader in order gets no more."""
    job = Kept(10, 3)
    got: list[Result] = []
    ended: list[int] = []

    def ending() -> None:
        ended.append(len(got))
        job.stored = 7

    followed = FollowedJobs([job], lambda _: None, clock, stopped=lambda: len(got) == 3, ending=ending)  # type: ignore[list-item]
    for result in followed.results(job, rest=rest):  # type: ignore[arg-type]
        got.append(result)  # noqa: PERF402 - whether it was stopped depends on it
    assert ended == [3]
    assert [result.request_id for result in got] == [f"r-{ix}" for ix in range(found)]


def test_a_job_that_ends_is_read_to_its_end_and_nothing_is_ended_early(clock: VirtualClock) -> None:
    """Without an interruption there is no grace to wait for."""
    job = Kept(5, 5)
    followed = FollowedJobs([job], lambda _: None, clock, ending=lambda: pytest.fail("nobody interrupted it"))  # type: ignore[list-item]
    assert [result.text for result in followed.results(job, rest=True)] == [  # type: ignore[arg-type]
        f"answer {ix}" for ix in range(5)
    ]
