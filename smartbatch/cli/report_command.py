"""``smartbatch report`` and ``smartbatch compare``: pages about a job, an output, or two outputs.

Outputs are read line by line, in little memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from smartbatch._words import escape
from smartbatch.cli.clients import check_labels, config_of, label_scores, missing_store
from smartbatch.cli.printing import print_out, say, terminal_width
from smartbatch.errors import ConfigError, InputError, JobNotFound, RowSkipped, snake_case
from smartbatch.jobs.job_report import run_of_list
from smartbatch.jobs.report_view import (
    ReportedRequests,
    ReportedRun,
    RequestFigures,
    SeenResults,
    report_view,
    totals,
)
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.quality.labels import LabelScores, label_section
from smartbatch.runs.compared_outputs import compare as compare_outputs
from smartbatch.runs.followed_jobs import GRACE_SECONDS
from smartbatch.runs.output_file import replaced
from smartbatch.runs.output_lines import defects_of
from smartbatch.runs.output_reader import read_lines, row_of
from smartbatch.runs.run_identity import jobs_of_output, output_key
from smartbatch.stored_jobs import StoredJobs
from smartbatch.types import DEFECTS, Usage
from smartbatch.views.html import Report
from smartbatch.views.html import report as page_of
from smartbatch.views.terminal import lines_of

_SKIPPED = snake_case(RowSkipped.__name__)
_TITLE_END = b" \xe2\x80\x93 smartbatch report</title>"
"""Identifies an existing report."""
_MAX_SEARCHED_JOBS = 10_000  # newest jobs searched for those of an output


def report(args: argparse.Namespace) -> int:
    path = args.output
    _check_page(path)
    if args.png:
        browser()  # fails before anything is read or written
    made = _report(args)
    _write_page(path, made.html)
    say(f"report of {made.requests:,} requests in {path}")
    if args.png:
        picture = os.path.splitext(path)[0] + ".png"
        screenshot(made.html, picture)
        say(f"picture in {picture}")
    return 0


def compare(args: argparse.Namespace) -> int:
    if args.output is not None:
        _check_page(args.output)
    found = compare_outputs(args.first, args.second, rows=args.rows)
    if args.output is not None:
        _write_page(args.output, page_of(found.view))
        say(f"comparison of {found.matched:,} rows in {args.output}")
    elif args.json:
        print_out(json.dumps(found.as_dict(), indent=2, default=str))
    else:
        print_out("\n".join(line.text for line in lines_of(found.view, terminal_width())))
    return 0


def _check_page(path: str) -> None:
    """Refuse a name that does not end in .html, and an existing file that is not a report."""
    if os.path.splitext(path)[1].lower() not in (".html", ".htm"):
        raise InputError(f"{escape(path)}: a report is HTML; choose a name ending in .html")
    if os.path.lexists(path):
        try:
            with open(path, "rb") as file:
                known = _TITLE_END in file.read(4_000)
        except OSError:
            known = False
        if not known:
            raise InputError(f"{escape(path)}: already exists and is not a report; choose another -o")


def _write_page(path: str, html: str) -> None:
    try:
        with replaced(path, "writing") as file:
            file.write(html.encode())
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be written: {error.strerror or error}") from error


def _report(args: argparse.Namespace) -> Report:
    subject, config = args.subject, config_of(args)
    is_file, no_store = os.path.isfile(subject), missing_store(config.store)
    if no_store is not None and not is_file:
        raise JobNotFound(
            f"{subject!r:.80} is not a file, and there is no store at {escape(no_store)} to look for a job; "
            "use --store or SMARTBATCH_STORE for another store"
        )
    labels = label_scores(args)
    if labels is not None and not is_file:
        raise InputError("labels need an output file: a job does not keep the columns of its input")
    if no_store is not None:
        return output_report(subject, (), time.time(), labels)
    stored = StoredJobs(config)
    try:
        if not is_file:
            return stored.job(subject).report()
        jobs = jobs_of_output(stored.jobs(limit=_MAX_SEARCHED_JOBS), subject)
        ended = stored.kept_decisions(output_key(subject))
        oldest_first = sorted(jobs, key=lambda job: job.created_at)
        runs = (*(job.reported_run() for job in oldest_first), *ended_runs(ended))
        return output_report(subject, runs, time.time(), labels)
    finally:
        stored.close(GRACE_SECONDS)


def output_report(
    path: str, runs: Sequence[ReportedRun], made_at: float, labels: LabelScores | None = None
) -> Report:
    """``runs`` are the stored jobs whose answers the output contains; ``made_at`` is in Unix seconds.

    Args:
        labels: counts each row, and becomes a section of the report.
    """
    figures, written = figures_of_output(path, labels)
    status, asked = figures.status(), figures.asked(path, made_at, written)
    title = f"Results in {os.path.basename(path)}"
    view = report_view(title, status, figures.seen, runs, asked)
    if labels is not None:
        check_labels(labels, path)
        view = evolve(view, sections=(*view.sections[:2], label_section(labels), *view.sections[2:]))
    return Report(view, status.total)


def figures_of_output(path: str, labels: LabelScores | None = None) -> tuple[OutputFigures, float]:
    """Also return when the output was last written, in Unix seconds."""
    figures = OutputFigures()
    for line in read_lines(path):
        figures.count(line)
        if labels is not None:
            labels.count(row_of(line))
    return figures, os.path.getmtime(path)


def ended_runs(decisions: Sequence[tuple[str, StoredDecision]]) -> tuple[ReportedRun, ...]:
    """Return the latest real-time run whose jobs were deleted after the output had all answers."""
    runs = [(key.partition("#")[0], one) for key, one in decisions]
    return tuple(run_of_list(one, key) for key, one in reversed(runs) if key == runs[0][0])


@define
class OutputFigures:
    seen: SeenResults = field(factory=SeenResults)
    models: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)
    cost: float = 0.0

    def count(self, line: dict[str, Any]) -> None:
        usage, error, cost = line.get("usage") or {}, line["error"], line.get("cost")
        if error is not None and error["kind"] == _SKIPPED:
            self.counts["skipped"] += 1
            return
        self.models[str(line.get("model"))] += 1
        self.counts["failed" if error is not None else "succeeded"] += 1
        tokens = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
        self.seen.input_tokens += tokens[0]
        self.seen.output_tokens += tokens[1]
        read, written = (usage.get(name) or 0 for name in ("cached_tokens", "cache_write_tokens"))
        self.seen.cached += Usage(tokens[0], cached_tokens=read, cache_write_tokens=written)
        self.seen.estimated += bool(usage.get("estimated"))
        self.seen.unknown += bool(usage.get("unknown"))
        self.counts["unpriced"] += cost is None
        self.cost += cost or 0.0
        self.counts.update(defects_of(line))
        for name, why in (line.get("dropped") or {}).items():
            self.seen.dropped.setdefault(name, str(why))
        if error is not None:
            self.seen.failures_read += 1
            self.seen.failures.count(str(error["kind"]), str(error["message"]), str(line.get("id")))
            return
        took = line.get("latency") or 0.0, cost
        self.seen.sample.take(RequestFigures("", *took, *tokens, line.get("attempts") or 0))

    def status(self) -> JobStatus:
        counts = self.counts
        return totals(
            next(iter(self.models), ""),
            total=counts["succeeded"] + counts["failed"],
            completed=counts["succeeded"],
            failed=counts["failed"],
            cost=self.cost,
            **{name: counts[name] for name in ("unpriced", *DEFECTS)},
        )

    def asked(self, path: str, made_at: float, written: float) -> ReportedRequests:
        return ReportedRequests(
            kind=None,
            models=tuple(model for model, _ in self.models.most_common()),
            skipped=self.counts["skipped"],
            place=os.path.abspath(path),
            made_at=made_at,
            written_at=written,
        )


_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_MAC_CHROME_PATH = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_PICTURE_WIDTH = 1100
_MAX_PICTURE_HEIGHT = 30_000  # pixels
_TIMEOUT_SECONDS = 120
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_HEIGHT_SCRIPT = "<script>document.title = 'height ' + document.documentElement.scrollHeight</script>"
"""Added to a copy of the page without its content security policy; makes the browser report the page's
height.
"""


def browser() -> str:
    for name in (*_BROWSERS, _MAC_CHROME_PATH):
        if found := shutil.which(name):
            return found
    raise ConfigError(
        "a picture needs Chromium, Chrome or Edge, and none is installed; on Debian and Ubuntu: "
        "apt-get install chromium. The report itself needs no browser: leave out --png"
    )


def screenshot(html: str, path: str) -> None:
    program = browser()
    with tempfile.TemporaryDirectory(prefix="smartbatch-") as folder:
        page, measured, picture = (Path(folder) / name for name in ("page.html", "measure.html", "page.png"))
        page.write_text(html, "utf-8")
        without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
        measured.write_text(without_policy.replace("</body>", f"{_HEIGHT_SCRIPT}</body>"), "utf-8")
        shown = _run(program, folder, "--dump-dom", f"--window-size={_PICTURE_WIDTH},800", measured.as_uri())
        found = re.search(r"<title>height (\d+)</title>", shown)
        height = min(int(found[1]) if found else 4000, _MAX_PICTURE_HEIGHT)
        _run(
            program,
            folder,
            f"--screenshot={picture}",
            f"--window-size={_PICTURE_WIDTH},{height}",
            page.as_uri(),
        )
        try:
            shutil.copyfile(picture, path)
        except OSError as error:
            raise InputError(f"{escape(path)}: cannot be written: {error.strerror or error}") from error


def _run(program: str, folder: str, *args: str) -> str:
    # as root, the browser cannot use its sandbox; the page is only the report, which has no scripts
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    line = [program, *_FLAGS, *root, f"--user-data-dir={folder}/profile", *args]
    try:
        done = subprocess.run(line, capture_output=True, timeout=_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{program} could not make a picture of the report: {error}") from error
    return done.stdout.decode("utf-8", "replace")
