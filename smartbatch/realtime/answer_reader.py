"""What an answer makes of its request: a result, failed or not, or a further try."""

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

NO_TEMPERATURE = ("temperature", "the model takes no temperature, so the answer was repaired without one")
"""What is left out of a repair, and why."""


@frozen
class Repair:
    """An answer that does not fit its schema, and how to ask again.

    Attributes:
        request: what is sent next.
        error: what the request fails with when it cannot be sent.
    """

    request: Request
    error: UnusableAnswer


@frozen
class Shares:
    """The results of all who asked for one answer, each with objects of its own and after the hooks."""

    results: Mapping[Waiter, Result]

    def refused(self) -> list[Waiter]:
        """Return those whose result a hook made a failed one."""
        return [waiter for waiter, result in self.results.items() if result.error is not None]


Reading: TypeAlias = "Result | Shares | Repair | ProviderError"
"""What an outcome means for one request, before the queue has a say: its result, failed or not, or those of
all who asked for it; a further try for an answer that does not fit; or the error, after which a further try
is still to be decided."""


class AnswerReader:
    """Reads answers. A worker does so while it owns the tickets of a call, so it needs no lock.

    Args:
        setup: what all parts share.
        queue: told that nobody may join a request any more.
        keep: gives an answer to the cache.
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
        """Return what an answer makes of its request: a result, failed or not, or a further try. In order:

        1. It does not fit what was asked for: a further try, or a failed result where there is none left.
        2. A text that nothing of the user's wants to see: one result, handed out when the ticket ends.
        3. Otherwise a result for each who waits, made before any hook runs, and then put through the hooks.

        What is shared and kept is what the provider said: whoever asked has an object of its own, and the
        middleware and the hooks run for each with its own context; the hooks not for those who get their
        result raw. In case 2 others may join until the ticket ends.
        """
        verdict = _validated(ticket, answer, self._validation_retries)
        if isinstance(verdict, Repair):
            return verdict
        is_sound = not isinstance(verdict, ValidationFailed)  # an error of our own is no verdict
        if is_sound and self._keep is not None and not answer.kept:
            key = _cache_key(ticket)
            if key is not None:
                self._keep(key, answer)
        if isinstance(verdict, UnusableAnswer):
            result = answered(ticket, answer, seconds=seconds, parsed=None, route=route)
            return evolve(result, error=verdict)
        result = answered(ticket, answer, seconds=seconds, parsed=verdict.value, route=route)
        replay = ticket.lane.replay
        if result.parsed is None and self._hooks.post_process is None and replay is None:
            return result
        params = ticket.submission.request.params
        shares: dict[Waiter, Result] = {}
        for waiter in self._queue.close_to_others(ticket):  # all are made before a hook may change one
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
    """Return what ``answer`` stands for: an object, or the request that asks once more, or the error.

    Further tries for an answer that does not fit are a request's own, and not those of the network.
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
    if verdict.final or tried >= retries or ticket.stream is not None:  # what was streamed is out
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
    """Return ``result`` as the middleware makes it for one more who asked, with its own context."""
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
    """Return where the cache keeps the answer of ``ticket``: under the model that gave it.

    That is not the one that was asked where the fallback took over.
    """
    submission, lane = ticket.submission, ticket.lane
    asked = submission.lane
    if submission.cache_key is None or (lane.provider is asked.provider and lane.model == asked.model):
        return submission.cache_key
    return fingerprint(submission.request, lane.model, lane.provider.scope)


def _takes_temperature(ticket: Ticket) -> bool:
    """Whether a repair may set a temperature. A model that takes only its own was given 1, or none."""
    given = ticket.submission.request.params.temperature
    return given not in (None, 1) or ticket.lane.provider.takes_temperature(ticket.lane.model)
