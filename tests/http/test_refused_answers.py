"""Answers that came and were refused: the text and the reason stand next to each other, by every way."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_claude import SmallClaude, small_claude

from smartbatch import BatchingClient, Result, ValidationFailed, job
from smartbatch.cli.main import main
from smartbatch.types import evolve

MODEL = "anthropic:claude-haiku-4-5"
SCHEMA = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
PROMPTS = [f"prompt {n}" for n in range(12)]
BAD = '{"people": "canary"}'


def answer(body: dict[str, Any]) -> str:
    """One prompt of all is answered in another form than asked for, whatever is said."""
    return BAD if "prompt 3" in json.dumps(body["messages"]) else '{"people": 5}'


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallClaude]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with small_claude(monkeypatch, answer) as server:
        yield server


def check(result: Result) -> None:
    """The text is there, the reason next to it, and no message repeats the text."""
    assert result.text == BAD
    error = result.error
    assert isinstance(error, ValidationFailed)
    assert error.text == BAD
    assert pickle.loads(pickle.dumps(error)).text == BAD
    assert "properties/people/type" in str(error)
    assert "canary" not in f"{error} {error!r} {error.message}"
    assert result.parsed is None
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("strategy", ["individual", "batch", "hybrid"])
def test_a_list_keeps_the_text(strategy: str, claude: SmallClaude) -> None:
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        results = client.generate(PROMPTS, strategy=strategy)
    check(results[3])
    assert [result.parsed for result in results if result.ok] == [{"people": 5}] * 11
    assert results.failed == 1


def test_a_job_keeps_the_text_for_every_process(claude: SmallClaude) -> None:
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        made = client.submit_batch(PROMPTS, key="mine")
        made.wait()
        check(list(made.results())[3])
        error = made.futures()[3].exception(20)
        assert isinstance(error, ValidationFailed)
        assert error.text == BAD
    check(list(job("mine").results())[3])


def test_a_future_raises_and_its_error_has_the_text(claude: SmallClaude) -> None:
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        error = client.submit("prompt 3").exception(20)
    assert isinstance(error, ValidationFailed)
    assert (error.text, error.tries) == (BAD, 3)


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_a_row_of_a_run_has_both(strategy: str, claude: SmallClaude) -> None:
    with BatchingClient(MODEL, schema=SCHEMA) as client:
        made = client.submit_batch(PROMPTS, key="mine", strategy=strategy)
        made.wait()
    assert main(["jobs", "results", "mine", "-o", "out.jsonl"]) == 1
    row = json.loads(Path("out.jsonl").read_text().splitlines()[3])
    assert row["text"] == BAD
    assert row["error"]["kind"] == "invalid_response"
    assert "canary" not in row["error"]["message"]


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_what_post_process_refuses_is_kept_as_well(strategy: str, claude: SmallClaude) -> None:
    """Score, but do not gate: whoever marks an answer as failed still has it."""

    def judge(result: Result) -> Result:
        if result.text == BAD:
            return evolve(result, error=ValidationFailed("too short"))
        return result

    with BatchingClient(MODEL, post_process=judge) as client:
        results = client.generate(PROMPTS, strategy=strategy)
    assert results[3].text == BAD
    assert str(results[3].error) == "too short"
    assert [result.ok for result in results].count(False) == 1
