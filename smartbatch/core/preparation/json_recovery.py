"""Checked copies of JSON values from callers, and the JSON value in a model's answer.

Later changes by the caller do not affect a copy, and ``json.dumps(…, allow_nan=False)`` and UTF-8
accept it. In answers, nothing is guessed that could change the meaning: if there are several
different values, none is chosen, and a truncated answer is never completed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any, NoReturn

from smartbatch._fork import imported

MAX_DEPTH = 200  # levels; Python's own JSON reader fails at about 1,000, and APIs allow far fewer in a schema
MAX_INTEGER_BITS = 14_000  # below the 4,300 digits that Python can print


class NotJson(ValueError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path  # place in the value, such as ``["properties"]["x"]``
        self.reason = reason  # what is wrong


def surrogate_at(text: str) -> int | None:
    """Return the position of the first lone surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def snapshot(value: Any) -> Any:
    """Return a deep copy of ``value`` made of dictionaries, lists, strings, numbers, booleans and ``None``.

    Raises:
        NotJson: it contains another type, NaN, infinity, a key that is not a string, a lone surrogate, or
            more than :data:`MAX_DEPTH` levels (such as a value that contains itself).
    """
    return _copy(value, "", 0)


def _copy(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, (int, float)):
        return _number(value, path)
    if depth >= MAX_DEPTH:
        raise NotJson("", f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {_key(key, path): _copy(item, f'{path}["{key}"]', depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise NotJson(path, f"is {type(value).__name__}, which JSON cannot express; pass a string or a number")


def _text(value: str, path: str) -> str:
    if (position := surrogate_at(value)) is not None:
        raise NotJson(path, f"has a lone surrogate at position {position}, which UTF-8 cannot encode")
    return value


def _number(value: int | float, path: str) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJson(path, f"is {value}, which JSON cannot express")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise NotJson(path, "is an integer with more than 4,000 digits")
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotJson(path, f"has a key of type {type(key).__name__}; keys must be strings")
    if surrogate_at(key) is not None:
        raise NotJson(path, "has a key with a lone surrogate, which UTF-8 cannot encode")
    return key


# maximum characters in which JSON is searched for; a longer answer must be JSON as a whole
MAX_SEARCHED_CHARACTERS = 2_000_000
MAX_REPAIRED_CHARACTERS = 5_000
"""Maximum characters of a broken answer that is repaired. The time taken by json-repair grows with the
square of the number of stray quotes and brackets: a third of a second at this size, minutes for 200,000
characters.
"""


class JsonNotFound(ValueError):
    """The text contains no JSON value, or several.

    The message does not quote the text. A repair sends it to the model, so rewording it changes
    requests.
    """


class NumberTooLarge(JsonNotFound):
    """A number is outside the range of floating-point numbers and would be read as infinity."""

    def __init__(self) -> None:
        super().__init__("it has a number beyond the range of floating-point numbers, such as 1e999")


class NotANumber(JsonNotFound):
    """``NaN`` or ``Infinity`` replaces a value. A repair would turn it into a string."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it has {name} in the place of a value, which is no JSON")


def recover_json(text: str) -> Any:
    """Return the JSON value in ``text``.

    The cases, in order:

    1. The whole text is JSON.
    2. Reasoning comes first: the text after its end mark is read; the opening mark may be missing.
    3. There is exactly one fenced block, and its content is JSON.
    4. The text (or its one fenced block) contains exactly one object, or list of objects or lists, and no
       broken object of the same kind after it. Equal values count as one.
    5. Brackets close, but the text is not quite JSON (single quotes, trailing commas, comments): it is
       repaired.

    The time grows linearly with the length of the text, except for case 5, which has its own limit.

    Raises:
        JsonNotFound: there are no values or several, the value is incomplete, or a number is out of range.
    """
    text = text.strip().removeprefix("\ufeff").strip()
    ends = [(at, mark) for mark in _ENDS_OF_THOUGHTS if (at := text.find(mark)) >= 0]
    if not ends:
        return _recovered(text)
    first, mark = min(ends)
    last, other = max((text.rfind(mark), mark) for _, mark in ends)
    for read, part in (
        (_loads, text),
        (_recovered, text[first + len(mark) :]),
        (_recovered, text[last + len(other) :]),
    ):
        try:
            return read(part)
        except NumberTooLarge:
            raise
        except JsonNotFound as error:
            failure = error
    with suppress(JsonNotFound):
        value = _recovered(text)
        if mark in json.dumps(value, ensure_ascii=False):  # the end mark is part of the answer
            return value
    raise failure


# end marks of reasoning, from local models and gateways
_ENDS_OF_THOUGHTS = (
    *("</think>", "</thinking>", "</thought>", "</thoughts>", "</reasoning>", "</reflection>"),
    *("</seed:think>", "[/THINK]", "◁/think▷", "<|channel|>final<|message|>", "<|end_of_thought|>"),
)


def _recovered(text: str) -> Any:
    text = text.strip()
    try:
        return _loads(text)
    except NumberTooLarge:
        raise
    except JsonNotFound:
        if len(text) > MAX_SEARCHED_CHARACTERS:
            raise JsonNotFound(
                f"it is not JSON, and longer than {MAX_SEARCHED_CHARACTERS} characters"
            ) from None
    fenced = list(islice(_fenced(text), 2))
    if len(fenced) == 1:
        text = fenced[0].strip()
        try:
            return _loads(text)
        except NumberTooLarge:
            raise
        except JsonNotFound:
            pass
    found = list(_documents(text))
    if len({json.dumps(value, sort_keys=True) for value in found}) > 1:
        raise JsonNotFound(_SEVERAL_VALUES)
    return found[0] if found else _mended(text)


def _fenced(text: str) -> Iterator[str]:
    """Yield the contents of the fenced blocks in ``text``.

    A fence on a separate line ends a block, because JSON strings may contain fences. Without one, the
    next fence ends the block. An unclosed block counts only if it follows others.
    """
    several = False
    start = text.find("```")
    while start >= 0:
        begin = _content_of_fence(text, start)
        if begin is None:
            start = text.find("```", start + 1)
            continue
        end = _closing_fence(text, begin)
        if end < 0:
            if several:
                yield text[begin:]
            return
        yield text[begin:end]
        several = True
        start = text.find("```", end + 3)


def _content_of_fence(text: str, fence: int) -> int | None:
    """Content begins on the next line if the fence's line only names a language."""
    end = text.find("\n", fence + 3, fence + 3 + _MAX_FENCE_CHARACTERS)
    if end < 0:
        return None
    language = text[fence + 3 : end].removesuffix("\r").rstrip(" \t")
    return end + 1 if not language or (language.isascii() and language.isalnum()) else None


def _closing_fence(text: str, begin: int) -> int:
    """Return the position of the closing fence, or -1."""
    fence = begin - 1
    for before, after in pairwise(text[fence:].split("```")):
        fence += len(before)
        rest = after.lstrip(" \t").removeprefix("\r")
        ends = rest.startswith("\n") or (not rest and fence + 3 + len(after) == len(text))
        if ends and before.rstrip(" \t").endswith("\n"):
            return fence
        fence += 3
    return text.find("```", begin)


def past(text: str, start: int, belongs: Callable[[str], bool]) -> int:
    """Return the first position from ``start`` whose character does not satisfy ``belongs``."""
    while start < len(text) and belongs(text[start]):
        start += 1
    return start


_MAX_FENCE_CHARACTERS = 64  # maximum characters between an opening fence and the end of its line
_MAX_BRACKETS = 20  # opening brackets that are tried, which limits the time for a malicious text


def _no_constant(name: str) -> NoReturn:
    raise NotANumber(name)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NumberTooLarge
    return number


_decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _loads(text: str) -> Any:
    try:
        return _shallow(_decoder.decode(text))
    except NumberTooLarge:
        raise
    except (ValueError, RecursionError):
        raise JsonNotFound("it is not JSON") from None


def _documents(text: str) -> Iterator[Any]:
    """Yield the objects, and the lists of objects or lists, in ``text``.

    Raises:
        JsonNotFound: one is nested too deeply, or a broken object with the same first name follows.
    """
    position, names = 0, set[str]()
    for _ in range(_MAX_BRACKETS):
        start = _opening(text, position)
        if start < 0:
            return
        try:
            value, position = _decoder.raw_decode(text, start)
        except NumberTooLarge:
            raise
        except (ValueError, RecursionError):
            if text[start] == "{":
                if _first_name(text, start) in names:
                    raise JsonNotFound(_SEVERAL_VALUES) from None
                return  # the content of a broken object is not the answer
            position = start + 1
            continue
        if isinstance(value, dict) or any(isinstance(item, dict | list) for item in value):
            for item in [value] if isinstance(value, dict) else value:
                names.update(item if isinstance(item, dict) else ())
            yield _shallow(value)


def _opening(text: str, start: int) -> int:
    brackets = [at for bracket in "{[" if (at := text.find(bracket, start)) >= 0]
    return min(brackets, default=-1)


def _first_name(text: str, start: int) -> str | None:
    """Return the first name in an object that may be broken. A remark such as ``{x: y}`` looks like an
    object, but has another name.
    """
    at = past(text, start + 1, str.isspace)
    quote = text[at : at + 1] if text.startswith(("'", '"'), at) else ""
    at += len(quote)
    end = past(text, at, lambda sign: sign not in "\"':{}[],")
    if end == at or not text.startswith(quote, end):
        return None
    colon = past(text, end + len(quote), str.isspace)
    return text[at:end].strip() if text.startswith(":", colon) else None


_SEVERAL_VALUES = "it holds several JSON values; which one is meant is not clear"


def _mended(text: str) -> Any:
    """Repair single quotes, trailing commas, comments and the like, but not brackets that never close."""
    start = _opening(text, 0)
    end = max(text.rfind("}"), text.rfind("]"))
    if start < 0 or end < start or len(text) > MAX_REPAIRED_CHARACTERS:
        raise JsonNotFound("it holds no JSON value")
    body = text[start : end + 1]
    if not _closes(body):
        raise JsonNotFound("its JSON does not end")
    try:
        _decoder.decode(body)
    except (NumberTooLarge, NotANumber):  # a repair would invent a string, or infinity
        raise
    except (ValueError, RecursionError):
        pass
    loads = imported("json_repair").loads
    try:
        value = loads(body, skip_json_loads=True, strict=True)  # strict: no value is invented
    except Exception:  # a repair tool may raise anything on garbage
        raise JsonNotFound("it is not JSON") from None
    if not isinstance(value, dict | list) or not value:
        raise JsonNotFound("it is not JSON")
    return _shallow(value)


def _closes(text: str) -> bool:
    """True if the brackets outside double quotes close in order, the first one at the very end."""
    opened: list[str] = []
    quoted = escaped = False
    for at, sign in enumerate(text):
        if quoted:
            quoted = escaped or sign != '"'
            escaped = not escaped and sign == "\\"
        elif sign == '"':
            quoted = True
        elif sign in "{[":
            opened.append(sign)
        elif sign in "}]":
            if not opened or opened.pop() != ("{" if sign == "}" else "["):
                return False
            if not opened:
                return at + 1 == len(text)
    return False


def _shallow(value: Any) -> Any:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise NumberTooLarge
        if not level:
            return value
    raise JsonNotFound(f"its JSON is nested deeper than {MAX_DEPTH} levels")
