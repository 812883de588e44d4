"""Reads a batch as Anthropic's API describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.providers.foreign_text import PLAIN_WORD, count, short
from smartbatch.providers.http.batch_calls import check_id, garbled
from smartbatch.providers.http.timestamps import unix_seconds

__all__ = ["read_batch"]

_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


def read_batch(data: Any) -> tuple[RemoteBatch, Any]:
    """Return a batch, and where its results are said to be.

    Raises:
        ProviderError: ``INVALID_RESPONSE`` for anything else.
    """
    if not isinstance(data, dict):
        raise garbled("a batch in the provider's answer is none")
    word = short(data.get("processing_status"), PLAIN_WORD) or "unknown"
    told = data.get("request_counts")
    counts = {name: count(told.get(name)) or 0 for name in _COUNTS} if isinstance(told, dict) else {}
    batch = RemoteBatch(
        id=check_id(data.get("id")),
        state=_state(word, counts),
        word=word,
        created_at=unix_seconds(data.get("created_at")),
        total=sum(counts.values()) or None,
        completed=counts.get("succeeded", 0),
        failed=counts.get("errored", 0),
    )
    return batch, data.get("results_url")


def _state(word: str, counts: Mapping[str, int]) -> RemoteState:
    """A batch that has ended has a result for every request, so it is complete even where a part was not run.

    Only where none was run, it is called what its requests are called.
    """
    if word == "canceling":
        return RemoteState.ENDING
    if word != "ended":
        return RemoteState.RUNNING
    total = sum(counts.values())
    if total and counts["canceled"] == total:
        return RemoteState.CANCELLED
    if total and counts["expired"] == total:
        return RemoteState.EXPIRED
    return RemoteState.COMPLETED
