"""One line of the output: what is said of a row and its result."""

from __future__ import annotations

import json
from typing import Any, Final

from attrs import frozen

from smartbatch.types import Result

__all__ = ["HEAD", "AskedRow", "encode", "encode_result", "error_kind"]

HEAD: Final = b'{"index": '
"""How every line begins."""


@frozen
class AskedRow:
    """A row under way; travels as the request's context.

    Attributes:
        index: zero-based position in the input.
        id: the row's own id, or its index.
        fields: the row's fields, repeated in the output.
        key: see :class:`smartbatch.cli.prompts.Keys`.
    """

    index: int
    id: str | int
    fields: dict[str, Any]
    key: int


def error_kind(result: Result) -> str:
    """Return the failed result's kind as outputs and summaries spell it, such as ``rate_limit``."""
    error = result.error
    if error is not None and error.kind is not None:
        return error.kind.value
    name = type(error).__name__
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def encode(row: AskedRow, result: Result, model: str) -> bytes:
    """Return the output line of ``result``, ASCII only, so that no reader can cut it in the wrong place."""
    line: dict[str, Any] = {"index": row.index, "id": row.id, "input": row.fields}
    line.update(_outcome(result, model))
    line["key"] = f"{row.key:016x}"
    return _to_line(line)


def encode_result(index: int, result: Result, model: str) -> bytes:
    """Return the line of a job's result; ``index`` is the request's place in the job, from 0."""
    line: dict[str, Any] = {"index": index, "id": result.request_id, **_outcome(result, model)}
    if result.embedding is not None:
        line["embedding"] = list(result.embedding)
    if result.context is not None:
        line["context"] = result.context
    return _to_line(line)


def _outcome(result: Result, model: str) -> dict[str, Any]:
    line: dict[str, Any] = {"model": result.model or model, "text": result.text}
    if result.parsed is not None:
        line["parsed"] = result.parsed
    usage = result.usage
    line["finish_reason"] = result.finish_reason
    line["usage"] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }
    line["cost"] = result.cost
    line["latency"] = round(result.latency, 6)
    line["attempts"] = result.attempts
    line["error"] = None
    if result.error is not None:
        line["error"] = {"kind": error_kind(result), "message": result.error.message}
    return line


def _to_line(line: dict[str, Any]) -> bytes:
    try:
        return json.dumps(line, allow_nan=False).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError):
        # Only a decoded answer can hold what JSON cannot; its text is in the line anyway.
        line.pop("parsed", None)
        return json.dumps(line, allow_nan=False).encode("ascii") + b"\n"
