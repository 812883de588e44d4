"""A plain loop over seeds: feeds a parser, notes what came back and how long the slowest input took."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable, Mapping

from attrs import frozen

SEED = 20_261_121
LONGEST = 2.0  # CPU seconds an input may take at most; the largest have some tens of kilobytes

Target = Callable[[random.Random], bool]
"""Makes an input, feeds it, checks what comes back; True where the input made sense."""
Targets = Mapping[str, Callable[[], Target]]


@frozen
class Fuzzed:
    inputs: int  # how many were fed
    good: int  # those that made sense; the others ended with the documented error
    slowest: float  # CPU seconds of the slowest one
    cpu: float  # CPU seconds of all, the making and the check of the inputs included
    grown: int  # bytes by which the memory of the process grew at its peak


def fuzz(name: str, made: Callable[[], Target], rounds: int, seed: int = SEED) -> Fuzzed:
    """Feed a target so many inputs, each of a seed of its own, which a failure names."""
    target = made()
    good, slowest, before = 0, 0.0, _peak()
    began = at = time.thread_time()
    for each in range(seed, seed + rounds):
        try:
            good += target(random.Random(each))
            ended = time.thread_time()
            slowest, at = max(slowest, ended - at), ended
            assert slowest < LONGEST, f"it took {slowest:.1f} s of CPU"
        except BaseException as error:
            error.add_note(f"{name}: seed {each}")
            raise
    return Fuzzed(rounds, good, slowest, at - began, _peak() - before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
