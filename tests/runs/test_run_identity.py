"""Which rows of the input the requests of a run's job are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import pytest
from attrs import define, field

from smartbatch.errors import InputError
from smartbatch.runs.row_keys import Keys, RowKeys
from smartbatch.runs.run_identity import RunIdentity, RunJob
from smartbatch.types import Generation

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
def test_the_rows_of_a_job_are_known_although_some_were_answered_before(seed: int, lacking: int) -> None:
    answered = set(Random(seed).sample(range(3000), lacking))
    job = JobOfRows([row for row in range(3000) if row not in answered], keys_of(3000))
    assert found_by(job, 3000) == job.rows
    assert job.read <= 2 + 50 * lacking


def test_of_a_job_with_rows_here_and_there_all_count_as_not_answered() -> None:
    job = JobOfRows(range(0, 3000, 2), keys_of(3000))
    assert found_by(job, 3000) == []
    assert job.read < job.total


def test_a_job_of_other_rows_is_refused() -> None:
    with pytest.raises(InputError, match="belongs to no row of this input"):
        found_by(JobOfRows(range(20), keys_of(20, "something else")), 20)
