"""The rules of one setting: its kind, its range, its help, and how texts, durations and money are parsed.

The checks, the reader of the environment and the reference in the docs all use the same :class:`Spec`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from numbers import Integral
from typing import Any, Self, overload

from attrs import Attribute, Converter, field, frozen

from smartbatch._words import without_middle
from smartbatch.errors import ConfigError, did_you_mean, scrub
from smartbatch.prices import Price
from smartbatch.types import Duration

EXAMPLES = "'2s', '90m', '6h30min', seconds as a number or a timedelta"
"""Durations, as errors show them."""

_UNITS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.IGNORECASE)


def seconds_in(value: Any) -> float | None:
    """Return the seconds of a :data:`Duration`, of either sign; ``None`` for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    with suppress(ValueError):  # a text with units
        try:
            return float(value)
        except OverflowError:  # an integer beyond all floats
            return math.inf if int(value) > 0 else -math.inf
    total, at, text = 0.0, 0, str(value)
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.group(2).lower() not in _UNITS:
            return None
        total += float(part.group(1)) * _UNITS[part.group(2).lower()]
        at = part.end()
    return total if text.strip() else None


@overload
def seconds_of(field: str, value: Duration) -> float: ...
@overload
def seconds_of(field: str, value: Duration | None) -> float | None: ...
def seconds_of(field: str, value: Duration | None) -> float | None:
    """Return the seconds of an argument that may be left out.

    Raises:
        ConfigError: it is no duration of 0 or more.
    """
    if value is None:
        return None
    found = seconds_in(value)
    if found is None or not found >= 0:  # also what NaN fails
        raise ConfigError(f"{field} = {value!r:.60} is no duration: write {EXAMPLES}")
    return found


def count_of(field: str, value: Any) -> int:
    """Return an argument that counts, such as the most of what is wanted.

    Raises:
        ConfigError: it is no whole number from 0 to the most that databases take.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 0 <= value < 2**63:
        raise ConfigError(f"{field} = {value!r:.60} is no whole number of 0 or more")
    return int(value)


@frozen(kw_only=True)
class Spec:
    """The rules of one setting.

    Args:
        kind: ``float``, ``int``, ``bool``, ``choice``, ``text``, ``texts``, ``usd`` or ``prices``.
        low, high: the range, both included.
        choices: the values allowed, where ``kind`` is ``choice``.
        unit: what the number counts.
        help: one sentence for the reference.
        optional: True when ``None`` is a value.
        note: a remark on the range.
    """

    kind: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    unit: str = ""
    help: str = ""
    optional: bool = False
    note: str = ""

    @property
    def range(self) -> str:
        """The range in words, as errors and the reference print it."""
        words = {
            "bool": "true or false",
            "text": "a text",
            "texts": "texts, in a variable with commas between",
            "prices": "a table of prices by model",
        }
        if self.kind == "choice":
            text = " or ".join(self.choices)
        elif self.kind in words:
            text = words[self.kind]
        elif self.high == math.inf:
            text = f"{_plain(self.low)} or more"
        else:
            text = f"{_plain(self.low)} to {_plain(self.high)}"
        text += f" {self.unit}" if self.unit else ""
        text += f" ({self.note})" if self.note else ""
        return text + (", or none" if self.optional else "")

    def check(self, label: str, value: Any) -> Any:
        """Return ``value`` in the setting's type; ``label`` is the key, and where its value comes from.

        Raises:
            ConfigError: when it is not of the kind or out of range.
        """
        if value is None and self.optional:
            return None
        if self.kind in ("float", "int", "usd"):
            return self._number(label, value)
        if self.kind == "prices":
            return self._prices(label, value)
        if self.kind == "texts":
            return self._texts(label, value)
        right = {"bool": lambda: isinstance(value, bool), "choice": lambda: value in self.choices}
        if right.get(self.kind, lambda: isinstance(value, str) and bool(value.strip()))():
            return value
        raise self.refusal(label, value)

    def parse(self, label: str, text: str) -> Any:
        """Return the value written as ``text``, as in the environment, checked as :meth:`check` does."""
        word = text.strip().lower()
        if self.optional and word == "none":
            return None
        value: Any = text.strip()
        if self.kind == "bool":
            value = {"true": True, "1": True, "false": False, "0": False}.get(word, text)
        elif self.kind == "texts":
            value = [part for part in text.split(",") if part.strip()]
        elif self.kind in ("float", "int") and self.unit != "s":
            try:
                value = float(word) if self.kind == "float" else int(word)
            except ValueError:
                raise self.refusal(label, text) from None
        return self.check(label, value)

    def refusal(self, label: str, value: Any) -> ConfigError:
        """Return the error that says what ``label`` may be."""
        shown = scrub(_without_password(value), limit=60)
        if self.unit == "s" and seconds_in(value) is None:
            return ConfigError(f"{label} = {shown} is no duration: write {EXAMPLES}; {self.range}")
        if self.kind == "usd" and isinstance(value, str):
            return ConfigError(
                f"{label} = {shown} is no sum in USD, the only currency that is understood: write 5 or "
                f"'5 USD'; {self.range}"
            )
        near = did_you_mean(value, self.choices)
        return ConfigError(f"{label} = {shown} is {self._flaw(value)}: {self.range}{near}")

    def _flaw(self, value: Any) -> str:
        """Return what is wrong with a value: '8' is within 1 to 1024, and no number."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "int" and self.unit != "s" and not (number and value % 1 == 0):
            return "no whole number"
        return "no number" if self.kind == "float" and self.unit != "s" and not number else "out of range"

    def _number(self, label: str, value: Any) -> float:
        given = value
        if self.kind == "usd":
            value = usd(value)
        elif self.unit == "s":
            value = seconds_in(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refusal(label, given)
        if not self.low <= value <= self.high:  # also what NaN fails
            raise self.refusal(label, given)
        if self.kind != "int":
            return float(value)
        if value != int(value):
            raise self.refusal(label, given)
        return int(value)

    def _texts(self, label: str, value: Any) -> frozenset[str]:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple, set, frozenset)) or not all(
            isinstance(text, str) and text.strip() for text in texts
        ):
            raise self.refusal(label, value)
        return frozenset(text.strip() for text in texts)

    def _prices(self, label: str, value: Any) -> dict[str, Price]:
        if not isinstance(value, Mapping):
            raise self.refusal(label, value)
        return {str(model): Price.parse(str(model), table) for model, table in value.items()}


@frozen
class Setting:
    """One line of the reference: a key with its value and rules."""

    name: str
    value: Any
    default: Any
    range: str
    help: str
    environment: str


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def usd(value: Any) -> Any:
    """Return the number in ``5``, ``"5"``, ``"5 USD"`` or ``"$5"``; anything else unchanged."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*\$?\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:usd)?\s*", value, re.IGNORECASE)
        return float(found.group(1)) if found else value
    return value


_PASSWORD = re.compile(
    r"""(?<=://)\S*(?=@)|(password\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|(?:[^&\s'"\\]|\\.)+)""", re.I | re.S
)
"""The user and password of a URL, or the value of a parameter."""


def _hidden(text: str) -> str:
    return _PASSWORD.sub(lambda found: f"{found[1] or ''}[hidden]", text)


class Secret(str):
    """An address with a password in it. As a string it has ``[hidden]`` in place of the password, however it
    is printed, joined, encoded or serialised. Only :meth:`reveal` returns the address; it is equal to that.
    """

    _address: str

    def __new__(cls, address: str) -> Self:
        hidden = super().__new__(cls, _hidden(address))
        hidden._address = address
        return hidden

    def reveal(self) -> str:
        """Return the address with its password."""
        return self._address

    def __eq__(self, other: object) -> bool:
        return self._address == (revealed(other) if isinstance(other, str) else other)

    def __hash__(self) -> int:
        return hash(self._address)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, such as that of a worker process, has the password as well."""
        return Secret, (self._address,)


def revealed(text: str) -> str:
    """Return a setting as it is used: a secret with its password, any other text as it is."""
    return text.reveal() if isinstance(text, Secret) else text


def _checked(value: Any, attribute: Attribute[Any]) -> Any:
    found = spec_of(attribute).check(attribute.name, value)
    return Secret(revealed(found)) if isinstance(found, str) and _PASSWORD.search(revealed(found)) else found


def _without_password(value: object) -> str:
    """Return the ``repr`` of a setting, shortened; of an address without the password in it."""
    return without_middle(_hidden(repr(_hidden(value) if isinstance(value, str) else value)))


def setting(
    default: Any, kind: str, help: str, low: float = -math.inf, high: float = math.inf, **more: Any
) -> Any:
    """Declare one key of a settings class: a field that checks itself when the object is made.

    ``None`` is a value where it is the default; ``more`` are further attributes of :class:`Spec`.
    """
    spec = Spec(kind=kind, low=low, high=high, help=help, optional=default is None, **more)
    converter = Converter(_checked, takes_field=True)
    return field(default=default, converter=converter, repr=_without_password, metadata={"spec": spec})


def seconds(default: float | None, help: str, low: float, high: float) -> Any:
    """Declare a duration."""
    return setting(default, "float", help, low, high, unit="s")


def choice(default: str, help: str, *choices: str) -> Any:
    """Declare a word out of ``choices``."""
    return setting(default, "choice", help, choices=choices)


def spec_of(attribute: Attribute[Any]) -> Spec:
    """Return the rules of a field made by :func:`setting`."""
    spec: Spec = attribute.metadata["spec"]
    return spec
