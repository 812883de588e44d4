"""How a job is cut into shards, and whether the answers of a shard belong to its requests."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from statistics import median
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


_WIDTH = 6.0
"""Half the width of the band, in standard deviations. Of 2,583 real prompts (sets as above) the farthest lies
at 5.7."""
_SMALL = 3.0
"""The spread of few lines is itself uncertain: the band is wider by this factor over the square root of their
number, two thirds with twenty."""
_LEAST = 0.02
"""Half the width of the band at least, as a share: estimates that fit some lines exactly may be off for
others."""
_ROUNDING = 1.0
"""Tokens more that are always allowed: estimate and count are both rounded."""
_UNLIKE = 3.0
"""Estimates go by the characters: of a request whose bytes are off from its estimate by more than the others'
are, as one in another script is, the estimate may be off by so many times more."""
_SIGMA = 1.4826
"""Standard deviation of a normal distribution for each unit of its median absolute deviation."""
_VARIED = math.log(1.5)
_RELATED = 0.5
"""Estimates whose middle half spans a factor of 1.5 follow counts with a rank correlation of 0.9 and more on
the real sets above; with twenty answers handed out at random, one time in eighty it exceeds 0.5."""


@frozen
class _Fit:
    """What the lines have in common: billed tokens for each estimated one and for each line, and the median
    and the robust standard deviation of the logarithm of billed over expected.
    """

    slope: float
    constant: float
    center: float
    spread: float

    def expected(self, estimate: float) -> float:
        return _expected(self.slope, self.constant, estimate)


class Crosscheck:
    """Compares the lines of one shard with each other; several hundred are best, fewer than 20 show nothing.

    All lines are observed first and judged afterwards. It keeps 24 bytes for each.
    """

    NEEDED = 20
    """Lines before any is called suspicious."""

    def __init__(self) -> None:
        self._estimates = array("d")
        self._billed = array("d")
        self._sizes = array("d")
        self._fit: _Fit | None = None
        self._size_fit: _Fit | None = None

    def observe(self, estimate: int, billed: int, size: int = 0) -> None:
        """Learn from a line; one without counts is ignored.

        Args:
            estimate: our estimate of its prompt's tokens, before any correction.
            billed: prompt tokens the provider reports with the answer, cached ones included.
            size: bytes of its request; 0 where they are not known.
        """
        if estimate > 0 and billed > 0:
            self._estimates.append(estimate)
            self._billed.append(billed)
            self._sizes.append(size)
            self._fit = self._size_fit = None

    def suspects(self) -> int:
        """Return how many of the observed lines are suspicious."""
        lines = zip(self._estimates, self._billed, self._sizes, strict=True)
        return sum(self.suspicious(*line) for line in lines)

    def suspicious(self, estimate: float, billed: float, size: float = 0) -> bool:
        """Whether ``billed`` does not fit a prompt of ``estimate`` tokens, measured by the other lines."""
        if len(self._estimates) < self.NEEDED or estimate <= 0 or billed <= 0:
            return False
        if self._fit is None:
            self._fit = _fitted(self._estimates, self._billed)
        fit = self._fit
        expected = fit.expected(estimate)
        width = _WIDTH * fit.spread * (1 + _SMALL / math.sqrt(len(self._estimates)))
        if abs(billed - expected * math.exp(fit.center)) <= _ROUNDING + 1e-9:
            return False  # one token of three is a large share, but only rounding
        deviation = abs(math.log(billed / expected) - fit.center)
        return deviation > max(width, _LEAST) + _ROUNDING / expected + _UNLIKE * self._unlike(estimate, size)

    def _unlike(self, estimate: float, size: float) -> float:
        """Return how far a request's bytes are from those that other lines have for such an estimate, as a
        logarithm; a token more or less is none.
        """
        if size <= 0:
            return 0.0
        if self._size_fit is None:
            self._size_fit = _fitted(self._estimates, [max(1.0, size) for size in self._sizes])
        fit = self._size_fit
        deviation = abs(math.log(size / fit.expected(estimate)) - fit.center)
        return max(0.0, deviation - _ROUNDING / estimate)

    @property
    def unrelated(self) -> bool:
        """True when counts do not follow estimates at all: all answers may be exchanged.

        Then the spread is so large that no line stands out. Only prompts of different lengths can show it.
        """
        if len(self._estimates) < self.NEEDED:
            return False
        ordered = sorted(self._estimates)
        quarter = len(ordered) // 4
        if math.log(ordered[-1 - quarter] / ordered[quarter]) < _VARIED:
            return False
        return _correlation(_ranks(self._estimates), _ranks(self._billed)) < _RELATED


def _fitted(estimates: Sequence[float], billed: Sequence[float]) -> _Fit:
    """Return the better of a ratio alone and a ratio with a constant, such as a tool or a system text."""
    simple = _spread_of(1.0, 0.0, estimates, billed)
    slope = _slope(estimates, billed)
    if slope is None or slope <= 0:
        return simple
    constant = median(b - slope * e for e, b in zip(estimates, billed, strict=True))
    better = _spread_of(slope, constant, estimates, billed)
    return better if better.spread < simple.spread else simple


def _spread_of(slope: float, constant: float, estimates: Sequence[float], billed: Sequence[float]) -> _Fit:
    logs = [math.log(b / _expected(slope, constant, e)) for e, b in zip(estimates, billed, strict=True)]
    center = median(logs)
    return _Fit(slope, constant, center, _SIGMA * median(abs(log - center) for log in logs))


def _expected(slope: float, constant: float, estimate: float) -> float:
    return max(1.0, slope * estimate + constant)


def _slope(estimates: Sequence[float], billed: Sequence[float]) -> float | None:
    """Return the median slope between lines half the list apart in length (Theil and Sen, in short)."""
    ordered = sorted(zip(estimates, billed, strict=True))
    half = len(ordered) // 2
    slopes = [
        (far[1] - near[1]) / (far[0] - near[0])
        for near, far in zip(ordered, ordered[half:], strict=False)
        if far[0] > near[0]
    ]
    return median(slopes) if slopes else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return each value's place in order; equal ones share the middle of theirs."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) - 1) / 2 for value in values]


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    middle = (len(one) - 1) / 2  # of ranks, ties or not
    product = sum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    size = math.sqrt(sum((a - middle) ** 2 for a in one) * sum((b - middle) ** 2 for b in other))
    return product / size if size else 0.0
