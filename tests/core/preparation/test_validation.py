"""Checks of requests and parameters from callers."""

from __future__ import annotations

import copy
import gc
import json
import math
import re
import weakref
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest
from attrs import asdict, evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.json_recovery import MAX_DEPTH, NotJson, snapshot
from smartbatch.core.preparation.preparer import RequestPreparer
from smartbatch.core.preparation.validation import admit_defaults, check_prompt, normalise
from smartbatch.errors import InvalidRequest
from smartbatch.types import Embedding, Generation, Message, Priority, Request

SECRET = "the-text-of-a-prompt"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def refused(prompt: Any, defaults: Generation | None = None, **overrides: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        normalise(prompt, defaults or Generation(), **overrides)
    assert SECRET not in str(caught.value)
    assert str(caught.value).isprintable()
    return caught.value


def prepared(prompts: list[Any]) -> None:
    list(RequestPreparer(Generation(), (), request_timeout=None, check=lambda _: None).admitted(prompts, {}))


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class TestPrompts:
    def test_a_text_becomes_a_request_with_the_clients_parameters(self):
        request = normalise("hello", Generation(system="be brief"))
        assert (request.prompt, request.params) == ("hello", Generation(system="be brief"))

    def test_messages_may_be_mappings_or_messages(self):
        request = normalise([{"role": "system", "content": "a"}, Message("user", "b")])
        assert request.prompt == (Message("system", "a"), Message("user", "b"))

    def test_content_may_be_a_list_of_parts(self):
        parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
        request = normalise([{"role": "user", "content": parts}])
        assert request.prompt == (Message("user", tuple(parts)),)

    def test_a_request_keeps_what_it_carries(self):
        context = object()
        own = Request("q", priority="high", max_wait=1, timeout=9, id="a", context=context, purpose="p")  # type: ignore[arg-type]
        taken = normalise(evolve(own, isolation_key="k", deduplicate=False), Generation(seed=1))
        assert (taken.priority, taken.max_wait, taken.timeout, taken.id) == (Priority.HIGH, 1, 9, "a")
        assert taken.context is context
        assert (taken.purpose, taken.isolation_key, taken.deduplicate) == ("p", "k", False)
        assert taken.params == Generation(seed=1)

    @pytest.mark.parametrize("prompt", ["", " ", "\n\t", "\u3000", [], ()])
    def test_an_empty_or_blank_prompt_is_refused(self, prompt):
        assert refused(prompt).field == "prompt"

    @pytest.mark.parametrize(
        "prompt", [None, 7, b"bytes", {"role": "user", "content": "a"}, Message("user", "a"), {"a"}]
    )
    def test_what_is_no_prompt_at_all_is_refused(self, prompt):
        assert refused(prompt).field == "prompt"

    def test_the_row_of_a_table_is_no_prompt_and_the_error_says_what_to_give(self):
        text = str(refused({"text": "a", "label": 1}))
        assert re.search(r"pass a string such as row\['text'\]; .* list .*column='text'.*template=", text)
        for message in ({"role": "user"}, {"content": "a"}):
            assert "put it in a list" in str(refused(message))

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ({"role": "robot", "content": "a"}, "prompt[1].role"),
            ({"role": SECRET, "content": "a"}, "prompt[1].role"),
            ({"role": ["user"], "content": "a"}, "prompt[1].role"),
            ({"content": "a"}, "prompt[1].role"),
            ({"role": "user"}, "prompt[1].content"),
            ({"role": "user", "content": None}, "prompt[1].content"),
            ({"role": "user", "content": " "}, "prompt[1].content"),
            ({"role": "user", "content": 7}, "prompt[1].content"),
            ({"role": "user", "content": []}, "prompt[1].content"),
            ({"role": "user", "content": [7]}, "prompt[1].content[0]"),
            ({"role": "user", "content": [{"type": "text", "text": math.nan}]}, "prompt[1].content[0]"),
            ({"role": "user", "content": "a", "tool_calls": [{"id": "c"}]}, "prompt[1].tool_calls"),
            ({"role": "user", "content": "a", "tool_call_id": "c"}, "prompt[1].tool_call_id"),
            ({"role": "user", "content": "a", "name": "Ann"}, "prompt[1]"),
            ({"role": "tool", "content": "a"}, "prompt[1].tool_call_id"),
            (Message("user", "\ud800"), "prompt[1].content"),
            (7, "prompt[1]"),
            (SECRET, "prompt[1]"),
        ],
    )
    def test_a_message_that_no_api_takes_is_refused_by_its_place(self, message, field):
        assert refused([Message("user", SECRET), message]).field == field

    @pytest.mark.parametrize(
        ("role", "shown"),
        [("a" * 12, True), ("a" * 13, False), ("a b", False), (["user"], False), ("", False)],
    )
    def test_a_wrong_role_is_shown_where_it_looks_like_one(self, role, shown):
        assert (f", not {role!r}" in str(refused([{"role": role, "content": "a"}]))) is shown

    def test_texts_in_a_list_are_prompts_not_messages_and_the_error_says_so(self):
        assert "map()" in str(refused(["a", "b"]))

    def test_the_row_of_a_list_is_named(self):
        with pytest.raises(InvalidRequest) as caught:
            prepared(["a", "a", "a", " "])
        error = caught.value
        assert (error.row, error.field) == (3, "prompt")
        assert "row 3 (counted from 0): prompt" in str(error)

    def test_control_characters_and_odd_line_ends_pass(self):
        text = "a\x00b\u2028c\x1cd\re"
        assert normalise(text).prompt == text

    def test_an_own_callable_needs_no_prompt(self):
        request = normalise(Request(call=lambda request, attempt: "x"))
        assert request.prompt == ""
        assert request.call is not None
        assert refused(Request(prompt=" ", call=print)).field == "prompt"

    def test_a_request_has_one_kind_of_work(self):
        error = refused(Request("text", embedding=Embedding(), call=print))
        assert str(error).startswith("embedding and call cannot be used together")


class TestVectors:
    def test_vectors_reject_text_parameters_but_ignore_the_clients(self):
        client = Generation(max_tokens=9)
        assert normalise("a", client, embedding=Embedding("query")).params == Generation()
        for prompt, more in (("a", {"seed": 1}), (Request("a", Generation(seed=1)), {})):
            assert refused(prompt, client, embedding=Embedding(), **more).field == "seed"

    def test_only_a_text_has_one(self):
        chat = [Message("user", "a")]
        assert "must be a string if an embedding is requested" in str(refused(chat, embedding=Embedding()))
        assert refused("a", embedding="query").field == "embedding"

    def test_its_task_and_dimensions_are_checked(self):
        assert normalise("a", embedding=Embedding("query", 65_536)).embedding == Embedding("query", 65_536)
        for asked in (Embedding(" "), Embedding("query", 0), Embedding("query", 65_537)):
            refused("a", embedding=asked)

    @pytest.mark.parametrize("embedding", [None, Embedding()])
    def test_a_prompt_is_refused_that_a_request_would_be_refused_for(self, embedding):
        for good in ("a", "é \n"):
            check_prompt(good, embedding)
        for bad in ("", " ", "\u3000", "\ud800", [], 7):
            with pytest.raises(InvalidRequest) as caught:
                check_prompt(bad, embedding)
            assert str(caught.value) == str(refused(bad, embedding=embedding))


class TestSurrogates:
    PLACES: Mapping[str, Any] = {
        "prompt": "ok \ud800",
        "system": {"system": "a\udfff"},
        "stop[0]": {"stop": ["\ud800"]},
        "schema": {"schema": {"a": ["\ud800"]}},
        "extra": {"extra": {"\ud800": 1}},
        "response_format": {"response_format": {"type": "\ud800"}},
        "id": {"id": "\ud800"},
        "purpose": {"purpose": "\ud800"},
        "isolation_key": {"isolation_key": "\ud800"},
    }

    @pytest.mark.parametrize("field", PLACES)
    def test_a_lone_surrogate_is_refused_in_every_text(self, field):
        place = self.PLACES[field]
        error = refused(place) if isinstance(place, str) else refused("a", **place)
        assert error.field == field
        assert "lone surrogate" in str(error)

    @pytest.mark.full
    @given(st.text(st.characters(), min_size=1))
    def test_any_text_that_passes_can_be_sent(self, text):
        try:
            prompt = normalise(text).prompt
        except InvalidRequest:
            assert not text.strip() or any("\ud800" <= c <= "\udfff" for c in text)
        else:
            assert isinstance(prompt, str)
            prompt.encode()


class TestParameters:
    @pytest.mark.parametrize(
        ("field", "bad"),
        [
            *(("temperature", v) for v in (-0.1, 2.1, math.nan, math.inf, True, "1", Decimal(1), 10**400)),
            *(("top_p", v) for v in (0, -1, 1.1, math.nan, False)),
            *(("max_tokens", v) for v in (0, -1, 1.5, 10.0, True, "10", 2**31, 10**5000)),
            *(("seed", v) for v in (1.0, True, 2**63, -(2**63) - 1)),
            *(("stop", v) for v in ([], list("abcde"), 7, b"x", {"a": 1})),
            *(("stop[0]", v) for v in ("", [""], [7], [None])),
            *(("system", v) for v in ("", " ", 7, [])),
            *((f, v) for f in ("response_format", "extra") for v in ([], "x", 7, str)),
            *(("schema", v) for v in ([], "x", 7, type)),
            *(("priority", v) for v in ("soon", 51, 7.5, True)),
            *(("timeout", v) for v in (0, -1, math.nan, math.inf, "five", True)),
            *(("max_wait", v) for v in (-1, 3601, math.nan, "five")),
            *(("id", v) for v in ("", 7)),
            *(("deduplicate", v) for v in (0, "no")),
            ("call", "x"),
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_a_value_out_of_range_or_of_the_wrong_type_is_refused_by_name(self, field, bad):
        assert refused("a", **{field.partition("[")[0]: bad}).field == field

    @pytest.mark.parametrize(
        ("field", "given", "taken"),
        [
            ("temperature", 0, 0.0),
            ("temperature", -0.0, 0.0),
            ("temperature", 2, 2.0),
            ("temperature", Fraction(1, 2), 0.5),
            ("top_p", 1, 1.0),
            ("max_tokens", 1, 1),
            ("seed", -(2**63), -(2**63)),
            ("stop", "\n", ("\n",)),
            ("stop", list("abcd"), ("a", "b", "c", "d")),
            ("extra", {}, {}),
            ("max_wait", 0, 0.0),
            ("max_wait", "1h", 3600.0),
        ],
    )
    def test_a_value_at_the_edge_passes_in_its_one_form(self, field, given, taken):
        request = normalise("a", **{field: given})
        value = getattr(request if field == "max_wait" else request.params, field)
        assert (value, type(value), str(value)) == (taken, type(taken), str(taken))

    def test_the_error_names_row_field_range_and_value(self):
        with pytest.raises(InvalidRequest) as caught:
            prepared([*"abcd", Request("e", Generation(temperature=3))])
        assert str(caught.value) == (
            "row 4 (counted from 0): temperature must be a number from 0 to 2, not 3"
        )

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (2**64 - 1, "18446744073709551615"),
            (1 - 2**64, "-18446744073709551615"),
            (2**64, "such a large number"),
            (-(2**64), "such a large number"),
            (True, "True"),
            (1.5, "1.5"),
            ([1], "of type list"),
        ],
    )
    def test_a_wrong_number_is_shown_up_to_64_bits(self, value, shown):
        assert str(refused("a", max_tokens=value)).endswith(f", not {shown}")

    def test_a_text_in_the_place_of_a_number_is_not_repeated(self):
        assert "of type str" in str(refused("a", temperature=SECRET))

    def test_an_unknown_parameter_is_refused_with_the_nearest_name(self):
        assert "did you mean temperature?" in str(refused("a", temprature=1))
        assert "did you mean max_tokens?" in str(refused("a", max_completion_tokens=1))
        assert "extra" in str(refused("a", zzz=1))

    def test_none_means_not_given(self):
        assert normalise("a", Generation(seed=5), seed=None, priority=None).params.seed == 5

    def test_the_nearest_wins_call_over_request_over_client(self):
        request = Request("a", Generation(temperature=0.1, seed=1))
        params = normalise(request, Generation(temperature=0.2, seed=2, max_tokens=9), seed=3).params
        assert (params.temperature, params.seed, params.max_tokens) == (0.1, 3, 9)

    @pytest.mark.parametrize("schema", [type, 7, {"a": ["\ud800"]}, {"type": "strin"}])
    def test_a_schema_that_is_refused_is_named_once(self, schema):
        assert "schema schema" not in str(refused("a", schema=schema))

    @pytest.mark.parametrize("kind", [len, lambda: 1, "text", 7])
    def test_what_is_no_schema_is_refused_in_one_sentence(self, kind):
        assert str(refused("a", schema=kind)) == (
            "schema must be a JSON schema (a dict) or a type, such as a class, list[int] or a Literal"
        )

    def test_the_checked_schema_of_a_client_is_taken_as_it_is(self):
        first = normalise("a", schema=SCHEMA).params.schema
        assert normalise("a", schema=first).params.schema is first

    def test_a_flaw_within_a_schema_is_told_with_its_place(self):
        assert str(refused("a", schema={"a": {"b": {1}}})).startswith("schema at ")

    def test_schema_and_response_format_exclude_each_other_and_both_are_named(self):
        text = str(refused("a", schema=SCHEMA, response_format={"type": "json_object"}))
        assert "schema" in text
        assert "response_format" in text
        refused(Request("a", Generation(schema=SCHEMA, response_format={})))

    def test_a_nearer_output_form_replaces_the_clients(self):
        client = Generation(response_format={"type": "json_object"})
        params = normalise("a", client, schema=SCHEMA).params
        assert (params.schema, params.response_format) == (SCHEMA, None)
        params = normalise("a", Generation(schema=SCHEMA), response_format={"type": "text"}).params
        assert (params.schema, params.response_format) == (None, {"type": "text"})


class TestJson:
    @pytest.mark.parametrize(
        "bad",
        [
            math.nan,
            math.inf,
            datetime(2026, 1, 1),
            Decimal(1),
            {1, 2},
            b"x",
            object(),
            {1: 2},
            {True: 1},
            10**5000,
            print,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_has_no_json_form_is_refused_with_its_place(self, bad):
        error = refused("a", extra={"x": [0, bad]})
        assert error.field == "extra"
        assert 'at ["x"][1]' in str(error)

    def test_a_deep_or_recursive_value_is_rejected_without_recursion_error(self):
        loop: dict[str, Any] = {}
        loop["self"] = loop
        for value in (nested(100_000), loop):
            assert "deeper than 200" in str(refused("a", extra=value))
        assert normalise("a", extra=nested(MAX_DEPTH - 1)).params.extra is not None

    def test_what_the_caller_changes_after_submit_does_not_change_the_request(self):
        schema, part = copy.deepcopy(SCHEMA), {"type": "text", "text": "a"}
        messages = [{"role": "user", "content": [part]}]
        request = normalise(messages, admit_defaults(Generation(extra=schema)), schema=schema)
        before = (fingerprint(request, "m", "s"), copy.deepcopy(asdict(request.params)))
        schema["properties"]["city"]["type"] = "number"  # type: ignore[index]
        part["text"] = "b"
        messages.append({"role": "user", "content": "c"})  # type: ignore[dict-item]
        assert (fingerprint(request, "m", "s"), asdict(request.params)) == before

    def test_integers_are_carried_up_to_14000_bits(self):
        largest = (1 << 14_000) - 1
        assert snapshot([largest, -largest]) == [largest, -largest]
        for beyond in (largest + 1, -largest - 1):
            with pytest.raises(NotJson, match="more than 4,000 digits"):
                snapshot(beyond)

    def test_any_mapping_and_tuple_will_do(self):
        assert snapshot(MappingProxyType({"a": (1, None)})) == {"a": [1, None]}

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    )

    @pytest.mark.full
    @given(json_values)
    def test_a_copy_accepts_exactly_what_strict_json_accepts(self, value):
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            with pytest.raises(NotJson):
                snapshot(value)
        else:
            assert snapshot(value) == json.loads(json.dumps(value))


class TestDefaults:
    def test_checked_defaults_are_shared_by_all_requests(self):
        schema = copy.deepcopy(SCHEMA)
        defaults = admit_defaults(Generation(schema=schema))
        schema.clear()
        one, two = normalise("a", defaults), normalise("b", defaults)
        assert one.params is two.params is defaults
        assert defaults.schema == SCHEMA

    def test_defaults_that_are_gone_leave_nothing_behind(self):
        gone = []
        for seed in range(50):
            defaults = admit_defaults(Generation(seed=seed))
            gone.append(weakref.ref(normalise("a", defaults).params))
        del defaults
        gc.collect()
        assert not any(each() for each in gone)


class TestFingerprint:
    def key(self, prompt: Any = "a", model: str = "m", scope: str = "s", **overrides: Any) -> bytes:
        return fingerprint(normalise(prompt, Generation(), **overrides), model, scope)

    def test_identical_requests_have_one_key_however_they_were_written(self):
        shared = Generation(temperature=0.5, extra={"a": 1, "b": 2})
        written = [
            normalise("q", shared),
            normalise("q", extra={"b": 2, "a": 1}, temperature=0.5),
            normalise(Request("q", Generation(extra={"a": 1, "b": 2})), temperature=Fraction(1, 2)),
            normalise("q", shared, priority="low", id="x", max_wait=1, timeout=5, purpose="p", context=3),
        ]
        assert len({fingerprint(request, "m", "s") for request in written}) == 1

    def test_whatever_reaches_the_wire_or_must_not_mix_makes_another_key(self):
        message = {"role": "user", "content": "a"}
        different = [
            self.key(),
            self.key("b"),
            self.key([message]),
            self.key([{"role": "assistant", "content": "a"}]),
            self.key([message, message]),
            self.key([{"role": "user", "content": [{"type": "text", "text": "a"}]}]),
            self.key('[["user","a"]]'),
            self.key(model="n"),
            self.key(scope="t"),
            self.key(isolation_key="k"),
            self.key(isolation_key="l"),
            self.key(system="a"),
            self.key(max_tokens=1),
            self.key(seed=1),
            self.key(temperature=1),
            self.key(top_p=1),
            self.key(stop="a"),
            self.key(stop=["a", "b"]),
            self.key(schema={}),
            self.key(response_format={}),
            self.key(extra={}),
            self.key(extra={"a": 1}),
            self.key(extra={"a": 1.0}),
            self.key(extra={"a": True}),
            self.key(extra={"a": "1"}),
            self.key(embedding=Embedding()),
            self.key(embedding=Embedding("query")),
            self.key(embedding=Embedding("query", 8)),
            self.key(embedding=Embedding(None, 8)),
        ]
        assert len(set(different)) == len(different)

    def test_a_class_and_its_schema_are_the_same_to_the_provider(self):
        @frozen
        class City:
            city: str

        schema, _ = schema_of(City)
        assert self.key(schema=City) == self.key(schema=schema)

    def test_own_callables_are_never_the_same(self):
        one, two = (normalise(Request("a", call=print)) for _ in range(2))
        assert fingerprint(one, "m", "s") != fingerprint(two, "m", "s")
        imitation = normalise(f"call:{id(one)}:text:a")
        assert fingerprint(one, "m", "s") != fingerprint(imitation, "m", "s")

    @pytest.mark.full
    @given(
        st.lists(
            st.tuples(st.text(), st.text(), st.text(), st.none() | st.text()),
            min_size=2,
            max_size=5,
            unique=True,
        )
    )
    def test_parts_that_differ_never_run_into_each_other(self, rows):
        made = {fingerprint(Request(p, isolation_key=k), m, s) for p, m, s, k in rows}
        assert len(made) == len(rows)
