"""The router decides whether each request of a call is complete, failed or retried.

A retry is sent later, alone or in another lane. The router loops over the requests, not over the answers: a
request without an answer is sent again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smartbatch.core.batching.request_batch import Batch, BatchState
from smartbatch.core.limits.circuit_breaker import FOLLOWED_OUTAGE, BreakerState, Transition
from smartbatch.core.limits.cooldown import Cooldown, PackingHealth
from smartbatch.core.limits.failures import (
    caused_by_one,
    is_for_all,
    is_network,
    is_page,
    is_unavailable,
    is_unhealthy,
    retry_kind,
)
from smartbatch.core.limits.retry import Circumstances, RetryCount, RetryPolicy, decide
from smartbatch.core.preparation.answer_length import SHAPES
from smartbatch.errors import (
    MissingAnswer,
    ParameterRejected,
    ProviderError,
    SmartbatchError,
)
from smartbatch.events import (
    BreakerChanged,
    CachingStopped,
    CooldownStarted,
    FlexChanged,
    PackingChanged,
    ParameterDropped,
    PriceUnknown,
    RetryScheduled,
)
from smartbatch.realtime.answer_reader import AnswerReader, Reading, Repair, Shares
from smartbatch.realtime.call import Outcome
from smartbatch.realtime.effects import DeferredEffects
from smartbatch.realtime.gates import Change, Ending, Gates, is_refused
from smartbatch.realtime.in_flight import (
    CallBill,
    FlexRefusal,
    InFlightCall,
    add_to_ticket,
    end_of,
    flex_refusal,
    is_from_cache,
    route_of,
)
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.ticket import Ticket, TicketState, latest_start
from smartbatch.types import Answer, Request, Result

_USUAL_FAILURE_SHARE = 0.05
_RECENT_SUCCESS_SECONDS = 10.0
"""If most requests fail, a success this recent still shows that the provider works."""
_STOP_SECONDS = 30.0
"""Pause after a failure that would affect every request. Then one request is sent as a probe."""


class ResponseRouter:
    """Decides what happens to the tickets of a call. Methods ending in ``_locked`` require the monitor.

    Args:
        keep: stores an answer in the cache.
        fallback: returns the lane of the fallback model for a lane, or ``None``.
    """

    def __init__(
        self,
        setup: RealtimeSetup,
        queue: RequestQueue,
        gates: Gates,
        keep: Callable[[bytes, Answer], object] | None,
        fallback: Callable[[Lane], Lane | None],
    ) -> None:
        config = setup.config
        self._config = config
        self._fallback = fallback
        self._queue = queue
        self._gates = gates
        self._policy = RetryPolicy(
            retries=config.retries,
            initial=config.retry_initial,
            multiplier=config.retry_multiplier,
            max_delay=config.retry_max_delay,
        )
        self._patience = config.outage_patience
        self._falls_back = config.on_breaker_open == "fallback"
        self._reader = AnswerReader(setup, queue, keep)
        self._rng = setup.rng
        self._unpriced: set[str] = set()  # models whose price is unknown, as reported

    def prepare(self, call: InFlightCall, now: float) -> list[Reading]:
        """Determine how the call ended, add up usage and cost, update token estimates, and read the answers.

        The worker owns the tickets, so no lock is needed.
        """
        tickets = call.batch.items
        size = len(tickets)
        call.end = end = end_of(call)
        learns = tickets[0].request.call is None and end.ending is Ending.SUCCESS
        seconds = now - call.started
        readings: list[Reading] = []
        for ticket, outcome, cost in zip(tickets, call.batch.outcomes, call.bill.parts, strict=True):
            ticket.attempts += not is_from_cache(outcome)
            ticket.seconds = seconds
            ticket.route = route = route_of(ticket.lane, outcome, size)
            add_to_ticket(ticket, outcome, cost)
            if isinstance(outcome, Answer):
                if learns and outcome.usage is not None:
                    shape = SHAPES.of(ticket.submission.request.params).key
                    learned = call.permit.lane.calibration.of(ticket.request)
                    learned.observe(ticket.input_tokens, outcome.usage, shape)
                readings.append(self._reader.read(call.batch, ticket, outcome, seconds, route))
            else:
                readings.append(MissingAnswer() if outcome is None else outcome)
        return readings

    def end_quota(self, call: InFlightCall, now: float) -> None:
        """Report the end of ``call`` to the limits, which have their own lock."""
        end = end_of(call) if call.end is None else call.end
        self._gates.end_quota(call.permit, end.ending, now, end.used)

    def route_locked(self, call: InFlightCall, readings: Sequence[Reading], effects: DeferredEffects) -> None:
        """Decide what happens to every ticket of ``call``.

        First the permit ends, which updates limits, breaker, budget and token estimates, and packing is
        evaluated. If the server rejected a parameter, the call is repeated without it. If a single request
        may have made the call fail, the call is repeated in two halves.
        """
        batch, lane = call.batch, call.permit.lane
        outcomes = batch.outcomes
        lane.finished(batch.id, len(outcomes), effects.now - call.started, effects.now)
        self._end_permit(call, effects)
        self._end_caching(call, effects)
        spoiled = caused_by_one(outcomes)
        if lane.packing_health is not None and len(outcomes) > 1:
            self._judge_packing(lane, lane.packing_health, outcomes, spoiled is not None, effects)
        if isinstance(outcomes[0], ParameterRejected):
            self._send_without_parameter(batch.items, outcomes[0], effects)
        elif spoiled is not None:
            self._bisect(batch, spoiled, effects)
        any_answer = False
        for ticket, reading in zip(batch.items, readings, strict=True):
            any_answer = any_answer or not isinstance(reading, ProviderError)
            if ticket.state is not TicketState.IN_FLIGHT:
                continue  # it timed out during the call, or was queued again above
            # 1. Its answer does not fit its schema: send it again or fail it.
            if isinstance(reading, Repair):
                self._repair_or_fail(ticket, reading, effects)
            # 2. It has an error: send it again, perhaps in another lane, or fail it.
            elif isinstance(reading, ProviderError):
                self._again_or_fail(call, ticket, reading, effects)
            # 3. Each waiter has its own result, which a hook may have turned into a failure.
            elif isinstance(reading, Shares):
                waiters = self._queue.end_locked(ticket, ok=True, refused=reading.refused())
                effects.answer_each(ticket, waiters, reading.results)
            # 4. All waiters share one result, either failed by its schema or successful.
            elif reading.error is not None:
                self.fail_locked(ticket, reading.error, effects, reading)
            else:
                waiters = self._queue.end_locked(ticket, ok=True)
                effects.answer(ticket, waiters, reading)
        batch.close(answered=any_answer)

    def _judge_packing(
        self,
        lane: Lane,
        health: PackingHealth,
        outcomes: Sequence[Outcome],
        refused: bool,
        effects: DeferredEffects,
    ) -> None:
        missing = sum(isinstance(outcome, MissingAnswer) for outcome in outcomes)
        if refused or missing or any(isinstance(outcome, Answer) for outcome in outcomes):
            size = len(outcomes)
            reason = health.observe(effects.now, size, size if refused else missing)
            if reason is not None:
                effects.publish_event(
                    PackingChanged(at=effects.now, model=lane.label, enabled=False, reason=reason)
                )

    def _bisect(self, batch: Batch[Ticket, Outcome], error: ProviderError, effects: DeferredEffects) -> None:
        """Send the two halves of a shared call again separately, because one request made the call fail.

        One bad request among n takes at most 2 log2 n further calls, and the other requests lose no tries.
        """
        middle = (len(batch) + 1) // 2
        for half in (batch.items[:middle], batch.items[middle:]):
            for ticket in self._grouped(half):
                ticket.alone = len(half) == 1
                self._again(ticket, error, error.kind.value, effects)

    def _send_without_parameter(
        self, tickets: Sequence[Ticket], error: ParameterRejected, effects: DeferredEffects
    ) -> None:
        """Send the requests of a call again immediately and together.

        The server processed nothing, and the provider now omits the parameter that the server rejected.
        """
        for ticket in self._grouped(tickets):
            self._again(ticket, error, "parameter", effects)
            waiter = next(iter(ticket.waiters), None)
            asked = ticket.submission.request if waiter is None else waiter.request
            for name, reason in error.omitted:
                effects.publish_event(
                    ParameterDropped(
                        at=effects.now,
                        request_id=ticket.request_id,
                        purpose=asked.purpose,
                        context=asked.context,
                        field=name,
                        reason=reason,
                    ),
                    waiter,
                )

    def _grouped(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Return the tickets that may be sent again, and let them share their next call."""
        again = [each for each in tickets if each.state is TicketState.IN_FLIGHT and not each.final]
        group = object()
        for ticket in again:
            ticket.group = group if len(tickets) > 1 else ticket.group
        return again

    def _repair_or_fail(self, ticket: Ticket, repair: Repair, effects: DeferredEffects) -> None:
        if ticket.final:
            self.fail_locked(ticket, repair.error, effects)
            return
        ticket.repairs += 1
        ticket.refused = repair.error
        _resize(ticket, repair.request)
        ticket.alone = ticket.lane.shares
        # not counted as a failed try, because the provider is not at fault
        self._again(ticket, repair.error, "validation", effects)

    def give_up_locked(self, call: InFlightCall, error: ProviderError, effects: DeferredEffects) -> None:
        """Fail the requests that an internal error left in flight, and end the call's permit."""
        if not call.permit.ended:
            self._gates.end(call.permit, Ending.IGNORED, effects.now, end_of(call).used)
        self._end_caching(call, effects)
        if not call.batch.ended:
            call.batch.fail(error)
        for ticket in call.batch.items:
            if ticket.state is TicketState.IN_FLIGHT:
                self.fail_locked(ticket, error, effects)

    def drop_locked(self, call: InFlightCall, error: SmartbatchError, effects: DeferredEffects) -> None:
        self._give_back(call, effects)
        for ticket in call.batch.items:
            self.fail_locked(ticket, error, effects)

    def return_locked(self, call: InFlightCall, effects: DeferredEffects) -> None:
        self._give_back(call, effects)
        for ticket in call.batch.items:
            self._queue.requeue_locked(ticket, effects.now, effects.now)

    def _give_back(self, call: InFlightCall, effects: DeferredEffects) -> None:
        lane = call.permit.lane
        self._gates.end(call.permit, Ending.DROPPED, effects.now)
        self._end_caching(call, effects)
        effects.freed.append(lane.quota)
        lane.finished(call.batch.id, len(call.batch), 0.0, effects.now)
        call.batch.move(BatchState.FAILED)

    def fail_locked(
        self,
        ticket: Ticket,
        error: SmartbatchError,
        effects: DeferredEffects,
        refused: Result | None = None,
    ) -> None:
        """End ``ticket`` with ``error``. ``refused`` is its unusable answer."""
        waiters = self._queue.end_locked(ticket, ok=False)
        effects.fail(ticket, waiters, error, refused)

    def _again_or_fail(
        self, call: InFlightCall, ticket: Ticket, error: ProviderError, effects: DeferredEffects
    ) -> None:
        lane = call.permit.lane
        # 1. The flex tier refused the request: move it to the standard lane immediately. This counts as a try
        # only if the tier worked on it until the timeout.
        refusal = flex_refusal(lane, error)
        if refusal is not None:
            assert lane.standard is not None  # the reservation uses the standard price
            ticket.lane = lane.standard
            ticket.batch_key = lane.standard.batch_key(ticket.request)
            if refusal is not FlexRefusal.LATE and not ticket.final:
                self._again(ticket, error, "flex", effects)
                return
        # 2. A shared answer omits this request: send it again immediately and alone. This counts as a try
        # only if the provider itself shares calls.
        if isinstance(error, MissingAnswer) and not ticket.alone and not ticket.final:
            ticket.alone = True
            self._again(ticket, error, error.kind.value, effects, counted=lane.packing_health is None)
            return
        stream = ticket.stream
        last = ticket.final or (stream is not None and stream.final)
        # 3. The request received the error or web page that stopped the lane, and there is a fallback model:
        # send it to that model without counting a try. Other failures in a stopped lane count, because they
        # may have been billed. Step 4 handles requests with keeps_going, which would return to this lane.
        met_by_all = is_for_all(error) or is_page(error)
        stopped = lane.breaker.stopped(effects.now) is not None and not ticket.keeps_going
        if self._falls_back and not last and met_by_all and stopped:
            self._again(ticket, error, error.kind.value, effects)
            return
        seen = self._circumstances(call, error, effects.now, ticket.keeps_going)
        kind = retry_kind(error)
        count = ticket.retry_count
        retry = decide(self._policy, kind, count, error.retry_after, self._rng, seen)
        health = lane.provider_health
        too_long = (
            seen.held_by_breaker
            and health.open_since is not None
            and ticket.down_for(health.open_since, effects.now) > self._patience
        )
        health.answered = health.answered or (stream is not None and stream.begun)
        # 4. No try is left, or an outage has lasted too long: send the request to the fallback model, if
        # there is one, with a new number of tries.
        # 5. There is no fallback model, or the request must not be repeated because it was cancelled or
        # partly streamed: fail it. If the provider has never answered, its address may be wrong: stop the
        # lane, so that other requests do not wait for it.
        if retry is None or too_long or last:
            other = None if last else self._fallback_for(ticket, error)
            if other is None:
                self.fail_locked(ticket, error, effects)
            else:
                ticket.move(other, priced=self._config.budget is not None or ticket.own_budget is not None)
                ticket.retry_count = RetryCount()
                self._again(ticket, error, error.kind.value, effects)
            if is_network(error) and not health.answered:
                self._stop(lane, error, effects)
            return
        # 6. Send it again after its delay. After its second failure it is sent alone, because it may be the
        # cause.
        if count.failures > 1:
            ticket.alone = ticket.alone or ticket.lane.shares
        if health.answered and (count.failures > 1 or lane.breaker.state is not BreakerState.CLOSED):
            # queued after the others, so that a request that always fails neither delays them nor serves as
            # every probe
            ticket.key = latest_start(effects.now, ticket.request.priority, ticket.deadline)
        self._again(ticket, error, error.kind.value, effects, retry.delay, counted=retry.counted)

    def _fallback_for(self, ticket: Ticket, error: ProviderError) -> Lane | None:
        """Return the lane of the fallback model for a request that its own model cannot answer.

        There is none for embeddings, because vectors of two models cannot be compared, nor for a user's
        function, which would only be called once more.
        """
        request = ticket.request
        outage = is_unhealthy(error) or is_for_all(error)
        if not self._falls_back or not outage or request.embedding is not None or request.call is not None:
            return None
        other = self._fallback(ticket.lane)
        return None if other is ticket.lane else other

    def _again(
        self,
        ticket: Ticket,
        error: SmartbatchError,
        kind: str,
        effects: DeferredEffects,
        delay: float = 0.0,
        *,
        counted: bool = False,
    ) -> None:
        ticket.last_error = error
        self._queue.requeue_locked(ticket, effects.now + delay, effects.now)
        waiter = next(iter(ticket.waiters), None)
        asked = ticket.submission.request if waiter is None else waiter.request
        effects.publish_event(
            RetryScheduled(
                at=effects.now,
                request_id=ticket.request_id,
                purpose=asked.purpose,
                context=asked.context,
                model=ticket.lane.label,
                kind=kind,
                attempt=ticket.attempts,
                delay=delay,
                counted=counted,
                maybe_billed=isinstance(error, ProviderError) and error.maybe_billed,
            ),
            waiter,
        )

    def _circumstances(
        self, call: InFlightCall, error: ProviderError, now: float, keeps_going: bool
    ) -> Circumstances:
        """Describe how other calls fared while ``call`` was in flight.

        A request with ``keeps_going`` ignores a breaker that opened because the provider refuses requests.
        """
        lane = call.permit.lane
        breaker = lane.breaker
        passing = breaker.passed_at >= call.started
        if breaker.failure_share > _USUAL_FAILURE_SHARE:
            # with so many failures, a moment without a success is normal
            passing = passing or breaker.passed_at >= now - _RECENT_SUCCESS_SECONDS or breaker.run_is_usual
        return Circumstances(
            unavailable=is_unavailable(error, answered=lane.provider_health.answered, passed=breaker.passed),
            maybe_billed=error.maybe_billed,
            outage=breaker.state is not BreakerState.CLOSED and not (keeps_going and is_refused(lane)),
            passing=passing,
            failure_share=breaker.failure_share if breaker.passed else 0.0,
            latency=lane.throttle.latency,
        )

    def _end_permit(self, call: InFlightCall, effects: DeferredEffects) -> None:
        lane = call.permit.lane
        end = end_of(call) if call.end is None else call.end
        worst = end.worst
        if end.ending is not Ending.DROPPED and (worst is None or worst.status is not None):
            lane.provider_health.answered = True
        # 1. Update the limits and the budget with the actual usage, and the breaker with the outcome.
        changes = self._gates.end(call.permit, end.ending, effects.now, end.used)
        # 2. An error that would affect every request stops the lane, unless a call succeeded in the meantime.
        if worst is not None and is_for_all(worst) and lane.breaker.passed_at < call.started:
            self._stop(lane, worst, effects)
        # 3. A web page was returned before any call has succeeded: the address may be wrong.
        if worst is not None and is_page(worst) and not lane.breaker.passed:
            self._check_address(lane, worst, effects)
        for change in changes:
            self.note_change(lane, change, effects)
        _judge_flex(lane, worst, effects)
        self._report_unknown_price(lane, call.bill, effects)

    def _end_caching(self, call: InFlightCall, effects: DeferredEffects) -> None:
        """Let other requests read the entries that the call has written, and learn whether caching works."""
        lane = call.permit.lane
        if lane.cache is None:
            return
        answered = any(isinstance(outcome, Answer) and not outcome.kept for outcome in call.batch.outcomes)
        usage = call.bill.usage if answered else None
        for stopped in lane.cache.ended(call.cached, call.started, usage):
            effects.publish_event(
                CachingStopped(
                    at=effects.now,
                    model=lane.label,
                    prefix=stopped.prefix.key,
                    tokens=stopped.prefix.tokens,
                    reason=stopped.reason,
                    batch=False,
                )
            )
        if (release := lane.release_unneeded_caches()) is not None:
            effects.later.append(release)

    def _report_unknown_price(self, lane: Lane, bill: CallBill, effects: DeferredEffects) -> None:
        known = bill.cost is not None or bill.usage is None or bill.unconfirmed > 0
        if known or lane.provider.own_code or lane.label in self._unpriced:
            return
        self._unpriced.add(lane.label)
        effects.publish_event(PriceUnknown(at=effects.now, model=lane.label, batch=False))

    def _check_address(self, lane: Lane, error: ProviderError, effects: DeferredEffects) -> None:
        # 1. The first web page: send only probes. An answer to a call in flight proves the address right.
        if lane.breaker.state is BreakerState.CLOSED:
            reason = "a web page was returned before any answer"
            self.note_change(lane, lane.breaker.open(reason, effects.now, self._rng), effects)
        # 2. A probe returned a web page as well: stop the lane.
        elif lane.breaker.state is BreakerState.HALF_OPEN:
            self._stop(lane, error, effects)

    def _stop(self, lane: Lane, error: ProviderError, effects: DeferredEffects) -> None:
        transition = lane.breaker.stop(error, effects.now, effects.now + _STOP_SECONDS)
        if transition is not None:
            self.note_change(lane, transition, effects)

    def note_change(self, lane: Lane, change: Change, effects: DeferredEffects) -> None:
        """Apply a change of the breaker or a new cooldown, and report it."""
        if isinstance(change, Cooldown):
            if change.fresh and change.seconds > 0:  # otherwise it was reported before
                lane.reported_wait_until = effects.now + change.seconds
                effects.publish_event(
                    CooldownStarted(
                        at=effects.now,
                        scope=lane.provider.scope,
                        model=lane.label,
                        seconds=change.seconds,
                        consecutive=change.consecutive,
                    )
                )
            return
        assert isinstance(change, Transition)
        lease = lane.quota.quota.lease
        if (
            lease is not None
            and change.reason != FOLLOWED_OUTAGE
            and lane.breaker.stopped(effects.now) is None
        ):
            if change.after is BreakerState.CLOSED:
                lease.report_outage(begins=False)
            elif change.before is BreakerState.CLOSED:
                lease.report_outage(begins=True)
        if change.after is BreakerState.CLOSED:
            lane.provider_health.open_since = None
        elif lane.provider_health.open_since is None:
            lane.provider_health.open_since = effects.now
        pause = lane.breaker.look(effects.now) - effects.now if change.after is BreakerState.OPEN else 0.0
        effects.publish_event(
            BreakerChanged(
                at=effects.now,
                model=lane.label,
                before=change.before.value,
                after=change.after.value,
                reason=change.reason,
                pause=max(0.0, pause),
            )
        )


def _judge_flex(lane: Lane, error: ProviderError | None, effects: DeferredEffects) -> None:
    if lane.tier is None:
        return
    with lane.quota.lock:
        health = lane.quota.flex
        if error is None:
            health.answered()
            return
        refusal = flex_refusal(lane, error)
        if refusal is None:
            return
        permanent = refusal is FlexRefusal.DECLINED
        reason = health.refused(effects.now, refusal.value, in_flight=lane.in_flight, permanent=permanent)
    if reason is not None:
        effects.publish_event(FlexChanged(at=effects.now, model=lane.label, enabled=False, reason=reason))


def _resize(ticket: Ticket, request: Request) -> None:
    """Replace the ticket's request with one that needs more tokens and money."""
    before = ticket.input_tokens
    ticket.request = request
    calibration = ticket.lane.calibration.of(request)
    ticket.input_tokens = calibration.estimate(request)
    ticket.tokens += calibration.input(ticket.input_tokens) - calibration.input(before)
    ticket.reserve = ticket.lane.demand(request, ticket.input_tokens, priced=ticket.reserve > 0)[1]
