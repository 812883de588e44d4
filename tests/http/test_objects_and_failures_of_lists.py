"""Lists by batch over HTTP, in virtual time: objects, single failures and vectors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Annotated, Literal

import attrs
import pydantic
import pytest

from smartbatch.core.preparation import structured
from smartbatch.errors import AllRequestsFailed, AnswerUnread, ErrorKind, SmartbatchError
from smartbatch.types import Generation, Request, Route
from tests.faults.world import HOUR, MINUTE, PROVIDERS, in_batch, texts, world
from tests.levels import sampled


@attrs.frozen
class Attrs:
    name: str
    tags: list[str]
    inner: Dataclass | None = None


@dataclasses.dataclass(frozen=True)
class Dataclass:
    name: str
    count: int


class Pydantic(pydantic.BaseModel):
    name: str
    count: int
    done: bool


class Node(pydantic.BaseModel):
    size: int = pydantic.Field(ge=3, multiple_of=5)
    word: str = pydantic.Field(min_length=2, max_length=4)
    place: tuple[int, Literal["a"]]
    tags: set[str] = set()
    kind: Annotated[Dataclass | Pydantic, pydantic.Field(description="one of two")]
    parts: list[Node]


KINDS = (Attrs, Dataclass, Pydantic)
each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=1))
each_way = pytest.mark.parametrize("way", ["batch", "hybrid"])


def all_until_one_fails(w, results):
    seen = []
    with pytest.raises(SmartbatchError) as raised:
        seen.extend(results)
    return seen, raised.value


@pytest.mark.parametrize("provider", sampled(PROVIDERS))
def test_a_batch_sends_each_schema_in_the_form_that_its_provider_takes(provider, tmp_path):
    kinds = [Node, list[int], Literal["a", "b"], Node | None]
    requests = [Request(text, Generation(schema=kinds[n % 4])) for n, text in enumerate(texts(12))]
    with world(provider, tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        found = w.process().generate(requests, strategy="batch")
        assert [result.error for result in found] == [None] * 12
        assert {(result.route, result.attempts) for result in found} == {(Route.BATCH, 1)}
        made = [type(result.parsed) for result in found]
        assert made == [Node, list, str, Node] * 3


@each_provider
def test_an_error_of_ours_keeps_the_answers_of_a_batch(provider, tmp_path, monkeypatch):
    def broken(text):
        raise ImportError("half made")

    with world(provider, tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process()
        monkeypatch.setattr(structured, "recover_json", broken)
        with pytest.raises(AllRequestsFailed) as raised:
            client.generate(texts(12), schema=Pydantic, strategy="batch")
        found = raised.value.results
        assert {type(result.error) for result in found} == {AnswerUnread}
        assert all(result.text and result.error.text == result.text for result in found)
        assert {(result.route, result.attempts) for result in found} == {(Route.BATCH, 1)}


@pytest.mark.full
@each_way
@each_provider
def test_a_list_by_batch_makes_objects_of_each_requests_own_class(provider, way, tmp_path):
    requests = [Request(text, Generation(schema=KINDS[n % 3])) for n, text in enumerate(texts(18))]
    with world(provider, tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process(cache=str(tmp_path / "answers.db"))
        found = client.generate(requests, strategy=way)
        again = client.generate(requests, strategy="individual")
        alone = w.process().generate(requests, strategy="individual")
        assert [type(result.parsed) for result in found] == [KINDS[n % 3] for n in range(18)]
        assert Route.BATCH in {result.route for result in found}
        assert [result.parsed for result in found] == [result.parsed for result in alone]
        assert {result.route for result in again} == {Route.CACHED}
        assert [result.parsed for result in again] == [result.parsed for result in found]


def test_a_batch_answer_that_does_not_fit_its_class_is_repaired_alone(tmp_path):
    def spoil(position, answer):
        if position == 4:
            answer["choices"][0]["message"]["content"] = json.dumps({"name": "x", "count": "many"})

    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        client = w.process()
        w.edit_answers(spoil)
        results = client.generate(texts(12), strategy="batch", schema=Dataclass)
        assert {type(result.parsed) for result in results} == {Dataclass}
        assert [n for n, result in enumerate(results) if result.route is not Route.BATCH] == [4]
        assert len(w.requests("ask")) == 1


@each_provider
def test_a_refused_batch_line_raises_in_its_place_on_request(provider, tmp_path):
    line = in_batch(0, "item_invalid", {5})
    with world(provider, tmp_path, rare=60, batch_turnaround=MINUTE, batch_line_fault_for=line) as w:
        client = w.process()
        seen, error = all_until_one_fails(w, client.map(texts(12), strategy="batch", on_error="raise"))
        assert [result.text for result in seen] == w.right(texts(12))[:5]
        assert error.kind is ErrorKind.CLIENT_ERROR
        (job,) = client.jobs()
        stored = list(job.results(wait=False))
        assert [n for n, result in enumerate(stored) if not result.ok] == [5]


def test_the_first_failure_of_a_hybrid_cancels_its_batch(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=HOUR) as w:
        client = w.process(retries=0)
        w.service.meet = lambda seen: w.refusal(400) if seen.what == "ask" else None
        seen, _ = all_until_one_fails(w, client.map(texts(30), strategy="hybrid", on_error="raise"))
        assert not seen
        (job,) = client.jobs()
        status = w.wait(job)
        assert status.done
        assert status.cancelled + status.failed == 30
        assert status.completed == 0


@pytest.mark.full
@each_provider
def test_as_completed_yields_the_real_time_part_of_a_hybrid_first(provider, tmp_path):
    with world(provider, tmp_path, rare=60, batch_turnaround=HOUR) as w:
        client = w.process()
        requests = [Request(text, context=n) for n, text in enumerate(texts(30))]
        began = w.clock.now()
        stream = client.as_completed(requests, strategy="hybrid")
        came = [(result.context, result.route, w.clock.now() - began) for result in stream]
        assert sorted(position for position, _, _ in came) == list(range(30))
        early = [position for position, _, after in came if after < MINUTE]
        assert sorted(early) == [position for position, route, _ in sorted(came) if route is not Route.BATCH]
        assert Counter(route for _, route, _ in came)[Route.BATCH] >= 20
        assert all(after > 30 * MINUTE for _, route, after in came if route is Route.BATCH)


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_vectors_come_by_batch_as_in_real_time(provider, tmp_path):
    model = {"openai": "text-embedding-3-small", "gemini": "gemini-embedding-001"}[provider]
    with world(provider, tmp_path, rare=60, batch_turnaround=MINUTE) as w:
        found = w.process(model=model).embed(texts(12), strategy="batch")
        alone = w.process(model=model).embed(texts(12), strategy="individual")
        assert {result.route for result in found} == {Route.BATCH}
        assert [result.embedding for result in found] == [result.embedding for result in alone]
