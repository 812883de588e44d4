"""The first answers of a process arrive at the same moment, and every one of them is read (A16, H7)."""

from __future__ import annotations

import pytest
from run_script import run_script

SCRIPT = """
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from smartbatch import BatchingClient

ALL = 32
together = threading.Barrier(ALL)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": TEXT}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        raw = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                          "choices": [choice], "usage": usage}).encode()
        together.wait(20)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * ALL


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
options = {"api_key": "k", "base_url": f"http://127.0.0.1:{server.server_port}/v1"}
settings = dict(provider_options=options, shared="off", parallelism=ALL, schema=SCHEMA)
with BatchingClient("openai:gpt-5-mini", **settings) as client:
    futures = [client.submit(f"prompt {i}", priority="urgent") for i in range(ALL)]
    errors = [future.exception(20) for future in futures]
print([f"{type(error).__name__}: {error}" for error in errors if error is not None])
"""

KINDS = {
    "a plain schema": 'SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}',
    "an attrs class": "import attrs\nSCHEMA = attrs.make_class('City', {'a': attrs.field(type=str)})",
    "a dataclass": "import dataclasses\nSCHEMA = dataclasses.make_dataclass('City', [('a', str)])",
}
TEXTS = {"to be repaired": "{'a': 'x',}", "whole": '{"a": "x"}'}


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_no_first_answer_of_a_process_fails(kind, text):
    ended = run_script(f"{KINDS[kind]}\nTEXT = {TEXTS[text]!r}\n{SCRIPT}")
    assert ended.err == ""
    assert ended.lines == ["[]"]
