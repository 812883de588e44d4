"""All the limits that a provider reports for one quota, and what this client sent around each report.

Providers report up to three dimensions: requests, and tokens either together or apart as input and output.
Each is a bucket of its own; a call goes when all of them let it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen

from smartbatch.core.limits.lease import Amounts
from smartbatch.core.limits.reported_bucket import (
    LimitReading,
    ReportedBucket,
    SentAround,
    believed_count,
    believed_reset,
)
from smartbatch.core.limits.shared_limit import NO_BOUND
from smartbatch.types import LimitReport

_REQUESTS, _TOKENS, _INPUT, _OUTPUT = range(4)
_NAMES = ("requests", "tokens", "input", "output")

_MINUTE = 60.0
_IMPLYING = 50.0
"""A reset implies the limit only where it is shorter than this many seconds: above, it would be a guess."""

_CHANGED = 0.05
"""A limit implied by a reset is rounded; only a difference above this share is a change."""

_CONTRADICTED = 2.0
_SUSPECT = 1.05
"""A server that admits a minute's worth at once and refills it admits at most twice its limit in a minute. If
more were answered, the limit it names is not enforced; above 1.05 of it that may be so, and is checked."""

_CHECK_EVERY = 1.25
"""Seconds after which calls go in spite of a suspect limit: one, then two, four, … until one is refused, or
the limit is contradicted. One refusal confirms that a limit is enforced, and ends the check."""

_EVEN = 2.0
"""Seconds' worth of requests below which a bucket is no burst."""

_LEASED = 1.0
"""Seconds' worth that may be leased of a bucket that holds a single call: each process spaces its calls."""

_REPEATED = 10.0
"""Seconds between two explained refusals within which they count as repeated."""

_SETTLED = 1.0
"""Seconds after a limit became known in which it may still refuse: calls sent before it use it up."""


@define(eq=False)
class Reservation:
    """One call's share of the quota; ended once.

    Attributes:
        started: when the call was sent.
        tokens: expected, input and output.
        output: the part of ``tokens`` that is output.
        order: the call's number among all calls of the quota, from 1.
        sent: tokens and output sent until then, this call included.
        held: calls, tokens and output in flight then, this call included.
        leased: what it took of the lease, by dimension.
    """

    started: float
    tokens: float
    output: float
    ended: bool = False
    order: int = field(init=False)
    sent: tuple[float, float] = field(init=False)
    held: tuple[int, float, float] = field(init=False)
    leased: Amounts = (0.0, 0.0, 0.0, 0.0)


@define(eq=False)
class Traffic:
    """What was sent through one quota, and what of it (``held_…``) is in flight, in expected tokens."""

    calls: int = 0
    in_flight: int = 0
    tokens: float = 0.0
    output: float = 0.0
    held_tokens: float = 0.0
    held_output: float = 0.0
    refused_at: float = float("-inf")
    accepted: int = 0
    refused: int = 0
    _by_second: deque[tuple[float, int]] = field(factory=deque, init=False)

    def accept(self, now: float) -> None:
        """Count a call that was answered."""
        self.accepted += 1
        seconds = self._by_second
        if not seconds or now >= seconds[-1][0] + 1.0:
            seconds.append((now, self.accepted))
            while seconds[0][0] < now - _MINUTE:
                seconds.popleft()

    @property
    def accepted_lately(self) -> int:
        """Calls answered in the last minute of traffic."""
        return self.accepted - self._by_second[0][1] + 1 if self._by_second else 0

    def start(self, call: Reservation) -> None:
        """Count a call that is sent, and note in it what had been sent until then."""
        self.calls += 1
        self.in_flight += 1
        self.tokens += call.tokens
        self.output += call.output
        self.held_tokens += call.tokens
        self.held_output += call.output
        call.order = self.calls
        call.sent = self.tokens, self.output
        call.held = self.in_flight, self.held_tokens, self.held_output

    def end(self, call: Reservation) -> None:
        self.in_flight -= 1
        if self.in_flight:
            self.held_tokens -= call.tokens
            self.held_output -= call.output
        else:
            self.held_tokens = self.held_output = 0.0  # rounding errors do not add up

    def around(self, dimension: int, call: Reservation) -> SentAround:
        """Return what was sent before and after ``call``, in units of ``dimension``."""
        if dimension == _REQUESTS:
            mark, sent = float(call.order), float(self.calls)
            then, held = float(call.held[0]), float(self.in_flight)
        else:
            mark = costs_of(*call.sent)[dimension]
            sent = costs_of(self.tokens, self.output)[dimension]
            then = costs_of(call.held[1], call.held[2])[dimension]
            held = costs_of(self.held_tokens, self.held_output)[dimension]
        since, calls = sent - mark, self.calls - call.order
        unanswered, calls_open = since + then, calls + call.held[0]
        blurred = call.started <= self.refused_at
        if blurred:  # refused calls are in the counts of what was sent, but not in those in flight
            since, calls = min(since, held), min(calls, self.in_flight)
        return SentAround(call.started, call.order, mark, since, unanswered, held, calls, calls_open, blurred)


@frozen
class KnownLimits:
    """The reported limits by dimension, 0 where there is none.

    Attributes:
        caps: negative where it is known that nobody enforces it.
        at_most: what is left of each, less what was sent since it was told.
        remaining: what was left at the latest answered call, and ``admitted``, when that was sent.
    """

    caps: Amounts
    rates: Amounts
    at_most: Amounts
    remaining: Amounts
    admitted: float


@define
class EnforcementCheck:
    """The check whether a provider enforces the limit of requests that it names.

    Attributes:
        next: when calls may go in spite of it.
        left: how many, from then on.
        size: how many in the next round.
        over: whether it is known.
        unenforced: whether it is known that nobody enforces it.
    """

    next: float
    left: int = 1
    size: int = 1
    over: bool = False
    unenforced: bool = False

    def look(self, now: float) -> float:
        """Return when a call may go in spite of the limit; infinity for never."""
        if self.over:
            return now if self.unenforced else math.inf
        return max(now, self.next)

    def take(self, now: float) -> None:
        """Count a call that went in spite of the limit."""
        if self.over:
            return
        self.left -= 1
        if self.left == 0:
            self.size *= 2
            self.left, self.next = self.size, now + _CHECK_EVERY


class HeaderLimits:
    """The limits reported so far. False while there are none: then nothing is held back.

    Attributes:
        repeats: explained refusals that followed another one soon.
        spaced: whether calls are spaced at the limit of requests, which holds nobody back besides: what is
            left of a window says nothing of what comes with its end.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, ReportedBucket] = {}
        self._explained_at = float("-inf")
        self.repeats = 0
        self.spaced = False
        self._check: EnforcementCheck | None = None  # of the limit of requests

    def __bool__(self) -> bool:
        return bool(self._buckets)

    @property
    def requests_per_second(self) -> float | None:
        """The reported limit of requests, a second."""
        bucket = self._buckets.get(_REQUESTS)
        return None if bucket is None else bucket.limit / _MINUTE

    @property
    def is_even(self) -> bool:
        """Whether the provider's bucket of requests holds less than two seconds' worth."""
        known = self._buckets.get(_REQUESTS)
        return known is not None and known.bucket.capacity < _EVEN * known.bucket.rate

    @property
    def is_window(self) -> bool:
        """Whether it does not refill before its end."""
        known = self._buckets.get(_REQUESTS)
        return known is not None and known.is_window

    def ahead(self, now: float) -> float:
        """Return how many calls at the even rate would be too many until the end of the window."""
        known = self._buckets.get(_REQUESTS)
        if known is None or not known.is_window:
            return 0.0
        known.look(now, 0.0)
        return max(0.0, (known.ends - now) * known.bucket.rate - max(0.0, known.bucket.level))

    def per_minute(self) -> dict[str, float]:
        """Return the reported limits a minute, by name: ``requests``, ``tokens``, ``input``, ``output``."""
        return {_NAMES[dimension]: bucket.limit for dimension, bucket in self._buckets.items()}

    def costs(self, tokens: float, output: float, now: float) -> Amounts:
        """Return what a call that goes now will be charged that is expected to need so many tokens, by
        dimension: no request, where it goes in spite of the limit of requests."""
        costs = costs_of(tokens, output)
        if not self._buckets:
            return costs
        charged = list(costs)
        for dimension, bucket in self._buckets.items():
            charged[dimension] = bucket.needed(charged[dimension])
        if self._check is not None and self._goes_anyway(now) is not None:
            charged[_REQUESTS] = 0.0
        return amounts_of(charged)

    def known(self, now: float, members: int) -> KnownLimits:
        """Return the limits as they are known now.

        So many processes share them, and have as much in flight that is not charged yet.
        """
        caps, rates = [0.0] * 4, [0.0] * 4
        at_most, remaining, admitted = [NO_BOUND] * 4, [0.0] * 4, math.inf
        for dimension, bucket in self._buckets.items():
            if dimension == _REQUESTS and self._check is not None and self._check.unenforced:
                caps[dimension] = -1.0
                continue
            caps[dimension], rates[dimension] = bucket.bucket.capacity, bucket.bucket.rate
            bucket.look(now, 0.0)
            at_most[dimension] = bucket.bucket.level
            if bucket.is_spaced:  # here: what it holds comes and goes between two exchanges
                caps[dimension] = max(caps[dimension], rates[dimension] * _LEASED)
                at_most[dimension] = NO_BOUND
            remaining[dimension] = max(0.0, bucket.remaining - members * bucket.uncharged)
            admitted = min(admitted, bucket.admitted)
        return KnownLimits(
            amounts_of(caps), amounts_of(rates), amounts_of(at_most), amounts_of(remaining), admitted
        )

    def look(self, now: float, tokens: float, output: float) -> float:
        """Return the earliest time a call may go that is expected to need so many tokens."""
        at, costs = now, costs_of(tokens, output)
        for dimension, bucket in self._buckets.items():
            ready = bucket.look(now, costs[dimension])
            if ready > at and not (self.spaced and dimension == _REQUESTS):
                if dimension == _REQUESTS and self._check is not None:
                    ready = min(ready, self._check.look(now))
                at = max(at, ready)
        return at

    def take(self, now: float, call: Reservation) -> None:
        if (check := self._goes_anyway(now)) is not None:
            check.take(now)
        costs = costs_of(call.tokens, call.output)
        for dimension, bucket in self._buckets.items():
            bucket.take(now, costs[dimension])

    def _goes_anyway(self, now: float) -> EnforcementCheck | None:
        """Return the check by which a call goes now in spite of the limit of requests, if it does."""
        check = self._check
        if check is None or check.look(now) > now:
            return None
        return check if check.unenforced or self._buckets[_REQUESTS].look(now, 1.0) > now else None

    def accepted(self, traffic: Traffic, now: float) -> None:
        """Hold what was answered in the last minute against the limit of requests. The cases, in order:

        1. No limit, or it is known whether it is enforced: nothing to check.
        2. Twice as many were answered: nobody enforces it, and it holds nothing back.
        3. More were answered than it allows: it is suspect.
        """
        bucket, check = self._buckets.get(_REQUESTS), self._check
        if bucket is None or (check is not None and check.over):
            return
        lately = traffic.accepted_lately
        if lately > _CONTRADICTED * bucket.limit:
            self._check = EnforcementCheck(now, over=True, unenforced=True)
        elif check is None and lately > _SUSPECT * bucket.limit:
            self._check = EnforcementCheck(now + _CHECK_EVERY)

    def confirm(self) -> None:
        """A call was refused: the limit of requests is enforced."""
        if _REQUESTS in self._buckets:
            self._check = EnforcementCheck(math.inf, over=True)

    def settle(self, now: float, call: Reservation, tokens: float, output: float | None) -> None:
        """Correct what a call took to the tokens it used; ``None`` for output takes the expected share."""
        if output is None:
            output = tokens * call.output / call.tokens if call.tokens else 0.0
        expected, used = costs_of(call.tokens, call.output), costs_of(tokens, output)
        for dimension, bucket in self._buckets.items():
            if dimension != _REQUESTS:
                bucket.settle(now, call.order, expected[dimension], used[dimension])

    def drop(self, now: float, call: Reservation) -> None:
        """Return all of a call that was never sent, or was refused."""
        costs = costs_of(call.tokens, call.output)
        for dimension, bucket in self._buckets.items():
            bucket.settle(now, call.order, costs[dimension], 0.0)

    def learn(
        self,
        report: LimitReport,
        call: Reservation,
        traffic: Traffic,
        now: float,
        *,
        alone: bool = True,
    ) -> bool:
        """Follow what the answer to ``call`` reported, to a process that is ``alone`` or leases a share;
        return whether a limit is another one now.

        The cases of each dimension, in order:

        1. A dimension seen for the first time, with a limit or with a reset that implies one: a new bucket.
        2. One without a limit and without a reset that implies one: nothing is known yet.
        3. A known one, whose reset implies about the same limit: the limit stays, the rest is learned.
        4. A known one with a limit: all of it is learned.
        """
        changed = False
        for dimension, reading in _readings(report):
            bucket = self._buckets.get(dimension)
            limit = reading.limit or _implied_limit(reading)
            if bucket is None:
                if limit is None:
                    continue
                bucket = self._buckets[dimension] = ReportedBucket(
                    limit, now, rounded=dimension != _REQUESTS, charged_at_end=dimension == _OUTPUT
                )
                changed = True
            elif not reading.limit and limit is not None and _about_equal(limit, bucket.limit):
                limit = None
            before = bucket.limit
            if limit != reading.limit:
                reading = LimitReading(limit, reading.remaining, reading.reset, reading.rounded_to)
            bucket.learn(reading, traffic.around(dimension, call), now, alone=alone)
            changed = changed or bucket.limit != before
        return changed

    def explain(
        self,
        report: LimitReport | None,
        call: Reservation,
        traffic: Traffic,
        now: float,
        *,
        alone: bool = True,
    ) -> bool:
        """Follow what the refusal of ``call`` reported; return whether the known limits explain it.

        A refusal that they explain proves no further limit. The cases, in order:

        1. The call was sent before the last explained refusal: explained by the same shortage.
        2. A reading leaves less than the call needs: explained. If the call was sent after the limit was
           known, others use the limit too, and this client claims less of it; not where leases divide it.
        3. A reading with a limit and without a remaining figure: see :meth:`_refused_without_remaining`.
        4. Anything else: not explained.
        """
        explained = call.started <= self._explained_at
        if report is not None:
            before = {dimension: bucket.learned_at for dimension, bucket in self._buckets.items()}
            self.learn(report, call, traffic, now, alone=alone)
            costs = costs_of(call.tokens, call.output)
            for dimension, reading in _readings(report):
                bucket = self._buckets.get(dimension)
                if bucket is None:
                    continue
                if bucket.lacks(reading, costs[dimension]):
                    explained = True
                    if call.started > max(self._explained_at, bucket.learned_at) and alone:
                        bucket.give_way(now)
                elif reading.limit is not None and reading.remaining is None:
                    is_new = bucket.learned_at != before.get(dimension)
                    explained |= self._refused_without_remaining(bucket, is_new, call, traffic, now)
        if explained and call.started > self._explained_at:
            self.repeats = self.repeats + 1 if now - self._explained_at < _REPEATED else 0
            self._explained_at = now
        return explained

    def _refused_without_remaining(
        self, bucket: ReportedBucket, is_new: bool, call: Reservation, traffic: Traffic, now: float
    ) -> bool:
        """Learn from a refusal that reports a limit, but not what is left; return whether that explains it.

        1. The limit is new, or the call was sent within a second of it: explained; calls sent before used it.
        2. It was known and kept to: not explained. The server honours no bursts, so calls are spaced.

        A limit that is new, or was known when the call was sent, has nothing left.
        """
        soon = call.started <= bucket.learned_at + _SETTLED
        if is_new or call.started > bucket.learned_at:
            bucket.empty(now, traffic.calls)
        if not is_new and not soon:
            bucket.space(now)
        return is_new or soon


def amounts_of(values: Sequence[float]) -> Amounts:
    """Return four numbers, one for each dimension."""
    return values[0], values[1], values[2], values[3]


def costs_of(tokens: float, output: float) -> Amounts:
    """Return what a call needs of each dimension."""
    return 1.0, tokens, tokens - output, output


def surplus_of(call: Reservation, tokens: float, output: float | None) -> Amounts:
    """Return what a call that used ``tokens`` did not need of what it leased, by dimension.

    A server that charges more than was expected gives nothing back: what it charged was leased.
    """
    if output is None:
        output = tokens * call.output / call.tokens if call.tokens else 0.0
    _, leased_tokens, leased_input, leased_output = call.leased
    return (
        0.0,
        0.0 if leased_tokens > call.tokens else leased_tokens - tokens,
        0.0 if leased_input > call.tokens - call.output else leased_input - (tokens - output),
        0.0 if leased_output > call.output else leased_output - output,
    )


def _readings(report: LimitReport) -> list[tuple[int, LimitReading]]:
    """Return what ``report`` says, by dimension.

    A figure for input and output together is left out where they are reported apart: then it is only the
    tighter of the two again.
    """
    rounded_to = report.resets_rounded_to
    given = _reading(report.input_limit, report.input_remaining, report.input_reset, rounded_to)
    made = _reading(report.output_limit, report.output_remaining, report.output_reset, rounded_to)
    calls = _reading(report.requests_limit, report.requests_remaining, report.requests_reset, rounded_to)
    found = [(_REQUESTS, calls), (_INPUT, given), (_OUTPUT, made)]
    if given is made is None:
        tokens = _reading(report.tokens_limit, report.tokens_remaining, report.tokens_reset, rounded_to)
        found.append((_TOKENS, tokens))
    return [(dimension, reading) for dimension, reading in found if reading is not None]


def _reading(
    limit: int | None, remaining: int | None, reset: float | None, rounded_to: float
) -> LimitReading | None:
    """Return what is believed of the figures of one limit; ``None`` where that is nothing."""
    if limit is remaining is reset is None:
        return None
    believed = believed_count(limit), believed_count(remaining), believed_reset(reset)
    return None if believed == (None, None, None) else LimitReading(*believed, rounded_to)


def _implied_limit(reading: LimitReading) -> float | None:
    """Return the limit a minute of a bucket that holds a minute's worth and is full after the reset."""
    if not reading.remaining or not reading.reset or reading.reset > _IMPLYING:
        return None
    return reading.remaining / (1.0 - reading.reset / _MINUTE)


def _about_equal(limit: float, known: float) -> bool:
    return abs(limit - known) < _CHANGED * known
