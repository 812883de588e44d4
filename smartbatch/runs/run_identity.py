"""Identifies the jobs in the store that belong to a run, by the run's prompts and output."""

from __future__ import annotations

import hashlib
import os
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any, Final

from attrs import field, frozen

from smartbatch._words import plural
from smartbatch.client import BatchingClient
from smartbatch.errors import AnswerUnread, InputError
from smartbatch.jobs.job import Job
from smartbatch.runs.row_keys import RowKeys
from smartbatch.types import Result

_MAX_NAME_CHARACTERS: Final = 100  # of an output's name in the keys of its jobs
_PATH_DIGITS: Final = 16  # of the digest of an output's path in the keys of its jobs
_MAX_JOBS: Final = 1_000_000  # returned by one search; in practice, all jobs of a store
_MAX_GAPS: Final = 256  # gaps between a job's rows in the input; with more, all its results are read
_RUN_LABEL: Final = "run"
_ROWS_LABEL: Final = "rows"
# labels of a run's job: its output, the rows of the input, and the real-time route
_REALTIME_LABELS: Final = {"route": "realtime"}
_SELECTION_LABEL: Final = "selection"


@frozen
class RowSelection:
    """The answers that a run sends, if it does not send all of them, such as a sample.

    Attributes:
        label: what was selected; jobs of another selection are not continued.
        chosen: one byte per place, 1 for those selected; see :class:`RowKeys`.
    """

    label: str
    chosen: bytearray = field(repr=False)

    def __contains__(self, place: int) -> bool:
        return bool(self.chosen[place])

    def __iter__(self) -> Iterator[int]:
        return (place for place, chosen in enumerate(self.chosen) if chosen)

    @property
    def count(self) -> int:
        return sum(self.chosen)


@frozen
class RunJob:
    """A job of a run, in the state found when the run started."""

    job: Job
    rows: int  # answers that the input needed when the job was submitted
    realtime: bool
    ended: bool  # every request had its result
    stored: int = 0  # number of results
    selection: str | None = None  # label of the selection that it sends; ``None`` for all rows
    is_new: bool = False  # submitted by this run


def has_answer(result: Result) -> bool:
    """Whether a row was answered, even if smartbatch failed to read the answer. Such an answer is paid for,
    stays in the store, and is read again by the next run.
    """
    return result.ok or isinstance(result.error, AnswerUnread)


def jobs_of_output(jobs: Iterable[Job], path: str) -> list[Job]:
    return _beginning_with(output_key(path), jobs)


def jobs_named(jobs: Sequence[Job], name: str) -> list[Job]:
    """Return the jobs of runs that write to a file. A name without a folder that is not an output in the
    current folder selects all outputs with that name, in any folder.
    """
    return jobs_of_output(jobs, name) or (
        [] if os.path.dirname(name) else _beginning_with(_key_of_name(name), jobs)
    )


def output_key(path: str) -> str:
    """Return the prefix of the keys of an output's jobs. It consists of the file name, for display, and a
    digest of the path, because outputs in several folders may have the same name.
    """
    return f"{_key_of_name(os.path.basename(path))}{_label_of(path)[:_PATH_DIGITS]}-"


def _key_of_name(name: str) -> str:
    plain = "".join(
        each if each.isprintable() and each != "#" else "_" for each in name[:_MAX_NAME_CHARACTERS]
    )
    return f"run:{plain}:"


def _label_of(path: str | None) -> str:
    place = "-" if path is None else os.path.realpath(path)
    return hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _beginning_with(beginning: str, jobs: Iterable[Job]) -> list[Job]:
    return [job for job in jobs if job.key is not None and job.key.startswith(beginning)]


class RunIdentity:
    """Identifies a run by its output, its model and its rows, from which the keys of its jobs are derived.

    Rows may be appended to an input, so an earlier job belongs to this run if its rows are the first rows of
    this run. With several answers per row, each answer counts as a row, by its place (see :class:`RowKeys`).
    Runs with a different number of answers have different jobs.

    Args:
        output: the output's path; ``None`` is standard output.
        model: ``provider:model``.
        keys: the keys of all rows.
        resend: id of a resend; jobs without this id have the answers that it replaces.
        selection: the answers to send; ``None`` for all.
    """

    def __init__(
        self,
        output: str | None,
        model: str,
        keys: RowKeys,
        resend: str | None = None,
        selection: RowSelection | None = None,
    ) -> None:
        self._beginning = _key_of_name("stdout") if output is None else output_key(output)
        self.label = _label_of(output)
        self.rows = len(keys)
        self._output = output
        self._model = model
        self._keys = keys
        self._resend = () if resend is None else (resend,)
        self.selection = selection
        self._selection_label = None if selection is None else selection.label

    @property
    def needed_rows(self) -> int:
        """The number of answers that the run sends, or would send if none existed."""
        return self.rows if self.selection is None else self.selection.count

    def key(self, rows: int, selection: str | None = None) -> str:
        """Return the key prefix of jobs whose rows are among the first ``rows`` rows.

        Args:
            selection: label of the selection that the jobs send; ``None`` for all rows.
        """
        more = (*self._resend, *(() if selection is None else (selection,)))
        return f"{self._beginning}{self._keys.digest(rows, self.label, self._model, *more)}"

    def labels(self, *, realtime: bool) -> dict[str, str]:
        labels = {_RUN_LABEL: self.label, _ROWS_LABEL: str(self.rows)}
        if self._selection_label is not None:
            labels[_SELECTION_LABEL] = self._selection_label
        return labels | _REALTIME_LABELS if realtime else labels

    def free_key(self, taken: set[str | None], *, realtime: bool) -> str:
        """Return the key of the next job.

        A batch job has the plain key or, for rows that failed, one with ``#2``, ``#3`` and so on. If two
        processes run the same command at the same time, only one of them submits. In real time, each run
        submits its own job with a random key.
        """
        base = self.key(self.rows, self._selection_label)
        if realtime:
            return f"{base}#{secrets.token_hex(8)}"
        keys = chain([base], (f"{base}#{number}" for number in count(2)))
        return next(key for key in keys if key not in taken)

    def find(
        self, client: BatchingClient, report: Callable[[str], object], *, batches_only: bool
    ) -> list[RunJob]:
        """Return the jobs of this run, oldest first.

        Unanswered rows of an interrupted real-time run are withdrawn if the output now belongs to another
        input, the Batch API or another account.

        Raises:
            InputError: an active job of another input writes to the same output, so rows of both could be
                paid for twice.
            StoreError: the store cannot be used.
        """
        found = (self._resumed(job, report, batches_only) for job in self._labelled(client))
        return [one for one in found if one is not None]

    def look_up(self, client: BatchingClient) -> list[RunJob]:
        """Return the jobs of this run, oldest first, without changing them.

        Raises:
            StoreError: the store cannot be used.
        """
        found = (_run_job(job) for job in self._labelled(client))
        return [one for one in found if self._is_mine(one)]

    def check_written(self, client: BatchingClient, *, all_rows: bool) -> None:
        """Check that the output has all results of earlier runs, before answers are replaced.

        Args:
            all_rows: the output has a line for every row.

        Raises:
            InputError: an earlier run has not finished, or was interrupted.
            StoreError: the store cannot be used.
        """
        for one in map(_run_job, self._labelled(client)):
            if not one.ended or (one.realtime and not all_rows):
                raise InputError(
                    f"{self._output}: job {one.job.id} of an earlier run has results for this output that "
                    "are not written yet; run its command again first, without --resend"
                )

    def needed(self, jobs: Sequence[RunJob], answered: Callable[[int], bool]) -> bytearray:
        """Return one byte per row: 1 if the row must be sent, because neither the output nor a job has or
        will have its answer.

        Raises:
            InputError: a job has answers to other rows.
        """
        under_way = max((one.rows for one in jobs if not one.ended), default=0)
        selected = range(self.rows) if self.selection is None else self.selection
        needed = bytearray(
            place >= under_way and place in selected and not answered(place) for place in range(self.rows)
        )
        for one in jobs:
            if one.ended and any(needed):
                for result in one.job.results(wait=False):
                    if has_answer(result):
                        needed[self.place_of(result)] = 0
        return needed

    def place_of(self, result: Result) -> int:
        """Return the place of a result.

        Raises:
            InputError: the input has no such row.
        """
        return self._place_in(result.context, result.request_id)

    def by_position(self, one: RunJob, answered: Callable[[int], bool]) -> Callable[[int], bool]:
        """Return ``answered`` for positions in a job instead of places in the input. If the job lacks many
        scattered rows, the returned function always returns false.

        A job has its rows in input order. If two of its rows are equally far apart in the input and in the
        job, the job contains all rows between them. Thus only a few of a million rows have to be read.

        Raises:
            InputError: see :meth:`place_of`.
        """
        starts, rows, ranges = list[int](), list[int](), [(0, one.job.total - 1)]
        while ranges:
            if len(ranges) > _MAX_GAPS:
                return lambda _: False
            read = one.job.contexts({position for both in ranges for position in both})
            at = {position: self._place_in(context, one.job.id) for position, context in read.items()}
            halves = []
            for first, last in ranges:
                if at[last] - at[first] == last - first:
                    starts.append(first)
                    rows.append(at[first])
                else:
                    middle = (first + last) // 2
                    halves += [(first, middle), (middle + 1, last)]
            ranges = halves
        starts, rows = sorted(starts), sorted(rows)

        def is_answered(position: int) -> bool:
            block = bisect_right(starts, position) - 1
            return answered(rows[block] + position - starts[block])

        return is_answered

    def _place_in(self, context: Any, request: str) -> int:
        match context:
            case [int(place), str(key)] if 0 <= place < self.rows:
                if key == self._keys[place].hex():
                    return place
        raise InputError(
            f"request {request} in the store belongs to no row of this input, although its job has the key "
            "of this run; another program created the job: choose another -o or --store"
        )

    def _labelled(self, client: BatchingClient) -> list[Job]:
        found = [job for job in client.jobs(_MAX_JOBS) if job.metadata.get(_RUN_LABEL) == self.label]
        return sorted(found, key=lambda job: job.created_at)

    def _resumed(self, job: Job, report: Callable[[str], object], batches_only: bool) -> RunJob | None:
        """Return a job that this run continues; ``None`` for any other job.

        1. It has finished: its results are read.
        2. It has another input or model and the same output: it is withdrawn, or the run is rejected.
        3. It is sent as a batch: it continues.
        4. It sends another selection, such as a sample: its remaining rows are withdrawn, or the run is
           rejected.
        5. It is sent in real time, but this run uses batches or another account: its remaining rows are
           withdrawn.
        6. It is sent in real time to standard output by another process: it is left alone.
        """
        one = _run_job(job)
        if one.ended:
            return one if self._is_mine(one) else None
        if not self._is_mine(one):
            if self._output is not None and not _withdraw(one, "another input or model", report):
                raise InputError(
                    f"{self._output}: job {job.id} of a run with another input, model or parameters is "
                    "still active for this output, and rows of both would be paid for twice; wait for it "
                    f"(smartbatch jobs watch {job.id}), cancel it (smartbatch jobs cancel {job.id}), or "
                    "choose another -o"
                )
            return None
        if one.selection != self._selection_label:
            if self._output is None and one.realtime and not job.is_unowned():
                return None
            if not _withdraw(one, "this run selects other rows", report):
                raise InputError(
                    f"job {job.id} of an earlier run for this output is still active and sends other rows; "
                    f"wait for it (smartbatch jobs watch {job.id}), or cancel it (smartbatch jobs cancel "
                    f"{job.id})"
                )
            return _run_job(job)
        if not one.realtime:
            return one
        if batches_only:
            reason = "the rest is sent as a batch now"
        elif not job.has_account():
            reason = "it was submitted with another account"
        elif self._output is None and not job.is_unowned():
            return None
        else:
            return one
        return _run_job(job) if _withdraw(one, reason, report) else one

    def _is_mine(self, one: RunJob) -> bool:
        if not 0 < one.rows <= self.rows or one.job.key is None:
            return False
        return one.job.key.partition("#")[0] == self.key(one.rows, one.selection)


def _run_job(job: Job) -> RunJob:
    status = job.status()
    rows = job.metadata.get(_ROWS_LABEL, "")
    return RunJob(
        job,
        int(rows) if rows.isdecimal() else 0,
        realtime=_REALTIME_LABELS.items() <= job.metadata.items(),
        ended=status.done,
        stored=status.finished,
        selection=job.metadata.get(_SELECTION_LABEL),
    )


def _withdraw(one: RunJob, reason: str, report: Callable[[str], object]) -> bool:
    """Withdraw the unanswered rows of a real-time job; return whether that was possible."""
    if not one.realtime or not one.job.withdraw():
        return False
    left = one.job.total - one.stored
    report(f"Job {one.job.id}: {plural(left, 'unanswered row')} dropped: {reason}.")
    return True
