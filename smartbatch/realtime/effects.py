"""Effects that are decided under the monitor and performed after it: futures to complete, events to send."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from functools import partial

from attrs import define, field

from smartbatch.errors import SmartbatchError, UnusableAnswer, after_refusal, named
from smartbatch.events import Event, ParameterDropped, RequestFinished, RequestSubmitted
from smartbatch.realtime.in_flight import Bill, ticket_bill
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.shared_quota import SharedQuota
from smartbatch.realtime.ticket import Ticket, Waiter
from smartbatch.types import NO_USAGE, Answer, Request, Result, Route, answer_fields, evolve, own_parts


@define(eq=False, repr=False)
class DeferredEffects:
    queue: RequestQueue  # a stop waits until the futures are complete
    now: float  # time of the decision, monotonic seconds
    settlements: list[tuple[Waiter, Result]] = field(factory=list)
    # events, or functions that create them, with their context
    events: list[tuple[Event | Callable[[], Event], Context | None]] = field(factory=list)
    # quotas of calls that were never made; other requests may be waiting for them
    freed: list[SharedQuota] = field(factory=list)
    # called at the end; must neither block nor raise
    later: list[Callable[[], object]] = field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.settlements or self.events or self.freed or self.later)

    def publish_event(self, event: Event, waiter: Waiter | None = None) -> None:
        """Queue an event, to be sent in the context of its waiter."""
        self.events.append((event, None if waiter is None else waiter.variables.copy()))

    def answer(self, ticket: Ticket, waiters: list[Waiter], result: Result) -> None:
        """Complete ``waiters`` with one result. The first one is charged; the others cost nothing."""
        for position, waiter in enumerate(waiters):
            self._settle(ticket, waiter, share_of(waiter, result, pays=position == 0))

    def answer_each(self, ticket: Ticket, waiters: list[Waiter], results: Mapping[Waiter, Result]) -> None:
        for position, waiter in enumerate(waiters):
            result = results[waiter]
            if position == 0 and result.deduplicated:  # the waiter that was to pay timed out
                paid = ticket_bill(ticket)
                result = evolve(
                    result,
                    usage=ticket.usage,
                    cost=paid.cost,
                    unconfirmed_cost=paid.unconfirmed,
                    deduplicated=False,
                )
            if result.error is not None:
                result = evolve(result, error=named(result.error, waiter.request_id))
            self._settle(ticket, waiter, result)

    def fail(
        self,
        ticket: Ticket,
        waiters: list[Waiter],
        error: SmartbatchError,
        refused: Result | None = None,
    ) -> None:
        """Fail ``waiters`` with an error that names each request.

        The error keeps the text of a refused answer, because it was paid for, and gives both reasons if a
        later try failed differently. The first waiter pays for all tries, unless another waiter of the ticket
        remains.
        """
        left = any(waiter not in waiters and not waiter.future.cancelled() for waiter in ticket.waiters)
        last = error if isinstance(error, UnusableAnswer) else ticket.refused
        if refused is None and last is not None:
            refused = Result("", text=last.text, finish_reason=last.finish_reason)
            error = error if last is error else after_refusal(error, last)
        kept, paid = refused or Result(""), ticket_bill(ticket)
        kept = kept if kept.dropped else evolve(kept, dropped=ticket.dropped)
        usage = evolve(ticket.usage, unknown=True) if ticket.calling and paid.unconfirmed else ticket.usage
        attempts = ticket.attempts + ticket.calling
        begun = ticket.started if attempts else self.now
        seconds = self.now - ticket.started if ticket.calling else ticket.seconds
        for position, waiter in enumerate(waiters):
            first = position == 0 and not left
            own = named(error, waiter.request_id)
            own.attempts, own.route = attempts, ticket.route
            result = Result(
                request_id=waiter.request_id,
                parsed=kept.parsed,
                error=own,
                usage=usage if first else NO_USAGE,
                cost=paid.cost if first else 0.0,
                unconfirmed_cost=paid.unconfirmed if first else 0.0,
                latency=seconds,
                attempts=attempts,
                route=ticket.route,
                queued=max(0.0, begun - waiter.submitted),
                time_to_first_chunk=_first_chunk(ticket),
                model=ticket.lane.label,
                context=waiter.request.context,
                deduplicated=waiter.joined and not first,
                **answer_fields(kept),
            )
            self._settle(ticket, waiter, result)

    def cancelled(self, ticket: Ticket, waiter: Waiter) -> None:
        paid = Bill() if ticket.waiters else ticket_bill(ticket)
        result = Result(
            request_id=waiter.request_id,
            cost=paid.cost,
            unconfirmed_cost=paid.unconfirmed,
            attempts=ticket.attempts,
            queued=self.now - waiter.submitted,
            deduplicated=waiter.joined,
        )
        self._publish_end(ticket, waiter, result, cancelled=True)

    def perform(self, publish_event: Callable[[Event], None]) -> None:
        """Complete the futures, call the sinks, then send the events. No lock may be held."""
        begun = 0
        try:
            for waiter, result in self.settlements:
                begun += 1
                waiter.end(result)
            for found, variables in self.events:
                event = found if isinstance(found, Event) else found()
                if variables is None:
                    publish_event(event)
                else:
                    variables.run(publish_event, event)
        except BaseException:
            # Ctrl-C on a user's thread, for example: complete the other futures and repeat the interrupted
            # one, which has no effect if it is complete. No event is sent.
            for waiter, result in self.settlements[max(0, begun - 1) :]:
                waiter.end(result)
            raise
        finally:
            if self.settlements:
                self.queue.mark_completed(self)
            for quota in self.freed:
                quota.wake_others(self.queue)
            for each in self.later:
                each()

    def _settle(self, ticket: Ticket, waiter: Waiter, result: Result) -> None:
        self.queue.settling[self] = None
        self.settlements.append((waiter, result))
        if result.dropped:
            for dropped in parameters_dropped(waiter.request, result, self.now):
                self.publish_event(dropped, waiter)
        self._publish_end(ticket, waiter, result)

    def _publish_end(
        self, ticket: Ticket, waiter: Waiter, result: Result, *, cancelled: bool = False
    ) -> None:
        model, submitted = ticket.lane.label, waiter.submitted
        make = partial(
            request_finished, waiter.request, result, model, self.now, submitted, of_job=waiter.raw
        )
        end = evolve(make(), ok=False, cancelled=True) if cancelled else make
        self.events.append((end, waiter.variables.copy()))


def parameters_dropped(request: Request, result: Result, now: float) -> Iterator[ParameterDropped]:
    for name, reason in result.dropped:
        yield ParameterDropped(
            at=now,
            request_id=result.request_id,
            purpose=request.purpose,
            context=request.context,
            field=name,
            reason=reason,
        )


def request_submitted(
    request: Request, request_id: str, model: str, now: float, *, joined: bool
) -> RequestSubmitted:
    return RequestSubmitted(
        at=now,
        request_id=request_id,
        purpose=request.purpose,
        context=request.context,
        priority=request.priority,
        model=model,
        joined=joined,
    )


def request_finished(
    request: Request, result: Result, model: str, now: float, submitted: float, *, of_job: bool
) -> RequestFinished:
    error = result.error
    return RequestFinished(
        at=now,
        request_id=result.request_id,
        purpose=request.purpose,
        context=request.context,
        priority=request.priority,
        model=model,
        ok=error is None,
        cancelled=False,
        error=None if error is None else (error.kind.value if error.kind else type(error).__name__),
        attempts=result.attempts,
        queued=result.queued,
        seconds=now - submitted,
        usage=result.usage,
        cost=result.cost,
        unconfirmed_cost=result.unconfirmed_cost,
        route=result.route,
        deduplicated=result.deduplicated,
        of_job=of_job,
        message=None if error is None else error.message,
    )


def share_of(waiter: Waiter, result: Result, *, pays: bool) -> Result:
    """Return the waiter's share of a result created for the first waiter of its ticket.

    It has the waiter's own id, context and vector, and costs nothing unless the waiter ``pays``.
    """
    own_id, context = waiter.request_id, waiter.request.context
    if pays:
        if result.request_id == own_id and result.context is context:
            return result
        return evolve(result, request_id=own_id, context=context)
    return evolve(
        result,
        **own_parts(result),
        request_id=own_id,
        usage=NO_USAGE,
        cost=0.0,
        unconfirmed_cost=0.0,
        context=context,
        deduplicated=True,
    )


def answered(ticket: Ticket, answer: Answer, *, seconds: float, parsed: object, route: Route) -> Result:
    waiter = next(iter(ticket.waiters), None)  # one step, because a timeout may empty the list at any moment
    paid = ticket_bill(ticket)
    submitted = waiter.submitted if waiter else ticket.started
    whole = ticket.stream is not None and not ticket.stream.begun  # delivered as one chunk, at the end
    return Result(
        request_id=ticket.request_id,
        parsed=parsed,
        usage=ticket.usage,
        cost=paid.cost,
        unconfirmed_cost=paid.unconfirmed,
        latency=seconds,
        queued=max(0.0, ticket.started - submitted),
        time_to_first_chunk=seconds if whole else _first_chunk(ticket, seconds),
        attempts=ticket.attempts,
        route=route,
        model=ticket.lane.label,
        context=waiter.request.context if waiter else None,
        **{**answer_fields(answer), "dropped": (*answer.dropped, *ticket.dropped)},
    )


def _first_chunk(ticket: Ticket, most: float = math.inf) -> float | None:
    stream = ticket.stream
    return min(most, stream.first_at - ticket.started) if stream is not None and stream.begun else None
