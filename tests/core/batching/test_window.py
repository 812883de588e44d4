"""When a window closes (A1, A2, A3, A12)."""

from __future__ import annotations

import math

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.batching.request_batch import BatchAccumulator, Waiting, Window

WINDOW = Window(seconds=0.1, max_size=10, min_size=None, max_wait=5.0)
NINE = ((103.0, 9),)
NONE = ()


def waiting(count: int = 1, **changes: object) -> Waiting:
    """Requests whose oldest came at 100 s, while a call of nine is under way for long and none has ended."""
    view = Waiting(
        count=count,
        opened=100.0,
        must_start=math.inf,
        urgent=False,
        flushed=False,
        expected=0,
        newest=0.0,
        last_finished=-math.inf,
        latency=0.0,
        calls=NINE,
    )
    return evolve(view, **changes)


def ready(view: Waiting, now: float = 100.0, window: Window = WINDOW) -> float:
    return BatchAccumulator(window).ready(now, view)


def test_an_idle_lane_sends_at_once() -> None:
    assert ready(waiting(1, calls=NONE)) == 100.0


def test_a_busy_lane_gathers_until_its_window_is_over() -> None:
    assert ready(waiting(2)) == pytest.approx(100.1)


def test_two_that_wait_together_go_early() -> None:
    assert ready(waiting(2, latency=0.05)) == pytest.approx(100.02)
    assert ready(waiting(2, latency=60.0)) == pytest.approx(100.1)


@pytest.mark.parametrize("calls", [NONE, ((100.01, 3),)])
@pytest.mark.parametrize("latency", [0.0, 0.05])
@pytest.mark.parametrize("least", [1, 2, 4])
def test_as_many_as_min_batch_size_go_and_fewer_wait_for_the_window(
    calls: tuple[tuple[float, int], ...], latency: float, least: int
) -> None:
    window = evolve(WINDOW, min_size=least)
    assert ready(waiting(least, calls=calls, latency=latency), window=window) == 100.0
    if least > 1:
        fewer = waiting(least - 1, calls=calls, latency=latency)
        assert ready(fewer, window=window) == pytest.approx(100.1)


def test_as_many_as_any_call_in_flight_do_not_wait_for_it() -> None:
    assert ready(waiting(9, expected=9, latency=0.05)) == 100.0
    assert ready(waiting(8, expected=8, latency=0.05)) == pytest.approx(100.02)


@pytest.mark.parametrize(
    ("count", "end", "goes"),
    [
        (4, 0.03, 0.0375),  # its nine come back soon, and all go together
        (4, 0.038, 0.02),  # too late
        (9, 0.03, 0.0375),
        (9, 0.038, 0.0),
    ],
)
def test_a_call_that_ends_soon_is_waited_for(count: int, end: float, goes: float) -> None:
    view = waiting(count, expected=count, latency=0.05, calls=((100 + end, 9), (100.2, 2)))
    assert ready(view) == pytest.approx(100 + goes)


def test_those_who_waited_when_a_call_ended_go_with_its_callers() -> None:
    back = {"calls": NONE, "expected": 12, "last_finished": 100.0, "newest": 100.0}
    window = evolve(WINDOW, max_size=100)
    assert ready(waiting(8, **back), window=window) > 100.0
    assert ready(waiting(12, **back), window=window) == 100.0


def test_askers_who_were_answered_together_get_a_moment_to_come_back() -> None:
    """After a call of eight, the first request waits until none came for 4 ms, or until all are back."""
    back = {"calls": NONE, "expected": 8, "last_finished": 100.0, "newest": 100.0}
    assert ready(waiting(1, **back)) == pytest.approx(100.004)
    assert ready(waiting(1, **back | {"newest": 100.003})) == pytest.approx(100.007)
    assert ready(waiting(7, **back | {"newest": 100.019})) == pytest.approx(100.02)
    assert ready(waiting(8, **back)) == 100.0


def test_a_request_long_after_a_crowd_goes_at_once() -> None:
    assert ready(waiting(1, calls=NONE, expected=8, last_finished=99.0, newest=100.0, opened=100.0)) <= 100.0


@pytest.mark.parametrize("reason", [{"urgent": True}, {"flushed": True}, {"count": 10}, {"count": 11}])
def test_an_urgent_request_a_flush_or_a_full_batch_closes_the_window(reason: dict[str, object]) -> None:
    count = int(reason.pop("count", 1))  # type: ignore[call-overload]
    assert ready(waiting(count, **reason)) == 100.0


@given(
    count=st.integers(1, 60),
    age=st.floats(0, 100),
    own=st.floats(-10, 100),
    calls=st.lists(st.tuples(st.floats(900, 1300), st.integers(1, 90)), max_size=3),
    expected=st.integers(0, 90),
    latency=st.floats(0, 100),
    seconds=st.floats(0.01, 5),
    max_wait=st.floats(0.5, 30),
    least=st.none() | st.integers(1, 10),
)
def test_no_answer_is_ever_later_than_the_max_wait_of_anybody(
    count: int,
    age: float,
    own: float,
    calls: list[tuple[float, int]],
    expected: int,
    latency: float,
    seconds: float,
    max_wait: float,
    least: int | None,
) -> None:
    window = Window(seconds=seconds, max_size=10, min_size=least, max_wait=max_wait)
    opened, now = 1000.0, 1000.0 + age
    view = waiting(
        count, opened=opened, must_start=opened + own, calls=calls, expected=expected, latency=latency
    )
    at = ready(view, now, window)
    assert at <= now or at <= min(opened + max_wait, opened + own)
    assert not math.isnan(at)
