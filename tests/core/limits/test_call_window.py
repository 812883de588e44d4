"""The most calls in flight: how the window shrinks after refusals, and how it widens again."""

from __future__ import annotations

import math

import pytest

from smartbatch.core.limits.call_window import CallWindow
from smartbatch.core.limits.header_limits import Reservation


def proven(in_flight: int) -> CallWindow:
    """A window of which a limit was proven with so many calls in flight."""
    window = CallWindow()
    window.proven(in_flight)
    return window


def filled(window: CallWindow, now: float) -> Reservation:
    """A call that was sent when the window was full."""
    window.took(math.ceil(window.size), now)
    return Reservation(now, 0.0, 0.0)


@pytest.mark.parametrize(
    ("in_flight", "opens"), [(2, 10.585), (3, 11.0), (5, 11.585), (6, 11.807), (7, math.inf), (8, math.inf)]
)
def test_after_a_cooldown_it_doubles_each_second_up_to_seven_tenths(in_flight: int, opens: float) -> None:
    """From two on; ten were in flight when a limit was proven."""
    window = proven(10)
    window.restart(10, first=False)
    assert window.size == 2.0
    assert window.opens(5.0, in_flight, 10.0) == pytest.approx(opens, abs=1e-3)
    assert window.opens(20.0, 2, 10.0) == 20.0


@pytest.mark.parametrize(
    ("limit", "peak", "first", "size"),
    [(None, 20, True, 2.0), (30, 20, True, 14.0), (30, 20, False, 2.0), (30, 2, True, 2.0)],
)
def test_near_a_limit_that_was_proven_before_it_only_shrinks(
    limit: int | None, peak: int, first: bool, size: float
) -> None:
    window = CallWindow() if limit is None else proven(limit)
    window.restart(peak, first=first)
    assert window.size == size


@pytest.mark.parametrize(("in_flight", "size"), [(10, 7.0), (4, 2.8), (2, 2.0), (1, 2.0)])
def test_a_lone_refusal_takes_three_tenths_of_the_calls_in_flight(in_flight: int, size: float) -> None:
    window = CallWindow()
    window.give_way(in_flight, 3.0)
    assert window.size == pytest.approx(size)
    assert window.narrowed_at == 3.0
    assert window.opens(3.0, in_flight, -math.inf) == pytest.approx(3.0 + math.log2((in_flight + 1) / size))
    window.give_way(in_flight, 4.0)
    assert window.size == pytest.approx(max(2.0, 0.7 * size))  # of what it let, where that was less


def test_each_answer_of_a_full_window_widens_it_by_one_call_and_near_the_limit_by_a_part() -> None:
    window = proven(10)
    window.restart(10, first=False)
    sizes = []
    for second in range(7):
        window.let_through(filled(window, float(second)), float(second))
        sizes.append(window.size)
    assert sizes[:5] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert sizes[5:] == pytest.approx([7 + 1 / 7, 7 + 1 / 7 + 1 / (7 + 1 / 7)])
    window.let_through(Reservation(6.5, 0.0, 0.0), 6.5)  # sent when it was not full
    assert window.size == sizes[-1]


def test_the_burst_of_a_told_limit_is_proven_by_half_a_call_for_each_answer() -> None:
    window = CallWindow()
    window.prove_burst()
    assert window.is_proving
    assert (window.size, window.opens(0.0, 4, -math.inf)) == (4.0, math.inf)
    window.let_through(filled(window, 0.0), 0.5)
    assert window.size == 4.5
    window.open()
    assert not window.is_proving
    assert window.size == math.inf


def test_a_limit_that_was_none_is_not_approached_again() -> None:
    window = proven(10)
    window.restart(10, first=False)
    window.disprove()
    assert window.size == math.inf
    window.restart(10, first=True)
    assert window.size == 2.0
    assert window.opens(0.0, 100, 0.0) < math.inf
