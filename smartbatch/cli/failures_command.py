"""``smartbatch failures``: groups the failed and flawed rows of an output, with what to do about them."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from attrs import asdict

from smartbatch._words import escape, plural
from smartbatch.cli.printing import print_out
from smartbatch.quality.failed_rows import FailedKind, FailedRows
from smartbatch.runs.output_reader import read_rows

_MAX_SHOWN_MESSAGES: Final = 5  # per kind


def run(args: argparse.Namespace) -> int:
    rows = FailedRows()
    for row in read_rows(args.output):
        rows.count(row)
    kinds = list(rows.kinds())
    if args.json:
        print_out(json.dumps(_plain(args.output, rows, kinds)))
    else:
        print_out("\n".join(_lines(args.output, rows, kinds)))
    return 1 if kinds else 0


def _command(output: str, kind: FailedKind) -> str:
    """``INPUT …`` stands for the arguments of the run."""
    return f"smartbatch run INPUT … -o {shlex.quote(output)} {kind.options}"


def _plain(output: str, rows: FailedRows, kinds: list[FailedKind]) -> dict[str, Any]:
    counts = {name: getattr(rows, name) for name in ("answered", "failed", "skipped")}
    return {
        **counts,
        "kinds": [
            {
                "kind": kind.kind,
                "rows": kind.rows,
                "action": kind.action,
                "command": _command(output, kind),
                "messages": [
                    asdict(group, filter=lambda attribute, _: attribute.name in _PLAIN)
                    for group in kind.groups
                ],
            }
            for kind in kinds
        ],
    }


_PLAIN: Final = ("message", "count", "row", "example")


def _lines(output: str, rows: FailedRows, kinds: list[FailedKind]) -> Iterator[str]:
    skipped = f", {rows.skipped:,} skipped" if rows.skipped else ""
    yield f"{escape(output)}: {rows.answered:,} answered, {rows.failed:,} failed{skipped}."
    for kind in kinds:
        yield f"\n{escape(kind.kind)}: {plural(kind.rows, 'row')}; {kind.action}"
        for group in kind.groups[:_MAX_SHOWN_MESSAGES]:
            text = f": {escape(group.message)}" if group.message else ""
            yield f"  {plural(group.count, 'row')}, such as {group.example}{text}"
        if (more := len(kind.groups) - _MAX_SHOWN_MESSAGES) > 0:
            yield f"  {plural(more, 'more message')} (--json shows each)"
        yield f"  {escape(_command(output, kind))}"
    if kinds:
        yield "\nINPUT … stands for the other arguments of the run."
