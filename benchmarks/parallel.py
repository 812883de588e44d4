"""How much faster a list is than one call after the other, and what the scheduler loses of that.

    python -m benchmarks.parallel [ROUNDS]

25 calls, 4 at a time, of a provider that waits and does nothing else. An ideal scheduler takes seven times
one call, so it is 25 / 7 = 3.57 times as fast; what a run takes longer than that is lost to this library and
to the machine's timer. The median of the rounds is what counts; the best of them says what is lost where the
machine has nothing else to do.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from typing import Final

from benchmarks.targets import Targets
from smartbatch import BatchingClient, Request
from smartbatch.providers import CallableProvider

ITEMS: Final = 25
PARALLELISM: Final = 4
SECONDS: Final = 0.4
"""Of a call, as a short answer of a small model takes."""
LOST: Final = 0.01
"""The share that may be lost of the ideal; 3.536 times as fast is what is left then."""
IDEAL: Final = ITEMS / math.ceil(ITEMS / PARALLELISM)


def run(seconds: float) -> tuple[float, float]:
    """Return how much faster one list is than its calls one after the other, and the share that is lost.

    The calls are measured one by one, so that what the machine's timer adds to each is not ours.
    """
    took: list[float] = []

    def wait(_request: Request, _attempt: int) -> str:
        began = time.perf_counter()
        time.sleep(seconds)
        took.append(time.perf_counter() - began)
        return "done"

    with BatchingClient(CallableProvider(wait), parallelism=PARALLELISM, deduplicate=False) as client:
        client.submit("warm up").result()
        took.clear()
        began = time.perf_counter()
        client.generate([f"item {number}" for number in range(ITEMS)])
        wall = time.perf_counter() - began
    ideal = math.ceil(ITEMS / PARALLELISM) * sum(took) / ITEMS
    return sum(took) / wall, wall / ideal - 1


def main(rounds: int = 7) -> None:
    """Print the figures; exit with 1 where a target is missed."""
    targets = Targets()
    found = [run(SECONDS) for _ in range(rounds)]
    faster, lost = (statistics.median(each) for each in zip(*found, strict=True))
    best = max(faster for faster, _ in found)
    least = round(IDEAL * (1 - LOST), 3)
    print(f"{faster:.3f} times as fast, {best:.3f} at best ({targets.at_least(faster, least)})")
    print(
        f"{lost:.2%} lost, {min(lost for _, lost in found):.2%} at best "
        f"({targets.at_most(100 * lost, 100 * LOST, ' %')})"
    )
    targets.exit()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
