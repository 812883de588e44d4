"""``smartbatch report``: one file of HTML on a job, or on the output of a run."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from smartbatch.cli.option_tables import add_options

if TYPE_CHECKING:
    from smartbatch.views.html import Report

_HELP = """\
Write a report of a job (its id, its key) or of the output of a run (OUT.jsonl, .csv, .parquet): one file of
HTML, at most 300 kB, that loads and runs nothing. It says what was asked, what came, by which route and why,
what it cost next to the alternatives, when, how latency and cost are distributed, and what went wrong. No
prompt and no answer is in it. Nothing is sent and no key is needed.

examples:
  smartbatch report nightly -o nightly.html
  smartbatch report answers.jsonl -o answers.html --png
"""
_OPTIONS = """
-o --output FILE.html  where it goes (default: report.html); an earlier report there is replaced
--png                  a picture of it next to it, too; needs Chromium, Chrome or Edge
--store PLACE          where jobs are kept: a file, or postgresql://… (default: your own)
--config FILE          TOML or YAML file of settings; options win over it
"""
_TITLE = b" \xe2\x80\x93 smartbatch report</title>"
"""What is at the beginning of each report, and of no other file."""
_SEARCHED = 10_000
"""Jobs of the store, the newest, among which those of an output are found."""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand by ``add``, which makes its parser."""
    parser = add(
        "report",
        help="write a report of a job or an output, as one file of HTML",
        description=_HELP,
        epilog="exit codes: 0 written, 1 no such job, 2 bad usage, file or store",
    )
    parser.add_argument("subject", metavar="JOB|OUT.jsonl", help="an id or key of a job, or an output")
    parser.set_defaults(output="report.html")
    add_options(parser.add_argument, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Write the report and return the exit code."""
    # late: other subcommands need none of it
    from smartbatch._words import escape
    from smartbatch.cli.messages import say
    from smartbatch.cli.screenshot import browser, screenshot
    from smartbatch.errors import InputError
    from smartbatch.runs.output_file import replaced

    path = args.output
    _check(path)
    if args.png:
        browser()  # before anything is read, or written
    report = _report(args)
    try:
        with replaced(path, "writing") as file:
            file.write(report.html.encode())
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be written: {error.strerror or error}") from error
    say(f"report of {report.requests:,} requests in {path}")
    if args.png:
        picture = os.path.splitext(path)[0] + ".png"
        screenshot(report.html, picture)
        say(f"picture in {picture}")
    return 0


def _check(path: str) -> None:
    """Refuse a name that no report has, and a file that is none.

    Raises:
        InputError: of these; the file stays as it is.
    """
    from smartbatch._words import escape
    from smartbatch.errors import InputError

    if os.path.splitext(path)[1].lower() not in (".html", ".htm"):
        raise InputError(f"{escape(path)}: a report is HTML: let its name end in .html")
    if os.path.lexists(path):
        try:
            with open(path, "rb") as file:
                known = _TITLE in file.read(4_000)
        except OSError:
            known = False
        if not known:
            raise InputError(f"{escape(path)}: is there already and is no report; choose another -o")


def _report(args: argparse.Namespace) -> Report:
    """Return the report of an output, with the jobs of it that the store has; or of a job.

    Raises:
        JobNotFound: there is neither.
    """
    from smartbatch._words import escape
    from smartbatch.cli.clients import config_of, missing_store
    from smartbatch.cli.output_report import ended_runs, output_report
    from smartbatch.errors import JobNotFound
    from smartbatch.runs.followed_jobs import GRACE
    from smartbatch.runs.run_identity import jobs_of_output, output_key
    from smartbatch.stored_jobs import StoredJobs

    subject, config = args.subject, config_of(args)
    is_file, no_store = os.path.isfile(subject), missing_store(config.store)
    if no_store is not None and not is_file:
        raise JobNotFound(
            f"{subject!r:.80} is no file, and there is no store at {escape(no_store)} that could have a job "
            "of that name; --store or SMARTBATCH_STORE names another one"
        )
    if no_store is not None:
        return output_report(subject, (), time.time())
    stored = StoredJobs(config)
    try:
        if not is_file:
            return stored.job(subject).report()
        jobs = jobs_of_output(stored.jobs(limit=_SEARCHED), subject)
        ended = stored.kept_decisions(output_key(subject))
        oldest_first = sorted(jobs, key=lambda job: job.created_at)
        runs = (*(job.reported_run() for job in oldest_first), *ended_runs(ended))
        return output_report(subject, runs, time.time())
    finally:
        stored.close(GRACE)
