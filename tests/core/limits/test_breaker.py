"""The circuit breaker against its table of transitions, and against a simple model."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from smartbatch.core.limits.breaker import LEGAL, BreakerState, CircuitBreaker, Outcome, Permit

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
OK, FAIL, IGNORED = Outcome.SUCCESS, Outcome.FAILURE, Outcome.IGNORED


class Top:
    """A random source that always returns the most, so that pauses are whole."""

    def random(self) -> float:
        return 1.0


def call(breaker: CircuitBreaker, now: float, outcome: Outcome) -> None:
    breaker.end(breaker.take(now, now + 10.0), now, outcome, Top())


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(5):
        call(breaker, now, FAIL)
    assert breaker.state is OPEN
    return breaker


def test_five_failures_in_a_row_open_it_and_say_so() -> None:
    """The change comes back from the end of the call that caused it."""
    breaker = CircuitBreaker()
    for _ in range(4):
        call(breaker, 0.0, FAIL)
    assert breaker.look(0.0) == 0.0
    change = breaker.end(breaker.take(0.0, 9.0), 0.0, FAIL, Top())
    assert change is not None
    assert (change.before, change.after, change.reason) == (CLOSED, OPEN, "5 failures in a row")
    assert breaker.look(0.0) == 1.0
    assert breaker.changes() == []


def test_a_success_breaks_the_row_but_not_the_share() -> None:
    """Half of the last 20 calls, ten at least, open it as well."""
    breaker = CircuitBreaker()
    for _ in range(9):
        call(breaker, 0.0, FAIL)
        call(breaker, 0.0, OK)
    assert breaker.state is CLOSED
    call(breaker, 0.0, FAIL)
    assert breaker.state is OPEN


def test_what_says_nothing_about_the_provider_never_opens_it() -> None:
    """A thousand wrong requests are the caller's affair."""
    breaker = CircuitBreaker()
    for _ in range(1000):
        call(breaker, 0.0, IGNORED)
    assert breaker.state is CLOSED


def test_late_failures_of_calls_under_way_do_not_lengthen_the_pause() -> None:
    """Of 64 calls in flight five open it; the other 59 are old news."""
    breaker = CircuitBreaker()
    permits = [breaker.take(0.0, 99.0) for _ in range(64)]
    for permit in permits:
        breaker.end(permit, 0.5, FAIL, Top())
    assert breaker.look(0.5) == 1.5


def test_a_late_success_does_not_close_it() -> None:
    """Only a probe may."""
    breaker = CircuitBreaker()
    early = breaker.take(0.0, 99.0)
    for _ in range(5):
        call(breaker, 0.0, FAIL)
    breaker.end(early, 0.5, OK, Top())
    assert breaker.state is OPEN


def test_calls_of_an_earlier_time_have_no_say_later() -> None:
    """Neither while a probe is out, nor after it closed the breaker again."""
    breaker = CircuitBreaker()
    old = [breaker.take(0.0, 99.0) for _ in range(20)]
    for permit in old[:5]:
        breaker.end(permit, 0.0, FAIL, Top())
    probe = breaker.take(1.0, 31.0)
    assert breaker.end(old[5], 1.5, OK, Top()) is None
    assert breaker.state is HALF_OPEN
    breaker.end(probe, 2.0, OK, Top())
    for permit in old[6:]:
        breaker.end(permit, 2.5, FAIL, Top())
    assert breaker.state is CLOSED


def test_one_probe_goes_and_its_success_closes() -> None:
    """While the probe is out the others wait for it, until its deadline at most."""
    breaker = opened()
    assert breaker.look(1.0) == 1.0
    probe = breaker.take(1.0, 31.0)
    assert [change.after for change in breaker.changes()] == [HALF_OPEN]
    assert breaker.look(1.0) == 31.0
    change = breaker.end(probe, 2.0, OK, Top())
    assert change is not None
    assert change.after is CLOSED
    assert breaker.look(2.0) == 2.0


def test_pauses_double_up_to_the_longest_and_start_anew_after_closing() -> None:
    """1, 2, 4, 8, 15, 15 seconds; after a recovery 1 again."""
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(6):
        pauses.append(breaker.look(now) - now)
        now = breaker.look(now)
        call(breaker, now, FAIL)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    now = breaker.look(now)
    call(breaker, now, OK)
    for _ in range(5):
        call(breaker, now, FAIL)
    assert breaker.look(now) - now == 1.0


def test_pauses_are_spread_between_half_and_whole() -> None:
    """Breakers of many processes do not probe in step."""
    pauses = []
    for seed in range(200):
        breaker, rng = CircuitBreaker(), random.Random(seed)
        for _ in range(5):
            breaker.end(breaker.take(0.0, 9.0), 0.0, FAIL, rng)
        pauses.append(breaker.look(0.0))
    assert 0.5 <= min(pauses) < 0.55
    assert 0.95 < max(pauses) <= 1.0


def test_a_probe_that_never_comes_back_counts_as_failed() -> None:
    """It is not half-open for ever, and a probe that comes back later is ignored."""
    breaker = opened()
    lost = breaker.take(1.0, 31.0)
    assert breaker.look(30.9) == 31.0
    assert breaker.look(31.0) == 33.0
    assert [change.after for change in breaker.changes()] == [HALF_OPEN, OPEN]
    assert breaker.end(lost, 32.0, OK, Top()) is None
    assert breaker.state is OPEN


def test_a_probe_that_said_nothing_makes_room_for_the_next() -> None:
    """A cancelled probe or one that was refused for the limit decides nothing."""
    breaker = opened()
    call(breaker, 1.0, IGNORED)
    assert breaker.state is HALF_OPEN
    assert breaker.look(1.0) == 1.0


def test_a_permanent_error_stops_until_its_time_and_then_asks_once() -> None:
    """A wrong key holds everything with its error; afterwards one call finds out whether it still is."""
    breaker, error = CircuitBreaker(), RuntimeError("key refused")
    change = breaker.stop(error, 0.0, 60.0)
    assert change is not None
    assert (breaker.stopped(59.0), breaker.look(0.0)) == (error, 60.0)
    assert breaker.stopped(60.0) is None
    probe = breaker.take(60.0, 90.0)
    assert breaker.look(60.0) == 90.0
    breaker.end(probe, 61.0, OK, Top())
    assert breaker.state is CLOSED


def test_a_permit_ends_once_and_is_only_given_when_look_said_go() -> None:
    """Both mistakes of a caller are loud."""
    breaker = CircuitBreaker()
    permit = breaker.take(0.0, 9.0)
    breaker.end(permit, 0.0, OK, Top())
    with pytest.raises(RuntimeError):
        breaker.end(permit, 0.0, OK, Top())
    with pytest.raises(RuntimeError):
        opened().take(0.5, 9.0)


class AgainstModel(RuleBasedStateMachine):
    """The same events given to the breaker and to a model of a dozen lines without epochs, bits or jitter."""

    @initialize()
    def begin(self) -> None:
        self.breaker, self.now, self.flying = CircuitBreaker(), 0.0, list[tuple[Permit, int]]()
        self.state, self.era, self.outcomes = CLOSED, 0, list[bool]()
        self.pause, self.until, self.probe_by = 1.0, 0.0, 0.0

    def turn(self, state: BreakerState) -> None:
        self.state, self.era, self.outcomes = state, self.era + 1, []
        if state is OPEN:
            self.until, self.pause = self.now + self.pause, min(self.pause * 2, 15.0)
        elif state is CLOSED:
            self.pause = 1.0

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.state is HALF_OPEN and self.probe_by <= self.now and self.probing():
            self.turn(OPEN)

    def probing(self) -> bool:
        return any(era == self.era for _, era in self.flying)

    @rule()
    def send(self) -> None:
        if self.breaker.look(self.now) > self.now:
            return
        if self.state is OPEN:
            self.turn(HALF_OPEN)
        self.probe_by = self.now + 5.0
        self.flying.append((self.breaker.take(self.now, self.probe_by), self.era))

    @rule(outcomes=st.lists(st.sampled_from([FAIL, FAIL, FAIL, OK]), min_size=5, max_size=12))
    def send_and_finish_many(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            before = len(self.flying)
            self.send()
            if len(self.flying) > before:
                self.finish(outcome, before)

    @rule(outcome=st.sampled_from(Outcome), index=st.integers(0, 50))
    def finish(self, outcome: Outcome, index: int) -> None:
        if not self.flying:
            return
        permit, era = self.flying.pop(index % len(self.flying))
        before = self.breaker.state
        change = self.breaker.end(permit, self.now, outcome, Top())
        assert (change is not None) == (before is not self.breaker.state)
        assert change is None or (change.before, change.after) in LEGAL
        if era != self.era or outcome is IGNORED:
            return
        if self.state is HALF_OPEN:
            self.turn(CLOSED if outcome is OK else OPEN)
            return
        self.outcomes.append(outcome is FAIL)
        last = self.outcomes[-20:]
        row = len(self.outcomes) >= 5 and all(self.outcomes[-5:])
        if outcome is FAIL and (row or (sum(last) >= 10 and sum(last) >= len(last) / 2)):
            self.turn(OPEN)

    @invariant()
    def agrees(self) -> None:
        look = self.breaker.look(self.now)
        assert self.breaker.state is self.state
        assert all((change.before, change.after) in LEGAL for change in self.breaker.changes())
        if self.state is CLOSED:
            assert look == self.now
        elif self.state is OPEN:
            assert look == max(self.now, self.until)
        else:
            assert look == (self.probe_by if self.probing() else self.now)


TestAgainstModel = AgainstModel.TestCase
