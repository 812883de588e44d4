"""Features that are left off for a while after they failed."""

from __future__ import annotations

from smartbatch.core.limits.suspension import Suspension


def test_a_suspension_ends_once_and_begins_a_trial() -> None:
    suspension = Suspension()
    assert suspension.until(5.0) == 5.0
    assert suspension.begin(10.0) == Suspension.FIRST
    assert suspension.active
    assert suspension.until(10.0) == 10.0 + Suspension.FIRST
    assert not suspension.end(69.0)
    assert suspension.end(70.0)
    assert (suspension.active, suspension.trial) == (False, True)
    assert not suspension.end(71.0)


def test_suspensions_double_up_to_the_longest_until_one_trial_succeeds() -> None:
    suspension, now, lengths = Suspension(), 0.0, []
    for _ in range(8):
        lengths.append(suspension.begin(now))
        now = suspension.until(now)
        assert suspension.end(now)
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    suspension.proven()
    assert not suspension.trial
    assert suspension.begin(now) == Suspension.FIRST


def test_a_permanent_failure_suspends_for_the_longest_time_at_once() -> None:
    assert Suspension().begin(0.0, longest=True) == Suspension.LONGEST
