"""``smartbatch top``: what runs, what waits and what it costs, in the terminal, twice a second."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from smartbatch.cli.option_tables import add_options

if TYPE_CHECKING:
    from smartbatch.dashboard.source import Source

_HELP = """\
Show in the terminal what needs a person, the jobs under way, how full the limits are and who waits for what,
money, failures, and the processes that share the limits: the page Now of the dashboard, twice a second. It
ends with q or Ctrl-C. Written to a pipe or a file it is one frame. NO_COLOR is kept.

examples:
  smartbatch top
  smartbatch top --store postgresql://db.example/jobs
"""
_OPTIONS = """
--store PLACE          where jobs are kept: a file, or postgresql://… (default: your own)
--config FILE          TOML or YAML file of settings; options win over it
"""
EVERY: Final = 0.5
"""Seconds between two frames."""
_PIPE_WIDTH: Final = 120
"""Cells of a line where there is no terminal, unless COLUMNS says another number."""


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
    """Show frames until q or Ctrl-C; one frame where there is no terminal."""
    # late: other subcommands need none of it
    from smartbatch.cli.clients import config_of
    from smartbatch.cli.full_screen import FullScreen
    from smartbatch.cli.standard_output import print_out
    from smartbatch.cli.top_frame import frame
    from smartbatch.dashboard.source import Source

    config = config_of(args)
    source = Source(store=config.store, shared=config.shared)
    _check(source)
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        width = shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
        print_out("\n".join(line.text for line in frame(source, width, None)))
        return 0
    with FullScreen(sys.stdout, EVERY, colours=not os.environ.get("NO_COLOR")) as screen:
        try:
            while True:
                size = screen.size()
                screen.show(frame(source, size.columns, size.lines), size)
                if set(screen.key()) & {"q", "Q", "\x03", "\x04"}:
                    break
        except KeyboardInterrupt:
            pass
    return 0


def _check(source: Source) -> bool:
    """Return whether there is a store; one that cannot be used is refused before the screen changes.

    Raises:
        StoreError, ConfigError: the text says why.
    """
    return source.store is not None
