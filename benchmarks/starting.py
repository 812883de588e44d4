"""Measures the CPU time from the start of a process until it sends its first request.

The server reads the CPU clock of the process before it answers, so later work is not measured. Each variant
runs in its own process, with compiled modules in a folder of the benchmark. The variants alternate, and
medians are reported. The cost of an SDK is the cost of a process that only imports it. All times are
compared with a process that only imports ``urllib3`` and ``json``.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import field, frozen

ANSWERS: Mapping[str, bytes] = {
    "/chat/completions": (
        b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"fine"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,'
        b'"completion_tokens":1,"total_tokens":4}}'
    ),
    "/v1/messages": (
        b'{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"fine"}],'
        b'"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}'
    ),
    ":generateContent": (
        b'{"candidates":[{"content":{"role":"model","parts":[{"text":"fine"}]},"finishReason":"STOP",'
        b'"index":0}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":1,"totalTokenCount":4}}'
    ),
}
"""Responses by the end of the path, without its query."""

SCRIPT = "import smartbatch; assert smartbatch.generate(['hello'], model={model!r})[0].text == 'fine'"
IMPORT = (
    "import os, socket, {module}; port = int(os.environ['ANTHROPIC_BASE_URL'].rpartition(':')[2]); "
    "connection = socket.create_connection(('127.0.0.1', port)); "
    "connection.sendall(b'POST /v1/messages HTTP/1.1\\r\\n\\r\\n'); connection.recv(1)"
)
"""Imports a module and sends one request, before whose response the server reads the CPU clock."""
MEASURE = "import urllib3, json"
"""The way relative to whose CPU time the others are measured."""


@frozen
class Way:
    """One way to a first request.

    Attributes:
        over: the way whose CPU time is subtracted before comparing with the bound.
    """

    name: str
    command: Sequence[str]
    over: str | None = None


@frozen
class FirstByte:
    """A server that reads the CPU time of a process when its first byte arrives.

    Attributes:
        port: where it listens, on the loopback address.
    """

    port: int
    _listener: socket.socket
    _read: list[float] = field(factory=list)
    _watched: list[int] = field(factory=list)

    @classmethod
    def open(cls) -> FirstByte:
        """Return a listening server, with a thread that answers."""
        listener = socket.create_server(("127.0.0.1", 0))
        server = cls(listener.getsockname()[1], listener)
        threading.Thread(target=server._serve, daemon=True).start()
        return server

    def cpu_of(self, command: Sequence[str], environment: Mapping[str, str]) -> float:
        """Run a command to its end; return the CPU seconds it had used at its first byte."""
        self._read.clear()
        process = subprocess.Popen(
            command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._watched[:] = [process.pid]
        _, said = process.communicate(timeout=120)
        if process.returncode or not self._read:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said}")
        return self._read[0]

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # a process that ends with an open connection may reset it
        with suppress(ConnectionResetError), connection, connection.makefile("rb") as reader:
            while connection.recv(1, socket.MSG_PEEK):
                self._read.append(_cpu_clock(self._watched[0]))
                path = reader.readline().split()[1].partition(b"?")[0].decode()
                length = 0
                while (line := reader.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                reader.read(length)
                body = next(answer for end, answer in ANSWERS.items() if path.endswith(end))
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                    + str(len(body)).encode()
                    + b"\r\n\r\n"
                    + body
                )


def _cpu_clock(pid: int) -> float:
    """Return the CPU seconds used by all threads of a process (``clock_getcpuclockid`` of Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def _ways(rows: str, output: str) -> list[Way]:
    python = sys.executable
    run = [python, "-m", "smartbatch", "run", rows, "--model", "openai:gpt-5-mini", "-o", output]
    run += ["--template", "Classify: {text}"]
    return [
        Way(MEASURE, [python, "-c", IMPORT.format(module="urllib3, json")]),
        Way("a script, openai:", [python, "-c", SCRIPT.format(model="openai:gpt-5-mini")]),
        Way("smartbatch run, openai:", run),
        Way("smartbatch run --deadline, openai:", [*run, "--deadline", "6h"]),
        Way("import anthropic", [python, "-c", IMPORT.format(module="anthropic")]),
        Way(
            "a script, anthropic:",
            [python, "-c", SCRIPT.format(model="anthropic:claude-haiku-5-5")],
            "import anthropic",
        ),
        Way("import google.genai", [python, "-c", IMPORT.format(module="google.genai")]),
        Way(
            "a script, gemini:",
            [python, "-c", SCRIPT.format(model="gemini:gemini-3.5-flash")],
            "import google.genai",
        ),
    ]


def _environment(port: int, home: str) -> dict[str, str]:
    """Return the environment of the processes: their home folder, and the server as the URL of every
    provider.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SMARTBATCH_", "XDG_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    base = f"http://127.0.0.1:{port}"
    return kept | {
        "HOME": home,
        "PYTHONPYCACHEPREFIX": f"{home}/compiled",
        "OPENAI_BASE_URL": f"{base}/v1",
        "ANTHROPIC_BASE_URL": base,
        "GOOGLE_GEMINI_BASE_URL": base,
        "OPENAI_API_KEY": "key",
        "ANTHROPIC_API_KEY": "key",
        "GEMINI_API_KEY": "key",
    }


def measure(rounds: int, only: str) -> dict[str, list[float]]:
    """Return the CPU seconds of each way in each round, after one round for compilation."""
    server = FirstByte.open()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows, output = home / "rows.jsonl", home / "answers.jsonl"
        rows.write_text('{"text": "hello"}\n')
        environment = _environment(server.port, folder)
        ways = [way for way in _ways(str(rows), str(output)) if only in way.name or way.name == MEASURE]
        found: dict[str, list[float]] = {way.name: [] for way in ways}
        for turn in range(rounds + 1):
            for way in ways:
                output.unlink(missing_ok=True)
                used = server.cpu_of(way.command, environment)
                if turn:
                    found[way.name].append(used)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--only", default="", help="a part of the names of the ways to measure")
    args = parser.parse_args()
    found = measure(args.rounds, args.only)
    measure_of_all = statistics.median(found[MEASURE])
    for way in _ways("", ""):
        if way.name not in found:
            continue
        own = statistics.median(found[way.name])
        if way.over in found:
            own = statistics.median(a - b for a, b in zip(found[way.name], found[way.over], strict=True))
        times = own / measure_of_all
        above = f" above {way.over}" if way.over in found else ""
        print(f"{way.name:36} {own:6.3f} s of CPU{above}, {times:.2f} times")


if __name__ == "__main__":
    main()
