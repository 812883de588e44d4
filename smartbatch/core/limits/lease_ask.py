"""What a process tells and asks of a shared limit, and what it gets."""

from __future__ import annotations

import enum

from attrs import field, frozen

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
