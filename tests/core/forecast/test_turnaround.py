"""How long a job will still take."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.forecast import EXPIRY_SECONDS, ForecastAt, Forecaster, Observation, RunningBatch
from smartbatch.core.forecast import remaining as remaining_by
from smartbatch.routing.history import BATCH_PRIOR

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
NOW = 1e9


def forecast(observed: Sequence[Observation]) -> ForecastAt:
    """The forecast of batches that began minutes apart: those of one moment count as one."""
    forecaster = Forecaster(BATCH_PRIOR)
    mixed = sorted(random.Random(0).sample(observed, len(observed)), key=lambda seen: seen.at)
    for place, seen in enumerate(mixed):
        forecaster.observe(evolve(seen, at=seen.at - (len(mixed) - place) * 2 * MINUTE))
    return forecaster.at(NOW)


def remaining(
    running: Sequence[RunningBatch], of: Sequence[Observation] = (), *, unsent: Sequence[int] = ()
) -> float | None:
    return remaining_by(running, forecast(of), unsent=unsent)


def left(
    elapsed: float, *, of: Sequence[Observation] = (), size: int = 1000, done: int | None = None
) -> float:
    found = remaining([RunningBatch(size, elapsed, done)], of)
    assert found is not None
    return found


def took(seconds: float, *, times: int = 1, age: float = 0.0, size: int = 1000) -> list[Observation]:
    return [Observation(size, seconds, NOW - age)] * times


def given_up(seconds: float, *, times: int = 1, age: float = 0.0, size: int = 1000) -> list[Observation]:
    return [Observation(size, seconds, NOW - age, ended=False)] * times


class TestBeforeAnythingWasObserved:
    def test_beyond_the_promise_nothing_can_be_said(self) -> None:
        assert remaining([RunningBatch(10, EXPIRY_SECONDS)]) is None
        assert (
            remaining([RunningBatch(10, 5.0), RunningBatch(10, 3 * EXPIRY_SECONDS, done=9)], took(60)) is None
        )
        assert left(EXPIRY_SECONDS - 1) > 0


class TestWhatWasObserved:
    def test_batches_as_before_take_as_long_as_before(self) -> None:
        assert left(0, of=took(600, times=10)) == pytest.approx(600, rel=0.1)
        assert left(0, of=took(5 * HOUR, times=10)) == pytest.approx(5 * HOUR, rel=0.1)

    def test_one_observation_already_counts_more_than_what_is_promised(self) -> None:
        assert left(0, of=took(120)) < left(0) / 3
        assert left(0, of=took(6 * HOUR)) > 3 * left(0)

    def test_batches_of_the_same_size_tell_more_than_others(self) -> None:
        of = [*took(5 * MINUTE, times=3, size=100), *took(2 * HOUR, times=3, size=50_000)]
        assert left(0, of=of, size=100) < left(0, of=of, size=2000) < left(0, of=of, size=50_000)


class TestWhatWasGivenUp:
    def test_batches_that_were_given_up_would_have_taken_longer(self) -> None:
        quick = took(5 * MINUTE, times=4)
        both = [*quick, *given_up(30 * MINUTE, times=12)]
        assert left(0, of=quick) < 6 * MINUTE
        assert left(0, of=both) > 30 * MINUTE
        assert left(10 * MINUTE, of=both) > 20 * MINUTE


class TestProgressTheProviderTells:
    def test_a_batch_faster_than_others_ends_earlier(self) -> None:
        assert left(60, of=took(2 * HOUR, times=10), done=500) == pytest.approx(60)

    def test_a_queue_before_it_is_no_sign_of_a_slow_batch(self) -> None:
        """An hour in the queue, then 1 in 1,000 done: not a thousand hours."""
        assert left(HOUR, of=took(2 * HOUR, times=10), done=1) < 2 * HOUR

    def test_all_done_but_not_ended_is_not_the_end(self) -> None:
        assert left(HOUR, done=1000) == left(HOUR, done=2000) == 1.0

    @given(st.floats(1, EXPIRY_SECONDS - 1), st.integers(1, 1000), st.integers(0, 1000))
    def test_more_done_is_never_more_left(self, elapsed: float, size: int, done: int) -> None:
        done = min(done, size)
        more = left(elapsed, size=size, done=min(size, done + 1))
        assert more <= left(elapsed, size=size, done=done)


class TestAWholeJob:
    def test_batches_next_to_each_other_take_as_long_as_the_last_of_them(self) -> None:
        of = took(600, times=10)
        found = remaining([RunningBatch(1000, 500), RunningBatch(1000, 10), RunningBatch(1000, 300)], of)
        assert found == left(10, of=of)

    def test_batches_still_to_be_sent_come_after_those_that_run(self) -> None:
        of = took(600, times=10)
        running = [RunningBatch(1000, 100), RunningBatch(1000, 100)]
        alone = remaining(running, of)
        two, five = (remaining(running, of, unsent=[1000] * count) for count in (2, 5))
        assert alone is not None
        assert two == pytest.approx(alone + left(0, of=of))
        assert five == pytest.approx(alone + 3 * left(0, of=of))

    def test_it_is_zero_when_nothing_is_left_and_only_then(self) -> None:
        assert remaining([]) == remaining([], took(5)) == 0.0
        assert remaining([], took(0.001, times=50), unsent=[1]) == 1.0
