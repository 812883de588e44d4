"""Checks the requests and parameters that callers pass. Errors name the field and the allowed range.

An invalid request raises immediately and never reaches a provider. No error repeats the prompt.
Everything that the caller could change later is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeAlias, get_args

from attrs import evolve

from smartbatch._words import DURATION_EXAMPLES, seconds_in
from smartbatch.config import ADAPTER_ARGUMENTS, NEAR_SETTINGS, Settings
from smartbatch.core.preparation.chat_turns import (
    check_choice,
    checked_choice,
    checked_messages,
    checked_tools,
    refuse,
)
from smartbatch.core.preparation.chat_turns import checked_text as _text
from smartbatch.core.preparation.chat_turns import copied_object as _object
from smartbatch.core.preparation.class_schemas import BuiltSchema, schema_of
from smartbatch.core.preparation.fingerprint import remember
from smartbatch.core.preparation.json_recovery import surrogate_at
from smartbatch.core.preparation.json_schemas import check_schema, with_sorted_keywords
from smartbatch.errors import InvalidRequest, did_you_mean
from smartbatch.media import Media
from smartbatch.types import Embedding, Generation, Message, Priority, ReasoningEffort, Request, SchemaMode

MAX_STOPS = 4  # OpenAI's limit, the lowest of the three APIs
MAX_COUNT = 2**31 - 1  # the largest token count that every API's schema accepts
SEED_LIMIT = 2**63  # seeds are signed 64-bit integers
MAX_SAMPLES = 128  # OpenAI's limit of n
MAX_DIMENSIONS = 65_536  # far above any model's; the provider checks its own limit
MAX_ALTERNATIVES = 20  # alternatives per token: the limit of OpenAI and Gemini
MAX_WAIT_SECONDS = 3600.0
MAX_TIMEOUT_SECONDS = 30 * 86_400.0
# names in other libraries, and the corresponding names in smartbatch
FOREIGN_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "system_prompt": "system",
    "instructions": "system",
    "json_schema": "schema",
    "deadline": "timeout",
    "effort": "reasoning_effort",
    "thinking_level": "reasoning_effort",
    "functions": "tools",
    "function_call": "tool_choice",
    "top_logprobs": "logprobs",
}

FieldCheck: TypeAlias = Callable[[Any, str], Any]
"""Takes a value and its field; returns the value in its canonical form, or raises ``InvalidRequest``."""

_NO_DEFAULTS = Request().params  # shared by all requests that set no parameters
remember(_NO_DEFAULTS)


def normalise(prompt: Any, defaults: Generation = _NO_DEFAULTS, **overrides: Any) -> Request:
    """Return ``prompt`` as a checked request with every parameter filled in.

    Args:
        prompt: a string, a sequence of messages, or a request.
        defaults: the client's parameters, checked by :func:`admit_defaults`; used where the request has
            ``None``.
        overrides: fields of :class:`Generation` or :class:`Request` by name; they override the request's
            own, except for its ``embedding``, whose options take precedence. ``None`` means "not given".

    Raises:
        InvalidRequest: no provider would accept the request; the error has the ``field``.
    """
    params = defaults
    if type(prompt) is str and not overrides:  # 1. The common case, kept short: about two microseconds.
        if not prompt or prompt.isspace() or not prompt.isascii():
            _text(prompt, "prompt")
        return Request(prompt, params)
    fields, generation = _separate(overrides) if overrides else ({}, {})
    levels = [generation]
    # 2. A request: its own values override the client's, and ``overrides`` take precedence over both.
    if isinstance(prompt, Request):
        if prompt.params is not _NO_DEFAULTS:
            levels.insert(0, _set_fields(prompt.params))
        own = zip(_FIELDS, _own_fields(prompt), _UNSET_VALUES, strict=True)
        given = {name: value for name, value, usual in own if value is not None and value is not usual}
        if isinstance(prompt.embedding, Embedding) and isinstance(fields.get("embedding"), Embedding):
            given["embedding"] = _own_over(prompt.embedding, fields.pop("embedding"))
        fields = given | fields
        prompt = prompt.prompt
    for level in levels:
        if level:
            params = _merge(params, level)
    checked = {name: _FIELDS[name](value, name) for name, value in fields.items()}
    if "call" not in checked or prompt != "":  # 3. A request with its own callable needs no prompt.
        prompt = _prompt(prompt)
    # 4. An embedding: generation parameters are rejected, and the client's are ignored.
    if "embedding" in checked:
        if "call" in checked:
            _refuse("embedding", "and call cannot be used together: leave one out")
        for level in levels:
            refuse_for_vectors(level)
        if not isinstance(prompt, str):
            _refuse("prompt", "must be a string if an embedding is requested")
        params = _NO_DEFAULTS
    return Request(prompt, params, **checked)


def _own_over(own: Embedding, shared: Embedding) -> Embedding:
    """Fill in the embedding options that a request leaves open with those of the call."""
    return Embedding(
        shared.task_type if own.task_type is None else own.task_type,
        shared.dimensions if own.dimensions is None else own.dimensions,
    )


def check_prompt(prompt: Any, embedding: Embedding | None) -> None:
    """Raise the errors of :func:`normalise` for an invalid prompt, without making a request from a string."""
    if type(prompt) is not str:
        normalise(prompt, embedding=embedding)
    elif not prompt or prompt.isspace() or not prompt.isascii():
        _text(prompt, "prompt")


def admit_defaults(defaults: Generation) -> Generation:
    """Return a checked copy of the client's parameters, for many requests."""
    params = _merge(_NO_DEFAULTS, _set_fields(defaults))
    remember(params)
    return params


def refuse_for_vectors(params: Mapping[str, Any]) -> None:
    """Reject generation parameters in an embedding request, where they have no effect.

    The client's generation parameters are ignored there.
    """
    for name, value in params.items():
        if name in _GENERATION and value is not None:
            _refuse(name, "has no effect on embeddings: leave it out")


def _set_fields(params: Generation) -> dict[str, Any]:
    every = ((name, getattr(params, name)) for name in _GENERATION)
    return {name: value for name, value in every if value is not None}


def _separate(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    check_params(overrides, _PARAMETERS)
    given = [(name, value) for name, value in overrides.items() if value is not None]
    fields = {name: value for name, value in given if name in _FIELDS}
    return fields, {name: value for name, value in given if name in _GENERATION}


def check_params(names: Iterable[str], known: Collection[str]) -> None:
    """Reject unknown keywords. The message says where a keyword belongs, or suggests the nearest name."""
    for name in names:
        if name not in known:
            _refuse(name, f"is not a parameter here{_hint(name, known)}")


def _hint(name: str, known: Collection[str]) -> str:
    """Suggest a replacement for an unknown keyword; every suggestion is valid."""
    setting = NEAR_SETTINGS.get(name, name)
    if FOREIGN_NAMES.get(name) in known:
        return f"; did you mean {FOREIGN_NAMES[name]}?"
    if setting in Settings.__optional_keys__:
        running = "; to change it later, call client.set_parallelism(…)" if setting == "parallelism" else ""
        return f", but a setting of the client: BatchingClient(…, {setting}=…){running}"
    if name in ADAPTER_ARGUMENTS:
        option = f"BatchingClient(…, provider_options={{{name!r}: …}})"
        return f", but an option of the provider: {option}"
    if name in _ELSEWHERE:
        return f": {_ELSEWHERE[name]}"
    if near := did_you_mean(name, known):
        return near
    extra = f"; to pass a field that only the provider knows, use extra={{{name!r}: …}}"
    return extra if "extra" in known else ""


# fields of request bodies that ``extra`` does not accept, and what to use instead
_ELSEWHERE: Final = {
    "model": "choose it with the client, BatchingClient('provider:model'), or in smartbatch.generate",
    "stream": "use client.stream(prompt) for an answer as a stream",
    **dict.fromkeys(("messages", "input", "contents", "prompts"), "pass it as the first argument"),
}


def _merge(below: Generation, level: Mapping[str, Any]) -> Generation:
    """Override ``below`` with the parameters of ``level``; only the latter are checked."""
    if "schema" in level and "response_format" in level:
        _refuse("schema", "and response_format cannot be used together: leave one out")
    checked = {name: _GENERATION[name](value, name) for name, value in level.items()}
    if "schema" in checked:  # the output form of the inner level replaces that of the outer one
        checked["response_format"] = None
    elif "response_format" in checked:
        checked["schema"] = None
    if "tools" in checked and not checked["tools"]:  # the inner level removes the tools of the outer one
        checked.setdefault("tool_choice", None)
    merged = evolve(below, **checked)
    check_choice(merged.tools, merged.tool_choice)
    return merged


def _refuse(field: str, problem: str) -> NoReturn:
    refuse(field, problem)


def _prompt(prompt: Any) -> str | tuple[Message, ...]:
    if isinstance(prompt, str):
        return _text(prompt, "prompt")
    if isinstance(prompt, Mapping) and "role" not in prompt and "content" not in prompt:
        _refuse(
            "prompt",
            "is a mapping but not a message: pass a string such as row['text']; calls that take a list also "
            "accept column='text' or template='… {title} … {text} …' for its rows",
        )
    if isinstance(prompt, (Mapping, Message, Media)):
        what = "file" if isinstance(prompt, Media) else "message"
        _refuse("prompt", f"is a single {what}: put it in a list")
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        kind = type(prompt).__name__
        _refuse("prompt", f"must be a string, a list of messages or a Request, not {kind}")
    if not prompt:
        _refuse("prompt", "has no messages")
    return checked_messages(prompt)


def _schema(value: Any, field: str) -> BuiltSchema:
    """Return a checked copy of a JSON schema, or the schema of a class."""
    if isinstance(value, BuiltSchema):
        return value
    if not isinstance(value, Mapping):
        found, build = schema_of(value)
        return BuiltSchema(_object(found, field), build)
    schema = _object(value, field)
    try:
        check_schema(schema)
    except ValueError as error:
        _refuse(field, str(error))
    return BuiltSchema(*schema_of(with_sorted_keywords(schema)))


def _number(low: float, high: float, *, above: bool = False, unit: str = "") -> FieldCheck:
    def check(value: Any, field: str) -> float:
        real = isinstance(value, Real) and value is not True and value is not False
        if real and low <= value <= high and not (above and value == low):  # rejects NaN too
            return float(value) + 0.0  # minus zero becomes zero, so that equal numbers look the same
        bounds = f"above {low:g} and up to {high:g}" if above else f"from {low:g} to {high:g}"
        _refuse(field, f"must be a number {bounds}{unit}, not {_shown(value)}")

    return check


def _duration(high: float, *, above: bool = False) -> FieldCheck:
    number = _number(0, high, above=above, unit=" s")

    def check(value: Any, field: str) -> float:
        seconds = seconds_in(value)
        if seconds is None and isinstance(value, str):
            _refuse(field, f"is not a duration; use {DURATION_EXAMPLES}")
        checked: float = number(value if seconds is None else seconds, field)
        return checked

    return check


def _integer(low: int, high: int) -> FieldCheck:
    def check(value: Any, field: str) -> int:
        if not isinstance(value, bool) and isinstance(value, Integral) and low <= int(value) <= high:
            return int(value)
        _refuse(field, f"must be a whole number from {low} to {high}, not {_shown(value)}")

    return check


def _shown(value: Any) -> str:
    """Show numbers, but only the type of any other value, because it may be a misplaced prompt."""
    if isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < SEED_LIMIT * 2):
        return repr(value)
    return f"of type {type(value).__name__}" if not isinstance(value, int) else "such a large number"


_dimensions = _integer(1, MAX_DIMENSIONS)
_alternatives = _integer(0, MAX_ALTERNATIVES)


def _logprobs(value: Any, field: str) -> int | bool:
    """True requests the log-probability of each token without alternatives."""
    return value if isinstance(value, bool) else _alternatives(value, field) or True


def _stop(value: Any, field: str) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)) or not 1 <= len(stops) <= MAX_STOPS:
        _refuse(field, f"must be a string or a list of 1 to {MAX_STOPS} strings")
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:  # a newline alone is a common stop
            _refuse(f"{field}[{i}]", "must be a non-empty string")
        if surrogate_at(stop) is not None:
            _refuse(f"{field}[{i}]", "has a lone surrogate, which UTF-8 cannot encode")
    return tuple(stops)


def _priority(value: Any, field: str) -> Priority:
    try:
        return Priority.parse(value)
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None


def _switch(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        _refuse(field, f"must be True or False, not {_shown(value)}")
    return value


def _embedding(value: Any, field: str) -> Embedding:
    if not isinstance(value, Embedding):
        _refuse(field, f"must be an Embedding, not {type(value).__name__}")
    return Embedding(
        None if value.task_type is None else _text(value.task_type, "task_type"),
        None if value.dimensions is None else _dimensions(value.dimensions, "dimensions"),
    )


def _callable(value: Any, field: str) -> Any:
    if not callable(value):
        _refuse(field, f"must be callable as call(request, attempt), not {type(value).__name__}")
    return value


def _one_of(words: Any) -> FieldCheck:
    """``words`` is a ``Literal``."""

    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or value not in get_args(words):
            _refuse(field, f"must be one of {', '.join(get_args(words))}, not {value!r:.40}")
        return value

    return check


# checks of :class:`Generation`
_GENERATION: dict[str, FieldCheck] = {
    "system": _text,
    "max_tokens": _integer(1, MAX_COUNT),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, above=True),
    "stop": _stop,
    "seed": _integer(-SEED_LIMIT, SEED_LIMIT - 1),
    "n": _integer(1, MAX_SAMPLES),
    "reasoning_effort": _one_of(ReasoningEffort),
    "response_format": _object,
    "schema": _schema,
    "schema_mode": _one_of(SchemaMode),
    "tools": checked_tools,
    "tool_choice": checked_choice,
    "logprobs": _logprobs,
    "extra": _object,
}

# checks of :class:`Request`
_FIELDS: dict[str, FieldCheck] = {
    "priority": _priority,
    "max_wait": _duration(MAX_WAIT_SECONDS),
    "timeout": _duration(MAX_TIMEOUT_SECONDS, above=True),
    "id": _text,
    "context": lambda value, *_: value,
    "purpose": _text,
    "isolation_key": _text,
    "deduplicate": _switch,
    "embedding": _embedding,
    "call": _callable,
    "model": _text,
    "sample": _integer(0, MAX_SAMPLES - 1),
    "row": _integer(0, 2**53),
}

_own_fields = attrgetter(*_FIELDS)
_UNSET_VALUES = _own_fields(Request())  # values of an empty request, which need no check

_PARAMETERS = frozenset({*_GENERATION, *_FIELDS})
