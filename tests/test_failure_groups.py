"""Groups of failures: patterns of messages, counts with an example, and what to do about each kind."""

from __future__ import annotations

import pytest

from smartbatch.cli.main import build_parser
from smartbatch.errors import ErrorKind
from smartbatch.failure_groups import (
    MAX_FAILURE_GROUPS,
    MAX_PATTERN_CHARACTERS,
    OTHER_MESSAGES,
    FailureGroups,
    pattern_of,
    remedy_for,
)
from smartbatch.types import DEFECTS


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        (
            "the provider answered 429 rate_limit_exceeded: Rate limit reached for gpt-4o-mini on tokens per "
            "min (TPM): Limit 30000, Used 29,500, Requested 1200. Please try again in 1.4s.",
            "the provider answered 429 rate_limit_exceeded: Rate limit reached for gpt-4o-mini on tokens per "
            "min (TPM): Limit # Used # Requested # Please try again in #",
        ),
        ("the provider answered 500: oh (req_011CTabc94)", "the provider answered 500: oh (#)"),
        ("see 3f2504e0-4f89-11d3-9a0c-0305e82c3301 there", "see # there"),
        ("no file file-Bx81jd92kLq02 in batch-7", "no file # in #"),
        ("row 17 of job-0123456789abcdef", "row # of #"),
        ("the answer is not whole JSON", "the answer is not whole JSON"),
        ("claude-haiku-4-5 is overloaded", "claude-haiku-4-5 is overloaded"),
        ("", ""),
    ],
)
def test_numbers_and_ids_are_left_out_of_a_message(message, pattern):
    assert pattern_of(message) == pattern


def test_a_pattern_is_bounded():
    assert len(pattern_of("long words " * 500)) == MAX_PATTERN_CHARACTERS


def test_a_long_message_from_a_file_is_not_searched_as_a_whole():
    """Without the limit, this takes minutes."""
    assert pattern_of("row-" * 25_000) == "row-" * 49 + "row…"


def test_a_group_keeps_its_earliest_row_as_an_example():
    groups = FailureGroups()
    for row in (7, 3, 9):
        groups.count("timeout", f"no answer within {row} s", f"row {row}", row)
    groups.count("server_error", "oh", "row 5", 5, is_unsent=True)
    (largest, other), earliest = groups.largest(), groups.earliest()
    assert (largest.kind, largest.message, largest.count) == ("timeout", "no answer within # s", 3)
    assert (largest.example, largest.row, largest.text) == ("row 3", 3, "no answer within 3 s")
    assert other.is_unsent
    assert earliest == (largest, other)


def test_further_messages_are_counted_by_kind():
    groups = FailureGroups()
    for number in range(MAX_FAILURE_GROUPS + 50):
        groups.count("unknown", "x" * number, str(number), number)
    assert len(groups.largest()) == MAX_FAILURE_GROUPS + 1
    assert (groups.largest()[0].message, groups.largest()[0].count) == (OTHER_MESSAGES, 50)


@pytest.mark.parametrize("kind", [*(kind.value for kind in ErrorKind), *DEFECTS, "a_class_of_its_own"])
def test_each_kind_has_something_to_do(kind):
    assert remedy_for(kind).action


def test_each_option_of_a_remedy_exists():
    options = build_parser().commands["run"].options
    remedies = [remedy_for(kind) for kind in (*DEFECTS, *(kind.value for kind in ErrorKind))]
    assert {remedy.option.partition(" ")[0] for remedy in remedies} <= {"", *options}
