"""Whatever the service sends, the readers return an answer or a provider error; nothing else escapes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from gemini_asking import RPC, gemini_error, retry_in, says_gemini, violation
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.gemini.answers import Gathered, read_answer, read_embeddings
from smartbatch.providers.gemini.errors import ERRORS
from smartbatch.providers.http.replies import Reply
from smartbatch.types import Answer, Embedding, LimitReport, Request

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = [Request(prompt=text, embedding=Embedding()) for text in ("a", "b")]
SEEDS: list[Any] = [
    says_gemini("Li", "ma"),
    {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}},
    {"embeddings": [{"values": [0.5, 1]}, {"values": [1, 2]}], "usageMetadata": {"promptTokenCount": 3}},
    gemini_error(429, "RESOURCE_EXHAUSTED", "no", violation("xPerMinutex", "10"), retry_in("1.5s")),
    gemini_error(429, "RESOURCE_EXHAUSTED", "no", violation("xPerDayx", "10"), retry_in({"seconds": 1})),
    gemini_error(400, "INVALID_ARGUMENT", "no", {"@type": f"{RPC}ErrorInfo", "reason": "API_KEY_INVALID"}),
]


def replaced(data: Any, value: Any, rng: random.Random) -> Any:
    """A copy of ``data`` with one place in it replaced by ``value``, or left out."""
    data = copy.deepcopy(data)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(data)
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.3:
        del node[key]
    else:
        node[key] = value
    return data


def check_all(data: Any, status: int) -> None:
    error = ERRORS.read(Reply(status, {}, json.dumps(data).encode()), REQUESTS)
    assert isinstance(error, ProviderError)
    assert isinstance(error.kind, ErrorKind)
    assert error.retry_after is None or 0 <= error.retry_after <= 600
    assert error.limits is None or isinstance(error.limits, LimitReport)
    if not isinstance(data, dict):
        return
    for read in (
        read_answer,
        lambda found: Gathered().add(found),
        lambda found: read_embeddings(found, REQUESTS),
    ):
        try:
            found = read(data)
        except ProviderError as refused:
            assert refused.kind is ErrorKind.INVALID_RESPONSE
        else:
            assert isinstance(found, (Answer, str, list))
            if isinstance(found, Answer):
                json.dumps([found.text, found.finish_reason]).encode()


@given(seed=st.sampled_from(SEEDS), value=ANYTHING, rng=st.randoms(use_true_random=False))
def test_bodies_with_one_wrong_place(seed, value, rng):
    """A field of another type, or a missing one, is told as such or passed over."""
    check_all(replaced(seed, value, rng), rng.choice([200, 400, 429, 500, 503]))


@given(data=ANYTHING, status=st.integers(200, 599))
def test_bodies_of_any_shape(data, status):
    """Anything JSON can say."""
    check_all(data, status)


@pytest.mark.parametrize("place", ["candidates", "promptFeedback", "usageMetadata", "embeddings", "error"])
@given(value=ANYTHING)
def test_known_fields_with_any_value(place, value):
    """The top of an answer."""
    check_all({place: value}, 429)
