"""The ledger of batches: every create and its outcome, every line that ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import asdict, define, field


@define
class BatchLine:
    """A line of a batch that ran.

    Attributes:
        batch: the batch's id.
        position: position of its request in the batch, from 0.
        custom_id: its id; ``None`` without one.
        prompt: SHA-256 (hexadecimal) of its prompt, as for real-time calls.
        at: monotonic seconds at which it had run.
        billed: billed tokens; 0 when it failed.
        lost: True when its answer was billed and is missing or malformed in the results.
        delivered: True when its whole answer was sent.
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
    """A create that arrived, and its batch. Times are monotonic seconds.

    Attributes:
        id: the batch's identifier, also when no batch is created.
        api: ``openai``, ``anthropic`` or ``gemini``.
        index: number among the creates of its API.
        at: when it arrived.
        outcome: ``created`` (and answered), ``lost`` (created, the answer was lost), ``late`` (the answer was
            lost, the batch is created later), ``fenced`` (late, and not created because its input file was
            deleted first), ``dropped`` (not created) or ``refused``.
        total: number of its lines.
        label: metadata or display name given by the client.
        custom_id: that of its first line; ``None`` without one.
        created_at: when it was created; ``None`` when it was not.
        cancelled_at: when it was cancelled.
        ended_at: when it ended.
        state: its final state.
        lines: the lines that ran, by position.
    """

    id: str
    api: str
    index: int
    at: float
    outcome: str
    total: int
    label: Mapping[str, str]
    custom_id: str | None
    created_at: float | None = None
    cancelled_at: float | None = None
    ended_at: float | None = None
    state: str | None = None
    lines: dict[int, BatchLine] = field(factory=dict, repr=False)


class BatchLedger:
    """All creates since the start or the last reset.

    It is written by events that can be encoded as JSON, so that a file of them restores it.
    """

    def __init__(self) -> None:
        self._records: dict[str, BatchRecord] = {}

    @property
    def records(self) -> tuple[BatchRecord, ...]:
        """All creates in the order of arrival."""
        return tuple(self._records.values())

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply an event; one of a batch from before a reset is ignored."""
        name, what = event["batch"], event["event"]
        if what == "create":
            fields = {key: value for key, value in event.items() if key not in ("batch", "event")}
            self._records[name] = BatchRecord(name, **fields)
            return
        record = self._records.get(name)
        if record is None:
            return
        match what:
            case "created":
                record.created_at = event["at"]
            case "fenced":
                record.outcome = "fenced"
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
        """Return counts that can be encoded as JSON."""
        records, lines = self.records, self.lines()
        created = [record for record in records if record.created_at is not None]
        billed = [line for line in lines if line.billed]
        return {
            "creates": len(records),
            "created": len(created),
            "by_outcome": dict(Counter(record.outcome for record in records)),
            "fenced": sum(record.outcome == "fenced" for record in records),
            "running": sum(record.ended_at is None for record in created),
            "by_state": dict(Counter(record.state for record in created if record.state is not None)),
            "lines_ran": sum(1 for _ in lines),
            "lines_billed": len(billed),
            "billed_tokens": sum(line.billed for line in billed),
            "lines_delivered": sum(line.delivered for line in lines),
            "lines_lost": sum(line.lost for line in billed),
        }

    def full(self) -> list[dict[str, Any]]:
        """Return every create and its lines as values that can be encoded as JSON."""
        return [
            {**asdict(record, recurse=False), "label": dict(record.label), "lines": _plain(record)}
            for record in self.records
        ]


def _plain(record: BatchRecord) -> list[dict[str, Any]]:
    return [asdict(line) for _, line in sorted(record.lines.items())]
