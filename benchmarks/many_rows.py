"""Compares ``smartbatch run`` on many rows with ``client.map`` on the same prompts.

    python -m benchmarks.many_rows
    python -m benchmarks.many_rows --rows 200000 --rounds 0 --kill 0.5

The server answers after 2 ms, and 64 calls are in flight. The two alternate after a warm-up round that
compiles the modules, and the median ratio is reported. With ``--kill``, a run is killed when that share of
its rows has been written, and the time until the same command writes its first new row is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import field, frozen

from benchmarks.harness import emulator, memory_of
from benchmarks.million_client import prompt_of
from smartbatch import BatchingClient

MODEL = "openai:gpt-5-mini"
LATENCY, WIDE, LETTERS = 0.002, 64, 200
LOOK = 0.5
"""Seconds between measurements of a process's memory."""


@frozen
class Taken:
    """Resources used by a process.

    Attributes:
        wall, cpu: seconds from start to end.
        memory: MB at each measurement.
    """

    wall: float
    cpu: float
    memory: list[float] = field(repr=False)


def course(memory: Sequence[float]) -> str:
    """Describe how the memory of a process developed."""
    parts = [memory[int(part * (len(memory) - 1))] for part in (0.25, 0.5, 0.75)]
    words = ", ".join(f"{each:.0f}" for each in (*parts, max(memory)))
    return f"MB at a quarter, a half, three quarters and the peak: {words}"


def write_rows(path: Path, rows: int) -> None:
    with open(path, "w") as file:
        for number in range(rows):
            file.write(json.dumps({"id": f"row-{number}", "prompt": prompt_of(number, LETTERS)}) + "\n")


def alone(path: str, url: str) -> None:
    """Send every prompt of a file with the library alone."""
    options = {"api_key": "benchmark", "base_url": url}
    with (
        BatchingClient(MODEL, provider_options=options, parallelism=WIDE) as client,
        open(path) as file,
    ):
        prompts = (json.loads(line)["prompt"] for line in file)
        wrong = sum(not result.ok for result in client.map(prompts, strategy="individual"))
    if wrong:
        raise AssertionError(f"{wrong} rows have no answer")


def command(folder: Path) -> list[str]:
    out, store = str(folder / "out.jsonl"), str(folder / "jobs.db")
    places = [str(folder / "rows.jsonl"), "-o", out, "--store", store]
    options = ["--model", MODEL, "--strategy", "individual", "--parallelism", str(WIDE)]
    return [sys.executable, "-m", "smartbatch", "run", *places, *options]


def environment(folder: Path, url: str) -> dict[str, str]:
    """Return the environment of all processes, which keeps only earlier prices and compiled modules."""
    own = {"XDG_STATE_HOME": str(folder), "OPENAI_API_KEY": "benchmark", "OPENAI_BASE_URL": url}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **own, "SMARTBATCH_SHARED": "off", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def taken(line: Sequence[str], environ: dict[str, str]) -> Taken:
    began = time.perf_counter()
    process = subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen = []
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        seen.append(memory_of(process.pid))
        time.sleep(LOOK)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the program ended with {process.returncode}")
    return Taken(wall, used.ru_utime + used.ru_stime, [*seen, used.ru_maxrss / 1024])


def forget(folder: Path) -> None:
    for path in (*folder.glob("out.jsonl*"), *folder.glob("jobs.db*")):
        if path.is_file():
            path.unlink()


@frozen
class GoneOn:
    """A killed run and the run that resumed it.

    Attributes:
        wall: seconds of both.
        soon: seconds from the start of the second until it wrote a row.
        memory: MB of each, at each measurement.
        written: rows of the output at the end.
    """

    wall: float
    soon: float
    memory: tuple[list[float], list[float]]
    written: int


def goes_on(folder: Path, environ: dict[str, str], rows: int, part: float) -> GoneOn:
    """Kill a run after a share of its rows, and resume it."""
    out, began = folder / "out.jsonl", time.perf_counter()
    memory: tuple[list[float], list[float]] = [], []
    process = subprocess.Popen(command(folder), env=environ, stderr=subprocess.DEVNULL)
    while process.poll() is None and size_of(out) < part * rows * line_of(out):
        memory[0].append(memory_of(process.pid))
        time.sleep(LOOK)
    process.kill()
    process.wait()
    process, soon, _ = started_again(folder, environ)
    while process.poll() is None:
        memory[1].append(memory_of(process.pid))
        time.sleep(LOOK)
    wall = time.perf_counter() - began
    with open(out, "rb") as file:
        return GoneOn(wall, soon, memory, sum(1 for _ in file))


def started_again(folder: Path, environ: dict[str, str]) -> tuple[subprocess.Popen[bytes], float, float]:
    """Resume a run; return it once it has written a row, with the seconds and CPU seconds this took."""
    out, again = folder / "out.jsonl", time.perf_counter()
    known = size_of(out)
    process = subprocess.Popen(command(folder), env=environ, stderr=subprocess.DEVNULL)
    while process.poll() is None and size_of(out) <= known:
        time.sleep(0.01)
    soon = time.perf_counter() - again
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return process, soon, sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def line_of(path: Path) -> int:
    """Return the size of the first line of a file in bytes, at least 1."""
    if not path.exists():
        return 1
    with open(path, "rb") as file:
        return max(1, len(file.readline()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kill", type=float, default=0.0, help="after this part of the rows; 0 kills none")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(*args.alone)
        return
    ratios = []
    with (
        tempfile.TemporaryDirectory(prefix="smartbatch-") as name,
        emulator("--latency", str(LATENCY)) as url,
    ):
        folder, rows = Path(name), args.rows
        write_rows(folder / "rows.jsonl", rows)
        environ = environment(folder, url)
        by_itself = [sys.executable, "-m", "benchmarks.many_rows", "--alone", str(folder / "rows.jsonl"), url]
        peak = 0.0
        for number in range(args.rounds and args.rounds + 1):
            library = taken(by_itself, environ)
            forget(folder)
            run = taken(command(folder), environ)
            if not number:
                continue
            peak = max(peak, *run.memory)
            ratios.append(library.wall / run.wall)
            for title, found in (("alone", library), ("run", run)):
                print(
                    f"{title:<6} {rows / found.wall:6.0f} rows/s, CPU {1000 * found.cpu / rows:.3f} ms a row,"
                    f" {course(found.memory)}",
                    flush=True,
                )
        if ratios:
            share = 100 * statistics.median(ratios)
            print(f"throughput of the run: {share:.0f} % of the library alone; peak memory {peak:.0f} MB")
        if args.kill:
            forget(folder)
            both = goes_on(folder, environ, rows, args.kill)
            most = max(map(max, both.memory))
            print(f"killed at {100 * args.kill:.0f} % and gone on: {rows / both.wall:.0f} rows/s")
            print(f"rows in the output {both.written:,} of {rows:,}")
            print(f"the first of both, {course(both.memory[0])}\nthe second, {course(both.memory[1])}")
            print(f"peak memory {most:.0f} MB; writes again after {both.soon:.1f} s")


if __name__ == "__main__":
    main()
