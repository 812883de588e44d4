"""Tables as people have them: blank cells, other delimiters, chats in cells, numbers to format, odd ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from levels import sampled

from smartbatch.cli.main import main
from smartbatch.tables.cells import BadField
from smartbatch.tables.row_formats import csv_rows
from smartbatch.tables.row_prompts import RowPrompts

OWN = "call:own_calls:ask"


pytestmark = pytest.mark.usefixtures("calls")


def run(text: str, *options: str, name: str = "in.csv", command: str = "run") -> int:
    Path(name).write_text(text)
    return main([command, name, "--model", OWN, *options])


def written(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


BLANKS = "id,text\na,one\nb,\nc,three\nd,  \ne,five\n"


def test_all_blank_cells_are_counted_before_anything_is_sent(capfd):
    assert run(BLANKS, "--template", "Say {text}", "-o", "out.jsonl") == 2
    error = capfd.readouterr().err
    assert "row 1 (line 3): field 'text' is blank" in error
    assert "row 3 (line 5): field 'text' is blank" in error
    assert "2 with blank `text`: --on-missing skip leaves such rows out" in error
    assert not Path("out.jsonl").exists()


def test_skipped_rows_have_their_lines_and_are_counted(capfd):
    skip = ("--prompt-field", "text", "--on-missing", "skip")
    assert run(BLANKS, *skip, "-o", "out.jsonl") == 0
    assert "2 rows skipped: blank `text`" in capfd.readouterr().err
    rows = written()
    assert [(row["index"], row["id"], row["text"]) for row in rows] == [
        (0, "a", "answer to one"),
        (1, "b", None),
        (2, "c", "answer to three"),
        (3, "d", None),
        (4, "e", "answer to five"),
    ]
    assert [row["error"] and row["error"]["kind"] for row in rows] == [None, "row_skipped"] * 2 + [None]
    assert rows[1]["error"]["message"] == "skipped: blank `text`"
    assert run(BLANKS, *skip, "-o", "out.jsonl") == 0
    assert "3 rows answered already, 2 skipped before" in capfd.readouterr().err
    assert written() == rows
    assert run(BLANKS, *skip) == 0
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["index"], row["text"]) for row in printed] == [(row["index"], row["text"]) for row in rows]


def test_a_cell_that_is_filled_in_later_is_sent(capfd):
    skip = ("--prompt-field", "text", "--on-missing", "skip", "-o", "out.jsonl")
    assert run(BLANKS, *skip) == 0
    assert run(BLANKS.replace("b,\n", "b,two\n"), *skip) == 0
    assert [row["text"] for row in written()] == [
        "answer to one",
        "answer to two",
        "answer to three",
        None,
        "answer to five",
    ]
    assert "2 rows answered already" not in capfd.readouterr().err


@pytest.mark.parametrize("output", sampled(["out.csv", "out.parquet"]))
def test_a_table_keeps_its_skipped_rows(output):
    skip = ("--prompt-field", "text", "--on-missing", "skip")
    for _ in range(2):
        assert run(BLANKS, *skip, "-o", output) == 0
    import pandas

    table = pandas.read_csv(output) if output.endswith("csv") else pandas.read_parquet(output)
    assert table["error_kind"].fillna("").tolist() == ["", "row_skipped", "", "row_skipped", ""]


@pytest.mark.parametrize("how", ["error", "skip", "empty"])
def test_nulls_are_missing_and_a_misspelt_field_is_an_error(how, capfd):
    rows = '{"t": "x"}\n{"t": null}\n{"u": 1}\n'
    code = run(rows, "--template", "Say {t}", "--on-missing", how, "-o", "out.jsonl", name="in.jsonl")
    assert code == (2 if how == "error" else 0)
    if how != "error":
        other = None if how == "skip" else "answer to Say "
        assert [row["text"] for row in written()] == ["answer to Say x", other, other]
    capfd.readouterr()
    assert run(rows, "--template", "Say {tt}", "--on-missing", how, name="in.jsonl") == 2
    assert "no row has the field 'tt'" in capfd.readouterr().err


def cells(text: str, **options: Any) -> list[list[str]]:
    import io

    rows = csv_rows(io.BytesIO(text.encode()), **options)
    return [list(row[1].values()) if isinstance(row, tuple) else [row.message] for row in rows]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("id;text\n1;hello\n2;world\n", [["1", "hello"], ["2", "world"]]),
        ("id\ttext\n1\thello, you\n", [["1", "hello, you"]]),
        ("id|text\n1|a;b\n", [["1", "a;b"]]),
        ("id;price;text\n1;2,50;a\n2;3,00;b\n", [["1", "2,50", "a"], ["2", "3,00", "b"]]),
        ('id;text\n1;"a;\nb"\n', [["1", "a;\nb"]]),
        ('"a;b",c\n1,2\n', [["1", "2"]]),
        ("text\nhello; world\n", [["hello; world"]]),
        ("question (short; long)\nwhy?\nhow?\nwho?\n", [["why?"], ["how?"], ["who?"]]),
        ("a,b;c\n1,2;3\n", [["1", "2;3"]]),
        ("sep=;\nid;text\n1;a,b\n", [["1", "a,b"]]),
        ("id;text\n", []),
    ],
)
def test_the_delimiter_is_found(text, rows):
    assert cells(text) == rows


def test_the_option_wins_and_a_wrong_row_names_the_delimiter(capfd):
    assert cells("a;b,c\n1;2,3\n", delimiter=",") == [["1;2", "3"]]
    assert cells("a,b\n1\t2,3\n", usual="\t") == [["1\t2", "3"]]
    (message,) = cells("a;b\n1;2;3\n4;5\n6;7\n")[0]
    assert "3 fields, but the header has 2 (the delimiter is the semicolon)" in message
    semicolons = ("--delimiter", "semicolon", "--prompt-field", "b", "-o", "out.jsonl")
    assert run("a,x;b\n1;2\n", *semicolons) == 0
    assert [row["text"] for row in written()] == ["answer to 2"]
    assert run("x\n", "--delimiter", ";", name="in.txt") == 2
    assert "--delimiter is for CSV" in capfd.readouterr().err
    assert run("x\n", "--delimiter", "::") == 2


CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        (json.dumps(CHAT), CHAT),
        (json.dumps(CHAT, indent=2), CHAT),
        (json.dumps({"messages": CHAT}), CHAT),
        (json.dumps(CHAT[0]), CHAT),
        ("[1, 2]", "[1, 2]"),
        ("[not JSON", "[not JSON"),
        ('{"city": "Bonn"}', '{"city": "Bonn"}'),
    ],
)
def test_a_chat_in_a_cell_is_a_chat_and_other_text_is_text(cell, prompt):
    assert RowPrompts.of(None, "chat").prompt({"chat": cell}) == prompt


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("chat", str(CHAT)),
        ("chat", json.dumps(CHAT)[:-3]),
        ("messages", "[1, 2]"),
        ("messages", "{'role': 'user'}"),
        ("chat", '[{"role": "user", "content": ' + "[" * 9999),
    ],
)
def test_what_only_looks_like_a_chat_is_refused(name, cell):
    with pytest.raises(BadField, match=rf"field '{name}'.*chat"):
        RowPrompts.of(None, name).prompt({name: cell})


@pytest.mark.parametrize(
    ("template", "value", "prompt"),
    [
        ("{x:.2f}", "19.989", "19.99"),
        ("{x:.2f}", 3, "3.00"),
        ("{x:,}", "1234567", "1,234,567"),
        ("{x:05d}", "42", "00042"),
        ("{x:d}", 42.0, "42"),
        ("{x:.0%}", "0.25", "25%"),
        ("{x:>4}|", "ab", "  ab|"),
        ("{x:.3}", "abcdef", "abc"),
        ("{x:%d.%m.%Y}", "2026-11-27", "27.11.2026"),
    ],
)
def test_a_format_reads_the_text_of_a_cell(template, value, prompt):
    assert RowPrompts.of(template, None).prompt({"x": value}) == prompt


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{x:.2f}", "cheap"),
        ("{x:.2f}", "1,234.50"),
        ("{x:.2f}", "nan"),
        ("{x:d}", "1.5"),
        ("{x:.2f}", True),
        ("{x:.2f}", [1]),
        ("{x:%Y}", "yesterday"),
        ("{x:%Y}", 3),
    ],
)
def test_a_cell_that_does_not_fit_its_format_is_refused(template, value):
    with pytest.raises(BadField, match=r"field 'x' is not a (number|date) that") as caught:
        RowPrompts.of(template, None).prompt({"x": value})
    assert str(value) not in caught.value.message


def test_a_row_that_does_not_fit_its_format_is_named(capfd):
    assert run("price\n1\ncheap\n", "--template", "{price:.2f} EUR") == 2
    assert "row 1 (line 3): field 'price' is not a number" in capfd.readouterr().err


def test_a_decimal_comma_is_told(capfd):
    assert run("name;price\nkettle;3,50\n", "--template", "{price:.2f} EUR") == 2
    assert "a decimal point in place of the comma" in capfd.readouterr().err


def test_equal_ids_are_refused_with_both_rows(capfd):
    rows = (
        '{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n{"id": 1.0, "text": "c"}\n{"id": "2", "text": "d"}\n'
    )
    assert run(rows, name="in.jsonl") == 2
    error = capfd.readouterr().err
    assert "row 2 (line 3): has the same id as row 0 (line 1)" in error
    assert "row 3 (line 4): has the same id as row 1 (line 2)" in error
    assert run(rows, "--id-field", "-", "-o", "out.jsonl", name="in.jsonl") == 0
    assert [row["id"] for row in written()] == [0, 1, 2, 3]


def test_of_a_long_first_prompt_both_ends_are_shown(capfd):
    assert run("text\n" + "a" * 4000 + "\n", "--template", "Say {text}!", "--json", command="plan") == 0
    shown = json.loads(capfd.readouterr().out)["first_prompt"]
    assert shown == "Say " + "a" * 996 + " … (2,005 more characters) … " + "a" * 999 + "!"


def test_the_first_prompt_is_shown(capfd):
    options = ("--template", "Say {text}", "--on-missing", "skip")
    rows = "text\n \nhello\x1b[31m\n"
    assert run(rows, *options, command="plan") == 0
    assert "First prompt: Say hello\\x1b[31m" in capfd.readouterr().out
    assert run(rows, *options, "--json", command="plan") == 0
    assert json.loads(capfd.readouterr().out)["first_prompt"] == "Say hello\x1b[31m"
    assert run(rows, *options, "-v", "-o", "out.jsonl") == 0
    assert "first prompt, row 1 (line 3): Say hello" in capfd.readouterr().err


def test_a_resend_leaves_skipped_rows_alone(capfd):
    skip = ("--prompt-field", "text", "--on-missing", "skip", "-o", "out.jsonl")
    assert run(BLANKS, *skip) == 0
    before = Path("out.jsonl").read_bytes()
    assert run(BLANKS, *skip, "--resend", "failed") == 0
    assert "2 skipped before" in capfd.readouterr().err
    assert Path("out.jsonl").read_bytes() == before


@pytest.mark.parametrize("how", sampled(["escape", "keep", None]))
def test_a_run_escapes_formulas_if_it_is_told_to(how):
    options = [] if how is None else ["--csv-formulas", how]
    for limit in ("1", "3"):
        assert run("text\n=1\n-5\n@x\n", "-o", "out.csv", "--limit", limit, *options) == 0
    import csv

    with open("out.csv", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert texts == (["'=1", "-5", "'@x"] if how == "escape" else ["=1", "-5", "@x"])


def test_formulas_of_other_files_are_refused(capfd):
    assert run("text\na\n", "-o", "out.jsonl", "--csv-formulas", "escape") == 2
    assert "--csv-formulas requires results in CSV" in capfd.readouterr().err


def test_a_template_in_a_file_is_the_template_on_the_command_line(calls, capfd):
    Path("prompt.txt").write_text("Say {text}\n")
    assert run("id,text\na,one\n", "--template", "Say {text}", "-o", "out.jsonl") == 0
    assert run("id,text\na,one\n", "--template", "@prompt.txt", "-o", "out.jsonl") == 0
    assert "1 rows answered already" in capfd.readouterr().err
    Path("prompt.j2").write_text("@{% if text == 'one' %}{{ text }}!{% else %}{{ text }}?{% endif %}\n")
    assert run("id,text\na,one\nb,two\n", "--template", "@prompt.j2", "--quiet", "-o", "other.jsonl") == 0
    assert run("id,text\na,one\n", "--template", "@@{text}", "--quiet", "-o", "at.jsonl") == 0
    assert sorted(calls.asked) == ["@one", "@one!", "@two?", "Say one"]
    assert run("id,text\na,one\n", "--template", "prompt.txt") == 2
    assert "--template 'prompt.txt' is the name of a file: write @prompt.txt" in capfd.readouterr().err
    assert run("id,text\na,one\n", "--template", "@none.txt") == 2
    assert "--template: none.txt: cannot be read: No such file" in capfd.readouterr().err
