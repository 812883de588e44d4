"""``smartbatch plan``: what a run would take; nothing is sent, nothing is made, no key is needed."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli.runs import Child, prompts, stored_jobs, until

from smartbatch._words import duration, money
from smartbatch.cli.main import main
from tests.levels import sampled

OPENAI = "openai:gpt-5-mini"
MODELS = [OPENAI, "anthropic:claude-haiku-5-5", "gemini:gemini-3-flash", "sim:demo", "call:json:dumps"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SMARTBATCH_FLEX", "false")
    return tmp_path


def plan(*more: str, model: str = OPENAI) -> int:
    return main(["plan", "in.txt", "--model", model, *more])


def planned(capfd: pytest.CaptureFixture[str], *more: str, model: str = OPENAI) -> dict[str, Any]:
    capfd.readouterr()
    assert plan("--json", *more, model=model) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def files() -> set[Path]:
    return {path for path in Path().rglob("*") if path.is_file() and path.name != "prices.json"}


@pytest.mark.parametrize("model", sampled(MODELS, keep=2))
def test_a_plan_needs_no_key_and_makes_no_file(model, capfd):
    prompts(50)
    before = files()
    assert plan(model=model) == 0
    printed = capfd.readouterr()
    assert printed.out.startswith("50 rows, about ")
    assert "\nSending in real time: about " in printed.out
    assert printed.err == ""
    assert files() == before


def test_every_figure_of_a_plan_is_told_for_every_route(capfd):
    prompts(40)
    found = planned(capfd, "--max-tokens", "100", "--prefer", "cost", "--max-rpm", "600")
    assert (found["route"], found["requests"], found["tokens_out"]) == ("batch", 40, 4000)
    routes = {option["route"]: option for option in found["options"]}
    assert list(routes) == ["individual", "batch", "hybrid"]
    individual, batch, hybrid = routes.values()
    assert batch["cost"] == pytest.approx(individual["cost"] / 2)
    assert batch["cost"] < hybrid["cost"] < individual["cost"]
    assert (individual["calls"], individual["batches"]) == (40, 0)
    assert (batch["calls"], batch["batches"]) == (0, 1)
    assert hybrid["calls"] == hybrid["first"] > 0
    assert 0 < individual["quota"] <= 1
    assert plan("--max-tokens", "100", "--prefer", "cost", "--max-rpm", "600", "-v") == 0
    table = capfd.readouterr().out
    line = next(line for line in table.splitlines() if line.startswith("> batch"))
    assert re.split(" {2,}", line)[1:3] == [duration(batch["p50"]), duration(batch["p95"])]
    assert money(batch["cost"]) in line
    assert "Chosen: batch, 1 batch; the cheapest of 3 routes, as prefer='cost' requires." in table


@pytest.mark.parametrize(
    ("constraints", "route"),
    sampled(
        [
            ([], "individual"),
            (["--time-value", "0"], "batch"),
            (["--prefer", "cost"], "batch"),
            (["--prefer", "speed"], "individual"),
            (["--deadline", "6h30min"], "batch"),
            (["--deadline", "2min"], "individual"),
            (["--strategy", "hybrid"], "hybrid"),
            (["--strategy", "threshold"], "batch"),
            (["--strategy", "threshold", "--limit", "9"], "individual"),
            (["--budget", "0.002", "--max-tokens", "100"], "batch"),
        ],
        keep=5,
    ),
)
def test_the_route_follows_the_constraints(constraints, route, capfd):
    prompts(40)
    assert planned(capfd, *constraints)["route"] == route


def test_constraints_may_stand_in_the_settings(monkeypatch, capfd):
    prompts(40)
    monkeypatch.setenv("SMARTBATCH_PREFER", "cost")
    assert planned(capfd)["route"] == "batch"
    Path("settings.toml").write_text('strategy = "hybrid"\n')
    assert planned(capfd, "--config", "settings.toml")["route"] == "hybrid"
    assert planned(capfd, "--config", "settings.toml", "--strategy", "auto")["route"] == "batch"


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        (["--deadline", "1s"], r"a deadline of 1 s .* a deadline of [\d.]+ (s|min) \(individual, \$0\."),
        (["--deadline", "0.0001s"], r"no route meets a deadline of 1 ms for"),
        (["--budget", "0.00001"], r"a budget of \$0.00001 for 40 .* a budget of \$0\.\d+ \(batch\)"),
        (["--deadline", "2weeks"], r"deadline = '2weeks' is not a positive duration"),
        (["--deadline", "-3"], r"deadline = '-3' is not a positive duration"),
        (["--time-value", "-1"], r"time_value = -1\.0 is out of range"),
        (["--budget", "5 EUR"], r"budget"),
        (["--parallelism", "0"], r"parallelism = 0 is out of range"),
        (["--provider-option", "colour=red"], r"no API key|colour"),
        (["--template", "{nothing}"], r"no field 'nothing'"),
        (["-o", "in.txt"], r"in.txt: results cannot be written as .txt: name the output .jsonl, "),
        (["-o", "notes.jsonl"], r"was not written by smartbatch run"),
        (["--model", "openai:unheard-of", "--budget", "5"], r"the price of openai:unheard-of is unknown"),
        (["--model", "nobody:any"], r"unknown provider"),
        (
            ["--model", "call:json:dumps", "--strategy", "hybrid"],
            r"has no Batch API.*batch_fallback='individual'",
        ),
    ],
)
def test_what_a_run_would_refuse_has_no_plan(line, printed, capfd):
    prompts(40)
    prompts(1, "notes.jsonl")
    assert main(["plan", "in.txt", *(["--model", OPENAI] if "--model" not in line else []), *line]) == 2
    message = capfd.readouterr()
    assert re.search(printed, message.err), message.err
    assert message.out == ""
    assert "Traceback" not in message.err


@pytest.mark.full
def test_a_plan_for_an_output_leaves_it_alone(capfd):
    prompts(20)
    model = "sim:demo?latency=0"
    assert main(["run", "in.txt", "--model", model, "-o", "out.jsonl", "--limit", "15", "--quiet"]) == 0
    with Path("out.jsonl").open("ab") as out:
        out.write(b'{"index": 15, "id": 15, "inp')
    before = Path("out.jsonl").read_bytes()
    with Path("out.jsonl").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a run does that is under way
        assert planned(capfd, "-o", "out.jsonl", model=model)["requests"] == 5
    assert Path("out.jsonl").read_bytes() == before
    assert planned(capfd, model=model)["requests"] == 20
    assert planned(capfd, "-o", "other.jsonl", model=model)["requests"] == 20
    assert not Path("other.jsonl").exists()


@pytest.mark.full
def test_rows_that_are_under_way_are_not_planned(calls, capfd):
    prompts(10)
    with Child("--parallelism", "1", "-o", "out.jsonl") as child:
        child.release(2)
        child.begun(3)
        until(lambda: Path("out.jsonl").read_bytes().count(b"\n") == 2)
        (job,) = stored_jobs()
        prompts(13)
        assert planned(capfd, "-o", "out.jsonl", model="call:own_calls:gated")["requests"] == 3
        assert plan("-o", "out.jsonl", "--limit", "10", model="call:own_calls:gated") == 0
        printed = capfd.readouterr()
        assert f"job {job.id} is in progress; its 8 remaining rows are left out of the plan" in printed.err
        assert "the run would send nothing" in printed.err
        assert printed.out.startswith("0 rows")
        child.release(8)
        assert child.process.wait() == 0
    assert calls.asked == []


def test_where_there_is_a_slower_tier_a_run_is_planned_by_it(capfd, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_FLEX", "true")
    prompts(40)
    found = planned(capfd, "--prefer", "cost")
    costs = {option["route"]: option["cost"] for option in found["options"]}
    assert found["route"] == "flex"
    assert costs["flex"] == pytest.approx(costs["batch"])
    assert costs["flex"] == pytest.approx(costs["individual"] / 2)
