"""Draws a random sample of rows that is spread over the whole table."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence


def draw(count: int, size: int, rng: random.Random, groups: Sequence[Hashable] | None = None) -> list[int]:
    """Return the positions of a random sample, in ascending order.

    Without groups, the rows are divided into ``size`` consecutive ranges of equal length, and one row of each
    is drawn, so that the sample covers a sorted file evenly. With groups, each group contributes rows in
    proportion to its size, but at least one if ``size`` allows it.

    Args:
        count: number of rows, 0 or more.
        size: number of rows to draw; all rows if it exceeds ``count``.
        groups: the group of each row.
    """
    if size >= count:
        return list(range(count))
    if groups is None:
        return _spread(range(count), size, rng)
    members: dict[Hashable, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    by_size = sorted(members.values(), key=len, reverse=True)
    sizes = _allotted([len(rows) for rows in by_size], size)
    return sorted(
        position
        for rows, wanted in zip(by_size, sizes, strict=True)
        if wanted
        for position in _spread(rows, wanted, rng)
    )


def _spread(rows: Sequence[int], size: int, rng: random.Random) -> list[int]:
    """Draw one row from each of ``size`` consecutive ranges. Because the ranges begin at a random row, every
    row has the same chance although their lengths differ by one.
    """
    count = len(rows)
    start = rng.randrange(count)
    ends = [number * count // size for number in range(size + 1)]
    return sorted(rows[(start + rng.randrange(*ends[at : at + 2])) % count] for at in range(size))


def _allotted(sizes: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` rows among groups, given in descending size, in proportion to their sizes."""
    allotted = [int(place < total) for place in range(len(sizes))]
    for _ in range(total - sum(allotted)):
        # the group that is furthest below its share of the rows
        spare = [(size - have) and size / (have + 0.5) for size, have in zip(sizes, allotted, strict=True)]
        allotted[spare.index(max(spare))] += 1
    return allotted
