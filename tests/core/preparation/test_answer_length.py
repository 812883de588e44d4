"""Expected length of answers before any was observed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.preparation.answer_length import FREE_TEXT, SHAPES, Length, length_of
from smartbatch.core.preparation.calibration import OUTPUT_TOKENS, Calibration
from smartbatch.core.routing.workload import Workload
from smartbatch.types import Generation, Request, Usage

LABELS = {"type": "string", "enum": ["positive", "negative", "neutral"]}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def scalars() -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from(
        [
            LABELS,
            {"type": "boolean"},
            {"type": "integer"},
            {"type": "number"},
            {"type": "string"},
            {"type": "string", "format": "date"},
            {"type": "string", "maxLength": 12},
            {"type": ["string", "null"]},
        ]
    )


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["name", "label", "score", "address", "is_valid", "notes"])
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.dictionaries(names, inner, min_size=1, max_size=4).map(lambda own: an_object(**own)),
            st.builds(
                lambda item, most: {"type": "array", "items": item, "maxItems": most},
                inner,
                st.integers(1, 6),
            ),
        ),
        max_leaves=6,
    )


def made_by(schema: Mapping[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema["type"]
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "object":
        return {name: made_by(own, rng) for name, own in schema["properties"].items()}
    if kind == "array":
        return [made_by(schema["items"], rng) for _ in range(rng.randint(0, schema["maxItems"]))]
    if kind == "string" and "format" in schema:
        return "2026-11-27"
    if kind == "string":
        words = min(40, max(1, round(rng.lognormvariate(1.6, 0.9))))
        return " ".join(["a word"[: rng.randint(3, 6)]] * words)[: schema.get("maxLength", 10_000)]
    plain = {"boolean": True, "null": None, "integer": rng.randint(0, 100), "number": rng.uniform(0, 1)}
    return round(plain[kind], 4) if kind == "number" else plain[kind]


@given(schemas(), st.integers(0, 2**32))
def test_the_range_covers_ninety_of_a_hundred_answers(schema, seed):
    rng, found = random.Random(seed), length_of(schema)
    sizes = []
    for _ in range(100):
        text = json.dumps(made_by(schema, rng), indent=rng.choice((None, None, 2)))
        sizes.append(max(1.0, len(text) / rng.uniform(3.0, 4.0)))
    assert sum(found.low * 0.8 <= size <= found.high for size in sizes) >= 85


@given(schemas(), schemas())
def test_what_holds_more_is_longer(first, second):
    one, both = length_of(an_object(a=first)), length_of(an_object(a=first, b=second))
    assert one.low <= one.expected <= one.high
    assert one.expected < both.expected
    assert one.high < both.high
    shorter, longer = ({"type": "array", "items": first, "minItems": n, "maxItems": n} for n in (2, 5))
    assert length_of(shorter).expected < length_of(longer).expected


def test_references_are_followed_and_end():
    tree = an_object(value={"type": "integer"}, next={"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]})
    found = length_of({"$ref": "#/$defs/tree", "$defs": {"tree": tree}})
    assert 5 < found.expected < 60


WORD, NUMBER, TEXT = {"const": "word"}, {"type": "number"}, {"type": "string"}


def a_list(**changes: Any) -> dict[str, Any]:
    return {"type": "array", "items": TEXT, **changes}


@pytest.mark.parametrize(
    ("schema", "same"),
    [
        ({"$ref": "#/$defs/a~1b~0", "$defs": {"a/b~": NUMBER}}, NUMBER),
        ({"$ref": "#/a/b", "a": {"b": LABELS}, "b": TEXT}, LABELS),
        (WORD, {"enum": ["word"]}),
        ({"anyOf": [NUMBER, LABELS]}, {"oneOf": [NUMBER, LABELS]}),
        ({"anyOf": [LABELS, LABELS]}, LABELS),
        ({"type": ["number", "null"]}, {"anyOf": [{"type": "null"}, NUMBER]}),
        ({"allOf": [LABELS]}, LABELS),
        ({"properties": {"a": NUMBER}}, {"type": "object", "properties": {"a": NUMBER}}),
        ({"items": NUMBER}, {"type": "array", "items": NUMBER}),
        ({"prefixItems": [NUMBER, TEXT], "type": "array"}, {"type": "array", "prefixItems": [TEXT, NUMBER]}),
        (a_list(prefixItems=[WORD]), a_list(prefixItems=[WORD], maxItems=1)),
        (a_list(prefixItems=[WORD], minItems=1), a_list(prefixItems=[WORD])),
        (a_list(minItems=True, maxItems=-1), a_list()),
        ({**TEXT, "format": "own"}, TEXT),
        (
            {"type": "object", "additionalProperties": False},
            {"type": "object", "maxProperties": 0, "properties": {}, "additionalProperties": False},
        ),
    ],
)
def test_schemas_of_the_same_answers_have_the_same_length(schema, same):
    assert length_of(schema) == length_of(same)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ({"allOf": [NUMBER]}, {"allOf": [NUMBER, LABELS]}),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b" * 40]}),
        ({**TEXT, "format": "date"}, {**TEXT, "format": "date-time"}),
        ({**TEXT, "maxLength": 12}, {**TEXT, "maxLength": 40}),
        ({**TEXT, "maxLength": 90}, {**TEXT, "minLength": 900}),
        (a_list(maxItems=3), a_list(maxItems=9)),
        (a_list(), a_list(minItems=9)),
        (a_list(prefixItems=[WORD]), a_list(prefixItems=[WORD], maxItems=3)),
        ({"type": "object", "properties": {"a": TEXT}}, an_object(a=TEXT)),
        (an_object(a=TEXT), an_object(long_name=TEXT)),
        (an_object(a=TEXT), {**an_object(a=TEXT), "additionalProperties": NUMBER}),
        ({"type": "object", "additionalProperties": False}, {"type": "object"}),
    ],
)
def test_a_schema_of_longer_answers_has_a_longer_length(shorter, longer):
    short, long = length_of(shorter), length_of(longer)
    assert short.expected < long.expected
    assert short.high < long.high


def test_the_shortest_answer_leaves_out_what_is_optional():
    none = length_of({"type": "object", "additionalProperties": False})
    assert length_of({"type": "object", "properties": {"a": TEXT}}).low == none.low
    assert length_of(an_object(a=TEXT)).low > none.low
    assert length_of(a_list()).low == none.low < length_of(a_list(minItems=1)).low
    three, six = (length_of(a_list(minItems=count, maxItems=count)) for count in (3, 6))
    assert six.expected - three.expected > 3 * length_of(TEXT).expected


@pytest.mark.parametrize("odd", [{}, {"type": "enum"}, {"$ref": "#/nowhere"}, {"enum": []}, {"anyOf": []}])
def test_an_odd_schema_is_a_value_of_any_kind(odd):
    found = length_of(odd)
    assert 0 < found.low < found.expected < found.high


class Rates:
    def cost(self, usage: Usage) -> float:
        return float(usage.output_tokens)

    expected_cost = cost


def quoted(learned: Calibration, params: Generation, requests: int = 100) -> Length:
    workload = Workload(learned, {"standard": Rates()})
    for _ in range(requests):
        workload.add_request(Request("a text to be labelled", params))
    cost = workload.cost("standard")
    assert cost is not None
    return Length(cost.low / requests, cost.expected / requests, cost.high / requests)


def test_the_first_quote_follows_the_schema_and_max_tokens():
    label = quoted(Calibration(), Generation(schema=an_object(label=LABELS)))
    assert label.low < 7 < label.high
    assert label.expected < 15
    assert quoted(Calibration(), Generation()).expected == OUTPUT_TOKENS
    assert quoted(Calibration(), Generation()).low <= 1.1  # the answer may be a single word
    assert quoted(Calibration(), Generation(max_tokens=20)).high == 20
    assert quoted(Calibration(), Generation(max_tokens=600)).high == 600


def test_what_answers_to_one_schema_taught_is_not_taken_for_others():
    learned, labelled = Calibration(), Generation(schema=an_object(label=LABELS))
    for _ in range(50):
        learned.observe(100, Usage(100, 7), SHAPES.of(labelled).key)
    assert quoted(learned, labelled).expected == pytest.approx(7)
    assert quoted(learned, Generation()).expected == OUTPUT_TOKENS
    for _ in range(50):
        learned.observe(100, Usage(100, 300), FREE_TEXT.key)
    assert quoted(learned, labelled).expected == pytest.approx(7)
    assert quoted(learned, Generation()).expected == pytest.approx(300)
    later = Calibration()
    assert later.restore(json.loads(json.dumps(learned.state())))
    assert quoted(later, labelled).expected == pytest.approx(7)
    assert quoted(later, Generation()).expected == pytest.approx(300)


@pytest.mark.parametrize("schema", [None, an_object(label=LABELS)])
def test_a_quote_follows_the_effort_and_what_it_taught(schema):
    plain, *efforts = (
        Generation(schema=schema, reasoning_effort=effort) for effort in (None, "none", "low", "high")
    )
    none, low, high = (quoted(Calibration(), params) for params in efforts)
    assert none.expected == quoted(Calibration(), plain).expected < low.expected < high.expected
    assert none.high < quoted(Calibration(), plain).high, "without reasoning"
    assert quoted(Calibration(), Generation(reasoning_effort="max", max_tokens=20)).high == 20
    learned = Calibration()
    for _ in range(50):
        learned.observe(100, Usage(100, 70), SHAPES.of(efforts[1]).key)
    assert quoted(learned, efforts[1]).expected == pytest.approx(70)
    assert quoted(learned, efforts[2]) == high
