"""Parts of an answer other than the text, common to all APIs: tool calls, log-probabilities, vectors and
unmodelled fields.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import ascii_letters, digits
from typing import Any, NoReturn

from attrs import evolve

from smartbatch.errors import ProviderError
from smartbatch.media import Media, reference_to, returned_file
from smartbatch.providers.foreign_text import unusable, well_formed
from smartbatch.types import Answer, Request, TokenLogprob, ToolCall, Usage
from smartbatch.usage import shares


def tool_call(
    identity: Any, name: Any, arguments: Any, extra: Mapping[str, Any] | None = None
) -> ToolCall | None:
    """Build a tool call; ``None`` without a name. Arguments that are not a JSON object are kept as text."""
    if not isinstance(name, str) or not name:
        return None
    decoded, raw = arguments, None
    if isinstance(arguments, str):
        decoded, raw = decoded_arguments(arguments), arguments
    elif arguments is None:
        decoded = {}
    elif not isinstance(arguments, Mapping):
        raw = json.dumps(arguments)
    if isinstance(decoded, Mapping):
        raw = None
    else:
        decoded = None
    return ToolCall(identity if isinstance(identity, str) else "", name, decoded, raw, extra or None)


def decoded_arguments(text: str) -> Any:
    """Parse JSON arguments; ``None`` if they are invalid or contain ``NaN``, which JSON files cannot hold."""
    try:
        return _DECODER.decode(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def identified(calls: Iterable[ToolCall | None], prefix: str | None = None) -> tuple[ToolCall, ...]:
    """Drop ``None`` and give every call a unique id. New ids begin with ``prefix``."""
    found = [call for call in calls if call is not None]
    given = {call.id for call in found}
    named: dict[str, ToolCall] = {}
    for number, call in enumerate(found):
        if not call.id or call.id in named:
            # every API accepts such ids: OpenAI allows 40 characters, Anthropic only these characters
            safe = "".join(sign if sign in _ID_SIGNS else "-" for sign in (prefix or "call")[:32])
            free = f"{safe}-{number}"
            while free in given or free in named:
                free += "-"
            call = evolve(call, id=free)
        named[call.id] = call
    return tuple(named.values())


_ID_SIGNS = frozenset(ascii_letters + digits + "_-")


def token_logprobs(items: Any) -> tuple[TokenLogprob, ...] | None:
    """Parse log-probabilities in OpenAI's format."""
    if not isinstance(items, list):
        return None
    found = []
    for item in items:
        if (pair := _pair(item)) is not None:
            top = item.get("top_logprobs")
            pairs = map(_pair, top if isinstance(top, list) else ())
            found.append(TokenLogprob(*pair, tuple(each for each in pairs if each is not None)))
    return tuple(found) or None


def _pair(item: Any) -> tuple[str, float] | None:
    token, logprob = (item.get("token"), item.get("logprob")) if isinstance(item, Mapping) else (None, None)
    if not isinstance(token, str) or not isinstance(logprob, int | float) or math.isnan(logprob):
        return None
    return well_formed(token), max(float(logprob), MIN_LOGPROB)


MIN_LOGPROB = -9999.0  # servers write this for a probability of 0, because JSON has no infinity


def unmodelled(data: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in known and has_value(value)}


def unmodelled_usage(usage: Any, known: frozenset[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not isinstance(usage, dict):
        return found
    for name, value in usage.items():
        if not value or name in known:
            continue
        if isinstance(value, dict):
            value = {key: detail for key, detail in value.items() if detail and key not in known}
        if value:
            found[name] = value
    return found


def has_value(value: Any) -> bool:
    """False for ``None`` and for empty strings, lists and objects."""
    return bool(value) or isinstance(value, int | float)


def gathered(*levels: Mapping[str, Any]) -> dict[str, Any] | None:
    """Merge the unmodelled fields of all levels of an answer, outermost first; number repeated names."""
    whole: dict[str, Any] = {}
    for level in levels:
        for name, value in level.items():
            free, number = name, 1
            while free in whole:
                number += 1
                free = f"{name}_{number}"
            whole[free] = value
    return whole or None


class ReturnedFiles(list[Media]):
    """Collects the files of an answer and leaves references to them in its parts."""

    def take(self, data: Any, media_type: Any = None) -> Any:
        """Decode a file in base64 and return its reference; return anything else unchanged."""
        # each piece of a stream is encoded separately, so it may be padded
        pieces = filter(None, data.split("=")) if isinstance(data, str) else ()
        try:
            content = b"".join(
                base64.b64decode(each + "=" * (-len(each) % 4), validate=True) for each in pieces
            )
        except ValueError:
            return data
        if not content:
            return data
        self.append(returned_file(content, media_type if isinstance(media_type, str) else None))
        return reference_to(len(self) - 1)

    def take_url(self, url: Any) -> Any:
        """Do the same for a data URL."""
        head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
        if not (comma and head.startswith("data:") and head.endswith(";base64")):
            return url
        found = self.take(data, head[len("data:") : -len(";base64")])
        return url if found == data else found


class Pieces(list[str]):
    """Pieces of a string, which :func:`joined` joins once all have arrived."""


def add_piece(whole: dict[str, Any], piece: Mapping[str, Any], *, growing: bool = False) -> None:
    """Merge the fields of a stream event into ``whole``, which holds those of earlier events.

    Lists are extended, objects are merged and other values are replaced. If ``growing``, strings are
    pieces of one string, as in the deltas of a message.
    """
    for name, value in piece.items():
        before = whole.get(name)
        if isinstance(value, Mapping):
            if not isinstance(before, dict):
                before = whole[name] = {}
            add_piece(before, value, growing=growing)
        elif isinstance(value, list):
            if not isinstance(before, list) or isinstance(before, Pieces):
                whole[name] = list(value)
            elif before != value:
                before.extend(value)
        elif growing and isinstance(value, str) and name not in _REPEATED:
            if not isinstance(before, Pieces):
                before = whole[name] = Pieces()
            before.append(value)
        elif value is not None:
            whole[name] = value


def joined(value: Any) -> Any:
    if isinstance(value, Pieces):
        return "".join(value)
    return {name: joined(item) for name, item in value.items()} if isinstance(value, dict) else value


# string fields that every piece of a message repeats in full
_REPEATED = ("id", "type", "role", "format", "name", "index")


_NUMBERS = frozenset({int, float})


def vector(raw: Any, dimensions: int | None) -> array[float]:
    """Decode an embedding into 32-bit floats without rounding.

    ``raw`` is base64, or a list of numbers from servers that ignore ``encoding_format``. The number
    of dimensions is not checked if ``dimensions`` is ``None``.
    """
    if isinstance(raw, str):
        try:
            values = from_base64(raw)
        except ValueError:
            raise unusable("the vector is not base64-encoded 32-bit floats") from None
    elif isinstance(raw, list) and _NUMBERS.issuperset(map(type, raw)):
        try:
            values = array("f", raw)
        except OverflowError:
            raise unusable("a number in the vector does not fit in 32 bits") from None
    else:
        raise unusable("the vector is neither base64 nor a list of numbers")
    if not values or (dimensions is not None and len(values) != dimensions):
        raise unusable(f"the vector has {len(values)} numbers instead of {dimensions or 'at least one'}")
    # as a 64-bit float, a sum of 32-bit floats cannot overflow; opposite infinities add up to NaN
    if not math.isfinite(sum(values)):
        raise unusable("the vector has a number that is not finite")
    return values


@contextmanager
def counted(tokens: int | None) -> Iterator[None]:
    """Add the billed tokens to an error raised in the block, because an unusable answer is billed too."""
    try:
        yield
    except ProviderError as error:
        error.usage = None if tokens is None else Usage(input_tokens=tokens)
        raise


def to_base64(values: array[float]) -> str:
    """Encode a vector as little-endian 32-bit floats, without loss."""
    return base64.b64encode(_little(values).tobytes()).decode()


def from_base64(text: str) -> array[float]:
    """Decode a vector encoded by :func:`to_base64`; raise ``ValueError`` for any other text."""
    return _little(array("f", base64.b64decode(text, validate=True)))


def _little(values: array[float]) -> array[float]:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values


def listed(items: Any, size: int) -> list[Any]:
    """Check the number of vectors in an answer and return them, still encoded."""
    if not isinstance(items, list) or len(items) != size:
        found = len(items) if isinstance(items, list) else "no"
        raise unusable(f"the answer has {found} vectors for {size} texts")
    return items


def spread(
    common: Answer, vectors: Sequence[array[float]], requests: Sequence[Request], tokens: int | None
) -> list[Answer]:
    """Build one answer per request of a shared call, whose ``tokens`` and cost are split by the lengths of
    the prompts.
    """
    if any(len(each) != len(vectors[0]) for each in vectors):
        raise unusable("the vectors of one call have different lengths")
    lengths = [len(request.prompt) for request in requests]
    usages: Sequence[Usage | None] = [None] * len(vectors)
    if tokens is not None:
        usages = [Usage(input_tokens=part) for part in shares(tokens, lengths)]
    costs: Sequence[float | None] = [None] * len(vectors)
    if common.cost is not None:
        whole = sum(lengths) or 1
        costs = [common.cost * length / whole for length in lengths]
    return [
        evolve(common, embedding=each, usage=usage, cost=cost)
        for each, usage, cost in zip(vectors, usages, costs, strict=True)
    ]
