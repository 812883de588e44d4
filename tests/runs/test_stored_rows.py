"""Rows stored as jobs: the same run in any process continues with what the store has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import define, field
from jobs.remote import Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import InputError
from smartbatch.plan import Plan
from smartbatch.runs.row_keys import Keys, RowKeys
from smartbatch.runs.row_requests import InputRequests, PromptMaker
from smartbatch.runs.run_identity import RunIdentity, RunJob
from smartbatch.runs.stored_rows import StoredRows
from smartbatch.tables.row_source import RowSource
from smartbatch.types import Generation

ClientOf = Callable[..., BatchingClient]


@define(eq=False)
class Runs:
    client_of: ClientOf
    clock: VirtualClock
    store: str
    path: Path
    remote: Remote
    said: list[str] = field(factory=list)
    made: int = 0

    @property
    def batches(self) -> list[int]:
        assert self.remote.api is not None
        return [len(batch.lines) for batch in self.remote.api.made.values()]

    def answers(
        self, prompts: Sequence[str], *, strategy: str, written: frozenset[int] = frozenset(), most: int = 99
    ) -> dict[int, str | None]:
        self.made += 1
        self.path.write_text("".join(f"{prompt}\n" for prompt in prompts))
        client = self.client_of(self.remote, store=self.store, seed_of_rng=self.made, parallelism=1)
        found: dict[int, str | None] = {}
        with RowSource(str(self.path)) as source:
            rows = InputRequests(source, PromptMaker(), model="remote:default", params=Generation())
            keys = rows.check()
            stored = StoredRows(
                client,
                rows,
                RunIdentity(str(self.path) + ".out", "remote:default", keys),
                lambda place: place in written,
                self.clock,
                to_file=True,
                stopped=lambda: False,
                say=self.said.append,
            )

            def planned(needed: bytearray) -> Plan:
                asked = (request for _, request in rows.requests(lambda place: not needed[place]))
                return client.forecast(asked, count=sum(needed), strategy=strategy)

            stored.take_up(batches_only=strategy == "batch")
            stored.submit_missing(planned)
            stored.follow(lambda _: None).refresh()
            for group in stored.row_results(lambda _: None):
                for row, outcome in group:
                    found[row.place] = outcome.result.text
                if len(found) >= most:
                    break
        client.stop(30.0, cancel_waiting=True)
        return found


@pytest.fixture
def runs(client_of, clock, store, tmp_path):
    return Runs(client_of, clock, store, tmp_path / "in.txt", Remote(clock, latency=1.0))


PROMPTS = [f"p{n}" for n in range(12)]


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_rows_are_answered_once_whoever_asks_them_again(runs, strategy):
    first = runs.answers(PROMPTS, strategy=strategy)
    assert sorted(first) == list(range(12))
    assert runs.answers(PROMPTS, strategy=strategy) == first
    assert (len(runs.remote.asked), runs.batches) == ((12, []) if strategy == "individual" else (0, [12]))


def test_a_run_that_ended_early_goes_on_with_what_is_left(runs):
    begun = runs.answers(PROMPTS, strategy="individual", most=4)
    assert 4 <= len(begun) < 12
    rest = runs.answers(PROMPTS, strategy="individual", written=frozenset(begun))
    assert sorted([*begun, *rest]) == list(range(12))
    assert sorted(runs.remote.asked) == sorted(PROMPTS)
    assert any("continues; " in line for line in runs.said)


def test_of_an_input_that_grew_only_the_new_rows_are_sent(runs):
    runs.answers(PROMPTS[:7], strategy="individual")
    assert sorted(runs.answers(PROMPTS, strategy="individual")) == list(range(12))
    assert sorted(runs.remote.asked) == sorted(PROMPTS)


@pytest.mark.full
def test_rows_that_wait_for_real_time_go_by_batch_where_that_is_wanted(runs):
    begun = runs.answers(PROMPTS, strategy="individual", most=1)
    rest = runs.answers(PROMPTS, strategy="batch", written=frozenset(begun))
    assert sorted([*begun, *rest]) == list(range(12))
    assert sum(runs.batches) + len(runs.remote.asked) == 12
    assert any("the rest is sent as a batch now" in line for line in runs.said)


KEYS_OF = Keys.of("sim:demo", Generation())


def keys_of(rows: int, word: str = "prompt") -> RowKeys:
    keys = RowKeys(KEYS_OF.settings)
    for row in range(rows):
        keys.append(KEYS_OF.digest(f"{word} {row}"))
    return keys


@define
class JobOfRows:
    rows: Sequence[int]
    keys: RowKeys
    read: int = field(default=0, init=False)
    id: str = "job-1"

    @property
    def total(self) -> int:
        return len(self.rows)

    def contexts(self, positions: Collection[int]) -> dict[int, Any]:
        self.read += len(positions)
        rows = {position: self.rows[position] for position in positions}
        return {position: [row, self.keys[row].hex()] for position, row in rows.items()}


def found_by(job: JobOfRows, total: int) -> list[int]:
    looked: list[int] = []
    identity = RunIdentity("out.jsonl", "sim:demo", keys_of(total))
    one = RunJob(job, total, realtime=True, ended=False, stored=1)  # type: ignore[arg-type]
    is_answered = identity.by_position(one, lambda row: bool(looked.append(row)) or row % 3 == 0)
    answers = [is_answered(position) for position in range(job.total)]
    assert answers == [row % 3 == 0 for row in looked] or not (looked or any(answers))
    return looked


@pytest.mark.parametrize("lacking", [0, 1, 12])
@pytest.mark.parametrize("seed", range(3))
def test_the_rows_of_a_job_are_known_although_some_were_answered_before(seed, lacking):
    answered = set(Random(seed).sample(range(3000), lacking))
    job = JobOfRows([row for row in range(3000) if row not in answered], keys_of(3000))
    assert found_by(job, 3000) == job.rows
    assert job.read <= 2 + 50 * lacking


def test_of_a_job_with_rows_here_and_there_all_count_as_not_answered():
    job = JobOfRows(range(0, 3000, 2), keys_of(3000))
    assert found_by(job, 3000) == []
    assert job.read < job.total


def test_a_job_of_other_rows_is_refused():
    with pytest.raises(InputError, match="belongs to no row of this input"):
        found_by(JobOfRows(range(20), keys_of(20, "something else")), 20)
