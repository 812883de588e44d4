"""What a list takes, before anything is sent: tokens and money, added up request by request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from smartbatch.core.preparation.tokens import Calibration, estimate_request
from smartbatch.core.routing.offers import AnswerLengths, Cost, Load
from smartbatch.types import Kind, Request, Usage

_SPREAD = 0.77
"""Standard deviation of an answer's length as a share of its mean, in the Azure 2023 conversations."""
_UNKNOWN = 0.5
"""Answers that the prior of a model's answer length counts as."""
_LABEL = 1 / 45
"""Length of an answer that is a label, 10 tokens, as a share of what is assumed before any was observed."""
NEAR = 1_000
"""Distinct requests before one that are compared with it: as many as wait at once by default, so that equal
ones also share a call in real time. Of a job all equal rows are paid once: those further apart are counted
twice."""
_SURE = 1.645
"""Standard deviations within which 90 of 100 sums lie, 5 below and 5 above."""


class Rates(Protocol):
    """What a model costs; see :class:`smartbatch.prices.RateCard`."""

    def cost(self, usage: Usage) -> float:
        """Return USD of one request."""

    def expected_usage(self, input_tokens: int, output_tokens: int) -> Usage:
        """Return the tokens of a request that is not sent yet, as they are to be priced."""


class Workload:
    """Adds up requests in constant memory; each takes some microseconds.

    Args:
        calibration: what was learned of the model's tokens.
        rates: prices by the way of processing, such as ``standard`` and ``batch``; ``None`` where unknown.

    Attributes:
        cached: requests that the cache answers; the caller counts them.
        duplicates: requests that share the answer of an equal one of the list.
        tokens_in, tokens_out: expected tokens of the requests added.
        tokens_most: output tokens that a budget needs room for, of all requests added.
    """

    def __init__(self, calibration: Calibration, rates: Mapping[str, Rates | None]) -> None:
        self._calibration = calibration
        self._rates = {name: card for name, card in rates.items() if card is not None}
        self._given = dict.fromkeys(self._rates, 0.0)
        self._made = dict.fromkeys(self._rates, 0.0)
        self._most = dict.fromkeys(self._rates, 0.0)
        self._unlimited = 0
        self._generating = False
        self.requests = 0
        self.cached = 0
        self.duplicates = 0
        self._keys: dict[bytes, None] = {}
        self.tokens_in = 0.0
        self.tokens_out = 0.0
        self.tokens_most = 0

    def add(self, request: Request, key: bytes | None = None) -> None:
        """Add a request. Equal ones have the same ``key``; ``None`` is for one that shares no answer."""
        if key is not None:
            if key in self._keys:
                self.duplicates += 1
                return
            self._keys[key] = None
            if len(self._keys) > NEAR:
                del self._keys[next(iter(self._keys))]
        self._generating = self._generating or (request.embedding is None and request.call is None)
        self._add(
            1, estimate_request(request), request.params.max_tokens, embeds=request.embedding is not None
        )

    def add_alike(self, requests: int, tokens: int, kind: Kind) -> None:
        """Add requests of which no more is known than that each has so many estimated input tokens."""
        self._generating = self._generating or kind is Kind.GENERATE
        self._add(requests, tokens, None, embeds=kind is Kind.EMBED)

    def _add(self, n: int, estimated: int, limit: int | None, *, embeds: bool) -> None:
        learned = self._calibration
        given = learned.input(estimated)
        made = 0.0 if embeds else learned.mean_output(limit)
        self.requests += n
        self.tokens_in += n * given
        self.tokens_out += n * made
        if not embeds:
            self.tokens_most += n * learned.most_output(limit)
            self._unlimited += n * (limit is None)
        for name, card in self._rates.items():
            alone = card.cost(card.expected_usage(given, 0))
            self._given[name] += n * alone
            if made:
                self._made[name] += n * (card.cost(card.expected_usage(given, math.ceil(made))) - alone)
                if limit:
                    self._most[name] += n * (card.cost(card.expected_usage(given, limit)) - alone)

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
        )

    def cost(self, processing: str) -> Cost | None:
        """Return the USD of all requests, processed this way; ``None`` where the price is unknown.

        The range follows from how much the lengths of answers differ and from how many were observed; it
        never exceeds what ``max_tokens`` allows. Where none was observed it begins with a list of labels.
        """
        if processing not in self._rates:
            return None
        given, made = self._given[processing], self._made[processing]
        seen = self._calibration.alike
        uncertainty = _SURE * _SPREAD * math.sqrt(1 / max(1, self.requests) + 1 / (seen + _UNKNOWN))
        high = made * (1 + uncertainty)
        if not self._unlimited:
            high = min(high, max(made, self._most[processing]))
        low = made / (1 + uncertainty) if seen else made * _LABEL
        return Cost(given + low, given + made, given + high)
