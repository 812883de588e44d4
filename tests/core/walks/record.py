"""What a walk of random steps decided, as one line: some figures to read, and a digest of all of them."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

import attrs

from smartbatch.core.limits.shared_record import LateExchange


class Record:
    """Takes down what is decided; numbers count with five digits."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=6)
        self._steps = 0
        self._last: dict[str, str] = {}

    def note(self, what: str, *found: Any) -> None:
        """Take down what was decided; the latest of each kind can be read in the line."""
        self._note(what, " ".join(map(plain, found)))

    def _note(self, what: str, text: str) -> None:
        self._digest.update(f"{what} {text}\n".encode())
        self._steps += 1
        if len(text) < 30:
            self._last[what] = text

    def state(self, *found: Any) -> None:
        """Take down all that objects of the core keep: what is wrong there may show much later."""
        self._note("state", " ".join(plain(each, whole=True) for each in found))

    def tried(self, what: str, act: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Do something, and take down what it returns or which error it raises."""
        try:
            found = act(*given, **named)
        except (ValueError, RuntimeError, KeyError, TypeError, LateExchange) as error:
            self.note(what, type(error).__name__, str(error))
            return None
        self.note(what, found)
        return found

    def line(self) -> str:
        shown = ", ".join(f"{what} {text}" for what, text in self._last.items())
        return f"{self._steps} steps, {self._digest.hexdigest()}: {shown}"


def plain(value: Any, *, whole: bool = False) -> str:
    """Return a value as text that is the same in each process.

    Args:
        whole: with the attributes of any object of the core, not only of records; none may contain itself.
    """
    match value:
        case bool() | None | str():
            return str(value)
        case bytes():
            return value.hex()
        case float() if math.isfinite(value):
            return f"{value:.5g}"
        case int() | float():
            return str(value)
        case enum.Enum():
            return str(value.value)
    each = partial(plain, whole=whole)
    match value:
        case Mapping():
            return "{" + ", ".join(f"{each(key)}: {each(one)}" for key, one in value.items()) + "}"
        case Set():
            return "{" + ", ".join(sorted(map(each, value))) + "}"
        case list() | tuple():
            return "(" + ", ".join(map(each, value)) + ")"
    kind = type(value)
    if attrs.has(kind):
        return each({field.name: getattr(value, field.name) for field in attrs.fields(kind)})
    if whole and kind.__module__.startswith("smartbatch.core."):
        return each(getattr(value, "__dict__", {name: getattr(value, name) for name in _slots(kind)}))
    return kind.__name__


def _slots(kind: type) -> list[str]:
    return [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
