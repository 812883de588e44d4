"""The emulator's book of batches: every create and what became of it, every line that ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import asdict, define, field

__all__ = ["BatchBook", "BatchLine", "BatchRecord"]


@define
class BatchLine:
    """A line of a batch that ran.

    Attributes:
        batch: the batch's id.
        position: of its request in the batch, from 0.
        custom_id: its id, may be ``None``.
        prompt: SHA-256 (hexadecimal) of its prompt, as real-time calls have it.
        at: monotonic seconds of its end.
        billed: tokens it is paid for; 0 when it failed.
        lost: True when its answer can never be had, though it was billed: missing or spoiled in the results.
        delivered: True when its answer went out whole.
    """

    batch: str
    position: int
    custom_id: str | None
    prompt: str
    at: float
    billed: int
    lost: bool = False
    delivered: bool = False


@define
class BatchRecord:
    """A create that arrived, and its batch.

    Attributes:
        id: the batch's; also where there is none in the end.
        api: ``openai``, ``anthropic`` or ``gemini``.
        index: its number among the creates of its API.
        at: monotonic seconds of its arrival.
        fate: ``landed`` (and answered), ``lost`` (landed, the answer was lost), ``late`` (the answer was
            lost; it lands later), ``fenced`` (late, and its input file was gone by then: it never was),
            ``dropped`` (nothing happened) or ``refused``.
        total: its lines.
        label: what the client wrote on it.
        custom_id: of its first line, may be ``None``.
        landed_at: monotonic seconds since when it exists; ``None`` when it does not.
        cancelled_at: when it was cancelled.
        ended_at: when it ended.
        state: how it ended.
        lines: those that ran, by position.
    """

    id: str
    api: str
    index: int
    at: float
    fate: str
    total: int
    label: Mapping[str, str]
    custom_id: str | None
    landed_at: float | None = None
    cancelled_at: float | None = None
    ended_at: float | None = None
    state: str | None = None
    lines: dict[int, BatchLine] = field(factory=dict, repr=False)


class BatchBook:
    """All creates since the start or the last reset.

    What happens comes as events fit for JSON, so that a file of them restores the book.
    """

    def __init__(self) -> None:
        self._records: dict[str, BatchRecord] = {}

    @property
    def records(self) -> tuple[BatchRecord, ...]:
        """All creates in the order of arrival."""
        return tuple(self._records.values())

    def apply(self, event: Mapping[str, Any]) -> None:
        """Enter an event; one of a batch from before a reset is ignored."""
        name, what = event["batch"], event["event"]
        if what == "created":
            fields = {key: value for key, value in event.items() if key not in ("batch", "event")}
            self._records[name] = BatchRecord(name, **fields)
            return
        record = self._records.get(name)
        if record is None:
            return
        match what:
            case "landed":
                record.landed_at = event["at"]
            case "fenced":
                record.fate = "fenced"
            case "cancelled":
                record.cancelled_at = event["at"]
            case "ran":
                for row in event["lines"]:
                    line = BatchLine(name, *row)
                    record.lines[line.position] = line
            case "ended":
                record.ended_at, record.state = event["at"], event["state"]
            case "delivered":
                for position in event["positions"]:
                    record.lines[position].delivered = True

    def lines(self) -> Iterable[BatchLine]:
        """Return every line that ran."""
        return [line for record in self.records for line in tuple(record.lines.values())]

    def summary(self) -> dict[str, Any]:
        """Return the figures, fit for JSON."""
        records, lines = self.records, self.lines()
        landed = [record for record in records if record.landed_at is not None]
        billed = [line for line in lines if line.billed]
        return {
            "creates": len(records),
            "landed": len(landed),
            "by_fate": dict(Counter(record.fate for record in records)),
            "fenced": sum(record.fate == "fenced" for record in records),
            "running": sum(record.ended_at is None for record in landed),
            "by_state": dict(Counter(record.state for record in landed if record.state is not None)),
            "lines_ran": sum(1 for _ in lines),
            "lines_billed": len(billed),
            "billed_tokens": sum(line.billed for line in billed),
            "lines_delivered": sum(line.delivered for line in lines),
            "lines_lost": sum(line.lost for line in billed),
        }

    def full(self) -> list[dict[str, Any]]:
        """Return every create and its lines, fit for JSON."""
        return [
            {**asdict(record, recurse=False), "label": dict(record.label), "lines": _plain(record)}
            for record in self.records
        ]


def _plain(record: BatchRecord) -> list[dict[str, Any]]:
    return [asdict(line) for _, line in sorted(record.lines.items())]
