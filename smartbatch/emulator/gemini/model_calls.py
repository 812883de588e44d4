"""Gemini's model calls, in real time or in a batch: generation, whole or streamed, and embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from smartbatch.emulator.composed_answers import Completion, count_tokens, vector_for, words_of
from smartbatch.emulator.gemini.parsing import api_error, check_fields, embedded_texts, generation
from smartbatch.emulator.gemini.tools import with_tools
from smartbatch.emulator.parsed_requests import (
    GenerationRequest,
    InvalidSchema,
    ModelCall,
    ModelOutput,
    complete,
)
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.emulator.tool_calls import logprobs_of

_FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


def generate(model: str, fields: Mapping[str, Any], *, stream: bool = False, sse: bool = False) -> ModelCall:
    """Parse a ``generateContent``, or raise :class:`ApiError`.

    Args:
        model: the model of the path.
        fields: the decoded body.
        stream: True for ``streamGenerateContent``.
        sse: True for a stream of events (``alt=sse``), False for one JSON array.
    """
    return _Generation(with_tools(generation(model, fields, stream=stream), fields), sse=sse)


def embed(model: str, fields: Mapping[str, Any]) -> ModelCall:
    """Parse a ``batchEmbedContents``, or raise :class:`ApiError`."""
    return _Embeddings(model, *embedded_texts(model, fields))


def generate_in_batch(model: str, request: Mapping[str, Any]) -> ModelCall:
    """Parse a request of a ``batchGenerateContent``, or raise :class:`ApiError`."""
    check_fields(request)
    return generate(model, request)


def embed_in_batch(model: str, request: Mapping[str, Any]) -> ModelCall:
    """Parse a request of an ``asyncBatchEmbedContent``, or raise :class:`ApiError`."""
    texts, dimensions = embedded_texts(model, {"requests": [{**request, "model": f"models/{model}"}]})
    return _Embedding(model, texts[0], dimensions)


class _Generation(ModelCall):
    """A ``generateContent``, streamed or not."""

    def __init__(self, request: GenerationRequest, *, sse: bool) -> None:
        self.model, self.prompt, self.charge = request.model, request.prompt, request.input_tokens
        self.tier = request.tier
        self._request = request
        self._sse = sse

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        request = self._request
        try:
            answer = complete(settings, request)
        except InvalidSchema as error:
            message = "* generation_config.response_json_schema: Invalid schema for response_format."
            raise api_error(400, message) from error
        frame = {"modelVersion": request.model, "responseId": identity}
        if refuse:
            blocked = {"promptFeedback": {"blockReason": "SAFETY"}, **_usage(request, None, 0), **frame}
            chunks, tokens = [blocked], 0
        elif request.stream:
            chunks, tokens = _chunks(request, answer, frame), answer.tokens
        else:
            finish_reason = _FINISH_REASONS[answer.finish_reason]
            parts = [*_thoughts(answer), *([] if answer.calls else [{"text": answer.text}]), *_calls(answer)]
            chunks = [_chunk(parts, request, answer, frame, answer.tokens, finish_reason)]
            tokens = answer.tokens
        billed = request.input_tokens + tokens
        if self._sse:
            events = [b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks]
            return ModelOutput(events, tokens, billed)
        return ModelOutput(json.dumps(chunks if request.stream else chunks[0]).encode(), tokens, billed)


class _Embeddings(ModelCall):
    """A ``batchEmbedContents``: one vector for each content."""

    def __init__(self, model: str, texts: list[str], dimensions: int) -> None:
        self.model, self.prompt = model, "\n".join(texts)
        self.charge = sum(count_tokens(text) for text in texts)
        self._texts = texts
        self._dimensions = dimensions

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:  # noqa: ARG002
        vectors = [{"values": list(vector_for(text, self.model, self._dimensions))} for text in self._texts]
        body = {"embeddings": vectors, "usageMetadata": {"promptTokenCount": self.charge}}
        return ModelOutput(json.dumps(body).encode(), 0, self.charge)


class _Embedding(ModelCall):
    """One request of an ``asyncBatchEmbedContent``: one content, one vector."""

    def __init__(self, model: str, text: str, dimensions: int) -> None:
        self.model, self.prompt, self.charge = model, text, count_tokens(text)
        self._dimensions = dimensions

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:  # noqa: ARG002
        values = list(vector_for(self.prompt, self.model, self._dimensions))
        body = {"embedding": {"values": values}, "tokenCount": str(self.charge)}
        return ModelOutput(json.dumps(body).encode(), 0, self.charge)


def _chunks(request: GenerationRequest, answer: Completion, frame: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a stream; its end is marked only by the finish reason of the last chunk."""
    *pieces, last = words_of(answer.text) or [""]
    chunks = [_chunk([part], request, answer, frame, 1) for part in _thoughts(answer)]
    chunks += [
        _chunk([{"text": piece}], request, answer, frame, count_tokens("".join(pieces[: number + 1])))
        for number, piece in enumerate(pieces)
    ]
    end = _calls(answer) or [{"text": last}]
    finish = _FINISH_REASONS[answer.finish_reason]
    return [*chunks, _chunk(end, request, answer, frame, answer.tokens, finish)]


def _thoughts(answer: Completion) -> list[dict[str, Any]]:
    return [{"text": answer.reasoning, "thought": True}] if answer.reasoning else []


def _calls(answer: Completion) -> list[dict[str, Any]]:
    """The calls of an answer; the signature stands next to the first, as the service has it."""
    parts: list[dict[str, Any]] = [
        {"functionCall": {"name": call.name, "args": call.arguments}} for call in answer.calls
    ]
    if parts:
        parts[0]["thoughtSignature"] = "c2lnbmF0dXJl"
    return parts


def _chunk(
    parts: list[dict[str, Any]],
    request: GenerationRequest,
    answer: Completion,
    frame: dict[str, Any],
    tokens: int,
    finish: str | None = None,
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
        if request.logprobs is not None:
            candidate["logprobsResult"] = _logprobs(answer, request.logprobs)
    return {"candidates": [candidate], **_usage(request, answer, tokens), **frame}


def _logprobs(answer: Completion, alternatives: int) -> dict[str, Any]:
    found = logprobs_of(words_of(answer.text), alternatives)
    chosen = [{"token": each["token"], "logProbability": each["logprob"]} for each in found]
    top = [
        {"candidates": [{"token": e["token"], "logProbability": e["logprob"]} for e in each["top_logprobs"]]}
        for each in found
    ]
    return {"chosenCandidates": chosen, **({"topCandidates": top} if alternatives else {})}


def _usage(request: GenerationRequest, answer: Completion | None, output_tokens: int) -> dict[str, Any]:
    """Return the usage; counters that are zero are omitted, as everywhere in this API."""
    input_tokens = request.input_tokens
    usage: dict[str, Any] = {
        "promptTokenCount": input_tokens,
        "totalTokenCount": input_tokens + output_tokens,
    }
    usage["serviceTier"] = request.tier
    thoughts = 0 if answer is None else min(answer.reasoning_tokens, output_tokens)
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    if output_tokens > thoughts:
        usage["candidatesTokenCount"] = output_tokens - thoughts
    return {
        "usageMetadata": usage | {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": input_tokens}]}
    }
