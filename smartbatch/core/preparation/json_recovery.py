"""The JSON value in what a model wrote.

Nothing is guessed that could change an answer's meaning: of several different values none is chosen, and a
truncated answer is never completed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from smartbatch._importing import imported
from smartbatch.core.preparation.json_snapshot import MAX_DEPTH

SEARCHED = 2_000_000
"""Characters of an answer up to which JSON is looked for inside it; a longer one has to be JSON itself."""
REPAIRABLE = 5_000
"""Characters of a broken answer up to which it is repaired. The time of json-repair grows with the square of
stray quotes and brackets: a third of a second at this size, minutes for 200,000 characters."""


class JsonNotFound(ValueError):
    """The text holds no JSON value, or more than one; the message repeats nothing of the text."""


class NumberTooLarge(JsonNotFound):
    """A number is beyond what a floating-point number can hold, and would be read as infinity."""

    def __init__(self) -> None:
        super().__init__("it has a number beyond the range of floating-point numbers, such as 1e999")


def recover_json(text: str) -> Any:
    """Return the JSON value in ``text``.

    The cases, in order:

    1. The whole text is JSON.
    2. Thinking text stands in front: what follows its end mark counts, and the opening mark may be missing.
    3. There is exactly one fenced block, and its content is JSON.
    4. Exactly one object, or list of objects or lists, stands in the text (in the one fenced block, if any),
       and no broken object of the same kind after it. Equal values count as one.
    5. Brackets close, but it is not quite JSON (single quotes, trailing commas, comments): it is repaired.

    Its time grows with the length of the text, but for the last case, which has a limit of its own.

    Raises:
        JsonNotFound: there is none, there are several, it does not end, or it has a number that no
            floating-point number holds.
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
        if mark in json.dumps(value, ensure_ascii=False):  # the mark is a part of the answer
            return value
    raise failure


_ENDS_OF_THOUGHTS = (
    *("</think>", "</thinking>", "</thought>", "</thoughts>", "</reasoning>", "</reflection>"),
    *("</seed:think>", "[/THINK]", "◁/think▷", "<|channel|>final<|message|>", "<|end_of_thought|>"),
)
"""Where thinking text ends, as local models and gateways write it."""


def _recovered(text: str) -> Any:
    text = text.strip()
    try:
        return _loads(text)
    except NumberTooLarge:
        raise
    except JsonNotFound:
        if len(text) > SEARCHED:
            raise JsonNotFound(f"it is not JSON, and longer than {SEARCHED} characters") from None
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
        raise JsonNotFound(_SEVERAL)
    return found[0] if found else _mended(text)


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
        except NumberTooLarge:
            raise
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
    loads = imported("json_repair").loads
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
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise NumberTooLarge
        if not level:
            return value
    raise JsonNotFound(f"its JSON is nested deeper than {MAX_DEPTH} levels")
