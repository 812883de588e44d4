"""``smartbatch view``: rows in the terminal, the accuracy of marks, and the server."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from smartbatch.cli.main import main
from smartbatch.quality.marks import Mark, answer_digest
from smartbatch.runs.marks_file import MarksFile
from smartbatch.runs.row_index import RowIndex

pytestmark = pytest.mark.usefixtures("folder")


def view(*args: str) -> int:
    return main(["view", "out.jsonl", *args])


def line(index: int, **changes: Any) -> dict[str, Any]:
    whole = {"index": index, "id": f"r{index}", "input": {"text": f"word {index}"}, "model": "sim:demo"}
    return {**whole, "text": f"answer {index}", "finish_reason": "stop", "error": None, **changes}


def failed(index: int) -> dict[str, Any]:
    return line(index, text=None, error={"kind": "timeout", "message": "it took too long"})


@pytest.fixture
def written(folder):
    def write(*lines: dict[str, Any]) -> None:
        (folder / "out.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))

    return write


def test_rows_of_a_run_are_printed_with_their_prompts(folder, capfd):
    (folder / "in.csv").write_text("id,text\nfirst,one\nsecond,two\n")
    template = ["--template", "Say {text}"]
    assert main(["run", "in.csv", "--model", "sim:echo", "-o", "out.jsonl", "--quiet", *template]) == 0
    assert view("--text", *template, "--search", "TWO") == 0
    printed = capfd.readouterr().out
    assert "Rows 2 " in printed
    assert "Row 1 · second\nPrompt:\n  Say two\nAnswer:\n  " in printed
    assert "first" not in printed


def test_files_of_answers_are_named_in_the_terminal(written, capfd):
    written(line(0, files=["out.files/r0-0.png"]))
    assert view("--text") == 0
    assert "out.files/r0-0.png" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ((), "0 1 2"),
        (("--failed",), "1"),
        (("--error", "timeout"), "1"),
        (("--defect", "truncated"), "2"),
        (("--search", "word 0"), "0"),
        (("--where", "label=good"), "0"),
        (("--where", "label=good", "--where", "text=word 0"), "0"),
        (("--mark", "wrong"), "0"),
        (("--scored", "right", "--label-column", "own"), "2"),
        (("--scored", "wrong", "--label-column", "own"), "0"),
        (("--limit", "1"), "0"),
        (("--search", "nothing"), ""),
    ],
)
def test_options_select_rows(written, capfd, options, rows):
    cut = line(2, finish_reason="length", input={"text": "word 2", "own": "Answer 2"})
    written(line(0, parsed={"label": "good"}, input={"text": "word 0", "own": "bad"}), failed(1), cut)
    MarksFile("out.marks.jsonl").add(Mark(index=0, id="r0", answer="x", verdict="wrong"))
    assert view("--text", *options) == 0
    printed = capfd.readouterr().out
    found = [text.split()[1] for text in printed.splitlines() if text.startswith("Row ")]
    assert found == rows.split()
    assert ("--limit sets another number" in printed) is ("--limit" in options)
    assert ("No rows match." in printed) is (not rows)


def test_hostile_texts_are_escaped_in_the_terminal(written, capfd):
    text = "\x1b]0;title\x07\x1b[2J red\u2028\u202e\r\x9b31m"
    error = {"kind": text, "message": text}
    written(line(0, id=text, input={text: text}, text=f"a\nb{text}", model=text), line(1, error=error))
    assert view("--text") == 0
    printed = capfd.readouterr().out
    assert all(sign.isprintable() or sign == "\n" for sign in printed)
    assert "Answer:\n  a\n  b\\x1b]0;title\\x07\\x1b[2J red\\u2028\\u202e\\r\\x9b31m" in printed


def test_long_answers_are_complete_in_the_terminal(written, capfd):
    text = "界" * 700 + " end"
    written(line(0, text=text))
    assert view("--text") == 0
    printed = capfd.readouterr().out
    assert printed.count("界") == 700
    assert "end" in printed


def mark_rows(*verdicts: Any) -> None:
    index, file = RowIndex("out.jsonl"), MarksFile("out.marks.jsonl")
    for at, verdict in enumerate(verdicts):
        row = index.row(at)
        file.add(Mark(index=row.index, id=row.id, answer=answer_digest(row), verdict=verdict))


def test_the_accuracy_of_marks_is_printed(written, capfd):
    written(*(line(number) for number in range(3)))
    mark_rows("right", "right", "unsure")
    assert view("--marks") == 0
    printed = capfd.readouterr().out
    assert "Right answers 100.0 % (2 of 2, 1 unsure; 95 %: 34.2 to 100.0 %)" in printed
    assert "answer 0" not in printed
    written(line(0), line(1))
    assert view("--marks") == 0
    printed = capfd.readouterr().out
    assert "(2 of 2; 95 %" in printed
    assert "! 1 mark of rows that are no longer in the output: not counted." in printed


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--text", "--where", "label"), "--where: write FIELD=VALUE"),
        (("--where", "a=1", "--where", "b=2"), "--where can be repeated only with --text"),
        (("--failed", "--defect", "empty"), "--defect selects answers, which failed rows do not have"),
        (("--text", "--scored", "wrong"), "--scored needs --label-column or --labels"),
        (("--text", "--template", "{a.b}"), "--template: {a.b} is not a plain field name"),
        (("--defect", "odd"), "invalid choice: 'odd'"),
        (("--port", "70000"), "--port 70000: not a valid port"),
    ],
)
def test_bad_options_are_refused(written, capfd, options, what):
    written(line(0))
    assert view(*options) == 2
    assert what in capfd.readouterr().err


def test_a_file_that_is_no_output_is_refused_by_the_viewer(folder, capfd):
    (folder / "out.jsonl").write_text("no output\n")
    for options in ((), ("--text",), ("--marks",)):
        assert view(*options) == 2
        assert "out.jsonl: line 1 is not JSON" in capfd.readouterr().err


def test_rows_marked_right_become_examples_of_a_run(written, folder, capfd):
    written(*(line(number, input={"text": f"word {number}", "n": number}) for number in range(3)))
    mark_rows("right", "wrong", "right")
    assert view("--save-examples", "examples.jsonl") == 0
    assert "wrote 2 examples to examples.jsonl" in capfd.readouterr().err
    saved = [json.loads(text) for text in (folder / "examples.jsonl").read_text().splitlines()]
    assert saved == [{"text": f"word {n}", "n": n, "answer": f"answer {n}"} for n in (0, 2)]
    (folder / "in.csv").write_text("text\nnew\n")
    options = ["--template", "{text}", "--examples", "examples.jsonl", "-o", "new.jsonl", "--quiet"]
    assert main(["run", "in.csv", "--model", "sim:echo", *options]) == 0
    assert view("--save-examples", "examples.jsonl") == 2
    assert "examples.jsonl: cannot be written: File exists" in capfd.readouterr().err


def test_without_right_answers_there_are_no_examples(written, folder, capfd):
    written(line(0))
    mark_rows("wrong")
    assert view("--save-examples", "examples.jsonl") == 2
    assert "out.jsonl: no answer is marked right" in capfd.readouterr().err
    assert not (folder / "examples.jsonl").exists()


@pytest.mark.full
def test_the_command_prints_its_address_serves_rows_and_ends(written):
    written(line(0))
    command = (sys.executable, "-m", "smartbatch", "view", "out.jsonl", "--search", "0", "--error", "own")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.fullmatch(
            r"http://(127\.0\.0\.1:\d+)/\?token=(.*)&outcome=own&search=0\n", process.stdout.readline()
        )
        assert found is not None
        for token, status in ((found[2], 200), ("another", 403)):
            connection = http.client.HTTPConnection(found[1], timeout=30)
            connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            assert (response.status, b"answer 0" in response.read()) == (status, status == 200)
        process.terminate()
    assert process.returncode == 0
