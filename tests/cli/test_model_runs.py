"""``smartbatch run --models``: the same sample for several models, and their comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.runs import prompts, use_emulator, written

from smartbatch.cli.main import main
from smartbatch.testing import Emulator

MODELS = "openai:gpt-5-mini,openai:gpt-5-nano"
OUTPUTS = ("out.openai-gpt-5-mini.jsonl", "out.openai-gpt-5-nano.jsonl")


@pytest.fixture
def emu(folder, monkeypatch):
    with Emulator(seed=3) as emu:
        use_emulator(emu, monkeypatch)
        yield emu


def run(*args: str, models: str = MODELS) -> int:
    return main(["run", "in.txt", "--models", models, "-o", "out.jsonl", *args])


@pytest.mark.full
def test_each_model_gets_the_same_sample_and_an_output_of_its_own(emu, capfd):
    prompts(30)

    assert run("--sample", "6", "--max-tokens", "20") == 0

    first, second = ([line["input"]["prompt"] for line in written(name)] for name in OUTPUTS)
    assert len(first) == 6
    assert sorted(first) == sorted(second)
    out, err = capfd.readouterr()
    assert "Comparison of models, 6 rows" in out
    assert "Cost of all 30 rows" in out
    for model in MODELS.split(","):
        (costs,) = [line for line in out.splitlines() if line.startswith(model) and "90 %: $" in line]
        assert "too few" not in costs
    assert f"smartbatch compare {OUTPUTS[0]} {OUTPUTS[1]} shows the rows" in err


@pytest.mark.full
def test_the_run_of_the_chosen_model_sends_only_the_other_rows(emu, capfd):
    prompts(20)
    assert run("--sample", "5") == 0
    calls = len(emu.ledger.calls)

    assert main(["run", "in.txt", "--model", "openai:gpt-5-nano", "-o", OUTPUTS[1]]) == 0

    assert len(emu.ledger.calls) - calls == 15
    assert len(written(OUTPUTS[1])) == 20


def test_agreement_is_that_of_the_fields_of_the_answers(folder, capfd):
    prompts(12)
    fields = ["--output-field", "label: good|bad", "--output-field", "sure: bool"]

    assert run("--sample", "12", "--quiet", *fields, models="sim:demo?latency=0,sim:echo?latency=0") == 0

    out = capfd.readouterr().out
    assert "Agreement with sim:demo in each field" in out
    assert out.splitlines()[-2].split() == ["model", "label", "sure"]
    assert main(["compare", "out.sim-demo.jsonl", "out.sim-echo.jsonl", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert f"sim:echo  {100 * found['agreement']['value']:.1f} % (95 %:" in out


def test_a_budget_is_divided_among_the_models(emu, capfd):
    prompts(10)

    assert run("--sample", "10", "--budget", "0.0000001", "--max-tokens", "20") == 2

    assert "no route meets a budget of $0.00000005" in capfd.readouterr().err
    assert not emu.ledger.calls


@pytest.mark.parametrize(
    ("args", "models", "message"),
    [
        ([], MODELS, "give --sample N and -o as well"),
        (["--sample", "3"], "sim:demo", "--models needs two or more models"),
        (["--sample", "3", "--yes"], MODELS, "leave out --yes"),
        (["--sample", "3"], "sim:demo?latency=0,sim:demo?latency=1", "names a model twice"),
        (["--sample", "3"], "sim:demo,nobody:x", "nobody"),
        (["--sample", "3", "--model", "sim:demo"], MODELS, "not allowed with argument"),
    ],
)
def test_wrong_models_are_reported_before_anything_is_sent(folder, args, models, message, capfd):
    prompts(5)

    assert run(*args, models=models) == 2

    assert message in capfd.readouterr().err
    assert [path.name for path in Path().glob("out*") if path.stat().st_size] == []


@pytest.mark.full
def test_secret_options_of_a_model_are_not_shown(folder, capfd):
    prompts(3)

    assert run("--sample", "3", models="sim:demo?latency=0,sim:echo?latency=0.001") == 0

    assert "latency=" not in "".join(capfd.readouterr())
