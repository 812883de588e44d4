"""Reading structured answers: the object, the error, or the request that asks once more."""

from __future__ import annotations

from attrs import frozen

from smartbatch.core.preparation.structured import Parsed, read_answer, repair_request
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.errors import ValidationFailed
from smartbatch.realtime.ticket import Ticket
from smartbatch.types import Answer, Request

__all__ = ["Repair", "Validation", "resize"]


@frozen
class Repair:
    """An answer that does not fit, and how to ask again.

    Attributes:
        request: what is sent next.
        error: what the request fails with when it cannot be sent.
    """

    request: Request
    error: ValidationFailed


class Validation:
    """Decides what becomes of answers to requests with a schema.

    Args:
        retries: further tries of one request; they are its own and not those of the network.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries

    def read(self, ticket: Ticket, answer: Answer) -> Parsed | Repair | ValidationFailed:
        """Return what ``answer`` stands for. Called by the worker that owns ``ticket``; no lock is needed."""
        params = ticket.request.params
        if answer.value is not None:
            return Parsed(answer.value)
        if params.schema is not None and answer.finish_reason == "tool_calls":
            return Parsed(None)
        verdict = read_answer(params, answer.text, answer.finish_reason)
        if isinstance(verdict, Parsed):
            return verdict
        tried = ticket.repairs
        times = f" ({tried + 1} answers)" if tried else ""
        error = ValidationFailed(
            f"{verdict.message}{times}",
            finish_reason=answer.finish_reason,
            tries=tried + 1,
            usage=ticket.usage,
        )
        if verdict.final or tried >= self._retries or ticket.stream is not None:  # what was streamed is out
            return error
        request = repair_request(
            ticket.submission.request,
            answer.text or "",
            verdict,
            tried,
            takes_temperature=_takes_temperature(ticket, answer),
        )
        return Repair(request, error)


def resize(ticket: Ticket, request: Request) -> None:
    """Let ``ticket`` carry ``request`` from now on: a longer one, so it needs more of tokens and money."""
    before = ticket.input_tokens
    ticket.request = request
    ticket.input_tokens = estimate_request(request)
    calibration = ticket.lane.calibration
    ticket.tokens += calibration.input(ticket.input_tokens) - calibration.input(before)
    # What is reserved is at most so much larger as the input is: the output's part stays the same.
    ticket.reserve *= max(1.0, ticket.input_tokens / max(1, before))


def _takes_temperature(ticket: Ticket, answer: Answer) -> bool:
    if any(field == "temperature" for field, _ in answer.dropped):
        return False
    own = ticket.submission.request.params.temperature is not None  # it was taken a moment ago
    return own or ticket.lane.provider.takes_temperature(ticket.lane.model)
