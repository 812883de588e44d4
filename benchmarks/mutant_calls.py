"""Which functions each test calls, in its own process and in those it starts.

As a plug-in of pytest (``-p benchmarks.mutant_calls``) it appends to a file for each test, in the folder that
the environment variable ``CALLS_INTO`` names: a line for each function, then the test's seconds and its name.
Processes that a test starts find the file's name in their environment, and :data:`SITE` on their path.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

FULL = (
    "tests/core/walks/",
    "tests/jobs/",
    "tests/faults/simulation/test_seeds.py::test_jobs",
    "tests/faults/test_",
    "tests/properties/test_store_machine.py",
    "tests/cli/test_output",
)
"""Tests marked ``full`` that are recorded all the same: what decides about money, each in seconds."""
INTO = "CALLS_INTO"
FILE = "CALLS_OF_TEST"
SITE = f"""import os
if os.environ.get({FILE!r}):
    from benchmarks import mutant_calls
    mutant_calls.trace()
"""
"""A ``sitecustomize.py`` for processes that tests start."""
LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "smartbatch", "")

_open, _write, _close = os.open, os.write, os.close  # tests replace them
_seen: set[int] = set()


def trace() -> None:
    """Note each call of this process from now on, which a test runs in or started."""
    threading.settrace(_called)
    sys.settrace(_called)


def _called(frame: FrameType, _event: str, _value: object) -> None:
    code = frame.f_code
    if id(code) not in _seen:
        _seen.add(id(code))
        if code.co_filename.startswith(LIBRARY):
            _note(f"{code.co_filename[len(LIBRARY) :]}:{code.co_firstlineno}\n")


def _note(text: str) -> None:
    path = os.environ.get(FILE)
    if not path:
        return
    try:
        file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        _write(file, text.encode())
        _close(file)
    except OSError:  # a test may forbid it
        pass


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out further cases where the default tests see enough."""
    items[:] = [item for item in items if not item.get_closest_marker("full") or item.nodeid.startswith(FULL)]


def pytest_runtest_protocol(item: object) -> None:
    """Let what is called from now on belong to a test."""
    name = getattr(item, "nodeid", "")
    folder = os.environ[INTO]
    os.environ[FILE] = os.path.join(folder, hashlib.sha256(name.encode()).hexdigest())
    _seen.clear()
    began[name] = time.perf_counter()
    trace()


began: dict[str, float] = {}


def pytest_runtest_logfinish(nodeid: str) -> None:
    """End the test's file."""
    if nodeid in began:
        sys.settrace(None)
        _note(f"={time.perf_counter() - began[nodeid]} {nodeid}\n")


def read(folder: Path) -> Iterator[tuple[str, float, frozenset[str]]]:
    """Yield the name, the seconds and the functions of each test that was recorded in a folder."""
    for file in folder.iterdir():
        lines = file.read_text().splitlines()
        ends = [line for line in lines if line.startswith("=")]
        if ends:
            seconds, _, name = ends[-1][1:].partition(" ")
            yield name, float(seconds), frozenset(line for line in lines if not line.startswith("="))
