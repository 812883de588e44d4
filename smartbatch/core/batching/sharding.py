"""How the open items of a job are cut into shards: in order, within the provider's limits, about equal in
size.

Where a provider's batches carry no label (Anthropic), only the number of requests identifies a batch. For
such a provider, shards of different sizes can be asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Protocol

from attrs import frozen

_LINE_END = 1
"""Bytes of a line besides its item."""
_DEPTH = 4
"""Shards that the end of a list is cut into at most, for all sizes to differ."""
_TRIES = 20_000
"""Divisions of the end that are tried: well under a tenth of a second."""


class Sized(Protocol):
    """An item to be put into a shard: its position in the job, bytes of its line, estimated input tokens."""

    @property
    def ix(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def tokens(self) -> int: ...


@frozen
class Cut:
    """Where a list of items was cut.

    Attributes:
        shards: the items' positions in the job, shard by shard; together all items that are not too big.
        too_big: items that fit into no batch, not even alone.
    """

    shards: tuple[tuple[int, ...], ...]
    too_big: tuple[int, ...]


def cut(
    items: Sequence[Sized],
    *,
    max_requests: int,
    max_bytes: float,
    max_tokens: float,
    shared_bytes: float = math.inf,
    shared_tokens: float = math.inf,
    distinct: bool = False,
    taken_sizes: Collection[int] = (),
) -> Cut:
    """Cut ``items`` into as few shards as their order and the limits allow, each of about the same size.

    The steps: set aside items that do not fit into any batch; choose the sizes of the shards (:func:`_even`,
    or :func:`_different` with ``distinct``); cut in order.

    Args:
        items: in the order in which they are sent.
        max_requests: most items of a shard, 1 or more.
        max_bytes: most bytes of a shard's lines; the caller subtracts what a batch needs besides them.
        max_tokens: most estimated input tokens of a shard: the enqueued-token limit, or infinity.
        distinct: make all sizes different where that can be, largest first, at the cost of one or two shards
            more.
        shared_bytes, shared_tokens: as ``max_bytes`` and ``max_tokens``, but only for a shard of several
            items: one that is larger gets a shard of its own.
        taken_sizes: with ``distinct``, sizes of other shards that must not be used again.

    Raises:
        ValueError: ``max_requests`` is below 1.
    """
    if max_requests < 1:
        raise ValueError("max_requests must be 1 or more")
    fitting: list[Sized] = []
    too_big: list[Sized] = []
    for item in items:
        fits = item.size + _LINE_END <= max_bytes and item.tokens <= max_tokens
        (fitting if fits else too_big).append(item)
    row = _Row(fitting, max_requests, min(max_bytes, shared_bytes), min(max_tokens, shared_tokens))
    sizes = _different(row, frozenset(taken_sizes)) if distinct else _even(row)
    shards: list[tuple[int, ...]] = []
    start = 0
    for size in sizes:
        shards.append(tuple(item.ix for item in fitting[start : start + size]))
        start += size
    return Cut(tuple(shards), tuple(item.ix for item in too_big))


class _Row:
    """Items in a row, and how far a shard can reach that begins at one of them."""

    def __init__(self, items: Sequence[Sized], requests: int, size: float, tokens: float) -> None:
        self.length = len(items)
        self._requests = requests
        self._limits = (
            (list(accumulate((item.size + _LINE_END for item in items), initial=0)), size),
            (list(accumulate((item.tokens for item in items), initial=0)), tokens),
        )

    def end(self, start: int) -> int:
        """Return the farthest end of a shard that begins at ``start``: behind one item at least."""
        end = min(start + self._requests, self.length)
        for sums, limit in self._limits:
            if sums[end] - sums[start] > limit:
                end = bisect_right(sums, sums[start] + limit, start, end) - 1
        return max(end, min(start + 1, self.length))

    def begin(self, end: int) -> int:
        """Return the earliest begin of a shard that ends at ``end``."""
        low, high = max(0, end - self._requests), end - 1
        while low < high:
            middle = (low + high) // 2
            if self.end(middle) >= end:
                high = middle
            else:
                low = middle + 1
        return low


def _even(row: _Row) -> list[int]:
    """Return sizes of the fewest shards, each as near to an equal share of what is left as it can be."""
    # From the back: the earliest begin of each last shard; before it, the rest would not fit into the others.
    begins = [row.length]
    while begins[-1]:
        begins.append(row.begin(begins[-1]))
    sizes, start = [], 0
    for left in range(len(begins) - 1, 0, -1):
        share = -(-(row.length - start) // left)
        end = min(row.end(start), max(begins[left - 1], start + share))
        sizes.append(end - start)
        start = end
    return sizes


def _different(row: _Row, taken: frozenset[int]) -> list[int]:
    """Return sizes that differ.

    1. The rest can be divided into free sizes (:func:`_ending`): those, and the end.
    2. A size from the largest possible down to its half is free: the largest of them.
    3. All of those are used: they may be used again, so that equal sizes are at least far apart.
    """
    sizes: list[int] = []
    used = set(taken)
    start = 0
    while start < row.length:
        most = row.end(start) - start
        if row.length - start <= 2 * most:
            ending = _ending(row, start, used)
            if ending is not None:
                return [*sizes, *ending]
        size = next((size for size in range(most, most // 2, -1) if size not in used), None)
        if size is None:
            used = set(taken)
            size = next((size for size in range(most, most // 2, -1) if size not in used), most)
        used.add(size)
        sizes.append(size)
        start += size
    return sizes


def _ending(row: _Row, start: int, used: set[int]) -> list[int] | None:
    """Return free sizes, all different, that add up to the rest from ``start``; the fewest found, or
    ``None``.

    One size, then two, and so on: of each number of them the first from an equal share upwards that leaves a
    rest which divides in turn. After a number of tries in all it is given up.
    """
    tries = iter(range(_TRIES))

    def divide(start: int, used: frozenset[int], parts: int) -> list[int] | None:
        left, most = row.length - start, row.end(start) - start
        if parts == 1:
            return [left] if left <= most and left not in used else None
        for size in range(-(-left // parts), min(most, left - 1) + 1):  # from an equal share upwards
            if next(tries, None) is None:
                return None
            if size in used:
                continue
            rest = divide(start + size, used | {size}, parts - 1)
            if rest is not None:
                return [size, *rest]
        return None

    for parts in range(1, _DEPTH + 1):
        found = divide(start, frozenset(used), parts)
        if found is not None:
            return found
    return None
