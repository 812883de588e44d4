"""``smartbatch failures``: groups of failed and flawed rows, and the command that sends them again."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient
from smartbatch.cli.main import main
from smartbatch.errors import AllRequestsFailed
from tests.hostile import HOSTILE
from tests.levels import sampled

pytestmark = pytest.mark.usefixtures("folder")


def line(index: int, **changes: Any) -> dict[str, Any]:
    whole = {"index": index, "id": f"r{index}", "input": {"prompt": "SECRET"}, "text": "SECRET answer"}
    usage = {"input_tokens": 3, "output_tokens": 40}
    return {**whole, "usage": usage, "cost": 0.5, "finish_reason": "stop", "error": None, **changes}


def failed(index: int, kind: str, message: str) -> dict[str, Any]:
    return line(index, text=None, error={"kind": kind, "message": message})


ROWS = (
    line(0),
    line(1, finish_reason="length"),
    failed(2, "row_skipped", "skipped: blank `text`"),
    failed(3, "timeout", "no answer within 61 s"),
    failed(4, "context_too_long", "the prompt has 9000 tokens"),
    failed(5, "context_too_long", "the prompt has 9500 tokens"),
    line(6, text="", finish_reason="length"),
    line(7, finish_reason="content_filter"),
)


def written(folder: Path, *lines: dict[str, Any]) -> str:
    (folder / "out.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return "out.jsonl"


def test_failed_rows_are_grouped_with_what_to_do(folder, capfd):
    assert main(["failures", written(folder, *ROWS)]) == 1
    assert (
        capfd.readouterr().out
        == """\
out.jsonl: 4 answered, 3 failed, 1 skipped.

context_too_long: 2 rows; choose a model with a longer context or shorten the prompts
  2 rows, such as row 4 (id r4): the prompt has # tokens
  smartbatch run INPUT … -o out.jsonl --resend context_too_long --model PROVIDER:MODEL

timeout: 1 row; allow more time per call
  1 row, such as row 3 (id r3): no answer within # s
  smartbatch run INPUT … -o out.jsonl --resend timeout --call-timeout 5min

truncated: 2 rows; allow longer answers
  2 rows, such as row 1 (id r1)
  smartbatch run INPUT … -o out.jsonl --resend truncated --max-tokens 80

empty: 1 row; allow longer answers, or choose another model
  1 row, such as row 6 (id r6)
  smartbatch run INPUT … -o out.jsonl --resend empty --max-tokens N

refused: 1 row; reword the prompt or choose another model
  1 row, such as row 7 (id r7)
  smartbatch run INPUT … -o out.jsonl --resend refused --model PROVIDER:MODEL

INPUT … stands for the other arguments of the run.
"""
    )


def test_the_groups_are_also_json(folder, capfd):
    assert main(["failures", written(folder, *ROWS), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["answered"], found["failed"], found["skipped"]) == (4, 3, 1)
    first = found["kinds"][0]
    assert (first["kind"], first["rows"]) == ("context_too_long", 2)
    assert first["messages"] == [
        {"message": "the prompt has # tokens", "example": "row 4 (id r4)", "row": 4, "count": 2}
    ]
    assert "SECRET" not in json.dumps(found)


def test_an_output_without_failures_has_no_groups(folder, capfd):
    assert main(["failures", written(folder, line(0))]) == 0
    assert capfd.readouterr().out == "out.jsonl: 1 answered, 0 failed.\n"


@pytest.mark.parametrize("ending", ["csv", pytest.param("parquet", marks=pytest.mark.full)])
def test_failures_of_a_table_are_the_same(folder, capfd, ending):
    (folder / "in.txt").write_text("a\nb\n")
    model = "sim:demo?latency=0&faults=500:1"
    assert main(["run", "in.txt", "--model", model, "--retries", "0", "-o", f"out.{ending}"]) == 1
    assert f"Advice on the failed rows: smartbatch failures out.{ending}\n" in capfd.readouterr().err
    assert main(["failures", f"out.{ending}"]) == 1
    assert "server_error: 2 rows; send the rows again later" in capfd.readouterr().out


@pytest.mark.parametrize("name", sampled(HOSTILE, keep=2, first=6))
def test_hostile_errors_do_not_reach_the_terminal_or_the_shell(folder, capfd, name):
    evil = f"$(rm x); {HOSTILE[name]}"
    main(["failures", written(folder, failed(0, evil, evil), line(1, id=evil, finish_reason="length"))])
    printed = capfd.readouterr().out
    assert all(each.isprintable() for each in printed.splitlines())
    commands = [text for text in printed.splitlines() if text.startswith("  smartbatch run")]
    assert shlex.split(commands[0])[7].startswith("$(rm x); ")


def test_the_printed_command_sends_the_rows_again(folder, capfd):
    (folder / "in.txt").write_text("one\ntwo\n")
    run = ["run", "in.txt", "--model", "sim:demo?latency=0", "-o", "out.jsonl"]
    assert main([*run, "--max-tokens", "1", "--quiet"]) == 0
    assert main(["failures", "out.jsonl"]) == 1
    command = re.search(r"smartbatch run INPUT … (.*)", capfd.readouterr().out)
    assert command is not None
    assert main([*run, *shlex.split(command[1])[2:], "--max-tokens", "200", "--quiet"]) == 0
    assert main(["failures", "out.jsonl"]) == 0


def test_failures_of_a_job_are_grouped_as_well(folder, capfd):
    model = "sim:demo?latency=0&faults=500:1"
    client = BatchingClient(model, batch_enabled=False, batch_fallback="individual", retries=0)
    with client, pytest.raises(AllRequestsFailed):
        client.submit_and_wait(["a", "b"], key="letters")
    assert main(["failures", "letters"]) == 1
    printed = capfd.readouterr().out
    assert printed.startswith("letters: 0 answered, 2 failed.\n\nserver_error: 2 rows; ")
    assert printed.endswith("  smartbatch jobs retry-failed letters\n")
    assert main(["failures", "numbers"]) == 1
    assert "'numbers' is not a file, and the store" in capfd.readouterr().err


def test_a_name_that_is_neither_a_file_nor_a_job_is_an_error(folder, capfd):
    assert main(["failures", "no.jsonl", "--store", "none.db"]) == 2
    assert "no.jsonl: cannot be read" in capfd.readouterr().err
    assert not (folder / "none.db").exists()
