"""Kills processes that run keyed lists from a shared store, with SIGKILL at random moments.

    python -m benchmarks.killed_lists [--kills N] [--seed S] [--store ADDRESS]

Each of four processes sends all lists of a round by their keys, and the process that holds a list's lease
runs it. Killed processes are restarted. A round ends when the processes have all results. The benchmark
fails if a row is lost, has the answer of another row, or was sent twice without an incident that names it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from attrs import define

from smartbatch import BatchingClient
from smartbatch._clock import RealClock
from smartbatch.testing import Emulator, answer_for, emulator

MODEL = "openai:gpt-5-mini"
PROCESSES, LISTS, ROWS, PARALLELISM = 4, 4, 100, 4
LATENCY = 0.2
MAX_SECONDS_BETWEEN_KILLS = 3.0
ROUND_PATIENCE_SECONDS = 300.0  # from the last kill


@define
class Findings:
    kills: int = 0
    rounds: int = 0
    rows: int = 0
    lost: int = 0
    wrong: int = 0
    twice: int = 0  # calls beyond the first of a row
    unnamed: int = 0  # those not reported by incidents
    named: int = 0  # rows reported by incidents


def prompts(key: str) -> list[str]:
    return [f"question {number} of {key}" for number in range(ROWS)]


def work(base_url: str, store: str, keys: Sequence[str]) -> None:
    """Send all lists, and print how many rows have no answer or the answer of another row."""
    options = {"base_url": base_url, "api_key": "any"}
    with BatchingClient(
        MODEL, provider_options=options, store=store, shared="off", parallelism=PARALLELISM
    ) as client:

        def send_list(key: str) -> list[int]:
            rows = prompts(key)
            results = client.generate(rows, key=key, strategy="individual")
            lost = sum(not result.ok for result in results) + len(rows) - len(results)
            right = [answer_for(row, MODEL.partition(":")[2]) for row in rows]
            return [lost, sum(a != b for a, b in zip(results.texts, right, strict=False)) - lost]

        with ThreadPoolExecutor(len(keys)) as pool:
            print(json.dumps(list(map(sum, zip(*pool.map(send_list, keys), strict=True)))), flush=True)


def start(base_url: str, store: str, keys: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.killed_lists", "--work", base_url, store, *keys]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def play(server: Emulator, store: str, keys: Sequence[str], kills: int, rng: Random) -> tuple[int, list[str]]:
    """Run a round; return the number of killed processes and the output of the others."""
    running = [start(server.base_url, store, rng.sample(keys, len(keys))) for _ in range(PROCESSES)]
    killed, until = 0, RealClock.now() + ROUND_PATIENCE_SECONDS
    while any(one.poll() is None for one in running):
        RealClock().sleep(rng.uniform(0.0, MAX_SECONDS_BETWEEN_KILLS if killed < kills else 0.5))
        number = rng.randrange(PROCESSES)
        if running[number].poll() is None and killed < kills:
            running[number].kill()
            running[number].communicate()
            running[number] = start(server.base_url, store, rng.sample(keys, len(keys)))
            killed, until = killed + 1, RealClock.now() + ROUND_PATIENCE_SECONDS
        assert RealClock.now() < until, "the processes do not finish"
    said = [one.communicate()[0] for one in running]
    assert [one.returncode for one in running] == [0] * PROCESSES
    return killed, said


def named_rows(store: str, keys: Sequence[str]) -> Counter[str]:
    """Return the prompts named by incidents."""
    named: Counter[str] = Counter()
    with BatchingClient("sim:demo", store=store, shared="off") as client:
        for key in keys:
            for incident in client.job(key).incidents():
                found = re.search(r"rows ([\d, ]+)", incident.detail)
                assert found is not None, incident.detail
                assert "…" not in incident.detail, incident.detail
                named.update(prompts(key)[int(row)] for row in found.group(1).split(", "))
    return named


def check(server: Emulator, store: str, keys: Sequence[str], said: Sequence[str], found: Findings) -> None:
    """Compare the output of the processes, the server's ledger and the store's incidents."""
    for each in said:
        lost, wrong = json.loads(each)
        found.lost, found.wrong = found.lost + lost, found.wrong + wrong
    sent = Counter(call.prompt for call in server.ledger.calls)
    named = named_rows(store, keys)
    for prompt in (prompt for key in keys for prompt in prompts(key)):
        more = sent[hashlib.sha256(prompt.encode()).hexdigest()] - 1
        found.twice += max(0, more)
        found.unnamed += max(0, more - named[prompt])
    found.named += named.total()
    found.rounds, found.rows = found.rounds + 1, found.rows + len(keys) * ROWS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", help="a temporary file by default")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        base_url, store, *keys = args.work
        work(base_url, store, keys)
        return
    rng, found = Random(args.seed), Findings()
    with tempfile.TemporaryDirectory() as folder:
        store = args.store or os.path.join(folder, "jobs.db")
        while found.kills < args.kills:
            keys = [f"{os.getpid()}-{args.seed}-{found.rounds}-{number}" for number in range(LISTS)]
            with emulator(latency=LATENCY) as server:
                kills, said = play(server, store, keys, args.kills - found.kills, rng)
                found.kills += kills
                check(server, store, keys, said, found)
            print(found, flush=True)
    if found.lost or found.wrong or found.unnamed:
        sys.exit("rows were lost, wrong, or sent twice without an incident")


if __name__ == "__main__":
    main()
