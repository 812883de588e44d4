"""Classifies the Gemini API's errors.

Sources: Google's troubleshooting guide and rate limit pages, ``google.rpc`` error details, and
error bodies of the live service in public reports. There are no limit headers; only the details
of a refusal name limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import FlexTier
from smartbatch.providers.error_reader import ErrorReader, Refusal, error_in
from smartbatch.providers.error_table import RPC_CODES, kind_of_status
from smartbatch.providers.foreign_text import PLAIN_WORD, plain, short
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.limit_headers import parse_duration
from smartbatch.types import LimitReport

_BAD_KEY = re.compile(r"api[ _]key (?:not valid|not found|expired|is invalid)|API_KEY_INVALID", re.I)
_TOO_LONG = re.compile(
    r"exceeds? (?:the )?(?:maximum|limit)[^.]{0,40}tokens|context (?:length|window|size)[^.]{0,40}exceed",
    re.I,
)
_PLACE = re.compile(r"(?:location|region|country) is not supported", re.I)
_NO_MONEY = re.compile(r"credits (?:are|have been) (?:depleted|used up)|spend(?:ing)?[ -](?:cap|limit)", re.I)
_BILLING = re.compile(r"enable billing|billing (?:account|is)", re.I)
BATCH_EXPIRED = re.compile(r"batch[^.]{0,20}expired", re.I)

CANCELLED, DEADLINE = 1, 4  # values of ``google.rpc.Code``
_ENQUEUED = re.compile(r"enqueued", re.I)


@frozen
class _Error:
    message: str
    status: str | None
    reasons: tuple[str, ...]  # from ErrorInfo
    violations: tuple[tuple[str, str | None], ...]  # quota ids, with limits if they are named
    wait: float | None  # seconds, from RetryInfo
    code: int | None  # HTTP status named in the body

    def quotas(self, word: str) -> list[tuple[str, str | None]]:
        """Return the violated quotas whose names contain ``word``."""
        return [(name, value) for name, value in self.violations if word in name]


def understand(reply: Reply, data: Any) -> Refusal:
    found = _take_apart(data)
    # an error inside a success has the status it names
    status = found.code if reply.ok and found.code is not None else reply.status
    named = None if status == reply.status else status
    if status == 429 and (spent := _used_up(found)) is not None:
        return evolve(spent, status=named)
    kind = _kind(status, found)
    limits: dict[str, int] = {}
    for name, value in found.quotas("PerMinute") if kind is ErrorKind.RATE_LIMIT else ():
        if value is not None:
            field = "input_limit" if "token" in name.lower() else "requests_limit"
            limits[field] = min(int(value), limits.get(field, int(value)))
    return Refusal(
        kind,
        found.message,
        "API_KEY_INVALID" if "API_KEY_INVALID" in found.reasons else found.status,
        status=named,
        wait=found.wait,
        limits=LimitReport(**limits) if limits else None,
    )


def _kind(status: int, found: _Error) -> ErrorKind:
    if 200 <= status < 300:
        return ErrorKind.INVALID_RESPONSE
    if "API_KEY_INVALID" in found.reasons or (status in (400, 403) and _BAD_KEY.search(found.message)):
        return ErrorKind.AUTH_ERROR
    if status in (400, 403) and (
        "BILLING_DISABLED" in found.reasons
        or _BILLING.search(found.message)
        or _NO_MONEY.search(found.message)
    ):
        return ErrorKind.NO_MONEY
    if status in (400, 413, 500) and _TOO_LONG.search(found.message):
        return ErrorKind.CONTEXT_TOO_LONG
    if status == 400 and _PLACE.search(found.message):
        return ErrorKind.AUTH_ERROR  # the API is not available in this location, for any request
    if status == 504:  # DEADLINE_EXCEEDED: the prompt took longer than the time allowed
        return ErrorKind.TIMEOUT
    return kind_of_status(status)


def _used_up(found: _Error) -> Refusal | None:
    """Classify a 429 that a short wait does not resolve. The delay of seconds that it names is misleading."""
    if day := found.quotas("PerDay"):
        name, value = day[0]
        amount = f" of {value}" if value is not None else ""
        text = f"the daily quota{amount} is used up until midnight Pacific time ({name}); use another model"
        return Refusal(ErrorKind.NO_MONEY, text, "daily_quota")
    if none := [name for name, value in found.violations if value == "0"]:
        text = f"the project has no quota for this model ({none[0]}); enable billing for it"
        return Refusal(ErrorKind.NO_MONEY, text, "no_quota")
    if _NO_MONEY.search(found.message):
        text = "the project's credit or spend limit is used up; see its billing page"
        return Refusal(ErrorKind.NO_MONEY, text, "no_money")
    return None


def _take_apart(data: Any) -> _Error:
    error = error_in(data)
    code = error.get("code")
    reasons: list[str] = []
    violations: list[tuple[str, str | None]] = []
    wait: float | None = None
    for detail in _dicts(error.get("details")):
        if isinstance(reason := detail.get("reason"), str):
            reasons.append(reason)
        for each in _dicts(detail.get("violations")):
            name = short(each.get("quotaId"), PLAIN_WORD) or short(each.get("quotaMetric"), PLAIN_WORD) or ""
            value = plain(each.get("quotaValue"))
            violations.append((name, value if re.fullmatch(r"[0-9]{1,12}", value) else None))
        if "retryDelay" in detail:
            wait = _seconds(detail["retryDelay"])
    return _Error(
        message=error.get("message", ""),
        status=short(error.get("status"), PLAIN_WORD),
        reasons=tuple(reasons),
        violations=tuple(violations),
        wait=wait,
        code=code if type(code) is int and 400 <= code <= 599 else None,
    )


def _dicts(found: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in found if isinstance(each, dict)) if isinstance(found, list) else iter(())


def _seconds(delay: Any) -> float | None:
    """Parse a protobuf duration: ``"41s"``, ``"0.847655010s"`` or an object."""
    if isinstance(delay, str):
        return parse_duration(delay)
    try:
        return max(0.0, int(delay.get("seconds", 0)) + int(delay.get("nanos", 0)) / 1e9)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


ERRORS = ErrorReader(understand, lambda headers: None)  # noqa: ARG005 - no header names limits


def status_error(found: Any, errors: ErrorReader) -> ProviderError:
    """Convert a ``google.rpc.Status``. An unknown code is a server error."""
    found = found if isinstance(found, dict) else {}
    code = rpc_code(found)
    status, word = RPC_CODES.get(code, (code if 400 <= code <= 599 else 500, "UNKNOWN"))
    data = {"error": {**found, "code": status, "status": word}}
    error = errors.read(Reply(status, {}, b""), data=data)
    # The status is not an HTTP status, and a failed request is not billed.
    error.status, error.maybe_billed = None, False
    mark_over_quota(error)
    return error


def mark_over_quota(error: ProviderError) -> None:
    """Set the code ``token_limit_exceeded`` if the quota of enqueued tokens is full."""
    if error.kind in (ErrorKind.RATE_LIMIT, ErrorKind.NO_MONEY) and _ENQUEUED.search(error.message):
        error.kind, error.code = ErrorKind.RATE_LIMIT, "token_limit_exceeded"


def rpc_code(found: Any) -> int:
    code = found.get("code") if isinstance(found, Mapping) else None
    return code if type(code) is int else 0


def _gemini_full(error: ProviderError) -> bool:
    if error.status == 503:
        return True
    # a refusal because of a quota names the quota or a time to wait
    unnamed = error.limits is None and error.retry_after is None
    return error.status == 429 and error.kind is ErrorKind.RATE_LIMIT and unnamed


FLEX_TIER = FlexTier("serviceTier", ("service_tier",), _gemini_full)
