"""A server that answers at once, or after a fixed time: a tenth of the CPU of the emulator.

    python -m benchmarks.quick_server --latency 0.002

It knows what a client is measured with and no more: chat completions, embeddings, messages and
``generateContent``, each answered with a text that follows from the body, and the headers that the providers
send. It shares no code with the library.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import struct

HEADERS = {
    "chat/completions": (
        "access-control-expose-headers: X-Request-ID\r\nopenai-organization: user-abc\r\n"
        "openai-processing-ms: 50\r\nopenai-version: 2020-10-01\r\nx-envoy-upstream-service-time: 52\r\n"
        "x-ratelimit-limit-requests: 1000000000\r\nx-ratelimit-limit-tokens: 100000000000\r\n"
        "x-ratelimit-remaining-requests: 999999999\r\nx-ratelimit-remaining-tokens: 99999999999\r\n"
        "x-ratelimit-reset-requests: 2ms\r\nx-ratelimit-reset-tokens: 0s\r\nx-request-id: req_{mark}\r\n"
        "x-openai-proxy-wasm: v0.1\r\ncf-cache-status: DYNAMIC\r\nset-cookie: __cf_bm=a; path=/; HttpOnly\r\n"
        "strict-transport-security: max-age=31536000; includeSubDomains; preload\r\n"
        "x-content-type-options: nosniff\r\nserver: cloudflare\r\ncf-ray: 9a1b2c3d4e5f6789-FRA\r\n"
        'alt-svc: h3=":443"; ma=86400\r\n'
    ),
    "messages": (
        "anthropic-ratelimit-requests-limit: 1000000000\r\n"
        "anthropic-ratelimit-requests-remaining: 999999999\r\n"
        "anthropic-ratelimit-requests-reset: 2026-11-22T20:00:00Z\r\n"
        "anthropic-organization-id: 0f0f0f0f\r\nrequest-id: req_{mark}\r\nvia: 1.1 google\r\n"
        "cf-cache-status: DYNAMIC\r\nx-robots-tag: none\r\nserver: cloudflare\r\ncf-ray: 9a1b2c3d-FRA\r\n"
    ),
    "generateContent": (
        "vary: Origin\r\nvary: X-Origin\r\nvary: Referer\r\nserver: scaffolding on HTTPServer2\r\n"
        "x-xss-protection: 0\r\nx-frame-options: SAMEORIGIN\r\nx-content-type-options: nosniff\r\n"
        "server-timing: gfet4t7; dur=52\r\n"
    ),
}
"""Of each API, next to those of every answer."""

DATE = "date: Sun, 22 Nov 2026 19:54:02 GMT\r\n"


def chat(mark: str, _body: bytes) -> object:
    """A chat completion."""
    details = {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0}
    return {
        "id": f"chatcmpl-{mark}",
        "object": "chat.completion",
        "created": 1795377242,
        "model": "gpt-5-mini",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "logprobs": None,
                "message": {
                    "role": "assistant",
                    "content": f"answer {mark}",
                    "refusal": None,
                    "annotations": [],
                },
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": details,
        },
        "service_tier": "default",
        "system_fingerprint": "fp_quick",
    }


def vectors(mark: str, body: bytes) -> object:
    """A vector of 256 numbers for each text, of which the first two follow from the text."""
    asked = json.loads(body)
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    rows = []
    for index, text in enumerate(texts):
        first, second = struct.unpack("<HH", hashlib.md5(text.encode()).digest()[:4])
        numbers = [float(first), float(second), *[0.25] * 254]
        packed = base64.b64encode(struct.pack("<256f", *numbers)).decode()
        in_base64 = asked.get("encoding_format") == "base64"
        rows.append({"object": "embedding", "index": index, "embedding": packed if in_base64 else numbers})
    return {"object": "list", "data": rows, "model": mark, "usage": {"prompt_tokens": 10, "total_tokens": 10}}


def message(mark: str, _body: bytes) -> object:
    """A message of Anthropic's."""
    return {
        "id": f"msg_{mark}",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": [{"type": "text", "text": f"answer {mark}"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
            "service_tier": "standard",
        },
    }


def content(mark: str, _body: bytes) -> object:
    """An answer of Gemini's."""
    return {
        "candidates": [
            {
                "content": {"parts": [{"text": f"answer {mark}"}], "role": "model"},
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 4, "totalTokenCount": 14},
        "modelVersion": "gemini-2.5-flash",
        "responseId": mark,
    }


MAKERS = {
    "chat/completions": chat,
    "embeddings": vectors,
    "messages": message,
    "generateContent": content,
}


class Connection(asyncio.Protocol):
    """One kept-alive connection; a request is answered ``latency`` seconds after it is there."""

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._received[:end]
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self._received) < end + 4 + length:
            return
        body = self._received[end + 4 : end + 4 + length]
        self._received = self._received[end + 4 + length :]
        api = next(name for name in MAKERS if name.encode() in head.split(b"\r\n", 1)[0])
        answer = answered(api, body)
        asyncio.get_running_loop().call_later(self._latency, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


def answered(api: str, body: bytes) -> bytes:
    """Return the whole answer to a request, head and body."""
    mark = hashlib.md5(body).hexdigest()[:16]
    made = json.dumps(MAKERS[api](mark, body)).encode()
    own = HEADERS.get(api, HEADERS["chat/completions"]).format(mark=mark)
    head = (
        f"HTTP/1.1 200 OK\r\n{DATE}content-type: application/json\r\ncontent-length: {len(made)}\r\n{own}\r\n"
    )
    return head.encode() + made


async def serve(latency: float) -> None:
    """Serve on a free port, and say where."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(latency), "127.0.0.1", 0)
    print(f"serving http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args().latency))


if __name__ == "__main__":
    main()
