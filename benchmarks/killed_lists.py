"""Four processes ask the same lists through one store, and are killed at random moments, over and over.

    python -m benchmarks.killed_lists [--kills N] [--seed S] [--store ADDRESS]

Each process asks all lists of a round by their keys; a list is asked by the one that has its lease. A process
that is killed with SIGKILL, at any moment from its start on, is started again. A round ends when the
processes have all results. Nothing may be lost, no answer may be another row's, and each row that was asked
twice has to be one that an incident names.
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

from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch._clock import RealClock
from smartbatch.testing import Emulator, answer_for, emulator

MODEL = "openai:gpt-5-mini"
PROCESSES, LISTS, ROWS, PARALLELISM = 4, 4, 100, 4
LATENCY = 0.2
LONGEST = 3.0
"""Seconds after which one of the processes is killed at most."""
PATIENCE = 300.0
"""Seconds that a round has once nobody is killed any more."""


@define
class Findings:
    """What a run found.

    Attributes:
        twice: rows that were asked more than once.
        unnamed: of these, rows that no incident names.
        named: rows that incidents name.
    """

    kills: int = 0
    rounds: int = 0
    rows: int = 0
    lost: int = 0
    wrong: int = 0
    twice: int = 0
    unnamed: int = 0
    named: int = 0


def prompts(key: str) -> list[str]:
    """Return the rows of a list."""
    return [f"question {number} of {key}" for number in range(ROWS)]


def work(base_url: str, store: str, keys: Sequence[str]) -> None:
    """Ask all lists; print how many rows have no answer, and how many another row's."""
    options = {"base_url": base_url, "api_key": "any"}
    with BatchingClient(
        MODEL, provider_options=options, store=store, shared="off", parallelism=PARALLELISM
    ) as client:

        def ask(key: str) -> list[int]:
            rows = prompts(key)
            results = client.generate(rows, key=key, strategy="individual")
            lost = sum(not result.ok for result in results) + len(rows) - len(results)
            right = [answer_for(row, MODEL.partition(":")[2]) for row in rows]
            return [lost, sum(a != b for a, b in zip(results.texts, right, strict=False)) - lost]

        with ThreadPoolExecutor(len(keys)) as pool:
            print(json.dumps(list(map(sum, zip(*pool.map(ask, keys), strict=True)))), flush=True)


def start(base_url: str, store: str, keys: Sequence[str]) -> subprocess.Popen[str]:
    """Start one of the processes."""
    command = [sys.executable, "-m", "benchmarks.killed_lists", "--work", base_url, store, *keys]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def play(server: Emulator, store: str, keys: Sequence[str], kills: int, rng: Random) -> tuple[int, list[str]]:
    """Play a round; return how many processes were killed, and what the others said."""
    running = [start(server.base_url, store, rng.sample(keys, len(keys))) for _ in range(PROCESSES)]
    killed, until = 0, RealClock.now() + PATIENCE
    while any(one.poll() is None for one in running):
        RealClock().sleep(rng.uniform(0.0, LONGEST if killed < kills else 0.5))
        number = rng.randrange(PROCESSES)
        if running[number].poll() is None and killed < kills:
            running[number].kill()
            running[number].communicate()
            running[number] = start(server.base_url, store, rng.sample(keys, len(keys)))
            killed, until = killed + 1, RealClock.now() + PATIENCE
        assert RealClock.now() < until, "the processes do not end"
    said = [one.communicate()[0] for one in running]
    assert [one.returncode for one in running] == [0] * PROCESSES
    return killed, said


def named_rows(store: str, keys: Sequence[str]) -> Counter[str]:
    """Return the prompts that incidents of the lists name."""
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
    """Compare what the processes, the server and the store say of a round."""
    for each in said:
        lost, wrong = json.loads(each)
        found.lost, found.wrong = found.lost + lost, found.wrong + wrong
    asked = Counter(call.prompt for call in server.ledger.calls)
    named = named_rows(store, keys)
    for prompt in (prompt for key in keys for prompt in prompts(key)):
        more = asked[hashlib.sha256(prompt.encode()).hexdigest()] - 1
        found.twice += max(0, more)
        found.unnamed += max(0, more - named[prompt])
    found.named += named.total()
    found.rounds, found.rows = found.rounds + 1, found.rows + len(keys) * ROWS


def main() -> None:
    """Print what was found; exit with 1 where anything is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", help="a file of its own when none is given")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        base_url, store, *keys = args.work
        work(base_url, store, keys)
        return
    rng, found, targets = Random(args.seed), Findings(), Targets()
    with tempfile.TemporaryDirectory() as folder:
        store = args.store or os.path.join(folder, "jobs.db")
        while found.kills < args.kills:
            keys = [f"{os.getpid()}-{args.seed}-{found.rounds}-{number}" for number in range(LISTS)]
            with emulator(latency=LATENCY) as server:
                kills, said = play(server, store, keys, args.kills - found.kills, rng)
                found.kills += kills
                check(server, store, keys, said, found)
            print(found, flush=True)
    print(
        f"{found.kills} kills in {found.rounds} rounds of {PROCESSES} processes, {found.rows:,} rows: "
        f"{found.lost} lost ({targets.at_most(found.lost, 0)}), {found.wrong} wrong "
        f"({targets.at_most(found.wrong, 0)}); {found.twice} asked twice, {found.unnamed} of them not named "
        f"({targets.at_most(found.unnamed, 0)}); {found.named} named"
    )
    targets.exit()


if __name__ == "__main__":
    main()
