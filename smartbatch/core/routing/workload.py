"""What a list takes, before anything is sent: tokens and money, added up request by request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from attrs import define, frozen

from smartbatch._values import Record, Value
from smartbatch.core.preparation.tokens import Calibration, estimate_request
from smartbatch.core.routing.distinct_keys import DistinctKeys
from smartbatch.core.routing.offers import AnswerLengths, Cost, Load
from smartbatch.types import Kind, Request, Usage

_SPREAD = 0.77
"""Standard deviation of an answer's length as a share of its mean, in the Azure 2023 conversations."""
_UNKNOWN = 0.5
"""Answers that the prior of a model's answer length counts as."""
_LABEL = 1 / 45
"""Length of an answer that is a label, 10 tokens, as a share of what is assumed before any was observed."""
_ALIKE = 4_096
"""Lengths of requests of which it is remembered what they take."""
_SURE = 1.645
"""Standard deviations within which 90 of 100 sums lie, 5 below and 5 above."""


class Rates(Protocol):
    """What a model costs; see :class:`smartbatch.prices.RateCard`."""

    def cost(self, usage: Usage) -> float:
        """Return USD of one request."""

    def expected_usage(self, input_tokens: int, output_tokens: int) -> Usage:
        """Return the tokens of a request that is not sent yet, as they are to be priced."""


@define(eq=False, repr=False)
class _Usd(Record):
    """The USD of requests, each processed alike.

    Attributes:
        given: for their input.
        made: for their answers, as long as expected.
        most: for their answers, as long as allowed.
    """

    given: float = 0.0
    made: float = 0.0
    most: float = 0.0

    def add(self, n: int, each: _Usd) -> None:
        self.given += n * each.given
        self.made += n * each.made
        self.most += n * each.most


@frozen(eq=False, repr=False)
class _Each(Value):
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
        tokens_most: output tokens that a budget needs room for, of all requests added.
    """

    def __init__(
        self, calibration: Calibration, rates: Mapping[str, Rates | None], *, kept: bool = False
    ) -> None:
        self._calibration = calibration
        self._kept = kept
        self._rates = {name: card for name, card in rates.items() if card is not None}
        self._usd = {name: _Usd() for name in self._rates}
        self._repeated = {name: _Usd() for name in self._rates}
        self._alike: dict[tuple[int, int | None, bool], _Each] = {}
        self._unlimited = 0
        self._generating = False
        self.requests = 0
        self.cached = 0
        self.duplicates = 0
        self.repeats = 0
        self._keys = DistinctKeys()
        self.tokens_in = 0.0
        self.tokens_out = 0.0
        self.tokens_most = 0

    def add(self, request: Request, key: bytes | None = None) -> None:
        """Add a request. Equal ones have the same ``key``; ``None`` is for one that shares no answer."""
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
        self._add(1, self._each(estimate_request(request), request.params.max_tokens, embeds), repeated)

    def add_alike(self, requests: int, tokens: int, kind: Kind) -> None:
        """Add requests of which no more is known than that each has so many estimated input tokens."""
        self._generating = self._generating or kind is Kind.GENERATE
        self._add(requests, self._each(tokens, None, kind is Kind.EMBED))

    def _add(self, n: int, each: _Each, repeated: bool = False) -> None:
        self.requests += n
        self.tokens_in += n * each.given
        self.tokens_out += n * each.made
        self.tokens_most += n * each.most
        self._unlimited += n * each.unlimited
        for name, usd in each.usd:
            self._usd[name].add(n, usd)
            if repeated:
                self._repeated[name].add(n, usd)

    def _each(self, estimated: int, limit: int | None, embeds: bool) -> _Each:
        """Return what a request takes; many of a list are alike in that."""
        known = self._alike.get((estimated, limit, embeds))
        if known is not None:
            return known
        learned = self._calibration
        given, made = learned.input(estimated), 0.0 if embeds else learned.mean_output(limit)
        usd = []
        for name, card in self._rates.items():
            costs = [card.cost(card.expected_usage(given, out)) for out in (0, math.ceil(made), limit or 0)]
            usd.append((name, _Usd(costs[0], costs[1] - costs[0], costs[2] - costs[0] if made else 0.0)))
        most = 0 if embeds else learned.most_output(limit)
        each = _Each(given, made, most, limit is None and not embeds, tuple(usd))
        if len(self._alike) < _ALIKE:
            self._alike[estimated, limit, embeds] = each
        return each

    @property
    def load(self) -> Load:
        learned = self._calibration
        answers = AnswerLengths(learned.alike, learned.mean_output(None), self._unlimited)
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

        The range follows from how much the lengths of answers differ and from how many were observed; it
        never exceeds what ``max_tokens`` allows. Where none was observed it begins with a list of labels.
        """
        if processing not in self._rates:
            return None
        usd, repeated = self._usd[processing], self._repeated[processing] if by_job else _Usd()
        given, made = usd.given - repeated.given, usd.made - repeated.made
        seen = self._calibration.alike
        uncertainty = _SURE * _SPREAD * math.sqrt(1 / max(1, self.requests) + 1 / (seen + _UNKNOWN))
        high = made * (1 + uncertainty)
        if not self._unlimited:
            high = min(high, max(made, usd.most - repeated.most))
        low = made / (1 + uncertainty) if seen else made * _LABEL
        return Cost(given + low, given + made, given + high)
