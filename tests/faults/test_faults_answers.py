"""Refusals and answers of every shape: rows C1 to C4, C6 and C28, where a batch meets them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import Embedding, Request
from tests.faults.world import DAY, HOUR, MINUTE, PROVIDERS, Seen, holders, in_batch, texts
from tests.levels import sampled

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=2))

_FORMS = ("", "0", "-1", "NaN", "inf", "1e9", "99999999999999999999", "1.5", "soon", "12 s", "0x10", "1,2")
_DATES = ("Wed, 21 Oct 2015 07:28:00", "Fri, 31 Dec 9999 23:59:59", "Wed, 32 Foo 2026 99:99:99")
RETRY_AFTER: tuple[dict[str, str], ...] = (
    *({}, {"retry-after-ms": "1500"}, {"retry-after-ms": "-1"}, {"retry-after-ms": "1e400"}),
    *({"retry-after": value} for value in (*_FORMS, *(f"{date} GMT" for date in _DATES))),
    {"retry-after-ms": "NaN", "retry-after": "3"},
)


@pytest.mark.full
@each_provider
def test_c1_no_form_of_retry_after_is_obeyed_blindly(provider, new_world):
    """Twenty forms, for every call about a batch; no pause exceeds ten minutes."""
    w = new_world(rare=600, batch_turnaround=MINUTE)
    met: dict[str, int] = {}

    def refuse(seen: Seen) -> ServerReply | None:
        number = met.get(seen.what, 0)
        met[seen.what] = number + 1
        if number >= len(RETRY_AFTER):
            return None
        return w.refusal(
            429 if seen.what == "create" or number % 2 else 503, "slow down", RETRY_AFTER[number]
        )

    w.service.meet = refuse
    w.answered_job(texts(3), batch_settle=MINUTE)
    stages = {"list", "create", "get", "download"} | ({"upload"} if provider != "anthropic" else set())
    assert all(met[stage] > len(RETRY_AFTER) for stage in stages)
    at = [seen.at for seen in w.service.seen]
    pauses = [after - before for before, after in itertools.pairwise(at)]
    assert max(pauses) <= 10 * MINUTE + 1


NO_MONEY: dict[str, tuple[int, str, str | None]] = {
    "openai": (429, "You exceeded your current quota, please check your plan.", "insufficient_quota"),
    "anthropic": (400, "Your credit balance is too low to access the Anthropic API.", None),
    "gemini": (429, "Your prepayment credits are depleted.", None),
}


@pytest.mark.full
@pytest.mark.parametrize("what", sampled(["upload", "list", "create"], keep=1))
@each_provider
def test_c2_without_money_nothing_more_is_sent_and_the_queue_is_kept(provider, what, new_world):
    w = new_world(rare=600)
    stage = "create" if what == "upload" and provider == "anthropic" else what
    status, text, code = NO_MONEY[provider]
    broke = w.refusal(status, text, code=code)
    w.service.meet = lambda seen: broke if seen.what == stage else None
    client = w.process()
    asked = [texts(3, f"job {number}") for number in range(2)]
    jobs = [client.submit_batch(prompts) for prompts in asked]
    w.pass_time(HOUR)
    assert {job.status().state for job in jobs} == {"held"}
    assert all("no credit" in str(job.status().note) for job in jobs)  # told once, with what to do
    sent = len(w.service.seen)
    w.pass_time(3 * DAY)
    assert len(w.service.seen) == sent  # not one call after the stop
    w.service.meet = lambda seen: None
    for job, prompts in zip(jobs, asked, strict=True):
        assert (job.status().failed, job.status().total) == (0, 3)
        job.resume()
        assert [result.text for result in w.results(job)] == w.right(prompts)


@each_provider
def test_c3_a_poisonous_item_fails_alone_and_delays_nobody(new_world):
    w = new_world(batch_line_fault_for=in_batch(0, "item_error", {3}))
    prompts = texts(10)
    poison = f'"{prompts[3]}"'.encode()
    w.service.meet = lambda seen: (
        w.refusal(500, "boom") if seen.what == "ask" and poison in seen.body else None
    )
    others_done: list[bool] = []
    client = w.process(retries=2)
    job = client.submit_batch(prompts)
    job.on_progress(lambda status: others_done.append(status.completed == 9))
    results = w.results(job)
    right = w.right(prompts)
    assert [at for at, result in enumerate(results) if result.text != right[at]] == [3]
    assert isinstance(results[3].error, ProviderError)
    assert results[3].error.kind is ErrorKind.SERVER_ERROR
    assert len(w.requests("ask")) <= 3
    assert len(w.creates) == 1
    first_try = min(seen.at for seen in w.requests("ask"))
    assert max(seen.at for seen in w.requests("download")) <= first_try  # the others had theirs before


Edit = Callable[[dict[str, Any]], None]


def _main(answer: dict[str, Any]) -> str:
    return next(name for name in ("choices", "output", "content", "candidates") if name in answer)


def _put(value: Any) -> Edit:
    return lambda answer: answer.__setitem__(_main(answer), value)


def _deep(name: str, value: Any) -> Edit:
    def walk(found: Any) -> None:
        for holder in list(holders(found)):
            if name in holder:
                holder[name] = value

    return walk


def _without(name: str) -> Edit:
    return lambda answer: answer.pop(name, None) and None


def _all(*edits: Edit) -> Edit:
    def edit(answer: dict[str, Any]) -> None:
        for each in edits:
            each(answer)

    return edit


SHAPES: dict[str, Edit] = {
    "nothing at all": dict.clear,
    "an error in a success": lambda answer: answer.update(
        error={"message": "overloaded", "type": "server_error", "code": 500}
    ),
    "main list null": _put(None),
    "main list empty": _put([]),
    "main list a text": _put("hello"),
    "main list of numbers": _put([1, 2]),
    "main list of nothing": _put([{}]),
    "main list of null": _put([None]),
    "text null": _deep("text", None),
    "text a number": _deep("text", 7),
    "content null": _deep("content", None),
    "content of another type": _deep("content", [{"type": "novelty", "data": "x"}]),
    "parts empty": _deep("parts", []),
    "cut by length": _all(
        _deep("finish_reason", "length"),
        _deep("stop_reason", "max_tokens"),
        _deep("finishReason", "MAX_TOKENS"),
    ),
    "refused": _all(
        _deep("finish_reason", "content_filter"),
        _deep("stop_reason", "refusal"),
        _deep("finishReason", "SAFETY"),
    ),
    "an unknown end": _all(
        *(_deep(name, "novelty") for name in ("finish_reason", "stop_reason", "finishReason", "status"))
    ),
    "ids of another type": _deep("id", 12),
    "usage a text": lambda answer: answer.update(usage="many", usageMetadata=[1]),
    "model missing": _all(_without("model"), _without("modelVersion")),
}


@each_provider
def test_c4_every_shape_of_an_answer_has_a_typed_outcome(new_world):
    shapes = list(SHAPES.values())
    assert len(shapes) >= 15
    w = new_world(may_pay_twice=True)

    def spoil(position: int, answer: dict[str, Any]) -> None:
        if position % 2 == 0:
            shapes[position // 2](answer)

    w.edit_answers(spoil)
    prompts = texts(2 * len(shapes))
    job = w.process().submit_batch(prompts)
    results = w.results(job)
    right = w.right(prompts)
    for position, result in enumerate(results):
        if position % 2:
            assert result.text == right[position]
        elif result.error is None:
            assert result.text in (right[position], "")  # the answer, in the end, or truly nothing
        else:
            assert isinstance(result.error, ProviderError)
            assert result.error.kind is not ErrorKind.UNKNOWN
    assert job.status().total == job.status().finished
    assert len(w.creates) == 1
    assert not [event for event in w.events if "Crash" in type(event).__name__]
    assert "inside smartbatch" not in str(job.status().note)


EMBEDDERS = {"openai": "text-embedding-3-small", "gemini": "gemini-embedding-001"}


def _vectors(answer: dict[str, Any], provider: str) -> dict[str, Any]:
    return answer["data"][0] if provider == "openai" else answer["embedding"]


VECTORS: dict[str, Callable[[list[float]], Any]] = {
    "too short": lambda numbers: numbers[:-1],
    "too long": lambda numbers: [*numbers, 0.5],
    "empty": lambda numbers: [],
    "not a number": lambda numbers: [math.nan, *numbers[1:]],
    "endless": lambda numbers: [math.inf, *numbers[1:]],
    "texts": lambda numbers: ["0.5" for _ in numbers],
    "null": lambda numbers: None,
    "no list": lambda numbers: {"0": numbers[0]},
}


@pytest.mark.parametrize("provider", EMBEDDERS)
def test_c6_broken_vectors_find_their_texts_or_none(provider, new_world):
    edits = list(VECTORS.values())
    name = "embedding" if provider == "openai" else "values"

    def spoil(position: int, answer: dict[str, Any]) -> None:
        if position % 3 == 0 and position // 3 < len(edits):
            holder = _vectors(answer, provider)
            if isinstance(holder[name], list):
                holder[name] = edits[position // 3](holder[name])

    faults = {"shuffled": 1.0, "missing_lines": 0.1, "foreign_lines": 0.2}
    w = new_world(may_pay_twice=True, batch_faults=faults)
    w.edit_answers(spoil)
    prompts = texts(60, "a text about")
    client = w.process(model=EMBEDDERS[provider])
    job = client.submit_batch(prompts, embedding=Embedding(dimensions=16))
    results = w.results(job)
    for result, prompt in zip(results, prompts, strict=True):
        if result.error is None:
            assert result.embedding is not None
            assert list(result.embedding) == list(vector_for(prompt, EMBEDDERS[provider], 16))
    assert sum(result.ok for result in results) >= 55
    assert job.status().finished == 60


USAGES: tuple[Any, ...] = (None, {}, "many", -5, 2**63, 10**18, 1.5, True, "NaN")


@each_provider
def test_c28_usage_that_cannot_be_is_replaced_by_an_estimate_that_says_so(provider, new_world):
    w = new_world()

    def absurd(position: int, answer: dict[str, Any]) -> None:
        value = USAGES[position % len(USAGES)]
        name = "usageMetadata" if provider == "gemini" else "usage"
        if value is None:
            answer.pop(name)
        elif isinstance(value, (dict, str)):
            answer[name] = value
        else:
            answer[name] = dict.fromkeys(answer[name], value)

    w.edit_answers(absurd)
    prompts = texts(len(USAGES))
    job = w.process().submit_batch(prompts)
    results = w.results(job)
    assert [result.text for result in results] == w.right(prompts)
    for result, prompt in zip(results, prompts, strict=True):
        assert result.usage.estimated
        assert result.usage.input_tokens == estimate_request(Request(prompt))
        assert 0 < result.usage.output_tokens < 1000
        assert result.cost is None  # an estimate is no bill
        assert 0 < result.unconfirmed_cost < 0.01  # no figure of theirs can break a budget
    assert (job.status().cost, job.status().unpriced) == (0.0, len(USAGES))
    assert len(w.creates) == 1
    assert not w.requests("ask")
