"""Figures in words, as all views show them: two significant figures are enough to decide by."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["number", "money", "duration", "share"]

UNKNOWN = "unknown"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def number(value: float) -> str:
    """Return a number, with thousands separated: ``1,234``, ``0.25``."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def money(usd: float | None) -> str:
    """Return an amount: ``$12.30``, ``$0.03``, below a cent two significant figures."""
    if usd is None:
        return UNKNOWN
    sign, size = "-" if usd < 0 else "", abs(usd)
    if size < 1e-9:
        return "$0"
    if size >= 0.00995:
        return f"{sign}${size:,.2f}"
    return f"{sign}${size:.{1 - math.floor(math.log10(size))}f}"


def duration(seconds: float) -> str:
    """Return seconds in the unit that suits them: ``350 ms``, ``4 min``, ``2.5 h``, ``3 d``."""
    if not math.isfinite(seconds):
        return "forever"
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{_significant(seconds * 1000)} ms"
    for unit, name, below in ((1.0, "s", 119.5), (_MINUTE, "min", 90 * _MINUTE), (_HOUR, "h", 2 * _DAY)):
        if seconds < below:
            return f"{_significant(seconds / unit)} {name}"
    return f"{_significant(seconds / _DAY)} d"


def share(value: float) -> str:
    """Return a share of one in percent: ``95 %``."""
    return f"{_significant(value * 100)} %" if math.isfinite(value) else "–"


def moment(at: float) -> str:
    """Return Unix seconds as a time in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def plural(count: float, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 job``, ``2 jobs``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def worded(value: float, unit: Unit) -> str:
    """Return a figure of a unit."""
    return {"number": number, "money": money, "duration": duration, "share": share}[unit](value)


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:.2g}"
