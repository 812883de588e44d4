"""Runs a script in an interpreter of its own, with a guard against hanging."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import IO

from attrs import frozen

import smartbatch

PACKAGE = Path(smartbatch.__file__).parent
GUARD = 30.0

PRELUDE = """\
import faulthandler, os, signal, sys, threading
faulthandler.enable()
"""


KEPT = frozenset({"PATH", "HOME", "TMPDIR", "LANG", "XDG_STATE_HOME"})


@frozen
class Ended:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run_script(
    script: str, *options: str, guard: float = GUARD, environ: dict[str, str] | None = None
) -> Ended:
    code = PRELUDE + textwrap.dedent(script)
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    kept["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), str(PACKAGE.parent)))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, *options, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=kept | (environ or {}),
            start_new_session=True,
        )
        hung = False
        try:
            process.wait(guard)
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(process.pid, signal.SIGABRT)  # every process left prints its stacks
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):  # its children too, should any be left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended = Ended(process.returncode, _text(out), _text(err))
    assert not hung, f"still running after {guard} s:\n{ended.out}\n{ended.err}"
    return ended


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
