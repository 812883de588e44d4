"""Runs whose prompts, settings or rows have changed since their output was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.runs import Child, stored_jobs, until, written

from smartbatch.cli.main import main

OWN = "call:own_calls:ask"


def table(*rows: tuple[str, str], name: str = "in.jsonl") -> None:
    Path(name).write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in rows))


def run(*args: str, template: str = "say {text}", output: str = "out.jsonl") -> int:
    return main(["run", "in.jsonl", "--model", OWN, "--template", template, "-o", output, *args])


ROWS = (("a", "one"), ("b", "two"), ("c", "three"))


@pytest.fixture
def first(calls):
    table(*ROWS)
    assert run() == 0
    calls.asked.clear()
    return calls


def answers(name: str = "out.jsonl") -> dict[str, str]:
    return {row["id"]: row["text"] for row in written(name)}


def test_an_edited_row_is_named_and_nothing_is_sent(first, capfd):
    table(("a", "one"), ("b", "2"), ("c", "three"))

    assert run() == 2

    said = capfd.readouterr().err
    assert "the prompt of 1 answered row has changed" in said
    assert "--changed rows keeps 2 answers and sends 1 row" in said
    assert first.asked == []


def test_only_rows_whose_prompt_has_changed_are_sent(first):
    table(("a", "one"), ("b", "2"), ("c", "three"))

    assert run("--changed", "rows") == 0

    assert first.asked == ["say 2"]
    assert answers() == {"a": "answer to say one", "b": "answer to say 2", "c": "answer to say three"}
    assert [row["input"]["text"] for row in written()] == ["one", "2", "three"]
    assert answers("out.previous-1.jsonl")["b"] == "answer to say two"


def test_changed_rows_keeps_answers_under_other_settings(first, capfd):
    assert run("--temperature", "0.5") == 2
    assert "the system text or parameters have changed (3 answers)" in capfd.readouterr().err

    assert run("--temperature", "0.5", "--changed", "rows") == 0
    assert first.asked == []
    assert run("--temperature", "0.5") == 0
    assert first.asked == []


def test_a_change_of_the_model_alone_is_named(calls, capfd):
    table(*ROWS)
    command = ["run", "in.jsonl", "--template", "say {text}", "-o", "out.jsonl", "--model"]
    assert main([*command, "sim:echo"]) == 0

    assert main([*command, "sim:demo"]) == 2
    assert "the model has changed from sim:echo to sim:demo (3 answers)" in capfd.readouterr().err
    assert main([*command, "sim:demo", "--system", "be brief"]) == 2
    assert "the model, system text or parameters have changed (3 answers by sim:echo)" in (
        capfd.readouterr().err
    )


def test_changed_all_sends_every_row_again(first):
    assert run("--temperature", "0.5", "--changed", "all") == 0
    assert len(first.asked) == 3
    assert run("--temperature", "0.7", "--changed", "all") == 0

    assert len(first.asked) == 6
    assert sorted(path.name for path in Path().glob("out.*")) == [
        "out.jsonl",
        "out.previous-1.jsonl",
        "out.previous-2.jsonl",
    ]


def test_changed_has_no_effect_without_a_change(first):
    assert run("--changed", "all") == 0
    assert first.asked == []
    assert not list(Path().glob("out.previous*"))


def test_new_rows_are_sent_and_removed_rows_are_listed(first, capfd):
    table(("z", "zero"), ("c", "three"), ("a", "one"), ("e", "five"))

    assert run() == 0

    said = capfd.readouterr().err
    assert "2 rows have no answer yet" in said
    assert "1 answered row no longer in the input: b" in said
    assert sorted(first.asked) == ["say five", "say zero"]
    assert [row["id"] for row in written()] == ["z", "c", "a", "e"]
    assert [row["index"] for row in written()] == [0, 1, 2, 3]
    assert answers("out.previous-1.jsonl")["b"] == "answer to say two"


def test_rows_without_ids_are_matched_by_their_prompts(calls):
    Path("in.txt").write_text("one\ntwo\ntwo\nthree\n")
    command = ["run", "in.txt", "--model", OWN, "-o", "out.jsonl"]
    assert main(command) == 0
    calls.asked.clear()
    Path("in.txt").write_text("zero\ntwo\none\ntwo\nthree\ntwo\n")

    assert main(command) == 0

    assert sorted(calls.asked) == ["two", "zero"]
    assert [row["text"] for row in written()] == [
        f"answer to {word}" for word in ("zero", "two", "one", "two", "three", "two")
    ]


def test_a_smaller_limit_drops_no_answer_unasked(first, capfd):
    assert run("--limit", "2") == 2
    assert "1 answered row no longer in the input: c" in capfd.readouterr().err
    assert len(written()) == 3


@pytest.mark.parametrize("name", ["out.csv", pytest.param("out.parquet", marks=pytest.mark.full)])
def test_a_table_keeps_the_answers_to_unchanged_prompts(calls, name):
    table(*ROWS)
    assert run(output=name) == 0
    calls.asked.clear()
    table(("n", "new"), ("a", "one"), ("b", "2"))

    assert run("--changed", "rows", output=name) == 0

    assert sorted(calls.asked) == ["say 2", "say new"]
    assert run(output=name) == 0
    assert len(calls.asked) == 2
    assert Path(name.replace(".", ".previous-1.")).exists()


@pytest.mark.parametrize("name", ["out.csv", pytest.param("out.parquet", marks=pytest.mark.full)])
def test_a_table_without_an_unchanged_prompt_is_replaced(calls, name):
    table(*ROWS)
    assert run(output=name) == 0
    calls.asked.clear()

    assert run("--changed", "all", "--sample", "1", output=name, template="shout {text}") == 0
    assert run(output=name, template="shout {text}") == 0

    assert sorted(calls.asked) == ["shout one", "shout three", "shout two"]
    assert sorted(path.name for path in Path().glob("out*")) == [name, name.replace(".", ".previous-1.")]


def test_failed_rows_are_sent_again_after_a_change(calls):
    table(*ROWS)
    calls.broken.add("say two")
    assert run("--retries", "0") == 1
    calls.asked.clear()
    calls.broken.clear()
    table(("a", "1"), ("b", "two"), ("c", "three"))

    assert run("--changed", "rows") == 0

    assert sorted(calls.asked) == ["say 1", "say two"]


@pytest.mark.full
def test_a_killed_run_after_a_change_continues_without_paying_again(calls):
    Path("in.txt").write_text("".join(f"prompt {number}\n" for number in range(8)))
    with Child("--parallelism", "1", "-o", "out.jsonl") as child:
        child.release(8)
        assert child.process.wait() == 0
    Path("in.txt").write_text(
        "".join(f"prompt {number if number % 2 else -number}\n" for number in range(1, 9))
    )
    with Child("--parallelism", "1", "-o", "out.jsonl", "--changed", "rows") as child:
        child.release(2)
        child.begun(3)
        until(lambda: len(written()) == 6)
        child.process.kill()
        child.process.wait()
    with Child("--parallelism", "1", "-o", "out.jsonl", "--changed", "rows") as child:
        child.release(9)
        assert child.process.wait() == 0
        assert len(child.begun(2)) == 2
    assert len(written()) == 8
    assert len(list(Path().glob("out.previous*"))) == 1
    assert stored_jobs() == []


def test_rows_with_one_kind_of_error_are_sent_again(calls, capfd):
    table(*ROWS)
    calls.broken |= {"say one", "say two"}
    assert run("--retries", "0") == 1
    kind = next(row["error"]["kind"] for row in written() if row["error"])
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    rows[1]["error"]["kind"] = "context_too_long"
    Path("out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    calls.broken.clear()
    calls.asked.clear()

    assert run("--resend", "no_such_kind") == 2
    assert f"its errors: {kind} (1), context_too_long (1)" in capfd.readouterr().err
    assert run("--resend", "context_too_long", "--max-tokens", "50") == 0

    assert calls.asked == ["say two"]
    assert run("--max-tokens", "50") == 0
    assert calls.asked == ["say two", "say one"]
