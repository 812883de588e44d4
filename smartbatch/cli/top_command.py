"""``smartbatch top``: what runs, what waits and what it costs, in the terminal, twice a second."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from smartbatch.cli.option_tables import add_options

if TYPE_CHECKING:
    from smartbatch.dashboard.source import Source
    from smartbatch.views.terminal import TextLine

_HELP = """\
Show the dashboard's page Now in the terminal, updated twice a second: required actions, running jobs, limits,
waiting requests, spending, failures and processes. Press q or Ctrl-C to quit. If the output is a pipe or a
file, print it once. Set NO_COLOR to turn colours off.

examples:
  smartbatch top
  smartbatch top --store postgresql://db.example/jobs
"""
_OPTIONS = """
--store PLACE          where jobs are kept: a file, or postgresql://… (default: your own)
--config FILE          TOML or YAML file of settings; options win over it
"""
FRAME_SECONDS: Final = 0.5
_PIPE_WIDTH: Final = 120  # cells of a line if there is neither a terminal nor COLUMNS


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand by ``add``, which makes its parser."""
    parser = add(
        "top",
        help="show in the terminal what runs and what waits",
        description=_HELP,
        epilog="exit codes: 0 ended, 2 bad usage, or a store that cannot be used",
    )
    add_options(parser.add_argument, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Show frames until q or Ctrl-C; without a terminal, print one."""
    # late: other subcommands need none of it
    from smartbatch.cli.clients import config_of
    from smartbatch.cli.full_screen import FullScreen
    from smartbatch.cli.standard_output import print_out
    from smartbatch.dashboard.source import Source

    config = config_of(args)
    source = Source(store=config.store, shared=config.shared)
    _ = source.store  # a store that cannot be used is refused before the screen changes
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        width = shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
        print_out("\n".join(line.text for line in frame(source, width, None)))
        return 0
    with FullScreen(sys.stdout, FRAME_SECONDS, colours=not os.environ.get("NO_COLOR")) as screen:
        try:
            while True:
                size = screen.size()
                screen.show(frame(source, size.columns, size.lines), size)
                if set(screen.key()) & {"q", "Q", "\x03", "\x04"}:
                    break
        except KeyboardInterrupt:
            pass
    return 0


def frame(source: Source, width: int, height: int | None) -> list[TextLine]:
    """Return the dashboard's page *Now* as at most ``height`` lines of ``width`` cells."""
    from attrs import evolve

    from smartbatch.dashboard.now_page import page
    from smartbatch.dashboard.page import Query
    from smartbatch.errors import SmartbatchError
    from smartbatch.views.model import Bullets, Section, State, View
    from smartbatch.views.terminal import TextLine, fitted, lines_of

    now = datetime.fromtimestamp(source.clock.wall(), UTC)
    try:
        view, place = page(source, Query()).view, source.place
    except SmartbatchError as error:
        problem = Bullets(((f"The store cannot be read: {error.message}",),), "bad")
        section = Section("attention", "Action required", (problem,))
        view, place = View("Now", (section,), State("action required", "bad")), str(source.config.store)
    lines = lines_of(evolve(view, title="smartbatch", subtitle=f"{now:%H:%M:%S} UTC, {place}"), width)
    if height is not None and len(lines) > height:
        hidden = f"… {len(lines) - height + 1} more lines: enlarge the window to see them"
        lines = [*lines[: max(0, height - 1)], TextLine(fitted(hidden, width))]
    return lines
