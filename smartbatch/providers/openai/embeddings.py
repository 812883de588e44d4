"""Bodies and answers of OpenAI's ``/embeddings``."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.providers.foreign_text import PLAIN_ID, count, short
from smartbatch.providers.http.transport import Reply
from smartbatch.providers.openai.answers import limits_of, request_id_of
from smartbatch.providers.vectors import invalid, shares, vector
from smartbatch.types import Answer, Embedding, Request, Usage

__all__ = ["MAX_TEXTS", "MAX_TEXT_TOKENS", "dropped_of", "embeddings_body", "read_embeddings"]

MAX_TEXTS = 2048
"""Inputs of one call (OpenAI API reference, embeddings)."""
MAX_TEXT_TOKENS = 200_000
"""The API takes 300,000 tokens a call; our count is an estimate, so a third is kept free."""


def embeddings_body(requests: Sequence[Request], model: str) -> dict[str, Any]:
    """Return the body for the vectors of all ``requests``; base64 parses eight times cheaper than numbers."""
    body: dict[str, Any] = {
        "model": model,
        "input": [request.prompt for request in requests],
        "encoding_format": "base64",
    }
    wanted = requests[0].embedding
    if wanted is not None and wanted.dimensions is not None:
        body["dimensions"] = wanted.dimensions
    return body


def dropped_of(embedding: Embedding | None) -> tuple[tuple[str, str], ...]:
    """Return what of an embedding's constraints is not sent, each with the reason."""
    if embedding is None or embedding.task_type is None:
        return ()
    return (("task_type", "OpenAI's embeddings know no task types"),)


def read_embeddings(data: Mapping[str, Any], reply: Reply, requests: Sequence[Request]) -> list[Answer]:
    """Return an answer for each request, placed by the ``index`` of each vector and never by order.

    Raises:
        ProviderError: INVALID_RESPONSE for missing, doubled or foreign indices, and for vectors of another
            length than asked for or with numbers that are not finite.
    """
    wanted = requests[0].embedding
    vectors = _by_index(data.get("data"), len(requests), wanted.dimensions if wanted else None)
    length = len(vectors[0])
    if any(len(each) != length for each in vectors):
        raise invalid("the vectors of one call have different lengths")
    common = Answer(
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=request_id_of(reply),
        limits=limits_of(reply),
        dropped=dropped_of(wanted),
    )
    used = _usage(data.get("usage"), requests)
    return [evolve(common, embedding=each, usage=usage) for each, usage in zip(vectors, used, strict=True)]


def _by_index(items: Any, size: int, dimensions: int | None) -> list[array[float]]:
    if not isinstance(items, list) or len(items) != size:
        found = len(items) if isinstance(items, list) else "no"
        raise invalid(f"the answer has {found} vectors for {size} texts")
    placed: dict[int, array[float]] = {}
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        if type(index) is not int or not 0 <= index < size or index in placed:
            raise invalid("the vectors' indices are not those of the texts")
        placed[index] = vector(item.get("embedding"), dimensions)
    return [placed[index] for index in range(size)]


def _usage(usage: Any, requests: Sequence[Request]) -> list[Usage | None]:
    """Split the call's tokens over its texts by their length: the provider counts calls only."""
    total = count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    if total is None:
        return [None] * len(requests)
    weights = [len(request.prompt) for request in requests]
    return [Usage(input_tokens=part) for part in shares(total, weights)]
