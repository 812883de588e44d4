"""The requests, tokens and expected cost of a list, added up before anything is sent."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from struct import Struct
from typing import Protocol

from attrs import astuple, define, frozen

from smartbatch.core.prefixes.savings import NO_SAVING, KnownCaching, PrefixSavings
from smartbatch.core.preparation.answer_length import (
    FREE_TEXT,
    NO_LENGTH,
    REASONING_TOKENS,
    SHAPES,
    AnswerShape,
    Length,
)
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.preparation.tokens import RequestTokens
from smartbatch.types import Kind, Request, Usage

# standard deviation of answer lengths, divided by their mean, in the Azure 2023 conversations
_LENGTH_DEVIATION = 0.77
_PRIOR_ANSWERS = 0.5  # weight of the assumed answer length, in answers
_FIRST_INPUT_RATIOS = (0.6, 1.6)
"""Range of billed tokens per estimated token before any answer is observed. The minimum applies to texts
and files alone, the maximum to the whole request. In twelve kinds of prompts, four tokenizers count 0.61
(questions in Chinese) to 1.57 (JSON) tokens per estimated one, and 1.9 for tables of numbers.
"""
_INPUT_DEVIATION = 0.12  # standard deviation of billed tokens per estimated token, within one kind of prompt
_SAMPLED_REQUESTS = 64  # requests from which the maximum tokens of all requests are extrapolated
_MAX_KNOWN_COSTS = 4_096  # request lengths whose costs are remembered
_SURE_DEVIATIONS = 1.645  # standard deviations around the mean that cover 90 % of sums
NEAR_KEYS = 1_000  # preceding distinct keys within which an identical request is near
MAX_KEYS = 1_500_000
"""Maximum number of remembered distinct keys, which take about 7 MB. Later keys are only compared with these.
"""
_PART_MASK = 0xFFF
_PARSE = Struct("<HI")


@frozen
class Cost:
    """USD of a whole list, and its input tokens that are read from the provider's cache: 5 % of such lists
    have less than the low amounts, and 5 % more than the high ones.
    """

    low: float
    expected: float
    high: float
    # the saving by the cache, which these amounts take into account
    saved_low: float = 0.0
    saved: float = 0.0
    saved_high: float = 0.0
    # input tokens
    read_low: float = 0.0
    read: float = 0.0
    read_high: float = 0.0

    def of(self, share: float) -> Cost:
        return Cost(*(share * amount for amount in astuple(self)))

    def plus(self, other: Cost) -> Cost:
        return Cost(*(own + added for own, added in zip(astuple(self), astuple(other), strict=True)))


def expected_usd(cost: Cost | None) -> float | None:
    return None if cost is None else cost.expected


@frozen
class AnswerLengths:
    seen: int  # observed answers of this kind since the lengths last changed; 0 if assumed
    tokens: float  # mean length before ``max_tokens`` is applied
    unlimited: int = 0  # requests of the list without ``max_tokens``
    by_schema: bool = False  # the answers follow a schema


@frozen
class FileLoad:
    """The files in the requests of a list."""

    count: int = 0
    bytes: int = 0  # of those whose size is known
    tokens: float = 0.0  # expected; included in the tokens of the list

    def plus(self, size: int, tokens: int) -> FileLoad:
        return FileLoad(self.count + 1, self.bytes + size, self.tokens + tokens)


@frozen
class Load:
    requests: int
    tokens_in: float = 0.0
    tokens_out: float = 0.0
    cached: int = 0  # additional requests, answered from the cache
    answers: AnswerLengths | None = None  # basis of ``tokens_out``; ``None`` if nothing is generated
    duplicates: int = 0  # additional requests, which share the answers of identical ones
    # requests identical to a much earlier one: a job pays for them once, real time may pay twice
    repeats: int = 0
    files: FileLoad | None = None  # ``None`` if there are none
    # Requests with a shared prefix that the client no longer marks in real time, by the reason; ``None`` if
    # there are none.
    unmarked: Mapping[str, int] | None = None

    @property
    def by_job(self) -> int:
        """Requests that one job would send."""
        return self.requests - self.repeats


class Rates(Protocol):
    def cost(self, usage: Usage) -> float:
        """Return the USD of one request."""

    def expected_cost(self, tokens: Usage) -> float:
        """Return the USD of a request that has not been sent yet."""


@define
class _PartialCosts:
    """USD of requests that are processed the same way."""

    given: float = 0.0  # input
    least: float = 0.0  # input; 5 % of lists cost less
    largest: float = 0.0  # input; 5 % of lists cost more
    made: float = 0.0  # answers of expected length
    low: float = 0.0  # answers; 5 % of lists cost less
    high: float = 0.0  # answers; 5 % of lists cost more
    most: float = 0.0  # answers of maximum length

    def add_costs(self, n: int, each: _PartialCosts) -> None:
        self.given += n * each.given
        self.least += n * each.least
        self.largest += n * each.largest
        self.made += n * each.made
        self.low += n * each.low
        self.high += n * each.high
        self.most += n * each.most

    def less(self, other: _PartialCosts) -> _PartialCosts:
        return _PartialCosts(*(own - each for own, each in zip(astuple(self), astuple(other), strict=True)))


@frozen
class _RequestCosts:
    """Tokens of one request, and its cost in USD for each way of processing."""

    given: float
    audio: float  # the part of ``given`` that is audio
    made: float
    most: int  # output tokens to reserve for a budget
    unlimited: bool  # nothing limits its answer
    usd: tuple[tuple[str, _PartialCosts], ...]


@frozen
class OtherModel:
    """A model that some requests name instead of the list's model."""

    name: str
    calibration: Calibration
    rates: Mapping[str, Rates | None]


class Workload:
    """Adds up the tokens and costs of requests, in constant memory and a few microseconds per request.

    Args:
        calibration: observed token counts of the model.
        rates: prices by way of processing, such as ``standard`` and ``batch``; ``None`` if unknown.
        kept: whether answers are kept, so that identical requests share one even if they are far apart.
        caching: what is known about the provider's cache; ``None`` if it is not used.
    """

    def __init__(
        self,
        calibration: Calibration,
        rates: Mapping[str, Rates | None],
        *,
        kept: bool = False,
        caching: KnownCaching | None = None,
    ) -> None:
        self._savings = None if caching is None else PrefixSavings(caching)
        self._calibration = calibration
        self._kept = kept
        self._unpriced: set[str] = set()
        self._rates = {name: card for name, card in rates.items() if card is not None}
        self._usd = {name: _PartialCosts() for name in self._rates}
        self._repeated = {name: _PartialCosts() for name in self._rates}
        self._alike: dict[
            tuple[Calibration, RequestTokens, int | None, str | None, str | None], _RequestCosts
        ] = {}
        self._shape: AnswerShape = FREE_TEXT
        self._seen = 0
        self._unlimited = 0
        self._generating = False
        self.requests = 0
        self.cached = 0  # counted by the caller
        # Requests that share the answer of an identical one on every route, because both wait at the same
        # time or because answers are kept.
        self.duplicates = 0
        # Requests identical to a much earlier one. In real time, the earlier one may already be answered, so
        # both are paid for. A job pays for identical rows once.
        self.repeats = 0
        self._keys = DistinctKeys()
        self.tokens_in = 0.0  # expected, of the requests added
        self.audio_in = 0.0  # the part of ``tokens_in`` that is audio
        self.tokens_out = 0.0
        self.files = FileLoad()
        self.most_out = 0  # output tokens to reserve for a budget, for all requests added
        self._sampled = 0
        self._sampled_in = self._sampled_most = 0.0

    def add_request(
        self, request: Request, key: bytes | None = None, other: OtherModel | None = None
    ) -> None:
        """Add a request.

        Args:
            key: equal for identical requests; ``None`` for a request that shares no answer.
            other: the request's model, if it differs from the list's model.
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
        learned = (self._calibration if other is None else other.calibration).of(request)
        each = self._each(learned, learned.tokens_of(request), limit, shape, other)
        for size, tokens in learned.files(request):
            self.files = self.files.plus(size, learned.input(tokens))
        self._add(1, each, repeated)
        if self._savings is not None and request.cache is not None:
            self._savings.add(request.cache.prefixes, learned.input)
        if self._sampled < _SAMPLED_REQUESTS:
            self._sampled += 1
            self._sampled_in += each.given
            self._sampled_most += learned.most_input(request)

    def add_alike(self, requests: int, tokens: int, kind: Kind) -> None:
        """Add requests of which only the kind and the estimated input tokens are known."""
        self._generating = self._generating or kind is Kind.GENERATE
        shape = None if kind is Kind.EMBED else FREE_TEXT
        self._add(requests, self._each(self._calibration, RequestTokens(tokens, tokens), None, shape))

    def _add(self, n: int, each: _RequestCosts, repeated: bool = False) -> None:
        self.requests += n
        self.tokens_in += n * each.given
        self.audio_in += n * each.audio
        self.tokens_out += n * each.made
        self.most_out += n * each.most
        self._unlimited += n * each.unlimited
        for name, usd in each.usd:
            self._usd[name].add_costs(n, usd)
            if repeated:
                self._repeated[name].add_costs(n, usd)

    def _each(
        self,
        learned: Calibration,
        tokens: RequestTokens,
        limit: int | None,
        shape: AnswerShape | None,
        other: OtherModel | None = None,
    ) -> _RequestCosts:
        """Return the costs of a request. They are cached, because many requests of a list have the same
        costs.

        Args:
            shape: shape of the answer; ``None`` for a vector.
        """
        name = None if other is None else other.name
        alike = (learned, tokens, limit, None if shape is None else shape.key, name)
        known = self._alike.get(alike)
        if known is not None:
            return known
        answer = NO_LENGTH if shape is None else self._answer(shape, limit, learned)
        given = learned.input(tokens.total)
        least, largest = _input_range(tokens, learned)
        usd = []
        for processing, own in self._rates.items():
            card = own if other is None else other.rates.get(processing)
            if card is None:
                self._unpriced.add(processing)
                continue
            lengths = (0, *(math.ceil(out) for out in (answer.expected, answer.low, answer.high)), limit or 0)
            none, made, low, high, most, fewer, more = (
                card.expected_cost(_usage_of(tokens, taken, out))
                for taken, out in (*((given, out) for out in lengths), (least, 0), (largest, 0))
            )
            most = most - none if answer.expected else 0.0
            usd.append(
                (processing, _PartialCosts(none, fewer, more, made - none, low - none, high - none, most))
            )
        room = 0 if shape is None else learned.most_output(limit)
        unlimited = limit is None and shape is not None
        each = _RequestCosts(given, given * tokens.audio_share, answer.expected, room, unlimited, tuple(usd))
        if len(self._alike) < _MAX_KNOWN_COSTS:
            self._alike[alike] = each
        return each

    def _answer(self, shape: AnswerShape, limit: int | None, learned: Calibration) -> Length:
        """Return the mean length of an answer, and the range of this mean over lists.

        Both are based on observed answers of this shape or, without any, on the shape and the expected
        reasoning.
        """
        self._shape = shape
        seen, mean = learned.answers(shape.key)
        if seen:
            self._seen = seen
            # the mean is a moving average, in which each answer has the weight 1 / SETTLED
            weight = min(seen, 2 * Calibration.SETTLED - 1)
            unsure = 1 + _SURE_DEVIATIONS * _LENGTH_DEVIATION / math.sqrt(weight + _PRIOR_ANSWERS)
            levels = (mean, *learned.levels(shape.key))
            found = Length(min(levels) / unsure, mean, max(levels) * unsure)
        else:
            of_shape = shape.length
            may_reason = not (learned.observed or shape.sets_effort)
            high = of_shape.high + (REASONING_TOKENS if may_reason else 0.0)
            found = Length(of_shape.low, of_shape.expected, high)
        most = math.inf if limit is None else limit
        return Length(min(found.low, most), min(found.expected, most), min(found.high, most))

    @property
    def tokens_most(self) -> tuple[float, int]:
        """Input and output tokens to reserve for all requests added. The input is extrapolated from the first
        requests, because counting all of them takes longer.
        """
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
            self.files if self.files.count else None,
            (None if self._savings is None else self._savings.stopped) or None,
        )

    def cost(self, processing: str, *, by_job: bool = False) -> Cost | None:
        """Return the USD of all requests or, with ``by_job``, of those that a job sends; ``None`` if a price
        is unknown.

        The range depends on the variation of answer lengths, and on the number of observed answers or,
        without any, on the schema. It never exceeds what ``max_tokens`` allows. Until the first answers
        arrive, it also covers the unknown ratio of billed to estimated tokens.
        """
        if processing not in self._rates or processing in self._unpriced:
            return None
        usd = self._usd[processing]
        if by_job:
            usd = usd.less(self._repeated[processing])
        chance = _SURE_DEVIATIONS * _LENGTH_DEVIATION / math.sqrt(max(1, self.requests))
        low = usd.made / (1 + math.hypot(chance, _excess(usd.made, usd.low)))
        high = usd.made * (1 + math.hypot(chance, _excess(usd.high, usd.made)))
        if not self._unlimited:
            high = min(high, max(usd.made, usd.most))
        saving = NO_SAVING
        if self._savings is not None and usd.given:
            saving = self._savings.of(self._rates[processing].cost, batch=processing == "batch")
        amounts = (saving.low, saving.expected, saving.high)
        at_least, usually, at_most = (saved / (usd.given or 1.0) for saved in amounts)
        return Cost(
            usd.least * (1 - at_most) + low,
            usd.given * (1 - usually) + usd.made,
            usd.largest * (1 - at_least) + high,
            *astuple(saving),
        )


def _usage_of(tokens: RequestTokens, given: int, made: int) -> Usage:
    spoken = made if tokens.asks_for_audio else 0
    return Usage(given, made, audio_tokens=round(given * tokens.audio_share), output_audio_tokens=spoken)


def _input_range(tokens: RequestTokens, learned: Calibration) -> tuple[int, int]:
    """Return the range of a request's mean input tokens that covers 90 % of lists."""
    fewest, most = _FIRST_INPUT_RATIOS
    if not learned.knows_input:
        return math.floor(tokens.contents * fewest), math.ceil(tokens.total * most)
    given = learned.input(tokens.total)
    unsure = 1 + _SURE_DEVIATIONS * _INPUT_DEVIATION / math.sqrt(min(learned.observed, Calibration.SETTLED))
    return math.floor(given / unsure), math.ceil(given * unsure)


def _excess(larger: float, smaller: float) -> float:
    return larger / smaller - 1 if smaller > 0 else 0.0


class DistinctKeys:
    """A set of up to :data:`MAX_KEYS` keys, of which it remembers 44 bits each.

    About one in thirty lists with a million distinct keys has a collision. Keys are digests of at least
    6 bytes. They are spread over 4,096 sorted arrays, so that a lookup or insertion takes less than a
    microsecond.
    """

    def __init__(self) -> None:
        self._parts: dict[int, array[int]] = {}
        self._count = 0
        self._near: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def is_near(self, key: bytes) -> bool:
        """Add ``key`` to the latest :data:`NEAR_KEYS` distinct keys; return whether it was one of them."""
        near = self._near
        if key in near:
            return True
        near.add(key)
        self._order.append(key)
        if len(near) > NEAR_KEYS:
            near.remove(self._order.popleft())
        return False

    def seen(self, key: bytes) -> bool:
        """Add ``key``; return whether it was added before."""
        part, digest = _PARSE.unpack_from(key)
        part &= _PART_MASK
        known = self._parts.get(part)
        if known is None:
            known = self._parts[part] = array("I")
        at = bisect_left(known, digest)
        if at < len(known) and known[at] == digest:
            return True
        if self._count < MAX_KEYS:
            self._count += 1
            known.insert(at, digest)
        return False
