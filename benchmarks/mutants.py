"""Mutation testing of the packages that control spending: 300 mutants, chosen by a seed.

    python -m benchmarks.mutants 7
    python -m benchmarks.mutants 7 --results /tmp/7.jsonl --calls /tmp/calls   # resumes

Each mutant is made in a copy of the tree. The tests that reach its line run until one fails, starting with
those of its own package. To find these tests, all tests run once at the start; ``--calls`` keeps their
record. Of the tests marked ``full``, only those that check these packages run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import TypeAlias

import pytest
from attrs import asdict, frozen

from benchmarks import mutant_calls
from benchmarks.mutant_calls import PACKAGES
from benchmarks.mutant_changes import Change, changes_of
from benchmarks.mutant_runs import Outcome, TestCalls, Worker, collected, copied, preload, pytest_line

ROOT = Path(__file__).parents[1]
TESTED_BY = {"core": "tests/core/", "store": "tests/jobs/", "steps": "tests/jobs/", "outputs": "tests/runs/"}
SEE_MOST: dict[str, str | tuple[str, ...]] = {
    "core": "tests/core/walks/",
    "store": ("tests/properties/test_store_machine.py", "tests/jobs/test_store_"),
    "steps": "tests/faults/simulation/test_seeds.py",
    "outputs": "tests/runs/test_output_file.py",
}
"""Tests of whole packages, which run first."""
_ALONE = ("structure", "waits", "benchmarks", "ci")
LEFT_OUT = ("docs", "emulator", "frameworks", "typing", *(f"test_{name}.py" for name in _ALONE))
"""Tests left out: those of texts and types, which detect any change of a line, and slow ones of other
packages.
"""
COUNT = 300
TARGET = 0.92
AT_MOST = 120.0
PARALLEL = 2
TOGETHER = 20
"""Mutants judged before the tests that killed them run without a mutant."""
SLOW_START = 4.0
"""Seconds the first test with PostgreSQL needs to start its server."""


@frozen
class Mutant:
    """A mistake in a file, as the file was when mistakes were drawn."""

    package: str
    path: str
    change: Change
    source: bytes

    def __str__(self) -> str:
        return f"{self.path}:{self.change.line} {self.change.described(self.source)}"


@frozen
class Judged:
    """A mutant by its description, and its outcome."""

    package: str
    mutant: str
    outcome: Outcome


def all_mutants() -> list[Mutant]:
    found = []
    for package, place in PACKAGES.items():
        whole = ROOT / place
        for file in sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]:
            path, source = str(file.relative_to(ROOT)), file.read_bytes()
            found += [Mutant(package, path, change, source) for change in changes_of(source)]
    return found


def drawn(seed: int, count: int) -> list[Mutant]:
    """Draw lines of code with equal probability, and a mistake for each."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for mutant in all_mutants():
        by_line[mutant.path, mutant.change.line].append(mutant)
    rng = random.Random(seed)
    return [rng.choice(by_line[line]) for line in rng.sample(list(by_line), count)]


def calls_of_tests(folder: Path, tree: Path) -> list[TestCalls]:
    """Return the calls of all tests, which run once in a copy of the tree unless the folder has their calls.

    In either case the copy then has byte code.
    """
    if folder.exists():
        collected(tree)
    else:
        folder.mkdir(parents=True)
        (tree / "sitecustomize.py").write_text(mutant_calls.SITE)
        more = ["--maxfail", "0", "-n", str(PARALLEL), "--dist", "loadfile", "-p", "benchmarks.mutant_calls"]
        more += [f"--ignore=tests/{each}" for each in LEFT_OUT]
        line = [sys.executable, "-m", "pytest", *pytest_line(*more)]
        environ = os.environ | {
            "PYTHONPATH": str(tree),
            mutant_calls.INTO: str(folder),
            "HANGS_AFTER": "1200",
        }
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        code = subprocess.run(line, cwd=tree, env=environ).returncode
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            shutil.rmtree(folder)
            sys.exit(f"The calls of the tests could not be recorded: pytest ended with {code}")
        (tree / "sitecustomize.py").unlink()
    return [TestCalls(*each) for each in mutant_calls.read(folder)]


class Tests:
    """Selects the tests of a mutant, the most likely and fastest first."""

    def __init__(self, tests: Iterable[TestCalls]) -> None:
        self._by_place: dict[str, list[TestCalls]] = defaultdict(list)
        self._by_file: dict[str, dict[str, TestCalls]] = defaultdict(dict)
        self._by_stem: dict[str, list[TestCalls]] = defaultdict(list)
        for test in tests:
            self._by_stem[Path(test.file).stem.removeprefix("test_")].append(test)
            for place in test.calls:
                self._by_place[place].append(test)
                self._by_file[re.split("[:@]", place)[0]][test.name] = test

    def of(self, mutant: Mutant) -> list[TestCalls]:
        """Return the tests that reach the line, or else the nearest earlier line that any test reaches. For
        code outside of functions, return those that reach a use of the assigned name, those in the test file
        of the same name, and those that reach anything in the file.
        """
        path = mutant.path.removeprefix("smartbatch/")
        for owner in mutant.change.owners[:1]:
            for line in range(mutant.change.line, owner, -1):
                if found := self._by_place.get(f"{path}@{line}"):
                    return self._ranked(mutant, found)
        for owner in mutant.change.owners:
            if found := self._by_place.get(f"{path}:{owner}"):
                return self._ranked(mutant, found)
        users = [test for line in _uses(mutant) for test in self._by_place.get(f"{path}@{line}", ())]
        groups = users, self._by_stem[Path(path).stem], self._by_file[path].values()
        tests = [test for group in groups for test in self._ranked(mutant, group)]
        return list({test.name: test for test in tests}.values())

    def _ranked(self, mutant: Mutant, tests: Iterable[TestCalls]) -> list[TestCalls]:
        return sorted(tests, key=lambda test: _rank(mutant, test))


def _uses(mutant: Mutant) -> list[int]:
    """Return the lines with the name that is assigned at the mutant's line, or the nearest before it."""
    lines = mutant.source.decode().splitlines()
    for line in reversed(lines[: mutant.change.line]):
        if found := re.match(r" *(\w+)(?:: .*)? = ", line):
            return [no for no, text in enumerate(lines, 1) if re.search(rf"\b{found[1]}\b", text)]
    return []


def _rank(mutant: Mutant, test: TestCalls) -> tuple[int, float, str]:
    stem = Path(mutant.path).stem
    near = 2 - test.file.startswith(TESTED_BY[mutant.package]) - (stem in Path(test.file).stem)
    if test.file.startswith(SEE_MOST[mutant.package]):
        near = 0
    starts = SLOW_START if "postgres" in test.name and stem != "postgres" else 0.0
    return near, test.seconds + starts, test.name


Work: TypeAlias = tuple[Mutant, list[TestCalls]]
_worker: Worker


def _begin(base: Path, most: float) -> None:
    global _worker
    own = base / f"of-{os.getpid()}"
    _worker = Worker(copied(base / "tree", own / "tree"), own / "left", most)


def _judge(work: Work) -> Outcome:
    mutant, tests = work
    return _worker.judge(mutant.path, mutant.change.applied(mutant.source), tests)


def _failing(tests: list[TestCalls]) -> list[str]:
    return _worker.failing(tests)


def _confirmed(pool: Pool, work: list[Work]) -> Iterator[Judged]:
    """Judge mutants. A test that fails without a mutant, as some do under load, kills none."""
    while work:
        outcomes = pool.map(_judge, work, chunksize=1)
        killers = {outcome.by for outcome in outcomes} | {test.name for test in work[0][1][:1]}
        tests = {test.name: test for _, tests in work for test in tests if test.name in killers}
        unsteady = pool.apply(_failing, (sorted(tests.values(), key=lambda test: test.name),))
        again = []
        for (mutant, tests_of), outcome in zip(work, outcomes, strict=True):
            if outcome.by in unsteady:
                again.append((mutant, [test for test in tests_of if test.name not in unsteady]))
            else:
                yield Judged(mutant.package, str(mutant), outcome)
        work = again


def judged(mutants: Sequence[Mutant], done: Path, calls: Path | None, most: float) -> list[Judged]:
    """Judge mutants that the file ``done`` does not contain, and add them to it."""
    known = [_read(line) for line in done.read_text().splitlines()] if done.exists() else []
    words = {one.mutant for one in known}
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=_memory()) as folder:
        base = Path(folder)
        tree = copied(ROOT, base / "tree")
        tests = Tests(calls_of_tests(calls or base / "calls", tree))
        preload()
        work = [(mutant, tests.of(mutant)) for mutant in mutants if str(mutant) not in words]
        context = multiprocessing.get_context("fork")
        with context.Pool(PARALLEL, _begin, (base, most)) as pool, done.open("a") as file:
            for start in range(0, len(work), TOGETHER):
                for one in _confirmed(pool, work[start : start + TOGETHER]):
                    outcome = one.outcome
                    print(f"{outcome.result:9} {one.mutant} [{outcome.by or outcome.tests}]", flush=True)
                    print(json.dumps(asdict(one)), file=file, flush=True)
                    known.append(one)
    drawn_now = {str(mutant) for mutant in mutants}
    return [one for one in known if one.mutant in drawn_now]


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _read(line: str) -> Judged:
    told = json.loads(line)
    return Judged(told["package"], told["mutant"], Outcome(**told["outcome"]))


def table(found: Sequence[Judged]) -> str:
    """Return a table of figures per package and in total."""
    counts: Mapping[tuple[str, str], int] = Counter((one.package, one.outcome.result) for one in found)
    results = ("killed", "timed out", "survived")
    lines = ["| package | mutants | killed | timed out | survived | seen |", "|---|---|---|---|---|---|"]
    for name in (*PACKAGES, "all"):
        packages = list(PACKAGES) if name == "all" else [name]
        figures = [sum(counts[package, result] for package in packages) for result in results]
        whole = sum(figures)
        share = f"{1 - figures[2] / whole:.1%}" if whole else "–"
        lines.append(f"| {name} | {whole} | {' | '.join(map(str, figures))} | {share} |")
    return "\n".join(lines)


def main() -> None:
    """Judge the mutants of a seed; exit with 1 if too few are detected."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    by_chance = random.SystemRandom().randrange(10**6)
    parser.add_argument("seed", type=int, nargs="?", default=by_chance, help="draws them (default: any)")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--results", type=Path, help="a file of what is known already, and of what is found")
    parser.add_argument("--calls", type=Path, help="a folder for which test calls what, in this very code")
    parser.add_argument("--most", type=float, default=AT_MOST, help="seconds of tests for each (%(default)g)")
    options = parser.parse_args()
    print(f"Seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = options.results or Path(folder) / "results"
        found = judged(drawn(options.seed, options.count), results, options.calls, options.most)
    print(f"\nSeed {options.seed}\n\n{table(found)}\n")
    for one in sorted(found, key=lambda one: one.mutant):
        if one.outcome.result != "killed":
            print(f"{one.outcome.result}: {one.mutant} ({one.outcome.tests} tests)")
    survived = sum(one.outcome.result == "survived" for one in found)
    sys.exit(1 - survived / len(found) < TARGET)


if __name__ == "__main__":
    main()
