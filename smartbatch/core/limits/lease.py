"""One process's lease of a limit shared with others: leased before it is needed, and used without I/O.

The gate calls :meth:`LimitLease.look` and :meth:`LimitLease.take`; a thread makes exchanges with the back
end at the times that :meth:`LimitLease.due` returns. Times are monotonic seconds. The caller holds the
quota's lock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from operator import add, sub

from attrs import define, frozen

from smartbatch.core.limits.shared_limit import (
    DIMENSION_COUNT,
    Findings,
    LeaseAsk,
    LeaseGrant,
    MemberLimits,
    Remaining,
)
from smartbatch.core.limits.token_bucket import Bucket, spaced_capacity

Amounts = tuple[float, float, float, float]
"""Requests, tokens, input tokens and output tokens."""

VALID_SECONDS = 5.0
"""Seconds for which a lease may be used without another exchange."""

_AHEAD_SECONDS = 2.0
"""Seconds' worth of this process's demand to lease in advance."""

_LOW_SECONDS = 1.0
"""Seconds' worth of this process's demand below which a lease is replenished."""

_MIN_INTERVAL_SECONDS = 0.1
"""Minimum seconds between exchanges: at most ten per second."""

_REPLENISH_SECONDS = 0.25
"""Seconds after which a low lease is replenished if no call is waiting for it."""

_RENEW_SECONDS = 1.0
_IDLE_SECONDS = 0.5
_HEARTBEAT_SECONDS = 5.0
"""Seconds between exchanges while the lease is in use, until an unused lease is returned, and between
exchanges of a process that holds nothing."""

_ASKED_SLOTS = 1000.0
"""Number of slots to request; in practice, all that are available."""

_REMEMBERED_EXCHANGES = 16
"""Number of recent exchanges to remember, because the provider reports on a call sent some exchanges ago."""

_KEPT_DEMAND_SHARE = 0.7
"""Share of an earlier, higher demand that each exchange keeps."""

_LATE_SLOT_SECONDS = 0.25
"""Seconds after the end of a slot during which it may still be used."""

_SLACK_UNITS = 1e-3
"""Tolerance for rounding, in units."""

_MAX_WAIT_SECONDS = 1.0
"""Maximum seconds after which a waiting process asks again, to keep its place."""

_CATCH_UP_SHARE = 0.01
"""How late a call may be without delaying the next ones: this share of the spacing, but at least this many
seconds."""


@frozen
class QuotaFacts:
    """What a process knows about a quota and reports to the other processes."""

    caps: Amounts  # units; 0 for no limit
    rates: Amounts  # units per second
    at_most: Amounts  # remaining units according to the provider's answers, minus the amount sent since
    remaining: Amounts  # remaining units when the latest answered call was admitted
    admitted: float  # when the latest answered call was sent
    accepted: int  # calls answered since the start
    cool_until: float  # when the cooldown of this process ends
    spaced: float  # calls per second; 0 for no spacing
    refused: int = 0  # calls refused since the start
    learned_caps: Amounts = (0.0, 0.0, 0.0, 0.0)  # as reported; negative if not reported or not enforced
    learned_rates: Amounts = (0.0, 0.0, 0.0, 0.0)  # units per second; 0 if unknown


@define
class _Slots:
    next_at: float
    left: float
    until: float


class LimitLease:
    """One process's part of a shared quota.

    Args:
        member: a unique name of the process.
        wake: called when an exchange becomes due earlier than :meth:`due` returned.
        on_lost: what to do while the back end is unavailable: ``share`` uses the last limit divided by the
            last known number of processes, ``stop`` waits, ``local`` uses the whole limit.
    """

    def __init__(self, member: str, wake: Callable[[], None], on_lost: str = "share") -> None:
        self.member = member
        self._wake = wake
        self.joined = False  # the first exchange has succeeded or failed; no call is sent earlier
        self.lost = False  # the back end is unavailable
        self.grant: LeaseGrant | None = None  # result of the last exchange
        self.outage, self.outages = False, 0  # whether the provider is down, and the number of changes
        self._own_outage: bool | None = None  # change to report, if any
        self._on_lost = on_lost
        self._incompatible = ""
        self._held = [0.0] * DIMENSION_COUNT
        self._used = [0.0] * DIMENSION_COUNT  # units used since the last exchange
        self._demand = [0.0] * DIMENSION_COUNT  # units per second
        self._limited: tuple[int, ...] = ()
        self._found: tuple[int, ...] = ()  # limits that became known in the last exchange
        self._until = -math.inf
        self._lacking: Amounts | None = None
        self.urgent = False  # the call being checked is urgent; set by the caller of look()
        self._urgent_lacks = False
        self.waiting = 1  # calls delayed only by the lease; set by the caller
        self._usual: Amounts = (1.0, 0.0, 0.0, 0.0)
        self._news = True
        self._asked_at = self._used_at = -math.inf
        self._asked_nothing = False
        self._again_at = self._more_at = -math.inf  # next exchange for a waiting call, and for others
        self._spaced = 0.0
        self._reported_spaced = 0.0
        self._slots: deque[_Slots] = deque()
        self._cool_until = -math.inf
        self._safe: dict[int, Bucket] = {}
        self.others = (0.0, 0.0)  # calls of others answered and refused between the last two exchanges
        self._recent: list[tuple[float, list[float]]] = []  # time and ``LeaseGrant.then`` of recent exchanges

    @property
    def members(self) -> int:
        """Number of processes known to share the limit, at least 1."""
        return 1 if self.grant is None else max(1, self.grant.members)

    def look(self, now: float, costs: Amounts) -> float:
        # 1. Nothing is known yet, or calls stop while the back end is unavailable.
        if not self.joined or (self.lost and self._on_lost == "stop"):
            return math.inf
        # 2. The back end is unavailable: use the safe share.
        if self.lost:
            return max((bucket.look(now, costs[d]) for d, bucket in self._safe.items()), default=now)
        # 3. The lease is too small or has expired: make an exchange due.
        limited = self._limited
        if limited and now > self._until:
            return self._lack(costs)
        for d in limited:
            if self._held[d] < costs[d] - _SLACK_UNITS:
                return self._lack(costs)
        # 4. Calls are spaced: use the next slot.
        if not self._spaced or self.members == 1:  # a single process needs only its own spacing
            return now
        slots = self._slots
        while slots and (slots[0].left < 1.0 or now > slots[0].until):
            slots.popleft()
        return max(now, slots[0].next_at) if slots else self._lack(costs)

    def _lack(self, costs: Amounts) -> float:
        if self._lacking is None or (self.urgent and not self._urgent_lacks):
            self._lacking, self._urgent_lacks = costs, self.urgent
            self._wake()
        return math.inf

    def take(self, now: float, costs: Amounts) -> None:
        """Use the amounts that :meth:`look` admitted."""
        if not self.lost and now - self._asked_at > _RENEW_SECONDS:
            self.hurry()
        self._used_at, self._usual = now, costs
        self._used = list(map(add, self._used, costs))
        if self.lost:
            for d, bucket in self._safe.items():
                bucket.take(now, costs[d])
            return
        for d in self._limited:
            self._held[d] -= costs[d]
        if self._slots:
            first, step = self._slots[0], 1.0 / self._spaced
            first.next_at = max(first.next_at, now - max(_CATCH_UP_SHARE, _CATCH_UP_SHARE * step)) + step
            first.left -= 1.0

    def return_surplus(self, now: float, surplus: Amounts) -> None:
        """Return the unneeded amount of each dimension, or take more if it is negative."""
        self._used = list(map(sub, self._used, surplus))
        if not self.lost or self._on_lost == "stop":  # otherwise calls take nothing from the lease
            for d in self._limited:
                self._held[d] += surplus[d]
        for d, bucket in self._safe.items():
            bucket.return_surplus(now, surplus[d])

    def owe(self, under_way: Amounts) -> None:
        """Charge calls in flight to the limits that became known in the last exchange."""
        for d in self._found:
            self._held[d] -= under_way[d]
        self._found = ()

    def hurry(self) -> None:
        if not self._news:
            self._news = True
            self._wake()

    def report_outage(self, *, begins: bool) -> None:
        self._own_outage = begins
        self.hurry()

    @property
    def is_used(self) -> bool:
        """Whether a call waits for an exchange, or a lease has to be returned."""
        return self._news or self._lacking is not None or self.holds

    @property
    def is_lacking(self) -> bool:
        """Whether a waiting call needs more than has been leased."""
        return self._lacking is not None

    def due(self, now: float) -> float:
        soonest = self._asked_at + _MIN_INTERVAL_SECONDS
        if self._news:  # 1. There is something to report.
            return max(now, soonest)
        # 2. A call needs more: not before the time set by the last exchange, unless that exchange requested
        #    nothing, as the first one does.
        if self._lacking is not None:
            return max(now, self._again_at) if self._asked_nothing else max(now, soonest, self._again_at)
        # 3. The lease is in use: before it runs out, and sooner while no limit is known.
        if now - self._used_at < _IDLE_SECONDS:
            if self._few_slots or any(self._held[d] < _LOW_SECONDS * self._demand[d] for d in self._limited):
                return max(now, soonest, self._more_at)
            if self.members > 1 and not self._limited:
                return self._asked_at + _REPLENISH_SECONDS  # a limit found by another process applies to all
            return self._asked_at + _RENEW_SECONDS
        if self.holds:  # 4. An unused lease is returned soon.
            return max(now, self._asked_at + _IDLE_SECONDS)
        return self._asked_at + _HEARTBEAT_SECONDS

    @property
    def holds(self) -> bool:
        return any(self._held[d] > 0.0 for d in self._limited)

    @property
    def _few_slots(self) -> bool:
        left = sum(one.left for one in self._slots)
        return (
            self._spaced > 0.0
            and self.members > 1
            and left < max(1.0, _REPLENISH_SECONDS * self._spaced / self.members)
        )

    def ask(self, now: float, facts: QuotaFacts, *, leaving: bool = False) -> LeaseAsk:
        """Return the request for an exchange that begins now; then call :meth:`adopt` or :meth:`lose`.

        Held units that are valid and in use are kept; the others are returned, including debts of calls
        that needed more than estimated. Unless the process is ``leaving``, it requests more while calls
        arrive or wait.
        """
        seconds = max(now - self._asked_at, _MIN_INTERVAL_SECONDS) if self._asked_at > -math.inf else 1.0
        active = (now - self._used_at < _IDLE_SECONDS or self._lacking is not None) and not leaving
        kept, returned = [0.0] * DIMENSION_COUNT, [0.0] * DIMENSION_COUNT
        for d in range(DIMENSION_COUNT):
            self._demand[d] = max(self._used[d] / seconds, _KEPT_DEMAND_SHARE * self._demand[d])
            self._used[d] = 0.0
            keeps = active and self._held[d] > 0.0 and now <= self._until
            (kept if keeps else returned)[d] = self._held[d]
        self._held = list(kept)
        least, wanted = self._wanted(kept) if active else ([0.0] * DIMENSION_COUNT, [0.0] * DIMENSION_COUNT)
        cooled = max(0.0, facts.cool_until - now) if facts.cool_until > self._cool_until else 0.0
        self._cool_until = max(self._cool_until, facts.cool_until)
        self._reported_spaced = facts.spaced
        lowered = facts.spaced > 0.0 and (facts.spaced < self._spaced or self._spaced == 0.0)
        self._news, self._asked_at, self._asked_nothing = False, now, not active
        own_outage = self._own_outage
        # the end of an outage is reported until a grant confirms it, because processes may join in between
        if own_outage:
            self._own_outage = None
        then = next((then for at, then in reversed(self._recent) if at <= facts.admitted), None)
        return LeaseAsk(
            member=self.member,
            generation=0 if self.grant is None else self.grant.generation,
            limits=MemberLimits(
                caps=list(facts.caps),
                rates=list(facts.rates),
                learned_caps=list(facts.learned_caps),
                learned_rates=list(facts.learned_rates),
            ),
            remaining=Remaining(
                at_most=list(facts.at_most),
                at_least=list(facts.remaining) if then is not None else [0.0] * DIMENSION_COUNT,
                then=then or [0.0] * DIMENSION_COUNT,
            ),
            kept=kept,
            returned=returned,
            least=least,
            wanted=wanted,
            urgent=int(self._urgent_lacks),
            slots=_ASKED_SLOTS if active and self._few_slots else 0.0,
            findings=Findings(
                cooled=cooled,
                spaced=-1.0 if self._spaced > 0.0 == facts.spaced else facts.spaced,
                lowered=int(lowered),
                outage=0 if own_outage is None else 1 if own_outage else -1,
                accepted=float(facts.accepted),
                refused=float(facts.refused),
            ),
            leaving=int(leaving),
        )

    def _wanted(self, kept: list[float]) -> tuple[list[float], list[float]]:
        """Return the amounts that the next call needs beyond the kept ones, and the requested amounts.

        A process whose calls wait has used less than it could, so it requests twice its recent use, and at
        least what all waiting calls need.
        """
        lacking = self._lacking
        costs, more = (self._usual, _AHEAD_SECONDS) if lacking is None else (lacking, 2.0 * _AHEAD_SECONDS)
        waiting = 1 if lacking is None else self.waiting
        least, wanted = [0.0] * DIMENSION_COUNT, [0.0] * DIMENSION_COUNT
        for d in range(DIMENSION_COUNT):
            needed = max(0.0, costs[d] - kept[d])
            least[d] = needed if lacking is not None else 0.0
            wanted[d] = max(needed, waiting * costs[d] - kept[d], more * self._demand[d] - kept[d])
        return least, wanted

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        self.others = (0.0, 0.0)
        # after a change of members, the counts include those of a process that joined
        if self.grant is not None and grant.members == self.grant.members:
            more = grant.accepted - self.grant.accepted, grant.refused - self.grant.refused
            self.others = more if min(more) >= 0.0 else self.others
        self.grant, self.joined, self.lost, self._safe = grant, True, False, {}
        limited = tuple(d for d in range(DIMENSION_COUNT) if grant.caps[d] > 0.0)
        self._found = tuple(d for d in limited if d not in self._limited)
        self._limited = limited
        self._until = self._asked_at + VALID_SECONDS
        self._recent = [*self._recent[-_REMEMBERED_EXCHANGES:], (now, grant.then)]
        for d in range(DIMENSION_COUNT):
            self._held[d] += grant.granted[d]
        self._again_at = now + min(grant.wait, _MAX_WAIT_SECONDS)
        self._more_at = now + (_REPLENISH_SECONDS if any(grant.granted) or grant.slots else _IDLE_SECONDS)
        if not grant.wait:
            self._lacking, self._urgent_lacks = None, False
        if self._own_outage is False and grant.outage:
            self._news = True  # another process reported something first
        elif self._own_outage is False:
            self._own_outage = None
        if self.outage != bool(grant.outage):
            self.outage = bool(grant.outage)
            self.outages += 1
        if grant.spaced < self._spaced:
            self._slots.clear()
        self._spaced = grant.spaced
        if grant.slots:
            begin, step = now + grant.slots_in, 1.0 / grant.spaced
            self._slots.append(
                _Slots(begin, grant.slots, begin + (grant.slots + 1.0) * step + _LATE_SLOT_SECONDS)
            )

    def cooldown(self, now: float, own: float) -> float | None:
        """Return when the cooldown of other processes ends, if it is later than this process's ``own``."""
        until = now + (self.grant.cool if self.grant is not None else 0.0)
        if until <= max(own, now) + _MIN_INTERVAL_SECONDS:
            return None
        self._cool_until = until
        return until

    @property
    def probes(self) -> bool:
        """Whether this process may try a higher rate now."""
        return self.grant is None or self.members == 1 or self.grant.probes == 1

    def spacing(self, own: float) -> float | None:
        """Return the rate at which to space calls instead of this process's ``own``; 0 for no spacing.

        ``None`` keeps ``own``, which is the same or has changed since it was reported.
        """
        if own != self._reported_spaced:
            self._news = True
            return None
        return None if own == self._spaced else self._spaced

    @property
    def refusal(self) -> str:
        """Reason why no call is sent, if waiting does not help; otherwise empty."""
        return self._incompatible if self.lost and self._on_lost == "stop" else ""

    def lose(self, now: float, incompatible: str = "") -> bool:
        """Record that the back end is unavailable; return True when the process starts to use the safe share.

        Returned units do not count as held, because the exchange may have been carried out.
        ``incompatible`` is the reason why waiting does not help, or empty.
        """
        self._incompatible = incompatible
        if self.lost or (self.joined and self.holds and now <= self._until):
            return False
        self.joined = self.lost = True
        self._slots.clear()
        self._spaced = 0.0
        if self._on_lost == "share" and self.grant is not None:
            share = 1.0 / self.members
            for d in self._limited:
                cap, rate = self.grant.caps[d] * share, self.grant.rates[d] * share
                self._safe[d] = Bucket(max(1.0, cap), rate, now, level=max(0.0, self._held[d]))
            if self.grant.spaced:
                rate = self.grant.spaced * share
                self._safe[0] = Bucket(spaced_capacity(rate), rate, now, level=0.0)
        return True
