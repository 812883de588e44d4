"""OpenAI's embeddings: deterministic vectors, as base64 or numbers, in random order."""

from __future__ import annotations

import base64
import json
import random
from array import array
from collections.abc import Mapping
from typing import Any

from smartbatch.emulator.composed_answers import count_tokens, vector_for
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import ModelCall, ModelOutput
from smartbatch.emulator.settings import EmulatorSettings

MAX_TEXTS, MAX_TOKENS, MAX_CALL_TOKENS = 2048, 8192, 300_000
"""Inputs of a call, tokens of an input, tokens of a call (OpenAI API reference, embeddings)."""
DIMENSIONS = {"text-embedding-3-large": 3072}
"""Vector lengths of the models whose length is not 1,536."""


class _Embeddings(ModelCall):
    def __init__(self, model: str, texts: list[str], dimensions: int, as_base64: bool) -> None:
        self.model, self.prompt = model, "\n".join(texts)
        self.charge = sum(count_tokens(text) for text in texts)
        self._texts = texts
        self._dimensions = dimensions
        self._as_base64 = as_base64

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:  # noqa: ARG002
        data = [
            {"object": "embedding", "index": index, "embedding": self._encoded(text)}
            for index, text in enumerate(self._texts)
        ]
        random.Random(f"{settings.seed} {identity}").shuffle(data)  # the API promises no order
        usage = {"prompt_tokens": self.charge, "total_tokens": self.charge}
        body = {"object": "list", "model": self.model, "data": data, "usage": usage}
        return ModelOutput(json.dumps(body).encode(), 0, self.charge)

    def _encoded(self, text: str) -> str | list[float]:
        vector: array[float] = vector_for(text, self.model, self._dimensions)
        return base64.b64encode(vector.tobytes()).decode() if self._as_base64 else list(vector)


def parse_embeddings(_head: Head, body: Mapping[str, Any]) -> ModelCall:
    """Parse a request to ``/v1/embeddings``.

    Raises:
        ApiError: 400, without input, for an empty text, for too many or too long texts.
    """
    model, given = body.get("model"), body.get("input")
    if not isinstance(model, str) or not model:
        raise api_error(400, "you must provide a model parameter")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise api_error(400, "'$.input' is invalid.", param="input")
    if len(texts) > MAX_TEXTS:
        raise api_error(400, f"'$.input' is invalid. It takes at most {MAX_TEXTS} items.", param="input")
    if "" in texts:
        raise api_error(400, "'$.input' is invalid. An input may not be an empty string.", param="input")
    counts = [count_tokens(text) for text in texts]
    if max(counts) > MAX_TOKENS:
        message = f"This model's maximum context length is {MAX_TOKENS} tokens, you asked for {max(counts)}."
        raise api_error(400, message, code="context_length_exceeded", param="input")
    if sum(counts) > MAX_CALL_TOKENS:
        raise api_error(400, f"Requested more than {MAX_CALL_TOKENS} tokens per request.", param="input")
    dimensions = body.get("dimensions", DIMENSIONS.get(model, 1536))
    if type(dimensions) is not int or not 1 <= dimensions <= DIMENSIONS.get(model, 1536):
        raise api_error(400, "'$.dimensions' is invalid.", param="dimensions")
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise api_error(400, "'$.encoding_format' is invalid.", param="encoding_format")
    return _Embeddings(model, texts, dimensions, encoding == "base64")
