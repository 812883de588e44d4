"""A test server that sends exactly the given bytes, one script per request."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
Script = Callable[["Exchange"], None]


class Exchange:
    def __init__(self, sock: socket.socket, head: str, body: bytes, server: RawServer) -> None:
        self.sock = sock
        self.head = head
        self.body = body
        self.server = server
        self.keep = True

    @property
    def target(self) -> str:
        return self.head.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def json(self) -> dict:
        return json.loads(self.body)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def close(self) -> None:
        self.keep = False

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.keep = False


class RawServer:
    """Answers the nth request with the nth script; the last script repeats."""

    def __init__(self, scripts: Iterable[Script], *, tls: bool = False) -> None:
        self._scripts = list(scripts)
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(HERE / "localhost.pem")
        self.requests: list[Exchange] = []
        self.connections = 0
        self.done = threading.Event()
        self.arrived = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    @property
    def base_url(self) -> str:
        return f"http{'s' if self._tls else ''}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}/v1"

    def stop(self) -> None:
        self.done.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        for sock in accepted(self._listener):
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with self._lock:
                self._open.append(sock)
            while self._one(sock):
                pass
        except OSError:
            pass
        finally:
            with self._lock:
                if sock in self._open:
                    self._open.remove(sock)
            sock.close()

    def _one(self, sock: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = sock.recv(65536)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        exchange = Exchange(sock, head.decode("latin-1"), body, self)
        wanted = int(exchange.headers.get("content-length", 0))
        rest = bytearray(body)
        while len(rest) < wanted:
            rest += sock.recv(65536)
        exchange.body = bytes(rest)
        with self._lock:
            number = len(self.requests)
            self.requests.append(exchange)
        self.arrived.release()
        self._scripts[min(number, len(self._scripts) - 1)](exchange)
        return exchange.keep


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        yield sock


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    named = {"content-type": "application/json", "content-length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def says(body: bytes | dict | str, status: str = "200 OK", **headers: str) -> Script:
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    elif isinstance(body, str):
        body = body.encode()
    answer = http(body, status, **headers)
    return lambda exchange: exchange.send(answer)


def chunked(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def streams(
    *pieces: bytes, then: Script = lambda exchange: exchange.send(b"0\r\n\r\n"), **headers: str
) -> Script:
    """Send pieces as chunks of an event stream, and then the last chunk or whatever ``then`` sends."""
    named = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items())

    def script(exchange: Exchange) -> None:
        exchange.send(f"{head}\r\n".encode() + b"".join(map(chunked, pieces)))
        then(exchange)

    return script


def chat(text: str | None = "Lima", **changes: object) -> dict:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-5-mini-2026-01-01",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text, "refusal": None},
            }
        ],
        "usage": {
            "prompt_tokens": 31,
            "completion_tokens": 78,
            "total_tokens": 109,
            "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 20},
            "completion_tokens_details": {"reasoning_tokens": 64},
        },
        **changes,
    }


def error(message: str, type_: str | None = None, code: object = None) -> dict:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def hangs(exchange: Exchange) -> None:
    exchange.server.done.wait(30)
    exchange.close()


def trickles(exchange: Exchange) -> None:
    """Send an answer byte by byte for about two seconds, without a slow read."""
    for byte in http(json.dumps(chat("x" * 50)).encode()):
        if exchange.server.done.wait(0.003):
            return
        exchange.send(bytes([byte]))


def resets(exchange: Exchange) -> None:
    """Read the request and reset the connection."""
    exchange.reset()


def vanishes(exchange: Exchange) -> None:
    """Read the request and close the connection."""
    exchange.close()
