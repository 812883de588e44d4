"""The time to process a text must not grow faster than its length."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import pkgutil
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import pytest

import smartbatch
from smartbatch.core.preparation import json_schemas
from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.json_recovery import MAX_SEARCHED_CHARACTERS, JsonNotFound, recover_json
from smartbatch.core.preparation.json_schemas import MAX_COMPARED_PARTS, PatternError, check_schema, compiled
from smartbatch.core.preparation.structured import Parsed, Problem, check_answer
from smartbatch.errors import InvalidRequest
from smartbatch.providers import MockProvider
from tests.levels import sampled

SMALL, FACTOR = 8_000, 4
"""Characters of the shorter text, and the factor between the two lengths."""
SHORT = 0.02
"""CPU seconds below which growth is not measured."""
LINEAR = 2.2
"""Maximum growth of the time relative to that of the text; quadratic growth gives 4."""


def seconds(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def grows_with_the_square(run: Callable[[int], object], *, small: int = SMALL, short: float = SHORT) -> bool:
    if seconds(lambda: run(small * FACTOR)) < short:
        return False
    turns = [(seconds(lambda: run(small)), seconds(lambda: run(small * FACTOR))) for _ in range(3)]
    return (
        min(more for _, more in turns) > short
        and median(more / less for less, more in turns) > FACTOR * LINEAR
    )


def repeated(unit: str, before: str = "", after: str = "") -> Callable[[int], str]:
    return lambda size: before + unit * (size // len(unit)) + after


ANSWERS = {
    **{f"fence of {unit!r}": repeated(unit, "```json\n") for unit in (" ", "\n", "\t", "\n ", "` ", "``")},
    **{
        f"only {unit!r}": repeated(unit, after="!")
        for unit in ('"', "\\", "[", "{", "}", "[{", '{"a":', "```", "1", "'")
    },
    "tag": repeated("a", "```", "!"),
    "blank tag": repeated(" ", "```json", "!"),
    "many tags": repeated("```a "),
    "closed": repeated(" ", '```json\n{"a": 1}', "```"),
    "escapes": repeated('\\"', '{"a": "', ""),
    "strings": repeated('"a" ', "{", "}"),
}


@pytest.mark.parametrize("name", sampled(ANSWERS, keep=8))
def test_json_is_looked_for_in_time_that_grows_with_the_answer(name):
    def recover(size: int) -> None:
        with suppress(JsonNotFound):
            recover_json(ANSWERS[name](size))

    assert not grows_with_the_square(recover)


def found(schema: dict[str, Any], value: Any) -> bool:
    return isinstance(check_answer(*schema_of(schema), json.dumps(value), "stop"), Parsed)


def test_in_a_very_long_text_nothing_is_looked_for():
    value = '{"a": 1}'
    assert recover_json(value + " " * MAX_SEARCHED_CHARACTERS) == {"a": 1}
    assert recover_json("x" * (MAX_SEARCHED_CHARACTERS - len(value)) + value) == {"a": 1}
    with pytest.raises(JsonNotFound, match="longer than"):
        recover_json("x" * MAX_SEARCHED_CHARACTERS + value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}},
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": {"type": "integer"}},
    ],
)
def test_properties_that_nothing_else_checks_are_looked_at_up_to_a_number(schema):
    assert found(schema, {"a": "text", "b": 1})
    assert not found(schema, {"a": "text", "b": "text"})
    assert found(schema, {str(n): n for n in range(MAX_COMPARED_PARTS)})
    assert not found(schema, {str(n): n for n in range(MAX_COMPARED_PARTS + 1)})


def test_pattern_properties_with_unevaluated_properties_are_rejected():
    with pytest.raises(ValueError, match="unevaluatedProperties"):
        check_schema({"patternProperties": {"^a": {}}, "unevaluatedProperties": False})


def test_additional_properties_respect_their_schema_and_the_patterns():
    schema = {"properties": {"a": {}}, "patternProperties": {"^n": {"type": "integer"}}}
    typed, closed = ({**schema, "additionalProperties": rest} for rest in ({"type": "string"}, False))
    assert found(typed, {"a": [], "n1": 1, "other": "text"})
    assert not found(typed, {"n1": "text"})
    assert not found(typed, {"other": 1})
    assert found(closed, {"a": [], "n1": 1})
    assert not found(closed, {"other": "text"})


PATTERNS = {
    r"^(a+)+$": "a",
    r"^(?:\w+\s?)*$": "a ",
    r"(?:x+x+)+y": "x",
    r"a*b": "a",
    r"^([a-z0-9]+[._-]?)+@example\.org$": "a.",
}


@pytest.mark.parametrize("pattern", sampled(PATTERNS))
@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_a_pattern_takes_time_that_grows_with_the_text(where, pattern):
    by_value = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    by_key = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    schema = by_value if where == "pattern" else by_key

    def check(size: int) -> None:
        text = PATTERNS[pattern] * (size // len(PATTERNS[pattern])) + "!"
        found(schema, {"a" if where == "pattern" else text: text})

    assert not grows_with_the_square(check)


FREEZING = {
    r"(a+)+$": "a" * 40 + "!",
    r"^((a|a?)+)+$": "a" * 40 + "!",
    r"(?:(?:a|b|ab)*)*c": "ab" * 20_000,
    r"(a?){50}a{50}": "a" * 50,
    r"((a{1,100}){1,100}){1,100}$": "a" * 3_000 + "!",
    r"((a{500}){500}){500}": "a" * 100_000,
    r"^.{1,4096}$": "a" * 5_000,
    r"(?:){4294967290}": "a",
    r"((?:\b|^){4294967290}){4294967290}": "a b",
}


@pytest.mark.parametrize("pattern", sampled(FREEZING, keep=3))
def test_no_pattern_keeps_the_other_threads_waiting(pattern):

    def longest_wait() -> float:
        waits, ended = [0.0], threading.Event()

        def measure() -> None:
            before = time.process_time()
            while not ended.wait(0.001):
                now = time.process_time()
                waits.append(now - before)
                before = now

        thread = threading.Thread(target=measure)
        thread.start()
        with suppress(PatternError):
            compiled(pattern)(FREEZING[pattern])
        ended.set()
        thread.join()
        return max(waits)

    assert any(longest_wait() < 0.05 for _ in range(3))


@pytest.fixture
def asked(monkeypatch):
    found: list[str] = []

    def noted(pattern: str) -> Callable[[str], bool]:
        found.append(pattern)
        return compiled(pattern)

    monkeypatch.setattr(json_schemas, "compiled", noted)
    return found


DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
WORDS = {"type": "string", "pattern": "^(a+)+$"}
LIST = {"properties": {"word": WORDS, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    sampled(
        [
            (DIALECT | LIST, {"word": "a", "next": {"word": "b", "next": None}}),
            ({"properties": {"word": DIALECT | WORDS}}, {"word": "b"}),
            ({"properties": {"$schema": WORDS}}, {"$schema": "b"}),
        ],
        keep=2,
    ),
)
def test_a_schema_with_a_dialect_has_bounded_patterns_everywhere(schema, value, asked):
    assert isinstance(check_answer(*schema_of(schema), json.dumps(value), "stop"), Problem)
    assert asked == ["^(a+)+$"] * json.dumps(value).count(': "')


@pytest.mark.parametrize("leaf", ["b", "a"])
def test_each_part_of_a_tree_of_unions_is_checked_once_by_each_reference(leaf, asked):
    branches = [{"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": least} for least in (1, 0)]
    schema = {"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [*branches, WORDS]}}}
    value: Any = leaf
    for _ in range(10):
        value = [value]
    found = check_answer(*schema_of(schema), json.dumps(value), "stop")
    assert isinstance(found, Parsed) == (leaf == "a")
    assert len(asked) <= 2
    if isinstance(found, Problem):
        assert found.message == "the answer violates the schema at anyOf"


def test_equal_elements_are_found_in_time_that_grows_with_their_number():
    schema = {"type": "array", "uniqueItems": True}

    def check(size: int) -> None:
        assert found(schema, [{"a": n} for n in range(size // 8)])

    assert not grows_with_the_square(check)
    assert not found(schema, [{"a": 1}, {"a": 1.0}])
    assert found(schema, [1, True, [1], [True], "1", {"a": 1}])


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{3}-\d{4}$",
        r"\bcat\b",
        r"^[a-f]{2,4}$",
        r"(?i)^[^\sx]+\.?$",
        r"^(ab|a)(c|bcd)?$",
        r"(?m)^a$",
    ],
)
def test_patterns_mean_what_they_meant(pattern):
    texts = [
        "",
        "123-4567",
        "a cat",
        "scat",
        "foobar",
        "fab",
        "abcd",
        "ABC.",
        "b\na\nc",
        "xab c",
        "ac",
        "٣23-4567",
    ]
    expected = [bool(re.search(pattern, text)) for text in texts]
    assert [compiled(pattern)(text) for text in texts] == expected
    assert any(expected)
    assert not all(expected)


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(", r"((a{500}){500}){500}", r"^(?!x)"])
def test_an_unsupported_pattern_is_rejected_before_sending(pattern):
    with pytest.raises(PatternError):
        compiled(pattern)
    provider = MockProvider()
    with smartbatch.BatchingClient(provider) as client, pytest.raises(InvalidRequest, match="pattern"):
        client.submit(
            "q", schema={"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
        )
    assert provider.calls == []


def expressions() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    for module in pkgutil.walk_packages(smartbatch.__path__, "smartbatch."):
        if module.name.endswith("__main__") or ".integrations." in module.name:
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # an extra that is not installed
            continue
        source = inspect.getsource(loaded)
        for name, value in vars(loaded).items():
            if isinstance(value, re.Pattern):
                anywhere = re.search(rf"\b{name}\.(?:search|sub|findall|finditer|split)\b", source)
                yield f"{module.name}.{name}", value, anywhere is not None


UNITS = (" ", "a", "1", "-", "_", ".", '"', "/", "[", "=", "1.", "a ")
BEFORE = (
    "",
    "bearer ",
    "sk-",
    "?key=",
    "Limit: ",
    "other ",
    "every of ",
    "```a\n",
    "http://a/",
    "exceed",
    "1",
    '"',
)
LETTERS = 1_500


def matched(pattern: re.Pattern[Any], text: str, *, anywhere: bool) -> None:
    given: Any = text if isinstance(pattern.pattern, str) else text.encode()
    pattern.match(given)
    pattern.fullmatch(given)
    if anywhere:
        pattern.sub(given[:0], given)


@pytest.mark.full
def test_every_regular_expression_takes_linear_time():
    known = {id(pattern): (name, pattern, anywhere) for name, pattern, anywhere in expressions()}
    assert len(known) > 40
    slow = []
    for name, pattern, anywhere in known.values():
        for before, unit in itertools.product(BEFORE, UNITS):
            text = repeated(unit, before, "\x00")
            run = partial(_run, pattern, text, anywhere)
            if grows_with_the_square(run, small=LETTERS, short=0.008):
                slow.append(f"{name} {before!r} {unit!r}")
    assert slow == []


def _run(pattern: re.Pattern[Any], text: Callable[[int], str], anywhere: bool, size: int) -> None:
    matched(pattern, text(size), anywhere=anywhere)
