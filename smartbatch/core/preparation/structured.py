"""Builds the object from a structured answer or finds out why there is none, and creates repair requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.json_recovery import JsonNotFound, recover_json
from smartbatch.core.preparation.json_schemas import Misfit
from smartbatch.errors import AnswerUnread, UnusableAnswer, ValidationFailed
from smartbatch.types import WRAPPER_PROPERTY, Answer, Generation, Message, Request


def without_nulls(schema: Mapping[str, Any], value: Any) -> Any:
    """Remove the nulls that stand for omitted properties.

    Some APIs require every property, so optional properties become nullable, and models write ``null``
    to omit one. If the schema does not allow that null, the property is dropped, and its default
    applies.
    """
    return _Cleaning(schema).cleaned([schema], value) if _has_null(value) else value


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(item is None or _has_null(item) for item in value.values())
    return isinstance(value, list) and any(map(_has_null, value))


class _Cleaning:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def cleaned(self, schemas: Iterable[Any], value: Any) -> Any:
        """Return the part ``value`` of an answer, which follows one of ``schemas``, without those nulls."""
        leaves = list(self._leaves(schemas, set()))
        if isinstance(value, list):
            return [
                self.cleaned([part for leaf in leaves for part in _items(leaf, i)], item)
                for i, item in enumerate(value)
            ]
        if not isinstance(value, dict):
            return value
        objects = [leaf for leaf in leaves if isinstance(leaf.get("properties"), Mapping)]
        objects = [each for each in objects if self._may_be(each, value)] or objects
        cleaned: dict[str, Any] = {}
        for name, item in value.items():
            owners = [each for each in objects if name in each["properties"]]
            parts = [each["properties"][name] for each in owners]
            optional = any(name not in each.get("required", ()) for each in owners)
            if item is None and optional and not self._takes_null(parts):
                continue
            further = [leaf["additionalProperties"] for leaf in leaves if "additionalProperties" in leaf]
            cleaned[name] = self.cleaned(parts or further, item)
        return cleaned

    def _leaves(self, schemas: Iterable[Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that a value may follow, with references and alternatives resolved."""
        for schema in schemas:
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if isinstance(target := schema.get("$ref"), str):
                yield from self._leaves([self._target(target)], seen)
            for word in ("anyOf", "oneOf", "allOf"):
                yield from self._leaves(schema.get(word, ()), seen)

    def _target(self, target: str) -> Any:
        found: Any = self._root
        for part in target.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _may_be(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
        """Whether ``value`` agrees with the fixed values that tell the branches of a union apart."""
        for name, part in schema["properties"].items():
            if name in value:
                fixed = [values for leaf in self._leaves([part], set()) if (values := _fixed(leaf))]
                if fixed and not any(value[name] in values for values in fixed):
                    return False
        return True

    def _takes_null(self, schemas: Iterable[Any]) -> bool:
        leaves = list(self._leaves(schemas, set()))
        return not leaves or any(
            None in _fixed(leaf)
            or "null" in _listed(leaf.get("type"))
            or not {"type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf"} & set(leaf)
            for leaf in leaves
        )


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _fixed(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _listed(schema.get("enum", []))


def _items(schema: Mapping[str, Any], position: int) -> Iterator[Any]:
    first = schema.get("prefixItems", ())
    if position < len(first):
        yield first[position]
    elif "items" in schema:
        yield schema["items"]


REPAIR_TEMPERATURES = (0.0, 0.25, 0.5)
"""Temperatures of successive repairs, which replace the request's own: the first favors the most likely
answer, the others some variety. Further repairs use the last one.
"""
MAX_READINGS = 3  # attempts to read an answer if smartbatch itself fails
MAX_QUOTED_CHARACTERS = 20_000  # maximum length of a bad answer that is sent back to the model


@frozen
class Problem:
    message: str  # for errors; names the place in the schema but quotes nothing from the answer
    advice: str  # for the model that wrote the answer; may quote it
    final: bool = False  # a repair will not help
    internal: bool = False  # an error inside smartbatch

    def error(self, times: str = "", **details: Any) -> UnusableAnswer:
        """Create the error for a result; ``details`` become its attributes."""
        kind = AnswerUnread if self.internal else ValidationFailed
        return kind(f"{self.message}{times}", **details)


@frozen
class Parsed:
    """The object made from a valid answer."""

    value: Any


def read_answer(params: Generation, text: str | None, finish_reason: str) -> Parsed | Problem:
    """Return the object in an answer, or the problem with it; never raises.

    If smartbatch itself fails, the answer is read again, up to :data:`MAX_READINGS` times, and then kept
    as text with the error.
    """
    for _ in range(MAX_READINGS):
        try:
            return _read(params, text, finish_reason)
        except Exception as error:  # exceptions of the user's classes are handled as flaws; this one is not
            failure = type(error).__name__
    problem = (
        f"smartbatch itself failed to read the answer ({failure}), which is kept as text; "
        "please report this as a bug in smartbatch"
    )
    return Problem(problem, problem, final=True, internal=True)


def _read(params: Generation, text: str | None, finish_reason: str) -> Parsed | Problem:
    # 1. The model calls tools: there is no object until it has their results.
    if finish_reason == "tool_calls":
        return Parsed(None)
    # 2. A schema: the checked object.
    if params.schema is not None:
        return check_answer(*schema_of(params.schema), text, finish_reason)
    # 3. Neither a schema nor a response format: no object.
    if params.response_format is None:
        return Parsed(None)
    # 4. The provider's own ``response_format``: the JSON value, if any, unchecked.
    try:
        return Parsed(recover_json(text or ""))
    except JsonNotFound:
        return Parsed(None)


def own_object(params: Generation, answer: Answer, value: Any) -> Any:
    """Return an object for another caller of ``answer``, so that callers do not share ``value``.

    It is a copy of ``value`` or, if that cannot be copied, another object made from the text. If neither
    is possible, as for an object from the user's own function, it is ``value`` itself.
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
    """Check an answer to a request with a schema.

    A value that an API wraps in an object is unwrapped, and a ``null`` that stands for an omitted
    property is dropped.
    """
    # 1. The answer is incomplete: a repair does not help.
    if (final := _FINAL_PROBLEMS.get(finish_reason)) is not None:
        return Problem(final, final, final=True)
    # 2. It has to contain exactly one JSON value.
    try:
        value = recover_json(text or "")
    except JsonNotFound as error:
        return Problem(f"the answer does not follow the schema: {error}", f"{error}.")
    # 3. The value has to follow the schema.
    for form in _forms(schema, value):
        try:
            return Parsed(build(form))
        except Misfit as flaw:
            problem = Problem(flaw.message, flaw.advice)
    return problem


def _forms(schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
    """Yield the possible readings of an answer: first without its wrapper, then with it, each also without
    optional nulls.
    """
    is_object = schema.get("type") == "object" or "properties" in schema
    wrapped = not is_object and isinstance(value, dict) and set(value) == {WRAPPER_PROPERTY}
    for form in (value[WRAPPER_PROPERTY], value) if wrapped else (value,):
        yield form
        fewer = without_nulls(schema, form)
        if fewer != form:
            yield fewer


# finish reasons after which a repair does not help
_FINAL_PROBLEMS = {
    "length": "the answer was truncated; raise max_tokens",
    "refusal": "the model refused to answer",
    "content_filter": "the provider's content filter stopped the answer",
}


def repair_request(
    request: Request,
    answer_text: str,
    problem: Problem,
    attempt: int,
    *,
    takes_temperature: bool = False,
) -> Request:
    """Create a repair request with the bad answer and its problem.

    ``takes_temperature`` means that the provider accepts a temperature with this model.
    """
    prompt = request.prompt
    asked = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    if answer_text.strip() and len(answer_text) <= MAX_QUOTED_CHARACTERS:
        asked = (*asked, Message("assistant", answer_text))
    instruction = (
        f"Your answer cannot be used: {problem.advice} "
        "Answer again with the whole corrected JSON value that follows the schema, and nothing else."
    )
    params = request.params
    if takes_temperature:
        temperature = REPAIR_TEMPERATURES[min(attempt, len(REPAIR_TEMPERATURES) - 1)]
        extra = {name: value for name, value in (params.extra or {}).items() if name != "temperature"}
        params = evolve(params, temperature=temperature, extra=extra or None)
    return evolve(request, prompt=(*asked, Message("user", instruction)), params=params)
