"""Waiting times and limits in the headers of an answer, in all forms in use."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from smartbatch.providers.foreign_text import http_date, unix_seconds
from smartbatch.types import LimitReport

# maximum wait in seconds; longer ones seen in practice were mistakes
RETRY_AFTER_CEILING = 600.0

_NUMBER = re.compile(
    r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:e[+-]?\d++)?|[+-]?inf(?:inity)?", re.ASCII | re.IGNORECASE
)
# "ms" before "m"; otherwise 250ms would be read as 250 minutes. Both micro signs are in use.
_PART = re.compile(r"(?<!\d)(\d++(?:\.\d*+)?|\.\d++)(ms|us|µs|μs|ns|h|m|s)", re.ASCII)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_MAX_VALUE = 64  # characters


def parse_retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    """Return the seconds that a server asks clients to wait, up to the maximum; ``None`` if it names none.

    ``retry-after-ms`` (milliseconds) takes precedence over ``retry-after``, which contains seconds, an
    HTTP date (RFC 9110, 10.2.3), or a duration such as ``30s``, which some servers send.

    Args:
        headers: headers of the answer, with lower-case names. A date is compared with the answer's own
            ``date``.
        wall: Unix seconds now, for answers without a date.
    """
    answered = http_date(headers.get("date"))
    now = wall if answered is None else answered
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        seconds /= 1000.0
    else:
        text = headers.get("retry-after")
        seconds = _number(text)
        if seconds is None:
            seconds = parse_duration(text)
        if seconds is None and (date := http_date(text)) is not None:
            seconds = date - now
    return None if seconds is None else min(max(_until(seconds, now), 0.0), RETRY_AFTER_CEILING)


def parse_duration(text: str | None) -> float | None:
    """Parse a Go duration such as ``6m0s``, ``250ms`` or ``1h2m3.5s``.

    A bare number is seconds. ``None`` for anything else, including negative durations.
    """
    bare = _number(text)
    if bare is not None:
        return bare if 0 <= bare < math.inf else None
    text = (text or "").strip()
    if not text or len(text) > _MAX_VALUE:
        return None
    return _go_duration(text)


@lru_cache(maxsize=256)
def _go_duration(text: str) -> float | None:
    total, at = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != at:
            return None
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return total if at == len(text) else None


def read_limits(headers: Mapping[str, str], wall: float) -> LimitReport | None:
    """Read OpenAI's ``x-ratelimit-*`` headers; ``None`` without any. A missing limit does not mean
    unlimited.

    Args:
        headers: headers of the answer, with lower-case names. Resets are durations; some servers send Unix
            times in seconds, milliseconds, microseconds or nanoseconds.
        wall: Unix seconds now, for answers without a date.
    """
    now = _server_time(headers, wall)
    tokens, project = _figures(headers, "tokens", now), _figures(headers, "project-tokens", now)
    if project.limit is not None or project.remaining is not None:
        tokens = _tighter(tokens, project)
    return _report(
        requests=_figures(headers, "requests", now),
        tokens=tokens,
        input=_figures(headers, "input", now),
        output=_figures(headers, "output", now),
    )


class _Figures(NamedTuple):
    limit: int | None = None
    remaining: int | None = None
    reset: float | None = None


_UNSAID = _Figures()
_FIELDS = {
    what: tuple(f"{what}_{name}" for name in ("limit", "remaining", "reset"))
    for what in ("requests", "tokens", "input", "output")
}


_HEADERS = {
    what: tuple(
        (f"{prefix}limit-{name}", f"{prefix}remaining-{name}", f"{prefix}reset-{name}")
        for name in names
        for prefix in ("x-ratelimit-", "llm_provider-x-ratelimit-")
    )
    for what, names in {
        "requests": ("requests", "requests-minute", "req-minute"),
        "tokens": ("tokens", "tokens-minute"),
        "project-tokens": ("project-tokens",),
        "input": ("tokens-prompt",),
        "output": ("tokens-generated",),
    }.items()
}
"""Headers of each limit, from the provider itself and through a gateway. The names used by Cerebras and
Mistral contain the minute; their headers for longer periods are not read. Fireworks limits prompt and
generated tokens separately. Together's ``x-ratelimit-limit`` and ``x-tokenlimit-limit`` are not read, because
they change with use, and its documentation does not say clearly whether they apply per second or per minute.
"""


def _report(rounded_to: float = 0.0, **figures: _Figures) -> LimitReport | None:
    found: dict[str, Any] = {}
    for what, each in figures.items():
        if each != _UNSAID:
            found.update(zip(_FIELDS[what], each, strict=True))
    return LimitReport(**found, resets_rounded_to=rounded_to) if found else None


def _figures(headers: Mapping[str, str], what: str, now: float) -> _Figures:
    """Gateways such as LiteLLM pass on the provider's headers with a prefix."""
    for names in _HEADERS[what]:
        limit_text, remaining_text, reset_text = map(headers.get, names)
        if limit_text is remaining_text is reset_text is None:
            continue
        limit, remaining, reset = _count(limit_text), _count(remaining_text), parse_duration(reset_text)
        reset = None if reset is None else max(0.0, _until(reset, now))
        if limit is not None or remaining is not None or reset is not None:
            return _Figures(limit, remaining, reset)
    return _UNSAID


def _tighter(one: _Figures, other: _Figures) -> _Figures:
    """Combine two limits that both apply, such as the organization's and the project's."""
    limits = [figure.limit for figure in (one, other) if figure.limit is not None]
    left = [figure.remaining for figure in (one, other) if figure.remaining is not None]
    limit, remaining = min(limits, default=None), min(left, default=None)
    for figure in (one, other):
        if (figure.limit, figure.remaining) == (limit, remaining):
            return figure
    return _Figures(limit, remaining)  # a reset applies to one limit only


def read_anthropic_limits(headers: Mapping[str, str], wall: float) -> LimitReport | None:
    """Read Anthropic's ``anthropic-ratelimit-*`` headers; ``None`` without any.

    Args:
        headers: headers of the answer, with lower-case names. Resets are RFC 3339 times, so the server's own
            ``date`` is used if its clock differs from ``wall`` by more than its precision.
        wall: Unix seconds now.
    """
    found = {}
    now = _server_time(headers, wall)
    for what, names in _ANTHROPIC.items():
        limit, remaining, reset = map(headers.get, names)
        found[what] = _UNSAID
        if not (limit is remaining is reset is None):
            found[what] = _Figures(_count(limit), _count(remaining), _moment(reset, now))
    if found["tokens"].limit in (found["input"].limit, found["output"].limit):
        # "tokens" repeats the tightest limit; it must not be read as a limit of input and output together
        found["tokens"] = _UNSAID
    has_reset = any(each.reset is not None for each in found.values())
    return _report(_STAMPS_ROUNDED_TO if has_reset else 0.0, **found)


_ANTHROPIC = {
    what: tuple(f"anthropic-ratelimit-{name}-{figure}" for figure in ("limit", "remaining", "reset"))
    for what, name in (
        ("requests", "requests"),
        ("tokens", "tokens"),
        ("input", "input-tokens"),
        ("output", "output-tokens"),
    )
}
# Unix seconds of 2017 and 2286; a number between them, in any unit, is a time and not a duration
_EARLIEST, _LATEST = 1.5e9, 1e10
_STAMP_UNITS = (1.0, 1e3, 1e6, 1e9)  # units per second
_STAMPS_ROUNDED_TO = 1.0  # seconds
_DATE_IS_EXACT_TO = 2.0  # a Date header has whole seconds, and the answer takes time to arrive


def _number(text: str | None) -> float | None:
    return None if text is None or len(text) > _MAX_VALUE else _float(text)


@lru_cache(maxsize=1024)  # limits rarely change, and remainders recur
def _float(text: str) -> float | None:
    text = text.strip()
    # float() alone would also accept "nan", "1_000" and digits of other scripts
    return float(text) if _NUMBER.fullmatch(text) else None


def _until(number: float, now: float) -> float:
    """A Unix time is converted to seconds from ``now``; any other number is already in seconds."""
    for unit in _STAMP_UNITS:
        if _EARLIEST <= number / unit <= _LATEST:
            return number / unit - now
    return number


def _count(text: str | None) -> int | None:
    number = _number(text)
    return int(number) if number is not None and 0 <= number < math.inf else None


def _server_time(headers: Mapping[str, str], wall: float) -> float:
    date = http_date(headers.get("date"))
    return wall if date is None or abs(date - wall) <= _DATE_IS_EXACT_TO else date


def _moment(text: str | None, now: float) -> float | None:
    """Parse an RFC 3339 time into seconds from now; 0 for the past."""
    moment = unix_seconds(text and text.strip())
    return None if moment is None else max(0.0, moment - now)
