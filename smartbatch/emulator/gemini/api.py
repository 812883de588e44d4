"""Google's Gemini API under ``/v1`` and ``/v1beta``: real-time calls, models and errors.

It has no rate limit headers. Source: the types of ``google-genai`` 3.4 and Google's API reference of November
2026.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from smartbatch.emulator.composed_answers import Completion, count_tokens, logprobs_of, vector_for, words_of
from smartbatch.emulator.gemini.batches import API_NAME, EMBED_METHOD, GENERATE_METHOD, answer_batches, create
from smartbatch.emulator.gemini.caching import PATH, answer_caches, cacheable, check_cached_content
from smartbatch.emulator.gemini.files import answer_files, find_active, is_upload_chunk, start_or_continue
from smartbatch.emulator.gemini.parsing import (
    MAX_REQUEST_BYTES,
    QUOTA_EXHAUSTED,
    REQUEST_TOO_LARGE,
    api_error,
    check_fields,
    embedded_texts,
    error_body,
    fields_of,
    found,
    generation,
    texts_of,
    unknown_url,
    with_tools,
)
from smartbatch.emulator.gemini.reasoning import with_thinking
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import LimitExceeded
from smartbatch.emulator.parsed_requests import (
    ApiError,
    GenerationRequest,
    InvalidSchema,
    ModelCall,
    ModelOutput,
    complete,
)
from smartbatch.emulator.prompt_caching import CacheablePrompt, PromptCaching
from smartbatch.emulator.prompt_files import FindUpload
from smartbatch.emulator.provider_api import Api, BatchContext, BatchEndpoint, Parse, ServerReply, json_reply
from smartbatch.emulator.settings import EmulatorSettings

_FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


def generate(
    model: str, fields: Mapping[str, Any], find: FindUpload, *, stream: bool = False, sse: bool = False
) -> ModelCall:
    """Parse a ``generateContent`` call.

    Args:
        stream: True for ``streamGenerateContent``.
        sse: True for a stream of events (``alt=sse``), False for one JSON array.
    """
    request = with_tools(generation(model, fields, find, stream=stream), fields)
    check_cached_content(fields)
    return _GeminiGeneration(with_thinking(request, fields), fields, sse=sse)


def embed(model: str, fields: Mapping[str, Any]) -> ModelCall:
    return _GeminiEmbeddings(model, *embedded_texts(model, fields))


def generate_in_batch(model: str, find: FindUpload, request: Mapping[str, Any]) -> ModelCall:
    """Parse one request of a ``batchGenerateContent`` call."""
    check_fields(request)
    return generate(model, request, find)


def embed_in_batch(model: str, _find: FindUpload, request: Mapping[str, Any]) -> ModelCall:
    """Parse one request of an ``asyncBatchEmbedContent`` call."""
    texts, dimensions = embedded_texts(model, {"requests": [{**request, "model": f"models/{model}"}]})
    return _GeminiEmbedding(model, texts[0], dimensions)


class _GeminiGeneration(ModelCall):
    def __init__(self, request: GenerationRequest, fields: Mapping[str, Any], *, sse: bool) -> None:
        self.model, self.prompt, self.charge = request.model, request.identity, request.input_tokens
        self.tier, self.has_uploads = request.tier, request.has_uploads
        self._request = request
        self._fields = fields
        self._sse = sse

    def cacheable(self, settings: PromptCaching) -> CacheablePrompt:
        return cacheable(self.model, self._fields, settings)

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        request = self._request.with_cache(self.cache)
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
            texts = [] if answer.calls else [{"text": answer.text}]
            parts = [*_thoughts(answer), *texts, *_picture(answer), *_calls(answer)]
            chunks = [_chunk(parts, request, answer, frame, answer.tokens, finish_reason)]
            tokens = answer.tokens
        billed = request.input_tokens + tokens
        if self._sse:
            events = [b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks]
            return ModelOutput(events, tokens, billed)
        return ModelOutput(json.dumps(chunks if request.stream else chunks[0]).encode(), tokens, billed)


class _GeminiEmbeddings(ModelCall):
    """A ``batchEmbedContents`` call: one vector for each content."""

    def __init__(self, model: str, texts: list[str], dimensions: int) -> None:
        self.model, self.prompt = model, "\n".join(texts)
        self.charge = sum(count_tokens(text) for text in texts)
        self._texts = texts
        self._dimensions = dimensions

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:  # noqa: ARG002
        vectors = [{"values": list(vector_for(text, self.model, self._dimensions))} for text in self._texts]
        body = {"embeddings": vectors, "usageMetadata": {"promptTokenCount": self.charge}}
        return ModelOutput(json.dumps(body).encode(), 0, self.charge)


class _GeminiEmbedding(ModelCall):
    """One request of an ``asyncBatchEmbedContent`` call: one content, one vector."""

    def __init__(self, model: str, text: str, dimensions: int) -> None:
        self.model, self.prompt, self.charge = model, text, count_tokens(text)
        self._dimensions = dimensions

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:  # noqa: ARG002
        values = list(vector_for(self.prompt, self.model, self._dimensions))
        body = {"embedding": {"values": values}, "tokenCount": str(self.charge)}
        return ModelOutput(json.dumps(body).encode(), 0, self.charge)


def _chunks(request: GenerationRequest, answer: Completion, frame: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a stream, whose end is marked only by the finish reason of the last chunk."""
    *pieces, last = words_of(answer.text) or [""]
    chunks = [_chunk([part], request, answer, frame, 1) for part in _thoughts(answer)]
    chunks += [
        _chunk([{"text": piece}], request, answer, frame, count_tokens("".join(pieces[: number + 1])))
        for number, piece in enumerate(pieces)
    ]
    chunks += [_chunk([part], request, answer, frame, answer.tokens) for part in _picture(answer)]
    end = _calls(answer) or [{"text": last}]
    finish = _FINISH_REASONS[answer.finish_reason]
    return [*chunks, _chunk(end, request, answer, frame, answer.tokens, finish)]


def _thoughts(answer: Completion) -> list[dict[str, Any]]:
    return [{"text": answer.reasoning, "thought": True}] if answer.reasoning else []


def _picture(answer: Completion) -> list[dict[str, Any]]:
    if not answer.picture:
        return []
    data = base64.b64encode(answer.picture).decode()
    return [{"inlineData": {"mimeType": "image/png", "data": data}, "thoughtSignature": "c2lnbmF0dXJl"}]


def _calls(answer: Completion) -> list[dict[str, Any]]:
    """Return the calls of an answer. As with the service, the first one has the signature."""
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
    """Return the usage without zero counters, which this API omits everywhere."""
    input_tokens = request.input_tokens
    usage: dict[str, Any] = {
        "promptTokenCount": input_tokens,
        "totalTokenCount": input_tokens + output_tokens,
    }
    usage["serviceTier"] = request.tier
    if request.cache.read:
        usage["cachedContentTokenCount"] = request.cache.read
    thoughts = 0 if answer is None else min(answer.reasoning_tokens, output_tokens)
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    if output_tokens > thoughts:
        usage["candidatesTokenCount"] = output_tokens - thoughts
    counts = {"TEXT": input_tokens - sum(request.file_tokens.values())} | {
        kind.upper(): tokens for kind, tokens in request.file_tokens.items()
    }
    details = [{"modality": name, "tokenCount": count} for name, count in counts.items() if count]
    return {"usageMetadata": usage | {"promptTokensDetails": details}}


_CALL = re.compile(r"/(v1|v1beta)/(?:models|tunedModels)/([^/:]+):(\w+)")
_MODELS = re.compile(r"/(v1|v1beta)/models(?:/([^/:]+))?")
_STORED = re.compile(r"(?:/upload|/download)?/(?:v1|v1beta)/(?:files|batches|cachedContents)(?:/|$)")
_RPC_TYPE_PREFIX = "type.googleapis.com/google.rpc."
_DEFAULT_MODELS = ("gemini-3.8-flash", "gemini-2.5-flash", "gemini-embedding-001")


class GeminiApi(Api):
    max_body = MAX_REQUEST_BYTES

    def serves(self, head: Head) -> bool:
        known = head.path.startswith(("/v1beta/", "/upload/", "/download/"))
        return known or bool(_CALL.fullmatch(head.path)) or _key(head) is not None

    def check_key(self, head: Head, settings: EmulatorSettings) -> None:
        key = _key(head)
        if not key:
            message = (
                "Method doesn't allow unregistered callers (callers without established identity). "
                "Please use API Key or other form of API consumer identity to call this API."
            )
            raise api_error(403, message)
        if settings.keys is not None and key not in settings.keys:
            info = {
                "@type": f"{_RPC_TYPE_PREFIX}ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
            }
            raise api_error(400, "API key not valid. Please pass a valid API key.", info)

    def account(self, head: Head) -> tuple[str, str]:
        return API_NAME, _key(head) or ""

    def batch_endpoint(self, head: Head) -> BatchEndpoint | None:
        call = _CALL.fullmatch(head.path)
        return (
            self._answer_batch if (call and call[3] in _BATCH_METHODS) or _STORED.match(head.path) else None
        )

    def _answer_batch(self, head: Head, body: bytes, context: BatchContext) -> ServerReply:
        if is_upload_chunk(head):
            return start_or_continue(head, body, context, key=None)
        self.check_key(head, context.settings)
        key = _key(head) or ""
        if head.path.startswith("/upload/"):
            return start_or_continue(head, body, context, key=key)
        call = _CALL.fullmatch(head.path)
        if call is None:
            if PATH.fullmatch(head.path):
                return answer_caches(head, body, context, key=key)
            answer = answer_files if "/files" in head.path else answer_batches
            return answer(head, context, key=key)
        if head.method != "POST":
            raise unknown_url(head)
        model, method = call[2], call[3]
        self.check_model(model, context.settings)
        parse_request = partial(_BATCH_METHODS[method], model, find_active(context, key))
        return create(body, context, key=key, model=model, method=method, parse_request=parse_request)

    def find(self, head: Head, body: bytes, context: BatchContext) -> Parse | ServerReply:
        if head.method == "GET" and (models := _MODELS.fullmatch(head.path)):
            return self._models(models[2], context.settings)
        call = _CALL.fullmatch(head.path)
        if call is None or head.method != "POST":
            raise unknown_url(head)
        model, find = call[2], find_active(context, _key(head) or "")
        match call[3]:
            case "generateContent":
                return lambda _, fields: generate(model, fields, find)
            case "streamGenerateContent":
                sse = "sse" in head.parameters.get("alt", ())
                return lambda _, fields: generate(model, fields, find, stream=True, sse=sse)
            case "batchEmbedContents":
                return lambda _, fields: embed(model, fields)
            case "countTokens":
                self.check_model(model, context.settings)
                return _counted(fields_of(body))
        raise unknown_url(head)

    def too_large(self, limit: int) -> ApiError:
        return api_error(400, REQUEST_TOO_LARGE.format("", "", limit))

    def parse_body(self, body: bytes) -> dict[str, Any]:
        return fields_of(body)

    def check_model(self, model: str, settings: EmulatorSettings) -> None:
        if settings.models is not None and model not in settings.models:
            message = (
                f"models/{model} is not found for API version v1, or is not supported for generateContent. "
                "Call ListModels to see the list of available models and their supported methods."
            )
            raise api_error(404, message)

    def overloaded(self) -> ServerReply:
        return ServerReply(503, error_body(503, "The model is overloaded. Please try again later."))

    def internal_error(self) -> ServerReply:
        return ServerReply(500, error_body(500, "An internal error has occurred. Please retry."))

    def rate_limited(self, exceeded: LimitExceeded, model: str, *, hint: bool) -> ServerReply:
        if not hint:  # the answer when capacity is short names neither a quota nor a wait
            return ServerReply(429, error_body(429, QUOTA_EXHAUSTED))
        if not exceeded.real:
            return ServerReply(
                429, error_body(429, QUOTA_EXHAUSTED, _retry_info(f"{exceeded.wait or 0:.9f}s"))
            )
        if exceeded.what == "requests":
            quota = ("generate_requests", "GenerateRequestsPerMinutePerProjectPerModel")
        else:
            quota = ("input_token_count", "GenerateContentPaidTierInputTokensPerModelPerMinute")
        return ServerReply(429, _exhausted(*quota, str(exceeded.limit), model, f"{exceeded.wait or 0:.9f}s"))

    def quota_exhausted(self, model: str) -> ServerReply:
        # The service names this wait, although the quota becomes available only at midnight.
        quota = ("generate_requests", "GenerateRequestsPerDayPerProjectPerModel")
        return ServerReply(429, _exhausted(*quota, "250", model, "12.345678901s"))

    def no_capacity(self) -> ServerReply:
        message = "This model is currently at capacity in the flex tier. Please try again later."
        return ServerReply(503, error_body(503, message))

    def unsupported_tier(self, model: str) -> ApiError:
        return api_error(400, f"RequestHandler tier flex is not supported for models/{model}.")

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("server-timing", f"gfet4t7; dur={int(seconds * 1000)}")]

    def _models(self, name: str | None, settings: EmulatorSettings) -> ServerReply:
        if name is None:
            models = [_model(each) for each in settings.models or _DEFAULT_MODELS]
            return json_reply({"models": models})
        self.check_model(name, settings)
        return json_reply(_model(name))


def _counted(fields: Mapping[str, Any]) -> ServerReply:
    contents = found(fields, "contents")
    if not isinstance(contents, list) or not contents:
        raise api_error(400, "* CountTokensRequest.contents: contents is not specified")
    texts = ["".join(texts_of(content, "contents")) for content in contents]
    return json_reply({"totalTokens": sum(count_tokens(text) for text in texts)})


def _exhausted(metric: str, quota: str, value: str, model: str, delay: str) -> bytes:
    message = (
        "You exceeded your current quota, please check your plan and billing details. "
        f"* Quota exceeded for metric: {metric}, limit: {value}, model: {model}\nPlease retry in {delay}."
    )
    violation = {
        "quotaMetric": f"generativelanguage.googleapis.com/{metric}",
        "quotaId": quota,
        "quotaDimensions": {"location": "global", "model": model},
        "quotaValue": value,
    }
    return error_body(
        429,
        message,
        {"@type": f"{_RPC_TYPE_PREFIX}QuotaFailure", "violations": [violation]},
        {"@type": f"{_RPC_TYPE_PREFIX}Help", "links": []},
        _retry_info(delay),
    )


def _retry_info(delay: str) -> dict[str, Any]:
    return {"@type": f"{_RPC_TYPE_PREFIX}RetryInfo", "retryDelay": delay}


def _key(head: Head) -> str | None:
    if (key := head.headers.get("x-goog-api-key")) is not None:
        return key.strip()
    return next(iter(head.parameters.get("key", ())), None)


def _model(name: str) -> dict[str, Any]:
    methods = ["embedContent"] if "embedding" in name else ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "version": "1", "supportedGenerationMethods": methods}


_BATCH_METHODS: dict[str, Callable[[str, FindUpload, Mapping[str, Any]], ModelCall]] = {
    GENERATE_METHOD: generate_in_batch,
    EMBED_METHOD: embed_in_batch,
}
