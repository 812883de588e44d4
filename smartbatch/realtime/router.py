"""The router: it turns what came back from a call into what becomes of each of its requests.

That is one of: done; again at a time; again alone; on in another lane; failed. The router loops over the
requests, never over the answers: a request that has no answer is sent again, alone.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import define

from smartbatch.core.batching.window import Batch, BatchState
from smartbatch.core.limits.breaker import BreakerState, Transition
from smartbatch.core.limits.quota import Cooldown
from smartbatch.core.limits.retry import RetryPolicy, decide
from smartbatch.core.limits.suspension import PackingHealth
from smartbatch.errors import ErrorKind, MissingAnswer, ProviderError, SmartbatchError, ValidationFailed
from smartbatch.events import BreakerChanged, CooldownStarted, FlexChanged, PackingChanged, RetryScheduled
from smartbatch.realtime.accounting import account, route_of, sum_cost, sum_usage
from smartbatch.realtime.answer_validation import Repair, Validation, resize
from smartbatch.realtime.call.layers import Outcome
from smartbatch.realtime.effects import DeferredEffects, PostProcess, answered, processed
from smartbatch.realtime.gates import Change, Ending, Gates, Permit, Used
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.ticket import Ticket, TicketState, latest_start
from smartbatch.types import Answer, Result, Route, evolve

__all__ = ["InFlightCall", "PostProcess", "ResponseRouter"]

UNAVAILABLE = frozenset({502, 503, 504, 529})
"""HTTP statuses that speak of the provider's state and not of the request."""

HEALTH_FAILURES = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR})
"""Failures that the breaker counts."""
SPOILED = frozenset(
    {ErrorKind.CLIENT_ERROR, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.INVALID_RESPONSE, ErrorKind.UNKNOWN}
)
"""Failures of a shared call that one of its requests alone may have caused."""
PERMANENT = frozenset({ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY})
"""Failures that waiting does not end."""
STOP_SECONDS = 30.0
"""How long nothing is sent after such a failure; then one request may try."""


class FlexRefusal(enum.Enum):
    """Why a request leaves the slower tier, in the words of the event that tells of it."""

    FULL = "the flex tier has no capacity"
    DECLINED = "the flex tier was refused for this model"
    REJECTED = "requests were refused in the flex tier"
    """For a reason that may be their own: then they are refused at the standard price too, and not billed."""
    LATE = "the flex tier does not answer within call_timeout"


Reading: TypeAlias = "Result | Repair | ProviderError"
"""What an outcome means for one request, before the queue has a say: its result, failed or not; a further try
for an answer that does not fit; or the error, after which a further try is still to be decided."""


@define(eq=False)
class InFlightCall:
    """A batch whose call is under way, from its permit to its routing. Owned by one worker.

    Attributes:
        started: when the call began, monotonic seconds; until then when the permit was taken.
    """

    batch: Batch[Ticket]
    permit: Permit
    started: float


class ResponseRouter:
    """Decides what becomes of the tickets of a call. Methods that end in ``_locked`` need the monitor.

    Args:
        queue: whose tickets it ends or lets wait again.
        gates: told how calls ended.
        policy: when, and how often, a failed request is tried again.
        patience: seconds that requests wait for the end of an outage.
        post_process: called with each answered result.
        keep: gives an answer to the cache.
        rng: random numbers for jitter.
        validation_retries: further tries for an answer that does not fit its schema.
    """

    def __init__(
        self,
        queue: RequestQueue,
        gates: Gates,
        policy: RetryPolicy,
        *,
        patience: float,
        post_process: PostProcess | None,
        keep: Callable[[bytes, Answer], object] | None = None,
        rng: random.Random,
        validation_retries: int = 0,
    ) -> None:
        self._queue = queue
        self._gates = gates
        self._policy = policy
        self._patience = patience
        self._post_process = post_process
        self._keep = keep
        self._validation = Validation(validation_retries)
        self._rng = rng

    def prepare(self, call: InFlightCall, outcomes: Sequence[Outcome], now: float) -> list[Reading]:
        """Add up usage and cost and read the answers; the worker owns the tickets, so it needs no lock."""
        size = len(call.batch)
        seconds = now - call.started
        readings: list[Reading] = []
        for ticket, outcome in zip(call.batch.items, outcomes, strict=True):
            ticket.attempts += 1
            account(ticket, outcome)
            if isinstance(outcome, Answer):
                readings.append(self._read(ticket, outcome, seconds, route_of(ticket.lane, outcome, size)))
            else:
                readings.append(MissingAnswer() if outcome is None else outcome)
        return readings

    def _read(self, ticket: Ticket, answer: Answer, seconds: float, route: Route) -> Result | Repair:
        """Return what an answer makes of its request: a result, failed or not, or a further try."""
        verdict = self._validation.read(ticket, answer)
        if isinstance(verdict, Repair):
            return verdict
        if isinstance(verdict, ValidationFailed):
            result = answered(ticket, answer, seconds=seconds, parsed=None, route=route)
            return evolve(result, error=verdict)
        cache_key = ticket.submission.keys.cache
        if self._keep is not None and cache_key is not None:
            self._keep(cache_key, answer)
        result = answered(ticket, answer, seconds=seconds, parsed=verdict.value, route=route)
        if self._post_process is None or ticket.submission.delivery.raw:
            return result
        return processed(self._post_process, result)

    def route_locked(
        self,
        call: InFlightCall,
        outcomes: Sequence[Outcome],
        readings: Sequence[Reading],
        now: float,
        effects: DeferredEffects,
    ) -> None:
        """Decide what becomes of every ticket of ``call``.

        First what concerns the call as a whole, in order: the permit ends (and with it what limits, breaker,
        budget and token estimates learn), packing is judged, and a call that failed for what one of its
        requests may have caused is sent again in two halves. Then, for each ticket that is still in flight:

        1. Its answer does not fit its schema: again, or fail (:meth:`_repair_or_fail`).
        2. It has an error: again, on in another lane, or fail (:meth:`_again_or_fail`).
        3. It has a result that a hook or the schema made a failed one: fail.
        4. It has a result: done.
        """
        batch = call.batch
        batch.move(BatchState.PROCESSING_RESPONSE)
        lane = call.permit.lane
        lane.finished(len(batch), now - call.started, now)
        self._end_permit(call, outcomes, now, effects)
        spoiled = _spoiled(outcomes)
        if lane.packing_health is not None and len(batch) > 1:
            self._judge_packing(lane, lane.packing_health, outcomes, spoiled is not None, now, effects)
        if spoiled is not None:
            self._bisect(batch, spoiled, now, effects)
        for ticket, reading in zip(batch.items, readings, strict=True):
            if ticket.state is not TicketState.IN_FLIGHT:
                continue  # its time-out ended during the call, or it goes again with its half
            if isinstance(reading, Repair):
                self._repair_or_fail(ticket, reading, now, effects)
            elif isinstance(reading, ProviderError):
                self._again_or_fail(lane, ticket, reading, now, effects)
            elif reading.error is not None:
                self.fail_locked(ticket, reading.error, now, effects)
            else:
                waiters = self._queue.end_locked(ticket, ok=True)
                effects.answer(ticket, waiters, reading, now)
        answers = any(isinstance(outcome, Answer) for outcome in outcomes)
        batch.move(BatchState.COMPLETED if answers else BatchState.FAILED)

    def _judge_packing(
        self,
        lane: Lane,
        health: PackingHealth,
        outcomes: Sequence[Outcome],
        refused: bool,
        now: float,
        effects: DeferredEffects,
    ) -> None:
        """Count how a pack went; what the provider could not carry out at all says nothing about packing."""
        missing = sum(isinstance(outcome, MissingAnswer) for outcome in outcomes)
        if refused or missing or any(isinstance(outcome, Answer) for outcome in outcomes):
            size = len(outcomes)
            reason = health.observe(now, size, size if refused else missing)
            if reason is not None:
                effects.events.append(PackingChanged(at=now, model=lane.label, enabled=False, reason=reason))

    def _bisect(
        self, batch: Batch[Ticket], error: ProviderError, now: float, effects: DeferredEffects
    ) -> None:
        """Send both halves of a shared call again, apart: one of its requests made it fail for all.

        A call of n with one bad request ends after at most 2 log2 n further calls, and no request is charged
        a try for the failure of another.
        """
        middle = (len(batch) + 1) // 2
        for half in (batch.items[:middle], batch.items[middle:]):
            group = object()
            for ticket in half:
                if ticket.state is TicketState.IN_FLIGHT and not ticket.final:
                    ticket.group = group
                    ticket.alone = len(half) == 1
                    self._reschedule(ticket, error, 0.0, False, now, effects)

    def _repair_or_fail(self, ticket: Ticket, repair: Repair, now: float, effects: DeferredEffects) -> None:
        """Send a request whose answer does not fit once more, with what was wrong; through all gates."""
        if ticket.final:
            self.fail_locked(ticket, repair.error, now, effects)
            return
        ticket.repairs += 1
        resize(ticket, repair.request)
        ticket.alone = ticket.lane.shares
        ticket.last_error = repair.error
        ticket.charged = False  # the provider did nothing wrong
        self._queue.again_locked(ticket, now, now)
        effects.events.append(
            RetryScheduled(
                at=now,
                request_id=ticket.request_id,
                model=ticket.lane.label,
                kind="validation",
                attempt=ticket.attempts,
                delay=0.0,
                counted=False,
            )
        )

    def give_up_locked(
        self, call: InFlightCall, error: SmartbatchError, now: float, effects: DeferredEffects
    ) -> None:
        """Fail what an error of this library left in flight, and end its permit."""
        if not call.permit.ended:
            self._gates.end(call.permit, Ending.IGNORED, now)
        for ticket in call.batch.items:
            if ticket.state is TicketState.IN_FLIGHT:
                self.fail_locked(ticket, error, now, effects)

    def drop_locked(
        self, call: InFlightCall, error: SmartbatchError, now: float, effects: DeferredEffects
    ) -> None:
        """Fail the requests of a call that was never made."""
        self._unmake(call, now, effects)
        for ticket in call.batch.items:
            self.fail_locked(ticket, error, now, effects)

    def return_locked(self, call: InFlightCall, now: float, effects: DeferredEffects) -> None:
        """Let the requests of a call that was never made wait again."""
        self._unmake(call, now, effects)
        for ticket in call.batch.items:
            self._queue.again_locked(ticket, now, now)

    def _unmake(self, call: InFlightCall, now: float, effects: DeferredEffects) -> None:
        """Give back all that was taken for a call that was never made."""
        lane = call.permit.lane
        self._gates.end(call.permit, Ending.DROPPED, now)
        effects.freed.append(lane.quota)
        lane.finished(len(call.batch), 0.0, now)
        call.batch.move(BatchState.FAILED)

    def fail_locked(
        self, ticket: Ticket, error: SmartbatchError, now: float, effects: DeferredEffects
    ) -> None:
        """End ``ticket`` with ``error``."""
        waiters = self._queue.end_locked(ticket, ok=False)
        effects.fail(ticket, waiters, error, now)

    def _again_or_fail(
        self, lane: Lane, ticket: Ticket, error: ProviderError, now: float, effects: DeferredEffects
    ) -> None:
        """Decide what becomes of a request without an answer. The cases, in order:

        1. The slower tier refused it: it goes on in the standard lane; at once and uncounted, unless the
           tier worked for it until the time-out.
        2. A shared answer lacks it: again at once, alone. Only a provider that shares calls itself is to
           blame for that; of a packed prompt no retry is counted.
        3. The policy allows no further try, an outage has lasted too long, or the request must not be sent
           again (cancelled, or partly streamed): fail. If the provider never answered anybody, what failed is
           rather an address than a service, and the lane is stopped, so that others do not wait for it.
        4. Again after its backoff; alone from its second counted failure on, in case it causes them.
        """
        refusal = flex_refusal(lane, error)
        if refusal is not None:
            _move_to_standard(ticket)
            if refusal is not FlexRefusal.LATE and not ticket.final:
                self._reschedule(ticket, error, 0.0, False, now, effects, kind="flex")
                return
        if isinstance(error, MissingAnswer) and not ticket.alone and not ticket.final:
            ticket.alone = True
            self._reschedule(ticket, error, 0.0, lane.packing_health is None, now, effects)
            return
        outage = self._is_outage(lane, error)
        retry = decide(
            self._policy, error.kind, ticket.retry_count, error.retry_after, outage=outage, rng=self._rng
        )
        health, stream = lane.provider_health, ticket.stream
        too_long = outage and health.open_since is not None and now - health.open_since > self._patience
        last = ticket.final or (stream is not None and stream.final)
        health.answered = health.answered or (stream is not None and stream.begun)
        if retry is None or too_long or last:
            self.fail_locked(ticket, error, now, effects)
            if error.kind is ErrorKind.NETWORK_ERROR and not health.answered:
                self._stop(lane, error, now, effects)
            return
        if len(ticket.waiters) and error.kind is not ErrorKind.RATE_LIMIT and not outage:
            ticket.alone = ticket.alone or (ticket.lane.shares and ticket.retry_count.counted > 1)
        if health.answered and lane.breaker.state is not BreakerState.CLOSED:
            # Behind the others, so that the next probe is another request: one that always fails
            # must not keep the breaker open for all.
            ticket.key = latest_start(now, ticket.request.priority, ticket.deadline)
        self._reschedule(ticket, error, retry.delay, retry.counted, now, effects)

    def _reschedule(
        self,
        ticket: Ticket,
        error: ProviderError,
        delay: float,
        counted: bool,
        now: float,
        effects: DeferredEffects,
        kind: str | None = None,
    ) -> None:
        ticket.last_error = error
        ticket.charged = counted
        self._queue.again_locked(ticket, now + delay, now)
        effects.events.append(
            RetryScheduled(
                at=now,
                request_id=ticket.request_id,
                model=ticket.lane.label,
                kind=kind or error.kind.value,
                attempt=ticket.attempts,
                delay=delay,
                counted=counted,
                maybe_billed=error.maybe_billed,
            )
        )

    def _is_outage(self, lane: Lane, error: ProviderError) -> bool:
        """Whether the failure is the provider's state, known to the breaker, and not the request's."""
        if lane.breaker.state is BreakerState.CLOSED:
            return False
        if error.kind is ErrorKind.NETWORK_ERROR:
            return lane.provider_health.answered and not error.maybe_billed
        return error.kind is ErrorKind.SERVER_ERROR and error.status in UNAVAILABLE

    def _end_permit(
        self, call: InFlightCall, outcomes: Sequence[Outcome], now: float, effects: DeferredEffects
    ) -> None:
        lane = call.permit.lane
        ending, worst = _ending(outcomes)
        if worst is not None and flex_refusal(lane, worst) is not None:
            ending = Ending.IGNORED  # it is the slower tier's state: no limit, and no outage of the model
        if not isinstance(worst, ProviderError) or worst.status is not None:
            lane.provider_health.answered = True
        usage = sum_usage(outcomes)
        used = Used(
            tokens=usage.total_tokens if usage is not None else None,
            output=usage.output_tokens if usage is not None else None,
            cost=sum_cost(lane, outcomes),
            maybe_billed=worst is not None and worst.maybe_billed and usage is None,
            retry_after=worst.retry_after if worst is not None else None,
            limits=next((out.limits for out in outcomes if out is not None and out.limits), None),
        )
        changes = self._gates.end(call.permit, ending, now, used)
        if isinstance(worst, ProviderError) and worst.kind in PERMANENT:
            self._stop(lane, worst, now, effects)
        if usage is not None and ending is Ending.SUCCESS and not _is_own_call(call.batch):
            for ticket, outcome in zip(call.batch.items, outcomes, strict=True):
                if isinstance(outcome, Answer) and outcome.usage is not None:
                    lane.calibration.observe(ticket.input_tokens, outcome.usage)
        for change in changes:
            self.note_change(lane, change, now, effects)
        _judge_flex(lane, worst, now, effects)

    def _stop(self, lane: Lane, error: ProviderError, now: float, effects: DeferredEffects) -> None:
        """Send nothing more for a while: the next request would only meet the same error."""
        transition = lane.breaker.stop(error, now, now + STOP_SECONDS)
        if transition is not None:
            self.note_change(lane, transition, now, effects)

    def note_change(self, lane: Lane, change: Change, now: float, effects: DeferredEffects) -> None:
        """Remember a change of the breaker or a new cooldown, and tell of it."""
        if isinstance(change, Cooldown):
            if change.fresh and change.seconds > 0:  # others tell of the same cooldown again
                effects.events.append(
                    CooldownStarted(
                        at=now,
                        scope=lane.provider.scope,
                        model=lane.label,
                        seconds=change.seconds,
                        consecutive=change.consecutive,
                    )
                )
            return
        assert isinstance(change, Transition)
        if change.after is BreakerState.CLOSED:
            lane.provider_health.open_since = None
        elif lane.provider_health.open_since is None:
            lane.provider_health.open_since = now
        effects.events.append(
            BreakerChanged(
                at=now,
                model=lane.label,
                before=change.before.value,
                after=change.after.value,
                reason=change.reason,
                pause=max(0.0, lane.breaker.look(now) - now) if change.after is BreakerState.OPEN else 0.0,
            )
        )


def _ending(outcomes: Sequence[Outcome]) -> tuple[Ending, ProviderError | None]:
    """Return how the call as a whole ended, and the error that says so."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, ProviderError)]
    if len(errors) < len(outcomes):
        return Ending.SUCCESS, None
    first = errors[0]
    if first.kind is ErrorKind.RATE_LIMIT:
        return Ending.REFUSED, first
    return (Ending.FAILURE if first.kind in HEALTH_FAILURES else Ending.IGNORED), first


def _spoiled(outcomes: Sequence[Outcome]) -> ProviderError | None:
    """Return the error of a shared call that failed as a whole for what was in it, or ``None``."""
    first = outcomes[0]
    whole = len(outcomes) > 1 and all(outcome is first for outcome in outcomes)
    return first if whole and isinstance(first, ProviderError) and first.kind in SPOILED else None


def _is_own_call(batch: Batch[Ticket]) -> bool:
    return batch.items[0].request.call is not None


def flex_refusal(lane: Lane, error: ProviderError) -> FlexRefusal | None:
    """Return why a request that failed in ``lane`` goes to the standard lane; ``None`` when it does not."""
    if lane.tier is None:
        return None
    if lane.tier.full(error):
        return FlexRefusal.FULL
    if lane.tier.declines(error):
        return FlexRefusal.DECLINED
    if error.kind is ErrorKind.CLIENT_ERROR:
        return FlexRefusal.REJECTED
    return FlexRefusal.LATE if error.kind is ErrorKind.TIMEOUT else None


def _move_to_standard(ticket: Ticket) -> None:
    """Let ``ticket`` wait at the standard price from now on, for which its money was reserved."""
    assert ticket.lane.standard is not None
    ticket.lane = ticket.lane.standard
    ticket.batch_key = ticket.lane.batch_key(ticket.request)


def _judge_flex(lane: Lane, error: ProviderError | None, now: float, effects: DeferredEffects) -> None:
    """Count how a call in the slower tier went, and tell when the tier is left alone from now on.

    Args:
        lane: any lane; of a standard one nothing is counted.
        error: of the whole call; ``None`` for one that was answered.
        now: monotonic seconds.
        effects: takes the event.
    """
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
        reason = health.refused(now, refusal.value, in_flight=lane.in_flight, permanent=permanent)
    if reason is not None:
        effects.events.append(FlexChanged(at=now, model=lane.label, enabled=False, reason=reason))
