"""The Batch APIs of the three providers and the answers of their servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asking import KEY
from attrs import frozen
from batching import MARK, PATIENCE, described, requests, spool
from claude import error as claude_error
from gemini_asking import GEMINI_KEY, gemini_error
from raw_server import error as openai_error

from smartbatch.providers import AnthropicProvider, GeminiProvider, OpenAIProvider, Provider
from smartbatch.providers.batch_api import BatchApi, Creation, RemoteBatch
from smartbatch.testing import Emulator, emulator
from smartbatch.types import Kind, Request

FILE = "files/sb-input"


def claude_batch(status: str = "in_progress", name: str = "msgbatch_1", **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {"processing": 5, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
        "created_at": "2026-11-20T10:00:00Z",
        "expires_at": "2026-11-21T10:00:00Z",
        "ended_at": None,
        "cancel_initiated_at": None,
        "archived_at": None,
        "results_url": None,
        **changes,
    }


def gemini_batch(
    state: str | None = "BATCH_STATE_RUNNING", name: str = "abc1", top: Any = None, **changes: Any
) -> dict[str, Any]:
    """``top`` contains fields next to the metadata."""
    metadata = {
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
        "name": f"batches/{name}",
        "model": "models/gemini-3.8-flash",
        "displayName": f"sb-{MARK}",
        "inputConfig": {"fileName": FILE},
        "createTime": "2026-11-20T10:00:00.100Z",
        "batchStats": {"requestCount": "5", "pendingRequestCount": "5"},
        **changes,
    }
    if state is not None:
        metadata["state"] = state
    return {"name": f"batches/{name}", "metadata": metadata, **(top or {})}


@frozen
class Side:
    prefix: str
    key: str
    kind: Callable[..., Provider]
    batch: Callable[..., dict[str, Any]]  # body that describes a batch
    refusal: Callable[..., dict[str, Any]]  # body of the provider's own error, for a status
    ended: Callable[[], dict[str, Any]]  # body that describes an ended batch
    batch_path: str
    output: str  # results of the first batch
    line: Callable[[str, Any], dict[str, Any]]  # input line for an id and a body
    versioned: bool = False  # base URLs end with the version
    deletes: bool = True  # ended batches can be deleted

    def provider(self, url: str, **options: Any) -> Provider:
        return self.kind(**{"api_key": self.key, "base_url": url + "/v1" * self.versioned, **options})

    def creation(self, api: BatchApi, folder: Path, asked: list[Request] | None = None) -> Creation:
        """Input is an uploaded file, except for Anthropic."""
        asked = requests(5) if asked is None else asked
        path = spool(api, folder, asked)
        files = api.abilities.files
        return Creation(
            MARK,
            "m",
            Kind.GENERATE,
            len(asked),
            file_id=FILE if files else None,
            lines=None if files else path,
        )


ANTHROPIC = Side(
    "anthropic",
    KEY,
    AnthropicProvider,
    claude_batch,
    lambda status, text="no": claude_error(_TYPES.get(status, "api_error"), text),
    lambda: claude_batch("ended"),
    "/v1/messages/batches/msgbatch_1",
    "/v1/messages/batches/msgbatch_1/results",
    lambda wire_id, body: {"custom_id": wire_id, "params": body},
)
GEMINI = Side(
    "gemini",
    GEMINI_KEY,
    GeminiProvider,
    gemini_batch,
    lambda status, text="no": gemini_error(status, _WORDS.get(status, "UNKNOWN"), text),
    lambda: gemini_batch("BATCH_STATE_CANCELLED"),
    "/v1/batches/abc1",
    "files/batch-abc1",
    lambda wire_id, body: {"key": wire_id, "request": body},
)
OPENAI = Side(
    "openai",
    KEY,
    OpenAIProvider,
    lambda name="batch_1", **changes: described(id=name, **changes),
    lambda status, text="no": openai_error(
        text, "server_error" if status >= 500 else "invalid_request_error"
    ),
    lambda: described(status="cancelled"),
    "/v1/batches/batch_1",
    "file-2",
    lambda wire_id, body: {
        "custom_id": wire_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    },
    versioned=True,
    deletes=False,
)
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_WORDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def text_of(answer: dict[str, Any]) -> str:
    return json.dumps(answer)


@contextmanager
def world(side: Side, **settings: Any) -> Iterator[tuple[Emulator, BatchApi]]:
    """An emulator, and a provider's Batch API connected to it."""
    options = settings.pop("provider", {})
    with emulator(hang_seconds=0.05, **settings) as emu:
        provider = side.provider(emu.url, **options)
        try:
            yield emu, provider.batches()
        finally:
            provider.close()


def create(
    api: BatchApi, folder: Path, asked: list[Request], mark: str = MARK, kind: Kind = Kind.GENERATE
) -> RemoteBatch:
    """Upload the input if the API takes files, then create a batch."""
    path = spool(api, folder, asked, mark)
    if api.abilities.files:
        file = api.upload(f"sb-{mark}", path, PATIENCE)
        return api.create(Creation(mark, "m", kind, len(asked), file_id=file.id), PATIENCE)
    return api.create(Creation(mark, "m", kind, len(asked), lines=path), PATIENCE)
