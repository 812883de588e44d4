"""OpenAI's model calls, in real time or in a batch: chat completions, responses and embeddings."""

from __future__ import annotations

import base64
import json
import random
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.emulator.composed_answers import Completion, count_tokens, vector_for
from smartbatch.emulator.openai import bodies
from smartbatch.emulator.openai.caching import cacheable, check_caching
from smartbatch.emulator.openai.parsing import (
    api_error,
    as_messages,
    check_rejected,
    parse_chat,
    parse_responses,
    with_chat_tools,
    with_response_tools,
)
from smartbatch.emulator.openai.reasoning import with_effort
from smartbatch.emulator.parsed_requests import (
    GenerationRequest,
    InvalidSchema,
    ModelCall,
    ModelOutput,
    complete,
)
from smartbatch.emulator.prompt_caching import CacheablePrompt, PromptCaching
from smartbatch.emulator.prompt_files import FindUpload, no_uploads
from smartbatch.emulator.settings import EmulatorSettings

# maximum inputs per call, tokens per input and tokens per call (OpenAI's API reference, embeddings)
MAX_TEXTS, MAX_TOKENS, MAX_CALL_TOKENS = 2048, 8192, 300_000
MODEL_DIMENSIONS = {"text-embedding-3-large": 3072}  # vector lengths of models with a length other than 1,536


class _OpenAIEmbeddings(ModelCall):
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
        random.Random(f"{settings.seed} {identity}").shuffle(data)  # the API guarantees no order
        usage = {"prompt_tokens": self.charge, "total_tokens": self.charge}
        body = {"object": "list", "model": self.model, "data": data, "usage": usage}
        return ModelOutput(json.dumps(body).encode(), 0, self.charge)

    def _encoded(self, text: str) -> str | list[float]:
        vector: array[float] = vector_for(text, self.model, self._dimensions)
        return base64.b64encode(vector.tobytes()).decode() if self._as_base64 else list(vector)


def _embeddings(body: Mapping[str, Any], _find: FindUpload) -> ModelCall:
    """Parse a request to ``/v1/embeddings``.

    Raises:
        ApiError: there is no input, or an empty text, too many texts or a text that is too long.
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
        message = (
            f"This model's maximum context length is {MAX_TOKENS} tokens, but an input has {max(counts)}."
        )
        raise api_error(400, message, code="context_length_exceeded", param="input")
    if sum(counts) > MAX_CALL_TOKENS:
        raise api_error(400, f"Requested more than {MAX_CALL_TOKENS} tokens per request.", param="input")
    dimensions = body.get("dimensions", MODEL_DIMENSIONS.get(model, 1536))
    if type(dimensions) is not int or not 1 <= dimensions <= MODEL_DIMENSIONS.get(model, 1536):
        raise api_error(400, "'$.dimensions' is invalid.", param="dimensions")
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise api_error(400, "'$.encoding_format' is invalid.", param="encoding_format")
    return _OpenAIEmbeddings(model, texts, dimensions, encoding == "base64")


class _OpenAIGeneration(ModelCall):
    """A chat completion or a response.

    Args:
        make_body: creates the body of an answer.
        make_events: creates the events of a stream.
        make_cacheable: creates the prompt as the model's cache sees it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        make_body: Callable[..., dict[str, Any]],
        make_events: Callable[..., list[bytes]],
        make_cacheable: Callable[[PromptCaching], CacheablePrompt],
    ) -> None:
        self.model, self.prompt, self.charge = request.model, request.identity, request.charge
        self.tier, self.has_uploads = request.tier, request.has_uploads
        self._request = request
        self._make_body = make_body
        self._make_events = make_events
        self._make_cacheable = make_cacheable

    @property
    def prompt_tokens(self) -> int:
        return self._request.input_tokens

    def cacheable(self, settings: PromptCaching) -> CacheablePrompt:
        return self._make_cacheable(settings)

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        request = self._request.with_cache(self.cache)
        try:
            answer = complete(settings, request)
        except InvalidSchema as error:
            message = "Invalid schema for response_format."
            raise api_error(400, message, param="response_format") from error
        if refuse:
            answer = Completion("I can't help with that.", "content_filter", 6)
        created = int(time.time())
        body: bytes | list[bytes]
        if request.stream:
            body = self._make_events(request, answer, identity=identity, created=created)
        else:
            whole = self._make_body(request, answer, identity=identity, created=created)
            if refuse:
                _replace_by_refusal(whole, answer.text)
            body = json.dumps(whole).encode()
        return ModelOutput(body, answer.tokens, request.input_tokens + answer.tokens * request.choices)


def _replace_by_refusal(body: dict[str, Any], text: str) -> None:
    """Turn an answer into a refusal: its text in the refusal field, and no content."""
    for choice in body.get("choices", ()):
        choice["finish_reason"] = "stop"
        choice["message"] |= {"content": None, "refusal": text}
    for message in body.get("output", ()):
        message["content"] = [{"type": "refusal", "refusal": text}]


def _chat(body: Mapping[str, Any], find: FindUpload) -> ModelCall:
    request = with_effort(with_chat_tools(parse_chat(body, find), body), body)
    return _generation(request, body, "messages", bodies.chat_body, bodies.chat_events)


def _response(body: Mapping[str, Any], find: FindUpload) -> ModelCall:
    request = with_effort(with_response_tools(parse_responses(as_messages(body), find), body), body)
    return _generation(request, body, "input", bodies.response_body, bodies.response_events)


def _generation(
    request: GenerationRequest,
    body: Mapping[str, Any],
    given: str,
    make_body: Callable[..., dict[str, Any]],
    make_events: Callable[..., list[bytes]],
) -> ModelCall:
    check_caching(body, body.get(given))
    return _OpenAIGeneration(
        request, make_body, make_events, lambda settings: cacheable(body, body.get(given), settings)
    )


def parse_call(
    path: str, body: Mapping[str, Any], settings: EmulatorSettings, find: FindUpload = no_uploads
) -> ModelCall:
    """Parse a call to one of the paths of :data:`MODEL_CALLS`.

    Raises:
        ApiError: the API, or a server with these settings, does not accept it.
    """
    check_rejected(body, settings.rejects)
    return MODEL_CALLS[path](body, find)


# parsers by the paths of real-time calls, which are also the endpoints of batches
MODEL_CALLS: dict[str, Callable[[Mapping[str, Any], FindUpload], ModelCall]] = {
    "/v1/chat/completions": _chat,
    "/v1/responses": _response,
    "/v1/embeddings": _embeddings,
}
