"""Failed and flawed requests of a list, sent again with other parameters."""

from __future__ import annotations

import copy
import signal
import threading
from collections import Counter
from typing import Any

import pytest
from jobs.remote import Remote

import smartbatch
from smartbatch import (
    BatchingClient,
    Interrupted,
    InvalidRequest,
    ListProgress,
    ProviderError,
    Request,
    ResultList,
)
from smartbatch.errors import AllRequestsFailed, ErrorKind
from smartbatch.providers import OpenAIProvider
from smartbatch.testing import MockProvider, emulator
from smartbatch.types import Answer, Usage
from tests.levels import sampled
from tests.tables.kinds import TABLES

TOO_LONG = ProviderError("the prompt has 9000 tokens", kind=ErrorKind.CONTEXT_TOO_LONG)


def answered(request: Request) -> Any:
    """A model that needs 100 tokens for a bad prompt, and whose context is too short for a long one."""
    if "long" in str(request.prompt) and request.model != "large":
        return TOO_LONG
    if "bad" in str(request.prompt) and (request.params.max_tokens or 0) < 100:
        return Answer("cut", finish_reason="length", usage=Usage(10, 5))
    return Answer(f"re: {request.prompt}", finish_reason="stop", usage=Usage(10, 5))


def test_only_failed_requests_are_sent_again(client_of):
    provider = MockProvider(answered)
    client = client_of(provider)
    results = client.generate(["a", "long b", "c", "long d"], system="Be brief.", max_tokens=10)
    again = results.retry_failed(model="large")
    assert again.texts == ["re: a", "re: long b", "re: c", "re: long d"]
    assert results.texts == ["re: a", None, "re: c", None]
    assert [call.request.prompt for call in provider.calls[4:]] == ["long b", "long d"]
    assert {call.model for call in provider.calls[4:]} == {"large"}
    assert {call.request.params.system for call in provider.calls} == {"Be brief."}
    assert [result.attempts for result in again] == [1, 2, 1, 2]
    assert again.usage == results.usage + Usage(20, 10)
    assert again.retry_failed() is again
    assert len(provider.calls) == 6


def test_flawed_answers_are_replaced_on_request(client_of):
    provider = MockProvider(answered)
    results = client_of(provider).generate(["bad", "long", "a"], max_tokens=10)
    assert results.retry_failed().texts == ["cut", None, "re: a"]
    again = results.retry_failed(also="truncated", max_tokens=100)
    assert again.texts == ["re: bad", None, "re: a"]
    with pytest.raises(InvalidRequest, match="must be some of 'truncated', 'empty', 'refused'"):
        results.retry_failed(also="cut")  # type: ignore[arg-type]


def test_a_flawed_answer_stays_until_it_is_replaced(client_of):
    reasons = iter(["length", None, "stop"])
    provider = MockProvider(lambda _: _said(next(reasons)))
    results = client_of(provider).generate(["a"])
    assert results.retry_failed(also=["truncated"]).texts == ["length"]
    again = results.retry_failed(also=["truncated"])
    assert (again.texts, again[0].attempts) == (["stop"], 2)


def test_an_empty_answer_is_not_taken_from_the_cache_again(client_of, tmp_path):
    texts = iter(["", "an answer"])
    provider = MockProvider(lambda _: Answer(next(texts), finish_reason="stop"))
    results = client_of(provider, cache=str(tmp_path / "cache.db")).generate(["a"])
    assert results.retry_failed(also="empty").texts == ["an answer"]


def _said(reason: str | None) -> Any:
    if reason is None:
        return ProviderError("oh", kind=ErrorKind.CLIENT_ERROR)
    return Answer(reason, finish_reason=reason)


def test_changes_stay_for_the_next_time(client_of):
    provider = MockProvider(answered)
    again = client_of(provider).generate(["bad long", "a"]).retry_failed(max_tokens=100)
    assert again.retry_failed(model="large").texts == ["re: bad long", "re: a"]
    assert [call.request.params.max_tokens for call in provider.calls] == [None, None, 100, 100]


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_failures_know_their_rows(client_of, kind):
    table = TABLES[kind]([{"id": 3, "text": "long a"}, {"id": 1, "text": "b"}, {"id": 2, "text": "long c"}])
    results = client_of(MockProvider(answered)).generate(table, template="{text}")
    failures = results.failures
    assert [result.row for result in failures] == [0, 2]
    assert [result.error for result in failures] == [results[0].error, results[2].error]
    joined = failures.to_table(columns=["error_kind"], suffix="_first")
    assert len(joined) == 2
    assert failures.retry_failed(model="large").texts == ["re: long a", "re: long c"]


def test_skipped_rows_are_neither_failures_nor_sent_again(client_of):
    provider = MockProvider(answered)
    rows = [{"text": None}, {"text": "long a"}, {"text": ""}, {"text": "b"}]
    results = client_of(provider).generate(rows, column="text", on_missing="skip")
    again = results.retry_failed(model="large")
    assert (again.texts, again.skipped) == ([None, "re: long a", None, "re: b"], 2)
    assert [call.request.prompt for call in provider.calls] == ["long a", "b", "long a"]


def test_each_answer_of_a_prompt_is_sent_again_alone(client_of):
    failing = Counter({"a": 2})

    def answer(request: Request) -> Any:
        failing[str(request.prompt)] -= 1
        return TOO_LONG if failing[str(request.prompt)] >= 0 else f"{request.prompt} {request.sample}"

    provider = MockProvider(answer)
    results = client_of(provider, n=3).generate(["b", "a"])
    again = results.retry_failed()
    assert sorted(map(str, again.texts)) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]
    assert [(result.row, result.sample) for result in again] == [(r, s) for r in (0, 1) for s in range(3)]
    assert len(provider.calls) == 8


def test_a_sorted_list_still_knows_its_requests(client_of):
    results = client_of(MockProvider(answered)).generate(["a", "long b", "c"])
    results.sort(key=lambda result: result.ok)
    results.pop()
    assert results.retry_failed(model="large").texts == ["re: long b", "re: a"]


def test_a_stopped_client_is_started_for_the_call():
    failing = iter([True, False, False])
    provider = MockProvider(lambda request: TOO_LONG if next(failing) else str(request.prompt))
    results = smartbatch.generate(["a", "b"], model="mock", provider=provider, parallelism=1)
    assert results.failed == 1
    again = results.retry_failed()
    assert again.texts == ["a", "b"]
    assert provider.opened == provider.closed


def test_the_rest_of_an_interrupted_list_is_sent_again(client_of, clock):
    interrupted = threading.Event()

    def reply(prompt: str) -> str:
        if int(prompt[1:]) >= 12:  # the others are answered before the interrupt
            interrupted.wait()
        return prompt

    def interrupt(progress: ListProgress) -> None:
        if progress.finished == 10:
            raise KeyboardInterrupt

    client = client_of(Remote(clock, reply=reply), parallelism=2)
    prompts = [f"p{number}" for number in range(30)]
    with pytest.raises(Interrupted) as caught:
        client.generate(prompts, strategy="individual", on_progress=interrupt)
    results = caught.value.results
    interrupted.set()
    again = results.retry_failed()
    assert results.failed > again.failed == 0
    assert again.texts == prompts


def test_an_interrupted_call_keeps_the_whole_list():
    done, sent = threading.Event(), Counter[str]()

    def answer(request: Request) -> Any:
        prompt = str(request.prompt)
        sent[prompt] += 1
        if prompt != "a" and sent[prompt] == 1:
            return TOO_LONG
        if prompt == "c":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            done.wait(0.2)
        return f"re: {prompt}"

    with BatchingClient("mock", provider=MockProvider(answer), parallelism=1) as client:
        results = client.generate(["a", "b", "c"])
        with pytest.raises(Interrupted) as caught:
            results.retry_failed()
        done.set()
    assert caught.value.results.texts[:2] == ["re: a", "re: b"]
    assert len(caught.value.results) == 3


def test_a_list_without_any_answer_fails_as_before(client_of):
    client = client_of(MockProvider(answered))
    with pytest.raises(AllRequestsFailed) as caught:
        client.generate(["long a", "long b"])
    with pytest.raises(AllRequestsFailed) as again:
        caught.value.results.retry_failed()
    assert [result.attempts for result in again.value.results] == [2, 2]
    assert again.value.results.retry_failed(model="large").succeeded == 2


@pytest.mark.parametrize("change", [{"n": 2}, {"key": "k"}, {"maxtokens": 3}, {"template": "{a}"}])
def test_a_change_that_makes_no_sense_is_rejected(client_of, change):
    provider = MockProvider(answered)
    results = client_of(provider).generate(["a", "long b"])
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        results.retry_failed(**change)
    assert len(provider.calls) == 2


def test_lists_that_no_client_returned_cannot_be_sent_again(client_of):
    client = client_of(MockProvider(answered))
    results = client.generate(["a", "long b"])
    lazy = client.generate(iter(["a", "long b"]))
    for others in (ResultList(results), copy.copy(results), lazy):
        with pytest.raises(ValueError, match=r"job\.retry_failed\(\)"):
            others.retry_failed()


def test_a_longer_limit_completes_answers_over_http():
    with emulator() as emu:
        provider = OpenAIProvider(base_url=emu.base_url, api_key="k")
        with BatchingClient("gpt-5-mini", provider=provider) as client:
            results = client.generate(["one", "two"], max_tokens=1)
            assert results.truncated == 2
            again = results.retry_failed(also="truncated", max_tokens=200)
    assert (again.truncated, again.succeeded, emu.ledger.received) == (0, 2, 4)
    assert again.cost > results.cost > 0
