"""A small server of OpenAI's chat API that refuses calls for its limit, in ways of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from smartbatch.providers.openai.provider import OpenAIProvider

__all__ = ["RefusingServer", "refusing_server"]

_ANSWER = {
    "id": "chat-1",
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
_REFUSAL = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}


class RefusingServer:
    """What it was asked.

    Args:
        seconds: it refuses from its first call on.
        headers: of an answer, by whether it is a refusal.
        ahead: seconds by which its clock is ahead of ours.
    """

    def __init__(self, seconds: float, headers: Callable[[bool], dict[str, str]], ahead: float) -> None:
        self.seconds = seconds
        self.headers = headers
        self.ahead = ahead
        self.url = ""
        self.calls = 0
        self._began = 0.0
        self._lock = threading.Lock()

    @property
    def provider(self) -> OpenAIProvider:
        return OpenAIProvider("sk-of-nobody", f"{self.url}/v1")

    def refuses(self) -> bool:
        with self._lock:
            self.calls += 1
            self._began = self._began or time.monotonic()
            return time.monotonic() - self._began < self.seconds


@contextmanager
def refusing_server(
    seconds: float, headers: Callable[[bool], dict[str, str]], *, ahead: float = 0.0
) -> Iterator[RefusingServer]:
    state = RefusingServer(seconds, headers, ahead)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + state.ahead, usegmt=True)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            refused = state.refuses()
            body = json.dumps(_REFUSAL if refused else _ANSWER).encode()
            self.send_response(429 if refused else 200)
            for name, value in state.headers(refused).items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
