"""What values share: equality, hash and repr by their fields.

A value is made with ``@frozen(eq=False, repr=False)`` and is a :class:`Value`. attrs would compile functions
for each of some hundred classes, which takes a tenth of the processor time until the first request.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from attrs import fields


@reprlib.recursive_repr()
def fields_repr(value: Any) -> str:
    """Return the repr that attrs would make; ``__repr__`` of records that are no :class:`Value`."""
    shown = (
        f"{each.name}={(each.repr if callable(each.repr) else repr)(getattr(value, each.name))}"
        for each in fields(type(value))
        if each.repr
    )
    return f"{type(value).__qualname__.rsplit('>.', 1)[-1]}({', '.join(shown)})"


class Record:
    """Root of the records, which may change: two of one class are equal where all fields are, as with attrs,
    and none has a hash.
    """

    __slots__ = ()

    __repr__ = fields_repr

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _compared(self) == _compared(other)


class Value(Record):
    """Root of the values, which do not change, so that they have a hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((type(self), _compared(self)))


def _compared(value: Any) -> object:
    kind: Any = type(value)
    return _fields_of(kind)(value)


@cache
def _fields_of(kind: Any) -> Callable[[object], object]:
    """Return what takes the compared fields out of a value of this class."""
    names = [each.name for each in fields(kind) if each.eq]
    return attrgetter(*names) if names else lambda _: ()
