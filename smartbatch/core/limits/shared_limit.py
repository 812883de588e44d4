"""A limit shared by several processes: its record, and the exchange by which a process leases a part of it.

A limit belongs to an account. The record of one quota holds the amount left; each process leases a slice
before it needs it and returns the unused part. Every back end applies :func:`exchange` in one transaction.
A limit of 0 means no limit.
"""

from __future__ import annotations

import enum
import math

from attrs import define, field, frozen

DIMENSION_COUNT = 4
"""Requests, tokens, input tokens and output tokens, in this order; a budget uses only the first, in USD."""

NO_BOUND = 1e15
"""Larger than any level."""


def first(amount: float) -> list[float]:
    return [amount, *[0.0] * (DIMENSION_COUNT - 1)]


def nothing() -> list[float]:
    return [0.0] * DIMENSION_COUNT


class QuotaKind(enum.Enum):
    RATE = "rate"
    """Refills, and the units leased by a dead process are returned."""

    BUDGET = "budget"
    """Does not refill, and the units leased by a dead process stay taken."""

    ENQUEUED = "enqueued"
    """All units that no process holds are available, like the tokens that an account may enqueue at a
    provider."""


@frozen
class MemberLimits:
    caps: list[float] = field(factory=nothing)  # units; 0 for no limit
    rates: list[float] = field(factory=nothing)  # units per second
    # as reported by the provider, kept for processes that join later; a negative cap: none, or not enforced
    learned_caps: list[float] = field(factory=nothing)
    learned_rates: list[float] = field(factory=nothing)


@frozen
class Remaining:
    # upper bound, minus the amount used since
    at_most: list[float] = field(factory=lambda: [NO_BOUND] * DIMENSION_COUNT)
    # lower bound that the provider reported after the exchange whose grant contained ``then``
    at_least: list[float] = field(factory=nothing)
    then: list[float] = field(factory=nothing)  # see :class:`LeaseGrant`


@frozen
class Findings:
    """Observations of a process since its last exchange."""

    cooled: float = 0.0  # seconds of a new cooldown
    spaced: float = 0.0  # calls per second; 0 for no spacing, -1 if spacing stopped
    lowered: int = 0  # 1 if that rate was proven or lowered
    outage: int = 0  # 1 if its circuit breaker opened, -1 if it closed
    accepted: float = 0.0  # calls answered since its start
    refused: float = 0.0  # calls refused since its start


@frozen
class Totals:
    """A client's totals of a budget since its start. Unlike differences, they show whether an exchange whose
    response was lost was carried out.
    """

    number: int = 0  # number of the exchange, counted by the client
    drawn: float = 0.0  # USD leased
    given: float = 0.0  # USD returned


@frozen
class LeaseAsk:
    """Report and request of a process in one exchange. Lists have one number per dimension."""

    member: str  # a unique name of the process
    kind: QuotaKind = QuotaKind.RATE
    generation: int = 0  # generation of the record that the process last saw
    limits: MemberLimits = field(factory=MemberLimits)
    remaining: Remaining = field(factory=Remaining)
    kept: list[float] = field(factory=nothing)  # units held and kept
    # units returned; negative if calls used more than was leased, 0 for a budget
    returned: list[float] = field(factory=nothing)
    least: list[float] = field(factory=nothing)  # units that the next waiting call needs beyond ``kept``
    wanted: list[float] = field(factory=nothing)  # requested units, including ``least``
    slots: float = 0.0  # requested calls at the spaced rate
    urgent: int = 0  # 1 if the waiting call is urgent
    findings: Findings = field(factory=Findings)
    totals: Totals = field(factory=Totals)
    leaving: int = 0  # 1 for the last exchange of a process


@frozen
class LeaseGrant:
    """The amounts that an exchange grants, and the state of the record."""

    members: int  # processes that share the limit, including this one
    granted: list[float]  # additional units
    slots: float  # additional calls at the spaced rate
    slots_in: float  # seconds until the first of them
    wait: float  # seconds to wait before asking again; 0 if something was granted
    cool: float  # seconds until the common cooldown ends
    generation: int  # current generation of the record
    caps: list[float]
    rates: list[float]
    left: list[float]  # units that no process has leased
    then: list[float]  # granted in total minus held now, which limits the use until a later exchange
    spaced: float  # calls per second for all calls; 0 for no spacing
    probes: int  # 1 if this process may try a higher rate
    accepted: float  # calls of the other processes answered since they started
    refused: float  # calls of the other processes refused since they started
    outage: int  # 1 while a process reports that the provider is down


GONE_SECONDS = 15.0
"""Seconds without an exchange after which a process counts as dead and its lease is returned."""

ENQUEUED_GONE_SECONDS = 3600.0
"""Like :data:`GONE_SECONDS`, for the tokens that a store has enqueued at the provider; longer, because the
batches of a dead process keep running.
"""

PRECEDENCE_SECONDS = 2.0
"""Seconds for which a process that got too little takes precedence over later ones. It asks again before
they have passed."""

SLICES_PER_PROCESS = 4.0
"""A slice is at most the limit divided by the number of processes and by this factor."""

ADVANCE_SECONDS = 1.0
"""Seconds of refill granted in advance to a process that is alone, because its own buckets limit it."""

MONEY_SLICES_PER_PROCESS = 2.0
"""A slice of money is at most the remainder divided by the number of processes and by this factor."""

ACCOUNT_SECONDS, EMPTY_ACCOUNT_SECONDS = 7 * 86_400.0, 60.0
"""Seconds without an exchange before a client's account is deleted: if it holds money, and if it holds none.
"""

SLOT_SECONDS = 0.5
"""If calls are evenly spaced, all processes together lease the slots of this many seconds at a time."""

CLOCK_STEP_SECONDS = 2.0
"""Seconds by which a clock may be behind the record's last change, for example between threads. If it is
further behind, it was set back or restarted."""

MEASURED_SHARE = 0.8
"""A reported rate below this share of the spaced rate was measured in a separate event."""

QUIET_SECONDS = 8.0
"""After this many seconds without any exchange, the back end must have been unavailable, because even idle
processes make an exchange every five seconds."""

SLOTS_AHEAD_SECONDS = 1.0
"""Slots are leased at most this many seconds in advance."""

TURN_SECONDS = 5.0
"""Seconds without a call after which another process may try a higher rate."""

_SLACK, _MONEY_SLACK = 1e-3, 1e-10
"""Tolerance for rounding, in units of a rate and USD of a budget. Without it, a process that asks again at
the time it was given could be refused.
"""


@define
class Member:
    seen: float  # time of its last exchange
    held: list[float]
    caps: list[float]
    rates: list[float]
    least: list[float]
    urgent: int
    since: float  # start of its wait; 0 if it does not wait
    accepted: float
    refused: float


@define
class Account:
    seen: float  # time of that exchange
    number: int  # number of that exchange
    drawn: float  # USD leased in total
    given: float  # USD returned in total
    held: float


@define
class SharedRecord:
    """One quota that processes share. Times are seconds of the back end's clock."""

    at: float = 0.0  # time of the last change
    generation: int = 0  # grows with each event, so that several reports of one event count once
    caps: list[float] = field(factory=nothing)
    rates: list[float] = field(factory=nothing)
    learned_caps: list[float] = field(factory=nothing)  # as last reported by the provider
    learned_rates: list[float] = field(factory=nothing)
    levels: list[float] = field(factory=nothing)
    granted: list[float] = field(factory=nothing)  # total, including returned units
    cool_until: float = 0.0
    spaced: float = 0.0
    prober: str = ""  # the process that tries a higher rate
    turn_until: float = 0.0  # end of that process's turn
    next_slot: float = 0.0
    outage: int = 0
    members: dict[str, Member] = field(factory=dict)
    accounts: dict[str, Account] = field(factory=dict)  # kept when members are removed


class LateExchange(Exception):
    """An exchange that its client had abandoned, and that arrived after the next one."""


def exchange(record: SharedRecord, ask: LeaseAsk, now: float) -> LeaseGrant:
    """Apply a process's report to ``record``, and return the grant. ``now`` is the back end's time.

    Raises:
        LateExchange: only for a budget; the record is unchanged.
    """
    account = record.accounts.get(ask.member)
    if account is not None and ask.totals.number <= account.number:
        raise LateExchange("the exchange was abandoned, and a later one was made")
    # 1. If the clock was set back, all times are set back too. Units that refilled while the back end was
    #    unavailable are not granted, because processes may have used them as their safe shares.
    if now < record.at - CLOCK_STEP_SECONDS:
        _set_back(record, record.at - now)
    now = max(now, record.at)
    elapsed, record.at = now - record.at, now
    mine = record.members.pop(ask.member, None)
    back = _forget_gone(record, ask, now, known=mine is not None)
    if elapsed > QUIET_SECONDS and (mine is not None or record.members):
        elapsed = 0.0
    if ask.kind is QuotaKind.BUDGET:
        back = nothing()  # units leased by dead processes stay taken
    # 2. Limits refill, and the process returns units; the remainder reported by the provider is an upper
    #    bound.
    for d in range(DIMENSION_COUNT):
        _refill(record, ask, d, elapsed * record.rates[d] + back[d])
        if record.caps[d] > 0.0:
            given = _given_back(ask, d, account, forgotten=mine is None)
            _correct(record, ask, d, record.levels[d] + given)
    # 3. Events of the current generation count; events of an older generation were reported before.
    _note_events(record, ask, now)
    _note_turn(record, ask, now)
    if ask.leaving:
        _note_account(record, ask, now, 0.0)
        return _grant(record, now, 1 + len(record.members), nothing())
    # 4. The process gets the requested amount if enough is left after the needs of processes with
    #    precedence are met.
    since = mine.since if mine is not None and mine.since > 0.0 else now
    granted, slots, slots_in, wait = nothing(), 0.0, 0.0, 0.0
    if max(*ask.wanted, ask.slots) > 0.0:
        granted, slots, slots_in, wait = _lease(record, ask, now, since)
    record.members[ask.member] = Member(
        seen=now,
        held=[kept + more for kept, more in zip(ask.kept, granted, strict=True)],
        caps=ask.limits.caps,
        rates=ask.limits.rates,
        least=ask.least if wait > 0.0 else nothing(),
        urgent=ask.urgent,
        since=since if wait > 0.0 else 0.0,
        accepted=ask.findings.accepted,
        refused=ask.findings.refused,
    )
    _note_account(record, ask, now, granted[0])
    return _grant(record, now, len(record.members), granted, slots, slots_in, wait, without=ask.member)


def _set_back(record: SharedRecord, seconds: float) -> None:
    record.at -= seconds
    record.cool_until -= seconds
    record.next_slot -= seconds
    record.turn_until -= seconds
    for member in record.members.values():
        member.seen -= seconds
        member.since = member.since - seconds if member.since > 0.0 else 0.0
    for account in record.accounts.values():
        account.seen -= seconds


def _forget_gone(record: SharedRecord, ask: LeaseAsk, now: float, *, known: bool) -> list[float]:
    """Remove processes and clients that are gone; return the units that the processes held.

    ``known`` means that the requesting process was in the record before.
    """
    back, after = nothing(), ENQUEUED_GONE_SECONDS if ask.kind is QuotaKind.ENQUEUED else GONE_SECONDS
    for name, member in list(record.members.items()):
        if now - member.seen > after:
            del record.members[name]
            back = [some + held for some, held in zip(back, member.held, strict=True)]
    for name, account in list(record.accounts.items()):
        if now - account.seen > (ACCOUNT_SECONDS if account.held > 0.0 else EMPTY_ACCOUNT_SECONDS):
            del record.accounts[name]
    # With the last process, an outage and the discovered rate are forgotten, because no process could report
    # their end.
    if not known and not record.members:
        record.outage, record.spaced = 0, 0.0
    return back


def _given_back(ask: LeaseAsk, d: int, account: Account | None, *, forgotten: bool) -> float:
    """Return the units that a process gives back.

    For a budget they follow from the totals, so that an exchange whose response was lost counts. A removed
    process returned its units when it was removed.
    """
    if d == 0 and account is not None:
        return account.drawn - ask.totals.drawn + ask.totals.given - account.given
    return min(ask.returned[d], 0.0) if forgotten else ask.returned[d]


def _note_account(record: SharedRecord, ask: LeaseAsk, now: float, granted: float) -> None:
    """Update a client's account of a budget. The totals of an unknown client have already been reconciled."""
    if ask.kind is QuotaKind.BUDGET:
        drawn, held = ask.totals.drawn + granted, ask.kept[0] + granted
        record.accounts[ask.member] = Account(now, ask.totals.number, drawn, ask.totals.given, held)


def _refill(record: SharedRecord, ask: LeaseAsk, d: int, more: float) -> None:
    """Adopt the limit of one dimension and add ``more`` units, which were returned or refilled.

    Like the provider's bucket, this one does not grow beyond its limit while leased units are unused.
    """
    known = [(m.caps[d], m.rates[d]) for m in record.members.values() if m.caps[d] > 0.0]
    if ask.limits.caps[d] > 0.0:
        known.append((ask.limits.caps[d], ask.limits.rates[d]))
    if ask.limits.learned_caps[d] != 0.0:
        record.learned_caps[d] = max(0.0, ask.limits.learned_caps[d])
        record.learned_rates[d] = ask.limits.learned_rates[d]
    # 1. No live process knows a limit: keep the former one of a budget or of enqueued tokens; for a rate, use
    #    the limit that the provider reported last.
    if not known and ask.kind is not QuotaKind.RATE:
        known.append((record.caps[d], record.rates[d]))
    elif not known and record.learned_caps[d] > 0.0:
        known.append((record.learned_caps[d], record.learned_rates[d]))
    # 2. There is no longer a limit, but returned units still reduce debts.
    if not known:
        record.caps[d] = 0.0
        record.levels[d] += more
        return
    cap = min(cap for cap, _ in known)
    if record.caps[d] == 0.0 and record.rates[d] == 0.0:  # 3. first known limit: the bucket is full
        record.levels[d] = cap
    elif ask.kind is QuotaKind.BUDGET:  # 4. the budget was changed: spent money stays spent
        record.levels[d] += cap - record.caps[d]
    record.caps[d] = cap
    record.rates[d] = min(rate for _, rate in known)
    held = ask.kept[d] + sum(member.held[d] for member in record.members.values())
    if ask.kind is QuotaKind.ENQUEUED:  # 5. units that no process holds are available
        record.levels[d] = cap - held
        return
    # 6. The limit of a rate has changed: remaining units stay, up to the new limit.
    full = max(cap - held, min(record.levels[d], cap))
    record.levels[d] = min(full, record.levels[d] + more)


def _correct(record: SharedRecord, ask: LeaseAsk, d: int, level: float) -> None:
    bound = ask.remaining.at_most[d]
    if bound < NO_BOUND:
        others = sum(member.held[d] for member in record.members.values())
        # a single process can rely on the provider's figure; otherwise it is a maximum, because other
        # programs may use the limit
        level = min(level, bound - others) if record.members else bound - ask.kept[d]
        # calls often use fewer units than expected, so more may be left: the reported lower bound, minus the
        # most that can have been used since
        if ask.remaining.at_least[d] > 0.0:
            level = max(level, ask.remaining.at_least[d] - (record.granted[d] - ask.remaining.then[d]))
    record.levels[d] = min(record.caps[d], level)


def _note_events(record: SharedRecord, ask: LeaseAsk, now: float) -> None:
    """Record the events of a process.

    If others reported first, only a first or a far lower spaced rate is new, because it was measured
    separately.
    """
    found = ask.findings
    if ask.generation != record.generation:
        if found.lowered == 1 and (record.spaced == 0.0 or found.spaced < MEASURED_SHARE * record.spaced):
            record.spaced = found.spaced
            record.generation += 1
        return
    outage = record.outage if found.outage == 0 else max(found.outage, 0)
    news = found.cooled > 0.0 or found.lowered == 1 or outage != record.outage
    if found.cooled > 0.0:
        record.cool_until = max(record.cool_until, now + found.cooled)
    if found.lowered == 1:
        record.spaced = found.spaced
    elif found.spaced < 0.0:
        record.spaced = 0.0
    elif found.spaced > record.spaced > 0.0:
        record.spaced = found.spaced
    record.outage = outage
    record.generation += news


def _note_turn(record: SharedRecord, ask: LeaseAsk, now: float) -> None:
    sends = ask.slots > 0.0 and not ask.leaving
    if sends and (record.prober == ask.member or now >= record.turn_until):
        record.prober, record.turn_until = ask.member, now + TURN_SECONDS


def _lease(
    record: SharedRecord, ask: LeaseAsk, now: float, since: float
) -> tuple[list[float], float, float, float]:
    """Return the granted units, the slots, the seconds until the first slot, and the seconds to wait."""
    is_money = ask.kind is QuotaKind.BUDGET
    count = 1.0 + len(record.members)
    alone = ADVANCE_SECONDS if count == 1.0 else 0.0
    ahead = nothing()
    for member in record.members.values():
        first = member.urgent > ask.urgent or (member.urgent == ask.urgent and member.since < since)
        if member.since > 0.0 and now - member.seen <= PRECEDENCE_SECONDS and first:
            for d, least in enumerate(member.least):
                # waiting does not create money, so at most the existing amount is kept for others
                if not is_money:
                    ahead[d] += min(least, record.caps[d])
                elif least <= record.levels[d]:
                    ahead[d] += least
    wait = max(0.0, record.cool_until - now)
    for d in range(DIMENSION_COUNT):
        if record.caps[d] > 0.0:
            # a call above the whole limit is sent when the bucket is full; a call above a budget is never
            # sent
            least = ask.least[d] if is_money else min(ask.least[d], record.caps[d])
            lacking = least + ahead[d] - record.levels[d] - alone * record.rates[d]
            if lacking > (_MONEY_SLACK if is_money else _SLACK):
                wait = max(wait, lacking / record.rates[d] if record.rates[d] > 0.0 else GONE_SECONDS)
    start = max(record.next_slot, now)
    is_spaced = record.spaced > 0.0 and ask.slots > 0.0
    if is_spaced:
        wait = max(wait, start - now - SLOTS_AHEAD_SECONDS)
    if wait > 0.0:
        return nothing(), 0.0, 0.0, wait
    granted = nothing()
    for d in range(DIMENSION_COUNT):
        if record.caps[d] > 0.0:
            most = record.caps[d] / (SLICES_PER_PROCESS * count)
            if is_money:
                most = record.levels[d] / (MONEY_SLICES_PER_PROCESS * count)
            left = record.levels[d] - ahead[d] + alone * record.rates[d]
            amount = max(ask.least[d], min(ask.wanted[d], most, left))
            if d == 0 and not is_money:
                amount = max(ask.least[d], float(math.floor(amount)))
            granted[d] = amount
            record.levels[d] -= amount
            record.granted[d] += amount
    slots = 0.0
    if is_spaced:
        slots = max(1.0, min(ask.slots, float(math.floor(SLOT_SECONDS * record.spaced / count))))
        record.next_slot = start + slots / record.spaced
    return granted, slots, start - now, 0.0


def _grant(
    record: SharedRecord,
    now: float,
    members: int,
    granted: list[float],
    slots: float = 0.0,
    slots_in: float = 0.0,
    wait: float = 0.0,
    without: str = "",
) -> LeaseGrant:
    return LeaseGrant(
        members=members,
        granted=granted,
        slots=slots,
        slots_in=slots_in,
        wait=wait,
        cool=max(0.0, record.cool_until - now),
        generation=record.generation,
        caps=list(record.caps),
        rates=list(record.rates),
        left=list(record.levels),
        then=[
            granted - sum(member.held[d] for member in record.members.values())
            for d, granted in enumerate(record.granted)
        ],
        spaced=record.spaced,
        probes=int(record.prober == without != ""),
        accepted=sum(m.accepted for name, m in record.members.items() if name != without),
        refused=sum(m.refused for name, m in record.members.items() if name != without),
        outage=record.outage,
    )
