"""A run through the provider's Batch API: the store is its record, the output a copy that catches up.

Rows that are neither answered nor under way become a job. Then the results of all jobs of the run are read
side by side, in the order of the input, and each row is written that is not in the output yet. A process may
end at any point of this: the next one finds the jobs by their keys and goes on.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from attrs import frozen

from smartbatch.cli.following import Follower, is_stuck
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.lines import AskedRow
from smartbatch.cli.notes import note, say
from smartbatch.cli.questions import Questions
from smartbatch.cli.run_jobs import RunJob, RunName
from smartbatch.client import BatchingClient
from smartbatch.clock import Clock
from smartbatch.errors import ConfigError, InputError
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus
from smartbatch.models import Request, Result, evolve
from smartbatch.observe.job_progress import JobProgressBar
from smartbatch.observe.progress import Mode

__all__ = ["ByBatch", "Found"]

GRACE: Final = 10.0
"""Seconds that remote calls under way get to end after Ctrl-C: cutting a create off means looking for it."""


@frozen
class Found:
    """The result of a row.

    Attributes:
        index: the row's position in the input.
        result: the answer, or why there is none.
        earlier: it comes from a job that had ended before this run began, and was paid then.
    """

    index: int
    result: Result
    earlier: bool


class _Interrupted(Exception):
    """The run was interrupted while its rows were being stored; nothing of them is kept."""


class ByBatch:
    """The part of a run that is about jobs.

    Args:
        client: submits, and carries jobs on.
        questions: the checked input.
        keys: the key of every row.
        model: ``provider:model``.
        output: path of the output; ``None`` is standard output.
        answered: says of a row's index that the output has its answer.
        fallback: where rows go that a batch has not run; the setting when ``None``.
        quiet: say nothing.
        clock: time.

    Attributes:
        statuses: how the jobs this run waited for stand at its end.
    """

    def __init__(
        self,
        client: BatchingClient,
        questions: Questions,
        keys: array[int],
        *,
        model: str,
        output: str | None,
        answered: Callable[[int], bool],
        fallback: Any,
        quiet: bool,
        clock: Clock,
    ) -> None:
        if client.config.budget is not None:
            raise ConfigError(
                "a budget cannot bound batches, whose requests are sent all at once: leave --budget and the "
                "setting budget out, or ask in real time"
            )
        self._client = client
        self._questions = questions
        self._keys = keys
        self._output = output
        self._answered = answered
        self._fallback = fallback
        self._quiet = quiet
        self._clock = clock
        self._name = RunName(output, model, keys)
        self._live: list[Job] = []
        self._follower: Follower | None = None
        self._interrupts = Interrupts(clock, on_first=self._tell_first, on_late=lambda: None, grace=GRACE)

    @property
    def statuses(self) -> Sequence[JobStatus]:
        return [] if self._follower is None else list(self._follower.statuses.values())

    def go(self, write: Callable[[Iterator[tuple[AskedRow, Found]], JobProgressBar], None]) -> int:
        """Submit what is left, and have ``write`` take every row's result, in the order of the input.

        Returns:
            the number of the signal that ended it early, or 0.

        Raises:
            ConfigError: the provider has no Batch API.
            InputError: the input changed, or a job of another input goes on for the same output.
            StoreError: the store cannot be used.
        """
        with self._interrupts:
            try:
                self._follow(write)
            except _Interrupted:
                pass
            finally:
                self._client.stop(GRACE)
        return self._interrupts.caught

    def _follow(self, write: Callable[[Iterator[tuple[AskedRow, Found]], JobProgressBar], None]) -> None:
        jobs = self._name.find(self._client)
        new = self._submit(jobs)
        if new is not None:
            jobs.append(new)
        self._live = [one.job for one in jobs if not one.ended]
        total = sum(job.total for job in self._live) or len(self._keys)
        mode: Mode = "quiet" if self._quiet or not self._live else "auto"
        with JobProgressBar(total, mode, sys.stderr, self._clock.now) as bar:
            follower = self._follower = Follower(self._live, bar, self._clock, stopped=self._stopped)
            follower.look()
            write(self._rows(jobs), bar)
            follower.look()
        self._tell_held()

    # -- asking ----------------------------------------------------------------------------------------------

    def _submit(self, jobs: Sequence[RunJob]) -> RunJob | None:
        """Store the rows as a job that are neither answered nor under way, if there are any."""
        needed = self._needed(jobs)
        for one in jobs:
            self._tell_found(one)
        if not any(needed):
            return None
        job = self._client.submit_batch(
            self._requests(needed),
            key=self._name.free_key({one.job.key for one in jobs}),
            metadata=self._name.labels(),
            fallback=self._fallback,
        )
        self._say(
            f"job {job.id}: {job.total:,} rows are stored and go by batch; should this command end, the same "
            "line again takes them up"
        )
        return RunJob(job, len(self._keys), ended=False)

    def _needed(self, jobs: Sequence[RunJob]) -> bytearray:
        """Return a byte for each row: 1 when it must be asked."""
        under_way = max((one.rows for one in jobs if not one.ended), default=0)
        needed = bytearray(
            index >= under_way and not self._answered(index) for index in range(len(self._keys))
        )
        for one in jobs:
            if one.ended and any(needed):
                for result in one.job.results(wait=False):
                    if result.ok:
                        needed[self._index(result)] = 0
        return needed

    def _requests(self, needed: bytearray) -> Iterator[Request]:
        for request in self._questions.requests(skip=lambda i: not needed[i], stopped=lambda: False):
            if self._stopped():
                raise _Interrupted
            row: AskedRow = request.context
            yield evolve(request, context=[row.index, f"{row.key:016x}"])

    # -- reading ---------------------------------------------------------------------------------------------

    def _rows(self, jobs: Sequence[RunJob]) -> Iterator[tuple[AskedRow, Found]]:
        """Yield the rows whose results are to be written, in order, each with its result."""
        merged = heapq.merge(*(self._found(one) for one in jobs), key=attrgetter("index"))
        asked = self._questions.requests(skip=lambda _: False, stopped=lambda: False)
        for index, several in groupby(merged, key=attrgetter("index")):
            found = _best(several)
            if self._answered(index) or (found.earlier and not found.result.ok):
                continue  # written before; or failed before, and asked again meanwhile
            row: AskedRow = next(one.context for one in asked if one.context.index == index)
            yield row, found

    def _found(self, one: RunJob) -> Iterator[Found]:
        if one.ended or self._follower is None:
            results = one.job.results(wait=False)
        else:
            # an output in a file gets all that is stored; a reader of standard output waits for the order
            results = self._follower.results(one.job, rest=self._output is not None)
        for result in results:
            yield Found(self._index(result), result, one.ended)

    def _index(self, result: Result) -> int:
        """Return the position of the row a result belongs to."""
        match result.context:
            case [int(index), str(key)] if 0 <= index < len(self._keys):
                if key == f"{self._keys[index]:016x}":
                    return index
        raise InputError(
            f"request {result.request_id} of the store belongs to no row of this input, although its job has "
            "the key of this run; the job was made by something else: choose another -o or --store"
        )

    # -- saying ----------------------------------------------------------------------------------------------

    def _stopped(self) -> bool:
        return bool(self._interrupts.caught)

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def _tell_found(self, one: RunJob) -> None:
        if one.ended:
            self._say(f"job {one.job.id}: had ended before; its answers are taken from the store")
            return
        status = one.job.status()
        self._say(
            f"job {one.job.id}: goes on; {status.finished:,} of {status.total:,} rows have their results"
        )

    def _tell_first(self) -> None:
        if self._quiet:
            return
        note("interrupted: nothing is lost; what is under way at the provider goes on")
        for job in list(self._live):
            note(
                f"job {job.id}: the same line again, or smartbatch jobs resume {job.id}, goes on with it; "
                f"smartbatch jobs cancel {job.id} cancels it"
            )

    def _tell_held(self) -> None:
        for status in self.statuses:
            if is_stuck(status):
                say(
                    f"smartbatch: job {status.id} is held: {status.note or 'it waits for a person'}. "
                    f"smartbatch jobs resume {status.id} goes on with it; then run the same line again"
                )


def _best(several: Iterator[Found]) -> Found:
    """Of the results of one row, oldest first, return the answer, else the last failure."""
    found = list(several)
    return next((one for one in found if one.result.ok), found[-1])
