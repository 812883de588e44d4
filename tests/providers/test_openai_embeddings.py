"""Embeddings of OpenAI and compatible servers."""

from __future__ import annotations

import pytest
from raw_server import says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import Embedding, Request


def ask(provider, size):
    requests = [Request(prompt=f"text {at}", embedding=Embedding()) for at in range(size)]
    return provider.embed(requests, model="e", attempt=0, timeout=20.0)


def embed(provider, indices):
    return [list(answer.embedding) for answer in ask(provider, len(indices))]


def vectors(indices, **usage):
    items = [{"object": "embedding", "embedding": [100.0 * place]} for place in range(len(indices))]
    for item, index in zip(items, indices, strict=True):
        if index is not None:
            item["index"] = index
    return says({"object": "list", "data": items, "model": "e", "usage": usage})


@pytest.mark.parametrize(
    ("indices", "order"),
    [
        ((0, 1, 2), (0, 1, 2)),
        ((2, 0, 1), (1, 2, 0)),
        ((None, 1, 2), (0, 1, 2)),
        ((2, None, 1), (1, 2, 0)),
        ((None,), (0,)),
        ((None, None, None), (0, 1, 2)),
    ],
)
def test_the_one_vector_without_an_index_is_that_of_the_text_that_is_left(serve, connect, indices, order):
    found = embed(connect(serve(vectors(indices))), indices)
    assert found == [[100.0 * place] for place in order]


@pytest.mark.parametrize(
    "indices", [(None, 1, None), (0, 0), (0, 2), (-1, 0), (None, 5, 1), ("0", 1), (True, 0)]
)
def test_indices_that_leave_a_doubt_are_refused(serve, connect, indices):
    with pytest.raises(ProviderError) as caught:
        embed(connect(serve(vectors(indices))), indices)
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "total_tokens": 9}, 7),
        ({"total_tokens": 7}, 7),
        ({"prompt_tokens": -1, "total_tokens": 7}, None),
        ({}, None),
    ],
)
def test_vector_usage_falls_back_to_the_total(serve, connect, usage, tokens):
    answers = ask(connect(serve(vectors((0, 1), **usage))), 2)
    told = [answer.usage for answer in answers]
    assert told == [None, None] if tokens is None else sum(each.input_tokens for each in told) == tokens
