"""The collector chooses the next batch and the time of the next check.

Workers call :meth:`Collector.take_locked` for their next batch. The collector's own thread handles only what
no worker notices: a first request, the end of a window or backoff, and timeouts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from itertools import takewhile

from smartbatch._words import duration, money
from smartbatch.core.batching.packing import PackRoom, frame_most
from smartbatch.core.batching.request_batch import Batch, BatchState
from smartbatch.core.prefixes.entries import NOTHING, Chosen
from smartbatch.core.prefixes.leads import Lead, Urgency
from smartbatch.core.prefixes.rendering import controls_cache
from smartbatch.errors import (
    BudgetExceeded,
    ConfigError,
    ErrorKind,
    ProviderUnavailable,
    RequestTimeout,
    scrub,
)
from smartbatch.events import FlexChanged, LongWait, PackingChanged
from smartbatch.observe.listeners import LONG_WAIT_SECONDS
from smartbatch.realtime.call import Outcome
from smartbatch.realtime.effects import DeferredEffects
from smartbatch.realtime.gates import Demand, Ending, Gates, Permit, is_refused
from smartbatch.realtime.in_flight import InFlightCall
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.lane_queue import LaneQueue
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.router import ResponseRouter
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.ticket import Ticket, TicketState

MAX_PASSED_OVER = 200
"""Maximum number of requests with another batch key to skip while filling a batch."""


class Collector:
    """Chooses the lane with the most urgent request, and fails requests that cannot be sent.

    Args:
        fallback: returns the lane to use while the breaker of another lane is open, or ``None``.
    """

    def __init__(
        self,
        setup: RealtimeSetup,
        queue: RequestQueue,
        gates: Gates,
        router: ResponseRouter,
        fallback: Callable[[Lane], Lane | None],
    ) -> None:
        self._config = setup.config
        self._queue = queue
        self._gates = gates
        self._router = router
        self._fallback = fallback
        self._numbers = itertools.count(1)
        self._parallelism = setup.parallelism
        self._moved = False  # a request moved to a lane that may have been checked before

    def take_locked(self, effects: DeferredEffects) -> InFlightCall | float:
        """Return the next call with its permit, or the time of the next check, in monotonic seconds.

        Retries whose backoff has ended, and requests whose budget has room again, are queued first. Then the
        lanes are checked, the one with the most urgent request first.
        """
        queue, now = self._queue, effects.now
        for ticket, waiter in queue.remove_abandoned_locked():
            effects.cancelled(ticket, waiter)
        wake = math.inf
        self._moved = False
        queue.turns.now = now
        lane_queues = list(queue.lanes.values())
        for lane_queue in lane_queues:
            if lane_queue.delayed:
                wake = min(wake, lane_queue.promote(now))
            if lane_queue.lane.cache is not None:
                wake = min(wake, lane_queue.lane.cache.expire(now))
                if (release := lane_queue.lane.release_unneeded_caches()) is not None:
                    effects.later.append(release)
            if lane_queue.held:
                lane_queue.promote_held()
        if len(lane_queues) > 1:
            lane_queues.sort(key=self._place)
        for lane_queue in lane_queues:
            # 1. No request waits, the model is paused, or its host allows no further call: try the next lane.
            # Resuming the model and the end of a call wake the collector.
            lane = lane_queue.lane
            while lane_queue.waiting and lane.provider_health.pause is None and not lane.is_full:
                # 2. The window is open: check again when it closes. Try the next lane.
                ready = lane_queue.ready(now, flushed=queue.flushing)
                if ready > now:
                    wake = min(wake, ready)
                    break
                # 3. The lane's first request can be sent, alone or with others: return the call.
                found = self._try_locked(lane_queue, effects)
                if isinstance(found, InFlightCall):
                    return found
                # 4. A gate is closed: check again when it may open. Try the next lane.
                if found > now:
                    wake = min(wake, found)
                    break
                # 5. The first request was failed, moved or set aside: try the next request of the lane.
                if lane_queue.held and not lane_queue.waiting:
                    lane_queue.promote_held()
        return now if self._moved else wake

    def _place(self, lane_queue: LaneQueue) -> float:
        head = lane_queue.head()
        if head is None:
            return math.inf
        return -math.inf if not head.urgent and self._queue.turns.is_due(head) else head.key

    def expire_locked(self, effects: DeferredEffects) -> float:
        """Fail the requests that timed out. Return the time of the next timeout."""
        now = effects.now
        for ticket, waiter in self._queue.expired_locked(now):
            error = RequestTimeout(
                f"the request timed out after {duration(now - waiter.submitted)} and "
                f"{ticket.attempts} finished calls; give it a longer timeout",
                kind=ErrorKind.TIMEOUT,
                request_id=waiter.request_id,
            )
            effects.fail(ticket, [waiter], error)
        return self._queue.next_deadline_locked()

    def _try_locked(self, lane_queue: LaneQueue, effects: DeferredEffects) -> InFlightCall | float:
        """Return a call for the lane's first request, or the time before which none is possible.

        Returns ``now`` if the first request was removed, so that the next one can be tried.
        """
        lane, head, now = lane_queue.lane, lane_queue.head(), effects.now
        if head is None:
            return math.inf
        # 1. The request cannot be sent in this lane: it was failed or moved.
        if self._fail_or_move_locked(lane_queue, head, effects):
            return now
        # 2. Calls in flight have reserved the rest of the list's budget: set the request aside, so that other
        # lists are not delayed.
        if head.own_budget is not None and head.own_budget.must_wait(head.reserve):
            lane_queue.set_aside(head.own_budget)
            return now
        # 3. Another call writes the prefix of its prompt to the provider's cache: set the request aside.
        lead = self._lead_of(lane, lane_queue, head, now)
        if lead is not None:
            lane_queue.set_aside(lead)
            return now
        # 4. Calls are shared, and a gate is closed for the first request alone: wait. A larger batch would
        # have to wait as well, and filling it for every new request would be wasted work.
        if lane.shares:
            at = self._gates.next_try(lane, _demand(lane, [head]), now)
            if at > now:
                self._note_changes_locked(lane, effects)
                return self._held_back_locked(lane_queue, head, at, effects)
        tickets = self._fill_locked(lane_queue, head, now)
        demand = _demand(lane, tickets)
        permit = self._gates.admit(lane, demand, now)
        self._note_resumed(lane, len(tickets), effects)
        self._note_changes_locked(lane, effects)
        # 5. A gate is closed for the batch: put all its requests back.
        if not isinstance(permit, Permit):
            for ticket in tickets:
                lane_queue.unpop(ticket)
            return self._held_back_locked(lane_queue, head, permit, effects)
        # 6. All requests of the batch have been cancelled: return the permit.
        starting = [ticket for ticket in tickets if self._queue.start_locked(ticket, now)]
        if not starting:
            self._gates.end(permit, Ending.DROPPED, now)
            effects.freed.append(lane.quota)
            return now
        # 7. Send the batch.
        batch: Batch[Ticket, Outcome] = Batch(
            f"batch-{next(self._numbers)}",
            lane.label,
            min([ticket.due for ticket in starting]),
            head.batch_key,
            starting,
            int(demand.tokens),
        )
        batch.move(BatchState.READY)
        lane.started(batch.id, len(batch), now)
        lane.held_until = now
        before_urgent = not head.urgent and any(other.urgent_waits for other in self._queue.lanes.values())
        self._queue.turns.started(urgent=head.urgent, before_urgent=before_urgent)
        return InFlightCall(batch, permit, now, cached=self._cached(lane_queue, head, permit, now))

    def _cached(self, lane_queue: LaneQueue, head: Ticket, permit: Permit, now: float) -> Chosen:
        """Choose the entries that a call uses, and reserve money for a new explicit cache."""
        lane, request = lane_queue.lane, head.request
        cache = lane.cache
        if cache is None:
            return NOTHING
        creates, cost = False, 0.0
        if cache.explicit is not None and request.cache is not None and request.cache.prefixes:
            tokens = lane.calibration.of(request).input(request.cache.prefixes[-1].tokens)
            cost = lane.max_cost_of_cache(tokens)
            # items of jobs may be the only ones of their job that are sent in real time
            waits = not head.urgent and head.stream is None and not head.submission.options.raw
            # a flex lane knows only the prices of its own tier
            creates = waits and self._config.prefer != "speed" and lane.standard is None
            creates = creates and self._gates.payer(head.own_budget).fits(cost)
        automatic = cache.rules.automatic and not controls_cache(request)
        urgency = self._urgency(lane_queue, head)
        chosen = cache.choose(request.cache, now, automatic=automatic, urgency=urgency, creates=creates)
        if chosen.mark is not None and chosen.mark.explicit == "create":
            self._gates.reserve_more(permit, cost)
        return chosen

    def _lead_of(self, lane: Lane, lane_queue: LaneQueue, head: Ticket, now: float) -> Lead | None:
        """Return the call that writes the prefix of the request, if waiting for it saves more than the time
        is worth.
        """
        cache, mark = lane.cache, head.request.cache
        if cache is None or mark is None or head.urgent or head.stream is not None:
            return None
        return cache.lead_of(mark, now, self._urgency(lane_queue, head))

    def _urgency(self, lane_queue: LaneQueue, head: Ticket) -> Urgency:
        """Return what waiting is worth: nothing is saved if the price is unknown, and the time is worth
        nothing while other requests can be sent.
        """
        config, rates, calls = self._config, lane_queue.lane.rates, self._parallelism.calls
        if rates is None or config.prefer == "speed":
            return Urgency(0.0, math.inf, calls)
        others = lane_queue.others_waiting(head)
        time_value = 0.0 if others > 0 or config.prefer == "cost" else config.time_value / 3600
        return Urgency(rates.bands[0].input, time_value, calls, lane_queue.waiting)

    def _note_resumed(self, lane: Lane, size: int, effects: DeferredEffects) -> None:
        now = effects.now
        if lane.packing_health is not None and size > 1:
            reason = lane.packing_health.resume(now)
            if reason is not None:
                effects.publish_event(PackingChanged(at=now, model=lane.label, enabled=True, reason=reason))
        if lane.standard is not None:
            reason = lane.quota.flex.resume(now)
            if reason is not None:
                effects.publish_event(FlexChanged(at=now, model=lane.label, enabled=True, reason=reason))

    def _fill_locked(self, lane_queue: LaneQueue, head: Ticket, now: float) -> list[Ticket]:
        """Remove the lane's first request and those that share its call, in service order.

        Requests with another batch key or budget, or with a callable of their own, stay. The call is full
        when the next request would exceed its size, its tokens or the budget.
        """
        lane = lane_queue.lane
        lane_queue.take(head)
        tickets = [head]
        tokens, cost = head.input_tokens, head.reserve
        passed: list[Ticket] = []
        room = PackRoom()
        alone = head.alone or lane.packing_paused(now)
        if lane.packing_health is not None and not room.take(*_needs(lane, head)):
            alone = True
        most = 1 if alone else lane.accumulator.window.max_size
        while len(tickets) < most and len(passed) < MAX_PASSED_OVER:
            ticket = lane_queue.pop()
            if ticket is None:
                break
            if not _may_share_call(head, ticket):
                passed.append(ticket)
                continue
            if lane.packing_health is not None and not room.take(*_needs(lane, ticket)):
                passed.append(ticket)
                break
            tokens += ticket.input_tokens
            cost += ticket.reserve
            whole = cost + _frame_cost(lane, [*tickets, ticket])
            if tokens > lane.max_tokens or not self._gates.payer(head.own_budget).fits(whole):
                passed.append(ticket)
                break
            tickets.append(ticket)
        for ticket in passed:
            lane_queue.unpop(ticket)
        return tickets

    def _fail_or_move_locked(self, lane_queue: LaneQueue, head: Ticket, effects: DeferredEffects) -> bool:
        """Fail or move a request that cannot be sent in this lane. Return False if it stays."""
        lane, now = lane_queue.lane, effects.now
        # 1. The slower tier is closed: move the request to the standard lane.
        if lane.standard is not None and not lane.quota.flex.is_open(now):
            self._move_locked(lane_queue, lane.standard, head, now)
            return True
        # 2. Its maximum cost exceeds the remaining budget: fail it.
        short = self._gates.payer(head.own_budget).short(head.reserve)
        if short is not None:
            whole = head.own_budget is None or short is self._gates.budget
            whose = "the budget" if whole else "this list's budget"
            left = money(short.left or 0.0)
            lost = short.unconfirmed
            held = f" ({money(lost)} of it may have been billed for answers that were lost)" if lost else ""
            why = "Raise it or lower max_tokens"
            if short.lease is not None and short.lease.lost:
                why = "The shared store cannot be used"
                why += f": {short.lease.incompatible}" if short.lease.incompatible else ""
            error = BudgetExceeded(
                f"the request could cost up to {money(head.reserve)}, and {left} is left "
                f"of {whose}{held}; nothing was sent. {why}",
            )
            self._router.fail_locked(head, error, effects)
            return True
        # 3. It stays if the breaker is closed, if all gates accept it as a probe, or if the provider refuses
        # the key, the account or the model and the request is to be sent anyway.
        since = lane.provider_health.open_since
        at = now if since is None else self._gates.next_try(lane, _demand(lane, [head]), now)
        if since is None or at <= now or (head.keeps_going and is_refused(lane)):
            return False
        # 4. It stays while a due probe waits for a lease, or while this process has not yet verified an
        # outage that another one reported. Leases arrive soon; without this case, a probe might never be
        # sent.
        leases = at == math.inf and lane.breaker.look(now) <= now and self._gates.waits_for_lease(lane)
        probes_first = leases or lane.breaker.is_unverified(now)
        instead = "wait" if probes_first else self._config.on_breaker_open
        # 5. There is a fallback model: move the request to its lane. Embeddings stay, because vectors of two
        # models cannot be compared.
        if instead == "fallback":
            other = None if head.request.embedding else self._fallback(lane)
            if other is not None and other is not lane:
                self._move_locked(lane_queue, other, head, now)
                return True
        # 6. The provider refuses the key, the account or the model: fail it, because waiting would not help.
        stopped = lane.breaker.stopped(now)
        if stopped is not None:
            self._router.fail_locked(head, _unavailable(lane, str(stopped), stopped), effects)
            return True
        # 7. It has waited too long for the end of the outage, or must not wait: fail it and all older
        # requests.
        failing = [head] if instead == "fail" or self._left(head, since, now) < 0 else []
        if now - since > self._config.outage_patience:
            failing += takewhile(lambda each: self._left(each, since, now) < 0, self._queue.live)
        for ticket in failing:
            if ticket.lane is lane and ticket.state is TicketState.WAITING:
                self._fail_for_outage_locked(ticket, since, effects)
        return head.state is not TicketState.WAITING

    def _fail_for_outage_locked(self, ticket: Ticket, since: float, effects: DeferredEffects) -> None:
        seconds = effects.now - since
        failing = "less than a second" if seconds < 1 else duration(seconds)
        reason = f"it has been failing for {failing} and the circuit breaker is open"
        self._router.fail_locked(ticket, _unavailable(ticket.lane, reason, ticket.last_error), effects)

    def _left(self, ticket: Ticket, since: float, now: float) -> float:
        return self._config.outage_patience - ticket.down_for(since, now)

    def _move_locked(self, lane_queue: LaneQueue, other: Lane, head: Ticket, now: float) -> None:
        lane_queue.take(head)
        head.move(other, priced=self._config.budget is not None or head.own_budget is not None)
        self._queue.lanes[other].put(head, head.due, now)
        self._moved = True

    def _note_changes_locked(self, lane: Lane, effects: DeferredEffects) -> None:
        if lane.provider_health.open_since is not None:
            for change in lane.breaker.changes():
                self._router.note_change(lane, change, effects)

    def _held_back_locked(
        self, lane_queue: LaneQueue, head: Ticket, at: float, effects: DeferredEffects
    ) -> float:
        """Return the time of the next check if a gate is closed until ``at``.

        Returns ``now`` if the first request was failed because waiting would not help.
        """
        lane = lane_queue.lane
        refusal = self._gates.refusal(lane)
        if refusal:
            self._router.fail_locked(
                head, ConfigError(f"{refusal}; nothing was sent: shared_lost = stop"), effects
            )
            return effects.now
        self._gates.note_waiting(lane, lane_queue.waiting, self._parallelism.calls)
        self._note_wait(lane, at, effects)
        return self._end_of_patience(lane, at, effects.now)

    def _note_wait(self, lane: Lane, at: float, effects: DeferredEffects) -> None:
        now = effects.now
        lane.held_until = at
        long = math.isfinite(at) and at > max(now, lane.reported_wait_until) + LONG_WAIT_SECONDS
        if not long or lane.provider_health.open_since is not None:
            return
        lane.reported_wait_until = at
        effects.publish_event(LongWait(at=now, scope=lane.provider.scope, model=lane.label, seconds=at - now))

    def _end_of_patience(self, lane: Lane, at: float, now: float) -> float:
        """Return ``at``, or the earlier time at which a request will have waited too long for the end of an
        outage.
        """
        since = lane.provider_health.open_since
        if since is None:
            return at
        until = since + self._config.outage_patience + 0.001
        if until <= now:  # requests from the beginning of the outage have failed
            tickets = (each for each in self._queue.live if each.lane is lane)
            first = next((each for each in tickets if each.state is TicketState.WAITING), None)
            until = now if first is None else now + self._left(first, since, now) + 0.001
        return min(at, until) if until > now else at


def _demand(lane: Lane, tickets: list[Ticket]) -> Demand:
    given, made = _expected(lane, tickets)
    head, cost = tickets[0], tickets[0].reserve
    if len(tickets) > 1:
        cost = sum([ticket.reserve for ticket in tickets]) + _frame_cost(lane, tickets)
    return Demand(
        tokens=given + made,
        output=made,
        cost=cost,
        first=head.attempts == 0,
        failures=head.retry_count.failures,
        urgent=head.urgent,
        own_budget=head.own_budget,
        keeps_going=head.keeps_going,
    )


def _expected(lane: Lane, tickets: list[Ticket]) -> tuple[float, float]:
    given = made = 0
    for ticket in tickets:
        calibration = lane.calibration.of(ticket.request)
        prompt = calibration.input(ticket.input_tokens)
        given += prompt
        if ticket.tokens > prompt:
            learned = calibration.output(ticket.request.params.max_tokens)
            made += min(ticket.tokens - prompt, learned)
    return float(given), float(made)


def _needs(lane: Lane, ticket: Ticket) -> tuple[int, int]:
    most = ticket.request.params.max_tokens
    return ticket.input_tokens, lane.calibration.of(ticket.request).output(None) if most is None else most


def _frame_cost(lane: Lane, tickets: Sequence[Ticket]) -> float:
    if lane.packing_health is None or lane.rates is None or len(tickets) < 2 or not tickets[0].reserve:
        return 0.0
    return lane.rates.cost(frame_most([ticket.request for ticket in tickets]))


def _may_share_call(head: Ticket, other: Ticket) -> bool:
    together = not other.alone and other.group is head.group and other.own_budget is head.own_budget
    return together and other.batch_key == head.batch_key


def _unavailable(lane: Lane, reason: str, cause: BaseException | None) -> ProviderUnavailable:
    kind = getattr(cause, "kind", None) or ErrorKind.SERVER_ERROR
    return ProviderUnavailable(
        f"{lane.label} cannot be used now, so nothing was sent: {scrub(reason)}",
        kind=kind,
        status=getattr(cause, "status", None),
        code=getattr(cause, "code", None),
    )
