"""The collector: what may go now, and when to look again.

Its decisions are made in :meth:`Collector.take_locked`, which workers ask for their next batch; its own
thread only wakes for what no worker will notice: a first request, a window or pause that ends, a time-out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.batching.packing import HEAD_TOKENS, ITEM_OUTPUT, ITEM_TOKENS, PackRoom
from smartbatch.core.batching.window import Batch, BatchState
from smartbatch.errors import BudgetExceeded, ErrorKind, ProviderUnavailable, RequestTimeout, scrub
from smartbatch.events import FlexChanged, PackingChanged
from smartbatch.realtime.effects import DeferredEffects
from smartbatch.realtime.gates import Demand, Ending, Gates, Permit
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.lane_queue import LaneQueue
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.router import InFlightCall, ResponseRouter
from smartbatch.realtime.ticket import Ticket
from smartbatch.types import Usage

__all__ = ["Collector"]

PASSED_OVER = 200
"""Requests of other isolation keys passed over in search of company; beyond, a call goes less full."""


class Collector:
    """Chooses the next batch among all lanes, most urgent head first, and fails what cannot go any more.

    Args:
        new_id: makes batch ids.
        fallback: returns the lane that takes over while another one's breaker is open, or ``None``.
    """

    def __init__(
        self,
        clock: Clock,
        config: BatchingConfig,
        queue: RequestQueue,
        gates: Gates,
        router: ResponseRouter,
        *,
        new_id: Callable[[], str],
        fallback: Callable[[Lane], Lane | None],
    ) -> None:
        self._clock = clock
        self._config = config
        self._queue = queue
        self._gates = gates
        self._router = router
        self._new_id = new_id
        self._fallback = fallback
        self._moved = False  # to a lane that may have had its turn in this look

    def take_locked(self, now: float, effects: DeferredEffects) -> InFlightCall | float:
        """Return the next flight with its permit taken, or when to ask again."""
        queue = self._queue
        wake = math.inf
        self._moved = False
        lane_queues = list(queue.lanes.values())
        if len(lane_queues) > 1:
            lane_queues = [each for _, _, each in sorted(_by_head(lane_queues), key=itemgetter(0, 1))]
        for lane_queue in lane_queues:
            if lane_queue.delayed or lane_queue.paused_retries:
                wake = min(wake, lane_queue.promote(now))
            while lane_queue.waiting:
                ready = lane_queue.ready(now, flushed=queue.flushing)
                if ready > now:
                    wake = min(wake, ready)
                    break
                flight = self._try_locked(lane_queue, now, effects)
                if isinstance(flight, InFlightCall):
                    return flight
                if flight > now:
                    wake = min(wake, flight)
                    break
            if lane_queue.paused_retries:
                wake = min(wake, lane_queue.lane.retry_budget.look(now))
        return now if self._moved else wake

    def expire_locked(self, now: float, effects: DeferredEffects) -> float:
        """Fail what has run out of its own time; return when the next one does.

        What was cancelled without the monitor is struck as well.
        """
        for ticket, waiter in self._queue.strike_abandoned_locked():
            effects.cancelled(ticket, waiter, now)
        for ticket, waiter in self._queue.expired_locked(now):
            error = RequestTimeout(
                f"the request's time-out ended after {now - waiter.submitted:.3g} s and "
                f"{ticket.attempts} finished calls; give it a longer timeout",
                kind=ErrorKind.TIMEOUT,
                request_id=waiter.request_id,
            )
            effects.fail(ticket, [waiter], error, now)
        return self._queue.next_deadline_locked()

    def _try_locked(
        self, lane_queue: LaneQueue, now: float, effects: DeferredEffects
    ) -> InFlightCall | float:
        """Try to send the head of ``lane``; ``now`` means that something was cleared away: look again."""
        lane, head = lane_queue.lane, lane_queue.head()
        if head is None:
            return math.inf
        if self._clear_away_locked(lane_queue, head, now, effects):
            return now
        if head.charged and lane.retry_budget.look(now) > now:
            lane_queue.pause_retry(head)  # a first call may go all the same
            return now
        if lane.shares:  # what the head must wait for, its company would: do not gather it for each newcomer
            at = self._gates.look(lane, _demand(lane, [head]), now)
            if at > now:
                self._note_changes_locked(lane, now, effects)
                return self._patience_ends(lane, at)
        tickets = self._company_locked(lane_queue, head)
        demand = _demand(lane, tickets)
        permit = self._gates.admit(lane, demand, now)
        if (
            lane.packing_health is not None
            and len(tickets) > 1
            and (reason := lane.packing_health.resume(now)) is not None
        ):
            effects.events.append(PackingChanged(at=now, model=lane.label, enabled=True, reason=reason))
        if lane.standard is not None and (reason := lane.quota.flex.resume(now)) is not None:
            effects.events.append(FlexChanged(at=now, model=lane.label, enabled=True, reason=reason))
        self._note_changes_locked(lane, now, effects)
        if not isinstance(permit, Permit):
            for ticket in tickets:
                lane_queue.unpop(ticket)
            return self._patience_ends(lane, permit)
        starting = [ticket for ticket in tickets if self._queue.start_locked(ticket, now)]
        if not starting:
            self._gates.end(permit, Ending.DROPPED, now)
            effects.freed.append(lane.quota)
            return now
        batch: Batch[Ticket] = Batch(self._new_id(), min(ticket.due for ticket in starting))
        batch.fill(starting, int(demand.tokens))
        batch.move(BatchState.READY)
        lane.started(len(batch))
        return InFlightCall(batch, permit, now)

    def _company_locked(self, lane_queue: LaneQueue, head: Ticket) -> list[Ticket]:
        """Take out the head and, where calls are shared, who travels with it and can be paid for."""
        lane = lane_queue.lane
        lane_queue.pop()
        tickets = [head]
        tokens, cost = head.input_estimate, head.reserve
        passed: list[Ticket] = []
        room = PackRoom()
        alone = head.alone or lane.packing_paused(self._clock.now())
        if lane.packing_health is not None and not room.take(*_needs(lane, head)):
            alone = True
        most = 1 if alone else lane.accumulator.window.max_size
        while len(tickets) < most and len(passed) < PASSED_OVER:
            ticket = lane_queue.pop()
            if ticket is None:
                break
            if not _may_travel_together(head, ticket):
                passed.append(ticket)
                continue
            if lane.packing_health is not None and not room.take(*_needs(lane, ticket)):
                passed.append(ticket)
                break
            tokens += ticket.input_estimate
            cost += ticket.reserve
            whole = cost + _frame_cost(lane, len(tickets) + 1)
            if tokens > lane.max_tokens or not self._gates.payer(head.own_budget).fits(whole):
                passed.append(ticket)
                break
            tickets.append(ticket)
        for ticket in passed:
            lane_queue.unpop(ticket)
        return tickets

    def _clear_away_locked(
        self, lane_queue: LaneQueue, head: Ticket, now: float, effects: DeferredEffects
    ) -> bool:
        """Fail or move the head when it cannot be sent in this lane at all; True when it is gone."""
        lane = lane_queue.lane
        if lane.standard is not None and not lane.quota.flex.is_open(now):
            self._move_locked(lane_queue, lane.standard, head, now)
            return True
        short = self._gates.payer(head.own_budget).short(head.reserve)
        if short is not None:
            whose = (
                "the budget"
                if head.own_budget is None or short is self._gates.budget
                else "this list's budget"
            )
            error = BudgetExceeded(
                f"the request could cost up to {head.reserve:.6g} USD, and {short.left:.6g} USD are left of "
                f"{whose}; nothing was sent. Raise the budget or lower max_tokens",
            )
            self._router.fail_locked(head, error, now, effects)
            return True
        stopped = lane.breaker.stopped(now)
        if stopped is not None:
            self._router.fail_locked(head, _unavailable(lane, str(stopped), stopped), now, effects)
            return True
        since = lane.provider_health.open_since
        if since is None:
            return False
        if self._config.on_breaker_open == "fallback" and lane.breaker.look(now) > now:
            # Vectors of two models cannot be compared, so whoever asked for one waits for this model.
            other = None if head.request.embedding else self._fallback(lane)
            if other is not None and other is not lane:
                self._move_locked(lane_queue, other, head, now)
                return True
        too_long = now - since > self._config.outage_patience
        if too_long or (self._config.on_breaker_open == "fail" and lane.breaker.look(now) > now):
            reason = f"it has been failing for {now - since:.3g} s and the circuit breaker is open"
            self._router.fail_locked(head, _unavailable(lane, reason, head.last_error), now, effects)
            return True
        return False

    def _move_locked(self, lane_queue: LaneQueue, other: Lane, head: Ticket, now: float) -> None:
        """Let the head of a lane wait in ``other``, where it may take more tokens and cost more."""
        lane_queue.pop()
        head.lane = other
        head.batch_key = other.batch_key(head.request)
        priced = self._config.budget is not None or head.own_budget is not None
        head.estimate, head.reserve = other.demand(head.request, head.input_estimate, priced=priced)
        self._queue.lanes[other].put(head, head.due, now)
        self._moved = True

    def _note_changes_locked(self, lane: Lane, now: float, effects: DeferredEffects) -> None:
        """Tell of what the breaker became when it was looked at."""
        if lane.provider_health.open_since is not None:
            for change in lane.breaker.changes():
                self._router.note_change(lane, change, now, effects)

    def _patience_ends(self, lane: Lane, at: float) -> float:
        since = lane.provider_health.open_since
        return at if since is None else min(at, since + self._config.outage_patience + 0.001)


def _demand(lane: Lane, tickets: list[Ticket]) -> Demand:
    """Return what one call for ``tickets`` will use, of which the first is the head."""
    given, made = _expected(lane, tickets)
    return Demand(
        tokens=given + made,
        output=made,
        cost=sum(ticket.reserve for ticket in tickets) + _frame_cost(lane, len(tickets)),
        first=tickets[0].attempts == 0,
        retry=tickets[0].charged,
        own_budget=tickets[0].own_budget,
    )


def _expected(lane: Lane, tickets: list[Ticket]) -> tuple[float, float]:
    """Return the input and the output tokens to reserve for a call, by what was learned until now."""
    calibration = lane.calibration
    given = made = 0
    for ticket in tickets:
        prompt = calibration.input(ticket.input_estimate)
        given += prompt
        if ticket.estimate > prompt:
            learned = calibration.output(ticket.request.params.max_tokens)
            made += min(ticket.estimate - prompt, learned)
    return float(given), float(made)


def _needs(lane: Lane, ticket: Ticket) -> tuple[int, int]:
    """Return the tokens of a prompt, and those its answer needs in a pack."""
    most = ticket.request.params.max_tokens
    return ticket.input_estimate, lane.calibration.output(None) if most is None else most


def _frame_cost(lane: Lane, size: int) -> float:
    """Return the USD that packing ``size`` requests adds to what they cost by themselves."""
    if lane.packing_health is None or lane.rates is None or size < 2:
        return 0.0
    return lane.rates.cost(Usage(HEAD_TOKENS + size * ITEM_TOKENS, size * ITEM_OUTPUT))


def _may_travel_together(head: Ticket, other: Ticket) -> bool:
    together = not other.alone and other.group is head.group and other.own_budget is head.own_budget
    return together and other.batch_key == head.batch_key


def _by_head(lane_queues: list[LaneQueue]) -> list[tuple[float, int, LaneQueue]]:
    heads = []
    for position, lane_queue in enumerate(lane_queues):
        head = lane_queue.head()
        heads.append((math.inf if head is None else head.key, position, lane_queue))
    return heads


def _unavailable(lane: Lane, reason: str, cause: BaseException | None) -> ProviderUnavailable:
    kind = getattr(cause, "kind", None) or ErrorKind.SERVER_ERROR
    return ProviderUnavailable(
        f"{lane.label} cannot be used now, so nothing was sent: {scrub(reason)}",
        kind=kind,
        status=getattr(cause, "status", None),
        code=getattr(cause, "code", None),
    )
