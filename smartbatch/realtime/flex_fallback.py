"""What becomes of a request that the slower tier sent away: it goes on in the standard lane."""

from __future__ import annotations

import enum

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import FlexChanged
from smartbatch.realtime.effects import DeferredEffects
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.ticket import Ticket

__all__ = ["Turn", "go_home", "judge_flex", "turned_away"]


class Turn(enum.Enum):
    """Why a request leaves the slower tier, in the words of the event that tells of it."""

    FULL = "the flex tier has no capacity"
    DECLINED = "the flex tier was refused for this model"
    DOUBTED = "requests were refused in the flex tier"
    """For a reason that may be their own: then they are refused at the standard price too, and not billed."""
    LATE = "the flex tier does not answer within call_timeout"

    @property
    def uncounted(self) -> bool:
        """Whether it costs the request no try: nothing was done for it."""
        return self is not Turn.LATE


def turned_away(lane: Lane, error: ProviderError) -> Turn | None:
    """Return why a request that failed in ``lane`` goes on elsewhere; ``None`` when it does not."""
    if lane.tier is None:
        return None
    if lane.tier.full(error):
        return Turn.FULL
    if lane.tier.declines(error):
        return Turn.DECLINED
    if error.kind is ErrorKind.CLIENT_ERROR:
        return Turn.DOUBTED
    return Turn.LATE if error.kind is ErrorKind.TIMEOUT else None


def go_home(ticket: Ticket) -> None:
    """Let ``ticket`` wait at the standard price from now on; it was reserved for."""
    assert ticket.lane.standard is not None
    ticket.lane = ticket.lane.standard
    ticket.batch_key = ticket.lane.batch_key(ticket.request)


def judge_flex(lane: Lane, error: ProviderError | None, now: float, effects: DeferredEffects) -> None:
    """Book how a call in the slower tier went, and tell when it is left alone from now on.

    Args:
        error: of the whole call; ``None`` for one that was answered.
    """
    if lane.tier is None:
        return
    with lane.quota.lock:
        health = lane.quota.flex
        if error is None:
            health.answered()
            return
        turn = turned_away(lane, error)
        if turn is None:
            return
        declined = turn is Turn.DECLINED
        reason = health.refused(now, turn.value, in_flight=lane.in_flight, permanent=declined)
    if reason is not None:
        effects.events.append(FlexChanged(at=now, model=lane.label, enabled=False, reason=reason))
