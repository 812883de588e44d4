"""JSON of answers is read alike with and without ``orjson``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.providers.foreign_text import plain
from smartbatch.providers.http import replies

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def outcome(read: Callable[[bytes], Any], text: bytes) -> str:
    """What was read, or the kind of error."""
    try:
        return repr(read(text))
    except RecursionError:
        return "RecursionError"
    except ValueError:
        return "ValueError"


@pytest.mark.full
@given(VALUES, st.booleans())
def test_what_was_written_is_read(value: Any, ascii_only: bool) -> None:
    """NaN, infinity and lone surrogates included."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert outcome(replies.decode_json, text) == outcome(json.loads, text)


@pytest.mark.parametrize(
    "text",
    [
        *(b"NaN", b"-Infinity", b"[1e400]", b"-0", b"2.5e-400", b"0.12345678901234567890123", b""),
        *(b'{"a":1,"a":2}', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xed\xa0\x80"', b'"\xff"', b'"a\x00"'),
        *(b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"), b" {} ", b"{} x", b"[1,]", b"01", b"{'a': 1}"),
        *(b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_what_few_servers_send_is_read_alike(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or refused alike, and as without ``orjson``."""
    read = outcome(replies.decode_json, text)
    assert read == outcome(json.loads, text)
    monkeypatch.setattr(replies, "_fast", None)
    assert outcome(replies.decode_json, text) == read


def test_a_count_beyond_64_bits_is_none_either_way() -> None:
    """The one difference: such an integer becomes a float, which is no count."""
    from smartbatch.providers.foreign_text import count

    for read in (json.loads, replies.decode_json):
        assert count(read(b"18446744073709551616")) is None


def test_what_is_nested_too_deeply_has_no_text() -> None:
    """A fast reader of JSON takes deeper nesting than a text can be made of."""
    nested: list[Any] = []
    for _ in range(5_000):
        nested = [nested]
    assert [plain(value) for value in (nested, "250", 250, None)] == ["", "250", "250", ""]
