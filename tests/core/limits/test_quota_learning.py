"""Reported limits are adopted, followed up and down, and never trusted blindly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.lease import LimitLease
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.reported_bucket import LimitReading, ReportedBucket, SentAround
from smartbatch.core.limits.reported_limits import ReportedLimits, Reservation, Traffic
from smartbatch.types import LimitReport


def answered(quota: Quota, call: Reservation, now: float, report: LimitReport, tokens: float = 0.0) -> None:
    """End a call with success and pass the report of its answer to the quota."""
    quota.succeeded(call, now, tokens)
    quota.learn(report, call, now)


def reported(report: LimitReport) -> Quota:
    """A quota after its first answer."""
    quota = Quota()
    answered(quota, quota.take(0.0, 0.0), 0.0, report)
    return quota


def may_go(quota: Quota, now: float, tokens: float = 0.0, output: float = 0.0) -> int:
    """Take as many calls as may be sent at once; return how many (1,000 at most)."""
    for count in range(1000):
        if quota.look(now, tokens, output) > now:
            return count
        quota.take(now, tokens, output)
    return 1000


def requests(limit: int | None, remaining: int | None, reset: float | None = None) -> LimitReport:
    return LimitReport(requests_limit=limit, requests_remaining=remaining, requests_reset=reset)


def test_a_reported_limit_is_adopted_with_its_remainder():
    """600 per minute, 100 left: 100 may be sent at once, then ten per second."""
    quota = reported(requests(600, 100))
    assert quota.reported_limits == {"requests": 600}
    assert may_go(quota, 0.0) == 100
    assert may_go(quota, 10.0) == 99  # half a per cent is left to the server's clock


def test_calls_that_left_after_the_reported_one_are_taken_off():
    quota = Quota()
    calls = [quota.take(0.0, 0.0) for _ in range(10)]
    answered(quota, calls[0], 0.5, requests(60, 59))
    assert may_go(quota, 0.5) == 50


def test_more_than_the_server_says_is_never_assumed():
    quota = reported(requests(600, 0))
    answered(quota, quota.take(0.1, 0.0), 0.1, requests(600, 300))
    assert may_go(quota, 0.1) == pytest.approx(299, abs=1)


def test_older_news_does_not_overrule_newer():
    quota = Quota()
    first, second = quota.take(0.0, 0.0), quota.take(1.0, 0.0)
    answered(quota, second, 1.1, requests(60, 5))
    answered(quota, first, 9.0, requests(600, 599))
    assert quota.reported_limits == {"requests": 60}
    assert may_go(quota, 9.0) < 15


def test_answers_with_clock_readings_out_of_order_stop_nothing():
    quota = Quota()
    first, second = quota.take(0.0, 0.0), quota.take(0.0, 0.0)
    answered(quota, first, 0.1001, requests(6000, 149, 0.01))
    answered(quota, second, 0.1, requests(6000, 130, 0.18))
    assert quota.look(0.2, 0.0) == 0.2


def test_an_unenforced_limit_delays_nothing_and_is_not_shared():
    """Twice the limit of 60 was answered within a minute."""
    quota = Quota()
    report = LimitReport(requests_limit=60, requests_remaining=9, tokens_limit=6000, tokens_remaining=3000)
    for second in range(42):
        for call in [quota.take(float(second), 0.0) for _ in range(3)]:
            answered(quota, call, float(second), report)
    assert quota.facts(41.0).caps[0] == 0.0 < quota.facts(41.0).caps[1]
    assert quota.look(41.0, 0.0) == 41.0
    quota.lease = LimitLease("one", lambda: None)
    assert quota.take(41.0, 100.0).leased[0] == 0.0


def test_a_configured_limit_remains_an_upper_bound():
    for configured, reported in ((60, 600), (600, 60)):
        quota = Quota()
        quota.configure(configured, None, 0.0)
        answered(quota, quota.take(0.0, 0.0), 0.0, requests(reported, reported - 1))
        assert may_go(quota, 0.0) == pytest.approx(59, abs=1)


def test_a_burst_that_is_announced_needs_no_slow_start():
    """With 600 per minute configured, four may be in flight until the server reports 599 left."""
    quota = Quota()
    quota.configure(600, None, 0.0)
    call = quota.take(0.0, 0.0)
    assert may_go(quota, 0.0) == 3
    answered(quota, call, 0.1, requests(600, 599))
    assert may_go(quota, 0.1) > 500


def test_input_and_output_are_limited_apart():
    quota = Quota()
    report = LimitReport(input_limit=100_000, input_remaining=99_990, output_limit=1000, output_remaining=500)
    answered(quota, quota.take(0.0, 0.0), 0.0, report)
    assert quota.look(0.0, 10_000, 0.0) == 0.0
    assert quota.look(0.0, 1000, 900) > 0.0


def test_figures_rounded_to_thousands_are_believed_to_five_hundred():
    """0 left may mean 499; that neither lowers nor raises the level."""
    quota = Quota()
    for now, left in ((0.0, 40_000), (0.1, 40_000), (0.2, 40_000)):
        report = LimitReport(output_limit=80_000, output_remaining=left)
        answered(quota, quota.take(now, 100, 100), now, report, tokens=100)
    assert quota.look(0.2, 39_000, 39_000) == 0.2
    assert quota.look(0.2, 39_900, 39_900) > 0.2


def test_a_refusal_that_names_a_limit_empties_it_once():
    """64 calls are refused together: ten per second from then on. Further refusals say nothing new."""
    quota, rng = Quota(), random.Random(1)
    calls = [quota.take(0.0, 0.0) for _ in range(64)]
    for call in calls:
        quota.refused(call, 0.1, 2.0, rng, requests(600, None))
    at = quota.look(0.1, 0.0)
    assert 2.1 <= at <= 2.4
    assert may_go(quota, at) == pytest.approx(9.95 * (at - 0.1), abs=1)
    assert quota.spaced_rate is None


def test_a_limit_that_refuses_again_is_spaced():
    quota, rng = Quota(), random.Random(1)
    quota.refused(quota.take(0.0, 0.0), 0.0, 1.0, rng, requests(600, None))
    at = quota.look(0.0, 0.0)
    quota.refused(quota.take(at, 0.0), at, 1.0, rng, requests(600, None))
    assert may_go(quota, at + 30.0) <= 2


@pytest.mark.parametrize("left", [0, 300])
def test_a_refusal_that_a_reported_limit_explains_proves_no_other(left):
    quota, rng = reported(requests(600, 599)), random.Random(1)
    for call in [quota.take(0.0, 0.0) for _ in range(64)]:
        quota.refused(call, 0.1, 0.1, rng, requests(600, left))
    assert (quota.spaced_rate is None) is (left == 0)
    assert (may_go(quota, 10.0) > 60) is (left == 0)


def test_a_debt_is_never_longer_than_two_minutes():
    quota = Quota()
    first = quota.take(0.0, 8000, 8000)
    for _ in range(63):
        quota.take(0.0, 8000, 8000)
    answered(quota, first, 0.0, LimitReport(tokens_limit=10_000, tokens_remaining=2000), tokens=8000)
    assert quota.look(0.0, 1000, 0.0) <= 121.0


def test_what_the_server_charges_beyond_the_estimate_is_learned():
    """1,000 tokens are charged where 100 are expected: of 5,000, five calls are sent, not fifty."""
    quota, left, now = Quota(), 100_000, 0.0
    while left > 6000:
        now += 1e-6
        left -= 1000
        call = quota.take(now, 100.0, 90.0)
        answered(quota, call, now, LimitReport(tokens_limit=100_000, tokens_remaining=left), tokens=80)
    assert may_go(quota, now, 100.0, 90.0) in (5, 6)


def test_a_call_that_was_not_sent_is_given_back_to_the_reported_limits():
    quota = reported(requests(600, 1))
    call = quota.take(0.0, 0.0)
    assert quota.look(0.0, 0.0) > 0.0
    quota.dropped(call, 0.0)
    assert quota.look(0.0, 0.0) == 0.0


counts = st.none() | st.integers(0, 10_000)
seconds = st.none() | st.floats(0.0, 1e6)
reports = st.builds(
    LimitReport,
    requests_limit=counts,
    requests_remaining=counts,
    requests_reset=seconds,
    tokens_limit=counts,
    tokens_remaining=counts,
    tokens_reset=seconds,
    input_limit=counts,
    output_remaining=counts,
    output_reset=seconds,
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "ok", "refused", "failed", "dropped"]), st.floats(0.0, 3.0), reports
        ),
        max_size=80,
    ),
    st.sampled_from([(None, None), (60, None), (None, 600), (60, 600)]),
    st.integers(),
)
def test_in_any_order_of_events_and_reports_nothing_is_stuck(steps, configured, seed):
    quota, rng, now = Quota(), random.Random(seed), 0.0
    quota.configure(*configured, now)
    flying, starts = list[Reservation](), list[float]()
    for step, passed, report in steps:
        now += passed
        if step == "take":
            if quota.look(now, 120.0, 20.0) <= now:
                flying.append(quota.take(now, 120.0, 20.0))
                starts.append(now)
            continue
        if not flying:
            continue
        call = flying.pop(rng.randrange(len(flying)))
        if step == "refused":
            quota.refused(call, now, rng.choice([None, 0.0, 2.0]), rng, report)
        elif step == "dropped":
            quota.dropped(call, now)
            starts.remove(call.started)
        else:
            end = quota.succeeded if step == "ok" else quota.failed
            end(call, now, rng.choice([None, 0.0, 300.0]))
            quota.learn(report, call, now)
        assert quota.in_flight == len(flying)
    if configured[0] is not None:
        for index, start in enumerate(starts):
            assert all(n + 1 <= 60 + (end - start) + 0.01 for n, end in enumerate(starts[index:]))
    for call in flying:
        quota.failed(call, now, 0.0, 0.0)
    for _ in range(3):  # a look may be configured to come back, but not for ever
        at = quota.look(now, 120.0, 20.0)
        assert at < now + 1e9
        now = at
    assert quota.look(now, 120.0, 20.0) <= now


@pytest.mark.parametrize(
    ("left", "reset", "limits"),
    [
        (100, 30.0, {"requests": 200.0}),
        (100, 50.0, {"requests": 600.0}),
        (100, 50.1, {}),
        (100, 0.0, {}),
        (0, 30.0, {}),
    ],
)
def test_a_reset_implies_a_limit_up_to_fifty_seconds(left, reset, limits):
    quota = reported(requests(None, left, reset))
    assert quota.reported_limits == pytest.approx(limits)


@pytest.mark.parametrize(
    ("left", "reset", "capacity", "rate"),
    [
        (0, 60.0, 600.0, 10.0),
        (0, 66.0, 600.0, 10.0),
        (0, 66.1, 600.0, 600.0 / 66.1),
        (300, 66.1, 600.0, 300.0 / 66.1),
        (600, 66.1, 600.0, 10.0),
        (0, 54.0, 600.0, 10.0),
        (0, 53.9, 539.0, 10.0),
        (50, 5.0, 100.0, 10.0),
        (0, 0.01, 1.0, 10.0),
    ],
)
def test_a_reset_reveals_a_slower_refill_or_a_smaller_bucket(left, reset, capacity, rate):
    bucket = ReportedBucket(600.0, 0.0)
    sent = SentAround(0.0, 1, 1.0, 0.0, 0.0, 0.0, 0, 0, blurred=False)
    bucket.learn(LimitReading(600.0, left, reset), sent, 0.0)
    assert bucket.bucket.capacity == pytest.approx(capacity, rel=0.011)
    assert bucket.bucket.rate == pytest.approx(rate, rel=0.006)


@pytest.mark.parametrize(
    ("answers", "goes"), [(63, False), (64, True), (120, True), (121, True)], ids=lambda value: str(value)
)
def test_answers_beyond_a_limit_make_it_suspect_then_disprove_it(answers, goes):
    limits, traffic = ReportedLimits(), Traffic()
    call = Reservation(0.0, 0.0, 0.0)
    traffic.start(call)
    limits.learn(LimitReport(requests_limit=60, requests_remaining=0), call, traffic, 0.0)
    for _ in range(answers):
        traffic.accept(0.0)
        limits.accepted(traffic, 0.0)
    for _ in range(10):
        limits.take(0.0, call)
    assert (limits.look(1.25, 0.0, 0.0) == 1.25) is goes
    assert (limits.look(1.0, 0.0, 0.0) == 1.0) is (answers > 120)
    limits.confirm()
    assert limits.look(1.25, 0.0, 0.0) > 1.25
