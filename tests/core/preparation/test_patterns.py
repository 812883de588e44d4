"""Patterns of schemas are found where Python's own engine finds them, in texts in which it ends."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from smartbatch.core.preparation.patterns import LinearPattern, PatternError

CLASSES = [
    r"\d",
    r"\D",
    r"\s",
    r"\S",
    r"\w",
    r"\W",
    r"[\s_]",
    r"[^\S]",
    r"[\da]",
    r"[^\w]",
    "[a-c]",
    "[^Ab]",
    "[^a]",
]
PLACES = ["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?=a)", "(?!a)", "(?<=b)", "(?<!b)"]
TIMES = ["", "?", "*", "+", "{2}", "{1,2}", "{2,}", "??", "*?", "+?"]
FLAGS = ["", "(?i)", "(?s)", "(?m)", "(?a)", "(?im)"]


def larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.builds("(?:{}){}".format, parts, st.sampled_from(TIMES))
    return st.one_of(
        repeated, st.builds("({}|{})".format, parts, parts), st.builds("{}{}".format, parts, parts)
    )


parts = st.recursive(st.sampled_from([*CLASSES, *PLACES, "a", "B", "é", "."]), larger, max_leaves=6)
texts = st.text("aAbB1٣é_ .\t\n", max_size=7)


@given(flags=st.sampled_from(FLAGS), written=parts, text=texts)
def test_a_pattern_is_found_where_it_is_by_the_standard_library(flags: str, written: str, text: str) -> None:
    assume(text or r"\B" not in written)  # found in an empty text from Python 3.14 on, as by JSON Schema
    expected = re.search(flags + written, text) is not None
    assert LinearPattern(flags + written).found_in(text) is expected


@example(kind=r"\s", flags="(?a)", sign="\x1f")
@given(kind=st.sampled_from(CLASSES), flags=st.sampled_from(FLAGS), sign=st.characters())
def test_a_class_has_the_signs_it_has_in_the_standard_library(kind: str, flags: str, sign: str) -> None:
    pattern = rf"{flags}^{kind}\Z"
    assert LinearPattern(pattern).found_in(sign) is (re.search(pattern, sign) is not None)


@pytest.mark.full
def test_a_long_text_takes_no_more_steps_than_its_kinds_of_places_need() -> None:
    """What follows from a place of the pattern is worked out once, and known from then on."""
    text = "ab1 " * 50_000
    assert LinearPattern(r"(?:\w+\s?)*!").found_in(text + "!")
    assert not LinearPattern(r"\d{2}").found_in(text)


@pytest.mark.full
@pytest.mark.parametrize("largest", ["a{10000}", "(?:ab?){3333}a", "(?:ab|cd){2000}"])
def test_a_pattern_is_written_out_up_to_ten_thousand_states(largest: str) -> None:
    LinearPattern(largest)
    with pytest.raises(PatternError, match="repeats too much"):
        LinearPattern(largest + "a")
