"""Downloads become lines: at the newline only, whatever the pieces look like, in flat memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.jobs.steps.result_lines import MAX_LINE_BYTES, raw_lines


def data_of(*pieces: bytes, max_line: int = MAX_LINE_BYTES) -> list[bytes | None]:
    return list(raw_lines(pieces, max_line=max_line))


streams = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"{}", b"\x00", b"\xe2\x80\xa8", b"\xff", b" "])
)


@given(streams, st.data(), st.integers(0, 6))
def test_where_the_pieces_are_cut_changes_nothing(
    stream: list[bytes], draw: st.DataObject, most: int
) -> None:
    whole = b"".join(stream)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert list(raw_lines(pieces, max_line=most)) == list(raw_lines([whole], max_line=most))


@given(st.lists(st.binary(max_size=9)), st.integers(0, 6))
def test_every_line_that_says_something_comes_and_those_too_long_are_told(
    pieces: list[bytes], most: int
) -> None:
    whole = b"".join(pieces)
    expected: list[bytes | None] = []
    lines = whole.split(b"\n")
    for number, line in enumerate(lines, start=1):
        kept = line.removesuffix(b"\r") if number < len(lines) else line
        if len(line) > most:
            expected.append(None)
        elif kept.strip():
            expected.append(kept)
    assert list(raw_lines(pieces, max_line=most)) == expected


def test_line_ends_of_other_alphabets_do_not_cut_an_answer() -> None:
    answers = ["a\u2028b", "c\u2029d", "e\x85f", "g\x0bh\x0ci", "j\x1ck\x1dl\x1e"]
    stream = "".join(json.dumps({"t": text}, ensure_ascii=False) + "\n" for text in answers).encode()
    pieces = [stream[i : i + 1] for i in range(len(stream))]
    assert [json.loads(line)["t"] for line in data_of(*pieces) if line] == answers


def test_a_carriage_return_inside_a_line_stays() -> None:
    assert data_of(b"a\rb\r\nc\r\r\n") == [b"a\rb", b"c\r"]


def test_a_carriage_return_and_its_newline_may_come_apart() -> None:
    assert data_of(b"a\r", b"\nb") == [b"a", b"b"]


def test_the_last_line_without_an_end_comes() -> None:
    assert data_of(b'{"a":1}\n{"b', b'":2}') == [b'{"a":1}', b'{"b":2}']


def test_a_last_line_that_was_cut_keeps_all_that_came() -> None:
    assert data_of(b"a\r\nb\r") == [b"a", b"b\r"]


def test_a_stream_that_ends_with_a_newline_has_no_line_after_it() -> None:
    assert data_of(b"a\n") == [b"a"]


def test_blank_lines_are_left_out() -> None:
    assert data_of(b"\n \n\r\na\n\t") == [b"a"]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert data_of(b"\xef\xbb", b"\xbfa\n\xef\xbb\xbfb\n") == [b"a", b"\xef\xbb\xbfb"]


def test_a_line_too_long_costs_no_other_line() -> None:
    assert data_of(b"aa\nbbb", b"bbb\n", b"cc\ndddd", max_line=3) == [b"aa", None, b"cc", None]


@pytest.mark.parametrize(("size", "whole"), [(10, True), (11, False)])
def test_the_longest_line_allowed_comes_whole(size: int, whole: bool) -> None:
    assert (data_of(b"x" * size + b"\n", max_line=10) == [b"x" * size]) == whole


def test_a_line_without_end_is_not_gathered_in_memory() -> None:
    piece = b"x" * 65_536

    def endless() -> Iterator[bytes]:
        for _ in range(3200):
            yield piece
        yield b"\nlast\n"

    tracemalloc.start()
    try:
        found = list(raw_lines(endless(), max_line=1_000_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [None, b"last"]
    assert peak < 2_500_000


@pytest.mark.full
def test_many_lines_in_large_pieces_stay_whole() -> None:
    rng = random.Random(5)
    lines = [b"%d:" % i + bytes(rng.choices(b'abc{}"\\', k=rng.randrange(60))) for i in range(50_000)]
    stream = b"".join(line + b"\n" for line in lines)
    pieces, at = [], 0
    while at < len(stream):
        size = rng.choice([1, 7, 1000, 65_536])
        pieces.append(stream[at : at + size])
        at += size
    assert data_of(*pieces) == lines
