"""Checks after a run: the emulator's ledger, the store's file and the user's notes must agree."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from attrs import define, field

from tests.faults.durability.worker_task import WorkerTask, answer_to, digest_of, prompt_of

__all__ = ["RunReport", "billed_of", "check_run", "ledger_of", "notes_of"]


@define
class RunReport:
    """The figures of a run. All lists but those of the first block must be empty.

    Attributes:
        jobs, items: how many.
        outcomes: creates that reached the provider, by what became of them.
        incidents: those in the store, by kind.
        excused: prompts paid twice for which the store has an incident with its cost.

        lost: prompts without an answer in the user's notes, or without a billed one.
        wrong: notes of an answer that is not the prompt's.
        twice: answers that were handed out twice by one process, or changed between two.
        paid_twice: prompts that were billed more than once.
        corrupt: what is wrong with the store.
        stuck: jobs that too many workers in a row did not carry on; the loop fills it.
    """

    jobs: int = 0
    items: int = 0
    outcomes: Counter[str] = field(factory=Counter)
    incidents: Counter[str] = field(factory=Counter)
    excused: list[str] = field(factory=list)

    lost: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)
    twice: list[str] = field(factory=list)
    paid_twice: list[str] = field(factory=list)
    corrupt: list[str] = field(factory=list)
    stuck: list[str] = field(factory=list)

    @property
    def faults(self) -> list[str]:
        """Everything that must not be."""
        named = {
            "lost": self.lost,
            "wrong": self.wrong,
            "delivered twice": self.twice,
            "paid twice": self.paid_twice,
            "corrupt": self.corrupt,
            "stuck": self.stuck,
        }
        return [f"{name}: {one}" for name, found in named.items() for one in found]


def check_run(url: str, store: Path, jobs: Sequence[WorkerTask]) -> RunReport:
    """Check jobs that have ended on an SQLite store.

    Args:
        url: the emulator's address.
        store: the store's file.
        jobs: their task.
    """
    report = RunReport(jobs=len(jobs), items=sum(job.size for job in jobs))
    ledger = ledger_of(url)
    billed = billed_of(ledger)
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        _check_store(connection, jobs, report)
        told = {row[0] for row in connection.execute("SELECT job_id FROM incident WHERE money IS NOT NULL")}
        ids = {row[0]: row[1] for row in connection.execute("SELECT CAST(user_key AS TEXT), id FROM job")}
        kinds = connection.execute("SELECT kind, count(*) FROM incident GROUP BY kind")
        report.incidents.update(dict(kinds.fetchall()))
    for job in jobs:
        _check_notes(job, report)
        for number in range(job.size):
            prompt = prompt_of(job.key, number)
            times = billed[digest_of(prompt)]
            if times == 0:
                report.lost.append(f"{prompt} (never billed)")
            elif times > 1:
                excused = job.provider == "anthropic" and ids.get(job.key) in told
                (report.excused if excused else report.paid_twice).append(prompt)
    nonces = _nonces(store)
    report.outcomes.update(
        record["outcome"] for record in ledger["batch_records"] if str(record["custom_id"])[:22] in nonces
    )
    return report


def ledger_of(url: str) -> dict[str, Any]:
    """Return the whole ledger of the emulator at ``url``."""
    with urlopen(f"{url}/_ledger?full=1") as answer:
        full: dict[str, Any] = json.load(answer)
    return full


def billed_of(ledger: dict[str, Any]) -> Counter[str]:
    """Return how often each prompt was billed, by its digest: in batches and in real time together."""
    lines = (line for record in ledger["batch_records"] for line in record["lines"])
    return Counter(each["prompt"] for each in (*ledger["calls"], *lines) if each["billed"])


def _nonces(store: Path) -> set[str]:
    """Return the nonces of the store's shards."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return {row[0] for row in connection.execute("SELECT nonce FROM shard")}


def _check_store(connection: sqlite3.Connection, jobs: Sequence[WorkerTask], report: RunReport) -> None:
    whole = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if whole != "ok":
        report.corrupt.append(whole)
    rows = {
        row[0]: row[1:]
        for row in connection.execute(
            "SELECT CAST(user_key AS TEXT), no, state, total, succeeded, failed, cancelled FROM job"
        )
    }
    for job in jobs:
        if job.key not in rows:
            report.corrupt.append(f"{job.key} is not in the store")
            continue
        no, state, total, succeeded, failed, cancelled = rows[job.key]
        results = connection.execute(
            "SELECT count(*) FROM result WHERE no >= ? AND no < ?", (no << 32, (no + 1) << 32)
        ).fetchone()[0]
        if (state, total, succeeded, failed, cancelled, results) != (
            "done",
            job.size,
            job.size,
            0,
            0,
            job.size,
        ):
            report.corrupt.append(f"{job.key} is {rows[job.key]} with {results} results, not {job.size} done")


def _check_notes(job: WorkerTask, report: RunReport) -> None:
    answers: Counter[str] = Counter()
    for row in notes_of(job):
        if "id" in row:
            answers[row["id"]] += 1
            if row["text"] != answer_to(job, int(row["id"][1:])):
                report.wrong.append(f"{job.key} {row['id']}: {row['text']}")
        elif "twice" in row or "changed" in row:
            report.twice.append(f"{job.key} {row}")
    for number in range(job.size):
        match answers[f"q{number}"]:
            case 0:
                report.lost.append(f"{prompt_of(job.key, number)} (not in the notes)")
            case 1:
                pass
            case times:
                report.twice.append(f"{job.key} q{number}: {times} times")


def notes_of(job: WorkerTask) -> Iterable[dict[str, Any]]:
    """Return the lines a job's user has written."""
    path = Path(job.out)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
