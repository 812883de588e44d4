"""The rows of outputs in all three formats, read as records."""

import json

import pytest

from smartbatch.errors import ErrorKind, InputError, ProviderError
from smartbatch.runs.output_lines import encode
from smartbatch.runs.output_reader import read_rows
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.tables.result_files import write_table
from smartbatch.types import Result, Usage

KEY = bytes(32)


def line(index, result):
    return encode(KeyedRow(index, f"id-{index}", {"text": f"row {index}"}, KEY), result, "sim:echo")


ANSWERED = Result(
    "r",
    text='{"stars": 4, "fine": true}',
    parsed={"stars": 4, "fine": True},
    usage=Usage(10, 5),
    cost=0.25,
    latency=1.5,
    attempts=1,
    finish_reason="stop",
)
FAILED = Result("r", error=ProviderError("it is too long", kind=ErrorKind.CONTEXT_TOO_LONG), cost=0.0)


def write(path, lines):
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(lines))
        return

    with open(path, "w+b") as file:
        write_table(path.suffix[1:], lambda: map(json.loads, lines), file)


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_all_formats_have_the_same_rows(tmp_path, name):
    write(tmp_path / name, [line(0, ANSWERED), line(1, FAILED)])

    first, second = read_rows(str(tmp_path / name))

    assert (first.index, first.id, first.ok, first.model) == (0, "id-0", True, "sim:echo")
    assert first.input == {"text": "row 0"}
    assert first.fields == {"stars": 4, "fine": True}
    assert (first.cost, first.latency, first.input_tokens, first.output_tokens) == (0.25, 1.5, 10, 5)
    assert (second.ok, second.error_kind, second.error) == (False, "context_too_long", "it is too long")


def test_a_row_with_several_lines_is_read_once(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(1, FAILED) + line(0, FAILED) + line(1, ANSWERED) + line(0, FAILED) + b'{"index": ')

    assert [(row.index, row.ok) for row in read_rows(str(path))] == [(1, True), (0, False)]


def test_a_file_that_is_not_an_output_is_rejected(tmp_path):
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')

    with pytest.raises(InputError, match=r"other\.jsonl: line 1 is not a result"):
        list(read_rows(str(tmp_path / "other.jsonl")))
