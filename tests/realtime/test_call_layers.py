"""The layers around a call turn every error into an outcome (A14, A21, E1, E5, E6)."""

from __future__ import annotations

import pytest
from attrs import evolve

from smartbatch.core.batching.request_batch import Batch
from smartbatch.core.limits.failures import Classifiers
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.realtime.call import CallSpec, build_call
from smartbatch.types import Answer, Request, Usage


class Fake(Provider):
    name = "fake"
    scope = "fake"
    capabilities = Capabilities(max_shared=10)

    def __init__(self, one=lambda **_: Answer("hi"), many=None):
        self._one = one
        self._many = many

    def generate(self, request, *, model, attempt, timeout):
        return self._one(request=request, model=model, attempt=attempt, timeout=timeout)

    def generate_many(self, requests, *, model, attempt, timeout):
        return self._many(requests)


def raising(error):
    def work(*_, **__):
        raise error

    return work


def spec(count=1, *, deadline=60.0, call=None):
    requests = tuple(Request(f"prompt {i}", call=call) for i in range(count))
    return CallSpec(Batch("batch-1", "fake:m", 0.0), requests, "fake:m", 0, deadline)


def outcomes(provider, wanted, *, middleware=(), classifiers=()):
    call = build_call(
        provider,
        "m",
        now=lambda: 10.0,
        classifiers=Classifiers(tuple(classifiers)),
        middleware=middleware,
    )
    return list(call(wanted))


def kinds(found):
    return [found.kind if isinstance(found, ProviderError) else None for found in found]


def test_a_call_whose_time_is_over_is_not_made():
    assert kinds(outcomes(Fake(raising(AssertionError("called"))), spec(deadline=10.0))) == [
        ErrorKind.TIMEOUT
    ]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), ErrorKind.TIMEOUT),
        (ConnectionResetError(), ErrorKind.NETWORK_ERROR),
        (ValueError("no"), ErrorKind.UNKNOWN),
        (SystemExit(3), ErrorKind.UNKNOWN),
        (KeyboardInterrupt(), ErrorKind.UNKNOWN),
        (ProviderError("stop", kind=ErrorKind.AUTH_ERROR), ErrorKind.AUTH_ERROR),
    ],
)
def test_whatever_a_provider_raises_becomes_a_verdict(error, kind):
    assert kinds(outcomes(Fake(raising(error)), spec())) == [kind]


def test_a_foreign_error_keeps_no_frames_alive():
    (found,) = outcomes(Fake(raising(ValueError("no"))), spec())
    assert isinstance(found, ProviderError)
    assert (found.__traceback__, found.__cause__, found.__context__) == (None, None, None)


@pytest.mark.parametrize("returned", [["a", None], ["a"], ["a", None, "c"]])
def test_a_shared_call_has_one_outcome_per_request(returned):
    answers = [None if text is None else Answer(text) for text in returned]
    assert outcomes(Fake(many=lambda _: answers), spec(2)) == [Answer("a"), None]


@pytest.mark.parametrize("nonsense", [None, 5, {"a": 1}, "ab", (a for a in ())])
def test_a_shared_call_that_returns_no_list_is_an_invalid_response(nonsense):
    found = outcomes(Fake(many=lambda _: nonsense), spec(2))
    assert len(found) == 2
    assert all(isinstance(outcome, ProviderError) for outcome in found)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(text=5),
        Answer("hi", usage={"input_tokens": 3}),
        Answer("hi", usage=Usage(-1, 0)),
        Answer("hi", usage=Usage(None, 0)),
        Answer("hi", cost=float("nan")),
        Answer("hi", cost=-0.01),
        Answer("hi", usage=Usage(10**400, 1)),
        Answer("hi", usage=Usage(1, 2**60)),
        Answer("hi", cost=1e305),
        Answer("hi", cost="free"),
        "a text",
        {"a": 1},
    ],
)
def test_an_answer_that_cannot_be_booked_is_an_invalid_response(answer):
    assert kinds(outcomes(Fake(lambda **_: answer), spec())) == [ErrorKind.INVALID_RESPONSE]


def test_middleware_is_called_from_the_outside_in():
    order = []

    def layer(name):
        def around(wanted, proceed):
            order.append(f"{name} before")
            found = proceed(wanted)
            order.append(f"{name} after")
            return found

        return around

    outcomes(Fake(), spec(), middleware=[layer("outer"), layer("inner")])
    assert order == ["outer before", "inner before", "inner after", "outer after"]


def test_middleware_may_change_the_request_and_the_answer():
    seen = []

    def note(**what):
        seen.append(what["request"].prompt)
        return Answer("hi")

    def around(wanted, proceed):
        proceed(evolve(wanted, requests=(Request("changed"),)))
        return [Answer("replaced")]

    assert outcomes(Fake(note), spec(), middleware=[around]) == [Answer("replaced")]
    assert seen == ["changed"]


def test_middleware_never_meets_a_foreign_exception():
    met = []

    def around(wanted, proceed):
        met.append(proceed(wanted))
        return met[0]

    found = outcomes(Fake(raising(TimeoutError())), spec(), middleware=[around])
    assert kinds(found) == kinds(met[0]) == [ErrorKind.TIMEOUT]


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1)])
def test_middleware_that_raises_fails_the_call(error):
    found = outcomes(Fake(many=lambda _: []), spec(2), middleware=[raising(error)])
    assert kinds(found) == [ErrorKind.UNKNOWN] * 2


@pytest.mark.parametrize("nonsense", [None, [], ["text", "text"], [Answer(text=5)] * 2])
def test_middleware_that_returns_nonsense_answers_nobody(nonsense):
    answers = [Answer("a"), Answer("b")]
    found = outcomes(Fake(many=lambda _: answers), spec(2), middleware=[lambda *_: nonsense])
    assert len(found) == 2
    assert all(outcome is None or isinstance(outcome, ProviderError) for outcome in found)


def test_a_provider_whose_classifier_fails_leaves_an_unknown_error():
    class Confused(Fake):
        def classify(self, error):
            raise RuntimeError("what is this")

    assert kinds(outcomes(Confused(raising(ValueError())), spec())) == [ErrorKind.UNKNOWN]
