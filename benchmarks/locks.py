"""How long the library's locks are held, how often a thread finds one taken, and what an event costs.

    python -m benchmarks.locks

Every lock that the library makes is replaced by one that counts: the CPU time of the thread that holds it,
from taking it to giving it back, and whether it was free when it was asked for. Counting takes about a
microsecond itself, which the figures contain. Context switches are those of runs without counting, with those
of a raw loop next to them.
"""

from __future__ import annotations

import argparse
import concurrent.futures.thread  # before locks are replaced: it needs one of its own kind
import importlib
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from benchmarks.server import serving
from benchmarks.targets import Targets

IN_FLIGHT = 64
FEW = 0.01
"""Locks that are taken in less than one request of a hundred are left out."""


class CountingLock:
    """A ``threading.Lock`` that counts.

    Attributes:
        held: microseconds of CPU of each time it was held, of all locks by the module that made them.
        taken: how often one was not free, likewise.
    """

    held: ClassVar[defaultdict[str, list[float]]] = defaultdict(list)
    taken: ClassVar[defaultdict[str, int]] = defaultdict(int)
    native = threading.Lock

    def __init__(self) -> None:
        self._lock = CountingLock.native()
        self._place = _maker()
        self._since = 0.0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; a try that does not wait is not counted as one that found it taken."""
        if not self._lock.acquire(False):
            if not blocking:
                return False
            CountingLock.taken[self._place] += 1
            if not self._lock.acquire(True, timeout):
                return False
        self._since = time.thread_time()
        return True

    def release(self) -> None:
        """Give it back."""
        CountingLock.held[self._place].append(1e6 * (time.thread_time() - self._since))
        self._lock.release()

    def locked(self) -> bool:
        """Whether a thread holds it."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _maker() -> str:
    """Return the module of the library that makes a lock, apart from the one that makes them for others."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if "smartbatch" in path.parts and path.name != "_clock.py":
            return "/".join(path.parts[path.parts.index("smartbatch") + 1 :]).removesuffix(".py")
        frame = frame.f_back
    return "others"


def counted(url: str, count: int, in_flight: int) -> None:
    """Print what one list does to the locks; in a process of its own, before the library is imported."""
    threading.Lock = CountingLock  # type: ignore[assignment]
    paths: Any = importlib.import_module("benchmarks.hot_path")
    api = paths.APIS[0]
    paths.measure(paths.ours, api, url, 300, in_flight, "warm")
    CountingLock.held.clear()
    CountingLock.taken.clear()
    paths.measure(paths.ours, api, url, count, in_flight, "counted")
    for place, held in CountingLock.held.items():
        if len(held) >= FEW * count:
            held.sort()
            figures = (len(held) / count, CountingLock.taken[place] / len(held), held[len(held) // 2])
            print(place, *figures, held[int(0.99 * len(held))])


def locks(targets: Targets, url: str, count: int) -> None:
    """Hold times and contention, by the module that made the lock."""
    command = [sys.executable, "-m", "benchmarks.locks", "--of", url, "--requests", str(count)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in sorted(found.splitlines()):
        place, *figures = line.split()
        times, taken, median, slowest = map(float, figures)
        print(
            f"  {place:<28} {times:5.2f} a request, not free {100 * taken:4.1f} %"
            f" ({targets.at_most(100 * taken, 1, ' %')}), held {median:4.1f} µs, 99 % {slowest:5.1f} µs"
            f" ({targets.at_most(slowest, 20, ' µs')})"
        )


def least(in_flight: int) -> None:
    """What threads that mostly wait pay, with no lock at all, for work that takes some 7 µs where a thread
    does nothing else: what they share is the interpreter and the processors' caches."""
    found: dict[int, list[float]] = {1: [], in_flight: []}

    def work() -> list[float]:
        taken = []
        for _ in range(500):
            began = time.thread_time()
            {number: (number, number) for number in range(60)}
            taken.append(1e6 * (time.thread_time() - began))
            time.sleep(0.001)  # as one that waits for its server
        return taken

    for threads, each in found.items():
        with concurrent.futures.ThreadPoolExecutor(threads) as executor:
            for one in [executor.submit(work) for _ in range(threads)]:
                each.extend(one.result())
        each.sort()
    alone, many = (
        f"{each[len(each) // 2]:.1f} µs, 99 % {each[int(0.99 * len(each))]:.1f} µs" for each in found.values()
    )
    print(f"  some 7 µs of work without a lock: one thread {alone}; {in_flight} threads {many}")


def switches(targets: Targets, url: str, rounds: int, count: int) -> None:
    """Voluntary context switches a request, of the client and of a raw loop, in turns."""
    paths: Any = importlib.import_module("benchmarks.hot_path")
    found: dict[str, list[float]] = {"raw": [], "ours": []}
    for number in range(-1, rounds):
        for name, each in found.items():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            paths.measure(getattr(paths, name), paths.APIS[0], url, count, IN_FLIGHT, f"{name} {number}")
            more = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
            if number >= 0:
                each.append(more / count)
    raw, ours = (statistics.median(each) for each in found.values())
    print(f"  context switches a request: {ours:.2f}, raw {raw:.2f}   ({targets.at_most(ours / raw, 1.0)})")


def events(targets: Targets, count: int) -> None:
    """What the client's own observers take for an event, those they count later included."""
    observe: Any = importlib.import_module("smartbatch.observe.metrics")
    told: Any = importlib.import_module("smartbatch.events")
    types: Any = importlib.import_module("smartbatch.types")
    metrics = observe.BatchMetrics()
    event = told.CallFinished(
        at=1.0,
        batch_id="batch-1",
        model="openai:gpt-5-mini",
        size=1,
        seconds=0.05,
        usage=types.Usage(10, 4),
        cost=0.0,
        error=None,
        maybe_billed=False,
        route=types.Route.INDIVIDUAL,
    )
    seconds: list[float] = []

    def tell() -> None:
        for _ in range(20):
            began = time.thread_time()
            for _ in range(count // 20):
                metrics(event)
            seconds.append((time.thread_time() - began) / (count // 20))

    thread = threading.Thread(target=tell)  # on the main thread nothing is counted
    thread.start()
    thread.join()
    took = 1e6 * statistics.median(seconds)
    print(f"  an event of a call's end is counted in {took:.2f} µs   ({targets.at_most(took, 2, ' µs')})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        counted(options.of, options.requests, IN_FLIGHT)
        return
    targets = Targets()
    for latency in (0.05, 0.002):
        with serving("benchmarks.quick_server", "--latency", str(latency)) as base_url:
            url = base_url.removesuffix("/v1")
            print(f"{options.requests:,} requests at {1000 * latency:g} ms, {IN_FLIGHT} in flight")
            locks(targets, url, options.requests)
            switches(targets, url, options.rounds, options.requests // 2)
    least(IN_FLIGHT)
    events(targets, 20_000)
    targets.exit()


if __name__ == "__main__":
    main()
