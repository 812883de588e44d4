"""Records the functions that each test calls, and the executed lines of the mutated packages.

A plug-in of pytest (``-p benchmarks.mutant_calls``). For each test, it appends to a file in the folder
named by the environment variable ``CALLS_INTO``: one line per function, such as
``core/limits/retry.py:17``, one per line executed in a function of the mutated packages, such as
``core/limits/retry.py@19``, and the seconds and name of the test. Processes started by a test are recorded,
too: their environment has the name of the file, and their path has :data:`SITE`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGES = {
    "core": "smartbatch/core",
    "store": "smartbatch/jobs/store",
    "steps": "smartbatch/jobs/steps",
    "outputs": "smartbatch/runs/output_file.py",
}
"""Packages and files that decide about money and are mutated."""
FULL = (
    "tests/core/",
    "tests/jobs/",
    "tests/tables/",
    "tests/faults/simulation/test_seeds.py::test_jobs",
    "tests/faults/test_",
    "tests/properties/test_store_machine.py",
    "tests/runs/",
    "tests/cli/test_output",
)
"""Tests marked ``full`` that are recorded as well: they check money and take seconds."""
INTO = "CALLS_INTO"
FILE = "CALLS_OF_TEST"
SITE = f"""import os
if os.environ.get({FILE!r}):
    from benchmarks import mutant_calls
    mutant_calls.trace()
"""
"""A ``sitecustomize.py`` for processes started by tests."""
LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "smartbatch", "")

LOOKS = 3000
"""Maximum calls of a function per test whose lines are recorded; more would take minutes."""

_open, _write, _close = os.open, os.write, os.close  # tests replace these functions
_traced = tuple(LIBRARY + place.removeprefix("smartbatch/") for place in PACKAGES.values())
_seen: dict[int, _Lines | None] = {}
"""By ID of a code object, because hashing a code object is slow."""


def trace() -> None:
    """Record each call of this process from now on."""
    threading.settrace(_called)
    sys.settrace(_called)


def _called(frame: FrameType, _event: str, _value: object) -> _Lines | None:
    code = frame.f_code
    try:
        lines = _seen[id(code)]
    except KeyError:
        lines = _seen[id(code)] = _first_call(code)
    return lines if lines is not None and lines.are_wanted() else None


def _first_call(code: CodeType) -> _Lines | None:
    if not code.co_filename.startswith(LIBRARY):
        return None
    _note(f"{code.co_filename[len(LIBRARY) :]}:{code.co_firstlineno}\n")
    if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(_traced):
        return _Lines(code)
    return None


class _Lines:
    """Records each line of a function the first time it runs in a test."""

    def __init__(self, code: CodeType) -> None:
        self._path = code.co_filename[len(LIBRARY) :]
        self._left = {line for _, _, line in code.co_lines() if line is not None}
        self._left.discard(code.co_firstlineno)
        self._looks = LOOKS

    def are_wanted(self) -> bool:
        self._looks -= 1
        return bool(self._left) and self._looks > 0

    def __call__(self, frame: FrameType, _event: str, _value: object) -> _Lines:
        if frame.f_lineno in self._left:
            self._left.discard(frame.f_lineno)
            _note(f"{self._path}@{frame.f_lineno}\n")
        return self


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
    """Leave out further cases if the default tests are sufficient."""
    items[:] = [item for item in items if not item.get_closest_marker("full") or item.nodeid.startswith(FULL)]


def pytest_runtest_protocol(item: object) -> None:
    """Assign calls from now on to a test."""
    name = getattr(item, "nodeid", "")
    folder = os.environ[INTO]
    os.environ[FILE] = os.path.join(folder, hashlib.sha256(name.encode()).hexdigest())
    _seen.clear()
    began[name] = time.perf_counter()
    trace()


began: dict[str, float] = {}


def pytest_runtest_logfinish(nodeid: str) -> None:
    if nodeid in began:
        sys.settrace(None)
        _note(f"={time.perf_counter() - began[nodeid]} {nodeid}\n")


def read(folder: Path) -> Iterator[tuple[str, float, frozenset[str]]]:
    """Yield name, seconds, and functions and lines of each recorded test."""
    for file in folder.iterdir():
        lines = file.read_text().splitlines()
        ends = [line for line in lines if line.startswith("=")]
        if ends:
            seconds, _, name = ends[-1][1:].partition(" ")
            yield name, float(seconds), frozenset(line for line in lines if not line.startswith("="))
