"""What the tests of Anthropic's batches share: the real SDK on a service in virtual time, and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch
from virtual_service import VirtualService

MODEL = "claude-haiku-5-5"
ROOT = "/v1/messages/batches"
OLD = "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n"


def sdk_of(virtual: VirtualService, key: str = "k") -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url="http://emulator.localhost", api_key=key, max_retries=0, http_client=virtual.client()
    )


def params(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}], **fields}


def requests(count: int, mark: str = "j", **fields: Any) -> list[dict[str, Any]]:
    return [{"custom_id": f"{mark}-{n}", "params": params(f"{mark}{n}", **fields)} for n in range(count)]


def lines_of(sdk: anthropic.Anthropic, batch: str) -> list[tuple[str, str]]:
    """Return id and kind of each line, ``type`` of the error included."""
    found = []
    for line in sdk.messages.batches.results(batch):
        result = line.result
        kind = f"errored {result.error.error.type}" if result.type == "errored" else result.type
        found.append((line.custom_id, kind))
    return found


def counts_of(batch: MessageBatch) -> dict[str, int]:
    return {name: count for name, count in batch.request_counts.model_dump().items() if count}


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(anthropic.APIStatusError) as caught:
        call()
    error = caught.value.body["error"]
    return f"{caught.value.status_code} {error['type']}: {error['message']}"
