"""Errors that differ only in ids and numbers are of one group."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.error_patterns import LONGEST, pattern_of
from smartbatch.errors import ErrorKind, ProviderError, QueueFull, kind_name


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
def test_numbers_and_ids_are_left_out_of_a_message(message: str, pattern: str) -> None:
    assert pattern_of(message) == pattern


def test_a_pattern_is_bounded() -> None:
    assert len(pattern_of("long words " * 500)) == LONGEST


def test_an_error_without_a_kind_is_counted_by_its_class() -> None:
    assert kind_name(ProviderError("x", kind=ErrorKind.RATE_LIMIT)) == "rate_limit"
    assert kind_name(QueueFull("x")) == "queue_full"
