"""Rejected answers keep their text next to the reason, on every route."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from small_servers import small_claude

from smartbatch import BatchingClient, ErrorKind, ProviderError, Route, Usage, ValidationFailed, job
from smartbatch.cli.main import main
from smartbatch.types import evolve

MODEL = "anthropic:claude-haiku-4-5"
SCHEMA = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
PROMPTS = [f"prompt {n}" for n in range(12)]
BAD = '{"people": "canary"}'


def answer(body):
    return BAD if "prompt 3" in json.dumps(body["messages"]) else '{"people": 5}'


@pytest.fixture
def claude(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with small_claude(monkeypatch, answer) as server:
        yield server


def check(result):
    assert result.text == BAD
    error = result.error
    assert isinstance(error, ValidationFailed)
    assert error.text == BAD
    assert pickle.loads(pickle.dumps(error)).text == BAD
    assert "properties/people/type" in str(error)
    assert "canary" not in f"{error} {error!r} {error.message}"
    assert result.parsed is None
    assert result.finish_reason == "stop"


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["individual", "batch", "hybrid"])
def test_a_list_keeps_the_text(strategy, claude):
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        results = client.generate(PROMPTS, strategy=strategy)
    check(results[3])
    assert [result.parsed for result in results if result.ok] == [{"people": 5}] * 11
    assert results.failed == 1


@pytest.mark.full
def test_a_job_keeps_the_text_for_every_process(claude):
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        made = client.submit_batch(PROMPTS, key="mine")
        made.wait()
        check(list(made.results())[3])
        error = made.futures()[3].exception(20)
        assert isinstance(error, ValidationFailed)
        assert error.text == BAD
    check(list(job("mine").results())[3])


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_a_row_of_a_run_has_both(strategy, claude):
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        made = client.submit_batch(PROMPTS, key="mine", strategy=strategy)
        made.wait()
    assert main(["jobs", "results", "mine", "-o", "out.jsonl"]) == 1
    row = json.loads(Path("out.jsonl").read_text().splitlines()[3])
    assert row["text"] == BAD
    assert row["error"]["kind"] == "invalid_response"
    assert "canary" not in row["error"]["message"]


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_what_post_process_refuses_is_kept_as_well(strategy, claude):
    def judge(result):
        if result.text == BAD:
            return evolve(result, error=ValidationFailed("too short"))
        return result

    with BatchingClient(MODEL, post_process=judge) as client:
        results = client.generate(PROMPTS, strategy=strategy)
    assert results[3].text == BAD
    assert str(results[3].error) == "too short"
    assert [result.ok for result in results].count(False) == 1


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_a_failure_after_it_keeps_the_text_and_says_both_reasons(strategy, claude):
    def once(body):
        before = sum("prompt 3" in json.dumps(asked["messages"]) for asked in claude.asked)
        return None if before > 1 and "prompt 3" in json.dumps(body["messages"]) else answer(body)

    claude.answer = once
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        results = client.generate(PROMPTS, strategy=strategy)
    result = results[3]
    assert isinstance(result.error, ProviderError)
    assert result.error.kind is ErrorKind.CLIENT_ERROR
    assert "it is refused" in result.error.message
    assert "properties/people/type" in result.error.message
    assert "canary" not in result.error.message
    assert (result.text, result.parsed) == (BAD, None)


def test_a_row_that_was_billed_twice_says_the_tokens_and_the_cost_of_both(claude):
    def better(body):
        before = sum("prompt 3" in json.dumps(asked["messages"]) for asked in claude.asked)
        return answer(body) if before == 1 else '{"people": 5}'

    claude.answer = better
    by_batch, in_real_time = 17.5e-6, 35e-6
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        results = client.generate(PROMPTS, strategy="batch")
        spent = client.spent
        [stored] = client.jobs()
        assert stored.status().cost == pytest.approx(spent)
    row = results[3]
    assert (row.ok, row.route, row.usage) == (True, Route.INDIVIDUAL, Usage(20, 10))
    assert row.cost == pytest.approx(by_batch + in_real_time)
    assert results[4].cost == pytest.approx(by_batch)
    assert results.cost == pytest.approx(12 * by_batch + in_real_time)
    assert spent == pytest.approx(results.cost)
    assert results.usage.total_tokens == 13 * 15
    again = list(stored.results())  # as any process reads them
    assert again[3].cost == row.cost
