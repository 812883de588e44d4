"""The real SDK on an emulated Gemini service in virtual time, with inputs and outputs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from google import genai
from google.genai import errors, types
from virtual_service import VirtualService

MODEL = "gemini-3.8-flash"
EMBEDDER = "gemini-embedding-001"


def sdk_of(virtual: VirtualService, key: str = "k", version: str = "v1") -> genai.Client:
    options = types.HttpOptions(
        base_url="http://emulator.localhost", api_version=version, httpx_client=virtual.client()
    )
    return genai.Client(api_key=key, vertexai=False, http_options=options)


def contents(text: str, **fields: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}], **fields}


def rows(count: int, mark: str = "j") -> list[dict[str, Any]]:
    return [{"key": f"{mark}-{n}", "request": contents(f"{mark}{n}")} for n in range(count)]


def jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


def upload(sdk: genai.Client, data: bytes, name: str | None = None) -> str:
    config = types.UploadFileConfig(mime_type="application/jsonl", display_name="mark", name=name)
    return sdk.files.upload(file=io.BytesIO(data), config=config).name


def create(sdk: genai.Client, lines: Iterable[Any], name: str | None = None) -> str:
    file = upload(sdk, jsonl(lines), name)
    return sdk.batches.create(model=MODEL, src=file, config={"display_name": "mark"}).name


def read(sdk: genai.Client, batch: str) -> list[dict[str, Any]]:
    data = sdk.files.download(file=sdk.batches.get(name=batch).dest.file_name)
    return [json.loads(line) for line in data.split(b"\n") if line]


def kinds_of(lines: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the error code of each line by key; 0 for an answer."""
    return {line["key"]: line["error"]["code"] if "error" in line else 0 for line in lines}


def text_of(line: dict[str, Any]) -> str:
    return line["response"]["candidates"][0]["content"]["parts"][0]["text"]


def raw_of(virtual: VirtualService, sdk: genai.Client, batch: str) -> dict[str, Any]:
    """Return the raw batch, much of which the SDK drops."""
    sdk.batches.get(name=batch)
    return json.loads(virtual.replies[-1].content)


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(errors.APIError) as caught:
        call()
    return f"{caught.value.code} {caught.value.status}: {caught.value.message}"
