"""Vectors of OpenAI's API and its like: whatever a server says of their order, none is of another text."""

from __future__ import annotations

import pytest
from raw_server import says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import Embedding, Request


def embed(provider, indices):
    """The vectors of a call whose answer has these indices; ``None`` is one without."""
    requests = [Request(prompt=f"text {at}", embedding=Embedding()) for at in range(len(indices))]
    return [list(answer.embedding) for answer in provider.embed(requests, model="e", attempt=0, timeout=20.0)]


def vectors(indices):
    """An answer with these indices, each vector a hundred times its place in the answer."""
    items = [{"object": "embedding", "embedding": [100.0 * place]} for place in range(len(indices))]
    for item, index in zip(items, indices, strict=True):
        if index is not None:
            item["index"] = index
    return says({"object": "list", "data": items, "model": "e", "usage": {"prompt_tokens": 3}})


@pytest.mark.parametrize(
    ("indices", "order"),
    [
        ((0, 1, 2), (0, 1, 2)),
        ((2, 0, 1), (1, 2, 0)),
        ((None, 1, 2), (0, 1, 2)),
        ((2, None, 1), (1, 2, 0)),
        ((None,), (0,)),
    ],
)
def test_the_one_vector_without_an_index_is_that_of_the_text_that_is_left(serve, connect, indices, order):
    """Gemini's layer leaves out an index that is zero, as its other APIs leave out zeros."""
    found = embed(connect(serve(vectors(indices))), indices)
    assert found == [[100.0 * place] for place in order]


@pytest.mark.parametrize(
    "indices", [(None, None), (None, 1, None), (0, 0), (0, 2), (-1, 0), (None, 5, 1), ("0", 1), (True, 0)]
)
def test_indices_that_leave_a_doubt_are_refused(serve, connect, indices):
    """A vector of another text is worse than none."""
    with pytest.raises(ProviderError) as caught:
        embed(connect(serve(vectors(indices))), indices)
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE
