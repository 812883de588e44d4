"""Turns each answer into a result (successful or failed) or a retry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import frozen

from smartbatch.core.batching.request_batch import Batch
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.structured import Parsed, Problem, own_object, read_answer, repair_request
from smartbatch.errors import MissingAnswer, ProviderError, UnusableAnswer, ValidationFailed
from smartbatch.realtime.call import Call, CallSpec, Outcome
from smartbatch.realtime.effects import answered, share_of
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.ticket import Ticket, Waiter
from smartbatch.types import Answer, Request, Result, Route, answer_fields, evolve

NO_TEMPERATURE = ("temperature", "the model accepts no temperature, so the answer was repaired without one")


@frozen
class Repair:
    """A follow-up request for an answer that does not fit its schema."""

    request: Request
    error: UnusableAnswer


@frozen
class Shares:
    """One result per waiter, after the hooks; results share no objects."""

    results: Mapping[Waiter, Result]

    def refused(self) -> list[Waiter]:
        """Return the waiters whose result was turned into a failure by a hook."""
        return [waiter for waiter, result in self.results.items() if result.error is not None]


Reading: TypeAlias = "Result | Shares | Repair | ProviderError"
"""An error is passed on, because the router decides whether to retry."""


class AnswerReader:
    """Creates results from answers. Takes no lock, because a worker uses it only while it owns the tickets of
    a call.
    """

    def __init__(
        self, setup: RealtimeSetup, queue: RequestQueue, keep: Callable[[bytes, Answer], object] | None
    ) -> None:
        self._validation_retries = setup.config.validation_retries
        self._hooks = setup.hooks
        self._queue = queue
        self._keep = keep

    def read(
        self, batch: Batch[Ticket, Outcome], ticket: Ticket, answer: Answer, seconds: float, route: Route
    ) -> Result | Shares | Repair:
        """Check an answer and create the results of its waiters.

        The provider's answer is shared and cached. Middleware and hooks run once per waiter, in the waiter's
        context; hooks do not run for raw results.
        """
        # 1. The answer does not fit the request: retry, or return a failed result if no tries are left.
        verdict = _validated(ticket, answer, self._validation_retries)
        if isinstance(verdict, Repair):
            return verdict
        # an internal error does not make the answer unsound
        is_sound = not isinstance(verdict, ValidationFailed)
        if is_sound and self._keep is not None and not answer.kept:
            key = _cache_key(ticket)
            if key is not None:
                self._keep(key, answer)
        if isinstance(verdict, UnusableAnswer):
            result = answered(ticket, answer, seconds=seconds, parsed=None, route=route)
            return evolve(result, error=verdict)
        result = answered(ticket, answer, seconds=seconds, parsed=verdict.value, route=route)
        # 2. The answer is text and there are no hooks or middleware: return one result for all waiters,
        # because more may join before the call ends.
        replay = ticket.lane.replay
        if result.parsed is None and self._hooks.post_process is None and replay is None:
            return result
        # 3. Otherwise, create one result per waiter before any hook runs, and pass each to the hooks.
        params = ticket.submission.request.params
        shares: dict[Waiter, Result] = {}
        for waiter in self._queue.close_to_others(ticket):
            own = result
            if shares and replay is not None:
                under = waiter.variables.copy().run
                own = under(_replayed, replay, batch, ticket, waiter, result)
            elif shares:
                own = evolve(result, parsed=own_object(params, answer, result.parsed))
            shares[waiter] = share_of(waiter, own, pays=not shares)
        process = self._hooks.process
        return Shares(
            {
                each: own if each.raw or not own.ok else each.variables.copy().run(process, own)
                for each, own in shares.items()
            }
        )


def _validated(ticket: Ticket, answer: Answer, retries: int) -> Parsed | Repair | UnusableAnswer:
    """Return the object in ``answer``, a repair, or the error.

    Repairs are counted per request, separately from retries.
    """
    params = ticket.request.params
    if answer.value is not None:
        return Parsed(answer.value)
    verdict = read_answer(params, answer.text, answer.finish_reason)
    if isinstance(verdict, Parsed):
        return verdict
    tried = ticket.repairs
    times = f" ({tried + 1} answers)" if tried else ""
    error = verdict.error(
        times,
        text=answer.text,
        finish_reason=answer.finish_reason,
        tries=tried + 1,
        usage=ticket.usage,
    )
    if verdict.final or tried >= retries or ticket.stream is not None:  # a stream has already been delivered
        return error
    was_dropped = any(field == "temperature" for field, _ in answer.dropped)
    takes_temperature = not was_dropped and _takes_temperature(ticket)
    if not takes_temperature and not was_dropped:
        ticket.dropped = (NO_TEMPERATURE,)
    request = repair_request(
        ticket.submission.request, answer.text or "", verdict, tried, takes_temperature=takes_temperature
    )
    return Repair(request, error)


def _replayed(
    replay: Call, batch: Batch[Ticket, Outcome], ticket: Ticket, waiter: Waiter, result: Result
) -> Result:
    """Run the middleware for another waiter, in that waiter's context."""
    asked = waiter.request
    request = evolve(ticket.request, id=asked.id, context=asked.context, priority=asked.priority)
    spec = CallSpec(batch, (request,), ticket.lane.label, max(0, ticket.attempts - 1), math.inf)
    outcome = replay(spec)[0]
    if not isinstance(outcome, Answer):
        return evolve(result, text=None, parsed=None, embedding=None, error=outcome or MissingAnswer())
    verdict: Parsed | Problem = Parsed(outcome.value)
    if outcome.value is None:
        verdict = read_answer(request.params, outcome.text, outcome.finish_reason)
    error = None
    if isinstance(verdict, Problem):
        error = verdict.error(text=outcome.text, finish_reason=outcome.finish_reason)
    parsed = verdict.value if isinstance(verdict, Parsed) else None
    return evolve(result, **answer_fields(outcome), parsed=parsed, error=error)


def _cache_key(ticket: Ticket) -> bytes | None:
    """Return the cache key for the model that answered, which may be the fallback."""
    submission, lane = ticket.submission, ticket.lane
    asked = submission.lane
    if submission.cache_key is None or (lane.provider is asked.provider and lane.model == asked.model):
        return submission.cache_key
    return fingerprint(submission.request, lane.model, lane.provider.scope)


def _takes_temperature(ticket: Ticket) -> bool:
    """Whether the model accepts a temperature: if it does not, the request has 1 or none."""
    given = ticket.submission.request.params.temperature
    return given not in (None, 1) or ticket.lane.provider.takes_temperature(ticket.lane.model)
