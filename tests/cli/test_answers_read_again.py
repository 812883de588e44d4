"""Answers that smartbatch itself failed to read are read again by the next run, and paid once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cli.runs import prompts, stored_jobs, use_emulator, written

from smartbatch.cli.main import main
from smartbatch.core.preparation import structured
from smartbatch.testing import emulator


@contextmanager
def reading_fails(monkeypatch: pytest.MonkeyPatch, text: str = "") -> Iterator[None]:
    read = structured._read

    def broken(params: Any, answer: str | None, finish_reason: str) -> Any:
        if (answer or "").endswith(text):
            raise ImportError("half made")
        return read(params, answer, finish_reason)

    with monkeypatch.context() as patch:
        patch.setattr(structured, "_read", broken)
        yield


def run(*args: str) -> int:
    return main(["run", "in.txt", "--model", "call:own_calls:ask", "--quiet", *args])


@pytest.mark.parametrize(
    "output", [("-o", "out.jsonl"), pytest.param((), marks=pytest.mark.full)], ids=["file", "standard output"]
)
def test_the_same_line_reads_them_again(output, calls, monkeypatch, capfd):
    expected = prompts(4)

    def lines() -> list[dict[str, Any]]:
        printed = capfd.readouterr().out
        return written() if output else [json.loads(line) for line in printed.splitlines()]

    for _ in range(2):
        with reading_fails(monkeypatch, text="2"):
            assert run(*output) == 1
        found = lines()
        assert [each["index"] for each in found if each["error"]] == [2]
        assert "smartbatch itself failed" in found[2]["error"]["message"]
        assert [each["text"] for each in found] == [f"answer to {prompt}" for prompt in expected]
        assert len(stored_jobs()) == 1
    assert run(*output) == 0
    assert [(each["error"], each["text"]) for each in lines()] == [
        (None, f"answer to {prompt}") for prompt in expected
    ]
    assert sorted(calls.asked) == expected
    assert stored_jobs() == []


@pytest.mark.full
def test_what_they_cost_is_paid_by_the_first_run_alone(calls, monkeypatch, capfd):
    prompts(3)
    line = ("run", "in.txt", "--model", "openai:gpt-5-mini", "-o", "out.jsonl")
    with emulator() as emu:
        use_emulator(emu, monkeypatch)
        with reading_fails(monkeypatch):
            assert main(line) == 1
            first = capfd.readouterr().err
            assert main(line) == 1
    again = capfd.readouterr().err
    (cost,) = re.findall(r"^(Cost: \$[\d.]+)\.$", first, re.M)
    assert f"{cost}, of which $0 in this run." in again
    assert "0 answered, 3 failed." in again


@pytest.mark.full
def test_a_row_is_sent_again_once_its_job_is_forgotten(calls, monkeypatch, capfd):
    prompts(2)
    with reading_fails(monkeypatch):
        assert main(["run", "in.txt", "--model", "call:own_calls:ask", "-o", "out.jsonl"]) == 1
    (job,) = stored_jobs()
    assert f"smartbatch jobs forget {job.id}" in capfd.readouterr().err
    assert main(["jobs", "forget", job.id]) == 0
    assert run("-o", "out.jsonl") == 0
    assert len(calls.asked) == 4
