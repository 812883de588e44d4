"""Doubts about a learned rate, and the trial that ends them."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.header_limits import Reservation
from smartbatch.core.limits.rate_trial import RateTrial


def sent(order: int) -> Reservation:
    call = Reservation(0.0, 0.0, 0.0)
    call.order = order
    return call


def on_trial(trial: RateTrial, calls: int = 10) -> RateTrial:
    """Doubt a rate of 5 a second until a trial begins with the next call."""
    while not trial.doubt(5.0, calls, 0.0):
        pass
    return trial


def doubts(trial: RateTrial) -> int:
    """How many refusals it takes to begin a trial."""
    return next(count for count in range(1, 99) if trial.doubt(5.0, 10, 0.0))


def confirmed(times: int) -> RateTrial:
    """Trials that showed a limit."""
    trial = RateTrial()
    for _ in range(times):
        on_trial(trial)
        while not trial.refused(sent(11)):
            pass
    return trial


@pytest.mark.parametrize(("times", "needed"), [(0, 3), (1, 3), (2, 6), (3, 12)])
def test_each_trial_but_the_first_that_showed_a_limit_doubles_the_doubts_it_takes(
    times: int, needed: int
) -> None:
    trial = confirmed(times)
    assert trial.is_noisy is (times > 1)
    assert doubts(trial) == needed
    assert trial.good == 5.0


def test_four_refusals_more_than_a_quarter_of_the_answers_end_a_trial() -> None:
    trial = on_trial(RateTrial())
    assert not trial.refused(sent(10))  # before it began
    for order in range(11, 14):
        assert not trial.refused(sent(order))
    for order in range(14, 18):  # four answers outweigh one
        assert trial.accepted(sent(order), 20.0, 17, 0.5) == 0.0
    assert not trial.refused(sent(18))
    assert trial.refused(sent(19))
    assert trial.good == 0.0


def test_answers_of_calls_from_before_a_trial_are_no_part_of_it() -> None:
    trial = on_trial(RateTrial())
    for _ in range(50):
        assert trial.accepted(sent(10), 20.0, 12, 5.0) == 0.0
    for _ in range(11):
        assert trial.accepted(sent(11), 20.0, 12, 5.0) == 0.0
    assert trial.accepted(sent(12), 20.0, 12, 5.0) == 80.0
    assert trial.good == 20.0
    assert trial.accepted(sent(12), 80.0, 12, 9.0) == 0.0  # of the step before


def test_trust_ends_trial_and_doubts() -> None:
    trial = RateTrial()
    trial.doubt(5.0, 10, 0.0)
    trial.doubt(5.0, 10, 0.0)
    trial.trust()
    assert doubts(trial) == 3
    trial.trust()
    assert trial.good == 0.0


@pytest.mark.parametrize(("answers", "needed"), [(0, 1), (1, 2), (190, 2), (210, 3)])
def test_two_hundred_answers_outweigh_a_doubt(answers: int, needed: int) -> None:
    trial = RateTrial()
    for _ in range(2):
        trial.doubt(5.0, 10, 0.0)
    for _ in range(answers):
        trial.accepted(sent(1), 5.0, 10, 0.0)
    assert doubts(trial) == needed


@pytest.mark.parametrize(("answers", "tolerated"), [(0, 0), (1, 1), (6, 1), (7, 2)])
def test_where_some_are_refused_at_random_seven_answers_outweigh_one(answers: int, tolerated: int) -> None:
    trial = confirmed(2)
    assert trial.tolerates()
    assert trial.tolerates()
    for _ in range(answers):
        trial.accepted(sent(1), 5.0, 10, 0.0)
    assert next(count for count in range(9) if not trial.tolerates()) == tolerated
    assert trial.tolerates()  # it begins anew
