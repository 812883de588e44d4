"""CSV cells that a spreadsheet would run as formulas."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch import Result
from smartbatch.tables.result_files import CsvFormulas, encode_result, write_table
from smartbatch.types import Usage


def table(texts: list[str], formulas: CsvFormulas | None, name: str = "input") -> list[dict[str, Any]]:
    import json

    lines = [
        {**json.loads(encode_result(at, Result("r", text, usage=Usage()), "m")), "input": {name: text}}
        for at, text in enumerate(texts)
    ]
    target = io.BytesIO()
    chosen: dict[str, Any] = {} if formulas is None else {"formulas": formulas}
    write_table("csv", lambda: iter([dict(line) for line in lines]), target, **chosen)
    return list(csv.DictReader(io.StringIO(target.getvalue().decode(), newline="")))


DANGEROUS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "+49 30 1", "=", "-5%"]
HARMLESS = ["-5", "+1.5e3", "-.5", "a=1", " =1", "'=1", "", "1-2"]


@pytest.mark.parametrize("text", DANGEROUS)
def test_a_formula_gets_a_quote_before_it(text):
    (escaped,) = table([text], "escape")
    assert (escaped["text"], escaped["input"]) == (f"'{text}", f"'{text}")
    assert table([text], "keep")[0]["text"] == table([text], None)[0]["text"] == text


@pytest.mark.parametrize("text", HARMLESS)
def test_numbers_and_other_text_stay(text):
    assert table([text], "escape")[0]["text"] == text


def test_the_name_of_a_column_is_a_cell():
    assert "'=HYPERLINK(1)" in table(["a"], "escape", name="=HYPERLINK(1)")[0]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=4))
def test_no_cell_begins_as_a_formula(texts):
    for row in table(texts, "escape"):
        for cell in row.values():
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)
