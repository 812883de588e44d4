"""Several answers per prompt, and requests that share an answer: alone, in lists, and in jobs."""

from __future__ import annotations

import csv
import itertools
import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any

import pytest

from smartbatch import BatchingClient, InvalidRequest, Request, ResultList
from smartbatch.cli.main import main
from smartbatch.errors import AllRequestsFailed, ErrorKind, ProviderError
from smartbatch.testing import MockProvider
from smartbatch.types import Answer, Generation, Usage
from tests.levels import sampled
from tests.tables.kinds import TABLES

ClientOf = Callable[..., BatchingClient]
LONG = 30.0


def counting(**settings: Any) -> MockProvider:
    numbers = itertools.count(1)
    return MockProvider(lambda _: Answer(f"answer {next(numbers)}", usage=Usage(10, 5)), **settings)


@pytest.fixture
def stored(client_of, tmp_path):
    return lambda *args, **settings: client_of(*args, store=str(tmp_path / "jobs.db"), **settings)


# -- n ---------------------------------------------------------------------------------------------------


def test_a_single_request_has_its_answers_in_its_result(client_of):
    provider = counting()
    client = client_of(provider)
    result = client.submit("A poem.", n=3, context="c", id="mine").result(LONG)
    assert sorted(answer.text or "" for answer in result.answers) == ["answer 1", "answer 2", "answer 3"]
    assert [answer.request_id for answer in result.answers] == ["mine", "mine#2", "mine#3"]
    assert {answer.context for answer in result.answers} == {"c"}
    assert (result.text, result.request_id) == (result.answers[0].text, "mine")
    assert (result.usage, result.attempts, result.cost) == (Usage(30, 15), 3, 0.0)
    assert client.counts.succeeded == len(provider.calls) == 3


@pytest.mark.parametrize("way", ["list", "iterator", "key", "job", "wait"])
def test_lists_have_a_result_for_each_answer(stored, way):
    provider = MockProvider(lambda request: f"{request.prompt} {next(numbers)}")
    numbers = itertools.count(1)
    client = stored(provider, batch_enabled=False, batch_fallback="individual")
    prompts = ["a", Request("b", Generation(n=1)), "c"]
    ways: dict[str, Callable[[], Any]] = {
        "list": lambda: client.generate(prompts, n=3),
        "iterator": lambda: client.map(iter(prompts), n=3),
        "key": lambda: client.generate(prompts, n=3, key="poems"),
        "job": lambda: client.submit_batch(prompts, n=3).results(),
        "wait": lambda: client.submit_and_wait(prompts, n=3),
    }
    results = list(ways[way]())
    texts = [str(result.text) for result in results]
    assert [text[0] for text in texts] == list("aaabccc")
    assert [result.sample for result in results] == [0, 1, 2, None, 0, 1, 2]
    assert [result.row for result in results] == [0, 0, 0, 1, 2, 2, 2]
    assert len(set(texts)) == len(provider.calls) == 7
    if way == "key":
        assert [str(result.text) for result in ways[way]()] == texts
        assert len(provider.calls) == 7


def as_dicts(table: Any) -> list[dict[str, Any]]:
    if hasattr(table, "to_dicts"):
        return table.to_dicts()  # type: ignore[no-any-return]
    if hasattr(table, "iloc"):
        return table.to_dict("records")  # type: ignore[no-any-return]
    return table.to_pylist() if hasattr(table, "to_pylist") else list(table)


@pytest.mark.parametrize("kind", sampled(TABLES))
@pytest.mark.parametrize("deduplicate", [None, True])
def test_a_row_of_a_table_comes_once_for_each_answer(client_of, kind, deduplicate):
    client = client_of(MockProvider(lambda request: f"to {request.prompt}"))
    table = TABLES[kind]([{"text": text, "stars": at} for at, text in enumerate(["a", "", "b"])])
    results = client.generate(table, column="text", on_missing="skip", n=2, deduplicate=deduplicate)
    expected = [("a", 0, 0, 0, "to a"), ("a", 0, 0, 1, "to a"), ("", 1, 1, None, None)]
    expected += [("b", 2, 2, 0, "to b"), ("b", 2, 2, 1, "to b")]
    names = ("stars", "row", "sample", "result_text")
    found = [[each[name] for name in ("text", *names)] for each in as_dicts(results.to_table())]
    assert [[None if each != each else each for each in row] for row in found] == [
        list(row) for row in expected
    ]
    assert [row["row"] for row in results.as_dicts()] == [0, 0, 1, 2, 2]
    if kind == "pandas":
        assert list(results.to_table().index) == list(results.to_pandas().index) == [0, 0, 1, 2, 2]


def test_results_of_a_job_are_put_next_to_their_rows(stored, capfd, tmp_path):
    provider = MockProvider(lambda request: f"to {request.prompt}")
    client = stored(provider, batch_enabled=False, batch_fallback="individual")
    rows = [{"text": "a"}, {"text": "b"}]
    job = client.submit_batch(rows, column="text", n=2)
    table = ResultList(job.results()).to_table(rows)
    assert [(row["text"], row["sample"]) for row in table] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    with pytest.raises(ValueError, match="3 rows, but there are 4 results of 2 prompts"):
        ResultList(job.results()).to_table([*rows, {"text": "c"}])
    line = ["jobs", "results", job.id, "--store", str(tmp_path / "jobs.db")]
    assert main(line) == 0
    lines = [json.loads(each) for each in capfd.readouterr().out.splitlines()]
    places = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    assert [(each["index"], each["row"], each["sample"]) for each in lines] == places
    assert main([*line, "-o", str(tmp_path / "out.csv")]) == 0
    with open(tmp_path / "out.csv", newline="") as file:
        cells = [(int(each["index"]), int(each["row"]), int(each["sample"])) for each in csv.DictReader(file)]
    assert cells == places


def test_what_a_hook_refuses_is_named_by_the_row_of_its_prompt(stored):
    def hook(request: Request) -> Request:
        if request.prompt == "c":
            raise InvalidRequest("no c")
        return Request(request.prompt)

    client = stored(counting(), preprocess=[hook], batch_enabled=False, batch_fallback="individual")
    for ask in (client.submit_batch, partial(client.generate, key="k")):
        with pytest.raises(InvalidRequest, match=r"row 2 \(counted from 0\): no c"):
            ask(["a", "b", "c"], n=2)
    results = client.generate(["a", "b"], n=2, key="all")
    assert [(result.row, result.sample) for result in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(set(results.texts)) == 4


def test_a_plan_counts_each_answer(stored):
    client = stored(counting())
    assert client.plan(["a", "b"], n=3).decision.load.requests == 6
    assert client.forecast(iter(["a", "b"]), n=3).decision.load.requests == 6


def test_the_client_may_ask_for_several(client_of):
    client = client_of(counting(), n=2, preprocess=[lambda request: request])
    assert len(client.submit("a").result(LONG).answers) == 2
    assert client.submit("a", n=1).result(LONG).answers == ()
    assert len(client.generate(["a", "b"])) == 4
    assert len(client.generate(["a"], n=1)) == 1


def test_a_stored_request_keeps_each_answer(stored):
    provider = counting()
    client = stored(provider)
    for given in ({"key": "k"}, {"durable": True}):
        first, second = (client.submit("a", n=2, **given).result(LONG) for _ in range(2))
        assert {answer.text for answer in first.answers} == {answer.text for answer in second.answers}
        assert len({answer.text for answer in first.answers}) == 2
    assert len(provider.calls) == 4


def test_failed_answers_stand_next_to_the_others(client_of):
    provider = counting(fail_on={1: ErrorKind.CLIENT_ERROR})
    result = client_of(provider, parallelism=1).submit("a", n=3).result(LONG)
    assert [answer.ok for answer in result.answers] == [False, True, True]
    assert (result.ok, result.text) == (True, result.answers[1].text)
    none = client_of(MockProvider(fail_on=dict.fromkeys(range(1, 9), ErrorKind.CLIENT_ERROR)))
    assert isinstance(none.submit("a", n=3).exception(LONG), ProviderError)
    with pytest.raises(AllRequestsFailed):
        none.generate(["a"], n=3)


def test_cancelling_ends_each_answer_that_has_not_started(client_of):
    began, go_on = threading.Event(), threading.Event()

    def answer(_: Request) -> str:
        began.set()
        assert go_on.wait(LONG)
        return "answer"

    provider = MockProvider(answer)
    client = client_of(provider, parallelism=1)
    begun = client.submit("a", n=3)
    assert began.wait(LONG)
    waiting, pending = client.submit("b", n=3), client.submit("c", n=2)
    assert waiting.cancel()
    assert waiting in wait([waiting], LONG).done
    assert client.cancel_pending() == 2 + 2  # of the two remaining prompts
    assert pending.cancelled()
    assert not begun.cancel()
    go_on.set()
    result = begun.result(LONG)
    assert [answer.text for answer in result.answers] == ["answer", None, None]
    assert len(provider.calls) == 1


def test_a_callback_may_wait_for_several_answers(client_of):
    client = client_of(counting())
    seen: queue.Queue[int] = queue.Queue()
    future = client.submit("a")
    future.add_done_callback(lambda _: seen.put(len(client.submit("b", n=2).result(LONG).answers)))
    assert seen.get(timeout=LONG) == 2


@pytest.mark.parametrize("n", [0, 129, 1.5, True])
def test_a_number_that_is_none_is_refused(client_of, n):
    with pytest.raises(InvalidRequest, match="n must be a whole number from 1 to 128"):
        client_of(counting()).submit("a", n=n)


def test_what_has_one_answer_refuses_several(client_of):
    client = client_of(counting())
    with pytest.raises(InvalidRequest, match="a stream has one answer"):
        client.stream("a", n=2)
    with pytest.raises(InvalidRequest, match="n has no effect on embeddings"):
        client.embed(["a"], n=2)
    hooked = client_of(counting(), preprocess=[lambda _: Request("x", Generation(n=2))])
    with pytest.raises(InvalidRequest, match="n cannot be set by a preprocess hook"):
        hooked.submit("a")


# -- sharing ---------------------------------------------------------------------------------------------

# settings, parameters, and the number of calls for three identical requests
SHARED: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({}, {}, 1),
    ({}, {"temperature": 0.0}, 1),
    ({}, {"temperature": 0.7}, 3),
    ({"temperature": 0.7}, {}, 3),
    ({}, {"extra": {"temperature": 1}}, 3),
    ({}, {"extra": {"generationConfig": {"temperature": 1}}}, 3),
    ({}, {"temperature": 0.7, "deduplicate": True}, 1),
    ({"deduplicate": True}, {"temperature": 0.7}, 1),
    ({}, {"deduplicate": False}, 3),
    ({"deduplicate": False}, {}, 3),
    ({"deduplicate": False}, {"deduplicate": True}, 1),
]


@pytest.mark.parametrize(("settings", "params", "calls"), SHARED)
@pytest.mark.parametrize("way", sampled(["submit", "list", "job"]))
def test_which_equal_requests_share_an_answer(stored, clock, settings, params, calls, way):
    provider = counting(latency=1.0, sleep=clock.sleep)
    client = stored(provider, batch_enabled=False, batch_fallback="individual", **settings)
    if way == "submit":
        with clock.held():
            futures = [client.submit("a", **params) for _ in range(3)]
        results = [future.result(LONG) for future in futures]
    elif way == "list":
        results = list(client.generate(["a"] * 3, **params))
    else:
        results = list(client.submit_batch(["a"] * 3, **params).results())
    assert len({result.text for result in results}) == len(provider.calls) == calls
    assert sum(result.deduplicated for result in results) == 3 - calls


@pytest.mark.parametrize(("settings", "params"), [({}, {"deduplicate": True}), ({"deduplicate": True}, {})])
def test_several_answers_are_shared_if_that_is_asked_for(client_of, clock, settings, params):
    provider = counting(latency=1.0, sleep=clock.sleep)
    result = client_of(provider, **settings).submit("a", n=3, **params).result(LONG)
    assert len(result.answers) == 3
    assert len(provider.calls) == 1
    assert result.usage == Usage(10, 5)


def test_the_cache_has_an_entry_for_each_answer(client_of, tmp_path):
    provider = counting(name="cached")
    first, again = (
        client_of(provider, cache=str(tmp_path / "cache.db")).generate(["a"], n=3, temperature=1.0)
        for _ in range(2)
    )
    assert len(set(first.texts)) == len(provider.calls) == 3
    assert again.texts == first.texts
