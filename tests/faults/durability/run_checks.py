"""Checks after a run: the emulator's ledger, the store's file and the user's notes must agree."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from attrs import define, field, frozen

from tests.faults.durability.worker_task import WorkerTask, answer_to, digest_of, prompt_of

DOUBLED = ("double_submission", "maybe_billed", "missing_items", "token_mismatch")
"""Incidents that say that requests were, or may be, paid twice."""


@define
class RunReport:
    # jobs, items: how many
    jobs: int = 0
    items: int = 0
    # creates that reached the provider, by what became of them
    outcomes: Counter[str] = field(factory=Counter)
    incidents: Counter[str] = field(factory=Counter)  # those in the store, by kind
    # prompts paid twice for whose job the store has an incident that says so
    excused: list[str] = field(factory=list)

    # prompts without an answer in the user's notes, or without a billed one
    lost: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)  # notes of an answer that is not the prompt's
    # answers that were handed out twice by one process, or changed between two
    twice: list[str] = field(factory=list)
    paid_twice: list[str] = field(factory=list)  # prompts that were billed more than once
    corrupt: list[str] = field(factory=list)  # what is wrong with the store
    # jobs that too many workers in a row did not carry on; the loop fills it
    stuck: list[str] = field(factory=list)

    @property
    def faults(self) -> list[str]:
        named = {
            "lost": self.lost,
            "wrong": self.wrong,
            "delivered twice": self.twice,
            "paid twice": self.paid_twice,
            "corrupt": self.corrupt,
            "stuck": self.stuck,
        }
        return [f"{name}: {one}" for name, found in named.items() for one in found]


def check_run(url: str, store: StoreView, jobs: Sequence[WorkerTask]) -> RunReport:
    report = RunReport(jobs=len(jobs), items=sum(job.size for job in jobs))
    ledger = ledger_of(url)
    billed = billed_of(ledger)
    _check_store(store, jobs, report)
    incidents = store.rows("SELECT job_id, kind FROM incident")
    told = {job for job, kind in incidents if kind in DOUBLED}
    ids = {_name(row[0]): row[1] for row in store.rows("SELECT user_key, id FROM job")}
    report.incidents.update(kind for _, kind in incidents)
    for job in jobs:
        if job.reading == "command":
            _check_output(job, report)
        else:
            _check_notes(job, report)
        for number in range(job.size):
            prompt = prompt_of(job.key, number)
            times = billed[digest_of(prompt)]
            if times == 0:
                report.lost.append(f"{prompt} (never billed)")
            elif times > 1:
                excused = ids.get(_name_of(job)) in told
                (report.excused if excused else report.paid_twice).append(prompt)
    nonces = {nonce for (nonce,) in store.rows("SELECT nonce FROM shard")}
    report.outcomes.update(
        record["outcome"] for record in ledger["batch_records"] if str(record["custom_id"])[:22] in nonces
    )
    return report


def ledger_of(url: str) -> dict[str, Any]:
    with urlopen(f"{url}/_ledger?full=1") as answer:
        full: dict[str, Any] = json.load(answer)
    return full


def billed_of(ledger: dict[str, Any]) -> Counter[str]:
    lines = (line for record in ledger["batch_records"] for line in record["lines"])
    return Counter(each["prompt"] for each in (*ledger["calls"], *lines) if each["billed"])


def _name(key: bytes) -> str:
    name, mark, _ = bytes(key).decode().rpartition(":")
    return name if name.startswith("run:") and mark else bytes(key).decode()


def _name_of(job: WorkerTask) -> str:
    return f"run:{os.path.basename(job.output)}" if job.reading == "command" else job.key


def _check_store(store: StoreView, jobs: Sequence[WorkerTask], report: RunReport) -> None:
    if store.is_file and (whole := store.rows("PRAGMA integrity_check")[0][0]) != "ok":
        report.corrupt.append(whole)
    rows: dict[str, tuple[Any, ...]] = {}
    for key, *row in store.rows(
        "SELECT user_key, no, state, total, succeeded, failed, cancelled FROM job ORDER BY no"
    ):
        if _name(key) in rows:
            report.corrupt.append(f"{_name(key)} is in the store twice: rows were asked again")
        rows[_name(key)] = tuple(row)
    for job in jobs:
        if _name_of(job) not in rows:
            report.corrupt.append(f"{job.key} is not in the store")
            continue
        no, state, total, succeeded, failed, cancelled = rows[_name_of(job)]
        first, last = no << 32, (no + 1) << 32
        results = store.rows(f"SELECT count(*) FROM result WHERE no >= {first} AND no < {last}")[0][0]
        done = ("done", job.size, job.size, 0, 0, job.size)
        if (state, total, succeeded, failed, cancelled, results) != done:
            report.corrupt.append(
                f"{job.key} is {rows[_name_of(job)]} with {results} results, not {job.size} done"
            )


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


def _check_output(job: WorkerTask, report: RunReport) -> None:
    lines = _lines_of(job)
    if [line["index"] for line in lines] != list(range(job.size)):
        found = sorted(line["index"] for line in lines)
        report.lost.append(f"{job.key}: of {job.size} rows the output has {found}")
    for line in lines:
        if line["text"] != answer_to(job, line["index"]):
            report.wrong.append(f"{job.key} row {line['index']}: {line['text']} {line['error']}")


def answered_in(job: WorkerTask) -> int:
    try:
        return len(_lines_of(job))
    except (OSError, ValueError):
        return 0


def _lines_of(job: WorkerTask) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(job.output).read_bytes().splitlines()]


def notes_of(job: WorkerTask) -> Iterable[dict[str, Any]]:
    path = Path(job.out)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@frozen
class StoreView:
    """Reads a store; a connection for each look."""

    place: str

    @property
    def is_file(self) -> bool:
        return "://" not in self.place

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        if self.is_file:
            with closing(sqlite3.connect(f"file:{self.place}?mode=ro", uri=True, timeout=0.3)) as connection:
                return connection.execute(statement).fetchall()
        import psycopg

        address, _, rest = self.place.partition("schema=")
        schema = rest.partition("&")[0]
        with psycopg.connect(address.rstrip("?&")) as session:
            session.execute(f"SET search_path TO {schema}".encode())
            return session.execute(statement.encode()).fetchall()
