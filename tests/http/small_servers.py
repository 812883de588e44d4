"""Small HTTP servers of the standard library, one of them with Anthropic's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

__all__ = ["JSONHandler", "SmallClaude", "served", "small_claude"]


class JSONHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError

    def read_json(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def reply(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        sent = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class SmallClaude:
    """Answers with ``answer(body)``, or refuses the request if that is ``None``. Batches end immediately."""

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
                **dict.fromkeys(("processing", "errored", "canceled", "expired"), 0),
                "succeeded": count,
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

    class Handler(JSONHandler):
        def do_POST(self) -> None:
            body = self.read_json()
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

    with served(Handler) as claude.url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-tests")
        monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.02")
        yield claude
