"""Helpers for Batch API tests: requests in a file, OpenAI's batch objects and result lines, and polling."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from smartbatch.errors import ProviderError
from smartbatch.providers.batch_api import BatchApi, Creation, Line, RemoteBatch
from smartbatch.types import Kind, Request

PATIENCE = 20.0  # seconds; reached only by failing tests
MARK = "7N42dgm5tFLK9N8MT7fHC7"


def requests(count: int) -> list[Request]:
    return [Request(prompt=f"prompt {number}") for number in range(count)]


def spool(api: BatchApi, folder: Path, asked: Iterable[Request], mark: str = MARK) -> Path:
    path = folder / f"{mark}.in"
    lines = [api.encode(each, model="m", wire_id=f"{mark}-{at}") for at, each in enumerate(asked)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def creation(file_id: str = "file-1", kind: Kind = Kind.GENERATE) -> Creation:
    return Creation(mark=MARK, model="m", kind=kind, size=5, file_id=file_id)


def ended(api: BatchApi, batch: RemoteBatch) -> RemoteBatch:
    deadline = time.monotonic() + PATIENCE
    while not batch.state.ended:
        assert time.monotonic() < deadline, batch
        found = api.get(batch.id, PATIENCE)
        assert found is not None
        batch = found
    return batch


def two_pages(api: BatchApi) -> list[str | None]:
    first = api.page(None, PATIENCE).next
    return [first, api.page(first, PATIENCE).next]


def results(api: BatchApi, batch: RemoteBatch, kind: Kind = Kind.GENERATE) -> dict[str, Line]:
    """Return all result lines by id; ids must be unique."""
    data = b"".join(b"".join(api.download(batch, output, PATIENCE)) for output in batch.outputs)
    lines = [api.read_line(line, kind) for line in data.split(b"\n") if line]
    assert len({line.wire_id for line in lines}) == len(lines)
    return {line.wire_id: line for line in lines}


def fails(call: Callable[[], Any]) -> ProviderError:
    """Return the error of ``call``, which must not contain the key."""
    with pytest.raises(ProviderError) as caught:
        call()
    found = caught.value
    shown = f"{found!r} {found.__dict__} {found.__cause__!r}"
    assert "canary" not in shown
    return found


def described(**changes: Any) -> dict[str, Any]:
    return {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "errors": None,
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": "in_progress",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 1795000000,
        "request_counts": {"total": 5, "completed": 2, "failed": 1},
        "metadata": {"sb": MARK, "sbn": "5"},
        **changes,
    }


def result_line(status: int = 200, body: Any = None, **changes: Any) -> bytes:
    response = {"status_code": status, "request_id": "r1", "body": body}
    line = {"id": "batch_req_1", "custom_id": "n-0", "response": response, "error": None, **changes}
    return json.dumps(line).encode()
