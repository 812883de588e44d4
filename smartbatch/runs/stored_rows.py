"""Stores the rows of a run as jobs and yields the results of all its jobs.

The store is the record of a run; an output is a copy. A process may end at any point: the next one finds the
jobs by their keys and continues. Only the run's own command, or a command that names the job, sends the rest
of a real-time job, so that no other process pays for an interrupted run. Once the output of such a run is
complete, it becomes the record, and the real-time jobs are deleted. Batch jobs stay until they are forgotten.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field, frozen

from smartbatch._clock import Clock
from smartbatch._words import plural
from smartbatch.client import BatchingClient
from smartbatch.errors import AnswerUnread, RowSkipped, StoreError
from smartbatch.jobs.job import Job
from smartbatch.jobs.records import incident_title
from smartbatch.jobs.status import JobStatus
from smartbatch.plan import Plan
from smartbatch.runs.followed_jobs import GRACE_SECONDS, FollowedJobs
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.runs.row_requests import InputRequests
from smartbatch.runs.run_identity import RunIdentity, RunJob, has_answer
from smartbatch.types import Request, Result

if TYPE_CHECKING:
    from smartbatch.cluster import ClusterUnits


@frozen
class RowResult:
    place: int  # see RowKeys
    result: Result
    earlier: bool  # from a job that had finished before this run


def skipped_row(row: KeyedRow) -> RowResult:
    return RowResult(
        row.place, Result("", error=RowSkipped(f"skipped: {row.skipped}"), cost=0.0), earlier=False
    )


Rows: TypeAlias = "Iterator[list[tuple[KeyedRow, RowResult]]]"  # groups of rows with results


@define(eq=False, repr=False)
class StoredRows:
    """Stores the rows of a run as jobs, and yields the results of all its jobs.

    Args:
        written: whether the output already has the answer to the row at a place.
        to_file: whether rows may be written in any order, because the output is put in order at the end.
        stopped: once it returns true, nothing more is stored or waited for.
        say: prints messages.
    """

    _client: BatchingClient
    _input: InputRequests
    identity: RunIdentity
    _written: Callable[[int], bool]
    _clock: Clock
    _to_file: bool = field(kw_only=True)
    _stopped: Callable[[], bool] = field(kw_only=True)
    _say: Callable[[str], object] = field(kw_only=True)
    jobs: list[RunJob] = field(factory=list, init=False)  # jobs that were found, then jobs stored by this run
    live: list[RunJob] = field(factory=list, init=False)  # jobs that had not finished when they were found
    _units: ClusterUnits | None = field(default=None, init=False)
    _followed: FollowedJobs | None = field(default=None, init=False)
    _unread: set[str] = field(factory=set, init=False)  # jobs with answers that smartbatch failed to read
    _with_files: set[str] = field(factory=set, init=False)  # jobs with the only copy of files in answers

    # -- storing ---------------------------------------------------------------------------------------------

    def take_up(self, *, batches_only: bool) -> None:
        """Find the jobs of earlier runs and continue them.

        Args:
            batches_only: withdraw real-time rows from their jobs, to send them as a batch.

        Raises:
            InputError: an active job of another input writes to the same output.
            StoreError: the store cannot be used.
        """
        self.jobs = self.identity.find(self._client, self._say, batches_only=batches_only)
        for one in self.jobs:
            if not one.ended:  # reserves in this run's budget what the job may still spend
                self._client.job(one.job.id, reserve=True)

    def submit_missing(
        self, choose: Callable[[bytearray], Plan], units: Callable[[str], ClusterUnits] | None = None
    ) -> None:
        """Store the rows that are neither answered nor in progress as a job, if there are any.

        Args:
            choose: returns the plan for the rows to be sent, given one byte per row: 1 for those.
            units: divides the rows into units for a cluster, given the key of the run.

        Raises:
            ConfigError: no route meets the constraints, or the provider has no Batch API.
            InputError: the input has changed.
            StoreError: the store cannot be used.
        """
        if units is not None:
            self._units = units(self.identity.key(self.identity.rows))
        needed = self.identity.needed(self.jobs, self._answered)
        for one in self.jobs:
            found = "finished earlier; its answers are read from the store"
            if not one.ended:
                found = f"continues; {one.stored:,} of {plural(one.job.total, 'row')} have results"
            self._say(f"Job {one.job.id}: {found}.")
        if any(needed):
            self.jobs += self._stored(needed, choose(needed))
        self.live = [one for one in self.jobs if not one.ended]
        for one in self.live:
            if self._units is not None and one.realtime:
                self._units.begin(one.job)

    def _stored(self, needed: bytearray, plan: Plan) -> list[RunJob]:
        realtime = not plan.route.by_batch
        rows = self._requests(needed)
        key = self.identity.free_key({one.job.key for one in self.jobs}, realtime=realtime)
        metadata = self.identity.labels(realtime=realtime)
        if realtime and self._units is not None:
            units = self._units.submit(self._client, rows, plan, key, metadata)
            words = plural(len(units), "unit")
            self._say(f"Stored {plural(sum(needed), 'row')}; the cluster sends them as {words}.")
            return [self._new(job, realtime=True) for job in units]
        job = self._client.submit_run(rows, plan, key=key, metadata=metadata)
        if not realtime:
            self._say(
                f"Job {job.id}: {plural(job.total, 'row')} stored. If this command is interrupted, run it "
                "again to continue."
            )
        return [self._new(job, realtime=realtime)]

    def _new(self, job: Job, *, realtime: bool) -> RunJob:
        return RunJob(job, self.identity.rows, realtime=realtime, ended=False, is_new=True)

    def _requests(self, needed: bytearray) -> Iterator[Request]:
        return self._input.read(
            skip=lambda place: not needed[place],
            stopped=self._stopped,
            context=lambda row: [row.place, row.key.hex()],
        )

    # -- following -------------------------------------------------------------------------------------------

    @property
    def in_real_time(self) -> bool:
        return all(one.realtime for one in self.live)

    @property
    def on_cluster(self) -> bool:
        return self._units is not None

    @property
    def batches(self) -> Sequence[JobStatus]:
        """The latest status of each batch job that this run waited for."""
        statuses = {} if self._followed is None else self._followed.statuses
        return [statuses[one.job.id] for one in self.live if not one.realtime and one.job.id in statuses]

    @property
    def submitted_all(self) -> bool:
        return all(one.is_new for one in self.live)

    def follow(self, show: Callable[[JobStatus], object]) -> FollowedJobs:
        """Follow the unfinished jobs. ``show`` receives their combined status."""
        self._followed = FollowedJobs(
            [one.job for one in self.live if self._units is None or not one.realtime],
            show,
            self._clock,
            stopped=self._stopped,
            ending=lambda: self._client.stop(GRACE_SECONDS),
            forecast=not self.in_real_time,  # the run itself counts and times rows as they arrive
        )
        return self._followed

    def stored_after(self, last: int) -> Iterator[Result]:
        """Yield the stored results of rows after the place ``last``."""
        for one in self.live:
            for result in one.job.results(wait=False):
                if self.identity.place_of(result) > last:
                    yield result

    def forget(self, *, all_answered: bool) -> None:
        """Delete the real-time jobs from the store after the output has received all of their results.

        If rows of a run to standard output failed, the jobs stay, because a later run needs the stored
        results of the others. Incidents of the jobs, such as possible double payments, are printed before
        they are deleted.
        """
        if not self._to_file and not all_answered:
            return
        for one in self.jobs:
            if one.job.id in self._unread:
                self._say(
                    f"Job {one.job.id} stays in the store, as smartbatch failed to read some answers. Run "
                    "the same command to read them again at no cost, or smartbatch jobs forget "
                    f"{one.job.id} to have their rows sent again."
                )
            elif one.job.id in self._with_files:
                self._say(
                    f"Job {one.job.id} stays in the store, because its folder contains the files of the "
                    f"answers. smartbatch jobs results {one.job.id} -o NAME.jsonl copies them to NAME.files; "
                    f"smartbatch jobs forget {one.job.id} deletes them."
                )
            elif one.realtime:
                try:
                    if one.job.is_done():
                        for incident in one.job.incidents():
                            title = incident_title(incident.kind)
                            self._say(f"Job {one.job.id}: {title}: {incident.detail}")
                        one.job.forget(keep_decision=self._to_file)
                except StoreError as error:  # not an error of the run, because the output has every answer
                    self._say(f"Job {one.job.id} stays in the store: {error.message}")

    # -- reading ---------------------------------------------------------------------------------------------

    def row_results(self, advance: Callable[[Result], object]) -> Rows:
        """Yield the rows to be written with their results. Call :meth:`follow` first.

        1. Real-time jobs with an output file: results arrive as they are stored, so that a slow row does not
           delay others. The file is put in order at the end.
        2. Everything else arrives in input order.

        Args:
            advance: called with each result of a cluster.
        """
        if not any(self._comes_as_stored(one) for one in self.jobs):
            yield from self._to_write(_alone(self._results_of_all()), ordered=True)
            return
        for one in sorted(self.jobs, key=lambda one: (not one.ended, not one.realtime)):
            if not self._comes_as_stored(one):
                yield from self._to_write(_alone(self._results_of(one)), ordered=True)
            elif self._units is None:
                yield from self._to_write(self._as_stored(one), ordered=False)
            else:
                found = self._from_cluster(self._units, one, advance)
                yield from self._to_write(_alone(found), ordered=False)

    def _from_cluster(
        self, units: ClusterUnits, one: RunJob, advance: Callable[[Result], object]
    ) -> Iterator[RowResult]:
        for number, result in enumerate(units.results(one.job)):
            if number >= one.stored:  # earlier results are already counted
                advance(result)
            yield self._outcome(one, result)

    def _comes_as_stored(self, one: RunJob) -> bool:
        return one.realtime and not one.ended and self._to_file

    def _to_write(self, groups: Iterator[list[RowResult]], *, ordered: bool) -> Rows:
        in_place = not self._to_file  # skipped rows are added to a file at the end, before it is put in order
        row_at = self._input.row_lookup(self._written if in_place else self._answered, ordered=ordered)
        following = 0
        for group in groups:
            rows = []
            for outcome in group:
                if self._answered(outcome.place) or (outcome.earlier and not has_answer(outcome.result)):
                    continue  # already written, or failed and sent again
                if in_place:
                    passed = filter(self._input.keys.has_skipped, range(following, outcome.place))
                    rows += [(row, skipped_row(row)) for row in map(row_at, passed)]
                    following = outcome.place + 1
                rows += [(row_at(outcome.place), outcome)]
            if rows:
                yield rows

    def _results_of_all(self) -> Iterator[RowResult]:
        if len(self.jobs) == 1:  # groupby would yield a row only after the next one has arrived
            return self._results_of(self.jobs[0])
        merged = heapq.merge(*(self._results_of(one) for one in self.jobs), key=attrgetter("place"))
        return (_best(several) for _, several in groupby(merged, key=attrgetter("place")))

    def _results_of(self, one: RunJob) -> Iterator[RowResult]:
        if one.ended or self._followed is None:
            results = one.job.results(wait=False)
        else:
            # after Ctrl-C, a file receives every stored result; standard output receives results of batches
            # only in order
            rest = one.realtime or self._to_file
            results = self._followed.results_in_order(one.job, rest=rest)
        for result in results:
            yield self._outcome(one, result)

    def _as_stored(self, one: RunJob) -> Iterator[list[RowResult]]:
        if self._followed is None:
            return
        is_known = self.identity.by_position(one, self._answered)
        for results in self._followed.results_as_stored(one.job, one.stored, is_known):
            yield [self._outcome(one, result) for result in results]

    def _outcome(self, one: RunJob, result: Result) -> RowResult:
        if isinstance(result.error, AnswerUnread):
            self._unread.add(one.job.id)
        if result.files and not self._to_file:
            self._with_files.add(one.job.id)
        return RowResult(self.identity.place_of(result), result, one.ended)

    def _answered(self, place: int) -> bool:
        return self._written(place) or self._input.keys.is_skipped(place)


def _alone(results: Iterator[RowResult]) -> Iterator[list[RowResult]]:
    return ([result] for result in results)


def _best(several: Iterator[RowResult]) -> RowResult:
    """Return the best result of one row: an answer, otherwise an unread answer, otherwise the latest failure.
    ``several`` is ordered from old to new.
    """
    outcomes = list(several)
    answer = next((outcome for outcome in outcomes if outcome.result.ok), None)
    return answer or next((outcome for outcome in outcomes if has_answer(outcome.result)), outcomes[-1])
