"""What preloading costs an application under gunicorn with green threads.

``python -m benchmarks.preloading [ROUNDS]`` runs an application with a client at module level under
``gunicorn -k gevent``, with ``--preload`` and without. Both run at once and are asked in turns, so that a
machine that gets slower does so for both. Compared are the medians of the 95th percentiles of their answers.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.server import emulator
from benchmarks.targets import Targets

ROUNDS = 15
REQUESTS, AT_ONCE = 200, 16
LATENCY = 0.05
"""Seconds in which the model answers."""
MOST = 1.2
"""How many times as long an answer may take with ``--preload``."""
PATIENCE = 60.0
"""Seconds in which a server starts and in which it answers."""
APPLICATION = Path(__file__).parents[1] / "tests" / "hosts"


@contextmanager
def server(folder: Path, base_url: str, *options: str) -> Iterator[str]:
    """Run the application under gunicorn and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [shutil.which("gunicorn", path=path) or "gunicorn", "web_app:application"]
    command += ["--chdir", str(APPLICATION), "--bind", address, "--worker-class", "gevent"]
    command += ["--workers", "2", "--no-control-socket", "--log-level", "warning", *options]
    told = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "benchmark", "XDG_STATE_HOME": str(folder)}
    process = subprocess.Popen(command, env=os.environ | told)
    try:
        yield f"http://{address}/"
    finally:
        process.terminate()
        process.wait()


def ask(address: str) -> float:
    """Ask once and return the seconds until the answer."""
    began = time.monotonic()
    with urlopen(address, timeout=PATIENCE) as answer:  # a status of an error raises
        answer.read()
    return time.monotonic() - began


def started(address: str) -> None:
    """Return once the server answers."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            ask(f"{address}?first")
            return
        except URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def p95(address: str, number: int) -> float:
    """Ask a round and return the 95th percentile of the seconds."""
    asked = [f"{address}?round{number}prompt{n}" for n in range(REQUESTS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return statistics.quantiles(pool.map(ask, asked), n=20)[-1]


def main() -> None:
    """Ask both servers in turns and compare."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    targets = Targets()
    with (
        tempfile.TemporaryDirectory() as folder,
        emulator("--latency", str(LATENCY)) as base_url,
        server(Path(folder), base_url) as plain,
        server(Path(folder), base_url, "--preload") as preloaded,
    ):
        for address in (plain, preloaded):
            started(address)
            p95(address, 0)  # what each process imports at its first request is not compared
        found = [(p95(plain, number), p95(preloaded, number)) for number in range(1, rounds + 1)]
    without, preloading = (statistics.median(column) for column in zip(*found, strict=True))
    ratio = preloading / without
    print(
        f"95th percentile of {REQUESTS} answers, {AT_ONCE} at once, medians of {rounds} rounds in turns:\n"
        f"  without --preload {1000 * without:.1f} ms, with it {1000 * preloading:.1f} ms\n"
        f"  ratio {ratio:.2f}   {targets.at_most(ratio, MOST)}"
    )
    targets.exit()


if __name__ == "__main__":
    main()
