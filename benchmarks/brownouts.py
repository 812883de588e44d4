"""Measures the cost of failures: 1,000 rows sent to a server that fails intermittently.

    python -m benchmarks.brownouts
    python -m benchmarks.brownouts --case "outage of 10 s" --runs 1

The client is compared with a hand-written loop and with OpenAI's SDK. Each runs in its own process against
a new emulator, and the medians of ``--runs`` are reported. *Lost* rows have no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.harness import KEY, Send, emulator, ledger, prompts, raw
from benchmarks.peer_clients import sdk_threads, smartbatch
from smartbatch import BatchingClient
from smartbatch.errors import SmartbatchError

ROWS = 1_000
CLIENTS: dict[str, Send] = {"smartbatch": smartbatch, "loop": raw, "SDK": sdk_threads}
CASES = {
    "no failures": (),
    "10 % 503": ("--faults", "503=0.1"),
    "30 % 503": ("--faults", "503=0.3"),
    "50 % 503": ("--faults", "503=0.5"),
    "20 % 500": ("--faults", "500=0.2"),
    "2 % 429, no Retry-After": ("--faults", "429_no_header=0.02"),
    "5 % mixed": ("--faults", "429=0.01,500=0.01,503=0.01,reset_before=0.01,truncated=0.01"),
    "outage of 10 s": ("--outage-between", "0.5:10.5"),
    "500 consecutive 503": ("--outage", "200:500"),
}


def one(client: str, base_url: str) -> None:
    """Run a client in this process and print what it took."""
    send = CLIENTS[client]
    began = time.perf_counter()
    try:
        answers: Sequence[object] = send(base_url, prompts(ROWS))
    except SmartbatchError:  # raised if no request of a list succeeded
        answers = [None] * ROWS
    report = {"wall": time.perf_counter() - began, "lost": sum(answer is None for answer in answers)}
    print(json.dumps(report), flush=True)
    os._exit(0)  # remaining threads would slow the next client down


def run(case: str, client: str) -> tuple[float, float, float]:
    """Return wall seconds, lost rows and calls."""
    with emulator("--latency", "0.05", *CASES[case]) as base_url:
        command = [sys.executable, "-m", "benchmarks.brownouts", "--one", client, base_url]
        environment = {**os.environ, "SMARTBATCH_SHARED": "off"}
        printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        report = json.loads(printed.splitlines()[-1])
        return report["wall"], report["lost"], ledger(base_url)["received"]


def rejected(rows: int = 200) -> None:
    """Print how many calls are made when every row is rejected alike."""
    with emulator("--faults", "no_money=1") as base_url:
        options = {"api_key": KEY, "base_url": base_url}
        with BatchingClient("openai:gpt-5-mini", provider_options=options, parallelism=64) as client:
            list(client.map(prompts(rows), strategy="individual"))
        print(f"calls when the account has no money, of {rows} rows: {ledger(base_url)['received']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
    print(f"| case | {' | '.join(CLIENTS)} |\n|---|{'---|' * len(CLIENTS)}")
    for case in options.case or CASES:
        cells = []
        for client in CLIENTS:
            runs = [run(case, client) for _ in range(options.runs)]
            wall, lost, calls = (statistics.median(each) for each in zip(*runs, strict=True))
            cells.append(f"{wall:.1f} s, {lost:g} lost, {calls:g} calls")
        print(f"| {case} | {' | '.join(cells)} |", flush=True)
    if not options.case:
        rejected()


if __name__ == "__main__":
    main()
