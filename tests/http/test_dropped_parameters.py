"""Parameters that a provider does not support are logged once and reported in each result."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from small_servers import small_claude

import smartbatch
from smartbatch import BatchingClient
from smartbatch.cli.main import main

MODEL = "anthropic:claude-haiku-4-5"
PROMPTS = [f"prompt {n}" for n in range(12)]


@pytest.fixture
def claude(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with small_claude(monkeypatch) as server:
        yield server


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_each_result_says_it_and_the_log_says_it_once(strategy, claude, caplog):
    with BatchingClient(MODEL, temperature=0.5, seed=7) as client:
        for part in (PROMPTS, [f"another {prompt}" for prompt in PROMPTS]):
            results = client.generate(part, strategy=strategy)
            assert {tuple(name for name, _ in result.dropped) for result in results} == {
                ("temperature", "seed")
            }
    assert client.metrics.snapshot().parameters_dropped == 2 * 2 * len(PROMPTS)
    assert all("temperature" not in body and "seed" not in body for body in claude.asked)
    warnings = [record for record in caplog.records if "is left out" in record.getMessage()]
    assert [record.levelno for record in warnings] == [logging.WARNING] * 2
    assert [record.getMessage().partition(":")[0] for record in warnings] == [
        "parameter temperature is left out",
        "parameter seed is left out",
    ]


def test_each_call_for_scripts_says_it(claude, caplog):
    for _ in range(2):
        smartbatch.generate(["a", "b"], model=MODEL, seed=7)
    assert len(caplog.messages) == 2


def test_a_kept_answer_says_it_as_well(claude, caplog):
    for count in (1, 2):
        [result] = smartbatch.generate(["a"], model=MODEL, seed=7, cache="answers.db")
        assert [name for name, _ in result.dropped] == ["seed"]
        assert len(caplog.messages) == count
    assert len(claude.asked) == 1


def test_a_job_that_another_process_collected_says_it_as_well(claude, caplog):
    with BatchingClient(MODEL, seed=7) as other:
        job = other.submit_batch(PROMPTS, key="collected")
        job.wait()
    caplog.clear()
    with BatchingClient(MODEL) as client:
        for read in (client.job("collected").results, client.job("collected").stored):
            assert all(result is not None for result in read())
        assert client.metrics.snapshot().parameters_dropped == 0
    assert len(caplog.messages) == 1
    list(smartbatch.job("collected").results())
    assert caplog.messages == ["parameter seed is left out: Anthropic's API has no seed"] * 2


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_a_run_says_it_once_and_in_each_row(strategy, claude, capfd):
    Path("in.txt").write_text("\n".join(PROMPTS))
    line = ["run", "in.txt", "--model", MODEL, "--seed", "7", "--strategy", strategy]
    assert main([*line, "-o", "out.jsonl"]) == 0
    rows = [json.loads(row) for row in Path("out.jsonl").read_text().splitlines()]
    assert [row["dropped"] for row in rows] == [{"seed": "Anthropic's API has no seed"}] * len(PROMPTS)
    printed = capfd.readouterr().err
    assert printed.count("smartbatch: parameter seed is left out: Anthropic's API has no seed") == 1
    assert printed.count("seed") == 2, printed
