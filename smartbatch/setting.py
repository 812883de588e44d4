"""The rules of one setting: its kind, range and help, and how its value is checked and parsed.

Checks, environment variables and the reference in the docs all use the same :class:`Spec`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self

from attrs import Attribute, Converter, field, frozen

from smartbatch._words import DURATION_EXAMPLES, seconds_in, usd_in, without_middle
from smartbatch.errors import ConfigError, did_you_mean, scrub
from smartbatch.prices import Price

_SWITCHES = {"true": "auto", "false": "off"}
"""What is meant if a switch that is not just on or off is set to a truth value."""


@frozen(kw_only=True)
class Spec:
    kind: str  # float, int, bool, choice, text, texts, usd, prices or hosts
    low: float = -math.inf  # inclusive
    high: float = math.inf  # inclusive
    choices: tuple[str, ...] = ()  # values of the kind choice
    unit: str = ""
    help: str = ""  # one sentence for the reference
    optional: bool = False  # whether None is allowed
    note: str = ""  # remark on the range

    @property
    def range(self) -> str:
        """The range in words, for errors and the reference."""
        words = {
            "bool": "true or false",
            "text": "a string",
            "texts": "strings, comma-separated in a variable",
            "prices": "a table of prices by model",
            "hosts": "a table of hosts by name",
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
        """Convert a value to the setting's type.

        Args:
            label: the key and the source of the value, for errors.

        Raises:
            ConfigError: the value is out of range or of another kind.
        """
        if self.optional and (value is None or (value == "none" and self.unit == "s")):
            return None
        if self.kind in ("float", "int", "usd"):
            return self._number(label, value)
        if self.kind == "prices":
            return self._prices(label, value)
        if self.kind == "hosts":
            return self._hosts(label, value)
        if self.kind == "texts":
            return self._texts(label, value)
        right = {"bool": lambda: isinstance(value, bool), "choice": lambda: value in self.choices}
        if right.get(self.kind, lambda: isinstance(value, str) and bool(value.strip()))():
            return value
        raise self.refusal(label, value)

    def parse(self, label: str, text: str) -> Any:
        """Parse and check a string, such as the value of an environment variable."""
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
        shown = scrub(_without_password(value), limit=60)
        if self.unit == "s" and seconds_in(value) is None:
            return ConfigError(f"{label} = {shown} is not a duration; use {DURATION_EXAMPLES}: {self.range}")
        if self.kind == "usd" and isinstance(value, str):
            return ConfigError(
                f"{label} = {shown} is not an amount in USD, the only supported currency; use 5 or '5 USD': "
                f"{self.range}"
            )
        near = did_you_mean(_SWITCHES.get(str(value).strip().lower(), value), self.choices)
        return ConfigError(f"{label} = {shown} is {self._flaw(value)}: {self.range}{near}")

    def _flaw(self, value: Any) -> str:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "int" and self.unit != "s" and not (number and value % 1 == 0):
            return "not a whole number"
        return "not a number" if self.kind == "float" and self.unit != "s" and not number else "out of range"

    def _number(self, label: str, value: Any) -> float:
        given = value
        if self.kind == "usd":
            value = usd_in(value)
        elif self.unit == "s":
            value = seconds_in(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refusal(label, given)
        if not self.low <= value <= self.high:  # false for NaN, too
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

    def _prices(self, label: str, value: Any) -> dict[str, Price | str]:
        if not isinstance(value, Mapping):
            raise self.refusal(label, value)
        prices: dict[str, Price | str] = {}
        for model, price in value.items():
            if isinstance(price, str):
                prefix, _, name = map(str.strip, price.partition(":"))
                # a name for a name could lead in a circle
                if not prefix or not name or isinstance(value.get(price), str):
                    raise ConfigError(
                        f"prices[{model!r}] = {price!r} must be a price, or name a model with a price of its "
                        "own as provider:model"
                    )
                prices[str(model)] = f"{prefix}:{name}"
            else:
                prices[str(model)] = Price.parse(str(model), price)
        return prices

    def _hosts(self, label: str, value: Any) -> dict[str, dict[str, Any]]:
        """The fields remain plain values; the providers check them."""
        if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
            raise self.refusal(label, value)
        return {str(name): dict(fields) for name, fields in value.items()}


@frozen
class Setting:
    """A setting with its value and rules."""

    name: str
    value: Any
    default: Any
    range: str
    help: str
    environment: str


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


_PASSWORD = re.compile(
    r"""(?<=://)\S*(?=@)|((?:password|token)\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|(?:[^&\s'"\\]|\\.)+)""", re.I | re.S
)
"""Matches the user and password of a URL, or the value of a password or token parameter."""


def _hidden(text: str) -> str:
    return _PASSWORD.sub(lambda found: f"{found[1] or ''}[hidden]", text)


class Secret(str):
    """An address that contains a password.

    As a string it has ``[hidden]`` in place of the password, even if it is joined, encoded or serialized.
    Only :meth:`reveal` returns the address. The object is equal to its address.
    """

    _address: str

    def __new__(cls, address: str) -> Self:
        hidden = super().__new__(cls, _hidden(address))
        hidden._address = address
        return hidden

    def reveal(self) -> str:
        return self._address

    def __eq__(self, other: object) -> bool:
        return self._address == (revealed(other) if isinstance(other, str) else other)

    def __hash__(self) -> int:
        return hash(self._address)

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._address,)  # copies, such as those sent to worker processes, keep the password


def revealed(text: str) -> str:
    """Return a secret with its password, and any other string unchanged."""
    return text.reveal() if isinstance(text, Secret) else text


def _checked(value: Any, attribute: Attribute[Any]) -> Any:
    found = spec_of(attribute).check(attribute.name, value)
    return Secret(revealed(found)) if isinstance(found, str) and _PASSWORD.search(revealed(found)) else found


def _without_password(value: object) -> str:
    return without_middle(_hidden(repr(_hidden(value) if isinstance(value, str) else value)))


def setting(
    default: Any, kind: str, help: str, low: float = -math.inf, high: float = math.inf, **more: Any
) -> Any:
    """Declare a setting: a field that checks its value when the object is created.

    ``None`` is allowed if it is the default, or with ``optional``. ``more`` contains further fields of
    :class:`Spec`.
    """
    more.setdefault("optional", default is None)
    spec = Spec(kind=kind, low=low, high=high, help=help, **more)
    converter = Converter(_checked, takes_field=True)
    return field(default=default, converter=converter, repr=_without_password, metadata={"spec": spec})


def seconds(default: float | None, help: str, low: float, high: float, **more: Any) -> Any:
    return setting(default, "float", help, low, high, unit="s", **more)


def choice(default: str, help: str, *choices: str) -> Any:
    return setting(default, "choice", help, choices=choices)


def spec_of(attribute: Attribute[Any]) -> Spec:
    spec: Spec = attribute.metadata["spec"]
    return spec
