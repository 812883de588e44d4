"""``smartbatch failures``: groups the failed and flawed rows of an output or a job, with what to do."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import asdict

from smartbatch._words import escape, plural
from smartbatch.cli.clients import config_of, missing_store
from smartbatch.cli.printing import print_out
from smartbatch.errors import JobNotFound
from smartbatch.quality.failed_rows import FailedKind, FailedRows
from smartbatch.runs.followed_jobs import GRACE_SECONDS
from smartbatch.runs.output_reader import read_rows, row_of
from smartbatch.stored_jobs import StoredJobs
from smartbatch.tables.result_files import stored_lines
from smartbatch.types import DEFECTS

_MAX_SHOWN_MESSAGES: Final = 5  # per kind


def run(args: argparse.Namespace) -> int:
    rows, config = FailedRows(), config_of(args)
    command: Callable[[str, FailedKind], str | None] = _resend_command
    if os.path.isfile(args.subject) or missing_store(config.store) is not None:
        for row in read_rows(args.subject):
            rows.count(row)
    else:
        command = _retry_command
        stored = StoredJobs(config)
        try:
            for line in stored_lines(stored.job(args.subject)):
                rows.count(row_of(json.loads(line)))
        except JobNotFound as error:
            raise JobNotFound(f"{args.subject!r:.80} is not a file, and {error.message}") from None
        finally:
            stored.close(GRACE_SECONDS)
    kinds = [(kind, command(args.subject, kind)) for kind in rows.kinds()]
    if args.json:
        print_out(json.dumps(_plain(rows, kinds)))
    else:
        print_out("\n".join(_lines(args.subject, rows, kinds)))
    return 1 if kinds else 0


def _resend_command(output: str, kind: FailedKind) -> str:
    """``INPUT …`` stands for the arguments of the run."""
    return f"smartbatch run INPUT … -o {shlex.quote(output)} {kind.options}"


def _retry_command(job: str, kind: FailedKind) -> str | None:
    """A job sends failed requests again, but does not replace answers."""
    return None if kind.kind in DEFECTS else f"smartbatch jobs retry-failed {shlex.quote(job)}"


def _plain(rows: FailedRows, kinds: list[tuple[FailedKind, str | None]]) -> dict[str, Any]:
    counts = {name: getattr(rows, name) for name in ("answered", "failed", "skipped")}
    return {
        **counts,
        "kinds": [
            {
                "kind": kind.kind,
                "rows": kind.rows,
                "action": kind.action,
                "command": command,
                "messages": [
                    asdict(group, filter=lambda attribute, _: attribute.name in _PLAIN)
                    for group in kind.groups
                ],
            }
            for kind, command in kinds
        ],
    }


_PLAIN: Final = ("message", "count", "row", "example")


def _lines(subject: str, rows: FailedRows, kinds: list[tuple[FailedKind, str | None]]) -> Iterator[str]:
    skipped = f", {rows.skipped:,} skipped" if rows.skipped else ""
    yield f"{escape(subject)}: {rows.answered:,} answered, {rows.failed:,} failed{skipped}."
    for kind, command in kinds:
        yield f"\n{escape(kind.kind)}: {plural(kind.rows, 'row')}; {kind.action}"
        for group in kind.groups[:_MAX_SHOWN_MESSAGES]:
            text = f": {escape(group.message)}" if group.message else ""
            yield f"  {plural(group.count, 'row')}, such as {group.example}{text}"
        if (more := len(kind.groups) - _MAX_SHOWN_MESSAGES) > 0:
            yield f"  {plural(more, 'more message')} (--json shows each)"
        if command is not None:
            yield f"  {escape(command)}"
    if any("INPUT …" in (command or "") for _, command in kinds):
        yield "\nINPUT … stands for the other arguments of the run."
