"""Tokens and costs that are unknown, or an estimate, are told as such, and never as 0."""

from __future__ import annotations

import json

import pytest
from cli.runs import summary_lines

from smartbatch import ResultList
from smartbatch.cli.summary import RunSummary
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.runs.output_lines import Amounts, encode
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.types import Result, Route, Usage

LOST = Result(
    "r",
    error=ProviderError("the answer is lost", kind=ErrorKind.TIMEOUT),
    usage=Usage(unknown=True),
    attempts=1,
    route=Route.INDIVIDUAL,
)
PARTLY = Result(
    "r", text="yes", usage=Usage(10, 5, unknown=True), cost=0.5, attempts=2, route=Route.INDIVIDUAL
)
GUESSED = Result(
    "r", text="yes", usage=Usage(10, 5, estimated=True), cost=0.5, attempts=1, route=Route.INDIVIDUAL
)
UNREPORTED = Result("r", text="yes", usage=Usage(10, 5, estimated=True), attempts=1, route=Route.INDIVIDUAL)
UNPRICED = Result("r", text="yes", usage=Usage(10, 5), attempts=1)
KEPT = Result("r", text="yes", usage=Usage(10, 5), cost=0.25, route=Route.CACHED, paid_before=True)


def row(index: int) -> KeyedRow:
    return KeyedRow(index, index, {"prompt": "x"}, bytes(32))


def told(*results: Result) -> list[str]:
    summary = RunSummary()
    for index, result in enumerate(results):
        summary.count_row(row(index), result)
    return [line for line in summary_lines(summary) if line.startswith(("Tokens", "Cost"))]


@pytest.mark.parametrize(
    ("results", "tokens", "cost"),
    [
        ([LOST], "unknown", "unknown cost"),
        ([PARTLY, LOST], "10 in, 5 out; 2 rows of unknown usage", "$0.50 and 1 row of unknown cost"),
        ([GUESSED], "10 in, 5 out; 1 row estimated", "$0.50"),
        ([UNPRICED], "10 in, 5 out", "unknown price"),
        ([UNREPORTED], "10 in, 5 out; 1 row estimated", "unknown cost"),
        (
            [GUESSED, UNPRICED, LOST],
            "20 in, 10 out; 1 row estimated; 1 row of unknown usage",
            "$0.50 and 1 row of unknown price and 1 row of unknown cost",
        ),
    ],
)
def test_a_summary_says_what_is_unknown(results, tokens, cost):
    assert told(*results) == [f"Cost: {cost}.", f"Tokens: {tokens}."]


def test_a_summary_says_that_nothing_of_the_cache_was_read():
    result = Result("r", text="yes", usage=Usage(100, 5, cache_write_tokens=40), cost=0.5, attempts=1)
    assert (
        told(result)[1] == "Tokens: 100 in (0 % read from the provider's cache, 40 % written to it), 5 out."
    )


def test_a_line_says_what_is_unknown():
    lost, partly, guessed = (json.loads(encode(row(0), one, "m"))["usage"] for one in (LOST, PARTLY, GUESSED))
    assert (lost["input_tokens"], lost["output_tokens"], lost["unknown"]) == (None, None, True)
    assert (partly["input_tokens"], partly["unknown"]) == (10, True)
    assert (guessed["input_tokens"], guessed["estimated"]) == (10, True)
    found = Amounts()
    for one in (LOST, GUESSED, UNREPORTED):
        found.add_line(json.loads(encode(row(0), one, "m")), ())
    assert (found.unknown, found.estimated, found.unbilled, found.unpriced, found.cost) == (1, 2, 2, 0, 0.5)


def test_a_list_says_what_is_unknown_and_what_was_paid_now():
    results = ResultList([LOST, PARTLY, GUESSED, KEPT])
    page = results._repr_html_()
    for cell in (">unknown</td>", ">at least 15</td>", ">15 (estimated)</td>"):
        assert cell in page
    assert results.as_dicts()[0]["input_tokens"] is None
    assert "at least $1.25, $1.00 of it paid now" in repr(results)
    assert "not sent" not in repr(results)
