"""A limit shared by several processes: its record, and the exchange by which a process leases a part of it.

A limit belongs to an account, not to a process. The record of one quota holds what is left; each process
leases a slice before it needs it and returns what it does not use. The sharing rule is :func:`exchange`,
which every back end applies in one transaction. A limit of 0 means that there is none.
"""

from __future__ import annotations

import enum
import math

from attrs import define, field, frozen

DIMENSIONS = 4
"""Requests, tokens, input tokens and output tokens, in this order; a budget uses the first alone, in USD."""

NO_BOUND = 1e15
"""More than any level."""


def first(amount: float) -> list[float]:
    """Return an amount of the first dimension, and nothing of the others."""
    return [amount, *[0.0] * (DIMENSIONS - 1)]


def nothing() -> list[float]:
    return [0.0] * DIMENSIONS


class QuotaKind(enum.Enum):
    """How a shared quota comes back."""

    RATE = "rate"
    """It refills, and what a dead process leased comes back."""

    BUDGET = "budget"
    """Nothing refills, and what a dead process leased stays taken."""

    ENQUEUED = "enqueued"
    """There is as much left as nobody holds, as of the tokens that a provider lets an account enqueue. It is
    held for long."""


@frozen
class MemberLimits:
    """The limits that a process knows, by dimension.

    Attributes:
        caps: the limits, in units; 0 for none.
        rates: their refill, units a second.
        learned_caps: those that the provider named, which hold for processes that come later, too; negative
            where it names none, or nobody enforces it; 0 where nothing is known.
        learned_rates: their refill, units a second.
    """

    caps: list[float] = field(factory=nothing)
    rates: list[float] = field(factory=nothing)
    learned_caps: list[float] = field(factory=nothing)
    learned_rates: list[float] = field(factory=nothing)


@frozen
class Remaining:
    """What the provider said is left, by dimension.

    Attributes:
        at_most: what it said, less what this process used since; :data:`NO_BOUND` where it said nothing.
        at_least: what it said after the exchange that returned ``then``; 0 where it said nothing since.
        then: as that exchange returned it, see :class:`LeaseGrant`.
    """

    at_most: list[float] = field(factory=lambda: [NO_BOUND] * DIMENSIONS)
    at_least: list[float] = field(factory=nothing)
    then: list[float] = field(factory=nothing)


@frozen
class Findings:
    """What a process found out since its last exchange.

    Attributes:
        cooled: seconds of a cooldown that began; 0 for none.
        spaced: calls a second to which calls are spaced; 0 for not at all, -1 for no longer.
        lowered: 1 where that rate was proven or lowered, else 0.
        outage: 1 where its breaker opened, -1 where it closed, else 0.
        accepted, refused: calls that were answered, and refused, since its start.
    """

    cooled: float = 0.0
    spaced: float = 0.0
    lowered: int = 0
    outage: int = 0
    accepted: float = 0.0
    refused: float = 0.0


@frozen
class Totals:
    """What a client did with a budget since its start.

    Totals, and not what is new: of an exchange whose answer was lost nobody knows whether it was made.

    Attributes:
        number: of the exchange, counted by the client.
        drawn, given: USD that it got and gave back.
    """

    number: int = 0
    drawn: float = 0.0
    given: float = 0.0


@frozen
class LeaseAsk:
    """What a process tells and asks in one exchange. Lists have one number for each dimension.

    Attributes:
        member: the process, by a name of its own.
        kind: how the quota comes back.
        generation: of the record, as the process saw it last.
        kept: what it holds and keeps.
        returned: what it gives back; negative where calls needed more than was expected. 0 for a budget.
        least: what it needs besides what it keeps, so that the next call can go; all 0 where none waits.
        wanted: what it wants, that included; all 0 for nothing.
        slots: calls at the spaced rate that are wanted, where calls are spaced; 0 for none.
        urgent: 1 where that call is urgent, else 0.
        totals: of a budget.
        leaving: 1 for the last exchange of a process, else 0.
    """

    member: str
    kind: QuotaKind = QuotaKind.RATE
    generation: int = 0
    limits: MemberLimits = field(factory=MemberLimits)
    remaining: Remaining = field(factory=Remaining)
    kept: list[float] = field(factory=nothing)
    returned: list[float] = field(factory=nothing)
    least: list[float] = field(factory=nothing)
    wanted: list[float] = field(factory=nothing)
    slots: float = 0.0
    urgent: int = 0
    findings: Findings = field(factory=Findings)
    totals: Totals = field(factory=Totals)
    leaving: int = 0


@frozen
class LeaseGrant:
    """What an exchange gives and tells.

    Attributes:
        members: the processes that share the limit, this one included.
        granted: further units, by dimension.
        slots: further calls at the spaced rate; 0 where calls are not spaced.
        slots_in: seconds until the first of them.
        wait: seconds after which asking again makes sense, where nothing was granted; else 0.
        cool: seconds that the cooldown of all lasts.
        generation: of the record now.
        caps, rates: the limits of all.
        left: what nobody leased.
        then: what was ever granted, less what all hold now. What all use from now on is at most what was ever
            granted at a later time, less this.
        spaced: calls a second to which all calls are spaced; 0 for not at all.
        probes: 1 where it is this process's turn to try a higher rate.
        accepted, refused: calls that the other processes had answered, and refused, since their starts.
        outage: 1 while a process found the provider down, else 0.
    """

    members: int
    granted: list[float]
    slots: float
    slots_in: float
    wait: float
    cool: float
    generation: int
    caps: list[float]
    rates: list[float]
    left: list[float]
    then: list[float]
    spaced: float
    probes: int
    accepted: float
    refused: float
    outage: int


GONE = 15.0
"""Seconds without a word after which a process is taken to be dead, and what it leased goes back."""

LASTING = 3600.0
"""The same for what a store has enqueued at the provider: the batches of a process that died go on."""

WAITING = 2.0
"""Seconds for which a process that found too little comes before those that ask later; it asks again sooner.
"""

SLICES = 4.0
"""A slice is at most the limit, divided by the processes and by this."""

ADVANCE = 1.0
"""Seconds of refill that a process gets in advance while it is alone: its own buckets limit it."""

MONEY_SLICES = 2.0
"""A slice of money is at most what is left, divided by the processes and by this."""

REMEMBERED, SETTLED = 7 * 86_400.0, 60.0
"""Seconds without a word for which the account of a client is kept that holds money, and that holds none."""

SLOT_SECONDS = 0.5
"""Of an evenly spaced limit the processes together lease this many seconds at a time."""

CLOCK_STEP = 2.0
"""Seconds by which a clock may be behind the record's last change, as those of different threads are; more
means that it was set back, or began anew."""

MEASURED = 0.8
"""Share of the rate of spaced calls below which another one was measured: no report of the same event."""

QUIET = 8.0
"""Seconds without any exchange that show that the back end was unavailable; idle processes exchange every
five."""

SLOTS_AHEAD = 1.0
"""Seconds ahead of which no slot is leased."""

TURN = 5.0
"""Seconds without a call after which another process tries a higher rate."""

_SLACK, _MONEY_SLACK = 1e-3, 1e-10
"""Units that may be lacking of a rate, and USD of a budget: rounding must not refuse a process at the very
time it was given."""


@define
class Member:
    """A process in a record: when it was heard last, what it holds and knows, and since when it waits."""

    seen: float
    held: list[float]
    caps: list[float]
    rates: list[float]
    least: list[float]
    urgent: int
    since: float
    accepted: float
    refused: float


@define
class Account:
    """What a client has of a budget, as its last exchange left it: when that was, its number, the totals that
    the client drew and gave, and what it holds of that, in USD."""

    seen: float
    number: int
    drawn: float
    given: float
    held: float


@define
class SharedRecord:
    """One quota that processes share. Times are seconds of the back end's clock.

    Attributes:
        at: when it was changed last.
        caps, rates: the limits in force.
        learned_caps, learned_rates: those that the provider named last.
        granted: what was ever leased, what came back included.
        generation: grows with each cooldown, proof of a limit and outage, so that many reports of one event
            count once.
        prober: the process that tries a higher rate, and ``turn_until``, when another one may.
        accounts: of a budget, by client. They outlive the members: what a dead one held stays taken, and one
            that was silent for long may still give back.
    """

    at: float = 0.0
    generation: int = 0
    caps: list[float] = field(factory=nothing)
    rates: list[float] = field(factory=nothing)
    learned_caps: list[float] = field(factory=nothing)
    learned_rates: list[float] = field(factory=nothing)
    levels: list[float] = field(factory=nothing)
    granted: list[float] = field(factory=nothing)
    cool_until: float = 0.0
    spaced: float = 0.0
    prober: str = ""
    turn_until: float = 0.0
    next_slot: float = 0.0
    outage: int = 0
    members: dict[str, Member] = field(factory=dict)
    accounts: dict[str, Account] = field(factory=dict)


class LateExchange(Exception):
    """An exchange comes after a later one of its client, which gave it up before."""


def exchange(record: SharedRecord, ask: LeaseAsk, now: float) -> LeaseGrant:
    """Change ``record`` by what a process tells, and return what it gets.

    The steps, in order:

    1. Time goes on, never back; where the clock was set back, all times are. Processes that are gone are
       forgotten; what they held comes back. With the last of them an outage is forgotten and the rate that
       was found: nobody could tell their end, and those that come later find out. While there was no
       exchange, the back end was unavailable, and processes may have used what came in by their safe shares.
    2. Limits: the tightest that a living process knows, or what the provider named before; they refill.
    3. What the process gives back is added; of a budget also what it was granted by an answer that it never
       got. What the provider said is left bounds what is, next to what the others hold.
    4. Events of the present generation change the record; those of an older one were told before, but for a
       rate of spaced calls that is the first one, or far lower.
    5. A process that wants something gets it if enough is left next to what those need that waited for
       longer, or are more urgent.

    Args:
        now: seconds of the back end's clock.

    Raises:
        LateExchange: of a budget; the record is as it was.
    """
    account = record.accounts.get(ask.member)
    if account is not None and ask.totals.number <= account.number:
        raise LateExchange("it was given up, and another was made since")
    if now < record.at - CLOCK_STEP:
        _set_back(record, record.at - now)
    now = max(now, record.at)
    elapsed, record.at = now - record.at, now
    mine = record.members.pop(ask.member, None)
    back = _forget_gone(record, ask, now, known=mine is not None)
    if elapsed > QUIET and (mine is not None or record.members):
        elapsed = 0.0
    if ask.kind is QuotaKind.BUDGET:
        back = nothing()  # what dead processes leased stays taken
    for d in range(DIMENSIONS):
        _refill(record, ask, d, elapsed * record.rates[d] + back[d])
        if record.caps[d] > 0.0:
            given = _given_back(ask, d, account, forgotten=mine is None)
            _correct(record, ask, d, record.levels[d] + given)
    _note_events(record, ask, now)
    _note_turn(record, ask, now)
    if ask.leaving:
        _note_account(record, ask, now, 0.0)
        return _grant(record, now, 1 + len(record.members), nothing())
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
    """Forget processes and clients that are gone; return what the processes held.

    Args:
        known: whether the process that asks was there before.
    """
    back, after = nothing(), LASTING if ask.kind is QuotaKind.ENQUEUED else GONE
    for name, member in list(record.members.items()):
        if now - member.seen > after:
            del record.members[name]
            back = [some + held for some, held in zip(back, member.held, strict=True)]
    for name, account in list(record.accounts.items()):
        if now - account.seen > (REMEMBERED if account.held > 0.0 else SETTLED):
            del record.accounts[name]
    if not known and not record.members:
        record.outage, record.spaced = 0, 0.0
    return back


def _given_back(ask: LeaseAsk, d: int, account: Account | None, *, forgotten: bool) -> float:
    """Return what a process gives back: of a budget by the totals, so that an answer that was lost counts,
    too; what a forgotten process held came back then."""
    if d == 0 and account is not None:
        return account.drawn - ask.totals.drawn + ask.totals.given - account.given
    return min(ask.returned[d], 0.0) if forgotten else ask.returned[d]


def _note_account(record: SharedRecord, ask: LeaseAsk, now: float, granted: float) -> None:
    """Note what a client has of a budget after an exchange. What an unknown one drew and gave was settled."""
    if ask.kind is QuotaKind.BUDGET:
        drawn, held = ask.totals.drawn + granted, ask.kept[0] + granted
        record.accounts[ask.member] = Account(now, ask.totals.number, drawn, ask.totals.given, held)


def _refill(record: SharedRecord, ask: LeaseAsk, d: int, more: float) -> None:
    """Adopt the limit of one dimension and add what came back to it. The cases, in order:

    1. Nobody living knows a limit: what the provider named before holds; of money and what does not refill
       what was known before. What processes were told by their users ends with them.
    2. There is none any more: what was owed to it comes back meanwhile.
    3. The first limit known: the bucket is full.
    4. Another limit of money: what was spent stays spent.
    5. Another limit of a rate: what is left stays, up to the new limit.
    6. Nothing refills: what nobody holds is left.

    The provider's bucket does not grow beyond its limit while what was leased is unused, so this one does not
    either.
    """
    told = [(m.caps[d], m.rates[d]) for m in record.members.values() if m.caps[d] > 0.0]
    if ask.limits.caps[d] > 0.0:
        told.append((ask.limits.caps[d], ask.limits.rates[d]))
    if ask.limits.learned_caps[d] != 0.0:
        record.learned_caps[d] = max(0.0, ask.limits.learned_caps[d])
        record.learned_rates[d] = ask.limits.learned_rates[d]
    if not told and ask.kind is not QuotaKind.RATE:
        told.append((record.caps[d], record.rates[d]))
    elif not told and record.learned_caps[d] > 0.0:
        told.append((record.learned_caps[d], record.learned_rates[d]))
    if not told:
        record.caps[d] = 0.0
        record.levels[d] += more
        return
    cap = min(cap for cap, _ in told)
    if record.caps[d] == 0.0 and record.rates[d] == 0.0:
        record.levels[d] = cap
    elif ask.kind is QuotaKind.BUDGET:
        record.levels[d] += cap - record.caps[d]
    record.caps[d] = cap
    record.rates[d] = min(rate for _, rate in told)
    held = ask.kept[d] + sum(member.held[d] for member in record.members.values())
    if ask.kind is QuotaKind.ENQUEUED:
        record.levels[d] = cap - held
        return
    full = max(cap - held, min(record.levels[d], cap))
    record.levels[d] = min(full, record.levels[d] + more)


def _correct(record: SharedRecord, ask: LeaseAsk, d: int, level: float) -> None:
    """Set the level of one dimension, corrected by what the provider told the process. The cases, in order:

    1. It is alone: what the provider says is left is so, less what it holds.
    2. The provider has less than the level and what the others hold: other programs use the limit, too.
    3. It had more than all processes can have used since: calls need less than was expected.
    """
    bound = ask.remaining.at_most[d]
    if bound < NO_BOUND:
        others = sum(member.held[d] for member in record.members.values())
        level = min(level, bound - others) if record.members else bound - ask.kept[d]
        if ask.remaining.at_least[d] > 0.0:
            level = max(level, ask.remaining.at_least[d] - (record.granted[d] - ask.remaining.then[d]))
    record.levels[d] = min(record.caps[d], level)


def _note_events(record: SharedRecord, ask: LeaseAsk, now: float) -> None:
    """Note what happened to a process. Where others told first, it is news only that calls are spaced at all,
    or at a far lower rate: that was measured, and theirs was not.
    """
    told = ask.findings
    if ask.generation != record.generation:
        if told.lowered == 1 and (record.spaced == 0.0 or told.spaced < MEASURED * record.spaced):
            record.spaced = told.spaced
            record.generation += 1
        return
    outage = record.outage if told.outage == 0 else max(told.outage, 0)
    news = told.cooled > 0.0 or told.lowered == 1 or outage != record.outage
    if told.cooled > 0.0:
        record.cool_until = max(record.cool_until, now + told.cooled)
    if told.lowered == 1:
        record.spaced = told.spaced
    elif told.spaced < 0.0:
        record.spaced = 0.0
    elif told.spaced > record.spaced > 0.0:
        record.spaced = told.spaced
    record.outage = outage
    record.generation += news


def _note_turn(record: SharedRecord, ask: LeaseAsk, now: float) -> None:
    """One process at a time tries a higher rate, for as long as it sends."""
    sends = ask.slots > 0.0 and not ask.leaving
    if sends and (record.prober == ask.member or now >= record.turn_until):
        record.prober, record.turn_until = ask.member, now + TURN


def _lease(
    record: SharedRecord, ask: LeaseAsk, now: float, since: float
) -> tuple[list[float], float, float, float]:
    """Return what is granted, the slots, the seconds until the first, and the seconds to wait instead.

    The cases, in order:

    1. There is a cooldown, or less than the next call needs once those who have waited longer, or more
       urgently, have theirs, or no slot soon: nothing, and the seconds until that has changed.
    2. Otherwise of each limited dimension what is wanted, within a slice of it and what is left, but never
       less than the next call needs; where calls are spaced, slots as well.
    """
    is_money = ask.kind is QuotaKind.BUDGET
    count = 1.0 + len(record.members)
    alone = ADVANCE if count == 1.0 else 0.0
    ahead = nothing()
    for member in record.members.values():
        first = member.urgent > ask.urgent or (member.urgent == ask.urgent and member.since < since)
        if member.since > 0.0 and now - member.seen <= WAITING and first:
            for d, least in enumerate(member.least):
                # money does not come by waiting, so what is there for others is not kept for more than it
                if not is_money:
                    ahead[d] += min(least, record.caps[d])
                elif least <= record.levels[d]:
                    ahead[d] += least
    wait = max(0.0, record.cool_until - now)
    for d in range(DIMENSIONS):
        if record.caps[d] > 0.0:
            # a call larger than the whole rate goes once the bucket is full; one larger than a budget never
            least = ask.least[d] if is_money else min(ask.least[d], record.caps[d])
            lacking = least + ahead[d] - record.levels[d] - alone * record.rates[d]
            if lacking > (_MONEY_SLACK if is_money else _SLACK):
                wait = max(wait, lacking / record.rates[d] if record.rates[d] > 0.0 else GONE)
    start = max(record.next_slot, now)
    is_spaced = record.spaced > 0.0 and ask.slots > 0.0
    if is_spaced:
        wait = max(wait, start - now - SLOTS_AHEAD)
    if wait > 0.0:
        return nothing(), 0.0, 0.0, wait
    granted = nothing()
    for d in range(DIMENSIONS):
        if record.caps[d] > 0.0:
            most = record.caps[d] / (SLICES * count)
            if is_money:
                most = record.levels[d] / (MONEY_SLICES * count)
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
