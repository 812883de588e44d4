"""``smartbatch run`` from end to end, through ``main``."""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.runs import prompts, written

from smartbatch.cli.main import main
from smartbatch.runs.output_file import OutputFile
from smartbatch.views.terminal import cells_of

SIM = "sim:demo?latency=0"

OWN = "call:own_calls:ask"


def run(*args: str, input: str = "in.txt", model: str = OWN, output: str | None = "out.jsonl") -> int:
    out = [] if output is None else ["-o", output]
    return main(["run", input, "--model", model, "--parallelism", "3", *out, *args])


@pytest.mark.full
def test_the_template_puts_columns_into_the_prompt(calls):
    table = io.StringIO(newline="")
    csv.writer(table).writerows([["id", "text"], ["a", "x, y\nz"], ["b", "é"], ["c", "{text}"]])
    Path("in.csv").write_bytes(b"\xef\xbb\xbf" + table.getvalue().encode())
    assert run("--template", "Say {{{text}}}", input="in.csv") == 0
    assert sorted(calls.asked) == ["Say {x, y\nz}", "Say {{text}}", "Say {é}"]
    assert [(row["id"], row["input"]["text"]) for row in written()] == [
        ("a", "x, y\nz"),
        ("b", "é"),
        ("c", "{text}"),
    ]


def test_a_gzipped_file_is_read_and_a_field_can_be_the_prompt(calls):
    line = json.dumps({"question": "why", "answer": "because", "number": 9}) + "\n"
    Path("in.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    assert run("--prompt-field", "question", "--id-field", "number", input="in.jsonl.gz") == 0
    assert [(row["id"], row["text"]) for row in written()] == [(9, "answer to why")]


@pytest.mark.full
def test_standard_input_gives_prompts_and_standard_output_takes_results(calls, monkeypatch, capfdbinary):
    stream = io.BytesIO("".join(f"prompt {i}\u2028\n" for i in range(40)).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    assert run(input="-", output=None) == 0
    printed = capfdbinary.readouterr()
    rows = [json.loads(line) for line in printed.out.split(b"\n")[:-1]]
    assert [row["text"] for row in rows] == [f"answer to prompt {i}\u2028" for i in range(40)]
    assert printed.out.isascii()
    assert b"40 answered" in printed.err


def test_chats_are_prompts_too(calls):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    Path("in.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    assert run(input="in.jsonl", model=SIM) == 0
    assert written()[0]["input"] == {"messages": chat}


@pytest.mark.full
def test_failed_rows_end_in_one_and_are_tried_again(calls, capfd):
    prompts(6)
    calls.broken.add("prompt 2")
    assert run("--retries", "0") == 1
    row = written()[2]
    assert row["text"] is None
    assert row["error"]["kind"] == "unknown"
    assert "row 2: unknown: " in capfd.readouterr().err
    calls.broken.clear()
    calls.asked.clear()
    assert run("--retries", "0") == 0
    assert calls.asked == ["prompt 2"]
    assert [(row["index"], row["error"]) for row in written()] == [(i, None) for i in range(6)]


def test_equal_rows_are_rows_of_their_own(calls):
    Path("in.jsonl").write_text('{"id": "x", "prompt": "same"}\n' * 20)
    assert run("--id-field", "-", input="in.jsonl") == 0
    assert [(row["index"], row["id"], row["text"]) for row in written()] == [
        (i, i, "answer to same") for i in range(20)
    ]


REFUSED = [
    ("in.txt", b"", [], "in.txt: has no rows"),
    ("in.txt", b"\n  \n", [], "in.txt: has no rows"),
    ("in.txt", b"fine\nb\xffd\n", [], "line 2: not valid UTF-8"),
    ("in.jsonl", b'{"prompt": "x"}\n\n{"prompt": " "}\n', [], "row 1 (line 3): field 'prompt' is blank"),
    ("in.jsonl", b'{"prompt": "x"}\n{"prompt": ""}\n', [], "row 1 (line 2): field 'prompt' is blank"),
    ("in.jsonl", b'{"prompt": "\\ud800"}\n', [], "row 0 (line 1): prompt has a lone surrogate"),
    ("in.jsonl", b'{"prompt": 5}\n', [], "row 0 (line 1): prompt must be a string"),
    ("in.jsonl", b'{"messages": [{"role": "boss", "content": "x"}]}\n', [], "prompt[0].role must be one of"),
    ("in.jsonl", b'{"prompt": "x"}\n{"prompt": \n', [], "line 2: not valid JSON"),
    ("in.jsonl", b'{"a": "x", "b": "y"}\n', [], "row 0 (line 1): the prompt field is ambiguous"),
    ("in.jsonl", b'{"a": "x"}\n', ["--template", "{b}"], "row 0 (line 1): no field 'b'; the row has 'a'"),
    ("in.jsonl", b'{"a": "x"}\n', ["--prompt-field", "b"], "row 0 (line 1): no field 'b'; the row has 'a'"),
    ("in.jsonl", b'{"a": "x"}\n', ["--id-field", "b"], "row 0 (line 1): no field 'b'; the row has 'a'"),
    (
        "in.txt",
        b"x\n",
        ["--template", "{prompt.real}"],
        "--template: {prompt.real} is not a plain field name",
    ),
    ("in.txt", b"x\n", ["--temperature", "nan"], "temperature must be a number from 0 to 2"),
    ("in.txt", b"x\n", ["--max-tokens", "0"], "max_tokens must be a whole number"),
    ("in.txt", b"x\n", ["--parallelism", "0"], "parallelism = 0 is out of range"),
    ("in.txt", b"x\n", ["--config", "missing.toml"], "cannot read the settings file missing.toml"),
    ("in.txt", b"x\n", ["-o", "in.txt"], "is the input file"),
    ("in.txt", b"x\n", ["-o", "out.tsv"], "out.tsv: results cannot be written as .tsv"),
    ("in.txt", b"x\n", ["-o", "out.jsonl.gz"], "name the output .jsonl, .ndjson, .csv or .parquet (-o)"),
    ("in.txt", b"x\n", ["-o", "missing/out.jsonl"], "cannot be written: No such file or directory"),
    ("in.txt", b"x\n", ["--model", "nonsense:x"], "unknown provider"),
    ("in.txt", b"x\n", ["--model", "openai:gpt-5-mini"], "OPENAI_API_KEY"),
    ("in.txt", b"x\n", ["--provider-option", "api"], "K=V"),
    ("in.txt", b"x\n", ["--model", "openai:gpt-5-mini", "--provider-option", "api=letters"], "letters"),
    ("in.txt", b"x\n", ["--model", "sim:demo", "--provider-option", "rpm=many"], "rpm needs a number"),
    ("in.txt", b"x\n", ["--template", "{prompt}", "--prompt-field", "prompt"], "not allowed with argument"),
    ("in.txt", b"x\n", ["--limit", "0"], "0 is not 1 or more"),
    ("in.txt", b"x\n", ["--strategy", "magic"], "invalid choice"),
]


@pytest.mark.parametrize(("name", "data", "options", "printed"), REFUSED)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    calls, monkeypatch, capfd, name, data, options, printed
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path(name).write_bytes(data)
    assert run(*options, input=name) == 2
    message = capfd.readouterr().err
    assert printed in message
    assert "Traceback" not in message
    assert calls.asked == []
    assert not Path("out.jsonl").exists()


def test_of_many_bad_rows_ten_are_named(calls, capfd):
    Path("in.jsonl").write_text('{"prompt": "secret"}\n' + '{"text": 1, "secret": 2}\n' * 30)
    assert run(input="in.jsonl") == 2
    message = capfd.readouterr().err
    assert "30 rows cannot be used; nothing was sent" in message
    assert message.count("\n  row ") == 10
    assert "and 20 more" in message


def test_an_input_that_changes_meanwhile_is_noticed(calls, monkeypatch, capfd):
    prompts(5)
    recover = OutputFile.recover

    def edit_then_recover(self: OutputFile, keys: Any) -> Any:
        with Path("in.txt").open("r+b") as file:
            file.seek(len("prompt 0\nprompt 1\nprompt 2\n"))
            file.write(b"PROMPT")
        return recover(self, keys)

    monkeypatch.setattr(OutputFile, "recover", edit_then_recover)
    assert run() == 2
    assert "in.txt: changed while it was being read" in capfd.readouterr().err
    assert "PROMPT 3" not in calls.asked


@pytest.mark.full
def test_quiet_says_nothing_and_verbose_says_more(calls, capfd):
    prompts(3)
    calls.broken.add("prompt 1")
    assert run("--quiet", "--retries", "0") == 1
    assert capfd.readouterr().err == ""
    assert run("-v", "--retries", "0") == 1
    assert capfd.readouterr().err.count("row 1: unknown: ") == 1


def test_help_and_version_are_no_errors(capfd):
    assert main(["--version"]) == 0
    assert main(["run", "--help"]) == 0
    assert main([]) == 2
    assert main(["run"]) == 2
    capfd.readouterr()


def test_asking_for_help_imports_no_client():
    code = (
        "import sys; from smartbatch.cli.main import main; main(['--help']);"
        "sys.exit(any(m in sys.modules for m in ('smartbatch.client', 'attrs', 'urllib3', 'structlog')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.full
def test_on_a_terminal_each_result_is_one_line_of_its_width(folder):
    columns = 30
    chat = [{"role": "user", "content": "first"}, {"role": "user", "content": "日本語" * 40}]
    rows = [{"prompt": "long " * 50}, {"prompt": "two\nlines"}, {"messages": chat}]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    command = [sys.executable, "-m", "smartbatch", "run", "in.jsonl", "--model", "call:long_ones:ask"]
    Path("long_ones.py").write_text("def ask(request, attempt):\n    return 'answer\\n' * 50\n")
    subprocess.run(command, stdout=follower, stderr=subprocess.DEVNULL, check=True)
    os.close(follower)
    lines = os.read(leader, 10_000).decode().splitlines()
    os.close(leader)
    assert [line.partition("  ")[0] for line in lines] == ["0", "1", "2"]
    assert [cells_of(line) <= columns for line in lines] == [True] * 3
    assert cells_of(lines[0]) == columns
    assert lines[0].endswith("…")
    assert lines[1].startswith("1  two lines → answer answer")
    assert lines[2].startswith("2  日本語日本語")


@pytest.mark.parametrize("options", [["--nonsense"], ["--limit"], ["--template", "a", "--prompt-field", "b"]])
def test_an_error_of_usage_is_one_line_without_the_usage(options, capfd):
    assert run(*options, model=SIM) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("smartbatch")
    assert options[0] in line
