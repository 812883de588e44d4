"""Structured answers: what is JSON, what fits the schema, and how to ask again (D7, E3)."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn

import pytest
from attrs import define, field, frozen, make_class, validators

from smartbatch.core.preparation.schemas import BuiltSchema, schema_of
from smartbatch.core.preparation.structured import (
    TEMPERATURES,
    JsonNotFound,
    Parsed,
    Problem,
    check_answer,
    check_schema,
    own_object,
    read_answer,
    recover_json,
    repair_request,
)
from smartbatch.errors import InvalidRequest
from smartbatch.types import Answer, Generation, Message, Request

OBJECT = '{"a": 1, "b": [true, null]}'
VALUE = {"a": 1, "b": [True, None]}
BUILT = BuiltSchema({"type": "object"}, list)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@frozen
class Author:
    name: str
    friend: Author | None = None


@dataclasses.dataclass
class Review:
    author: Author
    stars: int
    mood: Mood
    tags: list[str]
    scores: dict[str, float]
    kind: Literal["short", "long"]
    note: Annotated[str | None, "what else"] = None


REVIEW = {
    "author": {"name": "Ann", "friend": {"name": "Bob", "friend": None}},
    "stars": 4,
    "mood": "good",
    "tags": ["x", "y"],
    "scores": {"speed": 0.5},
    "kind": "long",
    "note": None,
}


def verdict(kind: Any, answer: Any, finish_reason: str = "stop") -> Parsed | Problem:
    """The verdict on an answer, given as a text or as JSON."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return check_answer(*schema_of(kind), text, finish_reason)


class TestRecovering:
    @pytest.mark.parametrize(
        "text",
        [
            OBJECT,
            f"\ufeff  {OBJECT}\n",
            f"```json\n{OBJECT}\n```",
            f"```\n{OBJECT}\n```",
            f"Sure, here it is:\n```json\n{OBJECT}\n```\nAnything else?",
            f"```json {OBJECT}```",
            f"```json\n{OBJECT}``` as you wished",
            f"The answer is {OBJECT}. I hope [this] helps [1].",
            f"The answer is {OBJECT}. I left {{name}} and {{ this }} as they were.",
            f"{OBJECT} Note: the set {{x: y}} is empty.",
            f'{OBJECT} (in the format {{"name": int}})',
            f"```json\n{OBJECT}",
            f"```json\n{OBJECT}\n```\nas in\n```python\nprint(",
            '{"a": 1, "b": [true, null,],}',
            "{'a': 1, 'b': [True, None]}",
            "{a: 1, b: [true, null]}",
            'Here: {"a": 1, // one\n "b": [true, null]}',
        ],
    )
    def test_json_is_found_in_what_models_wrap_around_it(self, text: str) -> None:
        """Fences, words and small slips do not cost another call."""
        assert recover_json(text) == VALUE

    def test_fences_within_the_texts_of_json_are_its_own(self) -> None:
        """As in answers with code, or with Markdown."""
        value = {"md": "Use:\n```python\nprint(1)\n```", "a": "``` ```"}
        assert recover_json(f"Here:\n```json\n{json.dumps(value)}\n```\nDone.") == value

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "I cannot answer that.",
            "[1] says so, see [2]",
            "[,]",
            "{ # nothing yet\n}",
            '{"a": , "b": 1}',
            '{"a": 1} or rather {"a": 2}',
            '{"a": 1} or rather {"a": 2,}',
            '{"a": 1} or rather {"a": 2',
            "{\"a\": 1} or rather {'a': 2}",
            '{"a": 1} or rather {a: 2}',
            '{"a b": 1} or rather {"a b": 2',
            '{"a": 1} or rather [{"a": 2,}]',
            "```json\n" + '{"a": 1}\n```\nor\n```json\n{"a": 2}',
            "```json\n" + '{"a": 1}\n```\nor\n```json\n{"a": 2',
            "```json\n" + '{"a": 1}\n```\nor\n```json\n{"a": 2}\n```',
            '{"a": 1, "b": [true',
            '{"items": [{"a": 1}, {"a": 2',
            '{"items": [{"a": 1}, {"a": "2}]}',
            "{'items': [{'a': 1}, {'a': 2}]",
            "{'items': [{'a': 1}, {'a': 2]}",
            "[" * 100_000,
            '{"a":' * 50_000,
            "[" * 500 + "]" * 500,
            "9" * 5000,
        ],
    )
    def test_what_is_missing_cut_or_ambiguous_is_not_made_up(self, text: str) -> None:
        """Nothing is closed that was open, and of two answers none is chosen."""
        with pytest.raises(JsonNotFound):
            recover_json(text)

    @pytest.mark.parametrize(
        ("most", "beyond"),
        [
            ("[1] " * 19 + OBJECT, "[1] " * 20 + OBJECT),
            ("{'a': 1" + " " * 4992 + "}", "{'a': 1" + " " * 4993 + "}"),
            ("x" * (2_000_000 - len(OBJECT)) + OBJECT, "x" * (2_000_001 - len(OBJECT)) + OBJECT),
            ("[" * 200 + "]" * 200, "[" * 201 + "]" * 201),
        ],
        ids=["brackets before it", "broken", "long", "nested"],
    )
    def test_json_is_looked_for_up_to_a_size(self, most: str, beyond: str) -> None:
        """Twenty brackets, 5,000 characters that are broken, two million, and 200 levels."""
        assert recover_json(most)
        with pytest.raises(JsonNotFound):
            recover_json(beyond)

    def test_the_reason_repeats_nothing_of_the_answer(self) -> None:
        """Answers stay out of errors."""
        with pytest.raises(JsonNotFound) as caught:
            recover_json("secret word {")
        assert "secret" not in str(caught.value)


class TestClasses:
    def test_a_class_becomes_a_closed_schema_and_an_answer_becomes_its_object(self) -> None:
        """Dataclass and attrs class, nested and recursive, enum, literal, list, dictionary, optional."""
        schema, build = schema_of(Review)
        check_schema(schema)
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(REVIEW)
        assert schema["$defs"]["Author"]["properties"]["friend"] == {
            "anyOf": [{"$ref": "#/$defs/Author"}, {"type": "null"}]
        }
        expected = Review(
            Author("Ann", Author("Bob")), 4, Mood.GOOD, ["x", "y"], {"speed": 0.5}, "long", None
        )
        assert verdict(Review, REVIEW) == Parsed(expected)
        assert build(REVIEW) == expected

    def test_a_class_that_contains_itself_refers_to_the_whole(self) -> None:
        """A list of friends of friends."""
        found = verdict(Author, {"name": "Ann", "friend": {"name": "Bob", "friend": None}})
        assert found == Parsed(Author("Ann", Author("Bob")))

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [("stars", "4"), ("stars", 4.5), ("mood", "fair"), ("kind", "x"), ("tags", "x"), ("author", {})],
    )
    def test_a_wrong_value_is_a_problem_that_names_the_place_in_the_schema(
        self, name: str, wrong: Any
    ) -> None:
        """The error tells where; only the model is told what."""
        found = verdict(Review, {**REVIEW, name: wrong})
        assert isinstance(found, Problem)
        assert not found.final
        assert f"properties/{name}" in found.message or "$ref" in found.message or "$defs" in found.message

    def test_missing_and_foreign_properties_are_problems(self) -> None:
        """Optional fields may be null, but not absent: that is what providers are told."""
        for wrong in ({k: v for k, v in REVIEW.items() if k != "note"}, {**REVIEW, "canary": 1}):
            found = verdict(Review, wrong)
            assert isinstance(found, Problem)
            assert "canary" not in found.message

    def test_a_validator_of_the_class_has_the_last_word(self) -> None:
        """What follows the schema may still be refused by the class; the error keeps the value to itself."""

        @define
        class Even:
            number: int = field(validator=validators.in_([2, 4]))

        assert isinstance(verdict(Even, {"number": 4}), Parsed)
        found = verdict(Even, {"number": 31337})
        assert isinstance(found, Problem)
        assert "31337" not in found.message
        assert "31337" in found.advice

    def test_pydantic_models_are_taken_and_closed(self) -> None:
        """Where pydantic is installed; optional fields are required in the schema, as strict mode wants."""
        pydantic = pytest.importorskip("pydantic")
        inner = pydantic.create_model("Inner", x=(int, ...))
        model = pydantic.create_model("Model", name=(str, "none"), inner=(inner | None, None))
        schema, _ = schema_of(model)
        assert schema["required"] == ["name", "inner"]
        assert schema["$defs"]["Inner"]["additionalProperties"] is False
        assert verdict(model, {"name": "n", "inner": {"x": 1}}) == Parsed(model(name="n", inner=inner(x=1)))

    def test_the_same_class_has_the_same_builder(self) -> None:
        """Equal requests are told by it."""
        assert schema_of(Review)[1] is schema_of(Review)[1]

    @pytest.mark.parametrize("value", [1, "one", None])
    def test_plain_types_stand_side_by_side(self, value: Any) -> None:
        """What came keeps its type."""
        kind = dataclasses.make_dataclass("Odd", [("value", str | int | None)])
        found = verdict(kind, {"value": value})
        assert isinstance(found, Parsed)
        assert found.value == kind(value)

    def test_what_is_refused_is_named_as_it_was_written(self) -> None:
        for annotation, name in (
            (NoReturn, r"typing\.NoReturn"),
            (complex, "complex"),
            (set[int], r"set\[int\]"),
        ):
            with pytest.raises(InvalidRequest, match=rf"Odd\.strange: {name} has no schema"):
                schema_of(dataclasses.make_dataclass("Odd", [("strange", annotation)]))

    @pytest.mark.parametrize(
        "annotation", [complex, Any, bytes, set[int], list, dict, dict[int, str], Author | Review, object]
    )
    def test_an_annotation_without_a_schema_is_refused_by_name(self, annotation: Any) -> None:
        """The text says which field."""
        kind = dataclasses.make_dataclass("Odd", [("fine", int), ("strange", annotation)])
        with pytest.raises(InvalidRequest, match=r"Odd\.strange"):
            schema_of(kind)

    @pytest.mark.parametrize(
        ("annotation", "schema"),
        [
            (Literal["a"], {"type": "string", "enum": ["a"]}),
            (Literal["a", 1], {"enum": ["a", 1]}),
            (Literal[True, False], {"type": "boolean", "enum": [True, False]}),
            (Mood, {"type": "string", "enum": ["good", "bad"]}),
            (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
            (Sequence[Author], {"type": "array", "items": {"$ref": "#/$defs/Author"}}),
            (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        ],
    )
    def test_an_annotation_has_its_schema(self, annotation: Any, schema: dict[str, Any]) -> None:
        kind = dataclasses.make_dataclass("Kind", [("value", annotation)])
        assert schema_of(kind)[0]["properties"] == {"value": schema}

    @pytest.mark.parametrize(
        "annotation", [Literal[b"x"], enum.Enum("Empty", []), enum.Enum("Odd", {"a": 1.5})]
    )
    def test_values_that_json_has_not_are_refused_by_name(self, annotation: Any) -> None:
        kind = dataclasses.make_dataclass("Odd", [("strange", annotation)])
        with pytest.raises(InvalidRequest, match=r"Odd\.strange: its values must be"):
            schema_of(kind)

    def test_a_name_that_the_module_does_not_know_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="'Nowhere' is not defined; annotate with names"):
            schema_of(dataclasses.make_dataclass("Odd", [("strange", "Nowhere")]))

    def test_a_field_that_is_not_given_to_the_class_is_not_asked_for(self) -> None:
        kind = dataclasses.make_dataclass(
            "Kind", [("given", int), ("own", int, dataclasses.field(default=1, init=False))]
        )
        assert schema_of(kind)[0]["required"] == ["given"]

    def test_a_schema_with_its_builder_is_copied_whole(self) -> None:
        for copied in (copy.deepcopy(BUILT), pickle.loads(pickle.dumps(BUILT))):
            assert copied == BUILT
            assert copied.build is list

    def test_a_field_without_an_annotation_is_refused_by_name(self) -> None:
        """Of a class that was made without any."""
        with pytest.raises(InvalidRequest, match=r"Odd\.strange: it has no annotation"):
            schema_of(make_class("Odd", ["strange"]))

    @pytest.mark.parametrize("kind", [int, "text", 5, None, list[int], Mood])
    def test_anything_else_is_refused(self, kind: Any) -> None:
        """Only objects: what providers take at the top."""
        with pytest.raises(InvalidRequest, match="schema"):
            schema_of(kind)

    def test_a_plain_schema_builds_what_came(self) -> None:
        """A dictionary stays a dictionary."""
        assert verdict({"type": "object"}, VALUE) == Parsed(VALUE)
        assert verdict(BUILT, VALUE) == Parsed(["a", "b"])

    @pytest.mark.full
    def test_no_heavy_import_before_it_is_needed(self) -> None:
        """Who wants no structured answers does not pay for them."""
        code = (
            "import sys, smartbatch.core.preparation.schemas, smartbatch.core.preparation.structured\n"
            "print({'pydantic', 'jsonschema', 'cattrs', 'json_repair'} & set(sys.modules))"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "set()"


class TestVerdicts:
    @pytest.mark.parametrize("reason", ["length", "refusal", "content_filter"])
    def test_a_cut_or_refused_answer_is_final(self, reason: str) -> None:
        """Even when what came looks whole: asking again for the form would not help."""
        found = verdict({"type": "object"}, {}, reason)
        assert isinstance(found, Problem)
        assert found.final

    @pytest.mark.parametrize("text", [None, "", "no", "{", "\ud800"])
    def test_no_text_raises(self, text: str | None) -> None:
        """Whatever the model wrote, the verdict is a verdict."""
        assert isinstance(check_answer(*schema_of({"type": "object"}), text, "stop"), Problem)

    def test_two_classes_of_one_name_are_two(self) -> None:
        """As classes of two modules may be."""
        other = make_class("Author", {"born": field(type=int)})
        both = make_class("Both", {"one": field(type=Author), "two": field(type=other)})
        schema, _ = schema_of(both)
        names = [schema["properties"][name]["$ref"].rpartition("/")[2] for name in ("one", "two")]
        assert "name" in schema["$defs"][names[0]]["properties"]
        assert list(schema["$defs"][names[1]]["properties"]) == ["born"]

    def test_a_schema_that_cannot_be_applied_is_final(self) -> None:
        """A reference into the void is the caller's to mend."""
        found = verdict({"$ref": "#/$defs/Nowhere"}, {})
        assert isinstance(found, Problem)
        assert found.final

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "objekt"},
            {"properties": []},
            {"$ref": "https://example.org/x.json"},
            {"anyOf": [{"type": "null"}, {"$ref": "https://example.org/x.json"}]},
            {"required": "a"},
            {"properties": {"a": {"$ref": "#/nowhere"}}},
            {"$defs": {"a~b": {}}, "$ref": "#/$defs/a~1b"},
            {"properties": {"default": {"$ref": "https://example.org/x.json"}}},
            {"properties": {"enum": {"pattern": r"(a)\1"}}},
        ],
    )
    def test_a_broken_or_foreign_schema_is_refused(self, schema: dict[str, Any]) -> None:
        """Before it is sent, and without fetching anything."""
        with pytest.raises(ValueError, match=r"schema|refers|checked"):
            check_schema(schema)

    @pytest.mark.parametrize(
        "schema",
        [
            {"$defs": {"a/b~c": {}}, "properties": {"x": {"$ref": "#/$defs/a~1b~0c"}}},
            {"anyOf": [{"type": "null"}, {"type": "object"}], "properties": {"x": {"$ref": "#/anyOf/1"}}},
            {"properties": {"const": {"type": "string"}, "properties": {"properties": {"enum": {}}}}},
            {"enum": [{"$ref": "#/nowhere"}]},
        ],
    )
    def test_references_within_a_schema_and_names_like_keywords_are_fine(
        self, schema: dict[str, Any]
    ) -> None:
        check_schema(schema)

    @pytest.mark.parametrize(
        ("step", "fits", "breaks"),
        [
            (0.01, ["19.99", "4.35", "-0.29", "0", "7", "1e2", "1e308"], ["4.355", "0.001", "1e-3", "1e999"]),
            (0.1, ["0.3", "1234567.7"], ["0.35", "0.30000000000000004"]),
            (5, ["10", "10.0", "-5", "1e30"], ["7", "2.5", "1e999"]),
        ],
    )
    def test_multiples_are_those_of_the_numbers_as_they_are_written(
        self, step: float, fits: list[str], breaks: list[str]
    ) -> None:
        """19.99 is 1999 hundredths, though no binary fraction is either of them."""
        for text in fits:
            assert isinstance(verdict({"multipleOf": step}, text), Parsed), text
        for text in breaks:
            found = verdict({"multipleOf": step}, text)
            assert isinstance(found, Problem), text
            assert found.advice.endswith(f" is not a multiple of {step}.")

    def test_the_model_is_told_three_flaws_at_most_each_in_short(self) -> None:
        """A flaw quotes what is wrong, which may be long."""
        found = verdict({"additionalProperties": {"type": "integer"}}, dict.fromkeys("abcd", "x" * 600))
        assert isinstance(found, Problem)
        shown = repr("x" * 600)[:500]
        assert found.advice == "; ".join(f"at $.{name}: {shown}" for name in "abc") + "."

    @pytest.mark.parametrize(
        ("schema", "value", "told"),
        [
            ({"pattern": "b"}, "a" * 198, f"'{'a' * 198}' does not match 'b'"),
            ({"pattern": "b"}, "a" * 199, f"'{'a' * 198}… does not match 'b'"),
            ({"uniqueItems": True}, [1, 1.0], "[1, 1.0] has non-unique elements"),
            (
                {"properties": {"a": {}}, "additionalProperties": False},
                dict.fromkeys("abcdefg"),
                "Additional properties are not allowed ('b', 'c', 'd', 'e', 'f' unexpected)",
            ),
            (
                {"unevaluatedItems": False},
                [0] * 1001,
                "has more than 1000 parts, which unevaluatedItems is not applied to",
            ),
        ],
    )
    def test_a_flaw_is_told_in_the_words_of_its_keyword(
        self, schema: dict[str, Any], value: Any, told: str
    ) -> None:
        """What is quoted has 200 characters at most, and the names five."""
        found = verdict(schema, json.dumps(value))
        assert isinstance(found, Problem)
        assert found.advice == f"at $: {told}."

    def test_an_error_of_the_class_is_told_in_short(self) -> None:
        def refuse(value: Any) -> NoReturn:
            raise ValueError("x" * 2_000)

        found = check_answer({}, refuse, "1", "stop")
        assert isinstance(found, Problem)
        assert found.advice == "ValueError: " + "x" * 988

    def test_foreign_references_are_not_fetched(self) -> None:
        """Even where one slipped through, validation does not open the network."""
        found = verdict({"$ref": "http://127.0.0.1:9/schema.json"}, {})
        assert isinstance(found, Problem)
        assert found.final


class _Single:
    """An object that cannot be copied."""

    def __init__(self, made_of: Any) -> None:
        self.made_of = made_of

    def __deepcopy__(self, _: Any) -> NoReturn:
        raise TypeError("there is only one")


class TestWithoutASchema:
    @pytest.mark.parametrize(
        ("form", "text", "value"),
        [
            (None, OBJECT, None),
            ({"type": "json_object"}, f"Here: {OBJECT}", VALUE),
            ({"type": "json_object"}, "none", None),
            ({"type": "json_object"}, None, None),
        ],
    )
    def test_the_providers_own_form_gives_what_json_there_is(
        self, form: dict[str, Any] | None, text: str | None, value: Any
    ) -> None:
        """Also of an answer that was cut: nothing says what has to be in it."""
        assert read_answer(Generation(response_format=form), text, "length") == Parsed(value)


class TestObjectsOfTheirOwn:
    def test_an_object_is_copied_for_each_caller(self) -> None:
        answer = Answer(OBJECT)
        found = own_object(Generation(response_format={}), answer, VALUE)
        assert found == VALUE
        assert found is not VALUE
        assert found["b"] is not VALUE["b"]

    def test_one_that_cannot_be_copied_is_made_again_of_the_text(self) -> None:
        params, first = Generation(schema=BuiltSchema({}, _Single)), _Single(1)
        found = own_object(params, Answer("[1]"), first)
        assert found is not first
        assert found.made_of == [1]

    @pytest.mark.parametrize(("text", "end"), [("[1]", "length"), ("none", "stop")])
    def test_one_that_cannot_be_made_again_is_shared(self, text: str, end: Any) -> None:
        params, first = Generation(schema=BuiltSchema({}, _Single)), _Single(1)
        assert own_object(params, Answer(text, finish_reason=end), first) is first


class TestAskingAgain:
    def test_the_conversation_goes_on_with_the_answer_and_its_error(self) -> None:
        """A text becomes a chat of three turns."""
        request = Request("question", Generation(system="s"))
        asked = repair_request(request, "bad", Problem("m", "at $.a: wrong."), 0)
        assert isinstance(asked.prompt, tuple)
        assert [message.role for message in asked.prompt] == ["user", "assistant", "user"]
        assert asked.prompt[0] == Message("user", "question")
        assert "at $.a: wrong." in str(asked.prompt[2].content)
        assert asked.params == request.params

    def test_a_chat_is_prolonged(self) -> None:
        """Earlier turns stay as they are."""
        chat = (Message("system", "s"), Message("user", "q"))
        asked = repair_request(Request(chat), "bad", Problem("m", "a"), 0)
        assert asked.prompt[:2] == chat

    @pytest.mark.parametrize("answer", ["x", "x" * 20_000])
    def test_an_answer_of_up_to_20000_characters_is_repeated(self, answer: str) -> None:
        asked = repair_request(Request("q"), answer, Problem("m", "a"), 0)
        assert asked.prompt[1] == Message("assistant", answer)

    @pytest.mark.parametrize("answer", ["", "   ", "x" * 20_001])
    def test_an_empty_or_endless_answer_is_not_repeated(self, answer: str) -> None:
        """An API refuses an empty turn, and an endless one would be paid again."""
        asked = repair_request(Request("q"), answer, Problem("m", "a"), 0)
        assert [message.role for message in asked.prompt] == ["user", "user"]  # type: ignore[union-attr]

    def test_temperatures_rise_where_the_provider_takes_them(self) -> None:
        """0, a quarter, a half, and then a half for ever; elsewhere none is sent."""
        problem = Problem("m", "a")
        found = [
            repair_request(Request("q"), "bad", problem, n, takes_temperature=True).params.temperature
            for n in range(4)
        ]
        assert found == [*TEMPERATURES, 0.5] == [0.0, 0.25, 0.5, 0.5]
        assert repair_request(Request("q"), "bad", problem, 1).params.temperature is None
