"""Real web servers in processes of their own, what is done to them, and requests to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from attrs import field, frozen

from smartbatch.testing import answer_for
from tests.frameworks.run_script import GUARD, PACKAGE

HERE = Path(__file__).parent
WORKERS = 2
GRACE = 10

_GUNICORN = (
    *("gunicorn", "web_app:application", "--bind", "127.0.0.1:0", "--workers", str(WORKERS)),
    *("--graceful-timeout", str(GRACE), "--no-control-socket"),
)
_UWSGI = (
    *(
        "uwsgi",
        "--master",
        "--hook-master-start",
        "unix_signal:15 gracefully_kill_them_all",
        "--need-app",
        "--http-socket",
        "127.0.0.1:PORT",
    ),
    *("--module", "web_app", "--processes", str(WORKERS), "--enable-threads", "--disable-logging"),
    *("--worker-reload-mercy", str(GRACE), "--reload-mercy", str(GRACE), "--min-worker-lifetime", "0"),
)


@frozen
class WebServer:
    """A server with options.

    Attributes:
        name: as in the table of the documentation.
        command: without what a single test adds.
        at_once: how many requests it works on in one worker.
        forks_after_import: whether the application is imported by the process that forks.
    """

    name: str
    command: tuple[str, ...]
    at_once: int = 1
    forks_after_import: bool = False

    @property
    def is_uwsgi(self) -> bool:
        return self.command[0] == "uwsgi"


def _gunicorn(kind: str, *options: str, at_once: int = 1) -> list[WebServer]:
    command = (*_GUNICORN, "--worker-class", kind, *options)
    name = f"gunicorn -k {kind}"
    return [
        WebServer(name, command, at_once),
        WebServer(f"{name} --preload", (*command, "--preload"), at_once, forks_after_import=True),
    ]


SERVERS = [
    *_gunicorn("sync"),
    *_gunicorn("gthread", "--threads", "8", at_once=8),
    *_gunicorn("gevent", at_once=1000),
    WebServer("uwsgi", _UWSGI, forks_after_import=True),
    WebServer("uwsgi --lazy-apps", (*_UWSGI, "--lazy-apps")),
    WebServer("uwsgi --threads 8", (*_UWSGI, "--threads", "8"), 8, forks_after_import=True),
]


@frozen
class Reply:
    prompt: str
    status: int
    process: int
    text: str

    @property
    def is_right(self) -> bool:
        return self.status == 200 and self.text == answer_for(self.prompt, "gpt-5-mini")


@frozen
class Running:
    server: WebServer
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, prompt: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=GUARD)
        try:
            connection.request("GET", f"/?{prompt}")
            response = connection.getresponse()
            process, _, text = response.read().decode().partition(" ")
            return Reply(prompt, response.status, int(process or 0), text)
        except TimeoutError:
            raise AssertionError(f"{prompt} hangs\n{self.log.read_text()}") from None
        except (OSError, http.client.HTTPException) as error:
            return Reply(prompt, 0, 0, repr(error))
        finally:
            connection.close()

    def ask_all(self, count: int, at_once: int, name: str = "p") -> list[Reply]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self.ask, [f"{name}{n}" for n in range(count)]))

    def scrape(self) -> dict[str, float]:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=GUARD) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
        }

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ends_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False


@frozen
class Provider:
    process: subprocess.Popen[str]
    port: int
    environ: dict[str, str] = field(init=False)

    @environ.default
    def _environ(self) -> dict[str, str]:
        return {"OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "sk-test-0000"}

    def received(self) -> int:
        with urlopen(f"http://127.0.0.1:{self.port}/_ledger") as answer:
            return int(json.load(answer)["received"])

    def wait_for(self, calls: int) -> None:
        until = time.monotonic() + GUARD
        while self.received() < calls:
            assert time.monotonic() < until, f"{self.received()} of {calls} calls came"
            runs_on(self.process)


@contextlib.contextmanager
def provider(latency: float) -> Iterator[Provider]:
    command = [sys.executable, "-m", "smartbatch", "emulator", "--port", "0", "--latency", str(latency)]
    with subprocess.Popen(command, cwd=PACKAGE.parent, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            yield Provider(running, int(line.split("/v1")[0].rsplit(":", 1)[1]))
        finally:
            running.kill()


def runs_on(process: subprocess.Popen[Any]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.02)
    return process.poll() is None


def program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if found is None:
        pytest.skip(f"{name} is not installed: the test extra has it")
    return found


@contextlib.contextmanager
def run_server(server: WebServer, environ: dict[str, str], folder: Path, *options: str) -> Iterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as free:  # uWSGI would choose another one with each reload
        port = str(free.getsockname()[1])
    arguments = [argument.replace("PORT", port) for argument in (*server.command[1:], *options)]
    command = [program(server.command[0]), *arguments]
    paths = os.pathsep.join((str(HERE), str(PACKAGE.parent), *sys.path))
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**kept, "PYTHONPATH": paths, "XDG_STATE_HOME": str(folder), **environ},
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield Running(server, process, _port_of(process, log), log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_ANNOUNCED = (
    *("Listening at: http://127.0.0.1:", "bound to TCP address 127.0.0.1:"),
    "development server at http://127.0.0.1:",
)


def _port_of(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + GUARD
    while runs_on(process) and time.monotonic() < until:
        for line in log.read_text().splitlines():
            for announced in _ANNOUNCED:
                _, found, rest = line.partition(announced)
                if found:
                    return int(rest.split()[0].rstrip(")/"))
    raise AssertionError(f"the server did not start:\n{log.read_text()}")
