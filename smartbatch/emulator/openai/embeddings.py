"""OpenAI's embeddings: deterministic vectors, as base64 or numbers, in shuffled order."""

from __future__ import annotations

import base64
import json
import random
from array import array
from collections.abc import Mapping
from typing import Any

from smartbatch.emulator.composed_answers import count_tokens, vector_for
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import Refused
from smartbatch.emulator.provider_api import Done, Task
from smartbatch.emulator.settings import Settings

__all__ = ["parse_embeddings"]

MAX_TEXTS, MAX_TOKENS, MAX_CALL_TOKENS = 2048, 8192, 300_000
"""Inputs of a call, tokens of an input, tokens of a call (OpenAI API reference, embeddings)."""
DIMENSIONS = {"text-embedding-3-large": 3072}
"""Lengths other than 1,536."""


class _Embeddings(Task):
    def __init__(self, model: str, texts: list[str], dimensions: int, as_base64: bool) -> None:
        self.model, self.prompt = model, "\n".join(texts)
        self.charge = sum(count_tokens(text) for text in texts)
        self._texts = texts
        self._dimensions = dimensions
        self._as_base64 = as_base64

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:  # noqa: ARG002
        data = [
            {"object": "embedding", "index": index, "embedding": self._written(text)}
            for index, text in enumerate(self._texts)
        ]
        random.Random(f"{settings.seed} {identity}").shuffle(data)  # the API promises no order
        usage = {"prompt_tokens": self.charge, "total_tokens": self.charge}
        body = {"object": "list", "model": self.model, "data": data, "usage": usage}
        return Done(json.dumps(body).encode(), 0, self.charge)

    def _written(self, text: str) -> str | list[float]:
        vector: array[float] = vector_for(text, self.model, self._dimensions)
        return base64.b64encode(vector.tobytes()).decode() if self._as_base64 else list(vector)


def parse_embeddings(_head: Head, body: Mapping[str, Any]) -> Task:
    """Return the task of a request to ``/v1/embeddings``.

    Raises:
        Refused: 400, for what the service refuses: no input, an empty text, too many, too long.
    """
    model, given = body.get("model"), body.get("input")
    if not isinstance(model, str) or not model:
        raise Refused(400, "you must provide a model parameter")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise Refused(400, "'$.input' is invalid.", param="input")
    if len(texts) > MAX_TEXTS:
        raise Refused(400, f"'$.input' is invalid. It takes at most {MAX_TEXTS} items.", param="input")
    if "" in texts:
        raise Refused(400, "'$.input' is invalid. An input may not be an empty string.", param="input")
    counts = [count_tokens(text) for text in texts]
    if max(counts) > MAX_TOKENS:
        message = f"This model's maximum context length is {MAX_TOKENS} tokens, you asked for {max(counts)}."
        raise Refused(400, message, code="context_length_exceeded", param="input")
    if sum(counts) > MAX_CALL_TOKENS:
        raise Refused(400, f"Requested more than {MAX_CALL_TOKENS} tokens per request.", param="input")
    dimensions = body.get("dimensions", DIMENSIONS.get(model, 1536))
    if type(dimensions) is not int or not 1 <= dimensions <= DIMENSIONS.get(model, 1536):
        raise Refused(400, "'$.dimensions' is invalid.", param="dimensions")
    form = body.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise Refused(400, "'$.encoding_format' is invalid.", param="encoding_format")
    return _Embeddings(model, texts, dimensions, form == "base64")
