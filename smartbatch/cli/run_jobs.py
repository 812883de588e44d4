"""Which jobs of the store belong to a run: found by what the run asks and where its results go."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from smartbatch.client import BatchingClient
from smartbatch.errors import InputError
from smartbatch.jobs.job import Job
from smartbatch.types import Result

__all__ = ["RunJob", "RunName"]

_MANY: Final = 1_000_000
"""Jobs of a store that are looked through: all of them."""
_RUN: Final = "run"
"""Label of a run's job: where its results go."""
_ROWS: Final = "rows"
"""Label of a run's job: how many rows the input had."""
_ROUTE: Final = "route"
"""Label of a run's job: how it is asked."""
_REALTIME: Final = "realtime"


@frozen
class RunJob:
    """A job of a run as it was found at its start.

    Attributes:
        rows: rows the input had when it was submitted; it has all of those that were not answered then.
        realtime: it is asked in real time.
        ended: every request had its result already.
        stored: requests that had their results.
        fresh: this run submitted it.
    """

    job: Job
    rows: int
    realtime: bool
    ended: bool
    stored: int = 0
    fresh: bool = False


class RunName:
    """The name of a run, from which its jobs get their keys.

    A run may grow at its end, so a job of an earlier run belongs to this one when the rows of then are the
    first rows of now.

    Args:
        output: the output's path; ``None`` is standard output.
        model: ``provider:model``.
        keys: the key of every row, see :class:`smartbatch.cli.prompts.Keys`.
    """

    def __init__(self, output: str | None, model: str, keys: array[int]) -> None:
        place = "-" if output is None else os.path.realpath(output)
        self.label = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self.rows = len(keys)
        self._output = output
        self._model = model
        self._keys = keys
        self._named = keys
        if sys.byteorder != "little":  # the same name on every machine that shares a store
            self._named = array("Q", keys)
            self._named.byteswap()

    def key(self, rows: int) -> str:
        """Return what the key of a job begins with that asks rows of the first ``rows`` ones."""
        digest = hashlib.blake2b(f"{self.label}\n{self._model}\n".encode(), digest_size=16)
        digest.update(memoryview(self._named)[:rows])
        return f"run:{digest.hexdigest()}"

    def labels(self, *, realtime: bool) -> dict[str, str]:
        """Return the labels of a job of this run."""
        labels = {_RUN: self.label, _ROWS: str(self.rows)}
        return {**labels, _ROUTE: _REALTIME} if realtime else labels

    def free_key(self, taken: set[str | None], *, realtime: bool) -> str:
        """Return the key of the next job.

        For batches the first one, or with ``#2``, ``#3``, … for rows that failed: of two processes that run
        the same line at once, one submits. In real time each asks for itself, as often as somebody wants.
        """
        base = key = self.key(self.rows)
        if realtime:
            return f"{base}#{secrets.token_hex(8)}"
        number = 1
        while key in taken:
            number += 1
            key = f"{base}#{number}"
        return key

    def find(self, client: BatchingClient, tell: Callable[[str], object], *, batched: bool) -> list[RunJob]:
        """Return the jobs of this run, oldest first.

        What was left of a run in real time, and cannot or shall not go on as it is, is withdrawn: it was
        interrupted before another input, the Batch API, or another account was chosen for the output.

        Args:
            tell: says what is done with jobs.
            batched: whatever is left in real time shall go by batch.

        Raises:
            InputError: another input's job goes on that would write to the same output: what both ask
                could be paid twice.
            StoreError: the store cannot be used.
        """
        found = (self._taken_up(job, tell, batched) for job in self._labelled(client))
        return [one for one in found if one is not None]

    def standing(self, client: BatchingClient) -> list[RunJob]:
        """Return the jobs that a run would find, oldest first, and leave them as they are.

        Raises:
            StoreError: the store cannot be used.
        """
        found = (self._as_it_stands(job) for job in self._labelled(client))
        return [one for one in found if self._is_mine(one)]

    def needed(self, jobs: Sequence[RunJob], answered: Callable[[int], bool]) -> bytearray:
        """Return a byte for each row: 1 when it must be asked, as nothing has its answer or will have it.

        Args:
            jobs: of this run.
            answered: says of a row's index that the output has its answer.

        Raises:
            InputError: a job has answers of something else.
        """
        under_way = max((one.rows for one in jobs if not one.ended), default=0)
        needed = bytearray(index >= under_way and not answered(index) for index in range(self.rows))
        for one in jobs:
            if one.ended and any(needed):
                for result in one.job.results(wait=False):
                    if result.ok:
                        needed[self.index_of(result)] = 0
        return needed

    def index_of(self, result: Result) -> int:
        """Return the position of the row a result belongs to.

        Raises:
            InputError: there is no such row.
        """
        match result.context:
            case [int(index), str(key)] if 0 <= index < self.rows:
                if key == f"{self._keys[index]:016x}":
                    return index
        raise InputError(
            f"request {result.request_id} of the store belongs to no row of this input, although its job has "
            "the key of this run; the job was made by something else: choose another -o or --store"
        )

    def _labelled(self, client: BatchingClient) -> list[Job]:
        found = [job for job in client.jobs(_MANY) if job.metadata.get(_RUN) == self.label]
        return sorted(found, key=lambda job: job.created_at)

    def _taken_up(self, job: Job, tell: Callable[[str], object], batched: bool) -> RunJob | None:
        """Return a job as this run takes it up; ``None`` when it does not."""
        one = self._as_it_stands(job)
        if one.ended:
            return one if self._is_mine(one) else None
        if not self._is_mine(one):
            if self._output is not None and not self._withdrawn(one, "another input or model", tell):
                raise InputError(
                    f"{self._output}: job {job.id} of a run with another input, model or parameters is "
                    "still going on for this output, and what both ask would be paid twice; wait for it "
                    f"(smartbatch jobs watch {job.id}), cancel it (smartbatch jobs cancel {job.id}), or "
                    "choose another -o"
                )
            return None
        if not one.realtime:
            return one
        if batched:
            reason = "the rest goes by batch now"
        elif not job.has_account():
            reason = "it was submitted with another account"
        elif self._output is None and not job.is_unowned():
            return None  # the same line runs elsewhere, for a reader of its own
        else:
            return one
        return self._as_it_stands(job) if self._withdrawn(one, reason, tell) else one

    def _withdrawn(self, one: RunJob, reason: str, tell: Callable[[str], object]) -> bool:
        if not one.realtime or not one.job.withdraw():
            return False
        left = one.job.total - one.stored
        tell(f"job {one.job.id}: {left:,} rows that were not answered are dropped from it: {reason}")
        return True

    def _as_it_stands(self, job: Job) -> RunJob:
        status = job.status()
        rows = job.metadata.get(_ROWS, "")
        return RunJob(
            job,
            int(rows) if rows.isdecimal() else 0,
            realtime=job.metadata.get(_ROUTE) == _REALTIME,
            ended=status.done,
            stored=status.finished,
        )

    def _is_mine(self, one: RunJob) -> bool:
        """Whether the job's rows are the first ones of this run."""
        if not 0 < one.rows <= self.rows or one.job.key is None:
            return False
        return one.job.key.partition("#")[0] == self.key(one.rows)
