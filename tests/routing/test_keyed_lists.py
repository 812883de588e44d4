"""Lists with a key are stored: the same call in any process sends only what is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from jobs.remote import Remote

from smartbatch import BatchingClient, Price
from smartbatch.errors import (
    ConfigError,
    ErrorKind,
    InvalidRequest,
    JobConflict,
    ProviderError,
    SmartbatchError,
    StoreError,
)
from smartbatch.types import Prompt, Request, Result, Route, evolve
from tests.levels import sampled

ClientOf = Callable[..., BatchingClient]

each_way = pytest.mark.parametrize("way", ["individual", "batch", "hybrid"])
PROMPTS = [f"p{n}" for n in range(30)]
LATER = 7_200.0


@pytest.fixture
def client(client_of, remote, store):
    return client_of(remote, store=store)


@each_way
@pytest.mark.parametrize("ordered", sampled([True, False]))
def test_the_same_list_again_asks_nothing_and_costs_nothing(way, ordered, client_of, store, remote):
    first = client_of(remote, store=store)
    requests = [Request(prompt, context={"row": n}) for n, prompt in enumerate(PROMPTS)]
    answers = list(first.as_completed(requests, strategy=way, ordered=ordered, key="labels"))
    assert sorted(result.context["row"] for result in answers) == list(range(30))
    assert {result.route for result in answers} <= {Route.INDIVIDUAL, Route.BATCH}
    first.stop()
    asked = len(remote.asked)
    second = client_of(remote, store=store, seed_of_rng=2)
    again = list(second.map(requests, key="labels"))
    assert [result.context["row"] for result in again] == list(range(30))
    assert [result.text for result in again] == [
        result.text for result in sorted(answers, key=lambda result: result.context["row"])
    ]
    assert {(result.paid_before, result.attempts, result.route) for result in again} == {
        (True, 0, Route.CACHED)
    }
    costs = {result.context["row"]: (result.cost, result.usage) for result in answers}
    assert [(result.cost, result.usage) for result in again] == [costs[row] for row in range(30)]
    assert len(remote.asked) == asked
    assert remote.api is not None
    assert len(remote.api.made) == (0 if way == "individual" else 1)


def test_a_loop_that_is_left_early_goes_on_in_another_process(client_of, clock, store):
    remote = Remote(clock, latency=1.0)
    first = client_of(remote, store=store, parallelism=2)
    results = first.map(PROMPTS, strategy="individual", key="labels")
    seen = [next(results).text for _ in range(3)]
    results.close()  # type: ignore[attr-defined]
    clock.sleep(60.0)
    asked = list(remote.asked)
    assert 3 <= len(asked) < 10, "what was not sent is not sent"
    job = first.job("labels")
    assert job.status().finished == len(asked), "what was under way has its results"
    assert job.is_unowned()
    second = client_of(remote, store=store, seed_of_rng=2)
    answers = second.generate(PROMPTS, key="labels")
    assert answers.texts[:3] == seen
    assert answers.succeeded == 30
    assert sorted(remote.asked) == sorted(PROMPTS), "each is asked once"
    assert [result.route for result in answers].count(Route.CACHED) == len(asked)
    assert job.incidents() == []


def test_the_loop_may_be_taken_up_again_at_once_by_the_same_client(client_of, clock, store):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, store=store, parallelism=2)
    for _ in range(3):
        for result in client.map(PROMPTS, strategy="individual", key="labels"):
            assert result.ok
            break
    assert client.generate(PROMPTS, key="labels").succeeded == 30
    assert sorted(remote.asked) == sorted(PROMPTS)


def test_what_another_live_process_carries_on_is_waited_for(client_of, clock, store):
    remotes = [Remote(clock, latency=1.0), Remote(clock)]
    first, second = (
        client_of(remote, store=store, parallelism=2, seed_of_rng=n) for n, remote in enumerate(remotes)
    )
    results = first.map(PROMPTS, strategy="individual", key="labels")
    next(results)
    assert second.generate(PROMPTS, key="labels").succeeded == 30
    assert remotes[1].asked == []
    assert len(list(results)) == 29


def test_a_batch_that_is_left_early_runs_on(remote, client):
    for _ in client.map(PROMPTS, strategy="hybrid", key="labels"):
        break
    assert client.job("labels").wait("1h").succeeded == 30
    assert remote.api is not None
    assert len(remote.api.made) == 1


@pytest.mark.parametrize("other", [PROMPTS[:-1], [*PROMPTS[:-1], "other"]])
def test_another_list_under_the_key_is_a_conflict(other, client):
    client.generate(PROMPTS, key="labels")
    with pytest.raises(JobConflict, match="labels"):
        list(client.map(other, key="labels"))
    with pytest.raises(JobConflict, match="labels"):
        list(client.map(PROMPTS, temperature=0.5, key="labels"))


@pytest.mark.parametrize("way", sampled(["individual", "batch", "hybrid"], first=2))
def test_rows_at_the_end_of_a_list_are_added_to_its_job(way, client_of, store, remote, client):
    client.generate(PROMPTS, strategy=way, key="labels")
    further = [*PROMPTS, "q0", "q1"]
    for seed in (2, 3):  # the second call finds all rows stored
        client = client_of(remote, store=store, seed_of_rng=seed)
        results = client.generate(further, strategy=way, key="labels")
        assert [str(text).split()[-1] for text in results.texts] == further
        assert [job.total for job in client.jobs()] == [32]
    assert sorted(remote.asked[-2:]) == ["q0", "q1"]
    assert remote.api is not None
    assert len(remote.api.made) == (0 if way == "individual" else 1)


@pytest.mark.full
def test_enough_added_rows_for_a_batch_go_by_batch_as_their_list_did(remote, client):
    client.generate(PROMPTS, strategy="batch", key="labels")
    assert client.generate([*PROMPTS, *(f"q{n}" for n in range(20))], key="labels").succeeded == 50
    assert remote.api is not None
    assert len(remote.api.made) == 2
    assert remote.asked == []


def test_added_rows_for_another_model_are_sent_to_that_model(client):
    client.generate(PROMPTS, strategy="batch", key="labels")
    further = [Request(f"q{n}", model="other") for n in range(20)]
    results = client.generate([*PROMPTS, *further], key="labels")
    assert [result.model.partition(":")[2] for result in results[30:]] == ["other"] * 20


def test_equal_rows_share_an_answer_also_with_added_rows(client, remote):
    results = client.generate(["a", "b", "a", "a"], strategy="individual", key="labels")
    assert sorted(remote.asked) == ["a", "b"]
    assert [result.deduplicated for result in results] == [False, False, True, True]
    results = client.generate(["a", "b", "a", "a", "b", "new", "new"], key="labels")
    assert results.texts[-3:] == ["re: b", "re: new", "re: new"]
    assert len(remote.asked) == 3


def test_rows_are_added_while_the_job_runs(client_of, clock, store):
    remote = Remote(clock, latency=10.0)
    client = client_of(remote, store=store, parallelism=4)
    running = client.map(PROMPTS, strategy="individual", key="labels")
    assert next(running).ok
    assert client.generate([*PROMPTS, "more"], key="labels").texts[-1] == "re: more"
    assert sorted(remote.asked) == sorted([*PROMPTS, "more"])
    assert len(list(running)) == 29


def test_no_rows_are_added_to_a_cancelled_job(client_of, clock, store):
    client = client_of(Remote(clock, latency=10.0), store=store)
    client.submit_batch(PROMPTS, key="labels").cancel()
    with pytest.raises(JobConflict, match="cancelled"):
        client.submit_batch([*PROMPTS, "more"], key="labels")


@pytest.mark.full
def test_added_rows_spend_within_the_budget_of_the_client(client_of, clock, store, remote):
    prices = {"remote:default": Price(1000.0, 1000.0)}
    client = client_of(remote, store=store, prices=prices)
    cost = client.submit_and_wait(PROMPTS, strategy="batch", key="labels").cost
    assert cost is not None
    tight = client_of(remote, store=store, prices=prices, budget=cost / 10, seed_of_rng=2)
    job = tight.submit_batch([*PROMPTS, *(f"q{n}" for n in range(200))], key="labels")
    clock.sleep(LATER)
    assert job.status().cost - cost <= cost / 10
    assert job.status().completed < 230


def test_hooks_and_contexts_are_the_callers_own(client_of, store, remote):

    def answers(tag: str, seed: int) -> list[Result]:
        client = client_of(
            remote,
            store=store,
            seed_of_rng=seed,
            preprocess=[lambda request: "mine" if request.prompt == "p3" else None],
            post_process=lambda result: evolve(result, text=f"<{result.text}>"),
        )
        requests: list[Prompt] = [Request(prompt, context=object()) for prompt in PROMPTS]
        results = list(client.map(requests, key=tag))
        contexts = [request.context for request in requests if isinstance(request, Request)]
        assert [result.context for result in results] == contexts
        return results

    first, again = answers("labels", 1), answers("labels", 2)
    assert [result.text for result in first] == [result.text for result in again]
    assert (first[3].text, first[3].route) == ("<mine>", Route.LOCAL)
    assert first[0].text == "<re: p0>"
    assert len(remote.asked) == 29


def test_an_iterator_is_read_to_its_end_before_anything_is_sent(client_of, store, remote):
    results = client_of(remote, store=store).map((prompt for prompt in PROMPTS), key="labels")
    assert remote.asked == []
    assert [result.text for result in results] == [f"re: {prompt}" for prompt in PROMPTS]


@pytest.mark.parametrize("raising", [True, False])
def test_failed_requests_fail_as_without_a_key(raising, client_of, clock, store):
    def reply(prompt: str) -> str:
        if prompt == "p1":
            raise ValueError(prompt)
        return prompt

    client = client_of(Remote(clock, reply=reply), store=store, retries=0)
    if raising:
        with pytest.raises(SmartbatchError):
            list(client.map(PROMPTS[:3], key="labels", on_error="raise"))
    else:
        results = client.generate(PROMPTS[:3], key="labels")
        assert [result.ok for result in results] == [True, False, True]


@pytest.mark.full
def test_many_threads_of_one_process_read_one_list(client_of, clock, store):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, store=store, parallelism=2)
    found: list[int] = []

    def read(most: int) -> None:
        clock.began()
        try:
            results = client.map(PROMPTS, strategy="individual", key="labels")
            found.append(sum(1 for _ in zip(range(most), results, strict=False)))
            results.close()  # type: ignore[attr-defined]
        finally:
            clock.ended()

    threads = [threading.Thread(target=read, args=(most,)) for most in (2, 30, 30)]
    for thread in threads:
        clock.spawned()
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(found) == [2, 30, 30]
    assert sorted(remote.asked) == sorted(PROMPTS)


def test_what_a_store_cannot_keep_is_refused_by_name(remote, client):
    own = Request("a", call=lambda _request, _attempt: "mine")
    with pytest.raises(InvalidRequest, match=r"row 0 .*call"):
        list(client.map([own], key="labels"))
    with pytest.raises(InvalidRequest, match="key"):
        client.stream("a", key="labels")  # type: ignore[call-arg]
    assert remote.asked == []


def test_a_store_that_cannot_be_used_is_told_before_anything_is_sent(client_of, tmp_path, remote):
    (tmp_path / "file").write_text("no folder")
    client = client_of(remote, store=str(tmp_path / "file" / "jobs.db"))
    with pytest.raises((StoreError, ConfigError)):
        client.map(PROMPTS, key="labels")
    assert remote.asked == []


def test_a_plan_with_a_key_runs_as_the_list_would(remote, client):
    options: dict[str, Any] = {"strategy": "individual", "key": "labels"}
    assert client.plan(PROMPTS, **options).run().succeeded == 30
    assert client.generate(PROMPTS, **options).succeeded == 30
    assert len(remote.asked) == 30


def test_a_list_with_a_budget_goes_on_within_it(client_of, clock, store):
    remote = Remote(clock, latency=1.0, priced=True)
    settings: dict[str, Any] = {"store": store, "prices": {"remote:default": Price(1e6, 1e6)}}
    options: dict[str, Any] = {"key": "labels", "max_tokens": 2, "strategy": "individual", "budget": 400.0}
    first = client_of(remote, parallelism=1, **settings)
    paid = next(iter(first.map(PROMPTS, **options))).cost
    first.stop(60.0)
    results = client_of(remote, seed_of_rng=2, **settings).generate(PROMPTS, **options)
    assert results.succeeded == 30
    assert paid is not None
    assert 0.0 < results.paid_now <= 400.0 - paid
    assert (results[0].cost, results[0].paid_before) == (paid, True)
    assert results.cost >= results.paid_now + paid


@pytest.mark.full
def test_rows_that_were_asked_again_are_paid_for_once(client_of, clock, store):
    down = {"p1", "p2"}

    def reply(prompt: str) -> str:
        if prompt in down:
            raise ProviderError("refused", kind=ErrorKind.CLIENT_ERROR, status=400)
        return prompt

    remote = Remote(clock, priced=True, reply=reply)
    prices = {"remote:default": Price(1e6, 1e6)}
    client = client_of(remote, store=store, prices=prices, max_tokens=2)
    options: dict[str, Any] = {"key": "labels", "strategy": "individual"}
    assert client.generate(PROMPTS, **options).failed == 2
    down.clear()
    job = client.job("labels")
    assert job.retry_failed().count == 2
    job.wait()
    asked = len(remote.asked)
    again = client.generate(PROMPTS, **options)
    assert {(result.ok, result.route) for result in again} == {(True, Route.CACHED)}
    assert (again.paid_now, again.cost) == (0.0, job.status().cost)
    assert len(remote.asked) == asked
