"""The rate limit: what it delays, what it returns, and how a refusal affects all who share it."""

from __future__ import annotations

import random
from collections import deque

import pytest
from core.limits.limit_server import Top
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.cooldown import Cooldown
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.reported_limits import Reservation
from smartbatch.core.limits.token_bucket import Bucket


def quota(max_rpm: float | None = None, max_tpm: float | None = None) -> Quota:
    limit = Quota()
    limit.configure(max_rpm, max_tpm, 0.0)
    return limit


costs = st.floats(0.0, 30.0)
gaps = st.floats(0.0, 5.0)


@given(st.floats(1.0, 50.0), st.floats(0.1, 50.0), st.lists(st.tuples(gaps, costs), max_size=60))
def test_no_window_ever_holds_more_than_the_bucket_and_its_refill(capacity, rate, asks):
    bucket, now, taken = Bucket(capacity, rate, 0.0), 0.0, list[tuple[float, float]]()
    for gap, cost in asks:
        now += gap
        cost = min(cost, capacity)
        now = max(now, bucket.look(now, cost)) if gap < 1.0 else now
        if bucket.look(now, cost) <= now:
            bucket.take(now, cost)
            taken.append((now, cost))
    for first, (start, _) in enumerate(taken):
        total = 0.0
        for end, cost in taken[first:]:
            total += cost
            assert total <= capacity + rate * (end - start) + 0.01


@given(st.floats(1e-3, 1e7), st.floats(1e-3, 1e6), costs, st.floats(0.0, 1e7))
def test_a_waiter_may_go_at_the_announced_time(capacity, rate, cost, start):
    bucket = Bucket(capacity, rate, start)
    bucket.take(start, capacity)
    at = bucket.look(start, cost)
    assert bucket.look(at, cost) <= at


@given(st.lists(st.tuples(gaps, costs, st.floats(-30.0, 30.0)), max_size=60))
def test_refunds_never_mint(steps):
    bucket, now, explained = Bucket(20.0, 2.0, 0.0), 0.0, 20.0
    for gap, cost, surplus in steps:
        bucket.take(now, cost)
        now += gap
        bucket.return_surplus(now, min(surplus, cost))
        explained += gap * 2.0 - cost + min(surplus, cost)
        assert bucket.level <= min(20.0, explained + 1e-6)
        explained = min(explained, 20.0)


def test_without_a_limit_or_a_refusal_nothing_is_delayed():
    """Not even a window: 10,000 calls may be in flight at once."""
    limit = quota()
    for _ in range(10_000):
        assert limit.look(1.0, 1e9) == 1.0
        limit.take(1.0, 1e9)
    assert limit.in_flight == 10_000


def test_tokens_are_reserved_and_settled():
    limit = quota(max_tpm=6000)  # 5,940 at once, 99.5 a second
    limit.succeeded(limit.take(0.0, 5940), 0.0, 940)
    assert limit.look(0.0, 5000) == 0.0
    limit.succeeded(limit.take(0.0, 5000), 0.0, 5995)
    assert limit.look(0.0, 0.0) == pytest.approx(10.0)
    assert limit.look(0.0, 995) == pytest.approx(20.0)


def test_a_call_above_the_whole_limit_waits_for_a_full_bucket_and_goes():
    limit = quota(max_tpm=6000)
    limit.failed(limit.take(0.0, 995), 0.0)
    at = limit.look(0.0, 50_000)
    assert at == pytest.approx(10.0)
    limit.take(at, 50_000)
    assert limit.look(at, 1) > at + 400


def test_limits_configured_again_do_not_refill():
    limit = quota(max_rpm=60)
    for _ in range(59):
        limit.take(0.0, 0.0)
    limit.configure(None, None, 0.0)
    limit.configure(60, None, 0.0)
    assert limit.look(0.0, 0.0) > 0.0


def prove(limit: Quota, at: float, retry_after: float | None = None) -> Cooldown:
    """Let four consecutive calls be refused, which is a proof, and return the cooldown of the last."""
    calls = [limit.take(at, 0) for _ in range(4)]
    pauses = [limit.refused(call, at, retry_after, Top()) for call in calls]
    assert pauses[:3] == [None, None, None]
    assert pauses[3] is not None
    return pauses[3]


def again(limit: Quota, at: float, retry_after: float | None = None) -> Cooldown:
    """Let a call be refused that was sent after a cooldown."""
    pause = limit.refused(limit.take(at, 0), at, retry_after, Top())
    assert pause is not None
    return pause


def test_two_percent_of_refusals_at_random_never_pause_all():
    """In 5,000 calls, 64 at once, there is not one cooldown, and all slots are used."""
    limit, rng = quota(), random.Random(1)
    calls, cooldowns, in_flight, now = deque[Reservation](), 0, 0, 0.0
    for _ in range(5_000):
        now += 0.001
        while len(calls) < 64 and limit.look(now, 0.0) <= now:
            calls.append(limit.take(now, 0))
        in_flight += len(calls)
        call = calls.popleft()
        if rng.random() < 0.02:
            cooldowns += limit.refused(call, now, None, rng) is not None
        else:
            limit.succeeded(call, now, None)
    assert cooldowns == 0
    assert in_flight >= 0.8 * 64 * 5_000


def test_pauses_in_a_row_grow_whatever_time_the_server_names():
    """If the server asks for no wait, all calls wait 0.2 s, then 1 s, 2 s, 4 s."""
    limit = quota()
    assert prove(limit, 1.0, 0.0).seconds == pytest.approx(0.2)
    now, seconds = 1.0, []
    for _ in range(3):
        now = limit.look(now, 0)
        seconds.append(again(limit, now, 0.0).seconds)
    assert seconds == pytest.approx([1.0, 2.0, 4.0])


def test_old_refusals_do_not_lengthen_the_pause_and_new_ones_do():
    """64 calls refused together are one event: 1 s. Refusals after the pause: 2 s, 4 s, … 60 s."""
    limit = quota()
    together = [limit.take(0.0, 0) for _ in range(64)]
    pauses = [limit.refused(call, 0.5, None, Top()) for call in together]
    assert pauses[:3] == [None] * 3, "four that were sent one after the other are a proof"
    assert [pause.fresh for pause in pauses[3:] if pause is not None] == [True] + [False] * 60
    now, seconds = 0.5, []
    for _ in range(8):
        now = limit.look(now, 0)
        seconds.append(again(limit, now).seconds)
    assert seconds == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_the_burst_of_a_configured_limit_is_tried_again():
    limit, now = quota(max_rpm=600), 0.0
    for call in [limit.take(0.0, 0) for _ in range(4)]:
        limit.refused(call, 0.0, None, Top())
    while limit.spaced_rate is not None:
        now = limit.look(now, 0)
        limit.succeeded(limit.take(now, 0), now, None)
        assert now < 700
    assert now > 590


def test_a_reservation_ends_once():
    limit = quota()
    call = limit.take(0.0, 0)
    limit.succeeded(call, 0.0, None)
    with pytest.raises(RuntimeError):
        limit.dropped(call, 0.0)
    assert limit.in_flight == 0
