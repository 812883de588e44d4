"""The history of a client: learned from calls and batches, stored, shared, and published when it changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from inside import inside
from realtime.scenes import Scripted

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.core.forecast import Forecaster
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.errors import StoreError
from smartbatch.events import CallFinished, Event, ForecastMoved
from smartbatch.jobs import summary_records
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.store.sql_store import FactTable
from smartbatch.jobs.threads import run_within
from smartbatch.routing.history import (
    BATCH_PRIOR,
    MAX_CALLS_PER_SECOND,
    MAX_SAMPLE_CALLS,
    MAX_UNLEARNED_CALLS,
    REFRESH_SECONDS,
    STORE_WAIT_SECONDS,
    VECTORS_PRIOR,
    ForecastHistory,
)
from smartbatch.types import Answer, Kind, Request, Route, Usage

MODEL = "openai:gpt-5-mini"


@pytest.fixture
def store(tmp_path, clock):
    opened = open_store(str(tmp_path / "jobs.db"), wall=clock.wall, rng=random.Random(1))
    yield opened
    opened.close()


class Told(list[Event]):
    def __call__(self, event: Event) -> None:
        self.append(event)


@pytest.fixture
def told():
    return Told()


Process = Callable[[], ForecastHistory]


@pytest.fixture
def process(clock, store, told):
    return lambda: ForecastHistory(clock, told, store=lambda: store)


def ended(
    clock: VirtualClock, seconds: float, route: Route | None = Route.INDIVIDUAL, size: int = 1,
    error: str | None = None, model: str = MODEL,
) -> CallFinished:  # fmt: skip
    return CallFinished(
        at=clock.now(), batch_id="b", model=model, size=size, seconds=seconds, usage=Usage(), cost=None,
        error=error, maybe_billed=False, route=route,
    )  # fmt: skip


def call(history: ForecastHistory, clock: VirtualClock, *seconds: float, **more: Any) -> None:
    for each in seconds:
        clock.sleep(1.0)
        history(ended(clock, each, **more))


def observations(history: ForecastHistory) -> int:
    return history.latency(Route.INDIVIDUAL, MODEL).observations


def chance(history: ForecastHistory, seconds: float) -> float:
    return history.latency(Route.INDIVIDUAL, MODEL).chance(seconds, 1)


def median(history: ForecastHistory, route: Route = Route.INDIVIDUAL, size: int = 1) -> float:
    return history.latency(route, MODEL).quantile(0.5, size)


class TestCalls:
    def test_before_any_call_the_documented_figures_are_said(self, process):
        history = process()
        assert median(history) == pytest.approx(2.0)
        assert history.latency(Route.INDIVIDUAL, MODEL).quantile(0.95, 1) == pytest.approx(10.0)
        assert median(history, Route.FLEX) == pytest.approx(6.0)
        assert history.latency(Route.SHARED, "openai:text-embedding-3-small").quantile(
            0.5, 1
        ) == pytest.approx(Forecaster(VECTORS_PRIOR).at(0.0).quantile(0.5, 1))
        assert history.turnaround(MODEL).quantile(0.5, 100) == pytest.approx(
            Forecaster(BATCH_PRIOR).at(0.0).quantile(0.5, 100)
        )
        assert history.cancelling("openai").quantile(0.99, 1) == pytest.approx(600.0, rel=0.1)

    def test_other_routes_and_models_are_learned_apart(self, process, clock):
        history = process()
        call(history, clock, *[50.0] * 20, route=Route.PACKED, size=10)
        call(history, clock, *[20.0] * 30, model="openai:other")
        assert median(history) == pytest.approx(2.0)
        assert median(history, Route.PACKED, size=10) == pytest.approx(50.0, rel=0.05)
        other = history.latency(Route.INDIVIDUAL, "openai:other")
        assert other.quantile(0.5, 1) == pytest.approx(20.0, rel=0.05)
        assert other.chance(25.0, 1) > 0.9
        assert other.observations == 30

    def test_refusals_teach_nothing(self, process, clock):
        history = process()
        call(history, clock, *[0.01] * 30, error="rate_limit")
        call(history, clock, *[0.01] * 30, error="server_error")
        call(history, clock, *[0.01] * 30, route=None)
        assert observations(history) == 0

    def test_a_call_that_ran_out_of_time_would_have_taken_longer(self, process, clock):
        history = process()
        call(history, clock, *[10.0] * 20, error="timeout")
        assert median(history) > 10.5
        assert chance(history, 10.0) < 0.2

    def test_batches_are_no_calls(self, process):
        with pytest.raises(ValueError, match="does not consist of calls"):
            process().latency(Route.BATCH, MODEL)

    def test_a_flood_of_calls_is_learned_from_in_part(self, process, clock):
        history = process()
        event = ended(clock, 1.0)
        threads = [threading.Thread(target=lambda: [history(event) for _ in range(250)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        # without a lock, each thread may count one call too many
        assert MAX_CALLS_PER_SECOND <= observations(history) < MAX_CALLS_PER_SECOND + len(threads)

    def test_nothing_is_learned_on_the_threads_that_call(self, process, clock, told):
        history = process()
        call(history, clock, *[90.0] * 50, *[20.0] * MAX_UNLEARNED_CALLS)
        assert told == []
        assert median(history) == pytest.approx(20.0, rel=0.05)
        assert chance(history, 50.0) > 0.99
        assert [each.name for each in told] == ["forecast_moved"]


class TestTelling:
    def test_a_sudden_change_is_told_with_its_reason(self, process, clock, told):
        history, rng = process(), random.Random(3)
        call(history, clock, *[2.0 * rng.uniform(0.7, 1.4) for _ in range(100)])
        history.learn()
        told.clear()
        call(history, clock, *[8.0 * rng.uniform(0.7, 1.4) for _ in range(20)])
        history.learn()
        (moved,) = told
        assert isinstance(moved, ForecastMoved)
        assert (moved.model, moved.route) == (MODEL, Route.INDIVIDUAL)
        assert moved.before == pytest.approx(2.0, rel=0.2)
        assert moved.after == pytest.approx(8.0, rel=0.2)
        assert moved.observations <= 20
        assert "times as long as the earlier ones" in moved.reason
        assert moved.fields()["route"] == "individual"

    def test_observers_may_ask_for_the_forecast(self, clock):
        heard: list[float] = []
        history = ForecastHistory(clock, lambda _: heard.append(median(history)))
        call(history, clock, *[30.0] * 12)
        history.learn()
        assert heard == [pytest.approx(30.0, rel=0.3)]

    def test_what_another_process_knew_already_is_no_news(self, process, clock, told):
        first, second = process(), process()
        first.refresh()
        call(first, clock, *[40.0] * 30)
        first.save()
        told.clear()
        second.refresh()
        assert median(second) == pytest.approx(40.0, rel=0.05)
        assert told == []


class TestTheStore:
    def test_the_next_process_starts_from_it(self, process, clock):
        first = process()
        first.refresh()
        call(first, clock, *[30.0] * 40)
        call(first, clock, *[500.0] * 10, error="timeout")
        first.save()
        second = process()
        assert median(second) == pytest.approx(2.0)  # before it has read the store
        second.refresh()
        assert observations(second) == 50
        assert median(second) == pytest.approx(median(first), rel=0.01)

    def test_what_was_seen_before_the_first_look_stays(self, process, clock):
        first, second = process(), process()
        first.refresh()
        call(first, clock, *[30.0] * 20)
        first.save()
        call(second, clock, *[3.0] * 20)
        second.refresh()
        assert observations(second) == 40
        assert median(second) == pytest.approx(3.0, rel=0.2)

    def test_processes_see_each_others_calls_within_a_minute_and_none_twice(self, process, clock):
        first, second = process(), process()
        for turn in range(1, 4):
            for one in (first, second):
                call(one, clock, *[5.0] * 10)
            clock.sleep(REFRESH_SECONDS)
            for one in (first, second, first):
                one.refresh()  # the third refresh within a minute does nothing
                assert observations(one) in (20 * turn - 10, 20 * turn)
        clock.sleep(REFRESH_SECONDS)
        for one in (first, second):
            one.refresh()
            assert observations(one) == 60

    def test_of_many_calls_a_sample_is_written(self, process, clock, store):
        history = process()
        history.refresh()
        call(history, clock, *[1.0 + n / MAX_UNLEARNED_CALLS for n in range(MAX_UNLEARNED_CALLS)])
        history.save()
        rows = store.facts.turnarounds(f"latency individual {MODEL}", limit=10_000)
        assert MAX_SAMPLE_CALLS / 2 <= len(rows) <= MAX_SAMPLE_CALLS
        seconds = sorted(row[1] for row in rows)
        assert seconds[len(seconds) // 2] == pytest.approx(1.5, abs=0.15)
        history.save()
        assert len(store.facts.turnarounds(f"latency individual {MODEL}", limit=10_000)) == len(rows)

    def test_calls_are_written_before_they_are_learned_from(self, process, clock, told):
        history = process()
        history.refresh()
        call(history, clock, *[90.0] * 30)
        history.save()
        assert told == []
        other = process()
        other.refresh()
        assert observations(other) == 30
        call(history, clock, *[90.0] * 5)
        assert observations(history) == 35
        assert {each.name for each in told} == {"forecast_moved"}
        clock.sleep(REFRESH_SECONDS)
        history.refresh()
        assert observations(history) == 35  # its own rows are not learned again

    def test_batches_are_read_from_it_with_those_that_were_given_up(self, process, clock, store):
        history = process()
        for n in range(20):
            store.facts.observe_turnarounds(MODEL, [(100, 600.0, clock.wall() - n)])
            store.facts.observe_turnarounds(
                summary_records.cancel_name("openai"), [(100, 20.0, clock.wall() - n)]
            )
        history.refresh()
        assert history.turnaround(MODEL).quantile(0.5, 100) == pytest.approx(600.0, rel=0.05)
        assert history.cancelling("openai").quantile(0.5, 1) == pytest.approx(20.0, rel=0.05)
        on_time = history.turnaround(MODEL).chance(3000.0, 100)
        for n in range(20):
            store.facts.observe_turnarounds(
                summary_records.late_name(MODEL), [(100, 3000.0, clock.wall() + n)]
            )
        clock.sleep(REFRESH_SECONDS)
        history.refresh()
        assert history.turnaround(MODEL).chance(3000.0, 100) < on_time - 0.2
        assert history.turnaround(MODEL).observations == 40

    def test_rows_that_make_no_sense_are_passed_over(self, process, clock, store):
        store.facts.observe_turnarounds(MODEL, [(1, -5.0, clock.wall()), (1, float("inf"), clock.wall())])
        history = process()
        history.refresh()
        assert history.turnaround(MODEL).observations == 0

    def test_nothing_is_opened_before_somebody_looks(self, clock, told):
        opened: list[int] = []

        def opener() -> SqlStore:
            opened.append(1)
            raise StoreError("no")

        history = ForecastHistory(clock, told, store=opener)
        call(history, clock, *[3.0] * 5)
        history.calibration(MODEL, Kind.GENERATE).observe(10, Usage(10, 10))
        assert median(history) > 0
        history.save()
        assert opened == []

    def test_a_store_that_fails_hurts_nobody_and_is_tried_again(self, clock, told, store, monkeypatch):
        broken = [True]

        def opener() -> SqlStore:
            if broken[0]:
                raise StoreError("the disk is full")
            return store

        history = ForecastHistory(clock, told, store=opener)
        call(history, clock, *[3.0] * 20)
        history.refresh()
        history.save()
        assert median(history) == pytest.approx(3.0, rel=0.1)
        broken[0] = False
        history.refresh()  # within the minute
        assert store.facts.turnarounds(f"latency individual {MODEL}", limit=100) == []
        clock.sleep(REFRESH_SECONDS)
        history.refresh()
        assert len(store.facts.turnarounds(f"latency individual {MODEL}", limit=100)) == 20

    def test_a_hanging_store_is_waited_for_once_and_read_again_later(self, process, clock, monkeypatch):
        first, history = process(), process()
        first.refresh()
        call(first, clock, *[30.0] * 20)
        first.save()
        seen: list[float] = []
        read = FactTable.turnarounds

        def hang(*asked: Any, **how: Any) -> Any:
            if not seen:
                clock.sleep(1_000.0)
            return read(*asked, **how)

        def look() -> None:
            began = clock.now()
            history.refresh()
            assert observations(history) == 0
            assert history.turnaround(MODEL).observations == 0
            seen.append(clock.now() - began)
            clock.sleep(REFRESH_SECONDS)
            history.refresh()
            assert observations(history) == 20

        monkeypatch.setattr(FactTable, "turnarounds", hang)
        assert run_within(look, 1e6, clock, "smartbatch-test")
        assert seen == [STORE_WAIT_SECONDS]


class TestTokens:
    def test_calibrations_survive_a_restart(self, process):
        first = process()
        first.refresh()
        learned = first.calibration(MODEL, Kind.GENERATE)
        for n in range(50):
            learned.observe(100, Usage(130, 40 + n))
        first.save()
        second = process()
        second.refresh()
        known = second.calibration(MODEL, Kind.GENERATE)
        assert known.input(1000) == learned.input(1000) == 1300
        assert (known.observed, known.output(None)) == (50, learned.output(None))
        assert known.answers("")[1] == pytest.approx(learned.answers("")[1])
        assert second.calibration(MODEL, Kind.EMBED).observed == 0

    def test_the_same_object_is_returned_and_filled_at_the_first_look(self, process):
        first, second = process(), process()
        early = second.calibration(MODEL, Kind.GENERATE)
        first.refresh()
        for _ in range(30):
            first.calibration(MODEL, Kind.GENERATE).observe(100, Usage(200, 10))
        first.save()
        second.refresh()
        assert second.calibration(MODEL, Kind.GENERATE) is early
        assert early.ratio == pytest.approx(2.0)

    def test_what_two_processes_saw_adds_up(self, process):
        first, second = process(), process()
        first.refresh()
        second.refresh()
        little = second.calibration(MODEL, Kind.GENERATE)
        for _ in range(200):
            first.calibration(MODEL, Kind.GENERATE).observe(100, Usage(200, 10))
        little.observe(100, Usage(100, 10))
        first.save()
        second.save()
        third = process()
        third.refresh()
        assert third.calibration(MODEL, Kind.GENERATE).observed == 201
        assert little.observed == 201

    def test_what_was_seen_before_the_store_was_read_counts_after_it(self, process):
        first, second = process(), process()
        first.refresh()
        for _ in range(200):
            first.calibration(MODEL, Kind.GENERATE).observe(100, Usage(100, 1500))
        first.save()
        latest = second.calibration(MODEL, Kind.GENERATE)
        for _ in range(10):
            latest.observe(100, Usage(100, 20))
        second.refresh()
        assert second.calibration(MODEL, Kind.GENERATE).answers("")[1] == 20
        assert (latest.observed, latest.answers("")[0]) == (210, 10)

    @pytest.mark.parametrize("state", [None, 7, {}, {"seen": 5}, {"seen": 5, "estimated": -1, "billed": 1}])
    def test_an_invalid_calibration_is_ignored(self, state):
        calibration = Calibration()
        assert not calibration.restore(state)
        assert calibration.observed == 0


def test_a_client_that_stops_leaves_what_it_saw_to_the_next(client_of, clock, tmp_path):
    def answer(request: Request, attempt: int) -> Answer:
        clock.sleep(7.0)
        return Answer("yes", Usage(50, 30))

    place = str(tmp_path / "jobs.db")
    first = client_of(answer, store=place)
    label = first.generate([f"prompt {n}" for n in range(12)])[0].model
    assert label is not None
    first.stop()
    second = client_of(answer, store=place)
    inside(second).history.refresh()
    assert inside(second).history.latency(Route.INDIVIDUAL, label).observations == 12
    assert inside(second).history.latency(Route.INDIVIDUAL, label).quantile(0.5, 1) == pytest.approx(
        7.0, rel=0.1
    )
    assert inside(second).history.calibration(label, Kind.GENERATE).observed == 12
    second.submit("more").result(30.0)
    assert inside(second).history.calibration(label, Kind.GENERATE).observed == 13


ClientOf = Callable[..., BatchingClient]


def test_a_second_client_expects_the_lengths_and_times_of_the_first(clock, client_of):
    def answer(*_: object) -> Answer:
        return Answer("fine", usage=Usage(20, 7))

    first = client_of(Scripted(clock, answer, latency=0.25))
    before = first.plan([f"question {n}" for n in range(40)])
    assert before.answers is not None
    assert before.answers.seen == 0
    first.generate([f"question {n}" for n in range(40)])
    first.stop()
    plan = client_of(Scripted(clock, answer, latency=0.25)).plan([f"question {n}" for n in range(40)])
    assert plan.answers is not None
    assert (plan.answers.seen, plan.answers.tokens) == (40, 7)
    assert plan.p95 < before.p95 / 2
