"""What one process holds of a limit that it shares with others: leased ahead of its need, used without I/O.

The gate asks :meth:`LimitLease.look` and :meth:`LimitLease.take`; a thread exchanges with the back end when
:meth:`LimitLease.due` says so. Times are monotonic seconds. The caller holds the quota's lock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from operator import add, sub

from attrs import define, frozen

from smartbatch.core.limits.shared_limit import (
    DIMENSIONS,
    Findings,
    LeaseAsk,
    LeaseGrant,
    MemberLimits,
    Remaining,
)
from smartbatch.core.limits.token_bucket import Bucket, spaced_capacity

Amounts = tuple[float, float, float, float]
"""What one call needs: requests, tokens, input tokens, output tokens."""

VALID = 5.0
"""Seconds for which a lease may be used without another exchange."""

_AHEAD = 2.0
"""Seconds of the own demand that are leased."""

_LOW = 1.0
"""Seconds of the own demand below which more is leased."""

_OFTEN = 0.1
"""Seconds between two exchanges at least: at most ten a second."""

_SOON = 0.25
"""Seconds after which a lease that runs low is filled up, if no call lacks anything."""

_RENEW = 1.0
_IDLE = 0.5
_HEARTBEAT = 5.0
"""Seconds between two exchanges of a process that uses its lease, after which one that does not gives it
back, and between two of one that holds nothing."""

_SLOTS = 1000.0
"""Slots that are asked for: as many as there are."""

_TOLD = 16
"""Exchanges that are remembered, until the provider tells of a call that was sent after one of them."""

_FORGET = 0.7
"""Share of a higher demand that is remembered from exchange to exchange."""

_LATE = 0.25
"""Seconds after its end in which a slot may still be used."""

_SLACK = 1e-3
"""Units that may be lacking, for rounding."""

_LONGEST_WAIT = 1.0
"""Seconds after which a process that waits for its share asks again at the latest, to keep its place."""

_CATCH_UP = 0.01
"""Seconds, or share of the spacing where that is more, that a late call does not put off those after it."""


@frozen
class QuotaFacts:
    """What a process knows of a quota, to be told to the others.

    Attributes:
        caps, rates: the limits, in units and units a second; 0 for none.
        learned_caps, learned_rates: those that the provider named; negative where it names none, or nobody
            enforces it, 0 where nothing is known.
        at_most: what is left, as the provider's answers say, less what was sent since.
        remaining: what was left when the latest answered call was admitted, as its answer said.
        admitted: when that call was sent.
        accepted, refused: calls answered, and refused, since the start.
        cool_until: when the cooldown of this process ends.
        spaced: calls a second to which it spaces its calls; 0 for not at all.
    """

    caps: Amounts
    rates: Amounts
    at_most: Amounts
    remaining: Amounts
    admitted: float
    accepted: int
    cool_until: float
    spaced: float
    refused: int = 0
    learned_caps: Amounts = (0.0, 0.0, 0.0, 0.0)
    learned_rates: Amounts = (0.0, 0.0, 0.0, 0.0)


@define
class _Slots:
    """Calls at the spaced rate that were leased together."""

    next_at: float
    left: float
    until: float


class LimitLease:
    """One process's part of a shared quota.

    Args:
        member: the process, by a name of its own.
        wake: called when an exchange becomes due earlier than :meth:`due` said.
        on_lost: what happens while the back end is unavailable: ``share`` goes on with the last limit divided
            by the processes seen last, ``stop`` waits, ``local`` goes on with the whole limit.

    Attributes:
        joined: whether the first exchange is over, or failed; until then no call goes.
        lost: whether the back end is unavailable.
        outage: whether the processes found the provider down, and ``outages``, how often that changed.
        grant: of the last exchange; ``None`` before it.
        urgent: whether the call that is looked at now is urgent; set by who calls :meth:`look`.
        waiting: calls that could go at once but for the lease; set by who found that one lacks something.
    """

    def __init__(self, member: str, wake: Callable[[], None], on_lost: str = "share") -> None:
        self.member = member
        self._wake = wake
        self.joined = self.lost = False
        self.grant: LeaseGrant | None = None
        self.outage, self.outages = False, 0
        self._own_outage: bool | None = None  # to be told
        self._on_lost = on_lost
        self._incompatible = ""
        self._held = [0.0] * DIMENSIONS
        self._used = [0.0] * DIMENSIONS  # since the last exchange
        self._demand = [0.0] * DIMENSIONS  # units a second
        self._limited: tuple[int, ...] = ()
        self._found: tuple[int, ...] = ()  # limits that were not known before the last exchange
        self._until = -math.inf
        self._lacking: Amounts | None = None
        self.urgent = self._urgent_lacks = False
        self.waiting = 1
        self._usual: Amounts = (1.0, 0.0, 0.0, 0.0)
        self._news = True
        self._asked_at = self._used_at = -math.inf
        self._asked_nothing = False
        self._again_at = self._more_at = -math.inf  # when a call that lacks something asks again, and others
        self._spaced = 0.0
        self._told_spaced = 0.0
        self._slots: deque[_Slots] = deque()
        self._cool_until = -math.inf
        self._safe: dict[int, Bucket] = {}
        self.others = (
            0.0,
            0.0,
        )  # calls that others had answered, and refused, between the last two exchanges
        self._told: list[tuple[float, list[float]]] = []  # when each of the last exchanges told its ``then``

    @property
    def members(self) -> int:
        """The processes that share the limit, as far as is known; 1 or more."""
        return 1 if self.grant is None else max(1, self.grant.members)

    def look(self, now: float, costs: Amounts) -> float:
        """Return the earliest time a call may go; infinity for not before the next exchange.

        The cases, in order:

        1. Nothing is known yet, or the back end is unavailable and calls are to stop: not before the next
           exchange.
        2. The back end is unavailable: the safe share.
        3. The lease lacks something, or is over: not before the next exchange, which becomes due.
        4. Calls are spaced: at the next slot.
        """
        if not self.joined or (self.lost and self._on_lost == "stop"):
            return math.inf
        if self.lost:
            return max((bucket.look(now, costs[d]) for d, bucket in self._safe.items()), default=now)
        limited = self._limited
        if limited and now > self._until:
            return self._lack(costs)
        for d in limited:
            if self._held[d] < costs[d] - _SLACK:
                return self._lack(costs)
        if not self._spaced or self.members == 1:  # alone, its own spacing is enough
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
        """Use what :meth:`look` allowed. After a pause others may have come."""
        if not self.lost and now - self._asked_at > _RENEW:
            self.tell()
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
            first.next_at = max(first.next_at, now - max(_CATCH_UP, _CATCH_UP * step)) + step
            first.left -= 1.0

    def settle(self, now: float, surplus: Amounts) -> None:
        """Give back what a call did not need of each dimension, or take more where it is negative."""
        self._used = list(map(sub, self._used, surplus))
        if not self.lost or self._on_lost == "stop":  # else calls take nothing of what is leased
            for d in self._limited:
                self._held[d] += surplus[d]
        for d, bucket in self._safe.items():
            bucket.settle(now, surplus[d])

    def owe(self, under_way: Amounts) -> None:
        """Take of limits that became known by the last exchange what calls under way need."""
        for d in self._found:
            self._held[d] -= under_way[d]
        self._found = ()

    def tell(self) -> None:
        """Something happened that the other processes must hear at once."""
        if not self._news:
            self._news = True
            self._wake()

    def tell_outage(self, *, begins: bool) -> None:
        """The breaker of this process opened, or closed."""
        self._own_outage = begins
        self.tell()

    @property
    def is_used(self) -> bool:
        """Whether an exchange is awaited, or something is leased that has to go back."""
        return self._news or self._lacking is not None or self.holds

    @property
    def is_lacking(self) -> bool:
        """Whether a call lacked something that was not leased since."""
        return self._lacking is not None

    @property
    def is_limited(self) -> bool:
        """Whether any limit is known."""
        return bool(self._limited)

    def due(self, now: float) -> float:
        """Return when the next exchange is due. The cases, in order:

        1. There is news: at once, but not within a tenth of a second of the last exchange.
        2. A call lacks something: likewise, and not before the last exchange said; at once where that one
           asked for nothing, as the one that joins.
        3. The lease is in use: before it runs out, or after a second; sooner while no limit is known.
        4. It is not: after half a second to give it back, then every five.
        """
        soonest = self._asked_at + _OFTEN
        if self._news:
            return max(now, soonest)
        if self._lacking is not None:
            return max(now, self._again_at) if self._asked_nothing else max(now, soonest, self._again_at)
        if now - self._used_at < _IDLE:
            if self._few_slots or any(self._held[d] < _LOW * self._demand[d] for d in self._limited):
                return max(now, soonest, self._more_at)
            if self.members > 1 and not self._limited:
                return self._asked_at + _SOON  # what another finds concerns all
            return self._asked_at + _RENEW
        if self.holds:
            return max(now, self._asked_at + _IDLE)
        return self._asked_at + _HEARTBEAT

    @property
    def holds(self) -> bool:
        """Whether anything is leased."""
        return any(self._held[d] > 0.0 for d in self._limited)

    @property
    def _few_slots(self) -> bool:
        left = sum(one.left for one in self._slots)
        return (
            self._spaced > 0.0 and self.members > 1 and left < max(1.0, _SOON * self._spaced / self.members)
        )

    def ask(self, now: float, facts: QuotaFacts, *, leaving: bool = False) -> LeaseAsk:
        """Return what to tell and ask in an exchange that begins now; :meth:`adopt` or :meth:`lose` follows.

        Of each dimension, in order:

        1. What is held, is in use and is not over is kept.
        2. Anything else goes back. Of what a call needed beyond its estimate, which made the level negative,
           a debt goes back.
        3. While calls come or one lacks something, and the process is not ``leaving``, more is asked for.
        """
        seconds = max(now - self._asked_at, _OFTEN) if self._asked_at > -math.inf else 1.0
        active = (now - self._used_at < _IDLE or self._lacking is not None) and not leaving
        kept, returned = [0.0] * DIMENSIONS, [0.0] * DIMENSIONS
        for d in range(DIMENSIONS):
            self._demand[d] = max(self._used[d] / seconds, _FORGET * self._demand[d])
            self._used[d] = 0.0
            keeps = active and self._held[d] > 0.0 and now <= self._until
            (kept if keeps else returned)[d] = self._held[d]
        self._held = list(kept)
        least, wanted = self._wanted(kept) if active else ([0.0] * DIMENSIONS, [0.0] * DIMENSIONS)
        cooled = max(0.0, facts.cool_until - now) if facts.cool_until > self._cool_until else 0.0
        self._cool_until = max(self._cool_until, facts.cool_until)
        self._told_spaced = facts.spaced
        lowered = facts.spaced > 0.0 and (facts.spaced < self._spaced or self._spaced == 0.0)
        self._news, self._asked_at, self._asked_nothing = False, now, not active
        own_outage = self._own_outage
        if own_outage:  # its end is told until it is known: those that come later would begin with an outage
            self._own_outage = None
        then = next((then for at, then in reversed(self._told) if at <= facts.admitted), None)
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
                at_least=list(facts.remaining) if then is not None else [0.0] * DIMENSIONS,
                then=then or [0.0] * DIMENSIONS,
            ),
            kept=kept,
            returned=returned,
            least=least,
            wanted=wanted,
            urgent=int(self._urgent_lacks),
            slots=_SLOTS if active and self._few_slots else 0.0,
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
        """Return what the next call needs besides what is kept, and what is wanted.

        A process that lacks something wants twice what it used lately, since its use was held back, and at
        least as much as all calls need that wait.
        """
        lacking = self._lacking
        costs, more = (self._usual, _AHEAD) if lacking is None else (lacking, 2.0 * _AHEAD)
        waiting = 1 if lacking is None else self.waiting
        least, wanted = [0.0] * DIMENSIONS, [0.0] * DIMENSIONS
        for d in range(DIMENSIONS):
            needed = max(0.0, costs[d] - kept[d])
            least[d] = needed if lacking is not None else 0.0
            wanted[d] = max(needed, waiting * costs[d] - kept[d], more * self._demand[d] - kept[d])
        return least, wanted

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        """Use what the exchange gave that began last."""
        self.others = (0.0, 0.0)
        if (
            self.grant is not None and grant.members == self.grant.members
        ):  # else with what was answered there
            more = grant.accepted - self.grant.accepted, grant.refused - self.grant.refused
            self.others = more if min(more) >= 0.0 else self.others
        self.grant, self.joined, self.lost, self._safe = grant, True, False, {}
        limited = tuple(d for d in range(DIMENSIONS) if grant.caps[d] > 0.0)
        self._found = tuple(d for d in limited if d not in self._limited)
        self._limited = limited
        self._until = self._asked_at + VALID
        self._told = [*self._told[-_TOLD:], (now, grant.then)]
        for d in range(DIMENSIONS):
            self._held[d] += grant.granted[d]
        self._again_at = now + min(grant.wait, _LONGEST_WAIT)
        self._more_at = now + (_SOON if any(grant.granted) or grant.slots else _IDLE)
        if not grant.wait:
            self._lacking, self._urgent_lacks = None, False
        if self._own_outage is False and grant.outage:
            self._news = True  # another process told something before it
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
            self._slots.append(_Slots(begin, grant.slots, begin + (grant.slots + 1.0) * step + _LATE))

    def cooldown(self, now: float, own: float) -> float | None:
        """Return until when the others' cooldown lasts, where it is longer than this process's ``own``."""
        until = now + (self.grant.cool if self.grant is not None else 0.0)
        if until <= max(own, now) + _OFTEN:
            return None
        self._cool_until = until
        return until

    @property
    def probes(self) -> bool:
        """Whether it is this process's turn to try a higher rate."""
        return self.grant is None or self.members == 1 or self.grant.probes == 1

    def spacing(self, own: float) -> float | None:
        """Return the rate to space calls at instead of this process's ``own``; 0 for not at all.

        ``None`` to keep it: it is the same, or changed since it was told.
        """
        if own != self._told_spaced:
            self._news = True
            return None
        return None if own == self._spaced else self._spaced

    @property
    def refusal(self) -> str:
        """Why no call goes, where waiting does not help; else empty."""
        return self._incompatible if self.lost and self._on_lost == "stop" else ""

    def lose(self, now: float, incompatible: str = "") -> bool:
        """The back end cannot be reached: use what is leased, then the safe share. True when that begins.

        ``incompatible`` says why waiting does not help, where it does not.

        Nothing that was given back counts as held, since the exchange may have been made.
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
