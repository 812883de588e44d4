"""Formats and parses figures and durations, shortens reprs, and writes safely to terminals."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import Any, Literal, TextIO, TypeAlias, overload

from smartbatch.errors import ConfigError

Unit: TypeAlias = Literal["number", "money", "duration", "share"]

UNKNOWN = "unknown"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 160
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = _short.maxarray = 3
_short.maxlevel = 3


def number(value: float) -> str:
    """Format a number with thousands separators: ``1,234``, ``0.25``."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def money(usd: float | None, *, rounded_up: bool = False) -> str:
    """Format an amount: ``$12.30``, ``$0.03``; below a cent, two significant figures.

    Args:
        rounded_up: round up, so that a budget of the displayed amount is sufficient.
    """
    if usd is None:
        return UNKNOWN
    sign, size = "-" if usd < 0 else "", abs(usd)
    if size < 1e-9:
        return "$0"
    digits = 2 if size >= 0.00995 else 1 - math.floor(math.log10(size))
    if rounded_up:
        size = _ceiling(size, digits)
    shown = f"{size:,.{digits}f}"
    return f"{sign}${shown if digits == 2 else shown.rstrip('0')}"


def money_range(low: float, high: float) -> str:
    """Format the ends of a range with three figures, so that they differ: ``$4.10 to $4.60``, ``$0.0286 to
    $0.0318``.
    """
    return f"{money_within(low, high)} to {money_within(high, high)}"


def money_within(usd: float, high: float) -> str:
    """Format an amount with the decimals of a range that ends at ``high``."""
    digits = 2 - math.floor(math.log10(high)) if high >= 1e-9 else 0
    return money(usd) if digits <= 2 else f"${usd:,.{digits}f}"


def duration(seconds: float, *, rounded_up: bool = False) -> str:
    """Format seconds in a suitable unit: ``350 ms``, ``4 min``, ``2.5 h``, ``3 d``.

    Args:
        rounded_up: round up, so that a deadline of the displayed time is sufficient.
    """
    if not math.isfinite(seconds):
        return "forever"
    if seconds <= 0:
        return "0 s"
    shown = _rounded_up if rounded_up else _significant
    if seconds < 0.999:
        return f"{shown(seconds * 1000)} ms"
    for unit, name, below in ((1.0, "s", 119.5), (_MINUTE, "min", 90 * _MINUTE), (_HOUR, "h", 2 * _DAY)):
        if seconds < below:
            return f"{shown(seconds / unit)} {name}"
    return f"{shown(seconds / _DAY)} d"


def known_money(usd: float, unpriced: int) -> str:
    """Format a total without the cost of ``unpriced`` parts: ``at least $0.02``, or ``unknown`` if there is
    nothing else.
    """
    if unpriced and not usd:
        return UNKNOWN
    return f"at least {money(usd)}" if unpriced else money(usd)


def share(value: float) -> str:
    """Format a share of one as a percentage: ``95 %``."""
    return f"{_significant(value * 100)} %" if math.isfinite(value) else "–"


def moment(at: float) -> str:
    """Format Unix seconds as a time in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def plural(count: float, one: str, many: str | None = None) -> str:
    """Format a count with its noun: ``1 job``, ``2 jobs``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def size(count: float) -> str:
    """Return a number of bytes as text, such as ``3.4 MB`` (1 MB is a million bytes)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{_significant(count / scale)} {unit}"
    return plural(count, "byte")


def worded(value: float, unit: Unit) -> str:
    if unit == "money":
        return money(value)
    shown: dict[Unit, Callable[[float], str]] = {"number": number, "duration": duration, "share": share}
    return shown[unit](value)


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:.2g}"


def _rounded_up(value: float) -> str:
    return _significant(_ceiling(value, 0 if value > 9.9 else 1 - math.floor(math.log10(value))))


def _ceiling(value: float, digits: int) -> float:
    """Round up to a number of decimal digits, ignoring a millionth of the last digit."""
    return math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits


DURATION_EXAMPLES = "'2s', '90m', '6h30min', seconds as a number or a timedelta"

_SECONDS_PER_UNIT = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_DURATION_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.IGNORECASE)
_AMOUNT = re.compile(r"(?:\$\s*)?(\d+(?:\.\d*)?|\.\d+)(?:\s*usd)?", re.IGNORECASE)


def seconds_in(value: Any) -> float | None:
    """Parse a duration of either sign; return ``None`` for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    with suppress(ValueError):  # a string with units
        try:
            return float(value)
        except OverflowError:  # an integer too large for a float
            return math.inf if int(value) > 0 else -math.inf
    total, at, text = 0.0, 0, str(value)
    while at < len(text):
        part = _DURATION_PART.match(text, at)
        if part is None or part.group(2).lower() not in _SECONDS_PER_UNIT:
            return None
        total += float(part.group(1)) * _SECONDS_PER_UNIT[part.group(2).lower()]
        at = part.end()
    return total if text.strip() else None


@overload
def seconds_of(field: str, value: float | str | timedelta) -> float: ...
@overload
def seconds_of(field: str, value: float | str | timedelta | None) -> float | None: ...
def seconds_of(field: str, value: float | str | timedelta | None) -> float | None:
    """Return an optional duration in seconds.

    Raises:
        ConfigError: the value is not a duration of 0 or more.
    """
    if value is None:
        return None
    found = seconds_in(value)
    if found is None or not found >= 0:  # false for NaN, too
        raise ConfigError(f"{field} = {value!r:.60} is not a duration of 0 or more; use {DURATION_EXAMPLES}")
    return found


def count_of(field: str, value: Any) -> int:
    """Return a count.

    Raises:
        ConfigError: the value is not a whole number from 0 to the maximum of a database column.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 0 <= value < 2**63:
        raise ConfigError(f"{field} = {value!r:.60} is not a whole number of 0 or more")
    return int(value)


def usd_in(value: Any) -> Any:
    """Return the number in ``5``, ``"5"``, ``"5 USD"`` or ``"$5"``, and any other value unchanged."""
    found = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if found is None else float(found.group(1))


def short(value: object, most: int = 240) -> str:
    """Return a repr of about ``most`` characters at most."""
    return without_middle(_short.repr(value), most)


def brief(value: object) -> str:
    """Return a very short repr for an item of a long list."""
    return short(value, 80)


def without_middle(words: str, most: int = 300) -> str:
    """Shorten a repr to ``most`` characters, keeping its end."""
    return words if len(words) <= most else f"{words[: most - 43]}...{words[-40:]}"


def counted(word: str, values: Sequence[object]) -> str:
    """Return the number of values instead of the values."""
    return f"<{len(values):,} {word}>"


def escape(text: str) -> str:
    """Replace unprintable characters (escape sequences, line breaks, bidi marks) with escapes such as
    ``\\x1b``.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class SafeStream:
    """An output stream that other code may close. After a failed write, nothing more is written.

    Characters missing from the stream's encoding are written as escapes.

    Args:
        stream: ``None`` in a program without standard streams.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self._broken = stream is None

    def write(self, text: str) -> int:
        if not self._broken:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            except (OSError, ValueError):  # the reader has exited, or the stream is closed
                self._broken = True
        return len(text)

    def flush(self) -> None:
        if not self._broken:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
