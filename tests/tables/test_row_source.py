"""Rows of every input format, and errors that name their line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import sampled

from smartbatch.errors import InputError
from smartbatch.tables import row_formats, row_source
from smartbatch.tables.row_formats import BadRow
from smartbatch.tables.row_source import Row, RowSource


def read(path: Path, data: bytes, format: str | None = None) -> list[Row | BadRow]:
    path.write_bytes(data)
    with RowSource(str(path), format) as source:
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


def test_a_text_file_is_a_prompt_a_line_and_blank_lines_do_not_count(tmp_path):
    rows = read(tmp_path / "in.txt", b"\xef\xbb\xbfone\r\n\r\n  \ntwo")
    assert rows == [Row(0, 1, {"prompt": "one"}), Row(1, 4, {"prompt": "two"})]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x1c", "\x1e", "\x0b", "a\rb"])
def test_only_a_newline_ends_a_row(tmp_path, odd):
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
def test_a_broken_json_line_is_one_bad_row_among_good_ones(tmp_path, line, printed):
    rows = read(tmp_path / "in.jsonl", b'{"a": 1}\n\n' + line + b'\n{"a": 2}\n')
    assert [type(row) for row in rows] == [Row, BadRow, Row]
    assert rows[1].line == 3
    assert isinstance(rows[1], BadRow)
    assert printed in rows[1].message


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "a\\u0041\\ud83d\\ude00", "n": -0, "yes": true, "none": null, "none": "twice"}',
        '{"prompt": "", "n": 123456789012345678901234567890, "most": 18446744073709551615}',
        ' {"f": 0.1, "g": -0.0, "h": 1e-400, "list": [1, {"a": []}]}\t',
        '{"prompt": "\\ud800"}',
    ],
)
def test_a_row_of_json_is_what_the_standard_library_makes_of_it(tmp_path, line):
    (found,) = fields(tmp_path / "in.jsonl", line.encode() + b"\n")
    assert repr(found) == repr(json.loads(line))


def test_many_brackets_are_no_depth(tmp_path):
    wide = {"a": [[] for _ in range(3000)]}
    assert fields(tmp_path / "in.jsonl", json.dumps(wide).encode()) == [wide]


def test_invalid_utf8_in_text_names_the_line(tmp_path):
    assert bad(tmp_path / "in.txt", b"fine\nb\xffd\nfine\n") == (
        2,
        "not valid UTF-8 (byte 2 of the line); save the file as UTF-8",
    )


def test_csv_keeps_quoted_commas_and_newlines_without_the_byte_order_mark(tmp_path):
    data = b'\xef\xbb\xbfid,text\r\n1,"a, b\nc ""d"""\r\n\r\n2,\xc3\xa9\r\n'
    assert read(tmp_path / "in.csv", data) == [
        Row(0, 2, {"id": "1", "text": 'a, b\nc "d"'}),
        Row(1, 5, {"id": "2", "text": "é"}),
    ]


@pytest.mark.parametrize(
    ("data", "printed"),
    [
        (
            b"a,b\n1,2\n1,2,3\n",
            (
                3,
                "3 fields, but the header has 2 (the delimiter is the comma); quote fields that contain "
                "it, or choose another with --delimiter",
            ),
        ),
        (b"a,b\n1,\xff\n", (2, "field 'b' is not valid UTF-8; save the file as UTF-8")),
        (b"a,a\n1,2\n", (1, "the header names the column 'a' twice")),
        (b"a,\xff\n1,2\n", (1, "the header is not valid UTF-8; save the file as UTF-8")),
    ],
)
def test_a_csv_row_that_does_not_fit_is_reported(tmp_path, data, printed):
    assert bad(tmp_path / "in.csv", data) == printed


def test_an_open_quote_is_told_with_the_line_it_begins_on(tmp_path):
    line, message = bad(tmp_path / "in.csv", b'a\nfine\n"open\nx\ny\n')
    assert line == 3
    assert "check its quotes" in message


def test_reading_csv_leaves_the_process_wide_field_limit_alone(tmp_path):
    before = csv.field_size_limit()
    long = "x" * 300_000
    assert fields(tmp_path / "in.csv", f"a\n{long}\n".encode()) == [{"a": long}]
    assert csv.field_size_limit() == before


@pytest.mark.full
@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), min_size=1))
def test_any_csv_that_python_writes_reads_back(cells):
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *cells])
    rows = list(row_source.READERS["csv"](io.BytesIO(written.getvalue().encode())))
    assert [row[1] for row in rows if isinstance(row, tuple)] == [{"a": a, "b": b} for a, b in cells]


TEXTS = sorted(row_source.READERS.keys() - {"parquet"})


@given(st.binary(max_size=300), st.sampled_from(TEXTS))
def test_no_bytes_make_a_reader_raise(data, format):
    for row in row_source.READERS[format](io.BytesIO(data)):
        assert isinstance(row, tuple | BadRow)


# one row in each format
HELLO: dict[str, Callable[[], bytes]] = {
    "txt": lambda: b"hello\n",
    "jsonl": lambda: b'{"prompt": "hello"}\n',
    "json": lambda: b'[{"prompt": "hello"}]',
    "csv": lambda: b"prompt\nhello\n",
    "tsv": lambda: b"prompt\nhello\n",
    "parquet": lambda: parquet([{"prompt": "hello"}]),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.compress(data),
}


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    import pyarrow.parquet

    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), written, **options)
    return written.getvalue()


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("format", sampled(HELLO))
def test_each_format_is_read_plain_and_compressed(tmp_path, format, ending):
    data = PACK[ending](HELLO[format]())
    assert fields(tmp_path / f"in.{format}{ending}", data) == [{"prompt": "hello"}]


@pytest.mark.full
@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("format", ["txt", "jsonl", "parquet"])
def test_a_stream_shows_its_format(monkeypatch, format, ending):
    data = PACK[ending](HELLO[format]())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    with RowSource("-") as source:
        assert source.format == format
        assert [row.fields for row in source.rows() if isinstance(row, Row)] == [{"prompt": "hello"}]


# -- JSON arrays -------------------------------------------------------------------------------------------


def test_an_array_is_read_row_by_row_with_its_lines(tmp_path):
    data = b'\xef\xbb\xbf [\n {"a": "x ] } \\" y"},\n\n{"a": [1, {"b": "\xc3\xa4"}]} ]\n'
    assert read(tmp_path / "in.json", data) == [
        Row(0, 2, {"a": 'x ] } " y'}),
        Row(1, 4, {"a": [1, {"b": "ä"}]}),
    ]
    assert read(tmp_path / "in.json", b" [ ] ") == []


@pytest.mark.parametrize(
    ("data", "line", "printed"),
    [
        (b'{"a": 1}', 1, "not a JSON array"),
        (b'[\n{"a": 1},\n{"a": ]', 3, "not valid JSON"),
        (b'[{"a": 1},\n{"a": 2}', 2, "end of the array is missing"),
        (b'[{"a": 1}\n{"a": 2}]', 2, "a comma or the end"),
        (b'[{"a": 1}] []', 1, "text after the end"),
        (b'[{"a": 1}, "text"]', 1, "not a JSON object"),
        (b'[{"a": NaN}]', 1, "NaN is not a JSON number"),
        (b'[{"a": "\xff"}]', 1, "not valid UTF-8"),
        (b'[{"a": ' + b"[" * 300 + b"]" * 300 + b"}]", 1, "nested deeper than 200"),
        (b'[{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}]", 1, "nested deeper than 200"),
        (b'[{"a": 1},]', 1, "not valid JSON"),
        (b"", 1, "not a JSON array"),
    ],
)
def test_a_broken_array_names_the_line(tmp_path, data, line, printed):
    at, message = bad(tmp_path / "in.json", data)
    assert at == line
    assert printed in message


@pytest.mark.full
@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.lists(st.none()))),
    st.integers(1, 40),
    st.sampled_from([None, 0, 2]),
)
def test_an_array_reads_back_whatever_the_blocks_are(rows, block, indent):
    data = json.dumps(rows, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_formats, "_READ_CHARACTERS", block)
        read = list(row_source.READERS["json"](io.BytesIO(data)))
    assert [row[1] for row in read if isinstance(row, tuple)] == rows


# -- Parquet -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_rows_of_parquet_are_as_json_has_them(tmp_path):
    row = {
        "text": "ä",
        "n": 2**40,
        "x": 0.5,
        "no": float("nan"),
        "yes": True,
        "none": None,
        "at": datetime(2026, 1, 2, 3, 4),
        "price": Decimal("1.50"),
        "raw": b"\xff",
        "chat": [{"role": "user", "content": "hi"}],
    }
    (read_back,) = fields(tmp_path / "in.parquet", parquet([row]))
    assert json.loads(json.dumps(read_back, allow_nan=False)) == {
        **row,
        "no": None,
        "at": "2026-01-02T03:04:00",
        "price": "1.50",
        "raw": "/w==",
    }


@pytest.mark.full
@pytest.mark.parametrize("data", [b"", b"PAR1", b"prompt\nhello\n"])
def test_what_is_no_parquet_is_a_bad_row(tmp_path, data):
    assert "not a complete Parquet file" in bad(tmp_path / "in.parquet", data)[1]


@pytest.mark.full
@settings(max_examples=1000)
@given(st.data())
def test_no_damage_to_parquet_makes_the_reader_raise(data):
    whole = bytearray(parquet([{"prompt": f"hello {n}", "n": n} for n in range(50)]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for row in row_source.READERS["parquet"](io.BytesIO(whole)):
        assert isinstance(row, tuple | BadRow)


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "in.txt.zst").write_bytes(b"x")
    with RowSource(str(tmp_path / "in.txt.zst")) as source, pytest.raises(InputError, match="'zstd'"):
        list(source.rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"x")
    with RowSource(str(tmp_path / "in.parquet")) as source, pytest.raises(InputError, match="'arrow'"):
        list(source.rows())


PEAK = """
import re, sys
from pathlib import Path
from smartbatch.tables.row_source import Row, RowSource
with RowSource(sys.argv[1]) as source:
    assert sum(isinstance(row, Row) for row in source.rows()) == int(sys.argv[2])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of one program")
@pytest.mark.parametrize("name", ["in.parquet", "full_dictionary.parquet", "in.json", "in.csv.zst"])
def test_four_times_the_rows_take_no_more_memory(tmp_path, name):
    peaks = []
    for count in (50_000, 200_000):
        rows = [{"id": n, "text": f"text {n} " * 20} for n in range(count)]
        if name.endswith(".parquet"):
            packed = name != "in.parquet"
            data = parquet(rows, row_group_size=count, compression="none", use_dictionary=packed)
        elif name == "in.json":
            data = json.dumps(rows).encode()
        else:
            lines = "".join(f"{row['id']},{row['text']}\n" for row in rows)
            data = zstandard.compress(b"id,text\n" + lines.encode())
        (tmp_path / name).write_bytes(data)
        line = [sys.executable, "-c", PEAK, str(tmp_path / name), str(count)]
        ended = subprocess.run(line, capture_output=True, text=True, check=True)
        peaks.append(int(ended.stdout))
    assert peaks[1] < 1.15 * peaks[0], peaks


@pytest.mark.parametrize(
    ("data", "ending"),
    [
        (gzip.compress(b"hello\n" * 9999)[:-20], "gz"),
        (b"not gzip at all", "gz"),
        (zstandard.compress(b"hello\n" * 9999)[:-2], "zst"),
        (zstandard.compress(b"hello\n") + zstandard.compress(b"hello\n" * 9999)[:-1], "zst"),
        (b"not zstandard", "zst"),
    ],
)
@pytest.mark.parametrize("format", ["txt", "csv"])
def test_a_broken_archive_is_refused_by_name(tmp_path, data, ending, format):
    path = tmp_path / f"in.{format}.{ending}"
    path.write_bytes(data)
    with RowSource(str(path)) as source, pytest.raises(InputError, match="cannot be read to the end"):
        list(source.rows())


@pytest.mark.parametrize(
    ("data", "format"),
    [(b'\n {"prompt": "x"}\n', "jsonl"), (b"x\n{\n", "txt"), (b"\xef\xbb\xbf{}", "jsonl"), (b"", "txt")],
)
@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_spooled_and_sniffed(monkeypatch, data, format, packed):
    stream = io.BytesIO(gzip.compress(data) if packed else data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    with RowSource("-") as source:
        assert source.format == format
        assert list(source.rows()) == list(source.rows())


def test_a_pipe_with_a_name_is_spooled_too(tmp_path):
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    with RowSource(str(pipe)) as source:
        assert len(list(source.rows())) == len(list(source.rows())) == 2
    writer.join()


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("missing.txt", "No such file"),
        ("folder.txt", "Is a directory"),
        ("in.orc", "does not show the format"),
    ],
)
def test_an_input_that_cannot_be_used_is_refused_by_name(tmp_path, name, printed):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "in.orc").write_bytes(b"ORC")
    with pytest.raises(InputError, match=printed) as caught:
        RowSource(str(tmp_path / name))
    assert name in caught.value.message


def test_an_endless_line_is_one_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(row_formats, "MAX_ROW_BYTES", 1 << 20)
    long = b"x" * (3 << 20)
    rows = read(tmp_path / "in.txt", b"a\n" + long + b"\nb\n")
    assert [row.line for row in rows] == [1, 2, 3]
    assert rows[1] == BadRow(2, "the row is longer than 1 MiB")
    assert "longer than 1 MiB" in bad(tmp_path / "in.csv", b"a\n" + long + b"\n")[1]
