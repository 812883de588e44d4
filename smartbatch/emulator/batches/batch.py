"""One batch inside the house: what has run of it, and how it looks at a moment."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from smartbatch.emulator.batches.batch_ledger import BatchLine
from smartbatch.emulator.batches.batch_records import Counts, Entry, Problem, RemoteBatch, RemoteFile, State
from smartbatch.emulator.batches.timeline import BatchRandomness, Timeline
from smartbatch.emulator.openai.parsing import Refused

__all__ = ["Job", "Ran", "crowded"]

_KEPT = 4096
"""Bytes of an answer that is kept; a larger one (vectors) is made again when it is fetched."""
_ODD = "rebalancing"


@frozen
class Ran:
    """What became of a line that ran; ``error`` and ``status`` as in :class:`Line`."""

    error: str | None
    status: int
    billed: int
    output_tokens: int
    body: bytes | None = field(repr=False)
    faults: frozenset[str]


@define(eq=False)
class Job:
    """A batch. Its owner holds the lock.

    ``charge`` are the tokens it counts for while it is unfinished.
    """

    id: str
    index: int
    api: str
    key: str = field(repr=False)
    model: str
    endpoint: str
    label: Mapping[str, str]
    file_id: str | None
    entries: Sequence[Entry] = field(repr=False)
    problems: tuple[Problem, ...]
    faults: frozenset[str]
    rng: BatchRandomness = field(repr=False)
    timeline: Timeline
    stop_at: float = math.inf
    ended_at: float = math.inf
    final: State = "completed"
    cancelled_at: float | None = None
    closed: bool = False
    deleted: bool = False
    charge: int = 0
    ran: list[Ran] = field(factory=list, repr=False)
    input_tokens: int = 0
    output_tokens: int = 0
    fetched: set[str | None] = field(factory=set)
    removed: set[str] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.charge = sum(entry.charge for entry in self.entries)
        self.follow(self.timeline)

    def follow(self, course: Timeline) -> None:
        """Take another course, before anything has happened."""
        self.timeline = course
        self.stop_at = self.ended_at = course.ended
        self.final = course.final

    def cancel(self, now: float, seconds: float) -> None:
        """Cancel it; a second time, or after its end, changes nothing.

        Args:
            now: monotonic seconds.
            seconds: until it has ended.
        """
        if self.cancelled_at is not None or now >= self.ended_at:
            return
        self.cancelled_at = now
        if "cancel_completes" in self.faults and math.isfinite(self.ended_at):
            return
        self.stop_at, self.ended_at, self.final = now, now + seconds, "cancelled"

    def created(self, now: float, fate: str) -> dict[str, Any]:
        """Return the event of its create for the ledger; see :class:`BatchRecord` for the fates."""
        return {
            "batch": self.id,
            "event": "created",
            "api": self.api,
            "index": self.index,
            "at": now,
            "fate": fate,
            "total": len(self.entries),
            "label": self.label,
            "custom_id": self.entries[0].custom_id if self.entries else None,
        }

    def advance(self, now: float) -> list[BatchLine]:
        """Run the lines that are due and return their entries in the ledger."""
        due = self.timeline.ran(min(now, self.stop_at))
        return [self._run(position) for position in range(len(self.ran), due)]

    def identity(self, position: int) -> str:
        """Return 24 hexadecimal digits that name the work on a line."""
        return self.rng.identity("line", self.id, position)

    def body(self, position: int) -> bytes:
        """Return the answer of a line that succeeded, or its refusal."""
        kept = self.ran[position].body
        if kept is not None:
            return kept
        return _whole(self.entries[position].run(self.identity(position)).body, self.ran[position].faults)

    def state(self, now: float) -> State:
        """Return how far it is."""
        plan = self.timeline
        if now >= self.ended_at:
            return self.final
        if self.cancelled_at is not None:
            return "cancelling"
        if now < plan.validated:
            return "validating"
        if now < plan.started:
            return "queued"
        return "running" if now < plan.finalizing else "finalizing"

    def seen(self, now: float) -> RemoteBatch:
        """Return it as it looks now; its lines must have been advanced."""
        state, plan = self.state(now), self.timeline
        ended = now >= self.ended_at
        succeeded = sum(ran.error is None for ran in self.ran)
        over = ended and self.final != "failed"
        output_id, error_id = self._files(succeeded) if over else (None, None)
        odd = state == "running" and now < plan.started + plan.run_seconds / 2
        ran = bool(self.ran) or state in ("running", "finalizing") or (ended and now >= plan.started)
        return RemoteBatch(
            id=self.id,
            index=self.index,
            api=self.api,
            model=self.model,
            endpoint=self.endpoint,
            label=self.label,
            file_id=self.file_id,
            state=state,
            odd=_ODD if odd and "odd_status" in self.faults else None,
            counts=self._counts(succeeded, ended),
            created_at=plan.landed,
            started_at=plan.started if ran else None,
            finalizing_at=plan.finalizing if now >= plan.finalizing and len(self.ran) == plan.total else None,
            cancelling_at=self.cancelled_at,
            ended_at=self.ended_at if ended else None,
            expires_at=plan.expires,
            problems=self.problems if ended else (),
            output_id=output_id,
            error_id=error_id,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
        )

    def results_files(self, now: float, keeps: float) -> list[RemoteFile]:
        """Return the files with its results, those deleted left out.

        Args:
            now: monotonic seconds.
            keeps: seconds they are kept after its end.
        """
        if self.api == "gemini" and self.file_id is None:
            return []  # its results stand in the batch itself
        batch = self.seen(now)
        parts = ("all",) if self.api == "gemini" else ("succeeded", "failed")
        return [
            RemoteFile(
                identity, f"{self.id}_{part}.jsonl", "batch_output", b"",
                self.ended_at, self.ended_at + keeps, self.id, part,
            )
            for part, identity in zip(parts, (batch.output_id, batch.error_id), strict=False)
            if identity is not None and identity not in self.removed
        ]  # fmt: skip

    def _files(self, succeeded: int) -> tuple[str | None, str | None]:
        """Return the ids of the files with its results: the same at all times. Gemini has one for all."""
        if self.api == "gemini":
            return f"batch-{self.rng.identity('results', self.id, 'all')}", None
        good, bad = (f"file-{self.rng.identity('results', self.id, part)}" for part in ("good", "bad"))
        return good if succeeded else None, bad if succeeded < self.timeline.total else None

    def _counts(self, succeeded: int, ended: bool) -> Counts:
        total, errored = self.timeline.total, len(self.ran) - succeeded
        left = total - len(self.ran)
        if "wrong_counts" in self.faults and succeeded:
            succeeded -= 1
        over = ended and self.final != "failed"
        return Counts(
            total=total,
            waiting=0 if ended else left,
            succeeded=succeeded,
            errored=errored,
            cancelled=left if over and self.final == "cancelled" else 0,
            expired=left if over and self.final == "expired" else 0,
        )

    def _run(self, position: int) -> BatchLine:
        entry = self.entries[position]
        faults = self.rng.of_line(self.api, self.index, position, entry.custom_id)
        ran = self._outcome(entry, position, faults)
        self.ran.append(ran)
        self.input_tokens += ran.billed - ran.output_tokens
        self.output_tokens += ran.output_tokens
        lost = bool(faults & {"missing_lines", "malformed_lines"}) or (
            "swapped_answers" in faults and len(self.entries) > 1
        )
        at = self.timeline.line_at(position)
        return BatchLine(self.id, position, entry.custom_id, entry.prompt, at, ran.billed, lost=lost)

    def _outcome(self, entry: Entry, position: int, faults: frozenset[str]) -> Ran:
        if "no_money_lines" in self.faults:
            return Ran("no_money", 0, 0, 0, b"", faults)
        for fault, error in (("item_error", "server"), ("item_invalid", "invalid"), ("status_zero", "zero")):
            if fault in faults:
                return Ran(error, 0, 0, 0, b"", faults)
        try:
            done = entry.run(self.identity(position))
        except Refused as refused:
            return Ran("refused", refused.status, 0, 0, refused.body, faults)
        body = _whole(done.body, faults)
        output = min(done.output_tokens, done.billed)
        return Ran(None, 200, done.billed, output, body if len(body) <= _KEPT else None, faults)


def crowded(job: Job, others: Iterable[Job], limit: float | None, now: float) -> Problem | None:
    """Return the problem of a batch whose tokens find no room beside others; ``None`` when they do.

    Args:
        job: the batch.
        others: those that have not ended.
        limit: tokens that may wait for a model; ``None`` for any number.
        now: monotonic seconds.
    """
    waiting = sum(
        other.charge
        for other in others
        if (other.api, other.key, other.model) == (job.api, job.key, job.model)
        and not other.problems
        and now < other.ended_at
    )
    if limit is None or waiting + job.charge <= limit:
        return None
    message = (
        f"Enqueued token limit reached for {job.model} in organization emulator. Limit: {int(limit):,} "
        "enqueued tokens. Please try again once some in_progress batches have been completed."
    )
    return Problem("token_limit_exceeded", message)


def _whole(body: bytes | list[bytes], faults: frozenset[str]) -> bytes:
    whole = body if isinstance(body, bytes) else b"".join(body)
    if "no_usage" not in faults:
        return whole
    answer = json.loads(whole)
    for name in ("usage", "usageMetadata", "tokenCount"):
        answer.pop(name, None)
    return json.dumps(answer).encode()
