"""JSON is read and written identically with and without ``orjson``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.providers.foreign_text import plain
from smartbatch.providers.http import content
from smartbatch.providers.http.content import decode_json, encode_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


BODIES = st.dictionaries(
    st.text(),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
)


@contextmanager
def without_orjson() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_loads", None)
        patch.setattr(content, "_dumps", None)
        yield


def outcome(read: Callable[[bytes], Any], text: bytes) -> str:
    try:
        return repr(read(text))
    except RecursionError:
        return "RecursionError"
    except ValueError:
        return "ValueError"


@pytest.mark.full
@given(VALUES, st.booleans())
def test_what_was_written_is_read(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert outcome(decode_json, text) == outcome(json.loads, text)


@pytest.mark.parametrize(
    "text",
    [
        *(b"NaN", b"-Infinity", b"[1e400]", b"-0", b"2.5e-400", b"0.12345678901234567890123", b""),
        *(b'{"a":1,"a":2}', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xed\xa0\x80"', b'"\xff"', b'"a\x00"'),
        *(b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"), b" {} ", b"{} x", b"[1,]", b"01", b"{'a': 1}"),
        *(b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_what_few_servers_send_is_read_alike(text):
    read = outcome(decode_json, text)
    assert read == outcome(json.loads, text)
    with without_orjson():
        assert outcome(decode_json, text) == read


def test_a_count_beyond_64_bits_is_none_either_way():
    from smartbatch.providers.foreign_text import count

    for read in (json.loads, decode_json):
        assert count(read(b"18446744073709551616")) is None


def test_what_is_nested_too_deeply_has_no_text():
    nested: list[Any] = []
    for _ in range(5_000):
        nested = [nested]
    assert [plain(value) for value in (nested, "250", 250, None)] == ["", "250", "250", ""]


@pytest.mark.full
@given(BODIES)
def test_what_is_sent_says_what_was_asked(body):
    written = encode_json(body)
    with without_orjson():
        plain_one = encode_json(body)
    assert json.loads(written.decode()) == json.loads(plain_one.decode()) == body
    if not any(letter in plain_one for letter in b".e"):  # floats may differ in form
        assert written == plain_one


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_never_sent(number):
    for body in ({"temperature": number}, {"extra": [None, {"x": number}]}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode_json(body)
        with without_orjson(), pytest.raises(ValueError, match="not JSON compliant"):
            encode_json(body)


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ({"a": None, "text": "null"}, b'{"a":null,"text":"null"}'),
        ({"text": "é\u2028\x85\x1c\r"}, b'{"text":"\\u00e9\\u2028\\u0085\\u001c\\r"}'),
        ({"text": "\ud800"}, b'{"text":"\\ud800"}'),
        ({"n": 2**70}, b'{"n":1180591620717411303424}'),
        ({1: "a"}, b'{"1":"a"}'),
    ],
)
def test_what_a_body_is_written_as(body, written):
    assert encode_json(body) == written
    with without_orjson():
        assert encode_json(body) == written
