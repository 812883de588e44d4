"""Structured answers: recovered JSON, schemas of classes, checks and repairs."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal, NoReturn, Required, TypedDict

import pydantic
import pytest
from attrs import define, field, frozen, make_class, validators

from smartbatch.core.preparation import class_schemas
from smartbatch.core.preparation.class_schemas import BuiltSchema, schema_of
from smartbatch.core.preparation.json_recovery import JsonNotFound, recover_json
from smartbatch.core.preparation.json_schemas import check_schema
from smartbatch.core.preparation.structured import (
    REPAIR_TEMPERATURES,
    Parsed,
    Problem,
    check_answer,
    own_object,
    read_answer,
    repair_request,
)
from smartbatch.errors import AnswerUnread, InvalidRequest
from smartbatch.types import WRAPPER_PROPERTY, Answer, Generation, Message, Request

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
    def test_json_is_found_in_what_models_wrap_around_it(self, text):
        assert recover_json(text) == VALUE

    def test_fences_within_the_texts_of_json_are_its_own(self):
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
    def test_what_is_missing_cut_or_ambiguous_is_not_made_up(self, text):
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
    def test_json_is_looked_for_up_to_a_size(self, most, beyond):
        assert recover_json(most)
        with pytest.raises(JsonNotFound):
            recover_json(beyond)

    @pytest.mark.parametrize(
        "text",
        [
            f'<think>\nPerhaps {{"a": 2}}? No.\n</think>\n\n{OBJECT}',
            f"<think>I will write {OBJECT}.</think>\n```json\n{OBJECT}\n```",
            f"The form is {{a}}, so...\n</think>\n{OBJECT}",
            f'<think>I close with </think> after {{"a": 2}}.</think>{OBJECT}',
            f'[THINK]{{"a": 2}}[/THINK]{OBJECT} I hope this helps.',
            f'<thinking>{{"a": 2}}</thinking><reasoning>{{"a": 3}}</reasoning>{OBJECT}',
            f"{OBJECT} that is\n```json\n{OBJECT}\n```",
            f"```json\n{OBJECT}\n```\nOnce more:\n```\n{OBJECT}\n```",
        ],
    )
    def test_thoughts_in_front_and_equal_values_do_not_count(self, text):
        assert recover_json(text) == VALUE

    @pytest.mark.parametrize(
        "text", ['{"a": "</think>"}', 'Here: {"a": "</think>"}', '<think>{"b": 1}</think>{"a": "</think>"}']
    )
    def test_a_mark_within_the_answer_is_a_part_of_it(self, text):
        assert recover_json(text) == {"a": "</think>"}

    @pytest.mark.parametrize(
        "text", ['<think>{"a": 1}</think> I cannot.', '{"a": 1}</think>{"a": 1}{"a": 2}']
    )
    def test_no_draft_is_taken_for_the_answer(self, text):
        with pytest.raises(JsonNotFound):
            recover_json(text)

    @pytest.mark.parametrize(
        "text",
        [
            "1e999",
            '{"a": -1e999}',
            "[[1e400]]",
            'Here: {"a": 1e999}',
            "{'a': 1e999}",
            '<think></think>{"a": 1e999}',
        ],
    )
    def test_a_number_that_no_float_holds_is_named(self, text):
        with pytest.raises(JsonNotFound, match="beyond the range of floating-point numbers, such as 1e999"):
            recover_json(text)
        assert recover_json('"1e999"') == "1e999"

    @pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
    def test_nan_and_infinity_are_rejected_by_name_and_never_repaired(self, name):
        for text in (f'{{"a": {name}}}', f"Here: ```json\n[1, {name}]\n```", f'{{"a": [{name}], b: 1,}}'):
            with pytest.raises(JsonNotFound, match=f"it has {name} in the place of a value"):
                recover_json(text)
        assert recover_json(f'{{"a": "{name}"}}') == {"a": name}

    def test_the_reason_repeats_nothing_of_the_answer(self):
        with pytest.raises(JsonNotFound) as caught:
            recover_json("secret word {")
        assert "secret" not in str(caught.value)


class Priced(pydantic.BaseModel):
    price: decimal.Decimal
    day: datetime.date
    size: tuple[int, str]
    tags: set[str] = set()
    stars: int = pydantic.Field(default=3, ge=1, le=5)
    more: Any = None


class Entry(TypedDict, total=False):
    word: Required[str]
    parts: list[Entry]


@frozen
class Dog:
    kind: Literal["dog"]
    age: int


@frozen
class Cat:
    kind: Literal["cat"]
    age: int = 9


@frozen
class Owner:
    pet: Dog | Cat | None
    item: Priced | None = None


PRICED = {"price": 1.5, "day": "2026-11-27", "size": [1, "x"]}


class TestClasses:
    def test_a_class_becomes_a_schema_and_an_answer_becomes_its_object(self):
        schema, build = schema_of(Review)
        check_schema(schema)
        assert schema["required"] == list(REVIEW)[:-1]
        assert schema["$defs"]["Author"]["properties"]["friend"] == {
            "anyOf": [{"$ref": "#/$defs/Author"}, {"type": "null"}]
        }
        expected = Review(
            Author("Ann", Author("Bob")), 4, Mood.GOOD, ["x", "y"], {"speed": 0.5}, "long", None
        )
        assert verdict(Review, REVIEW) == Parsed(expected)
        assert build(REVIEW) == expected

    def test_the_root_of_a_schema_is_no_reference(self):
        schema, _ = schema_of(Author)
        assert (schema["type"], schema["required"]) == ("object", ["name"])
        found = verdict(Author, {"name": "Ann", "friend": {"name": "Bob", "friend": None}})
        assert found == Parsed(Author("Ann", Author("Bob")))

    @pytest.mark.parametrize(
        ("kind", "answer", "expected"),
        [
            (
                Priced,
                PRICED,
                Priced(price=decimal.Decimal("1.5"), day=datetime.date(2026, 11, 27), size=(1, "x")),
            ),
            (Entry, {"word": "a", "parts": [{"word": "b"}]}, {"word": "a", "parts": [{"word": "b"}]}),
            (Owner, {"pet": {"kind": "cat"}, "item": None}, Owner(Cat("cat"))),
            (Owner, {"pet": {"kind": "dog", "age": 3}}, Owner(Dog("dog", 3))),
            (list[Owner], [{"pet": None}], [Owner(None)]),
            (list[int], [1, 2], [1, 2]),
            (Literal["a", "b"], '"b"', "b"),
            (Mood, '"bad"', Mood.BAD),
            (int | None, "null", None),
            (dict[int, bytes], {"1": "x"}, {1: b"x"}),
            (tuple[Author, int], [{"name": "Ann"}, 2], (Author("Ann"), 2)),
            (Author | int, 5, 5),
            (Any, [1], [1]),
            (Annotated[int, pydantic.Field(ge=1, examples=[1])], 1, 1),
        ],
    )
    def test_any_type_has_a_schema_and_makes_objects(self, kind, answer, expected):
        schema, _ = schema_of(kind)
        check_schema(schema)
        assert verdict(kind, answer) == Parsed(expected)

    @pytest.mark.parametrize(
        ("name", "wrong", "told"),
        [
            ("stars", "four", "stars (int_parsing)"),
            ("stars", 4.5, "stars (int_from_float)"),
            ("mood", "fair", "mood (enum)"),
            ("kind", "x", "kind (literal_error)"),
            ("tags", "x", "tags (list_type)"),
            ("author", {}, "author/name (missing)"),
        ],
    )
    def test_a_wrong_value_is_a_problem_that_names_the_place(self, name, wrong, told):
        found = verdict(Review, {**REVIEW, name: wrong})
        assert isinstance(found, Problem)
        assert not found.final
        assert found.message == f"the answer violates the schema at {told}"

    def test_what_the_class_accepts_is_accepted(self):
        answer = {**PRICED, "price": "1.5", "stars": "4", "canary": 1}
        found = verdict(Priced, answer)
        assert isinstance(found, Parsed)
        assert (found.value.stars, found.value.price) == (4, decimal.Decimal("1.5"))
        closed = pydantic.create_model("Closed", __config__={"extra": "forbid"}, a=(int, 1))
        refused = verdict(closed, {"canary": 1})
        assert isinstance(refused, Problem)
        assert refused.message == "the answer violates the schema at the top (extra_forbidden)"
        assert isinstance(verdict(Author, {"name": "Ann", "canary": 1}), Parsed)

    @pytest.mark.parametrize("kind", [Priced, schema_of(Priced)[0]])
    def test_a_null_that_stands_for_a_property_left_out_is_dropped(self, kind):
        found = verdict(kind, {**PRICED, "stars": None, "tags": None, "more": None})
        assert isinstance(found, Parsed)
        left = found.value if isinstance(found.value, dict) else found.value.model_dump()
        assert left["more"] is None
        assert left.get("stars", 3) == 3
        refused = verdict(kind, {**PRICED, "day": None})
        assert isinstance(refused, Problem)
        only = pydantic.create_model("Only", size=(int, 3))
        assert verdict(schema_of(only)[0], {"size": None}) == Parsed({})

    def test_a_type_of_this_process_judges_for_its_stored_schema(self):
        loose = pydantic.create_model("Loose", size=(int, ...), word=(str, "none"))
        stored = json.loads(json.dumps(schema_of(loose)[0]))
        assert verdict(stored, {"size": "5"}) == Parsed({"size": "5"})
        assert isinstance(verdict(stored, {"size": "five"}), Problem)
        assert isinstance(verdict({**stored, "title": "Other"}, {"size": "5"}), Problem)

    def test_nulls_are_dropped_in_the_branch_that_an_answer_takes(self):
        one = pydantic.create_model("One", kind=(Literal["one"], ...), size=(int, 1))
        two = pydantic.create_model("Two", kind=(Literal["two"], ...), size=(int | None, ...))
        found = verdict(list[one | two], [{"kind": "one", "size": None}, {"kind": "two", "size": None}])
        assert found == Parsed([one(kind="one", size=1), two(kind="two", size=None)])

    def test_an_answer_is_taken_out_of_its_wrapping(self):
        assert verdict(list[int], {WRAPPER_PROPERTY: [1]}) == verdict(list[int], [1]) == Parsed([1])
        own = pydantic.create_model("Own", answer=(int, 0))
        assert verdict(own, {WRAPPER_PROPERTY: 1}) == Parsed(own(answer=1))
        loose = pydantic.create_model("Loose", a=(int, 0))
        assert verdict(loose | None, {WRAPPER_PROPERTY: {"a": 5}}) == Parsed(loose(a=5))

    def test_a_validator_of_the_class_has_the_last_word(self):

        @define
        class Even:
            number: int = field(validator=validators.in_([2, 4]))

        assert isinstance(verdict(Even, {"number": 4}), Parsed)
        found = verdict(Even, {"number": 31337})
        assert isinstance(found, Problem)
        assert "31337" not in found.message
        assert "31337" in found.advice

    def test_an_error_of_the_class_is_told_in_short(self):
        def refuse(value: Any) -> NoReturn:
            raise KeyError("x" * 2_000)

        found = verdict(Annotated[int, pydantic.AfterValidator(refuse)], 1)
        assert isinstance(found, Problem)
        assert found.message == (
            "the answer follows the schema, but no object could be made from it: KeyError"
        )
        assert found.advice == "KeyError: '" + "x" * 989

    def test_a_pattern_that_needs_backtracking_is_the_classes_own(self):
        config = pydantic.ConfigDict(regex_engine="python-re")
        ahead = pydantic.create_model(
            "Ahead", __config__=config, a=(Annotated[str, pydantic.Field(pattern="^(?!x)")], ...)
        )
        assert isinstance(verdict(ahead, {"a": "y"}), Parsed)
        assert isinstance(verdict(ahead, {"a": "x"}), Problem)
        assert isinstance(verdict({**schema_of(ahead)[0], "title": "Stored"}, {"a": "x"}), Parsed)

    def test_the_same_class_has_the_same_builder(self):
        assert schema_of(Review)[1] is schema_of(Review)[1]
        assert schema_of({"type": "object"})[1] is schema_of({"type": "object"})[1]

    def test_threads_that_bring_a_new_class_get_the_same_builder(self, monkeypatch):
        monkeypatch.setattr(class_schemas, "_types", {})
        kind = make_class("Fresh", {"a": field(type=Author)})
        together, found = threading.Barrier(16), []

        def bring() -> None:
            together.wait()
            found.append(schema_of(kind)[1])

        threads = [threading.Thread(target=bring) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 16
        assert len(set(map(id, found))) == 1
        monkeypatch.setattr(class_schemas, "MAX_KNOWN_TYPES", 1)
        schema_of(tuple[int])
        assert schema_of(kind)[1] is not found[0]

    @pytest.mark.parametrize("kind", [Review, Priced, {"type": "object"}])
    def test_a_builder_can_be_sent_to_another_process(self, kind):
        schema, build = schema_of(kind)
        copied = pickle.loads(pickle.dumps(BuiltSchema(schema, build)))
        answer = PRICED if kind is Priced else REVIEW
        assert (copied, copied.build(answer)) == (schema, build(answer))

    @pytest.mark.parametrize("annotation", [NoReturn, Callable[[], int], Author | Callable[[], int]])
    def test_a_type_that_json_has_not_is_refused_by_name(self, annotation):
        kind = make_class("Odd", {"fine": field(type=int), "strange": field(type=annotation)})
        with pytest.raises(InvalidRequest, match=r"schema cannot (include|be made from) Odd"):
            schema_of(kind)

    def test_a_name_that_the_module_does_not_know_is_refused(self):
        with pytest.raises(InvalidRequest, match="'Nowhere' is not defined; use annotations"):
            schema_of(make_class("Odd", {"strange": field(type="Nowhere")}))
        with pytest.raises(InvalidRequest, match=r"cannot be made from Odd: .*not fully defined"):
            schema_of(dataclasses.make_dataclass("Odd", [("strange", "Nowhere")]))

    def test_a_field_that_is_not_given_to_the_class_is_not_asked_for(self):
        kind = make_class("Kind", {"given": field(type=int), "own": field(type=int, default=1, init=False)})
        assert list(schema_of(kind)[0]["properties"]) == ["given"]

    def test_a_field_without_an_annotation_is_refused_by_name(self):
        with pytest.raises(InvalidRequest, match=r"Odd\.strange: it has no annotation"):
            schema_of(make_class("Odd", ["strange"]))

    def test_a_plain_schema_builds_what_came(self):
        assert verdict({"type": "object"}, VALUE) == Parsed(VALUE)
        assert verdict(BUILT, VALUE) == Parsed(["a", "b"])

    @pytest.mark.full
    def test_no_heavy_import_before_it_is_needed(self):
        code = (
            "import sys, smartbatch.core.preparation.class_schemas, smartbatch.core.preparation.structured\n"
            "print({'pydantic', 'jsonschema', 'cattrs', 'json_repair'} & set(sys.modules))"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "set()"


class TestVerdicts:
    @pytest.mark.parametrize("reason", ["length", "refusal", "content_filter"])
    def test_a_cut_or_refused_answer_is_final(self, reason):
        found = verdict({"type": "object"}, {}, reason)
        assert isinstance(found, Problem)
        assert found.final

    @pytest.mark.parametrize("text", [None, "", "no", "{", "\ud800"])
    def test_no_text_raises(self, text):
        assert isinstance(check_answer(*schema_of({"type": "object"}), text, "stop"), Problem)

    def test_two_classes_of_one_name_are_two(self):
        other = make_class("Author", {"born": field(type=int)})
        both = make_class("Both", {"one": field(type=Author), "two": field(type=other)})
        schema, _ = schema_of(both)
        names = [schema["properties"][name]["$ref"].rpartition("/")[2] for name in ("one", "two")]
        assert "name" in schema["$defs"][names[0]]["properties"]
        assert list(schema["$defs"][names[1]]["properties"]) == ["born"]

    def test_an_error_of_ours_is_no_verdict_on_the_answer(self, monkeypatch):
        failures = [ImportError("half made")] * 2

        def broken_at_first(value: Any) -> Any:
            if failures:
                raise failures.pop()
            return value

        params = Generation(schema=BuiltSchema({"type": "object"}, broken_at_first))
        assert read_answer(params, "{}", "stop") == Parsed({})
        failures += [ImportError("half made")] * 3
        found = read_answer(params, "{}", "stop")
        assert isinstance(found, Problem)
        assert (found.final, found.internal) == (True, True)
        assert type(found.error(text="{}")) is AnswerUnread
        assert "smartbatch itself failed to read the answer (ImportError)" in found.message

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
    def test_a_broken_or_foreign_schema_is_refused(self, schema):
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
    def test_references_within_a_schema_and_names_like_keywords_are_fine(self, schema):
        check_schema(schema)

    @pytest.mark.parametrize(
        ("step", "fits", "breaks"),
        [
            (0.01, ["19.99", "4.35", "-0.29", "0", "7", "1e2", "1e308"], ["4.355", "0.001", "1e-3"]),
            (0.1, ["0.3", "1234567.7"], ["0.35", "0.30000000000000004"]),
            (5, ["10", "10.0", "-5", "1e30"], ["7", "2.5"]),
        ],
    )
    def test_multiples_are_those_of_the_numbers_as_they_are_written(self, step, fits, breaks):
        for text in fits:
            assert isinstance(verdict({"multipleOf": step}, text), Parsed), text
        for text in breaks:
            found = verdict({"multipleOf": step}, text)
            assert isinstance(found, Problem), text
            assert found.advice.endswith(f" is not a multiple of {step}.")

    def test_the_model_is_told_three_flaws_at_most_each_in_short(self):
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
    def test_a_flaw_is_told_in_the_words_of_its_keyword(self, schema, value, told):
        found = verdict(schema, json.dumps(value))
        assert isinstance(found, Problem)
        assert found.advice == f"at $: {told}."


class _Single:
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
    def test_the_providers_own_form_gives_what_json_there_is(self, form, text, value):
        assert read_answer(Generation(response_format=form), text, "length") == Parsed(value)


class TestObjectsOfTheirOwn:
    def test_an_object_is_copied_for_each_caller(self):
        answer = Answer(OBJECT)
        found = own_object(Generation(response_format={}), answer, VALUE)
        assert found == VALUE
        assert found is not VALUE
        assert found["b"] is not VALUE["b"]

    def test_one_that_cannot_be_copied_is_made_again_of_the_text(self):
        params, first = Generation(schema=BuiltSchema({}, _Single)), _Single(1)
        found = own_object(params, Answer("[1]"), first)
        assert found is not first
        assert found.made_of == [1]

    @pytest.mark.parametrize(("text", "end"), [("[1]", "length"), ("none", "stop")])
    def test_one_that_cannot_be_made_again_is_shared(self, text, end):
        params, first = Generation(schema=BuiltSchema({}, _Single)), _Single(1)
        assert own_object(params, Answer(text, finish_reason=end), first) is first


class TestAskingAgain:
    def test_the_conversation_goes_on_with_the_answer_and_its_error(self):
        request = Request("question", Generation(system="s"))
        asked = repair_request(request, "bad", Problem("m", "at $.a: wrong."), 0)
        assert isinstance(asked.prompt, tuple)
        assert [message.role for message in asked.prompt] == ["user", "assistant", "user"]
        assert asked.prompt[0] == Message("user", "question")
        assert "at $.a: wrong." in str(asked.prompt[2].content)
        assert asked.params == request.params

    @pytest.mark.parametrize("answer", ["x", "x" * 20_000])
    def test_an_answer_of_up_to_20000_characters_is_repeated(self, answer):
        asked = repair_request(Request("q"), answer, Problem("m", "a"), 0)
        assert asked.prompt[1] == Message("assistant", answer)

    @pytest.mark.parametrize("answer", ["", "   ", "x" * 20_001])
    def test_an_empty_or_endless_answer_is_not_repeated(self, answer):
        asked = repair_request(Request("q"), answer, Problem("m", "a"), 0)
        assert [message.role for message in asked.prompt] == ["user", "user"]  # type: ignore[union-attr]

    def test_temperatures_rise_where_the_provider_takes_them(self):
        problem = Problem("m", "a")
        found = [
            repair_request(Request("q"), "bad", problem, n, takes_temperature=True).params.temperature
            for n in range(4)
        ]
        assert found == [*REPAIR_TEMPERATURES, 0.5] == [0.0, 0.25, 0.5, 0.5]
        assert repair_request(Request("q"), "bad", problem, 1).params.temperature is None
