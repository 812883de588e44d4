"""The jobs of a run: the store is its record, the output a copy that catches up.

Rows that are neither answered nor under way become a job, in real time or for the provider's Batch API. Then
the results of all jobs of the run are read together, in the order of the input, and each row is written that
is not in the output yet. A process may end at any point of this: the next one finds the jobs by their keys
and goes on.

A job in real time is carried on only by its own run, or by a command that names it: no other process pays
for a run that was interrupted. When such a run is over, its output is the record, and its jobs are deleted
from the store. Jobs of batches stay until they are forgotten with ``smartbatch jobs forget``.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field, frozen

from smartbatch._clock import Clock
from smartbatch.cli.followed_jobs import GRACE, FollowedJobs
from smartbatch.cli.interrupts import Interrupts, RunInterrupted
from smartbatch.cli.jobs_of_run import RunIdentity, RunJob, has_answer
from smartbatch.cli.messages import note, say
from smartbatch.cli.prompts import InputRequests, KeyedRow
from smartbatch.cli.route_chooser import RouteChooser
from smartbatch.client import BatchingClient
from smartbatch.errors import AnswerUnread, ClientClosed, RowSkipped, StoreError
from smartbatch.jobs.incident_titles import incident_title
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Mode, Progress
from smartbatch.types import Request, Result

if TYPE_CHECKING:
    from smartbatch.cli.cluster_units import ClusterUnits
    from smartbatch.cluster import Cluster


@frozen
class RowResult:
    """The result of a row.

    Attributes:
        place: of the answer, see :class:`RowKeys`.
        earlier: it comes from a job that had ended before this run began, and was paid then.
    """

    place: int
    result: Result
    earlier: bool


def skipped_row(row: KeyedRow) -> RowResult:
    """Return the result of a row that is skipped."""
    return RowResult(
        row.place, Result("", error=RowSkipped(f"skipped: {row.skipped}"), cost=0.0), earlier=False
    )


Rows: TypeAlias = "Iterator[list[tuple[KeyedRow, RowResult]]]"
"""Rows whose results are there, those together that come at once."""
Write = Callable[[Rows, Progress], None]


@define(eq=False, repr=False)
class JobRun:
    """Submits the rows of a run as a job, and reads the results of all jobs of the run.

    Args:
        args: of the command.
        written: whether the output has the line of the answer at a place, and it need not be sent again.
        cluster: whose workers ask rows in real time, rather than this process.
        resend: the id under which answers of the output are replaced.
    """

    _client: BatchingClient
    _input: InputRequests
    _chooser: RouteChooser
    _args: argparse.Namespace
    _written: Callable[[int], bool]
    _clock: Clock
    _cluster: Cluster | None
    _resend: str | None
    _units: ClusterUnits | None = field(default=None, init=False)
    _identity: RunIdentity = field(init=False)
    _jobs: list[RunJob] = field(factory=list, init=False)
    _live: list[RunJob] = field(factory=list, init=False)
    _followed: FollowedJobs | None = field(default=None, init=False)
    _unread: set[str] = field(factory=set, init=False)
    """The jobs with answers that smartbatch itself failed to read."""
    _interrupts: Interrupts = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._identity = RunIdentity(self._args.output, self._args.model, self._input.keys, self._resend)
        self._interrupts = Interrupts(self._end_early)

    @property
    def batches(self) -> Sequence[JobStatus]:
        """The last statuses of the jobs of batches that this run waited for."""
        statuses = {} if self._followed is None else self._followed.statuses
        return [statuses[one.job.id] for one in self._live if not one.realtime and one.job.id in statuses]

    @property
    def submitted_all(self) -> bool:
        """Whether this run submitted every job that it waited for."""
        return all(one.is_new for one in self._live)

    def go(self, write: Write) -> int:
        """Submit the rows that are left, and have ``write`` take the result of every row.

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
            except (RunInterrupted, ClientClosed):
                if not self._stopped():
                    raise
            except Exception:
                self._client.stop(GRACE)
                raise
            self._client.stop(GRACE)
        return self._interrupts.caught

    def stored_after(self, last: int) -> Iterator[Result]:
        """Yield what this run's jobs have stored for the rows behind the one at the place ``last``."""
        for one in self._live:
            for result in one.job.results(wait=False):
                if self._identity.place_of(result) > last:
                    yield result

    def forget(self, *, all_answered: bool) -> None:
        """Delete the jobs in real time from the store once the output has all of their results.

        Failed rows of a run to standard output can be tried again only while the store has the others. What
        the jobs know of requests that may be paid twice is printed, as it goes with them.
        """
        if self._args.output is None and not all_answered:
            return
        for one in self._jobs:
            if one.job.id in self._unread:
                self._say(
                    f"job {one.job.id} stays in the store, as smartbatch itself failed to read answers; "
                    "the same line reads them again and pays nothing for them; after smartbatch jobs forget "
                    f"{one.job.id} it sends their rows again"
                )
            elif one.realtime:
                try:
                    if one.job.is_done():
                        for incident in one.job.incidents():
                            title = incident_title(incident.kind)
                            self._say(f"job {one.job.id}: {title}: {incident.detail}")
                        one.job.forget(keep_decision=self._args.output is not None)
                except StoreError as error:  # the output has every answer: no reason to fail
                    self._say(f"job {one.job.id} stays in the store: {error.message}")

    def _follow(self, write: Write) -> None:
        self._jobs = self._identity.find(self._client, self._say, batches_only=self._chooser.batches_only)
        for one in self._jobs:
            if not one.ended:  # what it can still spend is part of this run's budget, before new rows get any
                self._client.job(one.job.id, reserve=True)
        if self._cluster is not None:
            from smartbatch.cli.cluster_units import ClusterUnits

            key = self._identity.key(self._identity.rows)
            self._units = ClusterUnits.of(self._cluster, self._args, key, self._stopped)
        self._jobs += self._submit(self._jobs)
        self._live = [one for one in self._jobs if not one.ended]
        for one in self._live:
            if self._units is not None and one.realtime:
                self._units.begin(one.job)
        with self._progress() as progress:
            followed = self._followed = FollowedJobs(
                [one.job for one in self._live if self._units is None or not one.realtime],
                progress.advance_to if self._in_real_time() else progress.show,
                self._clock,
                stopped=self._stopped,
                ending=lambda: self._client.stop(GRACE),
                forecast=not self._in_real_time(),  # the rows are counted and timed as they come
            )
            followed.refresh()
            write(self._rows(progress), progress)
            followed.refresh()
        followed.report_held("; then run the same line again")

    def _in_real_time(self) -> bool:
        return all(one.realtime for one in self._live)

    def _progress(self) -> Progress:
        total = sum(one.job.total for one in self._live)
        mode: Mode = "quiet" if self._args.quiet or not self._live else "auto"
        if not self._in_real_time():
            return Progress(total, mode, sys.stderr, self._clock.now)
        before = self._identity.rows - total + sum(one.stored for one in self._live)
        progress = Progress(self._identity.rows, mode, sys.stderr, self._clock.now, initial=before)
        self._client.observe(progress)
        return progress

    # -- submitting ------------------------------------------------------------------------------------------

    def _submit(self, jobs: Sequence[RunJob]) -> list[RunJob]:
        """Store the rows as a job that are neither answered nor under way, if there are any; for a cluster as
        several."""
        needed = self._identity.needed(jobs, self._answered)
        for one in jobs:
            found = "had ended before; its answers are taken from the store"
            if not one.ended:
                found = f"goes on; {one.stored:,} of {one.job.total:,} rows have their results"
            self._say(f"job {one.job.id}: {found}")
        if not any(needed):
            return []
        plan = self._chooser.choose(needed, self._stopped)
        realtime = not plan.route.by_batch
        rows = self._requests(needed)
        key = self._identity.free_key({one.job.key for one in jobs}, realtime=realtime)
        metadata = self._identity.labels(realtime=realtime)
        if realtime and self._units is not None:
            units = self._units.submit(self._client, rows, plan, key, metadata)
            self._say(f"{sum(needed):,} rows are stored; the cluster is sent {len(units):,} units of them")
            return [self._new(job, realtime=True) for job in units]
        job = self._client.submit_run(rows, plan, key=key, metadata=metadata)
        if not realtime:
            first = f"the first {plan.first:,} are asked at once, the others " if plan.first else ""
            self._say(
                f"job {job.id}: {job.total:,} rows are stored; {first or 'they '}go by batch; should this "
                "command end, the same line again takes them up"
            )
        return [self._new(job, realtime=realtime)]

    def _new(self, job: Job, *, realtime: bool) -> RunJob:
        return RunJob(job, self._identity.rows, realtime=realtime, ended=False, is_new=True)

    def _requests(self, needed: bytearray) -> Iterator[Request]:
        return self._input.read(
            skip=lambda place: not needed[place],
            stopped=self._stopped,
            context=lambda row: [row.place, row.key.hex()],
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def _rows(self, progress: Progress) -> Rows:
        """Yield the rows whose results are to be written, each with its result.

        1. An output in a file, with a job in real time: results in real time come as they are stored, so that
           a row that takes long holds up no other. The file is put in order at the end.
        2. Everything else comes in the order of the input.
        """
        if not any(self._comes_as_stored(one) for one in self._jobs):
            yield from self._to_write(_alone(self._results_of_all()), ordered=True)
            return
        for one in sorted(self._jobs, key=lambda one: (not one.ended, not one.realtime)):
            if not self._comes_as_stored(one):
                yield from self._to_write(_alone(self._results_of(one)), ordered=True)
            elif self._units is None:
                yield from self._to_write(self._as_stored(one), ordered=False)
            else:
                found = self._from_cluster(self._units, one, progress)
                yield from self._to_write(_alone(found), ordered=False)

    def _from_cluster(self, units: ClusterUnits, one: RunJob, progress: Progress) -> Iterator[RowResult]:
        for number, result in enumerate(units.results(one.job)):
            if number >= one.stored:  # so many are in the count from the start
                progress.advance(result)
            yield self._outcome(one, result)

    def _comes_as_stored(self, one: RunJob) -> bool:
        return one.realtime and not one.ended and self._args.output is not None

    def _to_write(self, groups: Iterator[list[RowResult]], *, ordered: bool) -> Rows:
        in_place = self._args.output is None  # a file gets the skipped rows at the end, and is then ordered
        row_at = self._input.row_lookup(self._written if in_place else self._answered, ordered=ordered)
        following = 0
        for group in groups:
            rows = []
            for outcome in group:
                if self._answered(outcome.place) or (outcome.earlier and not has_answer(outcome.result)):
                    continue  # written before; or failed before, and sent again meanwhile
                if in_place:
                    passed = filter(self._input.keys.has_skipped, range(following, outcome.place))
                    rows += [(row, skipped_row(row)) for row in map(row_at, passed)]
                    following = outcome.place + 1
                rows += [(row_at(outcome.place), outcome)]
            if rows:
                yield rows

    def _results_of_all(self) -> Iterator[RowResult]:
        """Yield one result a row, in order: of several jobs that have it the best."""
        if len(self._jobs) == 1:  # the end of a group is seen late, so a single job has none
            return self._results_of(self._jobs[0])
        merged = heapq.merge(*(self._results_of(one) for one in self._jobs), key=attrgetter("place"))
        return (_best(several) for _, several in groupby(merged, key=attrgetter("place")))

    def _results_of(self, one: RunJob) -> Iterator[RowResult]:
        if one.ended or self._followed is None:
            results = one.job.results(wait=False)
        else:
            # after Ctrl-C, a file gets all that is stored; standard output gets batches in order only
            rest = one.realtime or self._args.output is not None
            results = self._followed.results(one.job, rest=rest)
        for result in results:
            yield self._outcome(one, result)

    def _as_stored(self, one: RunJob) -> Iterator[list[RowResult]]:
        if self._followed is None:
            return
        is_known = self._identity.by_position(one, self._answered)
        for results in self._followed.results_as_stored(one.job, one.stored, is_known):
            yield [self._outcome(one, result) for result in results]

    def _outcome(self, one: RunJob, result: Result) -> RowResult:
        if isinstance(result.error, AnswerUnread):
            self._unread.add(one.job.id)
        return RowResult(self._identity.place_of(result), result, one.ended)

    def _answered(self, place: int) -> bool:
        """Whether an answer need not be asked for: it has its line in the output, or its row is skipped."""
        return self._written(place) or self._input.keys.is_skipped(place)

    # -- messages --------------------------------------------------------------------------------------------

    def _stopped(self) -> bool:
        return bool(self._interrupts.caught)

    def _say(self, text: str) -> None:
        if not self._args.quiet:
            say(text)

    def _end_early(self) -> None:
        """Begin no further call, and print what becomes of the rest; on the thread of the signals."""
        self._client.stop_jobs()
        if self._args.quiet:
            return
        if self._units is not None:
            note("interrupted: what was not asked is cancelled; the same line again asks it")
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


def _alone(results: Iterator[RowResult]) -> Iterator[list[RowResult]]:
    """Yield each result by itself, as soon as it is there."""
    return ([result] for result in results)


def _best(several: Iterator[RowResult]) -> RowResult:
    """Of the results of one row, oldest first, return the answer, else one that was not read, else the last
    failure."""
    outcomes = list(several)
    answer = next((outcome for outcome in outcomes if outcome.result.ok), None)
    return answer or next((outcome for outcome in outcomes if has_answer(outcome.result)), outcomes[-1])
