"""Projects the cost of all rows of a table from the answers to a random sample of them.

The prompts of all rows are known in advance, only the answers are not. So the projection has two parts:

1. Input: the estimated input tokens of the remaining rows, at the price per estimated token that the sample
   paid (a regression estimator; Cochran, "Sampling Techniques", 3rd edition, 1977, section 7.3). The share of
   input in the cost of an answer comes from a least-squares fit of the costs to the billed tokens.
2. Everything else, mainly the answers: the weighted mean of what remains of the sampled costs. Its standard
   error has the finite population correction, so it is zero once every row is sampled. In a sample by
   groups, it is that of stratified sampling (Cochran, section 5.4): only the variation within groups counts.

Lengths of answers are skewed: most are short and a few are very long, so a sample often misses the longest
ones. The interval is therefore Willink's ("A confidence interval and test for the mean of an asymmetric
distribution", Communications in Statistics 34, 2005), which corrects Student's t for skewness. For the same
reason it leaves 9 % below and only 1 % above: with 5 % on each side, too few ranges would contain the cost of
tables with rare, long answers. ``python -m benchmarks.projection`` measures how many do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from smartbatch._words import money, money_range, money_within
from smartbatch.quality.recorded_row import RecordedRow

MIN_ANSWERS: Final = 3
"""Minimum answers for a range. Two have no skewness, and their range would be meaninglessly wide."""
_Z_BELOW, _Z_ABOVE = 1.340755, 2.326348  # normal quantiles of 91 % and 99 %
_RIDGE: Final = 1e-9  # attributes the cost to the input if input and output are proportional
_MIN_SKEWNESS: Final = 1e-6  # below it, the correction is lost in rounding


@frozen
class Range:
    """An amount with the range that contains it in 90 % of samples.

    Attributes:
        expected: the best estimate.
        low, high: ends of the range; ``None`` if there are fewer than :data:`MIN_ANSWERS` answers.
    """

    expected: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Range:
        low, high = self.low, self.high
        return Range(
            factor * self.expected,
            None if low is None else factor * low,
            None if high is None else factor * high,
        )

    def plus(self, amount: float) -> Range:
        low, high = self.low, self.high
        return Range(
            max(0.0, amount + self.expected),
            None if low is None else max(0.0, amount + low),
            None if high is None else amount + high,
        )

    @property
    def amount(self) -> str:
        """The best estimate as text, with the decimals of the range."""
        return money(self.expected) if self.high is None else money_within(self.expected, self.high)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.amount} (too few answers for a range)"
        return f"{self.amount} (90 %: {money_range(self.low, self.high)})"


@frozen(kw_only=True)
class Projection:
    """The expected cost of all rows in real time at the standard price, based on a sample.

    Attributes:
        rows: rows that are sent, sampled or not.
        sampled: rows in the sample.
        unanswered: sampled rows without an answer. They are expected to be sent again and to cost as much as
            the others.
        answers: sampled rows on which the projection is based. Rows that share an answer or have one from the
            cache are left out, because they show no cost.
        remaining: rows that are still to be answered, including those of the sample.
        paid: USD of the sample, as far as known.
        rest: USD of the remaining rows; ``None`` if the price is unknown or there is no answer.
        total: USD of all rows, including the sample; ``None`` if ``rest`` is.
        output_tokens: output tokens of the remaining rows; ``None`` if there is no answer.
    """

    rows: int
    sampled: int
    unanswered: int
    answers: int
    remaining: int
    paid: float
    rest: Range | None
    total: Range | None
    output_tokens: Range | None


@frozen
class _Answered:
    """A sampled row with the totals of its answers."""

    index: int
    size: float
    input_tokens: int
    output_tokens: int
    cost: float | None

    @classmethod
    def of(cls, index: int, size: float, answers: Sequence[RecordedRow]) -> _Answered:
        known = [each.cost for each in answers if each.cost is not None]
        return cls(
            index,
            size,
            sum(each.input_tokens or 0 for each in answers),
            sum(each.output_tokens or 0 for each in answers),
            sum(known) if len(known) == len(answers) else None,
        )


def project(
    sample: Iterable[RecordedRow],
    sizes: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    earlier: Mapping[int, float] | None = None,
) -> Projection:
    """Project the cost of all rows of a table.

    Args:
        sample: the sampled rows, drawn at random; a row may have several answers.
        sizes: estimated input tokens of every row of the table, 0 for a row that is not sent.
        groups: the group of every row, if the sample was drawn by groups. Each sampled row then represents
            the rows of its group.
        earlier: USD of each answered row that is not in the sample, by its index.
    """
    earlier = earlier or {}
    by_row: dict[int, list[RecordedRow]] = defaultdict(list)
    for each in sample:
        by_row[each.index].append(each)
    rows = sum(size > 0 for size in sizes)
    answered = [
        _Answered.of(index, sizes[index], found)
        for index, found in by_row.items()
        if all(each.ok for each in found)
    ]
    remaining = rows - len(answered) - len(earlier)
    paid = sum(each.cost or 0.0 for found in by_row.values() for each in found)

    paid_for = [each for each in answered if each.input_tokens]
    tokens = [each.output_tokens for each in paid_for]
    rest = _cost_of_rest(
        _weighted([each for each in paid_for if each.cost is not None], sizes, groups),
        remaining,
        sum(sizes) - sum(each.size for each in answered) - sum(sizes[index] for index in earlier),
    )
    return Projection(
        rows=rows,
        sampled=len(by_row),
        unanswered=len(by_row) - len(answered),
        answers=len(paid_for),
        remaining=remaining,
        paid=paid,
        rest=rest,
        total=None if rest is None else rest.plus(paid + sum(earlier.values())),
        output_tokens=_sum_of_rest(tokens, _weighted(paid_for, sizes, groups), remaining) if tokens else None,
    )


@frozen
class _Weighted:
    row: _Answered
    weight: float  # number of rows in the table that it represents, including itself
    stratum: Hashable  # its group, or ``None`` if it is the only sampled row of its group


def _weighted(
    rows: Sequence[_Answered], sizes: Sequence[float], groups: Sequence[Hashable] | None
) -> list[_Weighted]:
    if groups is None:
        total = sum(size > 0 for size in sizes)
        return [_Weighted(row, total / len(rows), None) for row in rows]
    members = Counter(group for group, size in zip(groups, sizes, strict=True) if size > 0)
    drawn = Counter(groups[row.index] for row in rows)
    covered = sum(members[group] for group in drawn) or 1
    scale = sum(members.values()) / covered  # more than 1 if no row of a group was answered
    of_groups = [(row, groups[row.index]) for row in rows]
    return [
        _Weighted(row, scale * members[group] / drawn[group], group if drawn[group] > 1 else None)
        for row, group in of_groups
    ]


def _cost_of_rest(sample: Sequence[_Weighted], remaining: int, remaining_size: float) -> Range | None:
    if not sample:
        return None
    billed = sum(each.weight * each.row.input_tokens for each in sample)
    estimated = sum(each.weight * each.row.size for each in sample)
    highest = sum(each.weight * (each.row.cost or 0.0) for each in sample) / billed
    price = min(max(_input_price([each.row for each in sample]), 0.0), highest) * billed / estimated
    others = [(each.row.cost or 0.0) - price * each.row.size for each in sample]
    return _sum_of_rest(others, sample, remaining).plus(price * remaining_size)


def _input_price(rows: Sequence[_Answered]) -> float:
    """Return the USD per billed input token that fits the costs best, by least squares."""
    # cost = price * input + other price * output
    squares = sum(row.input_tokens**2 for row in rows)
    output_squares = sum(row.output_tokens**2 for row in rows)
    products = sum(row.input_tokens * row.output_tokens for row in rows)
    by_input = sum(row.input_tokens * (row.cost or 0.0) for row in rows)
    by_output = sum(row.output_tokens * (row.cost or 0.0) for row in rows)
    ridged = output_squares + _RIDGE * (squares + output_squares)
    return (by_input * ridged - by_output * products) / (squares * ridged - products**2)


def _sum_of_rest(values: Sequence[float], sample: Sequence[_Weighted], remaining: int) -> Range:
    """Return the sum of a value over the remaining rows.

    Args:
        values: one for each row of ``sample``.
    """
    n, total = len(sample), sum(each.weight for each in sample)
    if not remaining:
        return Range(0.0, 0.0, 0.0)
    unseen = sum((each.weight - 1) * value for each, value in zip(sample, values, strict=True))
    expected = remaining * unseen / (total - n)
    if n < MIN_ANSWERS:
        return Range(expected)
    # Values vary around the mean of their stratum. Rows that are alone in their group share one stratum.
    strata: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for each, value in zip(sample, values, strict=True):
        strata[each.stratum].append((each.weight, value))
    errors = [error for stratum in strata.values() for error in _errors(stratum, expected / remaining)]
    squares = sum(error**2 for error in errors)
    skewness = sum(error**3 for error in errors) / squares**1.5 if squares > 0 else 0.0
    # less than 1 if rows were answered that the sample leaves out
    share = remaining * (remaining + n) / (total * (total - n))
    deviation, freedom = math.sqrt(share * squares), max(1, n - len(strata))
    return Range(
        expected,
        expected - deviation * _willink(_student(_Z_BELOW, freedom), skewness),
        expected - deviation * _willink(-_student(_Z_ABOVE, freedom), skewness),
    )


def _errors(stratum: Sequence[tuple[float, float]], mean: float) -> list[float]:
    """Return the contributions of weighted values to the standard error; their squares add up to its square.

    Args:
        mean: the mean of all values, used for a stratum with one value.
    """
    n = len(stratum)
    if n > 1:
        mean = sum(weight * value for weight, value in stratum) / sum(weight for weight, _ in stratum)
    factor = n / (n - 1) if n > 1 else 1.0
    return [math.sqrt(factor * max(0.0, weight * (weight - 1))) * (value - mean) for weight, value in stratum]


def _willink(t: float, skewness: float) -> float:
    """Correct a quantile of Student's t for the skewness of the mean."""
    if abs(skewness) < _MIN_SKEWNESS:
        return t
    root = math.cbrt(1 + skewness * (t - skewness / 6))
    return 3 * (root - 1) / skewness


def _student(z: float, freedom: int) -> float:
    """Return the quantile of Student's t at the probability of a normal quantile, by the expansion 26.7.5 of
    Abramowitz and Stegun, which is within 3 % for two degrees of freedom.
    """
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
