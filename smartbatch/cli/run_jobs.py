"""Which jobs of the store belong to a run: found by what the run asks and where its results go."""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from smartbatch.client import BatchingClient
from smartbatch.errors import InputError
from smartbatch.jobs.job import Job

__all__ = ["RunJob", "RunName"]

_MANY: Final = 1_000_000
"""Jobs of a store that are looked through: all of them."""
_RUN: Final = "run"
"""Label of a run's job: where its results go."""
_ROWS: Final = "rows"
"""Label of a run's job: how many rows the input had."""


@frozen
class RunJob:
    """A job of a run as it was found at its start.

    Attributes:
        rows: rows the input had when it was submitted; it has all of those that were not answered then.
        ended: every request had its result already.
    """

    job: Job
    rows: int
    ended: bool


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
        if sys.byteorder != "little":  # the same name on every machine that shares a store
            self._keys = array("Q", keys)
            self._keys.byteswap()

    def key(self, rows: int) -> str:
        """Return the key of the first job that asks the first ``rows`` rows."""
        digest = hashlib.blake2b(f"{self.label}\n{self._model}\n".encode(), digest_size=16)
        digest.update(memoryview(self._keys)[:rows])
        return f"run:{digest.hexdigest()}"

    def labels(self) -> dict[str, str]:
        """Return the labels of a job of this run."""
        return {_RUN: self.label, _ROWS: str(self.rows)}

    def free_key(self, taken: set[str | None]) -> str:
        """Return the key of the next job: the first one, or with ``#2``, ``#3``, … for rows that failed."""
        base = key = self.key(self.rows)
        number = 1
        while key in taken:
            number += 1
            key = f"{base}#{number}"
        return key

    def find(self, client: BatchingClient) -> list[RunJob]:
        """Return the jobs of this run, oldest first.

        Raises:
            InputError: another input's job goes on that would write to the same output: what both ask
                could be paid twice.
            StoreError: the store cannot be used.
        """
        found = sorted(self._labelled(client), key=lambda one: one.created_at)
        mine = [self._mine(job) for job in found]
        if self._output is not None:
            for job, own in zip(found, mine, strict=True):
                if own is None and not job.status().done:
                    raise InputError(
                        f"{self._output}: job {job.id} of a run with another input, model or parameters is "
                        "still going on for this output, and what both ask would be paid twice; wait for it "
                        f"(smartbatch jobs watch {job.id}), cancel it (smartbatch jobs cancel {job.id}), or "
                        "choose another -o"
                    )
        return [own for own in mine if own is not None]

    def _labelled(self, client: BatchingClient) -> Iterator[Job]:
        return (job for job in client.jobs(_MANY) if job.metadata.get(_RUN) == self.label)

    def _mine(self, job: Job) -> RunJob | None:
        rows = job.metadata.get(_ROWS, "")
        if not rows.isdecimal() or not 0 < int(rows) <= self.rows or job.key is None:
            return None
        if job.key.partition("#")[0] != self.key(int(rows)):
            return None
        return RunJob(job, int(rows), job.status().done)
