"""Reads a Gemini batch: a long-running operation with the batch in its metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import PLAIN_WORD, short
from smartbatch.providers.gemini.batch_lines import status_error
from smartbatch.providers.gemini.files import check_file
from smartbatch.providers.http.batch_calls import check_id, garbled
from smartbatch.providers.http.timestamps import unix_seconds

__all__ = ["read_batch"]

_STATES = {
    "SUCCEEDED": RemoteState.COMPLETED,
    "PARTIALLY_SUCCEEDED": RemoteState.COMPLETED,
    "FAILED": RemoteState.FAILED,
    "CANCELLING": RemoteState.ENDING,
    "CANCELLED": RemoteState.CANCELLED,
    "EXPIRED": RemoteState.EXPIRED,
}
"""Words after ``BATCH_STATE_`` or ``JOB_STATE_``; queued, pending, running, paused, updating and any other
word are a batch that runs."""
_PREFIX = re.compile(r"^(?:BATCH|JOB)_STATE_")
_MARK = re.compile(r"sb-([A-Za-z0-9_-]{1,64})")


def read_batch(data: Any, errors: ErrorReader) -> RemoteBatch:
    """Return the batch an operation is about.

    Counts are texts, and what is zero is left out. Where results are is told under ``metadata.output``,
    under ``response``, or both.

    Raises:
        ProviderError: ``INVALID_RESPONSE`` for anything else.
    """
    if not isinstance(data, dict):
        raise garbled("a batch in the provider's answer is none")
    found = data.get("metadata")
    metadata: Mapping[str, Any] = found if isinstance(found, dict) else {}
    name = data.get("name") or metadata.get("name")
    identity = check_id(name.removeprefix("batches/") if isinstance(name, str) else None)
    outputs = tuple(dict.fromkeys(_outputs(metadata.get("output")) + _outputs(data.get("response"))))
    word = _PREFIX.sub("", short(metadata.get("state"), PLAIN_WORD) or "UNSPECIFIED")
    problem = data.get("error")
    failure = status_error(problem, errors) if isinstance(problem, dict) and problem else None
    state = _state(word, done=data.get("done") is True, failed=failure is not None, told=bool(outputs))
    if state is not RemoteState.FAILED:
        failure = None  # what a cancelled or expired batch says there, its state says already
    stats = metadata.get("batchStats")
    counts: Mapping[str, Any] = stats if isinstance(stats, dict) else {}
    config = metadata.get("inputConfig")
    mark = _MARK.fullmatch(metadata["displayName"]) if isinstance(metadata.get("displayName"), str) else None
    return RemoteBatch(
        id=identity,
        state=state,
        word=word,
        created_at=unix_seconds(metadata.get("createTime")),
        mark=mark.group(1) if mark else None,
        file_id=_file(config.get("fileName") or config.get("file_name"))
        if isinstance(config, dict)
        else None,
        total=_number(counts.get("requestCount")) or None,
        completed=_number(counts.get("successfulRequestCount")),
        failed=_number(counts.get("failedRequestCount")),
        outputs=outputs,
        reason=failure.message if failure else None,
        code=failure.code if failure else None,
        error=failure,
    )


def _state(word: str, *, done: bool, failed: bool, told: bool) -> RemoteState:
    """An operation that is done although its batch has no state is judged by what else it says."""
    state = _STATES.get(word, RemoteState.RUNNING)
    if word == "UNSPECIFIED" and done:
        state = RemoteState.FAILED if failed else RemoteState.COMPLETED
    if state is RemoteState.COMPLETED and not told:
        # Without its results nothing may be concluded: they are told a little later.
        return RemoteState.ENDING
    return state


def _outputs(found: Any) -> tuple[str, ...]:
    name = found.get("responsesFile") if isinstance(found, dict) else None
    return (check_file(name),) if name else ()


def _file(name: Any) -> str | None:
    return check_file(name) if name else None


def _number(value: Any) -> int:
    return int(value) if re.fullmatch(r"[0-9]{1,12}", str(value)) else 0
