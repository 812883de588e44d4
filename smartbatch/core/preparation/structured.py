"""Structured answers: the JSON in what a model wrote, whether it fits its schema, and the request for a
repair.

Nothing is guessed that could change an answer's meaning: of several objects none is chosen, and a truncated
answer is never completed.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn

from attrs import evolve, frozen

from smartbatch._values import Value
from smartbatch.core.preparation.json_snapshot import MAX_DEPTH
from smartbatch.core.preparation.keywords import MAX_FLAWS, KnownFlaws, bounded
from smartbatch.core.preparation.patterns import PatternError, compiled
from smartbatch.core.preparation.schemas import schema_of
from smartbatch.types import Answer, Generation, Message, Request

TEMPERATURES = (0.0, 0.25, 0.5)
"""Temperatures of the repairs in order, where the request has none: first the likeliest answer, then some
variety; then the last one stays."""
STEP, HIGHEST = 0.25, 1.0
"""By how much each repair is above the temperature that the request has, up to one that every provider
takes."""
MAX_QUOTED = 20_000
"""Characters of a bad answer up to which it is sent back to the model."""
SEARCHED = 2_000_000
"""Characters of an answer up to which JSON is looked for inside it; a longer one has to be JSON itself."""
REPAIRABLE = 5_000
"""Characters of a broken answer up to which it is repaired. The time of json-repair grows with the square of
stray quotes and brackets: a third of a second at this size, minutes for 200,000 characters."""


class JsonNotFound(ValueError):
    """The text holds no JSON value, or more than one; the message repeats nothing of the text."""


@frozen(eq=False, repr=False)
class Problem(Value):
    """Why an answer does not fit.

    Attributes:
        message: for errors; says where the schema was broken and nothing of the answer.
        advice: for the model that wrote the answer; may quote it.
        final: True when asking again will not help.
    """

    message: str
    advice: str
    final: bool = False


@frozen(eq=False, repr=False)
class Parsed(Value):
    """An answer that fits, as the object made of it."""

    value: Any


def read_answer(params: Generation, text: str | None, finish_reason: str) -> Parsed | Problem:
    """Return the object that an answer stands for, or why it stands for none; never raises.

    1. The model calls tools: ``None``; the answer follows once it has their results.
    2. A schema was asked for: what :func:`check_answer` says.
    3. The provider's own ``response_format`` was asked for: the JSON value in the answer. ``None`` where it
       holds none, since nothing says what has to be in it.
    4. Neither: ``None``.
    """
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


def recover_json(text: str) -> Any:
    """Return the JSON value in ``text``.

    The cases, in order:

    1. The whole text is JSON.
    2. There is exactly one fenced block, and its content is JSON.
    3. Exactly one object, or list of objects or lists, stands in the text (in the one fenced block, if any),
       and no broken object of the same kind after it.
    4. Brackets close, but it is not quite JSON (single quotes, trailing commas, comments): it is repaired.

    Its time grows with the length of the text, but for the last case, which has a limit of its own.

    Raises:
        JsonNotFound: there is none, there are several, or it does not end.
    """
    text = text.strip().removeprefix("\ufeff").strip()
    with suppress(JsonNotFound):
        return _loads(text)
    if len(text) > SEARCHED:
        raise JsonNotFound(f"it is not JSON, and longer than {SEARCHED} characters")
    fenced = list(islice(_fenced(text), 2))
    if len(fenced) == 1:
        text = fenced[0].strip()
        with suppress(JsonNotFound):
            return _loads(text)
    found = list(_documents(text))
    if len(found) > 1:
        raise JsonNotFound(_SEVERAL)
    if found:
        return found[0]
    return _mended(text)


def _fenced(text: str) -> Iterator[str]:
    """Yield the contents of the fenced blocks in ``text``.

    A fence in a line of its own ends a block, as JSON may hold others in its texts; where there is none, the
    next one does. A block that does not end is one only behind others.
    """
    several = False
    start = text.find("```")
    while start >= 0:
        head = _FENCE_HEAD.match(text, start)
        if head is None:
            start = text.find("```", start + 1)
            continue
        tail = _FENCE_TAIL.search(text, head.end() - 1)
        end = text.find("```", head.end()) if tail is None else tail.start("fence")
        if end < 0:
            if several:
                yield text[head.end() :]
            return
        yield text[head.end() : end]
        several = True
        start = text.find("```", end + 3)


_FENCE_TAIL = re.compile(r"\n[ \t]*+(?P<fence>```)[ \t]*+\r?(?:\n|\Z)")
_FENCE_HEAD = re.compile(r"```[a-zA-Z0-9]*+[ \t]*+\r?\n")
_TRIES = 20
"""Opening brackets at which a value is looked for; a hostile text must not cost much time."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _loads(text: str) -> Any:
    try:
        return _shallow(_decoder.decode(text))
    except (ValueError, RecursionError):
        raise JsonNotFound("it is not JSON") from None


def _documents(text: str) -> Iterator[Any]:
    """Yield the objects, and the lists of objects or lists, that stand in ``text`` one after the other.

    Raises:
        JsonNotFound: a broken object that begins with a name of theirs follows one of them, or one is nested
            too deep.
    """
    position, names = 0, set[str]()
    for _ in range(_TRIES):
        start = _OPENING.search(text, position)
        if start is None:
            return
        try:
            value, position = _decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            if text[start.start()] == "{":
                begun = _OBJECT.match(text, start.start())
                if begun is not None and begun["name"].strip() in names:
                    raise JsonNotFound(_SEVERAL) from None
                return  # what stands inside a broken object is not the answer
            position = start.end()
            continue
        if isinstance(value, dict) or any(isinstance(item, dict | list) for item in value):
            for item in [value] if isinstance(value, dict) else value:
                names.update(item if isinstance(item, dict) else ())
            yield _shallow(value)


_OPENING = re.compile(r"[{\[]")
_OBJECT = re.compile(r"""\{\s*+(?P<quote>["']?)(?P<name>[^"':{}\[\],]++)(?P=quote)\s*+:""")
"""How an object begins, be it broken; a remark such as ``{x: y}`` begins so, too, with names of its own."""
_SEVERAL = "it holds several JSON values; which one is meant is not clear"


def _mended(text: str) -> Any:
    """Repair single quotes, trailing commas, comments and the like; not brackets that never close."""
    start = _OPENING.search(text)
    end = max(text.rfind("}"), text.rfind("]"))
    if start is None or end < start.start() or len(text) > REPAIRABLE:
        raise JsonNotFound("it holds no JSON value")
    body = text[start.start() : end + 1]
    if not _closes(body):
        raise JsonNotFound("its JSON does not end")
    from json_repair import loads

    try:
        value = loads(body, skip_json_loads=True, strict=True)  # strict: no value is invented
    except Exception:  # a repair tool may fail in any way on garbage
        raise JsonNotFound("it is not JSON") from None
    if not isinstance(value, dict | list) or not value:
        raise JsonNotFound("it is not JSON")
    return _shallow(value)


def _closes(text: str) -> bool:
    """Whether the brackets outside of double quotes close in order, the first one at the very end."""
    opened: list[str] = []
    for mark in _MARKS.finditer(text):
        sign = mark.group()
        if sign in "{[":
            opened.append(sign)
        elif sign in "}]":
            if not opened or opened.pop() != ("{" if sign == "}" else "["):
                return False
            if not opened:
                return mark.end() == len(text)
        elif len(sign) == 1:
            return False  # a quote that is never closed
    return False


_MARKS = re.compile(r'"(?:[^"\\]|\\.)*+"|["{}\[\]]', re.DOTALL)


def _shallow(value: Any) -> Any:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return value
    raise JsonNotFound(f"its JSON is nested deeper than {MAX_DEPTH} levels")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that answers can be checked against ``schema``.

    Raises:
        ValueError: it is no JSON schema, or refers to what it does not have, such as another document: none
            is ever fetched.
    """
    text = json.dumps(schema)
    _validator(text)
    if '"$id": ' in text:  # a part with an address of its own has references of its own
        return
    decoded = json.loads(text)
    for reference in _references(decoded):
        if reference.startswith("#/") and "%" not in reference and not _has(decoded, reference):
            raise ValueError(f"refers to {reference[:80]!r}, which it does not have")


def _has(schema: Any, reference: str) -> bool:
    """Whether a JSON pointer, as a fragment (RFC 6901), leads to a part of a schema."""
    for name in reference[2:].split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isascii() and name.isdigit() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        else:
            return False
    return True


@lru_cache(maxsize=128)
def _validator(schema: str) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    decoded = json.loads(schema)
    kind = validator_for(decoded, default=Draft202012Validator)
    try:
        kind.check_schema(decoded)
    except SchemaError as error:
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        problem = f"is no JSON schema: at {where or 'the top'} it breaks {error.validator!r}"
        raise ValueError(problem) from None
    for pattern in _patterns(decoded):
        try:
            compiled(pattern)
        except PatternError as error:
            raise ValueError(f"cannot be checked: the pattern {pattern[:80]!r} {error}") from None
    if '"unevaluatedProperties": ' in schema and '"patternProperties": ' in schema:  # jsonschema runs these
        raise ValueError(
            "has patternProperties and unevaluatedProperties; use additionalProperties with patterns"
        )
    for reference in _references(decoded):
        if not reference.startswith("#"):
            raise ValueError(f"refers to {reference[:80]!r}; only references within the schema are followed")
    by_the_way = '"$dynamicRef": ' in schema or '"$recursiveRef": ' in schema
    # A registry of our own: the default one fetches foreign references over the network.
    return bounded(kind, remembers=not by_the_way)(_without_dialects(decoded), registry=REGISTRY)


_VALUES = ("enum", "const", "default", "examples")
"""Keywords that hold values, not schemas."""
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords that hold schemas by names, which are no keywords whatever they are."""


def _without_dialects(schema: Any) -> Any:
    """Return a schema no part of which names its dialect: for one that does, ``jsonschema`` takes the
    dialect's own validator, whose keywords are not bounded."""
    if isinstance(schema, list):
        return [_without_dialects(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            plain[key] = {name: _without_dialects(inner) for name, inner in value.items()}
        elif key != "$schema" or not isinstance(value, str):
            plain[key] = value if key in _VALUES else _without_dialects(value)
    return plain


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of a schema, and of those within it, with their values; what is data has none."""
    if isinstance(schema, list):
        for item in schema:
            yield from _keywords(item)
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if key not in _VALUES:
                yield key, value
                named = key in _BY_NAME and isinstance(value, Mapping)
                yield from _keywords(list(value.values()) if named else value)


def _patterns(schema: Any) -> Iterator[str]:
    for key, value in _keywords(schema):
        if key == "pattern" and isinstance(value, str):
            yield value
        elif key == "patternProperties" and isinstance(value, Mapping):
            yield from value


def _references(schema: Any) -> Iterator[str]:
    for key, value in _keywords(schema):
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            yield value


def check_answer(
    schema: Mapping[str, Any], build: Callable[[Any], Any], text: str | None, finish_reason: str
) -> Parsed | Problem:
    """Return the object that an answer to a request with a schema stands for, or why it stands for none.

    The cases, in order: the answer did not end by itself (final); it holds no single JSON value; the schema
    cannot be applied (final); the value breaks the schema; no object can be made of the value; it fits.
    """
    if (final := _ENDS.get(finish_reason)) is not None:
        return Problem(final, final, final=True)
    try:
        value = recover_json(text or "")
    except JsonNotFound as error:
        return Problem(f"the answer is not what the schema asks for: {error}", f"{error}.")
    try:
        validator = _validator(json.dumps(schema)).evolve(format_checker=KnownFlaws())
        flaws = list(islice(validator.iter_errors(value), MAX_FLAWS))
    except Exception as error:  # the schema's own: a reference without target, a pattern that is none
        problem = f"the schema could not be applied ({type(error).__name__}); correct it"
        return Problem(problem, problem, final=True)
    if flaws:
        # The path within the schema is the caller's own; the path within the answer may hold its keys.
        where = "/".join(str(part) for part in flaws[0].absolute_schema_path)
        told = "; ".join(f"at {flaw.json_path}: {flaw.message[:500]}" for flaw in flaws)
        return Problem(f"the answer breaks the schema at {where}", f"{told}.")
    try:
        return Parsed(build(value))
    except Exception as error:
        problem = f"the answer follows the schema, but no object could be made of it: {type(error).__name__}"
        return Problem(problem, f"{type(error).__name__}: {error}"[:1000])


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
        params = evolve(params, temperature=_temperature(params.temperature, attempt))
    return evolve(request, prompt=(*asked, Message("user", told)), params=params)


def _temperature(given: float | None, attempt: int) -> float:
    """Return the temperature of a repair; ``attempt`` counts from 0."""
    if given is None:
        return TEMPERATURES[min(attempt, len(TEMPERATURES) - 1)]
    return max(given, min(given + STEP * (attempt + 1), HIGHEST))
