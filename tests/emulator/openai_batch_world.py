"""OpenAI's SDK with files and batches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai

from smartbatch.testing import Emulator, emulator

CHAT = "/v1/chat/completions"
KEY = {"authorization": "Bearer k"}
PATIENCE = 20.0  # seconds that only a failing test waits


def line(number: int, prompt: str | None = None, **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt or f"prompt {number}"}]}
    return {"custom_id": f"id-{number}", "method": "POST", "url": CHAT, "body": body} | changes


def rows(lines: list[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)


def read(data: bytes) -> dict[str, dict[str, Any]]:
    found = [json.loads(row) for row in data.split(b"\n") if row]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


class Customer:
    def __init__(self, emu: Emulator, key: str = "k") -> None:
        self.sdk = openai.OpenAI(api_key=key, base_url=emu.base_url, max_retries=0, timeout=PATIENCE)

    def __enter__(self) -> Customer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sdk.close()

    def upload(self, lines: list[Any] | bytes, name: str = "job.jsonl") -> openai.types.FileObject:
        data = lines if isinstance(lines, bytes) else rows(lines)
        return self.sdk.files.create(file=(name, data), purpose="batch")

    def create(self, lines: Any = 5, endpoint: str = CHAT, **options: Any) -> openai.types.Batch:
        if isinstance(lines, int):
            lines = [line(number) for number in range(lines)]
        return self.sdk.batches.create(
            input_file_id=self.upload(lines).id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
            **options,
        )

    def run(self, lines: Any = 5, **options: Any) -> openai.types.Batch:
        name = self.create(lines, **options).id
        return until(lambda: self.sdk.batches.retrieve(name), lambda batch: batch.status in ENDS)

    def lines(self, file_id: str | None) -> dict[str, dict[str, Any]]:
        assert file_id is not None
        return read(self.sdk.files.content(file_id).read())


ENDS = ("completed", "failed", "expired", "cancelled")


def until(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    """Repeat for a bounded time."""
    deadline = time.monotonic() + PATIENCE
    while not good(found := ask()):
        assert time.monotonic() < deadline, found
    return found


@contextmanager
def world(**settings: Any) -> Iterator[tuple[Emulator, Customer]]:
    with emulator(hang_seconds=0.05, **settings) as emu, Customer(emu) as customer:
        yield emu, customer
