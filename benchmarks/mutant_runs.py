"""Runs the tests of one mutant in a copy of the tree, in a fork of a process that has imported the SDKs."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from hypothesis import Phase, settings

__all__ = ["Outcome", "TestCalls", "Worker", "collected", "copied", "fitting", "preload", "pytest_line"]

SDKS = (
    "anthropic",
    "cattrs",
    "genai_prices",
    "google.genai",
    "json_repair",
    "jsonschema",
    "numpy",
    "openai",
    "prometheus_client",
    "psycopg",
    "pydantic_ai",
    "requests",
    "structlog",
    "yaml",
)
"""Slow imports that do not depend on the library."""
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".nox", ".mypy_cache", ".ruff_cache", ".hypothesis")
FIRST = 6.0
"""Seconds of tests that run first, which detect most mutants."""
OF_TREE = ("smartbatch", "benchmarks", "tests")
MEMORY = 8 * 2**30
SUBREAPER = 36
LINE = (
    "-q",
    "-x",
    "--strict-markers",
    *("-n", "0"),
    *("-p", "no:cacheprovider"),
    *("-m", "not soak"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plug-ins are imported before the fork
)


@frozen
class TestCalls:
    """A test: its seconds, the functions it calls, and the lines it reaches, as ``core/limits/retry.py:17``
    and ``core/limits/retry.py@19``.
    """

    __test__ = False

    name: str
    seconds: float
    calls: frozenset[str]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@frozen
class Outcome:
    """The outcome of a mutant (``killed``, ``timed out`` or ``survived``), the number of tests, and the test
    that killed it.
    """

    result: str
    tests: int
    by: str = ""


def preload() -> None:
    for name in SDKS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def copied(tree: Path, into: Path) -> Path:
    """Copy a tree with its timestamps, so that its byte code stays valid."""
    shutil.copytree(tree, into, ignore=NOT_COPIED, symlinks=True)
    return into


def pytest_line(*more: str) -> list[str]:
    """Return pytest's arguments for all tests except soak tests, without the project's default arguments."""
    return ["-o", "addopts=", *LINE, *more]


class Worker:
    """Runs mutants one after another in a copy of the tree.

    Args:
        tree: the copy, used by nobody else.
        scratch: a folder for files left by tests.
        most: seconds of tests that a mutant must survive.
    """

    def __init__(self, tree: Path, scratch: Path, most: float) -> None:
        self._tree = tree
        self._most = most
        self._scratch = scratch
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # processes left by tests become children of this one

    def judge(self, path: str, mutated: bytes, tests: Sequence[TestCalls]) -> Outcome:
        """Run the tests of a mutant. The first ones run alone, because they detect most mutants."""
        chosen = fitting(tests, self._most)
        first = _begin_of(chosen, FIRST)
        with self._planted(path, mutated):
            outcome = self._run(first)
            if outcome.result != "survived" or len(first) == len(chosen):
                return outcome
            later = self._run(chosen[len(first) :])
        return Outcome(later.result, len(first) + later.tests, later.by)

    def failing(self, tests: Sequence[TestCalls]) -> list[str]:
        """Return the names of tests that fail without a mutant.

        Raises:
            RuntimeError: no test was found, or none could be run.
        """
        names: list[str] = []
        while tests:
            outcome = self._run(tests)
            if outcome.result != "survived" and not outcome.by:
                raise RuntimeError(f"the tests cannot be run: {(self._scratch / 'said').read_text()[-2000:]}")
            if not outcome.by:
                return names
            names.append(outcome.by)
            tests = [test for test in tests if test.name != outcome.by]
        return names

    @contextlib.contextmanager
    def _planted(self, path: str, mutated: bytes) -> Iterator[None]:
        file = self._tree / path
        kept = file.with_name(f"{file.name}.kept")
        file.rename(kept)
        file.write_bytes(mutated)
        try:
            yield
        finally:
            kept.replace(file)

    def _run(self, tests: Sequence[TestCalls]) -> Outcome:
        if not tests:
            return Outcome("survived", 0)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        limit = (3 * sum(test.seconds for test in tests) + 10) * busy
        child = os.fork()
        if not child:
            self._tests_of_child(tests)
        watched = os.pidfd_open(child)
        try:
            in_time = bool(select.select([watched], [], [], limit)[0])
        finally:
            os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if in_time else None
        _end_children()
        if not in_time:
            return Outcome("timed out", len(tests))
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"no test was found of {[test.name for test in tests]}")
        failed = self._scratch / "failed"
        by = failed.read_text() if failed.exists() else ""
        return Outcome("survived" if code == 0 else "killed", len(tests), by)

    def _tests_of_child(self, tests: Sequence[TestCalls]) -> None:
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            said = os.open(self._scratch / "said", os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(said, stream)
            os.chdir(self._tree)
            os.environ |= {"PYTHONPATH": str(self._tree), "PYTEST_DEBUG_TEMPROOT": str(self._scratch)}
            _write_no_bytecode()
            sys.path.insert(0, str(self._tree))
            for name in [name for name in sys.modules if name.partition(".")[0] in OF_TREE]:
                del sys.modules[name]
            files = dict.fromkeys(test.file for test in tests)
            plugin = _Chosen([test.name for test in tests], self._scratch / "failed")
            code = int(pytest.main(pytest_line(*files), plugins=[plugin]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def _write_no_bytecode() -> None:
    """Byte code of a mutant could match the next one, if that has the same size and was written in the same
    second.
    """
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


class _Chosen:
    """A plug-in that runs tests in the given order and records the first failure."""

    def __init__(self, names: Sequence[str], failed: Path) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._failed = failed

    def pytest_sessionstart(self) -> None:
        """Disable byte code, which the ``conftest`` of the tests enables."""
        _write_no_bytecode()

    def pytest_collection(self) -> None:
        """Skip the search for the smallest failing example."""
        settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places),
            key=lambda item: self._places[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._failed.exists():
            self._failed.write_text(report.nodeid)


def fitting(tests: Iterable[TestCalls], seconds: float) -> list[TestCalls]:
    """Return, in order, the tests that fit into the time together, or only the first.

    A test that does not fit does not exclude shorter ones after it.
    """
    chosen: list[TestCalls] = []
    for test in tests:
        if not chosen or test.seconds <= seconds:
            chosen.append(test)
            seconds -= test.seconds
    return chosen


def _begin_of(tests: Sequence[TestCalls], seconds: float) -> Sequence[TestCalls]:
    """Return the first tests that fit into the time, or only the first."""
    ends = accumulate(test.seconds for test in tests)
    return tests[: max(1, sum(end <= seconds for end in ends))]


def _end_children() -> None:
    """End processes left by tests, including databases."""
    ends = time.monotonic() + 0.5
    while children := _children():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGQUIT if time.monotonic() < ends else signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _children() -> list[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def collected(tree: Path) -> None:
    """Collect the tests once to create their byte code."""
    line = [sys.executable, "-m", "pytest", *pytest_line("--collect-only")]
    environ = os.environ | {"PYTHONPATH": str(tree)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(line, cwd=tree, env=environ, stdout=subprocess.DEVNULL, check=True)
