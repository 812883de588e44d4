"""A small server of Anthropic's API, of the standard library alone: its batches end at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

__all__ = ["SmallClaude", "small_claude"]


class SmallClaude:
    """What the server was asked, and what it answers.

    Args:
        answer: the text of an answer, by the body of its request; ``None`` refuses it.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], str | None]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.batches: dict[str, dict[str, Any]] = {}
        self.url = ""

    def message(self, body: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(body)
        text = self.answer(body)
        if text is None:
            return None
        return {
            "id": f"msg_{len(self.asked)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    def batch(self, id: str) -> dict[str, Any]:
        made = self.batches[id]["made"]
        count = len(self.batches[id]["requests"])
        return {
            "id": id,
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": {
                "processing": 0,
                "succeeded": count,
                "errored": 0,
                "canceled": 0,
                "expired": 0,
            },
            "created_at": made.isoformat(),
            "ended_at": made.isoformat(),
            "expires_at": (made + timedelta(days=1)).isoformat(),
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"{self.url}/v1/messages/batches/{id}/results",
        }

    def results(self, id: str) -> bytes:
        lines = [
            {"custom_id": request["custom_id"], "result": self.result(request["params"])}
            for request in self.batches[id]["requests"]
        ]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def result(self, params: dict[str, Any]) -> dict[str, Any]:
        message = self.message(params)
        if message is None:
            return {"type": "errored", "error": REFUSED}
        return {"type": "succeeded", "message": message}


REFUSED = {"type": "error", "error": {"type": "invalid_request_error", "message": "it is refused"}}


@contextmanager
def small_claude(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[dict[str, Any]], str | None] = lambda body: "an answer",
) -> Iterator[SmallClaude]:
    claude = SmallClaude(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "/batches" not in self.path:
                message = claude.message(body)
                status = 400 if message is None else 200
                return self.reply(json.dumps(REFUSED if message is None else message).encode(), status)
            id = f"msgbatch_{len(claude.batches) + 1}"
            claude.batches[id] = {"requests": body["requests"], "made": datetime.now(UTC)}
            return self.reply(json.dumps(claude.batch(id)).encode())

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            *_, last = path.split("/")
            if last == "results":
                return self.reply(claude.results(path.split("/")[-2]))
            if last == "batches":
                data = [claude.batch(id) for id in reversed(claude.batches)]
                listed = {"data": data, "has_more": False, "first_id": None, "last_id": None}
                return self.reply(json.dumps(listed).encode())
            return self.reply(json.dumps(claude.batch(last)).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    claude.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-tests")
    monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.05")
    try:
        yield claude
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
