"""All limits that a provider reports for one quota, and the amounts sent around each report.

Providers report up to three dimensions: requests, and tokens either together or separately as input and
output. Each has its own bucket, and a call must fit into all of them.
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

_MINUTE_SECONDS = 60.0
_MAX_IMPLYING_SECONDS = 50.0
"""A reset implies the limit only if it is shorter than this many seconds."""

_CHANGED_SHARE = 0.05
"""A limit implied by a reset is rounded, so only a difference above this share is a change."""

_DISPROVED_FACTOR = 2.0
_SUSPECT_FACTOR = 1.05
"""A server with a full bucket admits at most twice its limit within a minute. If it admits more, it does
not enforce the limit. The check begins once this multiple of the limit was admitted."""

_CHECK_SECONDS = 1.25
"""Seconds after which calls are sent despite a suspect limit: first one, then two, four, … until a refusal
confirms the limit, or the limit is disproved."""

_EVEN_SECONDS = 2.0
"""Seconds' worth of requests below which a bucket counts as having no burst."""

_LEASED_SECONDS = 1.0
"""Seconds' worth that may be leased from a bucket that holds a single call: each process spaces its calls."""

_REPEATED_SECONDS = 10.0
"""Maximum seconds between two explained refusals that count as repeated."""

_SETTLED_SECONDS = 1.0
"""Seconds after a limit became known during which calls sent earlier may use it up."""


@define(eq=False)
class Reservation:
    started: float
    tokens: float  # expected input and output
    output: float  # expected output, included in tokens
    ended: bool = False
    order: int = field(init=False)  # number of the call in the quota, from 1
    sent: tuple[float, float] = field(init=False)  # tokens and output so far, including this call
    # calls, tokens and output in flight
    held: tuple[int, float, float] = field(init=False)
    leased: Amounts = (0.0, 0.0, 0.0, 0.0)  # amounts taken from the lease


@define(eq=False)
class Traffic:
    """The amounts sent through one quota, and the part in flight (``held_…``), in expected tokens."""

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
        self.accepted += 1
        seconds = self._by_second
        if not seconds or now >= seconds[-1][0] + 1.0:
            seconds.append((now, self.accepted))
            while seconds[0][0] < now - _MINUTE_SECONDS:
                seconds.popleft()

    @property
    def accepted_lately(self) -> int:
        return self.accepted - self._by_second[0][1] + 1 if self._by_second else 0

    def start(self, call: Reservation) -> None:
        """Store in the call the amounts sent before it."""
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
            self.held_tokens = self.held_output = 0.0  # prevents accumulated rounding errors

    def around(self, dimension: int, call: Reservation) -> SentAround:
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
        if blurred:  # refused calls count as sent, but not as in flight
            since, calls = min(since, held), min(calls, self.in_flight)
        return SentAround(call.started, call.order, mark, since, unanswered, held, calls, calls_open, blurred)


@frozen
class KnownLimits:
    """Amounts by dimension, 0 if there is no limit."""

    caps: Amounts  # negative if the limit is not enforced
    rates: Amounts  # units per second
    at_most: Amounts  # remaining, minus the amount sent since the report
    remaining: Amounts  # remaining at the latest answered call
    admitted: float  # when the latest answered call was sent


@define
class EnforcementCheck:
    next: float  # when calls may be sent despite the limit
    left: int = 1  # calls left in this round
    size: int = 1  # calls in the next round
    over: bool = False
    unenforced: bool = False

    def look(self, now: float) -> float:
        if self.over:
            return now if self.unenforced else math.inf
        return max(now, self.next)

    def take(self, now: float) -> None:
        self.left -= 1
        if self.left == 0:
            self.size *= 2
            self.left, self.next = self.size, now + _CHECK_SECONDS


class ReportedLimits:
    """The limits reported so far. In a boolean context, False if there are none; nothing is delayed then."""

    def __init__(self) -> None:
        self._buckets: dict[int, ReportedBucket] = {}
        self._explained_at = float("-inf")
        self.repeats = 0  # explained refusals that soon followed another one
        self.spaced = False  # calls are spaced at the limit on requests, so its level delays none
        self._check: EnforcementCheck | None = None  # for the limit on requests

    def __bool__(self) -> bool:
        return bool(self._buckets)

    @property
    def requests_per_second(self) -> float | None:
        bucket = self._buckets.get(_REQUESTS)
        return None if bucket is None else bucket.limit / _MINUTE_SECONDS

    @property
    def is_even(self) -> bool:
        known = self._buckets.get(_REQUESTS)
        return known is not None and known.bucket.capacity < _EVEN_SECONDS * known.bucket.rate

    @property
    def is_window(self) -> bool:
        """Whether the limit on requests does not refill before its window ends."""
        known = self._buckets.get(_REQUESTS)
        return known is not None and known.is_window

    def ahead(self, now: float) -> float:
        known = self._buckets.get(_REQUESTS)
        if known is None or not known.is_window:
            return 0.0
        known.look(now, 0.0)
        return max(0.0, (known.ends - now) * known.bucket.rate - max(0.0, known.bucket.level))

    def per_minute(self) -> dict[str, float]:
        return {_NAMES[dimension]: bucket.limit for dimension, bucket in self._buckets.items()}

    def costs(self, tokens: float, output: float, now: float) -> Amounts:
        """Return the expected charge of a call by dimension.

        No request is charged if the call is sent despite the limit on requests.
        """
        costs = costs_of(tokens, output)
        if not self._buckets:
            return costs
        charged = list(costs)
        for dimension, bucket in self._buckets.items():
            charged[dimension] = bucket.needed(charged[dimension])
        if self._check is not None and self._exempting_check(now) is not None:
            charged[_REQUESTS] = 0.0
        return amounts_of(charged)

    def known(self, now: float, members: int) -> KnownLimits:
        """Return the limits, assuming that ``members`` processes have the same uncharged amount in flight."""
        caps, rates = [0.0] * 4, [0.0] * 4
        at_most, remaining, admitted = [NO_BOUND] * 4, [0.0] * 4, math.inf
        for dimension, bucket in self._buckets.items():
            if dimension == _REQUESTS and self._check is not None and self._check.unenforced:
                continue
            caps[dimension], rates[dimension] = bucket.bucket.capacity, bucket.bucket.rate
            bucket.look(now, 0.0)
            at_most[dimension] = bucket.bucket.level
            if bucket.is_spaced:  # its level changes completely between exchanges
                caps[dimension] = max(caps[dimension], rates[dimension] * _LEASED_SECONDS)
                at_most[dimension] = NO_BOUND
            remaining[dimension] = max(0.0, bucket.remaining - members * bucket.uncharged)
            admitted = min(admitted, bucket.admitted)
        return KnownLimits(
            amounts_of(caps), amounts_of(rates), amounts_of(at_most), amounts_of(remaining), admitted
        )

    def look(self, now: float, tokens: float, output: float) -> float:
        at, costs = now, costs_of(tokens, output)
        for dimension, bucket in self._buckets.items():
            ready = bucket.look(now, costs[dimension])
            if ready > at and not (self.spaced and dimension == _REQUESTS):
                if dimension == _REQUESTS and self._check is not None:
                    ready = min(ready, self._check.look(now))
                at = max(at, ready)
        return at

    def take(self, now: float, call: Reservation) -> None:
        if (check := self._exempting_check(now)) is not None:
            check.take(now)
        costs = costs_of(call.tokens, call.output)
        for dimension, bucket in self._buckets.items():
            bucket.take(now, costs[dimension])

    def _exempting_check(self, now: float) -> EnforcementCheck | None:
        check = self._check
        if check is None or check.look(now) > now:
            return None
        return check if check.unenforced or self._buckets[_REQUESTS].look(now, 1.0) > now else None

    def accepted(self, traffic: Traffic, now: float) -> None:
        bucket, check = self._buckets.get(_REQUESTS), self._check
        if bucket is None or (check is not None and check.over):  # already decided
            return
        lately = traffic.accepted_lately
        # a limit exceeded twofold is not enforced; a limit exceeded at all is suspect
        if lately > _DISPROVED_FACTOR * bucket.limit:
            self._check = EnforcementCheck(now, over=True, unenforced=True)
        elif check is None and lately > _SUSPECT_FACTOR * bucket.limit:
            self._check = EnforcementCheck(now + _CHECK_SECONDS)

    def confirm(self) -> None:
        if _REQUESTS in self._buckets:
            self._check = EnforcementCheck(math.inf, over=True)

    def correct(self, now: float, call: Reservation, tokens: float, output: float | None) -> None:
        """Correct the amounts taken by a call; if ``output`` is ``None`` (unknown), its expected share is
        used.
        """
        if output is None:
            output = tokens * call.output / call.tokens if call.tokens else 0.0
        expected, used = costs_of(call.tokens, call.output), costs_of(tokens, output)
        for dimension, bucket in self._buckets.items():
            if dimension != _REQUESTS:
                bucket.correct(now, call.order, expected[dimension], used[dimension])

    def drop(self, now: float, call: Reservation) -> None:
        costs = costs_of(call.tokens, call.output)
        for dimension, bucket in self._buckets.items():
            bucket.correct(now, call.order, costs[dimension], 0.0)

    def learn(
        self,
        report: LimitReport,
        call: Reservation,
        traffic: Traffic,
        now: float,
        *,
        alone: bool = True,
    ) -> bool:
        """Follow the report in the answer to ``call``; return whether a limit has changed.

        ``alone`` means that no other process shares the limits.
        """
        changed = False
        for dimension, reading in _readings(report):
            bucket = self._buckets.get(dimension)
            limit = reading.limit or _implied_limit(reading)
            if bucket is None:
                if limit is None:
                    continue  # nothing is known yet
                bucket = self._buckets[dimension] = ReportedBucket(
                    limit, now, rounded=dimension != _REQUESTS, charged_at_end=dimension == _OUTPUT
                )
                changed = True
            elif (
                not reading.limit
                and limit is not None
                and abs(limit - bucket.limit) < _CHANGED_SHARE * bucket.limit
            ):
                limit = None  # keep the known limit; adopt the other figures
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
        """Follow the report in the refusal of ``call``; return whether the known limits explain the
        refusal."""
        # 1. Sent before the last explained refusal: the same shortage explains it.
        explained = call.started <= self._explained_at
        if report is not None:
            before = {dimension: bucket.learned_at for dimension, bucket in self._buckets.items()}
            self.learn(report, call, traffic, now, alone=alone)
            costs = costs_of(call.tokens, call.output)
            for dimension, reading in _readings(report):
                bucket = self._buckets.get(dimension)
                if bucket is None:
                    continue
                # 2. Less is left than the call needs. If it was sent after the limit was known, others use
                #    the limit as well, so claim less of it, unless leases divide it.
                if bucket.lacks(reading, costs[dimension]):
                    explained = True
                    if call.started > max(self._explained_at, bucket.learned_at) and alone:
                        bucket.give_way(now)
                # 3. Only a limit is reported.
                elif reading.limit is not None and reading.remaining is None:
                    is_new = bucket.learned_at != before.get(dimension)
                    explained |= self._refused_without_remaining(bucket, is_new, call, traffic, now)
        if explained and call.started > self._explained_at:
            self.repeats = self.repeats + 1 if now - self._explained_at < _REPEATED_SECONDS else 0
            self._explained_at = now
        return explained

    def _refused_without_remaining(
        self, bucket: ReportedBucket, is_new: bool, call: Reservation, traffic: Traffic, now: float
    ) -> bool:
        soon = call.started <= bucket.learned_at + _SETTLED_SECONDS  # earlier calls may have used it up
        if is_new or call.started > bucket.learned_at:
            bucket.empty(now, traffic.calls)
        if not is_new and not soon:  # the calls stayed within the limit, so the server allows no bursts
            bucket.space(now)
        return is_new or soon


def amounts_of(values: Sequence[float]) -> Amounts:
    return values[0], values[1], values[2], values[3]


def costs_of(tokens: float, output: float) -> Amounts:
    return 1.0, tokens, tokens - output, output


def surplus_of(call: Reservation, tokens: float, output: float | None) -> Amounts:
    """Return, by dimension, how much of its lease a call did not need.

    Nothing is returned if the server charges more than expected, because the charged amount was leased.
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
    """Return the readings of ``report`` by dimension.

    A combined figure for input and output is omitted if separate figures are reported, because it repeats the
    tighter one.
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
    if limit is remaining is reset is None:
        return None
    believed = believed_count(limit), believed_count(remaining), believed_reset(reset)
    return None if believed == (None, None, None) else LimitReading(*believed, rounded_to)


def _implied_limit(reading: LimitReading) -> float | None:
    """Return the limit per minute of a bucket that holds a minute's worth and is full after the reset."""
    if not reading.remaining or not reading.reset or reading.reset > _MAX_IMPLYING_SECONDS:
        return None
    return reading.remaining / (1.0 - reading.reset / _MINUTE_SECONDS)
