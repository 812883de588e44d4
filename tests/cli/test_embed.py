"""``smartbatch run --embed``: the vectors of a file's texts, over the real adapters; none is paid twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.runs import Child, prompts, stored_jobs, use_emulator, written

from smartbatch.cli.main import main
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.testing import emulator

NAME = "text-embedding-3-small"
MODEL = f"openai:{NAME}"


class Texts:
    """The texts that the emulator was asked to embed, a call at a time; from ``hang_from`` on it never
    answers."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.hang_from: int | None = None

    def fault(self, _index: int, body: Mapping[str, Any]) -> str | None:
        if "input" not in body:  # about a batch or its files
            return None
        given = body["input"]
        texts = [given] if isinstance(given, str) else given
        self.calls.append(texts)
        if self.hang_from is not None and len(self.calls) > self.hang_from:
            return "hang"
        return None


@pytest.fixture
def texts():
    return Texts()


@pytest.fixture
def emu(tmp_path, monkeypatch, texts):
    monkeypatch.chdir(tmp_path)
    with emulator(fault_for=texts.fault, hang_seconds=60, batch_turnaround=0.2) as emu:
        use_emulator(emu, monkeypatch)
        yield emu


def run(*args: str, input: str = "in.txt", output: str | None = "out.jsonl") -> int:
    out = [] if output is None else ["-o", output]
    return main(["run", input, "--model", MODEL, "--embed", *out, *args])


def vector(text: str, dimensions: int = 8) -> list[float]:
    return list(vector_for(text, NAME, dimensions))


def test_every_row_gets_the_vector_of_its_text(emu, texts, capfd):
    Path("in.csv").write_text("id,title,body\na,Tea,hot\nb,Ice,cold\nc,Air,thin\n")
    assert run("--template", "{title}: {body}", "--dimensions", "8", input="in.csv") == 0
    rows = written()
    expected = ["Tea: hot", "Ice: cold", "Air: thin"]
    assert [row["embedding"] for row in rows] == [vector(text) for text in expected]
    assert [(row["id"], row["text"], row["error"]) for row in rows] == [(id, None, None) for id in "abc"]
    assert sorted(text for call in texts.calls for text in call) == sorted(expected)
    assert len(texts.calls) < 3
    assert sum(row["cost"] for row in rows) > 0
    printed = capfd.readouterr().err
    assert "\n3 answered.\n" in printed
    assert f"Tokens: {sum(row['usage']['input_tokens'] for row in rows)} in, 0 out." in printed
    assert "one after another" not in printed
    assert stored_jobs() == []


def test_the_length_of_vectors_is_the_models_own_without_an_option(emu):
    prompts(1)
    assert run() == 0
    assert written()[0]["embedding"] == vector("prompt 0", 1536)


def test_a_terminal_is_told_the_length_of_each_vector(emu, capfd, monkeypatch):
    prompts(1)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("--quiet", output=None) == 0
    assert capfd.readouterr().out == "0  prompt 0 → a vector of length 1,536\n"


@pytest.mark.full
def test_vectors_go_by_batch_and_a_killed_run_finds_its_batch(emu, texts):
    expected = prompts(20)
    created = threading.Event()
    emu.configure(batch_fault_for=lambda *_: created.set())
    options = ["--embed", "--dimensions", "8", "-o", "out.jsonl", "--strategy", "batch"]
    with Child(*options, model=MODEL) as child:
        assert created.wait(60)
        child.process.kill()
        child.process.wait()
    assert run("--dimensions", "8", "--strategy", "batch") == 0
    assert [row["embedding"] for row in written()] == [vector(text) for text in expected]
    assert texts.calls == []  # none in real time
    assert emu.ledger.paid_twice(excluding_lost=False) == []
    assert len(emu.ledger.billed_by_prompt) == 20
    (job,) = stored_jobs()
    assert (job.kind, job.succeeded) == ("embed", 20)


@pytest.mark.full
def test_parquet_keeps_vectors_of_32_bits_when_it_is_resumed(emu, texts, capfd):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    too_long = "far too long " * 4000
    Path("in.txt").write_text("".join(f"{text}\n" for text in [*prompts(3), too_long]))
    for limit, answered in (("2", 2), ("3", 3), ("4", 3)):
        assert run("--dimensions", "8", "--limit", limit, output="out.parquet") == (limit == "4")
        table = parquet.read_table("out.parquet")
        assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32())
        found = table.column("embedding").to_pylist()
        assert found[:answered] == [vector(f"prompt {i}") for i in range(answered)]
    assert found[3:] == [None]
    asked = [text for call in texts.calls for text in call if text != too_long]
    assert sorted(asked) == [f"prompt {i}" for i in range(3)]


@pytest.mark.parametrize(
    "option", [["--system", "be brief"], ["--max-tokens", "5"], ["--temperature", "0"], ["--seed", "1"]]
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_an_option_about_answers_is_refused_by_name(command, option, emu, capfd):
    prompts(1)
    assert main([command, "in.txt", "--model", MODEL, "--embed", "-o", "out.jsonl", *option]) == 2
    assert f"{option[0]} applies to answers and has no effect with --embed" in capfd.readouterr().err
    assert emu.ledger.received == 0
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("option", [["--dimensions", "8"], ["--task-type", "CLUSTERING"]])
def test_an_option_about_vectors_needs_embed(option, emu, capfd):
    prompts(1)
    assert main(["run", "in.txt", "--model", MODEL, *option]) == 2
    assert f"{option[0]} needs --embed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        (["--model", "sim:demo", "--embed"], "sim does not support embeddings"),
        (["--model", "anthropic:claude-haiku-5-5", "--embed"], "anthropic does not support embeddings"),
        (["--model", MODEL, "--embed", "--dimensions", "0"], "dimensions must be a whole number from 1"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_impossible_vectors_are_refused_before_the_input_is_read(
    command, line, printed, emu, monkeypatch, capfd
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-tests")
    Path("in.jsonl").write_text("no row\n")
    assert main([command, "in.jsonl", *line]) == 2
    assert capfd.readouterr().err == f"smartbatch: {printed}" + (
        "\n" if "not support" in printed else " to 65536, not 0\n"
    )


def test_a_row_of_messages_is_refused_with_its_line(emu, capfd):
    rows = [{"prompt": "a text"}, {"prompt": [{"role": "user", "content": "hello"}]}]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(input="in.jsonl") == 2
    assert "row 1 (line 2): prompt must be a string if an embedding is requested" in capfd.readouterr().err
    assert emu.ledger.received == 0


def test_a_plan_of_vectors_says_what_they_take(emu, capfd):
    prompts(40)
    assert main(["plan", "in.txt", "--model", MODEL, "--embed", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["route"], found["requests"], found["tokens_out"]) == ("shared", 40, 0)
    assert emu.ledger.received == 0


@pytest.mark.full
def test_a_run_that_asks_a_model_for_vectors_for_texts_is_told_of_embed(emu, capfd):
    emu.configure(fault_for=None, models=["gpt-5-mini"])
    prompts(2)
    assert main(["run", "in.txt", "--model", MODEL, "-o", "out.jsonl"]) == 1
    assert "use --embed to get vectors" in capfd.readouterr().err
    assert main(["run", "in.txt", "--model", "openai:gpt-6", "-o", "other.jsonl"]) == 1
    assert "--embed" not in capfd.readouterr().err
