"""Rows of a job: which go in real time from the beginning, and which by batch."""

from __future__ import annotations

import pytest
from jobs.remote import Remote
from jobs.runtimes import job_wiring
from jobs.stores import new_job

from smartbatch._clock import VirtualClock
from smartbatch.jobs.acceptance import Items
from smartbatch.jobs.payload import Shared
from smartbatch.types import Generation, Request


@pytest.mark.parametrize(
    ("batches", "realtime", "alone"),
    [(True, 0, 0), (True, 3, 3), (True, 9, 5), (True, None, 5), (False, 0, 5), (False, 2, 5)],
)
def test_the_first_rows_go_in_real_time_as_many_as_are_wanted(
    clock: VirtualClock, batches: bool, realtime: int | None, alone: int
) -> None:
    """None is all of them; without a Batch API there is no other way. Batch rows know their line's size."""
    api = Remote(clock, batches=batches).batches()
    items = Items(
        (Request(f"p{n}", params=Generation()) for n in range(5)),
        new_job("job-1"),
        Shared(),
        wiring=job_wiring(),
        api=api,
        realtime=realtime,
    )
    rows = list(items)
    assert [row.realtime for row in rows] == [ix < alone for ix in range(5)]
    assert all((row.size == len(row.payload)) == row.realtime for row in rows)
