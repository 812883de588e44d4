"""The asking part of a run: the store is its record, the output a copy that catches up.

Rows that are neither answered nor under way become a job, in real time or for the provider's Batch API. Then
the results of all jobs of the run are read side by side, in the order of the input, and each row is written
that is not in the output yet. A process may end at any point of this: the next one finds the jobs by their
keys and goes on.

Only its own run, or somebody who names it, carries on a job that is asked in real time: nobody else's process
pays for a run that was interrupted. When such a run is over, its output is the record, and its jobs are
forgotten. Jobs of batches stay until somebody forgets them.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from attrs import field, frozen

from smartbatch._clock import Clock
from smartbatch.cli.followed_job import Follower, is_stuck
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.lines import AskedRow
from smartbatch.cli.messages import note, say
from smartbatch.cli.requests import Questions
from smartbatch.cli.run_jobs import RunJob, RunName
from smartbatch.cli.run_routes import Chosen
from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed, StoreError
from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Mode, Progress
from smartbatch.types import Request, Result, evolve

__all__ = ["GRACE", "ByJob", "Found", "Manner"]

GRACE: Final = 10.0
"""Seconds that calls under way get to end after the first Ctrl-C, and remote calls of batches: cutting a
create off means looking for it later. A second Ctrl-C does not wait."""


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


@frozen(kw_only=True)
class Manner:
    """How a run asks and tells.

    Attributes:
        choose: chooses the route of the rows that must be asked: those with a 1. Gives up with ``None`` once
            its second argument, asked now and then, says that the run is interrupted.
        batched: the route is the Batch API in any case, also for what an earlier run left in real time.
        model: ``provider:model``.
        output: path of the output; ``None`` is standard output.
        fallback: where rows go that a batch has not run; the setting when ``None``.
        quiet: say nothing.
    """

    choose: Callable[[bytearray, Callable[[], bool]], Chosen | None]
    batched: bool
    model: str
    output: str | None
    fallback: Literal["batch", "individual"] | None = None
    quiet: bool = field(default=False)


class _Interrupted(Exception):
    """The run was interrupted while its rows were being stored; nothing of them is kept."""


Write = Callable[[Iterator[tuple[AskedRow, Found]], Progress], None]


class ByJob:
    """The part of a run that is about jobs.

    Args:
        client: submits, and carries jobs on.
        questions: the checked input.
        keys: the key of every row.
        manner: how to ask.
        answered: says of a row's index that the output has its answer.
        clock: time.
    """

    def __init__(
        self,
        client: BatchingClient,
        questions: Questions,
        keys: array[int],
        manner: Manner,
        *,
        answered: Callable[[int], bool],
        clock: Clock,
    ) -> None:
        self._client = client
        self._questions = questions
        self._keys = keys
        self._manner = manner
        self._answered = answered
        self._clock = clock
        self._name = RunName(manner.output, manner.model, keys)
        self._jobs: list[RunJob] = []
        self._live: list[RunJob] = []
        self._follower: Follower | None = None
        self._interrupts = Interrupts(clock, on_first=self._end_early, on_late=lambda: None, grace=GRACE)

    @property
    def batches(self) -> Sequence[JobStatus]:
        """How the jobs of batches stand that this run waited for."""
        statuses = {} if self._follower is None else self._follower.statuses
        return [statuses[one.job.id] for one in self._live if not one.realtime and one.job.id in statuses]

    @property
    def afresh(self) -> bool:
        """Whether all that this run waited for was submitted by it."""
        return all(one.fresh for one in self._live)

    def go(self, write: Write) -> int:
        """Submit what is left, and have ``write`` take every row's result, in the order of the input.

        Returns:
            the number of the signal that ended it early, or 0.

        Raises:
            ConfigError: no route meets the constraints, or the provider has no Batch API.
            InputError: the input changed, or a job of another input goes on for the same output.
            StoreError: the store cannot be used.
        """
        with self._interrupts:
            try:
                self._follow(write)
            except (_Interrupted, ClientClosed):
                if not self._stopped():
                    raise
            except Exception:
                self._client.stop(GRACE)
                raise
            self._client.stop(GRACE)
        return self._interrupts.caught

    def forget(self, *, all_answered: bool) -> None:
        """Have the store forget what was asked in real time and is in the output as a whole.

        Args:
            all_answered: no row is left that failed. On standard output those can be asked again only while
                the store has the others.
        """
        if self._manner.output is None and not all_answered:
            return
        for one in self._jobs:
            if one.realtime:
                try:
                    if one.job.status().done:
                        one.job.forget()
                except StoreError as error:  # every answer is where it belongs: no reason to fail
                    self._say(f"job {one.job.id} stays in the store: {error.message}")

    def _follow(self, write: Write) -> None:
        self._jobs = self._name.find(self._client, self._say, batched=self._manner.batched)
        for one in self._jobs:
            if not one.ended:  # what it can still spend is part of this run's budget, before new rows get any
                self._client.adopt_job(one.job.id)
        new = self._submit(self._jobs)
        if new is not None:
            self._jobs.append(new)
        self._live = [one for one in self._jobs if not one.ended]
        with self._progress() as bar:
            follower = self._follower = Follower(
                [one.job for one in self._live],
                bar.advance_to if self._in_real_time() else bar.show,
                self._clock,
                stopped=self._stopped,
                ending=lambda: self._client.stop(GRACE),
            )
            follower.look()
            write(self._rows(), bar)
            follower.look()
        self._tell_held()

    def _in_real_time(self) -> bool:
        return all(one.realtime for one in self._live)

    def _progress(self) -> Progress:
        total = sum(one.job.total for one in self._live)
        mode: Mode = "quiet" if self._manner.quiet or not self._live else "auto"
        if not self._in_real_time():
            return Progress(total, mode, sys.stderr, self._clock.now)
        before = len(self._keys) - total + sum(one.stored for one in self._live)
        progress = Progress(len(self._keys), mode, sys.stderr, self._clock.now, initial=before)
        self._client.observe(progress)
        return progress

    # -- asking ----------------------------------------------------------------------------------------------

    def _submit(self, jobs: Sequence[RunJob]) -> RunJob | None:
        """Store the rows as a job that are neither answered nor under way, if there are any."""
        needed = self._name.needed(jobs, self._answered)
        for one in jobs:
            self._tell_found(one)
        if not any(needed):
            return None
        chosen = self._manner.choose(needed, self._stopped)
        if chosen is None:
            raise _Interrupted
        requests, labels = self._requests(needed), self._name.labels(realtime=chosen.realtime)
        key = self._name.free_key({one.job.key for one in jobs}, realtime=chosen.realtime)
        job = self._client.submit_run(
            requests, chosen.plan, key=key, metadata=labels, fallback=self._manner.fallback
        )
        if not chosen.realtime:
            first = f"the first {chosen.first:,} are asked at once, the others " if chosen.first else ""
            self._say(
                f"job {job.id}: {job.total:,} rows are stored; {first or 'they '}go by batch; should this "
                "command end, the same line again takes them up"
            )
        return RunJob(job, len(self._keys), realtime=chosen.realtime, ended=False, fresh=True)

    def _requests(self, needed: bytearray) -> Iterator[Request]:
        for request in self._questions.requests(skip=lambda i: not needed[i], stopped=lambda: False):
            if self._stopped():
                raise _Interrupted
            row: AskedRow = request.context
            yield evolve(request, context=[row.index, f"{row.key:016x}"])

    # -- reading ---------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple[AskedRow, Found]]:
        """Yield the rows whose results are to be written, each with its result.

        An output in a file gets what is asked in real time as it comes, and is put in order at the end: a row
        that takes long holds up no other. Everything else comes in the order of the input.
        """
        if not any(self._comes_as_stored(one) for one in self._jobs):
            yield from self._to_write(self._found_of_all(), ordered=True)
            return
        for one in sorted(self._jobs, key=lambda one: (not one.ended, not one.realtime)):
            yield from self._to_write(self._found(one), ordered=not self._comes_as_stored(one))

    def _comes_as_stored(self, one: RunJob) -> bool:
        return one.realtime and not one.ended and self._manner.output is not None

    def _to_write(self, results: Iterator[Found], *, ordered: bool) -> Iterator[tuple[AskedRow, Found]]:
        row_at = self._questions.finder(self._answered, ordered=ordered)
        for found in results:
            if self._answered(found.index) or (found.earlier and not found.result.ok):
                continue  # written before; or failed before, and asked again meanwhile
            yield row_at(found.index), found

    def _found_of_all(self) -> Iterator[Found]:
        """Yield one result a row, in order: of several jobs that have it the best."""
        if len(self._jobs) == 1:  # the end of a group is seen late, so a single job has none
            return self._found(self._jobs[0])
        merged = heapq.merge(*(self._found(one) for one in self._jobs), key=attrgetter("index"))
        return (_best(several) for _, several in groupby(merged, key=attrgetter("index")))

    def _found(self, one: RunJob) -> Iterator[Found]:
        if one.ended or self._follower is None:
            results = one.job.results(wait=False)
        elif self._comes_as_stored(one):
            results = self._follower.as_stored(one.job)
        else:
            # after Ctrl-C, an output gets all that is stored; who reads batches on standard output waits for
            # the order
            rest = one.realtime or self._manner.output is not None
            results = self._follower.results(one.job, rest=rest)
        for result in results:
            yield Found(self._name.index_of(result), result, one.ended)

    # -- saying ----------------------------------------------------------------------------------------------

    def _stopped(self) -> bool:
        return bool(self._interrupts.caught)

    def _say(self, text: str) -> None:
        if not self._manner.quiet:
            say(text)

    def _tell_found(self, one: RunJob) -> None:
        if one.ended:
            self._say(f"job {one.job.id}: had ended before; its answers are taken from the store")
            return
        self._say(f"job {one.job.id}: goes on; {one.stored:,} of {one.job.total:,} rows have their results")

    def _end_early(self) -> None:
        """Begin no further call, and say what becomes of the rest; on the thread of the signals."""
        self._client.stop_jobs()
        if self._manner.quiet:
            return
        if any(one.realtime for one in self._live):
            note(f"interrupted: calls under way get {GRACE:.0f} s to end; once more ends at once")
        else:
            note("interrupted: nothing is lost; what is under way at the provider goes on")
        for one in list(self._live):
            job = one.job.id
            if one.realtime:
                note(
                    f"job {job}: what was not asked stays in the store, and costs nothing until the same "
                    f"line, or smartbatch jobs resume {job}, goes on with it; smartbatch jobs cancel {job} "
                    "drops it"
                )
            else:
                note(
                    f"job {job}: the same line again, or smartbatch jobs resume {job}, goes on with it; "
                    f"smartbatch jobs cancel {job} cancels it"
                )

    def _tell_held(self) -> None:
        for status in () if self._follower is None else self._follower.statuses.values():
            if is_stuck(status):
                say(
                    f"smartbatch: job {status.id} is held: {status.note or 'it waits for a person'}. "
                    f"smartbatch jobs resume {status.id} goes on with it; then run the same line again"
                )


def _best(several: Iterator[Found]) -> Found:
    """Of the results of one row, oldest first, return the answer, else the last failure."""
    found = list(several)
    return next((one for one in found if one.result.ok), found[-1])
