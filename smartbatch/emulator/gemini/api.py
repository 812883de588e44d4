"""The Gemini API as the service speaks it: under ``/v1`` and ``/v1beta``, without limit headers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from smartbatch.emulator.batch_service import BatchCall, Desk
from smartbatch.emulator.composed_answers import Composed, count_tokens, vector_for
from smartbatch.emulator.gemini.batch_shapes import EMBED, GENERATE
from smartbatch.emulator.gemini.batches import answer_batches, create
from smartbatch.emulator.gemini.files import answer_files, is_piece, start_or_continue
from smartbatch.emulator.gemini.parsing import (
    GeminiRefused,
    check_fields,
    embedded_texts,
    error_body,
    fields_of,
    found,
    generation,
    texts_of,
)
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import Refusal
from smartbatch.emulator.openai.api import composed
from smartbatch.emulator.openai.parsing import Asked, Refused
from smartbatch.emulator.provider_api import Api, Done, Parse, Reply, Task
from smartbatch.emulator.settings import Settings

__all__ = ["GeminiApi"]

_CALL = re.compile(r"/(v1|v1beta)/(?:models|tunedModels)/([^/:]+):(\w+)")
_MODELS = re.compile(r"/(v1|v1beta)/models(?:/([^/:]+))?")
_STORED = re.compile(r"(?:/upload|/download)?/(?:v1|v1beta)/(?:files|batches)(?:/|$)")
_PIECES = re.compile(r"\s*\S+|\s+")
_RPC = "type.googleapis.com/google.rpc."
_DEFAULT_MODELS = ("gemini-3.8-flash", "gemini-2.5-flash", "gemini-embedding-001")
_SHORT = "Resource has been exhausted (e.g. check quota)."
_FINISH = {"stop": "STOP", "length": "MAX_TOKENS"}


class GeminiApi(Api):
    """Generation, streams, embeddings, counting and models."""

    def serves(self, head: Head) -> bool:
        ours = head.path.startswith(("/v1beta/", "/upload/", "/download/"))
        return ours or bool(_CALL.fullmatch(head.path)) or _key(head) is not None

    def check_key(self, head: Head, settings: Settings) -> None:
        key = _key(head)
        if not key:
            message = (
                "Method doesn't allow unregistered callers (callers without established identity). "
                "Please use API Key or other form of API consumer identity to call this API."
            )
            raise GeminiRefused(403, message)
        if settings.keys is not None and key not in settings.keys:
            info = {"@type": f"{_RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
            raise GeminiRefused(400, "API key not valid. Please pass a valid API key.", info)

    def batch_call(self, head: Head) -> BatchCall | None:
        call = _CALL.fullmatch(head.path)
        return self._answer_batch if (call and call[3] in _BATCHES) or _STORED.match(head.path) else None

    def _answer_batch(self, head: Head, body: bytes, service: Desk) -> Reply:
        if is_piece(head):
            return start_or_continue(head, body, service, key=None)
        self.check_key(head, service.settings)
        key = _key(head) or ""
        if head.path.startswith("/upload/"):
            return start_or_continue(head, body, service, key=key)
        call = _CALL.fullmatch(head.path)
        if call is None:
            files = "/files" in head.path
            return answer_files(head, service, key=key) if files else answer_batches(head, service, key=key)
        if head.method != "POST":
            raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")
        self.check_model(call[2], service.settings)
        understand = partial(_BATCHES[call[3]], call[2])
        return create(body, service, key=key, model=call[2], method=call[3], understand=understand)

    def find(self, head: Head, body: bytes, settings: Settings) -> Parse | Reply:
        if head.method == "GET" and (models := _MODELS.fullmatch(head.path)):
            return self._models(models[2], settings)
        call = _CALL.fullmatch(head.path)
        task = _TASKS.get(call[3]) if call else None
        if call and call[3] == "countTokens" and head.method == "POST":
            self.check_model(call[2], settings)
            return _counted(fields_of(body))
        if task is None or head.method != "POST":
            raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")
        return task

    def parse_body(self, body: bytes) -> dict[str, Any]:
        return fields_of(body)

    def check_model(self, model: str, settings: Settings) -> None:
        if settings.models is not None and model not in settings.models:
            message = (
                f"models/{model} is not found for API version v1, or is not supported for generateContent. "
                "Call ListModels to see the list of available models and their supported methods."
            )
            raise GeminiRefused(404, message)

    def overloaded(self) -> Reply:
        return Reply(503, error_body(503, "The model is overloaded. Please try again later."))

    def failed(self) -> Reply:
        return Reply(500, error_body(500, "An internal error has occurred. Please retry."))

    def limited(self, refusal: Refusal, model: str, *, hint: bool) -> Reply:
        if not hint:  # as it says when capacity is short: no quota is named, and no wait
            return Reply(429, error_body(429, _SHORT))
        if not refusal.real:
            return Reply(429, error_body(429, _SHORT, _retry_info(f"{refusal.wait or 0:.9f}s")))
        if refusal.what == "requests":
            quota = ("generate_requests", "GenerateRequestsPerMinutePerProjectPerModel")
        else:
            quota = ("input_token_count", "GenerateContentPaidTierInputTokensPerModelPerMinute")
        return Reply(429, _exhausted(*quota, str(refusal.limit), model, f"{refusal.wait or 0:.9f}s"))

    def used_up(self, model: str) -> Reply:
        # The wait is that of the service: far too short for a quota that is full again at midnight.
        quota = ("generate_requests", "GenerateRequestsPerDayPerProjectPerModel")
        return Reply(429, _exhausted(*quota, "250", model, "12.345678901s"))

    def no_room(self) -> Reply:
        message = "This model is currently at capacity in the flex tier. Please try again later."
        return Reply(503, error_body(503, message))

    def no_tier(self, model: str) -> Refused:
        return GeminiRefused(400, f"Service tier flex is not supported for models/{model}.")

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("server-timing", f"gfet4t7; dur={int(seconds * 1000)}")]

    def _models(self, name: str | None, settings: Settings) -> Reply:
        if name is None:
            models = [_model(each) for each in settings.models or _DEFAULT_MODELS]
            return Reply(200, json.dumps({"models": models}).encode())
        self.check_model(name, settings)
        return Reply(200, json.dumps(_model(name)).encode())


class _Generation(Task):
    """A ``generateContent``, streamed or not.

    Args:
        asked: what is asked for.
        events: False for a stream as one JSON array, as it is without ``alt=sse``.
    """

    def __init__(self, asked: Asked, *, events: bool) -> None:
        self.model, self.prompt, self.charge = asked.model, asked.prompt, asked.input_tokens
        self.tier = asked.tier
        self._asked = asked
        self._events = events

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:
        asked = self._asked
        try:
            answer = composed(settings, asked)
        except Refused as refused:
            raise GeminiRefused(400, f"* generation_config.response_json_schema: {refused}") from refused
        frame = {"modelVersion": asked.model, "responseId": identity}
        if refuse:
            blocked = {"promptFeedback": {"blockReason": "SAFETY"}, **_usage(asked, 0), **frame}
            chunks, tokens = [blocked], 0
        elif asked.stream:
            chunks, tokens = _chunks(asked, answer, frame), answer.tokens
        else:
            chunks = [_chunk(answer.text, asked, frame, answer.tokens, _FINISH[answer.finish_reason])]
            tokens = answer.tokens
        billed = asked.input_tokens + tokens
        if self._events:
            return Done(
                [b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks], tokens, billed
            )
        return Done(json.dumps(chunks if asked.stream else chunks[0]).encode(), tokens, billed)


class _Embeddings(Task):
    """A ``batchEmbedContents``: one vector for each content."""

    def __init__(self, model: str, texts: list[str], dimensions: int) -> None:
        self.model, self.prompt = model, "\n".join(texts)
        self.charge = sum(count_tokens(text) for text in texts)
        self._texts = texts
        self._dimensions = dimensions

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:  # noqa: ARG002
        vectors = [{"values": list(vector_for(text, self.model, self._dimensions))} for text in self._texts]
        body = {"embeddings": vectors, "usageMetadata": {"promptTokenCount": self.charge}}
        return Done(json.dumps(body).encode(), 0, self.charge)


class _Embedding(Task):
    """One request of an ``asyncBatchEmbedContent``: one content, one vector."""

    def __init__(self, model: str, text: str, dimensions: int) -> None:
        self.model, self.prompt, self.charge = model, text, count_tokens(text)
        self._dimensions = dimensions

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:  # noqa: ARG002
        values = list(vector_for(self.prompt, self.model, self._dimensions))
        body = {"embedding": {"values": values}, "tokenCount": str(self.charge)}
        return Done(json.dumps(body).encode(), 0, self.charge)


def _chunks(asked: Asked, answer: Composed, frame: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a stream; the last one has the finish reason, and nothing else marks the end."""
    *pieces, last = _PIECES.findall(answer.text) or [""]
    chunks = [
        _chunk(piece, asked, frame, count_tokens("".join(pieces[: number + 1])))
        for number, piece in enumerate(pieces)
    ]
    return [*chunks, _chunk(last, asked, frame, answer.tokens, _FINISH[answer.finish_reason])]


def _chunk(
    text: str, asked: Asked, frame: dict[str, Any], tokens: int, finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **_usage(asked, tokens), **frame}


def _usage(asked: Asked, made: int) -> dict[str, Any]:
    """Return the usage; counters that are zero are left out, as everywhere in this API."""
    taken = asked.input_tokens
    usage: dict[str, Any] = {"promptTokenCount": taken, "totalTokenCount": taken + made}
    usage["serviceTier"] = asked.tier
    if made:
        usage["candidatesTokenCount"] = made
    return {"usageMetadata": usage | {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": taken}]}}


def _counted(fields: Mapping[str, Any]) -> Reply:
    contents = found(fields, "contents")
    if not isinstance(contents, list) or not contents:
        raise GeminiRefused(400, "* CountTokensRequest.contents: contents is not specified")
    texts = [text for content in contents for text in texts_of(content, "contents")]
    return Reply(200, json.dumps({"totalTokens": sum(count_tokens(text) for text in texts)}).encode())


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
    """The key of a request, in its header or its query; ``None`` without either."""
    if (key := head.headers.get("x-goog-api-key")) is not None:
        return key.strip()
    return next(iter(parse_qs(head.query).get("key", ())), None)


def _model(name: str) -> dict[str, Any]:
    methods = ["embedContent"] if "embedding" in name else ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "version": "1", "supportedGenerationMethods": methods}


def _named(head: Head) -> str:
    call = _CALL.fullmatch(head.path)
    return call[2] if call else ""


def _generate(head: Head, fields: Mapping[str, Any]) -> Task:
    return _Generation(generation(_named(head), fields, stream=False), events=False)


def _stream(head: Head, fields: Mapping[str, Any]) -> Task:
    events = "sse" in parse_qs(head.query).get("alt", ())
    return _Generation(generation(_named(head), fields, stream=True), events=events)


def _embed(head: Head, fields: Mapping[str, Any]) -> Task:
    model = _named(head)
    return _Embeddings(model, *embedded_texts(model, fields))


def _generate_in_batch(model: str, request: Mapping[str, Any]) -> Task:
    check_fields(request)
    return _Generation(generation(model, request, stream=False), events=False)


def _embed_in_batch(model: str, request: Mapping[str, Any]) -> Task:
    named = {**request, "model": f"models/{model}"}
    texts, dimensions = embedded_texts(model, {"requests": [named]})
    return _Embedding(model, texts[0], dimensions)


_BATCHES: dict[str, Callable[[str, Mapping[str, Any]], Task]] = {
    GENERATE: _generate_in_batch,
    EMBED: _embed_in_batch,
}
_TASKS: dict[str, Parse] = {
    "generateContent": _generate,
    "streamGenerateContent": _stream,
    "batchEmbedContents": _embed,
}
