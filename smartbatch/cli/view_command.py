"""``smartbatch view``: shows the rows of an output in a browser or as text, and their accuracy."""

from __future__ import annotations

import argparse
import os
import sys

from smartbatch._words import escape, plural
from smartbatch.cli.clients import file_columns, label_scores, template_source
from smartbatch.cli.printing import print_out, say, terminal_width
from smartbatch.cli.server_commands import serve
from smartbatch.dashboard.access import TokenAccess
from smartbatch.dashboard.row_viewer import MarkedRows, RowViewer
from smartbatch.dashboard.rows_page import Shown, field_condition, row_section, row_tiles
from smartbatch.errors import ConfigError, InputError
from smartbatch.quality.row_filter import RowFilter
from smartbatch.tables.result_files import to_line
from smartbatch.tables.row_prompts import ANSWER_FIELD, RowPrompts
from smartbatch.tables.templates import TemplateError
from smartbatch.views.model import Note, Section, View
from smartbatch.views.terminal import UNLIMITED_WIDTH, lines_of


def run(args: argparse.Namespace) -> int:
    template = template_source(args.template)
    try:
        prompts = None if template is None else RowPrompts.of(template, None)
    except TemplateError as error:
        raise InputError(f"--template: {error.message}") from None
    shown = Shown(prompts, label_scores(args), file_columns(args, args.output))
    if args.scored is not None and shown.scores is None:
        raise ConfigError("--scored needs --label-column or --labels")
    if args.defect is not None and (args.failed or args.error is not None):
        raise ConfigError("--defect selects answers, which failed rows do not have: leave out one of them")
    if not all("=" in text for text in args.where):
        raise InputError("--where: write FIELD=VALUE, such as sentiment=positive")
    if args.save_examples is not None:
        _save_examples(args.output, args.save_examples)
        return 0
    if args.text or args.marks:
        view = _view_of(args, shown)
        width = terminal_width() if sys.stdout is not None and sys.stdout.isatty() else UNLIMITED_WIDTH
        print_out("\n".join(line.text for line in lines_of(view, width)))
        return 0
    access = TokenAccess()
    if len(args.where) > 1:
        raise ConfigError("--where can be repeated only with --text")
    query = {
        "token": access.token,
        "outcome": args.error or args.defect or ("failed" if args.failed else ""),
        "mark": args.mark or "",
        "scored": args.scored or "",
        "search": args.search or "",
        "where": "".join(args.where),
    }
    serve(RowViewer(args.output, access, shown), query, args)
    return 0


def _view_of(args: argparse.Namespace, shown: Shown) -> View:
    rows = MarkedRows(args.output)
    marks, sections = rows.marks(), []
    if args.text:
        wanted = RowFilter(
            failed=True if args.failed else None,
            error_kind=args.error,
            defect=args.defect,
            search=args.search or "",
            where=tuple(map(field_condition, args.where)),
            verdict=args.mark,
            scores=shown.scores,
            scored_right=None if args.scored is None else args.scored == "right",
        )
        found = rows.index.find(wanted, verdicts=marks.verdicts, limit=args.limit)
        sections = [row_section(row, at, marks.by_position.get(at, ()), shown) for at, row in found.rows]
        if not found.is_last:
            more = Note(f"Stopped after {plural(args.limit, 'row')}; --limit sets another number.")
            sections.append(Section("more", "More rows", (more,)))
        elif not sections:
            sections.append(Section("none", "Rows", (), empty="No rows match."))
    if marks.lost_note is not None:
        sections.append(Section("marks", "Marks", (marks.lost_note,)))
    tiles = row_tiles(len(rows.index), marks.accuracy)
    return View(os.path.basename(args.output), tuple(sections), tiles=tiles)


def _save_examples(output: str, path: str) -> None:
    rows = list(MarkedRows(output).right_rows())
    if not rows:
        raise InputError(f"{escape(output)}: no answer is marked right")
    try:
        with open(path, "xb") as file:
            file.writelines(to_line({**row.input, ANSWER_FIELD: row.text}) for row in rows)
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be written: {error.strerror or error}") from error
    say(f"wrote {plural(len(rows), 'example')} to {path}")
