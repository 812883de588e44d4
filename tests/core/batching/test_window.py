"""When a window closes (A1, A2, A3, A12)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.batching.request_batch import BatchAccumulator, Waiting, Window

WINDOW = Window(seconds=0.1, max_size=10, min_size=None, max_wait=5.0)
IDLE: Any = {"calls": ()}
BACK = IDLE | {"expected": 8, "last_finished": 100.0, "newest": 100.0}
"""A call of eight has just finished, and its callers may submit again."""


def waiting(count: int = 1, **changes: Any) -> Waiting:
    """Requests whose oldest came at 100 s, while a call of nine is under way for long and none has ended."""
    view = Waiting(count, 100.0, math.inf, False, False, 0, 0.0, -math.inf, 0.0, ((103.0, 9),))
    return evolve(view, **changes)


@pytest.mark.parametrize(
    ("count", "view", "window", "goes"),
    [
        pytest.param(0, {}, {}, math.inf, id="nothing waits"),
        pytest.param(1, IDLE, {}, 0.0, id="an idle lane sends at once"),
        pytest.param(2, {}, {}, 0.1, id="a busy lane gathers until its window is over"),
        pytest.param(1, {"latency": 0.05}, {}, 0.1, id="one alone waits for the whole window"),
        pytest.param(2, {"latency": 0.05}, {}, 0.02, id="two wait for two fifths of a call"),
        pytest.param(2, {"latency": 60.0}, {}, 0.1, id="but not beyond the window"),
        pytest.param(
            9, {"expected": 9, "latency": 0.05}, {}, 0.0, id="as many as the largest call do not wait"
        ),
        pytest.param(4, BACK, {}, 0.004, id="callers of a finished call get a moment to return"),
        pytest.param(1, BACK | {"newest": 100.003}, {}, 0.007, id="until none came for 4 ms"),
        pytest.param(7, BACK | {"newest": 100.019}, {}, 0.02, id="for 20 ms at most"),
        pytest.param(8, BACK, {}, 0.0, id="or until all are back"),
        pytest.param(1, BACK | {"latency": 0.24}, {}, 0.024, id="longer if calls take long"),
        pytest.param(5, {}, {"seconds": 5.0, "max_wait": 2.0}, 2.0, id="nobody waits longer than max_wait"),
        pytest.param(1, {"must_start": 100.02}, {}, 0.02, id="a request may have its own max_wait"),
        pytest.param(1, {"urgent": True}, {}, 0.0, id="urgent"),
        pytest.param(1, {"flushed": True}, {}, 0.0, id="flushed"),
        pytest.param(10, {}, {}, 0.0, id="full"),
        pytest.param(1, {}, {"max_size": 1}, 0.0, id="a lane that cannot share calls"),
    ],
)
def test_when_a_window_closes(count, view, window, goes):
    found = BatchAccumulator(evolve(WINDOW, **window)).ready(100.0, waiting(count, **view))
    assert found == pytest.approx(100.0 + goes)


@pytest.mark.parametrize("calls", [(), ((100.01, 3),)])
@pytest.mark.parametrize("latency", [0.0, 0.05])
@pytest.mark.parametrize(
    ("least", "count", "goes"), [(1, 1, 0.0), (2, 2, 0.0), (4, 4, 0.0), (2, 1, 0.1), (4, 3, 0.1)]
)
def test_as_many_as_min_batch_size_go_and_fewer_wait_for_the_window(calls, latency, least, count, goes):
    accumulator = BatchAccumulator(evolve(WINDOW, min_size=least))
    view = waiting(count, calls=calls, latency=latency)
    assert accumulator.ready(100.0, view) == pytest.approx(100.0 + goes)


@pytest.mark.parametrize(
    ("count", "end", "goes"),
    [
        (4, 0.03, 0.0375),  # its nine come back soon, and all go together
        (4, 0.038, 0.02),  # too late
        (9, 0.03, 0.0375),
        (9, 0.038, 0.0),
    ],
)
def test_a_call_that_ends_soon_is_waited_for(count, end, goes):
    """Its callers come back and share one call for good; three quarters of a call are waited."""
    view = waiting(count, expected=count, latency=0.05, calls=((100 + end, 9), (100.2, 2)))
    assert BatchAccumulator(WINDOW).ready(100.0, view) == pytest.approx(100 + goes)


@given(
    view=st.fixed_dictionaries(
        {
            "count": st.integers(1, 60),
            "must_start": st.floats(90, 200),
            "calls": st.lists(st.tuples(st.floats(0, 400), st.integers(1, 90)), max_size=3),
            "expected": st.integers(0, 90),
            "latency": st.floats(0, 100),
        }
    ),
    age=st.floats(0, 100),
    window=st.builds(
        Window, st.floats(0.01, 5), st.just(10), st.none() | st.integers(1, 10), st.floats(0.5, 30)
    ),
)
def test_no_answer_is_ever_later_than_the_max_wait_of_anybody(view, age, window):
    now = 100.0 + age
    at = BatchAccumulator(window).ready(now, waiting(**view))
    assert at <= max(now, min(100.0 + window.max_wait, view["must_start"]))
