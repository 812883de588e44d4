"""Reads files and batches as OpenAI and compatible servers describe them.

Everything a server may leave out is optional; an id is only taken when it can stand in a URL. Source:
OpenAI's OpenAPI document 2.3.0, and the documentation of Azure, Together, Groq and LiteLLM of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import RemoteBatch, RemoteFile, RemoteState
from smartbatch.providers.error_table import kind_of_code
from smartbatch.providers.foreign_text import PLAIN_ID, PLAIN_WORD, count, safe_text, short
from smartbatch.providers.http.timestamps import unix_seconds

__all__ = [
    "QUOTA",
    "SUFFIX",
    "mark_over_quota",
    "no_id",
    "plain_id",
    "read_batch",
    "read_file",
    "unwrap",
]

SUFFIX = ".jsonl"
"""OpenAI takes batch inputs under names that end so."""
QUOTA = "token_limit_exceeded"
"""The code for too many tokens in batches that have not ended."""

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+~-]{0,1023}")
"""LiteLLM's ids are base64 texts of some 400 characters; none has a slash, or begins with a point."""
_QUOTA_TEXT = re.compile(r"enqueued[ _]token[ _]limit", re.I)
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
_UNREADY = frozenset(
    {"pending", "queued", "running", "processing"}
)  # Azure checks a file before it is usable


def plain_id(value: Any) -> str | None:
    """Return an id that is safe in a URL; ``None`` where there is none.

    Raises:
        ProviderError: INVALID_RESPONSE for an id that is not safe.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise _invalid("the provider sent an id that cannot be one")
    return value


def no_id(value: str) -> bool:
    """True for an id nobody should be asked about."""
    return _ID.fullmatch(value) is None


def unwrap(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object itself; Together puts a batch it has created under ``job``."""
    inner = data.get(name)
    return inner if isinstance(inner, dict) and "id" not in data else data


def read_file(data: Mapping[str, Any]) -> RemoteFile:
    """Return an uploaded file; its name is without the ending that every input has.

    Raises:
        ProviderError: for an answer without a usable id, and for a file the provider could not process.
    """
    file_id = plain_id(data.get("id"))
    if file_id is None:
        raise _invalid("the answer to the upload has no id")
    status = str(data.get("status") or "").lower()
    if status in ("error", "failed"):
        raise ProviderError(
            "the provider could not process the input file", kind=ErrorKind.CLIENT_ERROR, code="file_error"
        )
    name = data.get("filename")
    return RemoteFile(
        id=file_id,
        name=name.removesuffix(SUFFIX) if isinstance(name, str) else "",
        size=_whole(data.get("bytes")),
        ready=status not in _UNREADY,
    )


def read_batch(data: Mapping[str, Any], *secrets: str) -> RemoteBatch:
    """Return a batch as the provider describes it.

    Raises:
        ProviderError: INVALID_RESPONSE for one without a usable id, or with unusable ids of files.
    """
    batch_id = plain_id(data.get("id"))
    if batch_id is None:
        raise _invalid("the provider described a batch without an id")
    word = short(data.get("status"), PLAIN_WORD) or ""
    state = _STATES.get(word.lower(), RemoteState.RUNNING)
    counts = data.get("request_counts")
    counts = counts if isinstance(counts, dict) else {}
    outputs = [plain_id(data.get(name)) for name in ("output_file_id", "error_file_id")]
    error = _failure(data.get("errors"), secrets) if state is RemoteState.FAILED else None
    metadata = data.get("metadata")
    return RemoteBatch(
        id=batch_id,
        state=state,
        word=word,
        created_at=_moment(data.get("created_at")),
        mark=short(metadata.get("sb"), PLAIN_ID) if isinstance(metadata, dict) else None,
        file_id=plain_id(data.get("input_file_id")),
        total=_whole(counts.get("total")) or None,  # a batch that is being validated counts none yet
        completed=_whole(counts.get("completed")) or 0,
        failed=_whole(counts.get("failed")) or 0,
        outputs=tuple(dict.fromkeys(output for output in outputs if output is not None)),
        reason=error.message if error else None,
        code=error.code if error else None,
        error=error,
    )


def mark_over_quota(error: ProviderError) -> None:
    """Give the refusal of a batch for which there are too many tokens in others its code, :data:`QUOTA`."""
    if _over_quota(error.code, error.message):
        error.code, error.kind = QUOTA, ErrorKind.RATE_LIMIT


def _over_quota(code: str | None, message: str) -> bool:
    return code == QUOTA or _QUOTA_TEXT.search(message) is not None


def _failure(errors: Any, secrets: tuple[str, ...]) -> ProviderError:
    """Why a batch failed as a whole: the first of its errors; nothing of it was run."""
    listed = errors.get("data") if isinstance(errors, dict) else errors
    first = listed[0] if isinstance(listed, list) and listed else listed
    fields: Mapping[str, Any] = first if isinstance(first, dict) else {}
    said = fields.get("message")
    message = said if isinstance(said, str) else first if isinstance(first, str) else ""
    code = short(fields.get("code"), PLAIN_WORD)
    kind = kind_of_code(code, None, message) or ErrorKind.CLIENT_ERROR
    if _over_quota(code, message):
        code, kind = QUOTA, ErrorKind.RATE_LIMIT
    line = _whole(fields.get("line"))
    where = f" in line {line}" if line is not None else ""
    text = safe_text(message, (), *secrets)
    return ProviderError(
        f"the batch failed{where} ({code or 'no code'}){f': {text}' if text else ''}", kind=kind, code=code
    )


def _whole(value: Any) -> int | None:
    return count(int(value)) if isinstance(value, str) and value.isdecimal() else count(value)


def _moment(value: Any) -> float | None:
    """Unix seconds of a number, or of a time as Together writes it (RFC 3339)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 <= value <= 1e11 else None
    return unix_seconds(value)


def _invalid(text: str) -> ProviderError:
    return ProviderError(text, kind=ErrorKind.INVALID_RESPONSE, code="shape", maybe_billed=True)
