"""Any texts, any order of answers: each vector with its text, each number exact and finite."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.answer_parts import vector
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import read_embeddings
from smartbatch.types import Embedding, Request

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
REPLY = Reply(200, {}, b"")


def wire(numbers: array[float], as_base64: bool) -> str | list[float]:
    return base64.b64encode(numbers.tobytes()).decode() if as_base64 else list(numbers)


@pytest.mark.full
@given(st.data())
def test_each_vector_finds_its_text_in_any_order(data: st.DataObject) -> None:
    vectors = data.draw(st.lists(st.lists(floats, min_size=3, max_size=3), min_size=1, max_size=20))
    wanted = [array("f", each) for each in vectors]
    items = [
        {"index": index, "embedding": wire(each, data.draw(st.booleans()))}
        for index, each in enumerate(wanted)
    ]
    shuffled = data.draw(st.permutations(items))
    requests = [Request(f"text {index}", embedding=Embedding(dimensions=3)) for index in range(len(wanted))]
    answers = read_embeddings({"data": shuffled}, REPLY, requests)
    assert [answer.embedding for answer in answers] == wanted


@pytest.mark.full
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "index": st.one_of(st.integers(-2, 4), st.none(), st.booleans(), st.text(max_size=3)),
                "embedding": st.one_of(
                    st.text(max_size=12),
                    st.lists(st.one_of(st.floats(), st.integers(), st.text(max_size=2)), max_size=4),
                    st.none(),
                ),
            },
        ),
        max_size=4,
    )
)
def test_any_broken_answer_is_an_error_or_right(items: list[dict[str, Any]]) -> None:
    requests = [Request(f"text {index}") for index in range(3)]
    try:
        answers = read_embeddings({"data": items}, REPLY, requests)
    except ProviderError as error:
        assert error.kind is ErrorKind.INVALID_RESPONSE
        return
    by_index = {item["index"]: item["embedding"] for item in items}
    for index, answer in enumerate(answers):
        assert answer.embedding == vector(by_index[index], None)
        assert all(math.isfinite(number) for number in answer.embedding)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(bad: float) -> None:
    for as_base64 in (True, False):
        with pytest.raises(ProviderError, match="not finite"):
            vector(wire(array("f", [1.0, bad]), as_base64), 2)
