"""Results of followed jobs, before and after an interrupt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from attrs import define, field

from smartbatch.errors import JobTimeout
from smartbatch.jobs.records import StoredResult
from smartbatch.jobs.status import JobStatus
from smartbatch.runs.followed_jobs import FollowedJobs
from smartbatch.types import Result


@define
class Kept:
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
def test_after_an_interrupt_calls_in_flight_finish_first(clock, rest, found):
    job = Kept(10, 3)
    got: list[Result] = []
    ended: list[int] = []

    def ending() -> None:
        ended.append(len(got))
        job.stored = 7

    followed = FollowedJobs([job], lambda _: None, clock, stopped=lambda: len(got) == 3, ending=ending)  # type: ignore[list-item]
    for result in followed.results_in_order(job, rest=rest):  # type: ignore[arg-type]
        got.append(result)  # noqa: PERF402 - whether it was stopped depends on it
    assert ended == [3]
    assert [result.request_id for result in got] == [f"r-{ix}" for ix in range(found)]


def test_a_job_that_ends_is_read_to_its_end_and_nothing_is_ended_early(clock):
    job = Kept(5, 5)
    followed = FollowedJobs([job], lambda _: None, clock, ending=lambda: pytest.fail("nobody interrupted it"))  # type: ignore[list-item]
    assert [result.text for result in followed.results_in_order(job, rest=True)] == [  # type: ignore[arg-type]
        f"answer {ix}" for ix in range(5)
    ]


@define
class StoredJob:
    came: Sequence[int]
    read: list[int] = field(factory=list)
    id: str = "job-1"

    @property
    def total(self) -> int:
        return len(self.came)

    def sequences(self) -> Iterator[tuple[int, int]]:
        yield from enumerate(self.came, 1)

    def stored(
        self, *, after: int, ordered: bool, wait: float = 0.0, limit: int = 1000
    ) -> list[StoredResult]:
        page = list(enumerate(self.came, 1))[after : after + min(limit, 7)]
        self.read += (index for _, index in page)
        return [StoredResult(index, sequence, Result(f"r-{index}")) for sequence, index in page]

    def status(self, *, forecast: bool = True) -> JobStatus:
        return JobStatus(*(self.id, None, "sim:demo", "done", 9, 9, 9, 0, 0, 0), *(None, 1.0, 0.0, 0.0, 0))


@pytest.mark.parametrize("before", [0, 10, 40])
def test_of_the_results_stored_before_none_is_read_that_is_known(clock, before):
    came = [index ^ 5 for index in range(40)]
    job = StoredJob(came)
    followed = FollowedJobs([job], lambda _: None, clock)  # type: ignore[list-item]
    unknown = {3, 17, 18, 19, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}
    found = followed.results_as_stored(job, before, lambda index: index not in unknown)  # type: ignore[arg-type]
    indices = [int(result.request_id[2:]) for results in found for result in results]
    last = max((place for place in range(before) if came[place] not in unknown), default=-1)
    assert indices == [index for place, index in enumerate(came) if place > last or index in unknown]
    assert job.read == indices
