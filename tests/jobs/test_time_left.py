"""The time that the status of a job says is left, compared with what it took."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from jobs.remote import LONG, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus

ClientOf = Callable[..., BatchingClient]
HALF = 1800.0


def followed(job: Job) -> list[tuple[JobStatus, float]]:
    """Wait for a job; return each status on the way, and the seconds it took from there to the end."""
    seen: list[JobStatus] = []
    job.on_progress(seen.append)
    whole = job.wait(LONG).elapsed
    return [(status, whole - status.elapsed) for status in seen if not status.done]


@pytest.mark.full
def test_what_a_batch_gave_back_takes_the_time_of_calls_and_not_of_batches(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """A batch is given up after ten minutes with nothing done; 60 calls at four a time take five minutes."""
    remote = Remote(clock, turnaround=1e5, latency=20.0)
    client = client_of(remote, store=store, batch_timeout=600.0, parallelism=4)
    told = followed(client.submit_batch([f"p{n}" for n in range(60)], batch_fallback="individual"))
    alone = [(status, left) for status, left in told if status.finished]
    assert len(remote.asked) == 60
    assert alone
    for status, left in alone:
        assert status.remaining is not None
        assert status.remaining == pytest.approx(left, rel=0.5, abs=60.0)


@pytest.mark.full
def test_calls_in_real_time_are_foretold_from_the_first_answer_on(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """When it came, three others were about to come: its time alone would say four times too much."""
    remote = Remote(clock, batches=False, latency=20.0)
    client = client_of(remote, store=store, parallelism=4)
    told = followed(client.submit_batch([f"p{n}" for n in range(60)], batch_fallback="individual"))
    assert {status.finished for status, _ in told} > {1, 30, 59}
    for status, left in told:
        if status.finished:
            assert status.remaining == pytest.approx(left, rel=0.3, abs=25.0)


def test_a_look_without_a_forecast_says_all_but_how_long_it_takes(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    client = client_of(Remote(clock, batches=False, latency=20.0), store=store, parallelism=4)
    job = client.submit_batch([f"p{n}" for n in range(8)], batch_fallback="individual")
    clock.sleep(30.0)
    whole, quick = job.status(), job.status(forecast=False)
    assert whole.remaining is not None
    assert quick == evolve(whole, remaining=None)
    job.wait(LONG)
    assert job.status(forecast=False).remaining == 0.0


def test_rows_that_follow_equal_ones_take_no_time(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """Of 80 rows 40 are asked, four at a time; the others end with them."""
    client = client_of(Remote(clock, batches=False, latency=20.0), store=store, parallelism=4)
    rows = [f"p{n}" for n in range(40)]
    told = followed(client.submit_batch([*rows, *rows], batch_fallback="individual"))
    assert {status.total for status, _ in told} == {80}
    assert any(status.finished for status, _ in told)
    for status, left in told:
        if status.finished:
            assert status.remaining == pytest.approx(left, rel=0.3, abs=25.0)


@pytest.mark.full
def test_batches_that_were_given_up_are_evidence_of_slow_ones(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """One was given up after half an hour: the next one will hardly be done within that."""
    client = client_of(
        Remote(clock, turnaround=1e5), store=store, batch_timeout=HALF, batch_poll_interval=HALF / 3
    )
    first = client.submit_batch(["a", "b"], batch_fallback="individual")
    clock.sleep(1.0)
    before = first.status().remaining
    first.wait(LONG)
    second = client.submit_batch(["c", "d"])
    clock.sleep(1.0)
    after = second.status().remaining
    assert before is not None
    assert after is not None
    assert before < HALF < after
