"""``smartbatch compare``: compares two outputs, as text, as JSON or as an HTML page."""

from __future__ import annotations

import argparse
import json

from smartbatch.cli.printing import print_out, say, terminal_width
from smartbatch.runs.compared_outputs import compare
from smartbatch.views.terminal import lines_of


def run(args: argparse.Namespace) -> int:
    if args.output is None:
        found = compare(args.first, args.second, rows=args.rows)
        lines = (line.text for line in lines_of(found.view, terminal_width()))
        print_out(json.dumps(found.as_dict(), indent=2, default=str) if args.json else "\n".join(lines))
        return 0
    # imported late, because only a page needs them
    from smartbatch.cli.report_command import check_page, write_page
    from smartbatch.views.html import report

    check_page(args.output)
    found = compare(args.first, args.second, rows=args.rows)
    write_page(args.output, report(found.view))
    say(f"comparison of {found.matched:,} rows in {args.output}")
    return 0
