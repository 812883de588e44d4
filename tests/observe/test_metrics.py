"""The figures of a client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_events import ManualClock, called, ended, retry, started, submitted

from smartbatch.events import (
    BreakerChanged,
    ClientStarted,
    ClientStopped,
    CooldownStarted,
    Event,
    JobResultsStored,
    ParameterDropped,
    ShardChanged,
    SharedLimitsLost,
    SharedLimitsRestored,
)
from smartbatch.jobs.shard_records import ShardState
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.metrics_snapshot import METRICS, MetricsSnapshot, RouteFigures
from smartbatch.types import NO_USAGE, Priority, Route, Usage
from tests.threads_together import run_together


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def metrics(clock):
    return BatchMetrics(max_batch_size=10, now=clock)


def feed(metrics: BatchMetrics, *events: Event) -> MetricsSnapshot:
    for event in events:
        metrics(event)
    return metrics.snapshot()


def balanced(s: MetricsSnapshot) -> bool:
    return s.submitted == s.waiting + s.in_flight + s.succeeded + s.failed + s.cancelled


def test_a_request_moves_from_waiting_to_in_flight_to_succeeded(metrics):
    s = feed(metrics, submitted())
    assert (s.submitted, s.waiting, s.in_flight, s.total) == (1, 1, 0, 0)
    s = feed(metrics, started())
    assert (s.waiting, s.in_flight) == (0, 1)
    s = feed(metrics, called())
    assert (s.waiting, s.in_flight) == (1, 0)
    s = feed(metrics, ended())
    assert (s.waiting, s.in_flight, s.succeeded, s.total) == (0, 0, 1, 1)


events = st.lists(
    st.one_of(
        st.builds(submitted, priority=st.sampled_from(Priority), joined=st.booleans()),
        st.builds(started, size=st.integers(1, 20)),
        st.builds(called, size=st.integers(1, 20), error=st.sampled_from([None, "timeout", "odd"])),
        st.builds(ended, priority=st.sampled_from(Priority), ok=st.booleans(), cancelled=st.booleans()),
        st.just("reset"),
    ),
    max_size=60,
)


@given(events)
def test_submitted_is_always_the_sum_of_its_parts(happened):
    metrics = BatchMetrics(now=ManualClock())
    for event in happened:
        if isinstance(event, str):
            metrics.reset()
        else:
            metrics(event)
        s = metrics.snapshot()
        assert balanced(s)
        assert min(s.waiting, s.in_flight, s.submitted) >= 0
        assert sum(s.by_priority.values()) == s.submitted
        assert 0 <= s.efficiency <= 1


def test_efficiency_is_fullness_times_the_share_that_shared(metrics):
    assert feed(metrics, started(8), started(2)).efficiency == pytest.approx(0.5)
    s = feed(metrics, started(1), started(1))
    assert (s.batches, s.shared_batches, s.sent, s.batched, s.largest_batch) == (4, 2, 12, 10, 8)
    assert s.mean_batch_size == 3.0
    assert s.efficiency == pytest.approx((3 / 10) * (10 / 12))


def test_utilisation_is_busy_worker_time_over_worker_time(metrics, clock):
    feed(metrics, ClientStarted(at=0.0, workers=4), started(at=0.0), started(at=5.0), called(at=5.0))
    clock.time = 10.0
    s = metrics.snapshot()
    assert (s.busy_seconds, s.elapsed) == (10.0, 10.0)
    assert s.utilisation == pytest.approx(0.25)


def test_failures_are_counted_by_kind_for_calls_and_for_requests(metrics):
    s = feed(
        metrics,
        called(error="server_error"),
        called(error="rate_limit"),
        ended(ok=False, error="client_error"),
        ended(ok=False, error="RequestTimeout"),
    )
    assert s.call_failures == {"server_error": 1, "rate_limit": 1}
    assert s.rate_limits == 1
    assert s.request_failures == {"client_error": 1, "request_timeout": 1}
    assert s.failed == 2


def test_retries_tell_whether_they_cost_a_try_and_may_be_paid_twice(metrics):
    s = feed(metrics, retry(), retry(counted=False), retry(maybe_billed=True))
    assert (s.retries_counted, s.retries_uncounted, s.retries) == (2, 1, 3)
    assert s.possible_double_bills == 1


def test_overlapping_cooldowns_of_one_quota_count_once(metrics):
    s = feed(
        metrics,
        CooldownStarted(at=0.0, scope="key", model="a", seconds=10.0, consecutive=1),
        CooldownStarted(at=4.0, scope="key", model="a", seconds=10.0, consecutive=1),
        CooldownStarted(at=5.0, scope="key", model="a", seconds=2.0, consecutive=1),
        CooldownStarted(at=5.0, scope="key", model="b", seconds=3.0, consecutive=1),
    )
    assert (s.cooldowns, s.cooldown_seconds) == (4, 17.0)


def test_tokens_and_cost_are_those_of_all_calls(metrics):
    s = feed(
        metrics,
        called(usage=Usage(10, 5, 4, 2, cache_write_tokens=6, cache_write_1h_tokens=3), cost=0.25),
        called(usage=Usage(3, 1, estimated=True, cache_write_tokens=1), cost=0.5, error="invalid_response"),
        ended(usage=Usage(13, 6), cost=0.75),
        ended(usage=Usage(13, 6), cost=0.0, deduplicated=True),
    )
    assert s.usage == Usage(13, 6, 4, 2, True, 7, 3)
    assert (s.cost, s.unpriced) == (0.75, 0)


def test_requests_of_unknown_price_are_counted(metrics):
    s = feed(
        metrics,
        ended(cost=None),
        ended(cost=None, ok=False, error="timeout", usage=Usage(5, 0)),
        ended(cost=None, ok=False, error="timeout"),
        ended(cost=None, cancelled=True, ok=False, attempts=0),
        ended(cost=None, route=Route.LOCAL, attempts=0),
    )
    assert s.unpriced == 2
    assert s.local == 1


def test_times_leave_out_what_did_not_happen(metrics):
    s = feed(
        metrics,
        ended(seconds=2.0, queued=0.5),
        ended(cancelled=True, ok=False, seconds=9.0, attempts=0),
        ended(deduplicated=True, seconds=1.0, queued=9.0),
        ended(route=Route.LOCAL, attempts=0, seconds=0.001),
        called(seconds=1.25),
    )
    assert (s.response_time.count, s.response_time.longest) == (3, 2.0)
    assert (s.queue_time.count, s.queue_time.mean) == (1, 0.5)
    assert (s.batch_time.count, s.batch_time.p50) == (1, 1.25)


def test_other_events_are_counted(metrics):
    s = feed(
        metrics,
        BreakerChanged(at=0.0, model="m", before="closed", after="open", reason="5 failures", pause=1.0),
        BreakerChanged(at=0.0, model="m", before="open", after="half_open", reason="probe"),
        BreakerChanged(at=0.0, model="m", before="half_open", after="my own state", reason="odd"),
        ParameterDropped(at=0.0, request_id="r1", field="seed", reason="not taken"),
        submitted(joined=True),
        ended(deduplicated=True),
        ClientStopped(at=1.0, failed=3),
        Event(at=2.0),
    )
    assert s.breaker_changes == {"open": 1, "half_open": 1, "other": 1}
    assert (s.parameters_dropped, s.deduplicated, s.failed_at_stop) == (1, 1, 3)


def test_reset_keeps_what_is_not_over(metrics, clock):
    feed(metrics, ClientStarted(at=0.0, workers=1), submitted(), submitted(), ended(), started(at=0.0))
    clock.time = 6.0
    metrics.reset()
    clock.time = 8.0
    s = metrics.snapshot()
    assert (s.submitted, s.in_flight, s.total, s.batches) == (1, 1, 0, 0)
    assert (s.elapsed, s.busy_seconds, s.utilisation) == (2.0, 2.0, 1.0)
    s = feed(metrics, called(at=8.0, seconds=8.0), ended())
    assert (s.succeeded, s.total, s.busy_seconds) == (1, 1, 2.0)


def test_a_reset_leaves_how_many_limits_are_not_shared_now(metrics):
    lost = SharedLimitsLost(at=1.0, place="p", scope="s", model="m", reason="gone", processes=1)
    restored = SharedLimitsRestored(at=2.0, place="p", scope="s", model="m", seconds=1.0)
    feed(metrics, lost, lost)
    metrics.reset()
    s = metrics.snapshot()
    assert (s.shared_limits_lost, s.limits_unshared) == (0, 2)
    assert feed(metrics, restored).limits_unshared == 1


def test_a_client_that_stopped_has_no_limits_that_are_not_shared_now(metrics):
    lost = SharedLimitsLost(at=1.0, place="p", scope="s", model="m", reason="gone", processes=1)
    restored = SharedLimitsRestored(at=4.0, place="p", scope="s", model="m", seconds=1.0)
    begins, ends = ClientStarted(at=0.0, workers=1), ClientStopped(at=2.0, failed=0)
    assert feed(metrics, begins, lost, ends).limits_unshared == 0
    assert feed(metrics, ClientStarted(at=3.0, workers=1), lost).limits_unshared == 1
    assert feed(metrics, restored).limits_unshared == 0


def test_a_client_runs_until_the_last_of_its_runs_has_stopped(metrics, clock):
    lost = SharedLimitsLost(at=1.0, place="p", scope="s", model="m", reason="gone", processes=1)
    begins = ClientStarted(at=0.0, workers=1)
    feed(metrics, begins, begins, lost, ClientStopped(at=2.0, failed=0))
    clock.time = 9.0
    s = metrics.snapshot()
    assert (s.elapsed, s.limits_unshared) == (9.0, 1)
    feed(metrics, ClientStopped(at=9.0, failed=0))
    clock.time = 20.0
    s = metrics.snapshot()
    assert (s.elapsed, s.limits_unshared) == (9.0, 0)


@given(events)
def test_the_sums_are_those_of_figures_that_were_never_reset(happened):
    clock = ManualClock()
    metrics, unbroken = BatchMetrics(now=clock), BatchMetrics(now=clock)
    for event in happened:
        if isinstance(event, str):
            metrics.reset()
        else:
            metrics(event)
            unbroken(event)
    told = {key: value for key, value in metrics.sums().items() if value}
    assert told == pytest.approx(unbroken.sums())


def test_a_snapshot_becomes_json_and_back(metrics):
    s = feed(metrics, submitted(), started(), called(error="timeout"), ended())
    plain = json.loads(s.to_json())
    assert plain == s.as_dict()
    assert plain["total"] == plain["succeeded"] == 1
    assert plain["batch_time"]["p95"] == 1.0


@pytest.mark.full
def test_figures_of_many_threads_are_complete_and_every_snapshot_is_whole(metrics):
    whole: list[bool] = []

    def run() -> None:
        for _ in range(200):
            for event in (submitted(), started(3), called(3, usage=Usage(2, 1)), ended()):
                metrics(event)
            s = metrics.snapshot()
            whole.append(balanced(s) and s.usage.input_tokens == 2 * s.usage.output_tokens)

    run_together(lambda _: run(), range(20))
    s = metrics.snapshot()
    assert all(whole)
    assert s.total == s.succeeded + s.failed + s.cancelled == s.submitted == 4_000
    assert (s.sent, s.in_flight, s.usage) == (12_000, 0, Usage(8_000, 4_000))


def test_each_state_of_a_batch_is_counted_under_its_own_name(metrics):
    told: dict[str, Any] = {
        "job_id": "job",
        "shard_id": "s",
        "batch_id": None,
        "model": "sim:small",
        "before": "",
        "size": 1,
    }
    states = [state.value for state in ShardState]
    snapshot = feed(metrics, *(ShardChanged(at=0.0, after=state, **told) for state in states))
    assert snapshot.shard_changes == dict.fromkeys(states, 1)


def test_batch_results_count_as_submitted_and_finished(metrics):
    stored: dict[str, Any] = {
        "at": 1.0,
        "job_id": "job",
        "model": "sim:small",
        "succeeded": 3,
        "failed": 1,
        "cancelled": 1,
        "deduplicated": 2,
        "cost": 0.5,
        "realtime_cost": 1.5,
        "unpriced": 1,
    }
    s = feed(
        metrics,
        JobResultsStored(route=Route.BATCH, in_realtime=False, usage=Usage(10, 5), **stored),
        JobResultsStored(route=Route.INDIVIDUAL, in_realtime=True, usage=Usage(7, 7), **stored),
    )
    assert s.by_route == {"batch": RouteFigures(3, 1, 1, input_tokens=10, output_tokens=5, cost=0.5)}
    assert (s.submitted, s.by_priority["job"], s.succeeded, s.failed, s.cancelled) == (5, 5, 3, 1, 1)
    assert (s.usage, s.cost, s.unpriced) == (Usage(10, 5), 0.5, 1)
    assert (s.deduplicated, s.jobs_cost, s.jobs_saved) == (4, 1.0, 2.0)


def test_tokens_that_may_be_missing_mark_the_sum(metrics):
    s = feed(
        metrics, called(usage=Usage(2, 1)), *[called(usage=Usage(unknown=True))] * 2, called(usage=NO_USAGE)
    )
    assert s.usage == Usage(2, 1, unknown=True)


def test_names_in_the_table_are_unique_and_families_have_one_meaning():
    names = [metric.name for metric in METRICS]
    families = {metric.family for metric in METRICS if metric.family is not None}
    assert len(set(names)) == len(names) > 60
    assert len({family.name for family in families}) == len(families)
    for metric in METRICS:
        for count in metric.counts:
            assert issubclass(count.event, Event)
            assert (count.label is not None) == metric.is_table
