"""What a list takes, before anything is sent: requests, tokens and money, added up request by request."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from struct import Struct
from typing import Protocol

from attrs import astuple, define, frozen

from smartbatch.core.preparation.answer_length import FREE, NOTHING, SHAPES, THINKING, AnswerShape, Length
from smartbatch.core.preparation.tokens import Calibration, estimate_request, estimate_texts
from smartbatch.types import Kind, Request, Usage

_SPREAD = 0.77
"""Standard deviation of an answer's length as a share of its mean, in the Azure 2023 conversations."""
_UNKNOWN = 0.5
"""Answers that the prior of a model's answer length counts as."""
_FIRST_INPUT = (0.6, 1.6)
"""Billed tokens per estimated one before any answer: the least of texts alone, the most of whole requests. In
twelve kinds of prompts, four tokenizers count 0.61 (questions in Chinese) to 1.57 (JSON) tokens per estimated
one, and 1.9 for tables of numbers."""
_INPUT_SPREAD = 0.12
"""Standard deviation of billed tokens per estimated one, within one kind of prompts."""
_SAMPLE = 64
"""Requests by which the most tokens of all are told."""
_ALIKE = 4_096
"""Lengths of requests of which it is remembered what they take."""
_SURE = 1.645
"""Standard deviations within which 90 of 100 sums lie, 5 below and 5 above."""
NEAR = 1_000
"""Distinct keys before one that are near it."""
MOST = 1_500_000
"""Distinct keys that are remembered, in some 7 MB; further ones are compared with these."""
_PARTS = 0xFFF
_PARSE = Struct("<HI")


@frozen
class Cost:
    """USD of a whole list: 5 of 100 such lists cost less than ``low``, and 5 more than ``high``."""

    low: float
    expected: float
    high: float

    def of(self, share: float) -> Cost:
        return Cost(self.low * share, self.expected * share, self.high * share)

    def plus(self, other: Cost) -> Cost:
        return Cost(self.low + other.low, self.expected + other.expected, self.high + other.high)


def expected_usd(cost: Cost | None) -> float | None:
    """Return what is expected to be paid; ``None`` where the price is unknown."""
    return None if cost is None else cost.expected


@frozen
class AnswerLengths:
    """What the expected lengths of answers rest on.

    Attributes:
        seen: answers of the same model to the same kind of request, since their lengths last changed; 0 where
            the length is assumed.
        tokens: the length of one on average, before ``max_tokens`` limits it.
        unlimited: requests of the list without ``max_tokens``.
        by_schema: whether the answers follow a schema.
    """

    seen: int
    tokens: float
    unlimited: int = 0
    by_schema: bool = False


@frozen
class Load:
    """What a list takes of the provider, in expected tokens.

    Attributes:
        cached: further requests, from the cache.
        duplicates: further requests, with the answers of equal ones.
        repeats: of the requests, those that equal another one far ahead: a job pays them once, real time may
            pay them twice.
        answers: what ``tokens_out`` rests on; ``None`` where nothing is generated.
    """

    requests: int
    tokens_in: float = 0.0
    tokens_out: float = 0.0
    cached: int = 0
    answers: AnswerLengths | None = None
    duplicates: int = 0
    repeats: int = 0

    @property
    def by_job(self) -> int:
        """Requests that are sent where all go in one job."""
        return self.requests - self.repeats


class Rates(Protocol):
    """What a model costs; see :class:`smartbatch.prices.RateCard`."""

    def cost(self, usage: Usage) -> float:
        """Return USD of one request."""

    def expected_usage(self, input_tokens: int, output_tokens: int) -> Usage:
        """Return the tokens of a request that is not sent yet, as they are to be priced."""


@define
class _Usd:
    """The USD of requests, each processed alike.

    Attributes:
        given: for their input.
        least, largest: for their input, as few or as many tokens as 90 of 100 such lists have.
        made: for their answers, as long as expected.
        low, high: for their answers, as short or as long as 90 of 100 such lists have them on average.
        most: for their answers, as long as allowed.
    """

    given: float = 0.0
    least: float = 0.0
    largest: float = 0.0
    made: float = 0.0
    low: float = 0.0
    high: float = 0.0
    most: float = 0.0

    def add(self, n: int, each: _Usd) -> None:
        self.given += n * each.given
        self.least += n * each.least
        self.largest += n * each.largest
        self.made += n * each.made
        self.low += n * each.low
        self.high += n * each.high
        self.most += n * each.most

    def less(self, other: _Usd) -> _Usd:
        """Return these without those of ``other``."""
        return _Usd(*(own - each for own, each in zip(astuple(self), astuple(other), strict=True)))


@frozen
class _Each:
    """What one request takes: tokens, and USD by the way of processing.

    Attributes:
        most: output tokens that a budget needs room for.
        unlimited: whether nothing limits its answer.
    """

    given: float
    made: float
    most: int
    unlimited: bool
    usd: tuple[tuple[str, _Usd], ...]


@frozen
class OtherModel:
    """What is known of a model that requests of a list name, other than that of the list.

    Attributes:
        calibration, rates: as :class:`Workload` takes them.
    """

    name: str
    calibration: Calibration
    rates: Mapping[str, Rates | None]


class Workload:
    """Adds up requests in little memory, whatever their number; each takes some microseconds.

    Args:
        calibration: what was learned of the model's tokens.
        rates: prices by the way of processing, such as ``standard`` and ``batch``; ``None`` where unknown.
        kept: whether answers are kept, so that equal requests share one however far apart they are.

    Attributes:
        cached: requests that the cache answers; the caller counts them.
        duplicates: requests that share the answer of an equal one of the list, by every route: it is near, so
            that both wait at the same time, or answers are kept.
        repeats: of the requests added, those equal to one further ahead. Real time may have answered that by
            then, and pays twice; equal rows of a job are paid once.
        tokens_in, tokens_out: expected tokens of the requests added.
        most_out: output tokens that a budget needs room for, of all requests added.
    """

    def __init__(
        self,
        calibration: Calibration,
        rates: Mapping[str, Rates | None],
        *,
        kept: bool = False,
    ) -> None:
        self._calibration = calibration
        self._kept = kept
        self._unpriced: set[str] = set()
        self._rates = {name: card for name, card in rates.items() if card is not None}
        self._usd = {name: _Usd() for name in self._rates}
        self._repeated = {name: _Usd() for name in self._rates}
        self._alike: dict[tuple[int, int, int | None, str | None, str | None], _Each] = {}
        self._shape: AnswerShape = FREE
        self._seen = 0
        self._unlimited = 0
        self._generating = False
        self.requests = 0
        self.cached = 0
        self.duplicates = 0
        self.repeats = 0
        self._keys = DistinctKeys()
        self.tokens_in = 0.0
        self.tokens_out = 0.0
        self.most_out = 0
        self._sampled = 0
        self._sampled_in = self._sampled_most = 0.0

    def add(self, request: Request, key: bytes | None = None, other: OtherModel | None = None) -> None:
        """Add a request.

        Args:
            key: equal requests have the same; ``None`` for one that shares no answer.
            other: what is known of its model, if it is not that of the list.
        """
        repeated = False
        if key is not None:
            if self._keys.is_near(key):
                self.duplicates += 1
                return
            repeated = self._keys.seen(key)
            if repeated and self._kept:
                self.duplicates += 1
                return
            self.repeats += repeated
        embeds = request.embedding is not None
        self._generating = self._generating or not (embeds or request.call)
        shape = None if embeds else SHAPES.of(request.params)
        limit = request.params.max_tokens
        learned = self._calibration if other is None else other.calibration
        estimated = estimate_request(request)
        texts = estimated if learned.observed else estimate_texts(request)
        each = self._each(estimated, texts, limit, shape, other)
        self._add(1, each, repeated)
        if self._sampled < _SAMPLE:
            self._sampled += 1
            self._sampled_in += each.given
            self._sampled_most += learned.most_input(request)

    def add_alike(self, requests: int, tokens: int, kind: Kind) -> None:
        """Add requests of which no more is known than that each has so many estimated input tokens."""
        self._generating = self._generating or kind is Kind.GENERATE
        self._add(requests, self._each(tokens, tokens, None, None if kind is Kind.EMBED else FREE))

    def _add(self, n: int, each: _Each, repeated: bool = False) -> None:
        self.requests += n
        self.tokens_in += n * each.given
        self.tokens_out += n * each.made
        self.most_out += n * each.most
        self._unlimited += n * each.unlimited
        for name, usd in each.usd:
            self._usd[name].add(n, usd)
            if repeated:
                self._repeated[name].add(n, usd)

    def _each(
        self,
        estimated: int,
        texts: int,
        limit: int | None,
        shape: AnswerShape | None,
        other: OtherModel | None = None,
    ) -> _Each:
        """Return what a request takes, with answers of a shape, or for ``None`` with a vector; many of a list
        are alike in that. ``texts`` are the estimated tokens of its texts alone."""
        name = None if other is None else other.name
        alike = (estimated, texts, limit, None if shape is None else shape.key, name)
        known = self._alike.get(alike)
        if known is not None:
            return known
        learned = self._calibration if other is None else other.calibration
        answer = NOTHING if shape is None else self._answer(shape, limit, learned)
        given = learned.input(estimated)
        least, largest = _input_range(estimated, texts, learned)
        usd = []
        for processing, own in self._rates.items():
            card = own if other is None else other.rates.get(processing)
            if card is None:
                self._unpriced.add(processing)
                continue
            lengths = (0, *(math.ceil(out) for out in (answer.expected, answer.low, answer.high)), limit or 0)
            none, made, low, high, most = (card.cost(card.expected_usage(given, out)) for out in lengths)
            most = most - none if answer.expected else 0.0
            fewer, more = (card.cost(card.expected_usage(tokens, 0)) for tokens in (least, largest))
            usd.append((processing, _Usd(none, fewer, more, made - none, low - none, high - none, most)))
        room = 0 if shape is None else learned.most_output(limit)
        each = _Each(given, answer.expected, room, limit is None and shape is not None, tuple(usd))
        if len(self._alike) < _ALIKE:
            self._alike[alike] = each
        return each

    def _answer(self, shape: AnswerShape, limit: int | None, learned: Calibration) -> Length:
        """Return how long an answer is on average, and between what the means of lists lie: by those of its
        shape that were seen, or else by its shape, with the reasoning that a model may put before it."""
        self._shape = shape
        seen, mean = learned.answers(shape.key)
        if seen:
            self._seen = seen
            weight = min(seen, 2 * Calibration.SETTLED - 1)  # the mean fades with weight 1 / SETTLED
            unsure = 1 + _SURE * _SPREAD / math.sqrt(weight + _UNKNOWN)
            levels = (mean, *learned.levels(shape.key))
            found = Length(min(levels) / unsure, mean, max(levels) * unsure)
        else:
            of_shape = shape.length
            high = of_shape.high + (0.0 if learned.observed else THINKING)
            found = Length(of_shape.low, of_shape.expected, high)
        most = math.inf if limit is None else limit
        return Length(min(found.low, most), min(found.expected, most), min(found.high, most))

    @property
    def tokens_most(self) -> tuple[float, int]:
        """Input and output tokens that a budget needs room for, of all requests added; the input in the
        proportion of the first ones, as counting it takes longer."""
        return self.tokens_in * self._sampled_most / max(1.0, self._sampled_in), self.most_out

    @property
    def load(self) -> Load:
        seen, mean = self._seen, self._calibration.answers(self._shape.key)[1]
        tokens = mean if seen else self._shape.length.expected
        answers = AnswerLengths(seen, tokens, self._unlimited, by_schema=self._shape.by_schema)
        return Load(
            self.requests,
            self.tokens_in,
            self.tokens_out,
            self.cached,
            answers if self._generating else None,
            self.duplicates,
            self.repeats,
        )

    def cost(self, processing: str, *, by_job: bool = False) -> Cost | None:
        """Return the USD of all requests, processed this way; ``None`` where the price is unknown. With
        ``by_job``, of those that a job sends.

        The range follows from how much the lengths of answers differ, and from how many were observed or else
        from their schema; it never exceeds what ``max_tokens`` allows. It covers as well how models count the
        tokens of prompts, as far as that is not known from answers.
        """
        if processing not in self._rates or processing in self._unpriced:
            return None
        usd = self._usd[processing]
        if by_job:
            usd = usd.less(self._repeated[processing])
        chance = _SURE * _SPREAD / math.sqrt(max(1, self.requests))
        low = usd.made / (1 + math.hypot(chance, _excess(usd.made, usd.low)))
        high = usd.made * (1 + math.hypot(chance, _excess(usd.high, usd.made)))
        if not self._unlimited:
            high = min(high, max(usd.made, usd.most))
        return Cost(usd.least + low, usd.given + usd.made, usd.largest + high)


def _input_range(estimated: int, texts: int, learned: Calibration) -> tuple[int, int]:
    """Return between which numbers of input tokens a request of 90 of 100 lists has on average."""
    fewest, most = _FIRST_INPUT
    if not learned.observed:
        return math.floor(texts * fewest), math.ceil(estimated * most)
    given = learned.input(estimated)
    unsure = 1 + _SURE * _INPUT_SPREAD / math.sqrt(min(learned.observed, Calibration.SETTLED))
    return math.floor(given / unsure), math.ceil(given * unsure)


def _excess(larger: float, smaller: float) -> float:
    """Return by what share of it one amount exceeds another."""
    return larger / smaller - 1 if smaller > 0 else 0.0


class DistinctKeys:
    """Remembers 44 bits of each key: of a million distinct ones, one in thirty such lists has two that agree.

    Keys are digests of at least 6 bytes. They are spread over 4,096 sorted arrays, so that one is looked up
    and inserted in less than a microsecond.
    """

    def __init__(self) -> None:
        self._parts: dict[int, array[int]] = {}
        self._count = 0
        self._near: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def is_near(self, key: bytes) -> bool:
        """Whether ``key`` is one of the latest :data:`NEAR` distinct ones; it is one of them from now on."""
        near = self._near
        if key in near:
            return True
        near.add(key)
        self._order.append(key)
        if len(near) > NEAR:
            near.remove(self._order.popleft())
        return False

    def seen(self, key: bytes) -> bool:
        """Whether ``key`` was asked about before."""
        part, digest = _PARSE.unpack_from(key)
        part &= _PARTS
        known = self._parts.get(part)
        if known is None:
            known = self._parts[part] = array("I")
        at = bisect_left(known, digest)
        if at < len(known) and known[at] == digest:
            return True
        if self._count < MOST:
            self._count += 1
            known.insert(at, digest)
        return False
