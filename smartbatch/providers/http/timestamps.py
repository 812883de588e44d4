"""Moments in answers, as Unix seconds: a ``Date`` header, RFC 3339 texts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

__all__ = ["http_date", "server_time", "unix_seconds"]

_LONGEST = 64  # characters; no moment is longer


def server_time(headers: Mapping[str, str]) -> float | None:
    """Return when the server says it answered; ``headers`` by lower-case name."""
    return http_date(headers.get("date"))


def http_date(text: str | None) -> float | None:
    """Return the moment an HTTP date names (RFC 9110, 5.6.7); ``None`` for anything else."""
    if not text or len(text) > _LONGEST:
        return None
    try:
        return _utc(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def unix_seconds(text: Any) -> float | None:
    """Return the moment an RFC 3339 text names; ``None`` for anything else."""
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
        return None
    try:
        return _utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def _utc(moment: datetime) -> float:
    """A moment without a zone is UTC: so are HTTP dates, and ``-0000`` comes back without one."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
