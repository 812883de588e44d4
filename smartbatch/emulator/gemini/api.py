"""Google's Gemini API under ``/v1`` and ``/v1beta``: real-time calls, models and errors.

It has no rate limit headers. ``batches`` and ``files`` have the rest.
Source: the types of ``google-genai`` 3.4 and Google's API reference of November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from smartbatch.emulator.composed_answers import count_tokens
from smartbatch.emulator.gemini.batch_shapes import EMBED, GENERATE
from smartbatch.emulator.gemini.batches import answer_batches, create
from smartbatch.emulator.gemini.files import answer_files, is_upload_chunk, start_or_continue
from smartbatch.emulator.gemini.model_calls import embed, embed_in_batch, generate, generate_in_batch
from smartbatch.emulator.gemini.parsing import (
    QUOTA_EXHAUSTED,
    api_error,
    error_body,
    fields_of,
    found,
    texts_of,
    unknown_url,
)
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import LimitExceeded
from smartbatch.emulator.parsed_requests import ApiError, ModelCall
from smartbatch.emulator.provider_api import Api, BatchContext, BatchEndpoint, Parse, ServerReply, json_reply
from smartbatch.emulator.settings import EmulatorSettings

_CALL = re.compile(r"/(v1|v1beta)/(?:models|tunedModels)/([^/:]+):(\w+)")
_MODELS = re.compile(r"/(v1|v1beta)/models(?:/([^/:]+))?")
_STORED = re.compile(r"(?:/upload|/download)?/(?:v1|v1beta)/(?:files|batches)(?:/|$)")
_RPC = "type.googleapis.com/google.rpc."
_DEFAULT_MODELS = ("gemini-3.8-flash", "gemini-2.5-flash", "gemini-embedding-001")


class GeminiApi(Api):
    """Generation, streams, embeddings, counting and models."""

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
            info = {"@type": f"{_RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
            raise api_error(400, "API key not valid. Please pass a valid API key.", info)

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
            answer = answer_files if "/files" in head.path else answer_batches
            return answer(head, context, key=key)
        if head.method != "POST":
            raise unknown_url(head)
        model, method = call[2], call[3]
        self.check_model(model, context.settings)
        parse_request = partial(_BATCH_METHODS[method], model)
        return create(body, context, key=key, model=model, method=method, parse_request=parse_request)

    def find(self, head: Head, body: bytes, settings: EmulatorSettings) -> Parse | ServerReply:
        if head.method == "GET" and (models := _MODELS.fullmatch(head.path)):
            return self._models(models[2], settings)
        call = _CALL.fullmatch(head.path)
        if call is None or head.method != "POST":
            raise unknown_url(head)
        model = call[2]
        match call[3]:
            case "generateContent":
                return lambda _, fields: generate(model, fields)
            case "streamGenerateContent":
                sse = "sse" in head.parameters.get("alt", ())
                return lambda _, fields: generate(model, fields, stream=True, sse=sse)
            case "batchEmbedContents":
                return lambda _, fields: embed(model, fields)
            case "countTokens":
                self.check_model(model, settings)
                return _counted(fields_of(body))
        raise unknown_url(head)

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
        # The wait is that of the service, although the quota is available again only at midnight.
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
        {"@type": f"{_RPC}QuotaFailure", "violations": [violation]},
        {"@type": f"{_RPC}Help", "links": []},
        _retry_info(delay),
    )


def _retry_info(delay: str) -> dict[str, Any]:
    return {"@type": f"{_RPC}RetryInfo", "retryDelay": delay}


def _key(head: Head) -> str | None:
    """Return the key of a request, from its header or its query; ``None`` without either."""
    if (key := head.headers.get("x-goog-api-key")) is not None:
        return key.strip()
    return next(iter(head.parameters.get("key", ())), None)


def _model(name: str) -> dict[str, Any]:
    methods = ["embedContent"] if "embedding" in name else ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "version": "1", "supportedGenerationMethods": methods}


_BATCH_METHODS: dict[str, Callable[[str, Mapping[str, Any]], ModelCall]] = {
    GENERATE: generate_in_batch,
    EMBED: embed_in_batch,
}
