"""Schemas in the dialects of the APIs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
import pytest

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.emulator.parsed_requests import instructed_schema
from smartbatch.providers.anthropic.bodies import sent_schema as for_anthropic
from smartbatch.providers.gemini.bodies import sent_schema as for_gemini
from smartbatch.providers.openai.schema_modes import sent_schema as for_openai
from smartbatch.providers.schema_forms import instruction


class Leaf(pydantic.BaseModel):
    size: int


class Bounded(pydantic.BaseModel):
    stars: int = pydantic.Field(ge=0, lt=10, description="how good it is")
    word: str = pydantic.Field("none", min_length=2, pattern="^a")
    place: tuple[int, str]
    leaf: Leaf = pydantic.Field(description="the leaf")
    mark: Literal[True] | None


class Tree(pydantic.BaseModel):
    name: str
    children: list[Tree]


def properties(form: Any) -> dict[str, Any]:
    found: dict[str, Any] = form["properties"]
    return found


def test_openai_gets_the_strict_form():
    sent = for_openai(schema_of(Bounded)[0])
    assert sent.strict
    assert sent.schema["required"] == ["stars", "word", "place", "leaf", "mark"]
    assert sent.schema["additionalProperties"] is False
    assert "$defs" not in sent.schema
    found = properties(sent.schema)
    assert found["stars"] == {
        "type": "integer", "minimum": 0, "exclusiveMaximum": 10, "description": "how good it is",
    }  # fmt: skip
    assert found["word"] == {
        "anyOf": [
            {"type": "string", "pattern": "^a", "description": "{default: none, minLength: 2}"},
            {"type": "null"},
        ]
    }
    assert found["place"] == {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "description": '{prefixItems: [{"type": "integer"}, {"type": "string"}]}',
    }
    assert found["leaf"] == {
        "type": "object",
        "properties": {"size": {"type": "integer"}},
        "required": ["size"],
        "additionalProperties": False,
        "title": "Leaf",
        "description": "the leaf",
    }


def test_anthropic_gets_the_bounds_in_the_description():
    form = for_anthropic(schema_of(Bounded)[0])
    assert form is not None
    assert form["required"] == ["stars", "place", "leaf", "mark"]
    found = properties(form)
    assert found["stars"] == {
        "type": "integer", "description": "how good it is\n\n{exclusiveMaximum: 10, minimum: 0}",
    }  # fmt: skip
    assert found["word"]["description"] == "{default: none, minLength: 2, pattern: ^a}"
    assert found["place"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert found["place"]["description"] == (
        '{prefixItems: [{"type": "integer"}, {"type": "string"}], maxItems: 2, minItems: 2}'
    )


def test_gemini_gets_tuples_and_bounds_but_no_constants():
    form = for_gemini(schema_of(Bounded)[0])
    assert form is not None
    found = properties(form)
    assert found["stars"] == {
        "type": "integer", "minimum": 0, "description": "how good it is\n\n{exclusiveMaximum: 10}",
    }  # fmt: skip
    assert found["place"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    assert found["mark"]["anyOf"] == [
        {"type": "boolean", "description": "{enum: [true]}"},
        {"type": "null"},
    ]


def test_a_property_that_leads_back_is_optional_for_gemini_alone():
    schema, _ = schema_of(Tree)
    gemini = for_gemini(schema)
    assert gemini is not None
    assert gemini["required"] == gemini["$defs"]["Tree"]["required"] == ["name"]
    assert for_openai(schema).schema["required"] == ["name", "children"]
    assert for_anthropic(schema) is None


@pytest.mark.parametrize("kind", [list[int], Literal["a"], int | None, Annotated[Leaf | Tree, "either"]])
def test_openai_gets_what_is_no_object_within_one(kind):
    sent = for_openai(schema_of(kind)[0])
    assert sent.strict
    assert (sent.schema["type"], sent.schema["required"]) == ("object", ["answer"])


@pytest.mark.parametrize("kind", [dict[str, int], dict[str, Tree], list[Any], list[dict[str, int]]])
def test_what_strict_mode_cannot_express_goes_without_it(kind):
    schema, _ = schema_of(kind)
    sent = for_openai(schema)
    assert not sent.strict
    assert schema == (sent.schema if schema["type"] == "object" else properties(sent.schema)["answer"])
    assert for_anthropic(schema) is None


def test_a_reference_within_a_moved_schema_still_leads_to_its_definition():
    sent = for_openai({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "object"}}})
    inner = properties(sent.schema)["answer"]
    assert inner["items"] == {"$ref": "#/properties/answer/$defs/a"}
    assert inner["$defs"] == {"a": {"type": "object"}}


def test_a_schema_larger_than_strict_mode_takes_goes_without_it():
    enum = {"type": "string", "enum": [f"value {n}" for n in range(1_001)]}
    schema = {"type": "object", "properties": {"a": enum}, "required": ["a"], "additionalProperties": False}
    assert not for_openai(schema).strict
    enum["enum"] = enum["enum"][:1_000]
    assert for_openai(schema).strict


def test_common_parts_belong_to_each_branch_of_a_choice():
    base = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    schema = {**base, "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {}]}
    branches = properties(for_openai(schema).schema)["answer"]["anyOf"]
    assert [list(properties(branch)) for branch in branches] == [["a", "b"], ["a"]]


def test_an_instruction_holds_its_schema():
    schema = {"type": "array", "items": {"enum": ["é", 1]}}
    assert instructed_schema("Be brief.\n\n" + instruction(schema)) == schema
    assert instructed_schema("Be brief.") is None
