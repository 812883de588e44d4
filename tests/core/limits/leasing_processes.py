"""Processes that share a quota by leases, in virtual time: one lease each, and one common record."""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.lease import LimitLease
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.shared_limit import LeaseGrant, SharedRecord, exchange

ROUND_TRIP = 0.001
EPOCH = 1_795_000_000.0  # of the back end's clock


@define
class Process:
    """One process: its quota, and when it is frozen or the back end is unavailable to it."""

    quota: Quota
    name: str
    frozen: tuple[float, float] = (math.inf, math.inf)
    away: tuple[float, float] = (math.inf, math.inf)
    exchanges: int = 0
    lost_at: list[float] = field(factory=list)
    _arrives: float = math.inf
    _grant: LeaseGrant | None = None

    def __attrs_post_init__(self) -> None:
        self.quota.lease = LimitLease(self.name, lambda: None)


@define
class Sharing:
    """Makes the exchanges of all processes with one record."""

    processes: list[Process]
    record: SharedRecord = field(factory=SharedRecord)

    def __call__(self, now: float) -> float:
        return min((self._of(one, now) for one in self.processes), default=math.inf)

    def _of(self, one: Process, now: float) -> float:
        lease = one.quota.lease
        assert lease is not None
        if one.frozen[0] <= now < one.frozen[1]:
            return one.frozen[1]
        if one._grant is not None and now >= one._arrives:
            lease.adopt(one._grant, now)
            one.quota.follow(now)
            one._grant, one._arrives = None, math.inf
            return math.nextafter(now, math.inf)  # its clients look at once
        if one._grant is not None:
            return one._arrives
        due = lease.due(now)
        if due > now:
            return due
        asked = lease.ask(now, one.quota.facts(now))
        one.exchanges += 1
        if one.away[0] <= now < one.away[1]:
            if lease.lose(now):
                one.lost_at.append(now)
            return max(lease.due(now), now + 1.0)
        one._grant = exchange(self.record, asked, EPOCH + now + ROUND_TRIP / 2)
        one._arrives = now + ROUND_TRIP
        return one._arrives
