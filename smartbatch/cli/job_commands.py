"""What ``smartbatch jobs`` does: look at jobs, follow them, fetch their results, cancel, resume, forget."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from smartbatch._clock import RealClock
from smartbatch.cli.followed_job import Follower, is_stuck
from smartbatch.cli.job_texts import as_json, as_text, table
from smartbatch.cli.messages import note, say
from smartbatch.cli.paths import missing_store
from smartbatch.cli.result_output import write_results
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError, InputError, JobNotFound, StoreError
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Progress
from smartbatch.shortcuts import StoredJobs

__all__ = ["run"]

GRACE: Final = 10.0
"""Seconds that remote calls under way get to end: cutting a create off means looking for it later."""
_MANY: Final = 1_000_000
"""Jobs of a store that are listed: all of them."""


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say and return the exit code.

    Returns:
        0 when all is well; 1 when a job is unknown, or requests failed, were not answered or wait for a
        person; 2 for bad usage and a store that cannot be used; 130 after Ctrl-C.
    """
    try:
        _check(args)
        config = BatchingConfig.load(
            file=args.config, store=args.store, batch_poll_interval=args.poll_interval
        )
        return _Jobs(args, config).go()
    except (ConfigError, InputError, StoreError) as error:
        flag = " (--poll-interval)" if "batch_poll_interval" in error.message else ""
        say(f"smartbatch: {error.message}{flag}")
        return 2
    except JobNotFound as error:
        say(f"smartbatch: {error.message}")
        return 1


def _check(args: argparse.Namespace) -> None:
    """Refuse a line that says two things, or too little."""
    named, action = len(args.ids), args.action
    if action == "list" and named:
        raise InputError("jobs list takes no names; say smartbatch jobs show ID_OR_KEY")
    if action in ("show", "cancel", "forget") and not named:
        raise InputError(f"jobs {action} needs the ids or keys of jobs; smartbatch jobs lists them")
    if action == "results" and named != 1:
        raise InputError("jobs results takes the id or key of one job; smartbatch jobs lists them")
    for option in ("output", "wait"):
        if getattr(args, option) and action != "results":
            raise InputError(f"--{option} is for jobs results only")


class _Jobs:
    """One call of the command."""

    def __init__(self, args: argparse.Namespace, config: BatchingConfig) -> None:
        self._args = args
        self._config = config
        self._clock = RealClock()

    def go(self) -> int:
        """Do it, unless there is no store at all, which is not made just to be looked at."""
        path = missing_store(self._config.store)
        if path is not None:
            return self._no_store(path)
        action: Callable[[StoredJobs], int] = getattr(self, f"_{self._args.action}")
        stored = StoredJobs(self._config, self._clock)
        try:
            return action(stored)
        finally:
            stored.close(GRACE)

    def _no_store(self, path: str) -> int:
        if self._args.ids:
            raise JobNotFound(
                f"there is no store at {path}, so no job {self._args.ids[0]!r:.80}; --store or "
                "SMARTBATCH_STORE names another one"
            )
        if not self._args.json:
            say(f"no jobs: there is no store at {path} yet; --store or SMARTBATCH_STORE names another one")
        return 0

    # -- looking ---------------------------------------------------------------------------------------------

    def _list(self, stored: StoredJobs) -> int:
        jobs = stored.jobs(limit=_MANY)
        if self._args.json:
            for job in jobs:
                _print(as_json(job.status()))
        elif jobs:
            _print(table([job.status() for job in jobs], wall=time.time()))
        else:
            say(f"no jobs in {stored.place}")
        return 0

    def _show(self, stored: StoredJobs) -> int:
        return self._each(stored, lambda job: self._tell(job.status()))

    def _results(self, stored: StoredJobs) -> int:
        job = stored.job(self._args.ids[0])
        if self._args.wait and not self._followed([job]):
            return 1
        write_results(job, self._args.output)
        status = job.status()
        if not status.done:
            say(
                f"job {job.id}: {status.finished:,} of {status.total:,} requests have their results so far; "
                "--wait waits for all"
            )
        return self._code([status])

    # -- following -------------------------------------------------------------------------------------------

    def _watch(self, stored: StoredJobs) -> int:
        jobs = self._named_or_open(stored)
        done = self._followed(jobs)
        return self._end(jobs, done)

    def _resume(self, stored: StoredJobs) -> int:
        jobs = self._named_or_open(stored)
        for job in jobs:
            job.resume()
        return self._end(jobs, self._followed(jobs))

    def _cancel(self, stored: StoredJobs) -> int:
        found: list[Job] = []
        code = self._each(stored, found.append)
        for job in found:
            job.cancel()
        done = self._followed(found)
        for job in found:
            self._tell(job.status())
        return code if done else 1

    def _forget(self, stored: StoredJobs) -> int:
        def forget(job: Job) -> None:
            job.forget()
            if not self._args.quiet:
                say(f"job {job.id}: forgotten, with its requests and results")

        return self._each(stored, forget)

    def _named_or_open(self, stored: StoredJobs) -> list[Job]:
        if self._args.ids:
            return [stored.job(name) for name in self._args.ids]
        found = []
        for job in reversed(stored.jobs(unfinished=True, limit=_MANY)):
            if job.attended and job.is_unowned():
                say(
                    f"job {job.id}: its run in real time was interrupted, so it is left alone; smartbatch "
                    f"jobs resume {job.id} goes on with it, and so does the same line again"
                )
            else:
                found.append(job)
        if not found:
            say("no job goes on")
        return found

    def _followed(self, jobs: Sequence[Job]) -> bool:
        """Wait for the ends of jobs; False when one is held."""
        going = [job for job in jobs if not job.status().done]
        if not going:
            return True
        quiet = self._args.quiet or self._args.json
        total = sum(job.total for job in going)
        with Progress(total, "quiet" if quiet else "auto", sys.stderr, self._clock.now) as bar:
            follower = Follower(going, bar.show, self._clock, told=self._news())
            try:
                follower.to_the_ends()
            except KeyboardInterrupt:
                if not self._args.quiet:
                    for job in going:
                        note(f"job {job.id}: goes on at the provider; jobs watch {job.id} follows it")
                raise
        stuck = [status for status in follower.statuses.values() if is_stuck(status)]
        for status in stuck:
            say(
                f"smartbatch: job {status.id} is held: {status.note or 'it waits for a person'}. "
                f"smartbatch jobs resume {status.id} goes on with it"
            )
        return not stuck

    def _news(self) -> Callable[[JobStatus], None]:
        """Return what prints a status as JSON whenever figures of its job have changed."""
        last: dict[str, tuple[object, ...]] = {}

        def tell(status: JobStatus) -> None:
            figures = (status.state, status.submitted, status.finished, status.running, status.note)
            if self._args.json and self._args.action == "watch" and not status.done:
                if last.get(status.id) != figures:
                    _print(as_json(status))
                last[status.id] = figures

        return tell

    # -- endings ---------------------------------------------------------------------------------------------

    def _each(self, stored: StoredJobs, act: Callable[[Job], object]) -> int:
        """Do something to every job that is named; an unknown one keeps no other from it."""
        code = 0
        for name in self._args.ids:
            try:
                act(stored.job(name))
            except JobNotFound as error:
                say(f"smartbatch: {error.message}")
                code = max(code, 1)
            except StoreError as error:
                say(f"smartbatch: {error.message}")
                code = 2
        return code

    def _end(self, jobs: Sequence[Job], done: bool) -> int:
        statuses = [job.status() for job in jobs]
        for status in statuses:
            self._tell(status)
        return self._code(statuses) if done else 1

    def _tell(self, status: JobStatus) -> None:
        _print(as_json(status) if self._args.json else as_text(status, time.time()))

    def _code(self, statuses: Iterable[JobStatus]) -> int:
        return int(any(not status.done or status.completed < status.total for status in statuses))


def _print(text: str) -> None:
    """Print on standard output; nobody who reads any more is no error worth a traceback."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
