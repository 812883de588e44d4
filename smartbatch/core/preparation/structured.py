"""Structured answers: the object that a model wrote, or why it wrote none, and the request for a repair."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from smartbatch.core.preparation.json_recovery import JsonNotFound, recover_json
from smartbatch.core.preparation.optional_nulls import without_nulls
from smartbatch.core.preparation.plain_schemas import Misfit
from smartbatch.core.preparation.schemas import schema_of
from smartbatch.errors import AnswerUnread, UnusableAnswer, ValidationFailed
from smartbatch.types import WRAPPED, Answer, Generation, Message, Request

TEMPERATURES = (0.0, 0.25, 0.5)
"""Temperatures of the repairs in order, whatever that of the request: first the likeliest answer, then some
variety; further repairs keep the last one."""
READINGS = 3
"""Times an answer is read where an error of our own comes in between."""
MAX_QUOTED = 20_000
"""Characters of a bad answer up to which it is sent back to the model."""


@frozen
class Problem:
    """Why an answer does not fit.

    Attributes:
        message: for errors; says where the schema was broken and nothing of the answer.
        advice: for the model that wrote the answer; may quote it.
        final: True when asking again will not help.
        ours: True for an error of our own, which says nothing about the answer.
    """

    message: str
    advice: str
    final: bool = False
    ours: bool = False

    def error(self, times: str = "", **details: Any) -> UnusableAnswer:
        """Return the error of a result; ``details`` are its attributes."""
        kind = AnswerUnread if self.ours else ValidationFailed
        return kind(f"{self.message}{times}", **details)


@frozen
class Parsed:
    """An answer that fits, as the object made of it."""

    value: Any


def read_answer(params: Generation, text: str | None, finish_reason: str) -> Parsed | Problem:
    """Return the object that an answer stands for, or why it stands for none; never raises.

    An error of our own says nothing about the answer, so the answer is read again, up to :data:`READINGS`
    times, and then kept with the error. The cases, in order:

    1. The model calls tools: ``None``; the answer follows once it has their results.
    2. A schema was asked for: what :func:`check_answer` says.
    3. The provider's own ``response_format`` was asked for: the JSON value in the answer. ``None`` where it
       holds none, since nothing says what has to be in it.
    4. Neither: ``None``.
    """
    for _ in range(READINGS):
        try:
            return _read(params, text, finish_reason)
        except Exception as error:  # ours: those of the user's classes are verdicts
            failure = type(error).__name__
    problem = (
        f"smartbatch itself failed while it read the answer ({failure}), which is kept as text; "
        "please report this as a fault of smartbatch"
    )
    return Problem(problem, problem, final=True, ours=True)


def _read(params: Generation, text: str | None, finish_reason: str) -> Parsed | Problem:
    if finish_reason == "tool_calls":
        return Parsed(None)
    if params.schema is not None:
        return check_answer(*schema_of(params.schema), text, finish_reason)
    if params.response_format is None:
        return Parsed(None)
    try:
        return Parsed(recover_json(text or ""))
    except JsonNotFound:
        return Parsed(None)


def own_object(params: Generation, answer: Answer, value: Any) -> Any:
    """Return an object for one more caller of ``answer``, of which ``value`` was made: no two share one.

    In this order: a copy; where there is none, another one made of the text; and an object of an own function
    that cannot be copied itself, for want of another.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # the user's own classes
        verdict = read_answer(params, answer.text, answer.finish_reason)
        made = verdict.value if isinstance(verdict, Parsed) else None
        return value if made is None else made


def check_answer(
    schema: Mapping[str, Any], build: Callable[[Any], Any], text: str | None, finish_reason: str
) -> Parsed | Problem:
    """Return the object that an answer to a request with a schema stands for, or why it stands for none.

    The cases, in order: the answer did not end by itself (final); it holds no single JSON value; the value is
    not what the schema asks for; it fits. A value that an API wraps into an object counts as it is within,
    and a ``null`` that stands for a property left out is dropped.
    """
    if (final := _ENDS.get(finish_reason)) is not None:
        return Problem(final, final, final=True)
    try:
        value = recover_json(text or "")
    except JsonNotFound as error:
        return Problem(f"the answer is not what the schema asks for: {error}", f"{error}.")
    for form in _forms(schema, value):
        try:
            return Parsed(build(form))
        except Misfit as flaw:
            problem = Problem(flaw.message, flaw.advice)
    return problem


def _forms(schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
    """Yield what an answer may stand for: as it is within its wrapping and with it, each also without the
    nulls that stand for nothing."""
    is_object = schema.get("type") == "object" or "properties" in schema
    wrapped = not is_object and isinstance(value, dict) and set(value) == {WRAPPED}
    for form in (value[WRAPPED], value) if wrapped else (value,):
        yield form
        fewer = without_nulls(schema, form)
        if fewer != form:
            yield fewer


_ENDS = {
    "length": "the answer was cut before it was complete; raise max_tokens",
    "refusal": "the model refused to answer",
    "content_filter": "the provider's content filter stopped the answer",
}
"""Finish reasons after which a repair does not help, with the message."""


def repair_request(
    request: Request,
    answer_text: str,
    problem: Problem,
    attempt: int,
    *,
    takes_temperature: bool = False,
) -> Request:
    """Return the request that asks again, with the bad answer and what is wrong with it.

    Args:
        takes_temperature: whether the provider takes a temperature with this model.
    """
    prompt = request.prompt
    asked = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    if answer_text.strip() and len(answer_text) <= MAX_QUOTED:
        asked = (*asked, Message("assistant", answer_text))
    told = (
        f"Your answer cannot be used: {problem.advice} "
        "Answer again with the whole corrected JSON value that follows the schema, and nothing else."
    )
    params = request.params
    if takes_temperature:
        temperature = TEMPERATURES[min(attempt, len(TEMPERATURES) - 1)]
        extra = {name: value for name, value in (params.extra or {}).items() if name != "temperature"}
        params = evolve(params, temperature=temperature, extra=extra or None)
    return evolve(request, prompt=(*asked, Message("user", told)), params=params)
