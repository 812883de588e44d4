"""Compares smartbatch with other libraries: CPU, memory, rate limits and outages.

    python -m benchmarks.peers --rounds 5

Each library runs in its own process against a new emulator, and medians are reported. Libraries that are
not installed are left out (``pip install openai litellm langchain-openai async-batch-llm``).

- *busy*: 2,000 requests of 50 ms, 64 in flight. *fast*: 5,000 requests of 2 ms.
- *limit*: 200 requests to a server that accepts 20 per second without reporting it.
- *outage*: 1,000 requests of 50 ms; after the first second, all calls fail with 503 for five seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from benchmarks.harness import emulator, ledger, prompts, reset_ledger
from benchmarks.peer_clients import LISTS

CASES = {
    "busy": (2_000, ("--latency", "0.05")),
    "fast": (5_000, ("--latency", "0.002")),
    "limit": (200, ("--latency", "0.05", "--rpm", "1200", "--enforce", "second", "--no-limit-headers")),
    "outage": (1_000, ("--latency", "0.05", "--outage-between", "1:6")),
}
FIGURES = ("CPU, ms", "wall, s", "memory, MB", "lost", "refused, %")


def one(case: str, library: str, url: str) -> None:
    """Run a library on a case in this process, and print what it took."""
    send = LISTS[library][1]
    send(url, ["warm"])
    reset_ledger(url)
    texts = prompts(CASES[case][0])
    cpu, wall = time.process_time(), time.perf_counter()
    answers = send(url, texts)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    answered = [answer for answer in answers if answer is not None]
    if len(set(answered)) != len(answered):
        raise AssertionError("answers belong to other rows")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([1000 * cpu / len(texts), wall, peak, len(texts) - len(answered)]), flush=True)
    os._exit(0)  # remaining threads would slow the next library down


def measure(case: str, library: str) -> list[float]:
    """Return the figures of a library for a case."""
    with emulator(*CASES[case][1]) as url:
        command = [sys.executable, "-m", "benchmarks.peers", "--one", case, library, url]
        environment = {**os.environ, "SMARTBATCH_SHARED": "off"}
        printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        report = ledger(url)
    refused = 100 * report["by_status"].get("429", 0) / max(1, report["received"])
    return [*json.loads(printed.splitlines()[-1]), refused]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
    installed = [
        name for name, (module, _) in LISTS.items() if module is None or importlib.util.find_spec(module)
    ]
    for case in options.case or CASES:
        print(f"\n**{case}**\n\n| library | {' | '.join(FIGURES)} |\n|---|{'---|' * len(FIGURES)}")
        rounds = [[measure(case, name) for name in installed] for _ in range(options.rounds)]
        for at, name in enumerate(installed):
            medians = [statistics.median(each) for each in zip(*(found[at] for found in rounds), strict=True)]
            print(f"| {name} | {' | '.join(f'{figure:,.2f}' for figure in medians)} |", flush=True)


if __name__ == "__main__":
    main()
