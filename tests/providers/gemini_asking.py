"""Answers, errors and streams of the Gemini API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from asking import MODELS
from raw_server import http

from smartbatch.providers import GeminiProvider
from smartbatch.types import Answer, Embedding, Request

GEMINI_KEY = "AIzaCanary-1234567890abcdefghij"
MODEL = MODELS["gemini"]
RPC = "type.googleapis.com/google.rpc."


def embed(provider: GeminiProvider, texts: Sequence[str], **embedding: Any) -> list[Answer]:
    requests = [Request(prompt=text, embedding=Embedding(**embedding)) for text in texts]
    return provider.embed(requests, model="gemini-embedding-001", attempt=0, timeout=20.0)


def says_gemini(*texts: str, finish: str | None = "STOP", **changes: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {
        "index": 0,
        "content": {"role": "model", "parts": [{"text": t} for t in texts]},
    }
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": 31,
            "cachedContentTokenCount": 5,
            "candidatesTokenCount": 14,
            "thoughtsTokenCount": 64,
            "totalTokenCount": 109,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 31}],
        },
        "modelVersion": "gemini-3.8-flash-001",
        "responseId": "r-1",
        **changes,
    }


def gemini_error(code: int, status: str, message: str = "no", *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "status": status, "message": message, "details": list(details)}}


def violation(quota: str, value: str | None = None) -> dict[str, Any]:
    found = {"quotaMetric": "generativelanguage.googleapis.com/some", "quotaId": quota}
    if value is not None:
        found["quotaValue"] = value
    return {"@type": f"{RPC}QuotaFailure", "violations": [found]}


def retry_in(delay: Any) -> dict[str, Any]:
    return {"@type": f"{RPC}RetryInfo", "retryDelay": delay}


def sse(*chunks: Any, end: bytes = b"\r\n\r\n") -> bytes:
    body = b"".join(
        b"data: " + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()) + end
        for chunk in chunks
    )
    return http(body, content_type="text/event-stream")
