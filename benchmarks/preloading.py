"""What preloading costs an application under gunicorn with green threads.

``python -m benchmarks.preloading [ROUNDS]`` runs an application with a client at module level under
``gunicorn -k gevent``, with ``--preload`` and without. Both run at once and are asked in turns, so that a
machine that gets slower does so for both. Compared are the medians of the 95th percentiles of their answers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.targets import Targets
from tests.hosts.web_servers import SERVERS, Running, provider, run_server

ROUNDS = 15
REQUESTS, AT_ONCE = 200, 16
LATENCY = 0.05
"""Seconds in which the model answers."""
MOST = 1.2
"""How many times as long an answer may take with ``--preload``."""
COMPARED = ("gunicorn -k gevent", "gunicorn -k gevent --preload")


def seconds(server: Running, prompt: str) -> float:
    """Ask once and return the seconds until the answer."""
    began = time.monotonic()
    reply = server.ask(prompt)
    if not reply.is_right:
        raise AssertionError(f"{server.server.name}: {reply}")
    return time.monotonic() - began


def p95(server: Running, number: int) -> float:
    """Ask a round and return the 95th percentile of the seconds."""
    prompts = [f"round{number}prompt{n}" for n in range(REQUESTS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return statistics.quantiles(pool.map(lambda prompt: seconds(server, prompt), prompts), n=20)[-1]


def main() -> None:
    """Ask both servers in turns and compare."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    targets = Targets()
    named = {server.name: server for server in SERVERS}
    with ExitStack() as stack:
        model = stack.enter_context(provider(LATENCY))
        running = []
        for name in COMPARED:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            running.append(stack.enter_context(run_server(named[name], model.environ, folder)))
        for server in running:
            p95(server, 0)  # what each process imports at its first request is not compared
        found = [[p95(server, number) for server in running] for number in range(1, rounds + 1)]
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
