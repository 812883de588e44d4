"""Rows come out of every format as they went in, and errors name their line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.cli import inputs
from smartbatch.cli.inputs import BadRow, Row, Source
from smartbatch.errors import InputError


def read(path: Path, data: bytes, format: str | None = None) -> list[Row | BadRow]:
    path.write_bytes(data)
    with Source(str(path), format) as source:
        first = list(source.rows())
        assert list(source.rows()) == first, "a second pass sees the same rows"
    return first


def fields(path: Path, data: bytes, format: str | None = None) -> list[dict[str, object]]:
    rows = read(path, data, format)
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.fields for row in rows if isinstance(row, Row)]


def bad(path: Path, data: bytes) -> tuple[int, str]:
    (row,) = [row for row in read(path, data) if isinstance(row, BadRow)]
    return row.line, row.message


def test_a_text_file_is_a_prompt_a_line_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    """Blank lines are skipped for the index, and counted for the line number."""
    rows = read(tmp_path / "in.txt", b"\xef\xbb\xbfone\r\n\r\n  \ntwo")
    assert rows == [Row(0, 1, {"prompt": "one"}), Row(1, 4, {"prompt": "two"})]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x1c", "\x1e", "\x0b", "a\rb"])
def test_only_a_newline_ends_a_row(tmp_path: Path, odd: str) -> None:
    """Exotic line ends inside a text stay inside it, in text and in JSON lines."""
    text = f"left {odd} right"
    assert fields(tmp_path / "in.txt", f"{text}\nnext\n".encode()) == [{"prompt": text}, {"prompt": "next"}]
    line = json.dumps({"prompt": text}, ensure_ascii=False).encode()
    assert fields(tmp_path / "in.jsonl", line + b"\n" + line) == [{"prompt": text}] * 2


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        (b'{"a": 1', "not valid JSON"),
        (b'["a"]', "not a JSON object"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": 1e400}', "a number is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number is too long"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "nested deeper than 200"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper than 200"),
        (b'{"a": "\xff"}', "not valid UTF-8 (byte 8"),
    ],
)
def test_a_broken_json_line_is_one_bad_row_among_good_ones(tmp_path: Path, line: bytes, printed: str) -> None:
    """Each kind of damage is reported with its line, and the rows around it are read."""
    rows = read(tmp_path / "in.jsonl", b'{"a": 1}\n\n' + line + b'\n{"a": 2}\n')
    assert [type(row) for row in rows] == [Row, BadRow, Row]
    assert rows[1].line == 3
    assert isinstance(rows[1], BadRow)
    assert printed in rows[1].message


def test_many_brackets_are_no_depth(tmp_path: Path) -> None:
    """A wide row with thousands of flat lists is fine."""
    wide = {"a": [[] for _ in range(3000)]}
    assert fields(tmp_path / "in.jsonl", json.dumps(wide).encode()) == [wide]


def test_invalid_utf8_in_text_names_the_line(tmp_path: Path) -> None:
    """One bad byte makes one bad row."""
    assert bad(tmp_path / "in.txt", b"fine\nb\xffd\nfine\n") == (
        2,
        "not valid UTF-8 (byte 2 of the line); save the file as UTF-8",
    )


def test_csv_keeps_quoted_commas_and_newlines_and_forgets_the_byte_order_mark(tmp_path: Path) -> None:
    """The row's line is where it begins, even after fields of several lines."""
    data = b'\xef\xbb\xbfid,text\r\n1,"a, b\nc ""d"""\r\n\r\n2,\xc3\xa9\r\n'
    assert read(tmp_path / "in.csv", data) == [
        Row(0, 2, {"id": "1", "text": 'a, b\nc "d"'}),
        Row(1, 5, {"id": "2", "text": "é"}),
    ]


@pytest.mark.parametrize(
    ("data", "printed"),
    [
        (b"a,b\n1,2\n1,2,3\n", (3, "3 fields where the header names 2; quote fields that hold commas")),
        (b"a,b\n1,\xff\n", (2, "field 'b' is not valid UTF-8; save the file as UTF-8")),
        (b"a,a\n1,2\n", (1, "the header names the column 'a' twice")),
        (b"a,\xff\n1,2\n", (1, "the header is not valid UTF-8; save the file as UTF-8")),
    ],
)
def test_a_csv_row_that_does_not_fit_is_reported(
    tmp_path: Path, data: bytes, printed: tuple[int, str]
) -> None:
    """Too many fields, broken bytes and ambiguous headers are bad rows."""
    assert bad(tmp_path / "in.csv", data) == printed


def test_an_open_quote_is_told_with_the_line_it_begins_on(tmp_path: Path) -> None:
    """A quote that never closes does not swallow the rest of the file in silence."""
    line, message = bad(tmp_path / "in.csv", b'a\nfine\n"open\nx\ny\n')
    assert line == 3
    assert "check its quotes" in message


def test_reading_csv_leaves_the_process_wide_field_limit_alone(tmp_path: Path) -> None:
    """A long field is read, and csv's global limit is what it was."""
    before = csv.field_size_limit()
    long = "x" * 300_000
    assert fields(tmp_path / "in.csv", f"a\n{long}\n".encode()) == [{"a": long}]
    assert csv.field_size_limit() == before


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), min_size=1))
def test_any_csv_that_python_writes_reads_back(cells: list[list[str]]) -> None:
    """Whatever text is quoted by the book comes back as it was."""
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *cells])
    rows = list(inputs.READERS["csv"](io.BytesIO(written.getvalue().encode())))
    assert [row[1] for row in rows if isinstance(row, tuple)] == [{"a": a, "b": b} for a, b in cells]


@given(st.binary(max_size=300), st.sampled_from(sorted(inputs.READERS)))
def test_no_bytes_make_a_reader_raise(data: bytes, format: str) -> None:
    """Rubbish is bad rows, never an exception."""
    for row in inputs.READERS[format](io.BytesIO(data)):
        assert isinstance(row, tuple | BadRow)


@pytest.mark.parametrize("name", ["in.txt.gz", "in.jsonl.gz", "in.csv.gz"])
def test_gzip_of_each_format_is_read(tmp_path: Path, name: str) -> None:
    """The name before .gz says the format."""
    plain = {"txt": b"hello\n", "jsonl": b'{"prompt": "hello"}\n', "csv": b"prompt\nhello\n"}
    assert fields(tmp_path / name, gzip.compress(plain[name.split(".")[1]])) == [{"prompt": "hello"}]


@pytest.mark.parametrize("data", [gzip.compress(b"hello\n" * 9999)[:-20], b"not gzip at all"])
@pytest.mark.parametrize("name", ["in.txt.gz", "in.csv.gz"])
def test_a_broken_gzip_file_is_refused_by_name(tmp_path: Path, data: bytes, name: str) -> None:
    """A truncated or false archive is not taken for a short input."""
    (tmp_path / name).write_bytes(data)
    with Source(str(tmp_path / name)) as source, pytest.raises(InputError, match="cannot be read to its end"):
        list(source.rows())


@pytest.mark.parametrize(
    ("data", "format"),
    [(b'\n {"prompt": "x"}\n', "jsonl"), (b"x\n{\n", "txt"), (b"\xef\xbb\xbf{}", "jsonl"), (b"", "txt")],
)
@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_spooled_and_sniffed(
    monkeypatch: pytest.MonkeyPatch, data: bytes, format: str, packed: bool
) -> None:
    """Standard input can be read twice, and its first character tells JSON lines from text."""
    stream = io.BytesIO(gzip.compress(data) if packed else data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    with Source("-") as source:
        assert source.format == format
        assert list(source.rows()) == list(source.rows())


def test_a_pipe_with_a_name_is_spooled_too(tmp_path: Path) -> None:
    """Process substitution works: what cannot be read twice is copied first."""
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    with Source(str(pipe)) as source:
        assert len(list(source.rows())) == len(list(source.rows())) == 2
    writer.join()


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("missing.txt", "No such file"),
        ("folder.txt", "Is a directory"),
        ("in.orc", "cannot tell the format"),
    ],
)
def test_an_input_that_cannot_be_used_is_refused_by_name(tmp_path: Path, name: str, printed: str) -> None:
    """Missing files, folders and unknown formats say what they are."""
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "in.orc").write_bytes(b"ORC")
    with pytest.raises(InputError, match=printed) as caught:
        Source(str(tmp_path / name))
    assert name in caught.value.message


def test_an_endless_line_is_one_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row beyond the limit is reported, and the next one is read."""
    monkeypatch.setattr(inputs, "MAX_ROW_BYTES", 1 << 20)
    long = b"x" * (3 << 20)
    rows = read(tmp_path / "in.txt", b"a\n" + long + b"\nb\n")
    assert [row.line for row in rows] == [1, 2, 3]
    assert rows[1] == BadRow(2, "the row is longer than 1 MiB")
    assert "longer than 1 MiB" in bad(tmp_path / "in.csv", b"a\n" + long + b"\n")[1]
