"""Batches and lists as OpenAI and compatible servers describe them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.providers.error_reader import error_in
from smartbatch.providers.error_table import explained, kind_of_code
from smartbatch.providers.foreign_text import (
    PLAIN_ID,
    PLAIN_WORD,
    fields,
    safe_text,
    short,
    unix_seconds,
    unusable,
    whole,
)
from smartbatch.providers.http.batch_calls import check_id
from smartbatch.providers.openai.dialect import BatchDialect
from smartbatch.providers.openai.errors import refused_parameters

MARK_FIELD = "sb"  # of the mark in a batch's metadata
NAME_PREFIX = "sb-"  # of a batch whose name contains its mark
MAX_PAGES = 1000  # per list
_QUOTA_CODE = "token_limit_exceeded"  # too many tokens are in unfinished batches

# LiteLLM's ids are base64 strings of some 400 characters; no id has a slash or starts with a period
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+~-]{0,1023}")
_QUOTA_TEXT = re.compile(r"enqueued[ _]token[ _]limit", re.I)
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DAY_SECONDS = 86_400.0
_EXPIRY_SECONDS = 600.0  # from the expiry until counters no longer change
_STATES = {
    "validating": RemoteState.RUNNING,
    "queued": RemoteState.RUNNING,
    "pending": RemoteState.RUNNING,
    "running": RemoteState.RUNNING,
    "in_progress": RemoteState.RUNNING,
    "finalizing": RemoteState.ENDING,
    "cancelling": RemoteState.ENDING,
    "cancellation_requested": RemoteState.ENDING,
    "completed": RemoteState.COMPLETED,
    "success": RemoteState.COMPLETED,
    "succeeded": RemoteState.COMPLETED,
    "failed": RemoteState.FAILED,
    "expired": RemoteState.EXPIRED,
    "timeout_exceeded": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
    "canceled": RemoteState.CANCELLED,
}


def read_batch(
    data: Mapping[str, Any], dialect: BatchDialect, secrets: Sequence[str], now: float | None
) -> RemoteBatch:
    """Convert a decoded batch; unusable ids are an error.

    Args:
        now: Unix seconds by the provider's clock; ``None`` if unknown.
    """
    inner = fields(data.get("job"))
    if inner and "id" not in data:
        data = inner  # Together wraps the answer to a create call
    batch_id = plain_id(data.get("id") or data.get("batch_id"))
    if batch_id is None:
        raise unusable("the provider returned a batch without an id")
    counts = _counts(data)
    state, word = _state_of_counters(data, counts, now) if dialect.counters else _state_of_word(data)
    outputs: list[str | None] = []
    if dialect.results == "files":
        names = ("output_file_id", "error_file_id", "output_file", "error_file")
        outputs = [plain_id(data.get(name)) for name in names]
    elif state is RemoteState.COMPLETED or (state.ended and (counts["completed"] or counts["failed"])):
        outputs = [batch_id]
    reason = data.get("errors") or data.get("error") or data.get("cancel_by_xai_message")
    return RemoteBatch(
        id=batch_id,
        state=state,
        word=word,
        created_at=_moment(data.get("created_at") or data.get("create_time")),
        mark=_mark(data),
        file_id=_input_file(data),
        total=counts["total"] or None,  # 0 while the batch is validated
        completed=counts["completed"],
        failed=counts["failed"],
        outputs=tuple(dict.fromkeys(output for output in outputs if output is not None)),
        error=_failure(reason, secrets) if state is RemoteState.FAILED else None,
    )


def has_mark(data: Mapping[str, Any]) -> bool:
    """Whether this library created a batch, which may be unreadable otherwise."""
    return MARK_FIELD in fields(data.get("metadata")) or str(data.get("name")).startswith(NAME_PREFIX)


def _mark(data: Mapping[str, Any]) -> str | None:
    name = data.get("name")
    if isinstance(name, str) and name.startswith(NAME_PREFIX):
        return short(name.removeprefix(NAME_PREFIX), PLAIN_ID)
    return short(fields(data.get("metadata")).get(MARK_FIELD), PLAIN_ID)


def _input_file(data: Mapping[str, Any]) -> str | None:
    several = data.get("input_files")
    if isinstance(several, list) and len(several) == 1:
        return plain_id(several[0])
    return plain_id(data.get("input_file_id"))


def _counts(data: Mapping[str, Any]) -> dict[str, int]:
    """Accepts OpenAI's counts, Mistral's, which are fields of the batch, and xAI's."""
    found, state = fields(data.get("request_counts")), fields(data.get("state"))
    names = {
        "total": (found.get("total"), data.get("total_requests"), state.get("num_requests")),
        "completed": (found.get("completed"), data.get("succeeded_requests"), state.get("num_success")),
        "failed": (found.get("failed"), data.get("failed_requests"), state.get("num_error")),
    }
    return {name: next(filter(None, map(whole, values)), 0) for name, values in names.items()}


def _state_of_word(data: Mapping[str, Any]) -> tuple[RemoteState, str]:
    word = short(data.get("status"), PLAIN_WORD) or ""
    return _STATES.get(word.lower(), RemoteState.RUNNING), word


def _state_of_counters(
    data: Mapping[str, Any], counts: Mapping[str, int], now: float | None
) -> tuple[RemoteState, str]:
    """A batch has ended once no request is pending, or when it expires. While the input is validated, all
    counters are 0.
    """
    pending = whole(fields(data.get("state")).get("num_pending")) or 0
    if data.get("cancel_time") and not pending:
        by_provider = bool(data.get("cancel_by_xai_message"))
        return (RemoteState.FAILED, "failed") if by_provider else (RemoteState.CANCELLED, "cancelled")
    if pending and _has_expired(data.get("expire_time"), now):
        return RemoteState.EXPIRED, "expired"
    if data.get("cancel_time"):
        return RemoteState.ENDING, "cancelling"
    if pending or not counts["total"]:
        return RemoteState.RUNNING, "in_progress" if pending else "validating"
    return RemoteState.COMPLETED, "completed"


def _has_expired(value: Any, now: float | None) -> bool:
    """Whether a time has passed, or the day after a date has begun."""
    at = unix_seconds(value)
    if at is None or now is None:
        return False
    return now >= at + (_DAY_SECONDS if _DATE.fullmatch(value) else 0.0) + _EXPIRY_SECONDS


def mark_over_quota(error: ProviderError) -> None:
    if _over_quota(error.code, error.message):
        error.code, error.kind = _QUOTA_CODE, ErrorKind.RATE_LIMIT


def _over_quota(code: str | None, message: str) -> bool:
    return code == _QUOTA_CODE or _QUOTA_TEXT.search(message) is not None


def _failure(errors: Any, secrets: Sequence[str]) -> ProviderError:
    """Create the error of a batch that failed as a whole, from the first of its errors."""
    listed = errors.get("data", [errors]) if isinstance(errors, dict) else errors
    found = [error_in({"error": each}) for each in (listed if isinstance(listed, list) else [listed])]
    first = found[0] if found else error_in({"error": listed})
    code, message = short(first.get("code"), PLAIN_WORD), first.get("message", "")
    kind = kind_of_code(code, None, message) or ErrorKind.CLIENT_ERROR
    if _over_quota(code, message):
        code, kind = _QUOTA_CODE, ErrorKind.RATE_LIMIT
    line = whole(first.get("line"))
    where = f" in line {line}" if line is not None else ""
    text = safe_text(message, (), *secrets)
    refused: dict[str, None] = {}
    for each in found:
        parameters = refused_parameters(400, each.get("message", ""), each.get("param"), each.get("code"))
        refused |= dict.fromkeys(parameters)
    error = ProviderError(
        f"the batch failed{where} ({code or 'no code'}){f': {text}' if text else ''}",
        kind=kind,
        code=code,
        refused_parameters=tuple(refused),
    )
    return explained(error, listed, secrets)


def _moment(value: Any) -> float | None:
    """Accepts Unix seconds and RFC 3339 times. xAI's REST API sends only a date, which orders nothing."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 <= value <= 1e11 else None
    return None if isinstance(value, str) and _DATE.fullmatch(value) else unix_seconds(value)


# -- ids and lists -------------------------------------------------------------------------------------------


def quoted(remote_id: str) -> str:
    return quote(check_id(remote_id, _ID), safe="")


def plain_id(value: Any) -> str | None:
    """``None`` without an id. An id that is unsafe in a URL is an error."""
    return None if value is None or value == "" else check_id(value, _ID)


def next_page(
    data: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], current: str | None, dialect: BatchDialect
) -> str | None:
    """Return the cursor of the next page; ``None`` on the last. The query contains its first word.

    If a server does not report whether there are more pages, pages are requested until one has nothing
    new, because a batch counts as missing only after the whole list was read.
    """
    more = data.get("has_more")
    # 1. the answer contains a token, except on the last page
    if dialect.cursor == "pagination_token":
        token = data.get("pagination_token") or None
        if token is not None and (token == current or not _TOKEN.fullmatch(str(token))):
            raise endless()
        return token
    # 2. this is the last page, or the only one
    if not listed or more is False or (dialect.cursor is None and not more):
        return None
    # 3. pages have numbers; a server that ignores them repeats its only page. The cursor ends with the id of
    # the page's first entry, to which the next page is compared
    if dialect.cursor == "page":
        number, _, first_before = (current or "0").partition(" ")
        first, total = str(listed[0].get("id")), whole(data.get("total"))
        if first == first_before or (current is None and total is not None and total <= len(listed)):
            return None
        if int(number) >= MAX_PAGES:
            raise endless()
        return f"{int(number) + 1} {first}"
    # 4. pages follow the last entry of the page before
    last = plain_id(listed[-1].get("id")) or plain_id(data.get("last_id"))
    if last is None or last == current:
        if more:
            raise endless()
        return None
    return last


def endless() -> ProviderError:
    return unusable("the provider's list does not end, so a missing entry may still exist", "endless")
