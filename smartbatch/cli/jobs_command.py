"""``smartbatch jobs``: lists jobs, waits for them, prints their results, and acts on them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

from attrs import asdict

from smartbatch._clock import RealClock
from smartbatch._words import escape, plural
from smartbatch.cli.clients import config_of, missing_store
from smartbatch.cli.printing import (
    ReaderLeft,
    binary_output,
    note,
    print_out,
    say,
    standard_output,
    terminal_width,
)
from smartbatch.config import BatchingConfig
from smartbatch.dashboard.jobs_page import jobs_table
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import InputError, JobNotFound, StoreError
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.observe.progress import Progress
from smartbatch.runs.answer_files import AnswerFolder
from smartbatch.runs.followed_jobs import GRACE_SECONDS, FollowedJobs
from smartbatch.runs.output_file import replaced
from smartbatch.runs.run_identity import jobs_named
from smartbatch.runs.table_output import check_output_name, formulas_of, table_format
from smartbatch.stored_jobs import StoredJobs
from smartbatch.tables.result_files import (
    CsvFormulas,
    UnwritableTable,
    WriteFiles,
    paths_in_store,
    stored_lines,
    write_stored,
)
from smartbatch.views.terminal import UNLIMITED_WIDTH, table_lines

_MAX_LISTED_JOBS: Final = 1_000_000
_NOT_IN_JSON: Final = frozenset({"shards", "incidents", "created_at", "cancelling"})  # left out or converted
_ACTION_OF_OPTION: Final = {
    "deadline": "set-deadline",
    "budget": "set-budget",
    "billed": "retry-failed",
    "remote": "clean",
    "dry_run": "clean",
}
_ACTIONS_WITH_NAMES: Final = ("show", "cancel", "forget", "set-deadline", "set-budget", "retry-failed")


def run(args: argparse.Namespace) -> int:
    """Return 1 if a job is unknown or held, or has failed or missing requests; 2 for bad usage or a bad
    store.
    """
    _check(args)
    settings = argparse.Namespace(**{**vars(args), "budget": None})  # the budget of a job, not of the client
    return _Jobs(args, config_of(settings)).go()


def _check(args: argparse.Namespace) -> None:
    named, action = len(args.ids), args.action
    if action == "list" and named:
        raise InputError("jobs list takes no names; use smartbatch jobs show ID_OR_KEY")
    if action == "clean" and named:
        raise InputError("jobs clean takes no names; use smartbatch jobs forget ID_OR_KEY to delete a job")
    if action in _ACTIONS_WITH_NAMES and not named:
        raise InputError(f"jobs {action} needs the ids or keys of jobs; list them with smartbatch jobs")
    if action == "results" and named != 1:
        raise InputError("jobs results takes the id or key of one job; list them with smartbatch jobs")
    for option in ("output", "wait", "csv_formulas"):
        if getattr(args, option) and action != "results":
            raise InputError(f"--{option.replace('_', '-')} is for jobs results only")
    formulas_of(args)
    for option, only in _ACTION_OF_OPTION.items():
        given = getattr(args, option)
        if given and action != only:
            raise InputError(f"--{option.replace('_', '-')} is for jobs {only} only")
        if action == only and option in ("deadline", "budget") and given is None:
            raise InputError(f"jobs {only} needs --{option}, or --{option} none")
    if args.output is not None:
        check_output_name(args.output)


class _Jobs:
    def __init__(self, args: argparse.Namespace, config: BatchingConfig) -> None:
        self._args = args
        self._config = config
        self._clock = RealClock()

    def go(self) -> int:
        """Run the action, without creating a store."""
        path = missing_store(self._config.store)
        if path is not None:
            return self._no_store(path)
        action: Callable[[StoredJobs], int] = getattr(self, f"_{self._args.action.replace('-', '_')}")
        stored = StoredJobs(self._config, self._clock)
        try:
            return action(stored)
        finally:
            stored.close(GRACE_SECONDS)

    def _no_store(self, path: str) -> int:
        if self._args.ids:
            raise JobNotFound(
                f"there is no store at {escape(path)}, so no job {self._args.ids[0]!r:.80}; use --store or "
                "SMARTBATCH_STORE for another store"
            )
        if not self._args.json:
            place = escape(path)
            say(f"no jobs: there is no store at {place} yet; use --store or SMARTBATCH_STORE for another one")
        return 0

    # -- status ---------------------------------------------------------------------------------------------

    def _list(self, stored: StoredJobs) -> int:
        if self._args.json:
            for job in stored.jobs(limit=_MAX_LISTED_JOBS):
                print_out(_as_json(job.status()))
            return 0
        source = Source(self._config, shared="off")
        store = source.store
        lines = [] if store is None else store.overview.page(JobFilter(), limit=_MAX_LISTED_JOBS)
        if table := jobs_table("Jobs", lines, source, Query()):
            on_terminal = sys.stdout is not None and sys.stdout.isatty()
            width = terminal_width() if on_terminal else UNLIMITED_WIDTH
            print_out("\n".join(table_lines(table.columns, table.rows, width)))
        else:
            say(f"no jobs in {stored.place}")
        return 0

    def _show(self, stored: StoredJobs) -> int:
        return self._each(stored, lambda job: self._print_status(job.status()))

    def _results(self, stored: StoredJobs) -> int:
        job = _named(stored, self._args.ids[0])
        if self._args.wait and not self._wait_for([job]):
            return 1
        with suppress(ReaderLeft):
            _write_results(job, self._args.output, formulas_of(self._args))
        status = job.status()
        if not status.done:
            say(
                f"job {job.id}: {status.finished:,} of {status.total:,} requests have results so far; use "
                "--wait to wait for all of them"
            )
        return self._code([status])

    # -- following -------------------------------------------------------------------------------------------

    def _watch(self, stored: StoredJobs) -> int:
        return self._follow(self._named_or_open(stored))

    def _resume(self, stored: StoredJobs) -> int:
        jobs = self._named_or_open(stored)
        for job in jobs:
            job.resume()
        return self._follow(jobs)

    def _cancel(self, stored: StoredJobs) -> int:
        found: list[Job] = []
        code = self._each(stored, found.append)
        for job in found:
            job.cancel()
        done = self._wait_for(found)
        for job in found:
            self._print_status(job.status())
        return code if done else 1

    def _retry_failed(self, stored: StoredJobs) -> int:
        jobs = [_named(stored, name) for name in self._args.ids]
        for job in jobs:
            retried = job.retry_failed(billed=self._args.billed)
            text = f"{plural(retried.count, 'request is', 'requests are')} being retried"
            if retried.left_out:
                text += (
                    f"; {retried.left_out:,} that were or may have been billed are left out (see --billed)"
                )
            self._say(job, text)
        return self._follow(jobs)

    def _set_deadline(self, stored: StoredJobs) -> int:
        given = self._args.deadline
        return self._each(stored, lambda job: self._set(job, job.set_deadline, given, "deadline"))

    def _set_budget(self, stored: StoredJobs) -> int:
        given = self._args.budget
        return self._each(stored, lambda job: self._set(job, job.set_budget, given, "budget"))

    def _set(self, job: Job, verb: Callable[[str | None], object], given: str, what: str) -> None:
        verb(None if given == "none" else given)
        self._say(job, f"the {what} is now {given}")

    def _say(self, job: Job, text: str) -> None:
        if not self._args.quiet:
            say(f"job {job.id}: {escape(text)}")

    def _forget(self, stored: StoredJobs) -> int:
        def forget(job: Job) -> None:
            job.forget()
            self._say(job, "deleted, with its requests and results")

        return self._each(stored, forget)

    def _clean(self, stored: StoredJobs) -> int:
        remote, dry_run = self._args.remote, self._args.dry_run
        found = stored.clean(remote=remote, dry_run=dry_run)
        if self._args.json:
            plain = asdict(found, value_serializer=lambda _, __, value: getattr(value, "value", value))
            print_out(json.dumps(plain))
            return int(bool(found.left))
        if dry_run:
            for one in found.deleted:
                size = f", {one.bytes:,} bytes" if one.bytes else ""
                name = one.id or one.name or ""  # an upload whose answer was lost has no id
                print_out(f"{one.kind.value} {escape(name)} of {escape(one.model)}{size}")
        verb = "would be deleted" if dry_run else "deleted"
        in_store = (
            f"{plural(found.files, 'temporary file')} and "
            f"{plural(found.names, 'name of a forgotten request', 'names of forgotten requests')} {verb}"
        )
        say(f"{stored.place}: {in_store}")
        if remote:
            text = f"at providers: {plural(len(found.deleted), 'file or batch', 'files and batches')} {verb}"
            if found.undeletable:
                text += f"; {len(found.undeletable):,} can only expire"
            if found.in_use:
                text += f"; {plural(found.in_use, 'upload')} may still be in use"
            if found.left:
                text += f"; {len(found.left):,} {'would be left' if dry_run else 'could not be deleted yet'}"
            say(text)
            for reason in found.reasons:
                say(escape(reason))
        return int(bool(found.left))

    def _named_or_open(self, stored: StoredJobs) -> list[Job]:
        if self._args.ids:
            return [_named(stored, name) for name in self._args.ids]
        found = []
        for job in reversed(stored.jobs(unfinished=True, limit=_MAX_LISTED_JOBS)):
            if job.attended and job.is_unowned():
                say(
                    f"job {job.id} was not resumed, because its real-time run was interrupted; run "
                    f"smartbatch jobs resume {job.id} or the same command again to continue"
                )
            else:
                found.append(job)
        if not found:
            say("no unfinished jobs")
        return found

    def _wait_for(self, jobs: Sequence[Job]) -> bool:
        """Wait until all jobs have finished; return ``False`` if one is held instead."""
        going = [job for job in jobs if not job.status().done]
        if not going:
            return True
        quiet = self._args.quiet or self._args.json
        total = sum(job.total for job in going)
        with Progress(total, "quiet" if quiet else "auto", sys.stderr, self._clock.now) as progress:
            followed = FollowedJobs(going, progress.show, self._clock, on_status=self._status_printer())
            try:
                followed.wait_for_ends()
            except KeyboardInterrupt:
                if not self._args.quiet:
                    for job in going:
                        note(f"job {job.id} continues at the provider; see smartbatch jobs watch {job.id}")
                raise
        held = followed.held()
        for line in held:
            say(line)
        return not held

    def _status_printer(self) -> Callable[[JobStatus], None]:
        last: dict[str, tuple[object, ...]] = {}

        def print_changed(status: JobStatus) -> None:
            figures = (status.state, status.submitted, status.finished, status.running, status.note)
            if self._args.json and self._args.action == "watch" and not status.done:
                if last.get(status.id) != figures:
                    with suppress(ReaderLeft):  # the jobs continue anyway
                        print_out(_as_json(status))
                last[status.id] = figures

        return print_changed

    # -- outcomes --------------------------------------------------------------------------------------------

    def _each(self, stored: StoredJobs, act: Callable[[Job], object]) -> int:
        """Call ``act`` with every named job, even if an earlier one is unknown."""
        code = 0
        for name in self._args.ids:
            try:
                act(_named(stored, name))
            except JobNotFound as error:
                say(f"smartbatch: {error.message}")
                code = max(code, 1)
            except StoreError as error:
                say(f"smartbatch: {error.message}")
                code = 2
        return code

    def _follow(self, jobs: Sequence[Job]) -> int:
        done = self._wait_for(jobs)
        statuses = [job.status() for job in jobs]
        for status in statuses:
            self._print_status(status)
        return self._code(statuses) if done else 1

    def _print_status(self, status: JobStatus) -> None:
        with suppress(ReaderLeft):  # the exit code reports the outcome anyway
            print_out(_as_json(status) if self._args.json else str(status))

    def _code(self, statuses: Iterable[JobStatus]) -> int:
        return int(any(not status.done or status.completed < status.total for status in statuses))


# -- results -------------------------------------------------------------------------------------------------


def _write_results(job: Job, output: str | None, formulas: CsvFormulas) -> None:
    """Write a job's results in order, without holding them in memory. A file gets its name when it is
    complete.
    """
    if output is None:
        with standard_output():
            _write_lines(job, binary_output(), paths_in_store)
        return
    write_files = AnswerFolder(output).write
    check = partial(_check_free, output)
    check()
    try:
        with replaced(output, "writing", check=check) as file:
            if (format := table_format(output)) is None:
                _write_lines(job, file, write_files)
            else:
                write_stored(format, job, file, formulas=formulas, write_files=write_files)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror or error}") from error
    except UnwritableTable as error:
        raise InputError(f"{output}: cannot be written: {error.message}; choose another format") from error


def _check_free(output: str) -> None:
    if os.path.lexists(output):
        raise InputError(f"{output}: already exists; choose another -o, or remove the file")


def _write_lines(job: Job, file: IO[Any], write_files: WriteFiles) -> None:
    file.writelines(stored_lines(job, write_files))
    file.flush()


# -- text and JSON -------------------------------------------------------------------------------------------


def _named(stored: StoredJobs, name: str) -> Job:
    """``name`` is an id, a key, or the output file of a run."""
    try:
        return stored.job(name)
    except JobNotFound:
        found = jobs_named(stored.jobs(limit=_MAX_LISTED_JOBS), name)
        if not found:
            raise
    if len(found) > 1:
        ids = ", ".join(job.id for job in found)
        raise JobNotFound(f"{escape(name)} has answers from several jobs; use the id of one: {ids}")
    return found[0]


def _as_json(status: JobStatus) -> str:
    record = asdict(status, recurse=False, filter=lambda attribute, _: attribute.name not in _NOT_IN_JSON)
    record["batches"] = [asdict(shard) for shard in status.shards]
    record["incidents"] = [
        {"kind": one.kind, "detail": one.detail, "money": one.money, "at": one.at} for one in status.incidents
    ]
    return json.dumps(record)
