"""Lists on every route, over HTTP and in virtual time, checked against the emulator's ledger."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest
from inside import inside

from smartbatch import Route
from smartbatch._words import duration
from smartbatch.errors import ConfigError, InvalidRequest, RequestCancelled
from smartbatch.events import JobRescued, RouteChosen, RouteScored
from smartbatch.types import Kind, Usage
from tests.faults.world import HOUR, MINUTE, PROVIDERS, texts, world
from tests.levels import sampled

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS))


def asked(w, client, prompts, **constraints):
    return client.generate(prompts, **constraints)


def routes(results):
    return Counter(result.route for result in results)


def finished(w):
    (job,) = w.process().jobs()
    status = job.status()
    assert status.done
    return status.elapsed


def told(w, kind):
    return [event for event in w.events if isinstance(event, kind)]


@pytest.mark.full
@each_provider
def test_a_list_with_time_goes_by_batch_and_comes_back_in_order(provider, tmp_path):
    prompts = texts(40)
    with world(provider, tmp_path, rare=60, batch_turnaround=20 * MINUTE) as w:
        progress = []
        results = asked(w, w.process(), prompts, deadline="24h", context="mine", on_progress=progress.append)
        assert [now.finished for now in progress] == list(range(1, 41))
        assert progress[-1].cost == pytest.approx(results.cost)
        assert results.texts == w.right(prompts)
        assert routes(results) == {Route.BATCH: 40}
        assert {result.context for result in results} == {"mine"}
        assert len(w.creates) == 1
        assert not w.requests("ask")
        (scored,) = told(w, RouteScored)
        assert isinstance(scored, RouteScored)
        assert scored.met
        assert scored.cost is not None
        assert scored.individual_cost is not None
        assert scored.cost == pytest.approx(results.cost)
        assert scored.cost < scored.individual_cost


@pytest.mark.full
@each_provider
def test_a_batch_that_falls_behind_is_taken_back_in_time(provider, tmp_path):
    prompts = texts(40)
    with world(provider, tmp_path, rare=60, batch_turnaround=20 * HOUR, batch_cancel_seconds=30.0) as w:
        results = asked(w, w.process(), prompts, strategy="batch", deadline=timedelta(hours=1))
        assert results.texts == w.right(prompts)
        assert finished(w) <= HOUR
        assert routes(results)[Route.INDIVIDUAL] >= 35
        assert len(told(w, JobRescued)) == 1
        assert len(w.creates) == 1
        assert w.emu.ledger.paid_twice() == []


@pytest.mark.full
def test_a_rescue_begins_when_the_plan_says(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=20 * HOUR, batch_cancel_seconds=30.0) as w:
        plan = w.process().plan(texts(40), strategy="batch", deadline="1h")
        plan.run()
        (rescued,) = told(w, JobRescued)
        assert isinstance(rescued, JobRescued)
        planned = plan.decision.chosen.rescue_at
        assert planned is not None
        assert planned <= HOUR - rescued.left <= planned + MINUTE  # checked every 30 s
        (line,) = [line for line in plan.explain(details=True).splitlines() if line.startswith("Rescue: ")]
        assert f"not answered after {duration(planned)} (" in line


@pytest.mark.full
def test_a_batch_is_chosen_if_real_time_would_miss_the_deadline(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=2.0) as w:
        client = w.process()
        for each in range(20):
            asked(w, client, [f"List {each}, row {n}" for n in range(12)], strategy="batch")
        plan = client.plan([f"Last list, row {n}" for n in range(30)], strategy="batch", deadline="45s")
        assert plan.decision.chosen.odds > 0.9
        assert "might be late even with a rescue" in plan.explain(details=True)
        assert routes(plan.run()) == {Route.BATCH: 30}
        assert not told(w, JobRescued)


@pytest.mark.full
def test_the_more_waiting_is_worth_the_surer_a_rescue_is_to_be(tmp_path):
    left = []
    for place, time_value in enumerate((0.0, 500.0)):
        where = tmp_path / str(place)
        where.mkdir()
        with world("openai", where, rare=60, batch_turnaround=20 * HOUR, batch_cancel_seconds=30.0) as w:
            asked(w, w.process(), texts(40), strategy="batch", deadline="1h", time_value=time_value)
            assert finished(w) <= HOUR
            (rescued,) = told(w, JobRescued)
            assert isinstance(rescued, JobRescued)
            left.append(rescued.left)
    assert left[1] > left[0] + 60


@pytest.mark.full
@each_provider
def test_a_rescue_keeps_what_the_batch_had_done(provider, tmp_path):
    prompts = texts(60)
    slow = {"batch_turnaround": 2 * HOUR, "batch_cancel_seconds": 5.0}
    with world(provider, tmp_path, rare=60, **slow) as w:
        results = asked(w, w.process(), prompts, strategy="batch", deadline="80min")
        assert results.texts == w.right(prompts)
        assert finished(w) <= 80 * MINUTE
        assert routes(results)[Route.BATCH] > 0
        assert routes(results)[Route.INDIVIDUAL] > 0
        assert w.emu.ledger.paid_twice() == []


@pytest.mark.full
def test_a_refused_cancel_is_retried_with_pauses_and_reported_once(tmp_path):
    prompts = texts(30)
    with world("openai", tmp_path, rare=60, batch_turnaround=20 * HOUR) as w:

        def refuse(seen):
            return w.refusal(503) if seen.what == "cancel" and len(w.requests("cancel")) <= 3 else None

        w.service.meet = refuse
        results = asked(w, w.process(), prompts, strategy="batch", deadline="2h")
        assert results.texts == w.right(prompts)
        assert finished(w) <= 2 * HOUR
        times = [seen.at for seen in w.requests("cancel")]
        assert len(times) == 4
        assert all(later - earlier >= 1 for earlier, later in pairwise(times))
        assert len(told(w, JobRescued)) == 1


@pytest.mark.full
def test_another_process_takes_a_late_batch_back_after_the_first_one_died(tmp_path):
    prompts = texts(30)
    with world("openai", tmp_path, rare=60, batch_turnaround=20 * HOUR) as w:
        first = w.process()
        job = first.submit_batch(prompts, deadline="1h")
        w.pass_time(5 * MINUTE)
        w.stop(first)
        second = w.process()
        results = w.results(second.job(job.id))
        assert [result.text for result in results] == w.right(prompts)
        assert finished(w) <= HOUR
        assert w.emu.ledger.paid_twice() == []


@pytest.mark.full
@each_provider
def test_a_hybrid_asks_the_first_few_at_once_and_the_rest_by_batch(provider, tmp_path):
    prompts = texts(50)
    with world(provider, tmp_path, rare=60, batch_turnaround=30 * MINUTE) as w:
        results = asked(w, w.process(), prompts, strategy="hybrid")
        assert results.texts == w.right(prompts)
        (chosen,) = told(w, RouteChosen)
        assert isinstance(chosen, RouteChosen)
        assert chosen.route is Route.HYBRID
        assert 3 <= chosen.first <= 5
        assert [result.route for result in results] == [
            Route.INDIVIDUAL if place < chosen.first else Route.BATCH for place in range(50)
        ]


def test_few_prompts_and_small_lists_in_a_notebook_never_wait_for_a_batch(tmp_path):
    with world("openai", tmp_path, batch_turnaround=30 * MINUTE) as w:
        client = w.process()
        for count in (1, 3, 9, 15):
            results = asked(w, client, texts(count, f"list of {count}"))
            assert routes(results) == {Route.INDIVIDUAL: count}
        assert not w.creates


@pytest.mark.parametrize(
    ("count", "route"),
    sampled(
        [(3, Route.INDIVIDUAL), (9, Route.INDIVIDUAL), (10, Route.BATCH), (25, Route.BATCH)], keep=2, first=1
    ),
)
def test_the_threshold_strategy_goes_by_the_count_alone(count, route, tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        results = asked(w, w.process(), texts(count), strategy="threshold")
        assert routes(results) == {route: count}


def test_urgent_requests_are_sent_in_real_time_on_any_route(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process(prefer_individual_for={"rag_query"})
        results = asked(w, client, texts(20), purpose="rag_query", deadline="20h")
        assert routes(results) == {Route.INDIVIDUAL: 20}
        assert not w.creates


def test_a_client_told_to_batch_streams_an_answer_as_one_chunk(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process(strategy="batch")
        (prompt,) = texts(1)
        stream = client.stream(prompt)
        assert list(stream) == w.right([prompt])
        assert stream.result.route is Route.BATCH
        assert len(w.creates) == 1
        assert len(list(client.stream(prompt, priority="urgent"))) > 1


def test_a_stream_of_a_batch_that_is_closed_cancels_it(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=20 * HOUR) as w:
        with w.process(strategy="batch").stream("q") as stream:
            pass
        assert isinstance(stream.result.error, RequestCancelled)
        (job,) = w.process().jobs()
        assert w.wait(job).done


def test_answers_that_came_by_batch_are_found_in_the_cache(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process(cache=str(tmp_path / "cache.db"))
        prompts = texts(12)
        asked(w, client, prompts, strategy="batch")
        again = asked(w, client, [*prompts, "one more"], strategy="batch")
        assert routes(again) == {Route.CACHED: 12, Route.BATCH: 1}
        assert again.texts == w.right([*prompts, "one more"])


def test_a_loop_that_is_left_early_cancels_its_batch(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=HOUR) as w:
        client = w.process()
        results = client.map(texts(20), strategy="hybrid")
        next(results)
        results.close()
        (job,) = client.jobs()
        status = w.wait(job)
        assert status.cancelled >= 15


def test_what_no_route_can_meet_is_refused_before_anything_is_sent(tmp_path):
    with world("openai", tmp_path) as w:
        client = w.process()
        with pytest.raises(
            ConfigError, match=r"no route meets a deadline of 1 s .* a deadline of [\d.]+ (s|min)"
        ):
            client.generate(texts(500), deadline=1)
        with pytest.raises(ConfigError, match=r"a budget of \$0\.000001 .* a budget of \$0\.\d+"):
            client.generate(texts(500), budget="0.000001 USD")
        with pytest.raises(InvalidRequest):
            client.generate(["good", 7], deadline="2h")
        assert not w.service.seen


@pytest.mark.full
def test_a_plan_sends_nothing_and_its_run_keeps_to_it(tmp_path):
    prompts = texts(30)
    with world("openai", tmp_path, rare=60, batch_turnaround=10 * MINUTE) as w:
        client = w.process(max_tokens=40)
        asked(w, client, texts(25, "to learn from"))
        seen = len(w.service.seen)
        plan = client.plan(prompts, deadline="12h")
        assert len(w.service.seen) == seen
        assert plan.route is Route.BATCH
        assert plan.cost_low is not None
        assert plan.cost_high is not None
        results = plan.run()
        assert routes(results) == {Route.BATCH: 30}
        assert results.cost is not None
        assert plan.cost_low <= results.cost <= plan.cost_high


@pytest.mark.parametrize("strategy", ["individual", "batch"])
@pytest.mark.parametrize("before", sampled([0, 1500]))
def test_ten_answers_bring_the_forecast_of_the_same_list_near(strategy, before, tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process()
        learned = inside(client).history.calibration("openai:gpt-5-mini", Kind.GENERATE)
        for _ in range(200 if before else 0):
            learned.observe(20, Usage(20, before))
        first = client.plan(texts(100), strategy=strategy)
        paid = asked(w, client, texts(10), strategy=strategy).cost
        assert paid is not None
        then = client.plan(texts(100), strategy=strategy)
        w.stop(client)
        again = w.process().plan(texts(100), strategy=strategy)
        assert first.cost is not None
        assert first.cost > 5 * 10 * paid
        for plan in (then, again):
            assert plan.cost is not None
            assert 10 * paid / 2 < plan.cost < 2 * 10 * paid
            assert plan.answers is not None
            assert 5 <= plan.answers.seen <= 10
        assumed = (
            "Answer length: 1,500 tokens on average in 200 answers." if before else "; assuming 450 tokens."
        )
        assert assumed in first.explain(details=True)


@each_provider
def test_what_batches_took_makes_the_next_plan_right(provider, tmp_path):
    with world(provider, tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process(max_tokens=2000)
        guessed = client.plan(texts(40), strategy="batch")
        results = asked(w, client, texts(40), strategy="batch")
        w.stop(client)
        learned = w.process(max_tokens=2000).plan(texts(40), strategy="batch")
        assert results.cost is not None
        assert guessed.cost is not None
        assert guessed.cost > 3 * results.cost
        assert learned.cost == pytest.approx(results.cost, rel=0.1)
