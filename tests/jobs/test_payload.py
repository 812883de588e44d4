"""Requests and results are read from the store exactly as they were written."""

from __future__ import annotations

import json
import math
import pickle
from array import array
from contextlib import contextmanager

import pytest
from attrs import define, evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from smartbatch import errors
from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.validation import normalise
from smartbatch.errors import (
    ErrorKind,
    InvalidRequest,
    ProviderError,
    RequestCancelled,
    SmartbatchError,
    StoreError,
    ValidationFailed,
)
from smartbatch.jobs import payload
from smartbatch.jobs.payload import (
    RunningDigest,
    Shared,
    context_of,
    decode_error,
    decode_params,
    decode_request,
    decode_result,
    encode_error,
    encode_params,
    encode_request,
    encode_result,
)
from smartbatch.jobs.records import NewItem, ResultRow
from smartbatch.jobs.watching import result_of_row
from smartbatch.types import Embedding, Generation, Message, Priority, Request, Result, Route, Usage

PLAIN = Shared()
texts = st.text(st.characters(exclude_categories=("Cs",)))
finite = st.floats(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, jsons, max_size=4)
generations = st.builds(
    Generation,
    system=st.none() | texts,
    max_tokens=st.none() | st.integers(1, 10**6),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0.1, 1),
    stop=st.none() | st.lists(texts, min_size=1, max_size=4).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    response_format=st.none() | objects,
    schema=st.none() | objects,
    extra=st.none() | objects,
)
embeddings = st.builds(Embedding, st.none() | texts, st.none() | st.integers(1, 9999))
messages = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    texts | st.lists(objects, min_size=1, max_size=3).map(tuple),
)
requests = st.builds(
    Request,
    texts | st.lists(messages, min_size=1, max_size=3).map(tuple),
    generations,
    priority=st.sampled_from(Priority),
    id=st.none() | texts,
    context=jsons,
    purpose=st.none() | texts,
    isolation_key=st.none() | texts,
    embedding=st.none() | embeddings,
    deduplicate=st.booleans(),
)
shareds = st.builds(Shared, generations, st.none() | embeddings)


def fields(thing):
    return {name: getattr(thing, name) for name in type(thing).__slots__ if not name.startswith("__")}


def there_and_back(request, shared=PLAIN):
    return decode_request(encode_request(request, shared), shared, id=request.id)


@contextmanager
def without_orjson():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "_fast", None)
        yield


def _bytes_or_refusal(request):
    try:
        return encode_request(request, PLAIN)
    except InvalidRequest as refusal:
        return refusal.message


def same(result):
    return decode_result(encode_result(result), request_id=result.request_id)


class TestRequests:
    @pytest.mark.full
    @given(requests, shareds)
    def test_every_request_comes_back_as_it_was(self, request, shared):
        back = there_and_back(request, shared)
        assert fields(back) == fields(request)
        assert json.dumps(fields(back)["params"].extra) == json.dumps(request.params.extra)  # also its order

    @pytest.mark.full
    @given(requests, shareds)
    def test_the_same_request_makes_the_same_bytes_and_they_are_utf_8_json(self, request, shared):
        data = encode_request(request, shared)
        assert data == encode_request(there_and_back(request, shared), shared)
        assert json.loads(data.decode())["v"] == 1

    @pytest.mark.full
    @given(requests, st.lists(st.text() | st.integers(), max_size=3) | st.none())
    def test_they_have_the_same_bytes_without_orjson(self, request, context):
        request = evolve(request, context=context)
        with without_orjson():
            data = _bytes_or_refusal(request)
        assert _bytes_or_refusal(request) == data

    @pytest.mark.full
    @given(generations, st.none() | embeddings)
    def test_what_requests_share_comes_back_as_it_was(self, params, embedding):
        assert decode_params(encode_params(params, embedding)) == Shared(params, embedding)

    def test_a_plain_prompt_costs_hardly_more_than_its_bytes(self):
        shared = Shared(Generation(system="s" * 1000, schema={"type": "object"}))
        assert encode_request(Request("Wie geht's?", shared.params), shared) == (
            b'{"v":1,"prompt":"Wie geht\'s?"}'
        )

    def test_only_what_differs_from_the_others_is_stored(self):
        shared = Shared(Generation(system="s", max_tokens=10, temperature=0.0, extra={"a": 1}))
        own = Generation(system="s", max_tokens=20, temperature=None, extra={"a": 1})
        stored = json.loads(encode_request(Request("p", own), shared))
        assert stored["params"] == {"max_tokens": 20, "temperature": None}

    @pytest.mark.parametrize(
        ("one", "other"),
        [({"n": 1}, {"n": True}), ({"n": 1}, {"n": 1.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
    )
    def test_parameters_equal_in_python_but_not_as_json_are_distinguished(self, one, other):
        back = there_and_back(Request("p", Generation(extra=one)), Shared(Generation(extra=other)))
        assert json.dumps(back.params.extra) == json.dumps(one)

    def test_an_own_callable_is_refused_with_its_row(self):
        with pytest.raises(InvalidRequest, match=r"row 7 .*callable.*submit") as caught:
            encode_request(Request(call=lambda request, attempt: "x"), PLAIN, row=7)
        assert (caught.value.field, caught.value.row) == ("call", 7)

    @pytest.mark.parametrize(
        "context", [object(), {1: "a"}, {"x": {1, 2}}, math.nan, [b"bytes"], "\ud800", {"deep": [object()]}]
    )
    def test_a_context_that_is_not_json_is_refused_with_its_row(self, context):
        with pytest.raises(InvalidRequest, match=r"row 3 .*context of a job must be JSON") as caught:
            encode_request(Request("p", context=context), PLAIN, row=3)
        assert (caught.value.field, caught.value.row) == ("context", 3)

    @pytest.mark.parametrize(
        ("request_", "field"),
        [
            (Request("a\ud800"), "prompt"),
            (Request((Message("user", "a\udfff"),)), "prompt"),
            (Request((Message("user", ({"type": "text", "text": "\ud9ff"},)),)), "prompt"),
            (Request("p", purpose="\ud800"), "purpose"),
            (Request("p", Generation(system="\ud800")), "system"),
            (Request("p", Generation(extra={"\ud800": 1})), "extra"),
            (Request("p", embedding=Embedding("\ud800")), "embedding"),
        ],
    )
    def test_a_lone_surrogate_is_refused_by_field_and_row_and_not_repeated(self, request_, field):
        with pytest.raises(InvalidRequest, match=r"row 12 .*surrogate") as caught:
            encode_request(request_, PLAIN, row=12)
        assert caught.value.field == field
        caught.value.message.encode()

    def test_shared_parameters_that_are_not_json_are_refused_by_name(self):
        with pytest.raises(InvalidRequest, match="extra of a job must be JSON") as caught:
            encode_params(Generation(extra={"x": object()}))
        assert caught.value.field == "extra"

    def test_a_schema_made_from_a_class_is_stored_and_answers_are_plain_data(self):
        @define
        class City:
            name: str

        request = normalise("p", schema=City)
        back = there_and_back(request)
        assert back.params.schema == request.params.schema
        schema, build = schema_of(back.params.schema)
        assert build({"name": "Ulm"}) == {"name": "Ulm"}
        assert list(schema) == list(request.params.schema)


def item(user_id, payload):
    return NewItem(user_id, payload, 1, 1)


def job_digest(items, head):
    running = RunningDigest(head)
    for one in items:
        running.include(one.user_id, one.payload)
    return running.value()


class TestTheDigestOfAJob:
    def test_it_tells_every_two_jobs_apart(self):
        jobs = [
            [],
            [item(None, b"")],
            [item("", b"")],
            [item(None, b""), item(None, b"")],
            [item("a", b"bc")],
            [item("ab", b"c")],
            [item(None, b"abc")],
            [item(None, b"ab"), item(None, b"c")],
            [item(None, b"c"), item(None, b"ab")],
            [item("a", b"b"), item("c", b"d")],
            [item("a", b"d"), item("c", b"b")],
            [item("-", b"1:x")],
        ]
        digests = {job_digest(job, head=head) for job in jobs for head in (b"", b"m", b"0:")}
        assert len(digests) == len(jobs) * 3
        assert {len(digest) for digest in digests} == {32}

    def test_it_is_the_same_in_every_process(self):
        """Fixed, so that a key still finds its job after an update."""
        digest = job_digest([item("a", b'{"v":1}'), item(None, b"x")], head=b"sim:model")
        assert digest.hex() == "952139bab5491bc64b0c671dd1186d1eeb0f44b845428fcefd02d6e69684c2dc"


usages = st.builds(Usage, *[st.integers(0, 10**9)] * 4, st.booleans())
any_text = st.text() | st.just("half \ud83d of a picture")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
results = st.builds(
    Result,
    any_text,
    text=st.none() | any_text,
    parsed=anything,
    usage=usages,
    cost=st.none() | finite,
    latency=finite,
    queued=finite,
    time_to_first_chunk=st.none() | finite,
    attempts=st.integers(0, 9),
    route=st.none() | st.sampled_from(Route),
    finish_reason=st.none() | any_text,
    model=st.none() | texts,
    provider_request_id=st.none() | any_text,
    context=jsons,
    dropped=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    deduplicated=st.booleans(),
)


class TestResults:
    @pytest.mark.full
    @given(results)
    def test_every_answer_comes_back_unchanged_even_with_lone_surrogates(self, result):
        assert fields(same(result)) == fields(result)

    @pytest.mark.full
    @given(results, st.none() | st.floats())
    def test_a_plain_answer_says_the_same_without_orjson(self, result, cost):
        result = evolve(result, parsed=None, context=[1, "a"], cost=cost)
        with without_orjson():
            data = encode_result(result)
        assert json.dumps(json.loads(encode_result(result))) == json.dumps(json.loads(data))

    @given(st.binary(max_size=64).map(lambda data: data[: len(data) // 4 * 4]))
    def test_a_vector_comes_back_bit_by_bit(self, data):
        vector = array("f", data)
        back = same(Result("r", embedding=vector)).embedding
        assert back.typecode == "f"
        assert back.tobytes() == vector.tobytes()

    def test_the_id_is_kept_next_to_it_so_that_the_same_bytes_serve_many(self):
        data = encode_error(RequestCancelled("the job was cancelled"))
        one, other = (decode_result(data, request_id=name) for name in ("a", "b"))
        assert (one.request_id, one.error.request_id) == ("a", "a")
        assert (other.request_id, other.error.request_id) == ("b", "b")

    @pytest.mark.parametrize(("stored", "found"), [({"n": 1}, {"n": 1}), (None, "the request's")])
    def test_where_a_result_holds_no_context_it_has_that_of_its_request(self, stored, found):
        request = encode_request(normalise("p", context="the request's"), Shared())
        body = encode_result(Result("r", context=stored, cost=0.0))
        row = ResultRow(3, None, "succeeded", body, request, 0.0, 1, follower=False)
        assert result_of_row(row, "job-1", "files").context == found
        assert result_of_row(evolve(row, follower=True), "job-1", "files").context == "the request's"

    @pytest.mark.parametrize("number", [2**53 + 1, 2**64, -(2**70)])
    def test_whole_numbers_of_any_size_come_back_as_they_were(self, number):
        for value in (number, [number], {"n": [number]}):
            back = same(Result("r", text="t", context=value, parsed={"n": value}))
            assert (back.context, back.parsed) == (value, {"n": value})
            assert context_of(encode_request(normalise("p", context=value), Shared())) == value

    def test_an_object_without_json_does_not_cost_the_answer_that_was_paid(self):
        back = same(Result("r", text="{}", parsed=object(), context={"n": 1}, cost=0.1))
        assert (back.text, back.parsed, back.context, back.cost) == ("{}", None, {"n": 1}, 0.1)
        back = same(Result("r", text="{}", parsed=[object()], context=object()))
        assert (back.text, back.parsed, back.context) == ("{}", None, None)


ERRORS = [
    SmartbatchError("plain"),
    ProviderError("busy", kind=ErrorKind.RATE_LIMIT, status=429, code="slow_down", retry_after=2.5),
    ProviderError(
        "cut",
        kind=ErrorKind.TIMEOUT,
        maybe_billed=True,
        usage=Usage(
            5, 6, cache_write_tokens=4, cache_write_1h_tokens=1, audio_tokens=3, output_image_tokens=2
        ),
    ),
    ProviderError("no", kind=ErrorKind.CLIENT_ERROR, status=400, provider_request_id="req_1", batch_id="b"),
    RequestCancelled("gone"),
    ValidationFailed("bad form", finish_reason="length", tries=3, usage=Usage(1, 2, estimated=True)),
    InvalidRequest("blank", field="prompt", row=0),
    errors.RequestTimeout("late"),
    errors.BudgetExceeded("dear"),
    errors.MissingAnswer(cost=0.5),
]


class TestErrors:
    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_a_failed_result_has_its_exception_again(self, error):
        back = same(Result("r", error=error)).error
        assert type(back) is type(error)
        assert str(back) == str(error)
        of_result = {"request_id": "r", "attempts": 0, "route": None}
        told = {**error.__dict__, "kind": error.kind, **of_result}  # some have their kind by class
        assert {**back.__dict__, "kind": back.kind} == told
        assert pickle.loads(pickle.dumps(back)).__dict__ == back.__dict__

    def test_keys_and_long_texts_do_not_reach_the_disk(self):
        key = "sk-" + "a1B2" * 10
        data = encode_error(ProviderError(f"bad key {key} " + "x" * 9000, code=f"Bearer {key}"))
        assert key.encode() not in data
        assert len(data) < 1500

    def test_what_an_error_drags_along_is_not_stored(self):
        error = ProviderError("x", response=object(), prompt="secret words", status="teapot")
        data = encode_error(error)
        assert b"secret" not in data
        assert b"teapot" not in data

    def test_an_error_of_a_foreign_class_comes_back_as_our_closest_one(self):
        class Odd(ProviderError):
            pass

        class Unknown(SmartbatchError):
            pass

        assert type(decode_error(encode_error(Odd("x", kind=ErrorKind.NO_MONEY)))) is ProviderError
        assert type(decode_error(encode_error(Unknown("x")))) is SmartbatchError

    def test_classes_of_a_later_version_come_back_as_our_closest_ones(self):
        data = encode_error(ProviderError("x", kind=ErrorKind.TIMEOUT)).replace(b"ProviderError", b"NewError")
        assert type(decode_error(data)) is ProviderError
        error = decode_error(data.replace(b"timeout", b"novelty"))
        assert error.kind is ErrorKind.UNKNOWN
        assert type(decode_error(encode_error(SmartbatchError("x")).replace(b"SmartbatchE", b"re"))) is (
            SmartbatchError
        )


class TestWhatCannotBeRead:
    def test_a_row_of_a_newer_version_says_what_to_do(self):
        data = encode_request(Request("p"), PLAIN).replace(b'"v":1', b'"v":2')
        with pytest.raises(StoreError, match=r"format 2.*format 1.*update"):
            decode_request(data, PLAIN, id=None)

    @pytest.mark.parametrize(
        ("form", "expected"),
        [
            ({"v": 1, "prompt": "p"}, "p"),
            ({"v": 1, "chat": [["user", "hello"]]}, (Message("user", "hello"),)),
        ],
    )
    def test_rows_written_by_the_first_version_stay_readable(self, form, expected):
        assert decode_request(json.dumps(form).encode(), PLAIN, id="x").prompt == expected


@frozen
class Holder:
    value: int


def test_a_context_of_an_own_class_says_how_to_pass_it():
    with pytest.raises(InvalidRequest, match="Holder, which JSON cannot express; pass a string or a number"):
        encode_request(Request("p", context={"h": Holder(1)}), PLAIN)
