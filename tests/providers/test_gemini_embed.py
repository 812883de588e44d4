"""Embeddings of the Gemini API."""

from __future__ import annotations

import json
from array import array

import pytest
from gemini_asking import embed
from raw_server import says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import Usage
from tests.levels import sampled


def vectors(*values: list[float], **changes: object) -> dict:
    return {"embeddings": [{"values": each} for each in values], **changes}


def test_every_text_is_a_content_of_its_own(serve, connect_gemini):
    server = serve(says(vectors([0.5], [0.25])))
    embed(connect_gemini(server), ["a", "b"], task_type="RETRIEVAL_DOCUMENT", dimensions=1)
    request = server.requests[0]
    assert request.target == "/v1/models/gemini-embedding-001:batchEmbedContents"
    common = {
        "model": "models/gemini-embedding-001",
        "taskType": "RETRIEVAL_DOCUMENT",
        "outputDimensionality": 1,
    }
    assert request.json() == {
        "requests": [
            {"content": {"role": "user", "parts": [{"text": text}]}, **common} for text in ("a", "b")
        ]
    }


def test_what_is_not_asked_for_is_not_sent(serve, connect_gemini):
    server = serve(says(vectors([0.5])))
    embed(connect_gemini(server), ["a"])
    assert set(server.requests[0].json()["requests"][0]) == {"model", "content"}


def test_vectors_are_arrays_of_single_precision(serve, connect_gemini):
    found = embed(connect_gemini(serve(says(vectors([0.1, -2.5e-8], [1, 0])))), ["a", "b"])
    assert [answer.embedding for answer in found] == [array("f", [0.1, -2.5e-8]), array("f", [1, 0])]
    assert found[0].text is None


def test_tokens_are_split_over_the_texts_and_add_up(serve, connect_gemini):
    body = vectors([1.0], [1.0], [1.0], usageMetadata={"promptTokenCount": 10})
    found = embed(connect_gemini(serve(says(body))), ["a" * 70, "b" * 20, "c" * 10])
    assert [answer.usage for answer in found] == [Usage(7), Usage(2), Usage(1)]
    body["usageMetadata"] = {"promptTokenCount": 7}
    found = embed(connect_gemini(serve(says(body))), ["a", "b", "c"])
    assert sum(answer.usage.input_tokens for answer in found) == 7
    del body["usageMetadata"]
    assert embed(connect_gemini(serve(says(body))), ["a", "b", "c"])[0].usage is None


@pytest.mark.parametrize(
    "body",
    sampled(
        [
            vectors([0.5]),
            vectors([0.5], [0.5], [0.5]),
            vectors([0.5, 0.5], [0.5]),
            vectors([0.5], []),
            vectors([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
            {"embeddings": [{"values": [0.5, 0.5]}, {}]},
            {"embeddings": [{"values": [0.5, 0.5]}, 7]},
            {"embeddings": [{"values": [0.5, "x"]}, {"values": [0.5, 0.5]}]},
            {"embeddings": [{"values": [0.5, True]}, {"values": [0.5, 0.5]}]},
            {"embedding": {"values": [0.5, 0.5]}},
            {},
            '{"embeddings": [{"values": [1, NaN]}, {"values": [1, 1]}]}',
            '{"embeddings": [{"values": [1e999, 1]}, {"values": [1, 1]}]}',
            '{"embeddings": [{"values": [1e999, -1e999]}, {"values": [1, 1]}]}',
            '{"embeddings": [{"values": [1e300, 1]}, {"values": [1, 1]}]}',
        ],
        keep=6,
    ),
)
def test_vectors_that_are_none_are_refused(serve, connect_gemini, body):
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(ProviderError) as caught:
        embed(connect_gemini(serve(says(text))), ["a", "b"], dimensions=2)
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE
    assert caught.value.maybe_billed
