"""The rate limit: what it delays, what it returns, and how a refusal affects all who share it."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.cooldown import Cooldown
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.reported_limits import Reservation
from smartbatch.core.limits.token_bucket import Bucket


class Top:
    """A random source that always returns the maximum, so that pauses are whole."""

    def random(self) -> float:
        return 1.0


def quota(max_rpm: float | None = None, max_tpm: float | None = None) -> Quota:
    limit = Quota()
    limit.configure(max_rpm, max_tpm, 0.0)
    return limit


costs = st.floats(0.0, 30.0)
gaps = st.floats(0.0, 5.0)


@given(st.floats(1.0, 50.0), st.floats(0.1, 50.0), st.lists(st.tuples(gaps, costs), max_size=60))
def test_no_window_ever_holds_more_than_the_bucket_and_its_refill(
    capacity: float, rate: float, asks: list[tuple[float, float]]
) -> None:
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
def test_a_waiter_may_go_at_the_announced_time(
    capacity: float, rate: float, cost: float, start: float
) -> None:
    bucket = Bucket(capacity, rate, start)
    bucket.take(start, capacity)
    at = bucket.look(start, cost)
    assert bucket.look(at, cost) <= at


@given(st.lists(st.tuples(gaps, costs, st.floats(-30.0, 30.0)), max_size=60))
def test_refunds_never_mint(steps: list[tuple[float, float, float]]) -> None:
    bucket, now, explained = Bucket(20.0, 2.0, 0.0), 0.0, 20.0
    for gap, cost, surplus in steps:
        bucket.take(now, cost)
        now += gap
        bucket.return_surplus(now, min(surplus, cost))
        explained += gap * 2.0 - cost + min(surplus, cost)
        assert bucket.level <= min(20.0, explained + 1e-6)
        explained = min(explained, 20.0)


def test_without_a_limit_or_a_refusal_nothing_is_delayed() -> None:
    """Not even a window: 10,000 calls may be in flight at once."""
    limit = quota()
    for _ in range(10_000):
        assert limit.look(1.0, 1e9) == 1.0
        limit.take(1.0, 1e9)
    assert limit.in_flight == 10_000


def test_tokens_are_reserved_and_settled() -> None:
    limit = quota(max_tpm=6000)  # 5,940 at once, 99.5 a second
    limit.succeeded(limit.take(0.0, 5940), 0.0, 940)
    assert limit.look(0.0, 5000) == 0.0
    limit.succeeded(limit.take(0.0, 5000), 0.0, 5995)
    assert limit.look(0.0, 0.0) == pytest.approx(10.0)
    assert limit.look(0.0, 995) == pytest.approx(20.0)


def test_a_call_above_the_whole_limit_waits_for_a_full_bucket_and_goes() -> None:
    limit = quota(max_tpm=6000)
    limit.failed(limit.take(0.0, 995), 0.0)
    at = limit.look(0.0, 50_000)
    assert at == pytest.approx(10.0)
    limit.take(at, 50_000)
    assert limit.look(at, 1) > at + 400


def test_a_failed_call_keeps_its_request_and_settles_its_tokens() -> None:
    limit = quota(max_rpm=60, max_tpm=6000)
    for _ in range(59):
        limit.failed(limit.take(0.0, 100), 0.0, 0.0)
    assert limit.look(0.0, 5940) == pytest.approx(0.6 / 0.995, abs=0.01)


@given(st.floats(0.0, 5000.0), st.floats(0.0, 1e6))
def test_a_dropped_call_restores_exactly_what_it_took(tokens: float, now: float) -> None:
    limit = quota(max_rpm=60, max_tpm=6000)
    limit.take(now, 3000)
    before = [limit.look(now, cost) for cost in (0, 1000, 3000, 6000)]
    limit.dropped(limit.take(now, tokens), now)
    assert [limit.look(now, cost) for cost in (0, 1000, 3000, 6000)] == pytest.approx(before, abs=1e-6)


def test_limits_configured_again_do_not_refill() -> None:
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


def test_one_refusal_pauses_no_other_call() -> None:
    limit = quota()
    calls = [limit.take(0.0, 0) for _ in range(10)]
    assert limit.refused(calls[0], 1.0, 3600.0, Top()) is None
    assert limit.look(1.0, 0.0) == 1.0


def test_two_percent_of_refusals_at_random_never_pause_all() -> None:
    """In 20,000 calls, 64 at once, there is not one cooldown, and all slots are used."""
    limit, rng = quota(), random.Random(1)
    calls, cooldowns, in_flight, now = deque[Reservation](), 0, 0, 0.0
    for _ in range(20_000):
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
    assert in_flight >= 0.8 * 64 * 20_000


def test_refusals_that_repeat_pause_all_and_retry_after_wins() -> None:
    limit = quota()
    pause = prove(limit, 1.0, 7.0)
    assert (pause.seconds, pause.consecutive, pause.fresh) == (pytest.approx(7.7), 1, True)
    assert limit.look(1.0, 0.0) == pytest.approx(8.7)


def test_pauses_in_a_row_grow_whatever_time_the_server_names() -> None:
    """If the server asks for no wait, all calls wait 0.2 s, then 1 s, 2 s, 4 s."""
    limit = quota()
    assert prove(limit, 1.0, 0.0).seconds == pytest.approx(0.2)
    now, seconds = 1.0, []
    for _ in range(3):
        now = limit.look(now, 0)
        seconds.append(again(limit, now, 0.0).seconds)
    assert seconds == pytest.approx([1.0, 2.0, 4.0])


def test_the_later_of_two_deadlines_holds() -> None:
    limit = quota()
    calls = [limit.take(1.0, 0) for _ in range(6)]
    for call in calls[:4]:
        limit.refused(call, 1.0, 10.0, Top())
    limit.refused(calls[4], 1.5, 2.0, Top())
    assert limit.look(2.0, 0.0) == 12.0
    late = limit.refused(calls[5], 2.0, 20.0, Top())
    assert late is not None
    assert limit.look(2.0, 0.0) == 23.0


def test_old_refusals_do_not_lengthen_the_pause_and_new_ones_do() -> None:
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


def test_a_success_between_two_limits_starts_the_count_anew() -> None:
    limit = quota()
    old = limit.take(0.0, 0)
    prove(limit, 0.1)
    limit.succeeded(old, 0.5, None)
    for at, consecutive in ((1.2, 2), (3.5, 1)):
        pauses = [limit.refused(limit.take(at, 0), at, None, Top()) for _ in range(4)]
        assert pauses[3] is not None
        assert pauses[3].consecutive == consecutive
        limit.succeeded(limit.take(3.5, 0), 3.5, None)


def test_the_pause_ends_in_a_slow_start() -> None:
    """1,000 waiting calls do not start together: two do, and twice as many in each further round."""
    limit = quota()
    prove(limit, 0.0)
    now, rounds = 1.0, []
    for _ in range(5):
        calls = []
        while limit.look(now, 0) <= now:
            calls.append(limit.take(now, 0))
        rounds.append(len(calls))
        now += 0.01
        for call in calls:
            limit.succeeded(call, now, None)
    assert rounds[:2] == [2, 4]
    assert rounds == sorted(rounds)


def test_the_slow_start_does_not_wait_for_slow_answers() -> None:
    """If answers take minutes, the window opens by the clock: 64 calls within about six seconds."""
    limit = quota()
    calls = [limit.take(0.0, 0) for _ in range(64)]
    for call in calls:
        limit.refused(call, 0.1, None, Top())
    now = 1.1
    for _ in range(40):  # beyond 0.7 of those in flight when the limit was proven only answers count
        now = limit.look(now, 0)
        limit.take(now, 0)
    assert 4.0 < now < 7.0


def test_a_lone_refusal_does_not_space_the_calls() -> None:
    limit = quota(max_rpm=6000)
    calls = [limit.take(0.0, 0) for _ in range(4)]
    limit.refused(calls[0], 0.0, None, Top())
    assert limit.spaced_rate is None
    for call in calls[1:]:
        limit.refused(call, 0.0, None, Top())
    assert limit.spaced_rate == pytest.approx(98.8)


def test_the_burst_of_a_configured_limit_is_tried_again() -> None:
    limit, now = quota(max_rpm=600), 0.0
    for call in [limit.take(0.0, 0) for _ in range(4)]:
        limit.refused(call, 0.0, None, Top())
    while limit.spaced_rate is not None:
        now = limit.look(now, 0)
        limit.succeeded(limit.take(now, 0), now, None)
        assert now < 700
    assert now > 590


def test_a_full_window_opens_with_answers_and_slowly_with_time() -> None:
    limit = quota(max_tpm=1e9)
    calls = [limit.take(0.0, 0) for _ in range(4)]
    assert limit.look(0.0, 0) == pytest.approx(math.log2(5 / 4))
    limit.succeeded(calls[0], 0.1, None)
    assert limit.look(0.1, 0) == 0.1


def test_a_reservation_ends_once() -> None:
    limit = quota()
    call = limit.take(0.0, 0)
    limit.succeeded(call, 0.0, None)
    with pytest.raises(RuntimeError):
        limit.dropped(call, 0.0)
    assert limit.in_flight == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "ok", "refused", "failed", "dropped"]), st.floats(0.0, 3.0)),
        max_size=120,
    ),
    st.sampled_from([(None, None), (60, None), (None, 600), (60, 600)]),
    st.integers(),
)
def test_in_any_order_of_events_permits_balance_and_nothing_is_stuck(
    steps: list[tuple[str, float]], configured: tuple[float | None, float | None], seed: int
) -> None:
    limit, rng, now = quota(*configured), random.Random(seed), 0.0
    flying, starts = list[Reservation](), list[float]()
    for step, passed in steps:
        now += passed
        if step == "take":
            if limit.look(now, 20.0) <= now:
                flying.append(limit.take(now, 20.0))
                starts.append(now)
            continue
        if not flying:
            continue
        call = flying.pop(rng.randrange(len(flying)))
        if step == "ok":
            limit.succeeded(call, now, rng.uniform(0.0, 40.0))
        elif step == "refused":
            limit.refused(call, now, rng.choice([None, 0.0, 2.0]), rng)
        elif step == "failed":
            limit.failed(call, now, rng.choice([None, 0.0]))
        else:
            limit.dropped(call, now)
            starts.remove(call.started)
        assert limit.in_flight == len(flying)
    for index, start in enumerate(starts):
        if configured[0] is not None:
            assert all(n + 1 <= 60 + (end - start) + 0.01 for n, end in enumerate(starts[index:]))
    for call in flying:
        limit.failed(call, now)
    at = limit.look(now, 20.0)
    assert at < math.inf
    assert limit.look(at, 20.0) <= at


Answer = Callable[[float, int], tuple[bool, float]]
"""From the time and the calls in flight: whether a call is admitted, and the seconds until it ends."""


def send(limit: Quota, rows: int, wide: int, answer: Answer) -> tuple[float, int]:
    """Send rows until all are answered; return the seconds and the number of refused calls."""
    now, refused, answered = 0.0, 0, 0
    flying: list[tuple[float, int, bool, Reservation]] = []
    numbers = itertools.count()
    while answered < rows:
        while limit.look(now, 0) <= now and len(flying) < wide:
            call = limit.take(now, 0)
            admitted, seconds = answer(now, sum(admitted for _, _, admitted, _ in flying))
            heapq.heappush(flying, (now + seconds, next(numbers), admitted, call))
        at, end = limit.look(now, 0), flying[0][0] if flying else math.inf
        now = end if end <= at or len(flying) >= wide else at
        while flying and flying[0][0] <= now:
            _, _, admitted, call = heapq.heappop(flying)
            if admitted:
                limit.succeeded(call, now, None)
                answered += 1
            else:
                limit.refused(call, now, None, Top())
                refused += 1
    return now, refused


def at_once(most: int) -> Answer:
    return lambda _, under_way: (True, 0.2) if under_way < most else (False, 0.001)


def test_a_cap_on_concurrent_calls_is_found_and_kept() -> None:
    seconds, refused = send(quota(), 2_000, 64, at_once(12))
    assert seconds <= 1.1 * 2_000 / 12 * 0.2
    assert refused <= 0.04 * 2_000


@pytest.mark.parametrize("most", [12, 20])
def test_a_cap_met_at_first_contact_is_no_rate(most: int) -> None:
    limit = quota()
    limit.approach()
    seconds, refused = send(limit, 2_000, 64, at_once(most))
    assert limit.spaced_rate is None
    assert seconds <= 1.1 * 2_000 / most * 0.2 + 4 * 0.2
    assert refused <= 0.04 * 2_000


def test_a_slow_probe_delays_no_other_call() -> None:
    """Refusals arrive within a millisecond; the call that tests a cap of 12 takes 100 s."""
    limit = quota()
    limit.approach()
    refused: list[float] = []
    after: list[float] = []

    def answer(now: float, under_way: int) -> tuple[bool, float]:
        if under_way >= 20:
            refused.append(now)
            return False, 0.001
        if refused and now > refused[0] + 0.001:
            after.append(now)
        return True, 100.0 if len(after) == 1 else 0.2

    seconds, _ = send(limit, 2_000, 64, answer)
    assert after[1] - after[0] <= 2.0
    assert seconds <= 101.0


def test_calls_sent_as_refusals_arrive_are_not_probes() -> None:
    limit = quota()
    calls = [limit.take(0.0, 0) for _ in range(32)]
    limit.failed(calls.pop(), 0.01)
    late = [limit.take(0.01, 0)]
    for call in calls[12:]:
        limit.refused(call, 0.01, None, Top())
    for call in late:
        limit.refused(call, 0.02, None, Top())
    for call in calls[:12]:
        limit.succeeded(call, 0.2, None)
    assert limit.look(0.2, 0) == 0.2, "no cooldown"


def test_random_refusals_do_not_take_away_what_a_cap_lets() -> None:
    """A cap of 12, and 2 % of 429s for another reason, none of which lowers it."""
    rng, capped = random.Random(1), at_once(12)

    def answer(now: float, under_way: int) -> tuple[bool, float]:
        return (False, 0.001) if rng.random() < 0.02 else capped(now, under_way)

    seconds, _ = send(quota(), 1_000, 64, answer)
    assert seconds <= 1.5 * 1_000 / 12 * 0.2


def test_the_burst_of_a_rate_is_never_taken_for_a_cap() -> None:
    """13 at once and then 12.7 per second, with answers of 4 s: a cap of 13 would be 3 per second."""
    bucket = Bucket(13.0, 12.7, 0.0)

    def answer(now: float, _: int) -> tuple[bool, float]:
        if bucket.look(now, 1.0) > now:
            return False, 0.1
        bucket.take(now, 1.0)
        return True, 4.0

    seconds, refused = send(quota(), 300, 64, answer)
    assert seconds <= 45.0, "23 s at best, 92 s with 13 at once"
    assert refused <= 64 + 24
