"""Jobs in words for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from smartbatch.jobs.records import IncidentRow
from smartbatch.jobs.status import JobStatus, ShardStatus, span
from smartbatch.observe.text import escape

__all__ = ["as_json", "as_text", "table"]

_INCIDENTS_SHOWN: Final = 20
"""Incidents told in words; JSON has all of them."""
_KEY_SHOWN: Final = 40
"""Letters of a key in the table."""


def table(statuses: Iterable[JobStatus], *, wall: float) -> str:
    """Return a line for each job.

    Args:
        wall: Unix seconds.
    """
    head = ("JOB", "STATE", "DONE", "FAILED", "COST", "AGE", "MODEL", "KEY")
    lines = [head, *(_cells(status, wall) for status in statuses)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(status: JobStatus, wall: float) -> tuple[str, ...]:
    key = status.key or ""
    return (
        status.id,
        f"{status.state}, cancelling" if status.cancelling else status.state,
        f"{status.finished:,}/{status.total:,}",
        f"{status.failed:,}",
        _cost(status),
        span(max(0.0, wall - status.created_at)),
        escape(status.model),
        escape(key if len(key) <= _KEY_SHOWN else key[: _KEY_SHOWN - 1] + "…"),
    )


def _cost(status: JobStatus) -> str:
    if status.unpriced and not status.cost:
        return "unknown"
    return f"{status.cost:.4f} USD" + (" and more" if status.unpriced else "")


def as_text(status: JobStatus, wall: float) -> str:
    """Return everything about a job, its incidents one a line.

    Args:
        wall: Unix seconds.
    """
    lines = [escape(line) for line in str(status).split("\n")]
    ended = [shard for shard in status.shards if shard.state in ("settled", "dead")]
    lines += [_ended_words(shard) for shard in ended]
    lines += [_incident_words(incident, wall) for incident in status.incidents[-_INCIDENTS_SHOWN:]]
    more = len(status.incidents) - _INCIDENTS_SHOWN
    if more > 0:
        lines.append(f"and {more:,} earlier incidents (--json shows all)")
    return "\n".join(lines)


def _ended_words(shard: ShardStatus) -> str:
    named = f" as {shard.batch_id}" if shard.batch_id else ""
    cost = "" if shard.cost is None else f", {shard.cost:.6f} USD"
    word = f" ({shard.word})" if shard.word else ""
    why = f": {shard.note}" if shard.note else ""
    return escape(f"batch {shard.no}: {shard.size:,} requests, {shard.state}{named}{word}{cost}{why}")


def _incident_words(incident: IncidentRow, wall: float) -> str:
    money = "" if incident.money is None else f", {incident.money:.6f} USD"
    ago = span(max(0.0, wall - incident.at))
    return escape(f"incident {incident.kind} {ago} ago{money}: {incident.detail}")


def as_json(status: JobStatus) -> str:
    """Return a status as one line of JSON: its fields, with batches and incidents as lists."""
    form: dict[str, Any] = {
        name: getattr(status, name)
        for name in (
            *("id", "key", "model", "state", "total", "submitted", "completed", "failed", "cancelled"),
            *("running", "remaining", "elapsed", "cost", "realtime_cost", "unpriced", "note"),
        )
    }
    form["batches"] = _forms(
        status.shards, ("no", "state", "batch_id", "size", "done", "age", "word", "cost", "note")
    )
    form["incidents"] = _forms(status.incidents, ("kind", "detail", "money", "at"))
    return json.dumps(form)


def _forms(rows: Sequence[object], names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: getattr(row, name) for name in names} for row in rows]
