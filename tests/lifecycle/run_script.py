"""Runs a script in an interpreter of its own, with a guard against hanging."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from attrs import frozen

GUARD = 30.0
"""Seconds after which a script hangs, also on a machine that is busy with other things."""

PRELUDE = """\
import faulthandler, os, signal, sys, threading
faulthandler.dump_traceback_later({guard}, exit=True)
"""


@frozen
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run_script(
    script: str, *options: str, guard: float = GUARD, environ: dict[str, str] | None = None
) -> Ended:
    """Run ``script``; one that is not over after ``guard`` seconds fails with the stacks of its threads."""
    code = PRELUDE.format(guard=guard) + textwrap.dedent(script)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}
    kept["PYTHONPATH"] = str(Path(__file__).parent)
    try:
        done = subprocess.run(
            [sys.executable, *options, "-c", code],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=kept | (environ or {}),
            timeout=guard + 10,
        )
    except subprocess.TimeoutExpired as hung:
        raise AssertionError(f"still running after {guard + 10} s: {hung.stdout!r} {hung.stderr!r}") from None
    assert "Timeout (" not in done.stderr, f"hangs:\n{done.stderr}"
    return Ended(done.returncode, done.stdout, done.stderr)
