"""Lists sent as a batch read like lists sent in real time: hooks, middleware, cache and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from jobs.remote import Api, Remote

from smartbatch import BatchingClient
from smartbatch._clock import VirtualClock
from smartbatch.errors import InvalidRequest
from smartbatch.events import Event, RouteScored
from smartbatch.providers.batch_api import BatchApi, Line
from smartbatch.types import Answer, Kind, Prompt, Request, Result, Route, Usage, evolve
from tests.levels import sampled

ClientOf = Callable[..., BatchingClient]

WAYS = ["individual", "batch", "hybrid"]
each_way = pytest.mark.parametrize("way", WAYS)
both_orders = pytest.mark.parametrize("ordered", sampled([True, False]))


@pytest.fixture
def files(tmp_path):
    return {"store": str(tmp_path / "jobs.db"), "cache": str(tmp_path / "answers.db")}


@each_way
@both_orders
def test_a_hook_sees_each_answer_of_a_list_once_with_its_own_context(way, ordered, client_of, clock, files):
    seen: list[Any] = []

    def hook(result: Result) -> Result:
        seen.append(result.context)
        return evolve(result, text=f"<{result.text}>", parsed=result.context)

    client = client_of(Remote(clock), post_process=hook, **files)
    requests = [Request(f"p{n}", context={"row": n}) for n in range(30)]
    results = list(client.as_completed(requests, strategy=way, ordered=ordered))
    rows = [result.context["row"] for result in results]
    assert sorted(rows) == list(range(30))
    assert rows == sorted(rows) or not ordered
    assert sorted(context["row"] for context in seen) == list(range(30))
    assert all(result.text == f"<{result.text.strip('<>')}>" for result in results if result.text)
    assert all(str(result.text).endswith(f" p{result.context['row']}>") for result in results)
    assert all(result.parsed == result.context for result in results)  # the hook's object is kept


@pytest.mark.parametrize("later", sampled(["individual", "batch"], first=1))
@each_way
def test_the_cache_keeps_the_answer_before_the_hook(way, later, client_of, clock, files):
    client = client_of(
        Remote(clock), post_process=lambda result: evolve(result, text=f"<{result.text}>"), **files
    )
    prompts = [f"p{n}" for n in range(20)]
    first = client.generate(prompts, strategy=way)
    again = client.generate([*prompts, "another"], strategy=later)
    assert [result.route for result in again[:20]] == [Route.CACHED] * 20
    assert [result.text for result in again[:20]] == first.texts
    assert all(str(text).count("<") == 1 for text in again.texts)


class Various(Remote):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        assert self.api is not None
        self.api = VariousBatches(self, clock, 100.0, frozenset({Kind.GENERATE}))

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        return various(super().generate(request, model=model, attempt=attempt, timeout=timeout))

    def batches(self) -> BatchApi | None:
        return self.api


class VariousBatches(Api):
    def read_line(self, line: bytes, kind: Kind) -> Line:
        read = super().read_line(line, kind)
        assert read.answer is not None
        return evolve(read, answer=evolve(various(read.answer), value=None))


def various(answer: Answer) -> Answer:
    text = str(answer.text)
    usage = answer.usage or Usage()
    return evolve(
        answer,
        finish_reason="length" if "cut" in text else "stop",
        value={"made": text} if "object" in text else None,
        usage=usage,
    )


@pytest.mark.parametrize("way", sampled(WAYS, first=2))
def test_the_same_answers_are_kept_whatever_way_a_list_went(way, client_of, clock, files):
    client = client_of(Various(clock), **files)
    prompts: list[Prompt] = [f"{what} {n}" for n in range(10) for what in ("plain", "cut", "object")]
    first = client.generate(prompts, strategy=way)
    assert first.succeeded == 30
    objects = {n for n, result in enumerate(first) if result.parsed is not None}
    assert objects or way == "batch"
    again = client.generate(prompts, strategy="individual")
    cached = {n for n, result in enumerate(again) if result.route is Route.CACHED}
    assert {n for n in range(30) if n % 3 == 0} <= cached
    assert not cached & {n for n in range(30) if n % 3 == 1}
    assert not cached & objects


class Numbers(VariousBatches):
    def read_line(self, line: bytes, kind: Kind) -> Line:
        read = super().read_line(line, kind)
        assert read.answer is not None
        return evolve(read, answer=evolve(read.answer, text='{"n": 1}'))


@pytest.mark.parametrize("way", sampled(WAYS, first=1))
def test_json_that_was_asked_for_is_decoded_whatever_way_a_list_went(way, client_of, clock, files):
    remote = Remote(clock, reply=lambda prompt: '{"n": 1}')
    remote.api = Numbers(remote, clock, 100.0, frozenset({Kind.GENERATE}))
    client = client_of(remote, **files)
    prompts = [f"p{n}" for n in range(20)]
    asked: dict[str, Any] = {"response_format": {"type": "json_object"}}
    for route in (way, "individual"):
        results = client.generate(prompts, strategy=route, **asked)
        assert [result.parsed for result in results] == [{"n": 1}] * 20
    assert {result.route for result in results} == {Route.CACHED}
    assert {result.parsed for result in client.generate(prompts, strategy=way)} == {None}


@both_orders
def test_each_answer_of_a_list_is_that_of_its_own_prompt(ordered, client_of, clock, files):
    client = client_of(
        Remote(clock), preprocess=[lambda request: "own" if request.prompt == "mine" else None], **files
    )
    client.generate([f"p{n}" for n in range(0, 40, 3)], strategy="individual")
    texts = ["mine" if n % 7 == 0 else f"p{n % 20}" for n in range(40)]
    requests = [Request(text, context=(text, n)) for n, text in enumerate(texts)]
    results = list(client.as_completed(requests, strategy="batch", ordered=ordered))
    assert {result.route for result in results} == {Route.BATCH, Route.CACHED, Route.LOCAL}
    assert any(result.deduplicated for result in results)
    for result in results:
        text, _ = result.context
        assert result.text == "own" if text == "mine" else str(result.text).endswith(f": {text}")
    contexts = [result.context for result in results]
    assert sorted(contexts, key=lambda context: context[1]) == [request.context for request in requests]
    assert contexts == [request.context for request in requests] or not ordered


PROMPTS = [f"p{n}" for n in range(30)]


def made(remote: Remote) -> int:
    assert remote.api is not None
    return len(remote.api.made)


@each_way
def test_a_list_that_a_hook_answers_by_itself_is_not_sent(way, client_of, remote):
    events: list[Event] = []

    def known(request: Request) -> Answer | str:
        return Answer("known", value=7) if request.prompt == "p3" else "text"

    client = client_of(remote, preprocess=[known], observers=[events.append])
    results = client.generate(PROMPTS, strategy=way)
    assert {result.route for result in results} == {Route.LOCAL}
    assert (results[3].text, results[3].parsed, results[4].text) == ("known", 7, "text")
    assert client.jobs() == []
    assert (made(remote), remote.asked) == (0, [])
    assert [event.cost for event in events if isinstance(event, RouteScored)] == [0.0]


@each_way
def test_a_row_that_a_hook_refuses_is_named_and_leaves_no_job_behind(way, client_of, remote):
    def strict(request: Request) -> None:
        if request.prompt == "p20":
            raise InvalidRequest("not this one", field="prompt")

    client = client_of(remote, preprocess=[strict])
    with pytest.raises(InvalidRequest, match="not this one") as refused:
        client.generate(PROMPTS, strategy=way)
    if way == "individual":
        assert refused.value.__notes__ == ["raised while prompt 20 (counted from 0) was read"]
        return
    assert str(refused.value).startswith("row 20 (counted from 0)")
    assert refused.value.row == 20
    assert client.jobs() == []
    assert (made(remote), remote.asked) == (0, [])


@each_way
def test_middleware_is_around_calls_and_a_batch_is_none(way, client_of, remote):
    seen: list[Any] = []

    def watching(call: Any, proceed: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
        seen.extend(request.prompt for request in call.requests)
        return proceed(call)

    results = client_of(remote, middleware=[watching]).generate(PROMPTS, strategy=way)
    alone = [PROMPTS[n] for n, result in enumerate(results) if result.route is Route.INDIVIDUAL]
    assert sorted(seen) == sorted(alone)
    assert len(alone) == {"individual": 30, "batch": 0}.get(way, len(alone))
    assert results.succeeded == 30
