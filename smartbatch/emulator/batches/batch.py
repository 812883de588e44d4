"""One batch of the backend: the lines that have run, its state at a point in time, and its ledger entries."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import asdict, define, field, frozen

from smartbatch.emulator.batches.batch_records import (
    BatchSnapshot,
    Counts,
    Entry,
    IdFormat,
    InputProblem,
    State,
    StoredFile,
)
from smartbatch.emulator.batches.timeline import BatchRandomness, Timeline
from smartbatch.emulator.parsed_requests import ApiError
from smartbatch.emulator.prompt_cache import CacheAccess, CacheLookup, PromptCaches
from smartbatch.emulator.prompt_caching import PromptCaching


@define
class BatchLine:
    batch: str
    position: int
    custom_id: str | None
    prompt: str  # SHA-256 of the prompt (hexadecimal), as for real-time calls
    at: float  # monotonic seconds
    billed: int  # billed tokens; 0 if it failed
    lost: bool = False  # billed, but missing or malformed in the results
    cache_read: int = 0  # see :class:`~smartbatch.emulator.ledger.Call`
    cache_written: int = 0
    cache_saved: float = 0.0
    delivered: bool = False  # the whole answer was sent


@define
class BatchRecord:
    """A request to create a batch, and the batch. Times are monotonic seconds."""

    id: str
    api: str  # ``openai``, ``anthropic``, ``gemini`` or the host of the emulated dialect
    index: int  # number among the create calls of its API
    at: float
    # ``created`` (and answered), ``lost`` (created, but the answer was lost), ``late`` (the answer was lost,
    # and the batch is created later), ``fenced`` (late, but not created because its input file was deleted
    # first), ``dropped`` (not created) or ``refused``
    outcome: str
    total: int
    label: Mapping[str, str]  # metadata or display name given by the client
    custom_id: str | None
    created_at: float | None = None
    cancelled_at: float | None = None
    ended_at: float | None = None
    state: str | None = None
    lines: dict[int, BatchLine] = field(factory=dict, repr=False)  # lines that have run, by position


class BatchLedger:
    """All create calls since the start or the last reset.

    It consists of events that can be encoded as JSON, so it can be restored from a file of them.
    """

    def __init__(self) -> None:
        self._records: dict[str, BatchRecord] = {}

    @property
    def records(self) -> tuple[BatchRecord, ...]:
        return tuple(self._records.values())

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply an event. Events of batches from before a reset are ignored."""
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
        return [line for record in self.records for line in tuple(record.lines.values())]

    def summary(self) -> dict[str, Any]:
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
        return [
            {**asdict(record, recurse=False), "label": dict(record.label), "lines": _plain(record)}
            for record in self.records
        ]


def _plain(record: BatchRecord) -> list[dict[str, Any]]:
    return [asdict(line) for _, line in sorted(record.lines.items())]


# maximum size of answers kept in memory; larger ones (vectors) are computed again when fetched
_CACHED_BYTES = 4096
_UNDOCUMENTED_STATUS = "rebalancing"


@frozen
class LineResult:
    """The result of a line that has run. ``error`` and ``status`` are those of :class:`OutputLine`."""

    error: str | None
    status: int
    billed: int
    output_tokens: int
    body: bytes | None = field(repr=False)
    faults: frozenset[str]
    lookup: CacheLookup | None = field(default=None, repr=False)


@define(eq=False)
class StoredBatch:
    """A batch. Callers hold the backend's lock. Times are monotonic seconds."""

    id: str
    index: int
    api: str
    key: str = field(repr=False)
    model: str
    endpoint: str
    label: Mapping[str, str]
    file_id: str | None
    entries: Sequence[Entry] = field(repr=False)
    problems: tuple[InputProblem, ...]
    faults: frozenset[str]
    rng: BatchRandomness = field(repr=False)
    timeline: Timeline
    caches: PromptCaches = field(repr=False)
    caching: PromptCaching | None
    ids: IdFormat = field(factory=IdFormat)
    windows: float = 1.0
    needs_file: bool = True
    output_lifetime: float = math.inf  # seconds from the end until the result files expire
    callbacks: tuple[str, ...] = ()  # addresses that receive an event when it ends
    stop_at: float = math.inf
    ended_at: float = math.inf
    final: State = "completed"
    cancelled_at: float | None = None
    closed: bool = False
    deleted: bool = False
    ran: list[LineResult] = field(factory=list, repr=False)
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    fetched: set[str | None] = field(factory=set)
    removed: set[str] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.set_timeline(self.timeline)

    @cached_property
    def charge(self) -> int:
        """Tokens charged to the enqueued-token limit until the batch has ended."""
        return sum(entry.charge for entry in self.entries)

    def set_timeline(self, timeline: Timeline) -> None:
        """Replace the timeline of a batch before any of its lines has run."""
        self.timeline = timeline
        self.stop_at = self.ended_at = timeline.ended
        self.final = timeline.final

    def cancel(self, now: float, seconds: float) -> None:
        """Cancel the batch, unless it was canceled or has ended.

        Args:
            seconds: time until it ends.
        """
        if self.cancelled_at is not None or now >= self.ended_at:
            return
        self.cancelled_at = now
        if "cancel_completes" in self.faults and math.isfinite(self.ended_at):
            return
        self.stop_at, self.ended_at, self.final = now, now + seconds, "cancelled"

    def create_event(self, now: float, outcome: str) -> dict[str, Any]:
        """Return the ledger event of the batch's create call. :class:`BatchRecord` lists the outcomes."""
        return {
            "batch": self.id,
            "event": "create",
            "api": self.api,
            "index": self.index,
            "at": now,
            "outcome": outcome,
            "total": len(self.entries),
            "label": self.label,
            "custom_id": self.entries[0].custom_id if self.entries else None,
        }

    def run_lines(self, now: float) -> list[BatchLine]:
        """Run the lines that are due and return their ledger entries."""
        return [self._run(position) for position in range(len(self.ran), self.due(now))]

    def due(self, now: float) -> int:
        return self.timeline.ran(min(now, self.stop_at))

    def identity(self, position: int) -> str:
        return self.rng.identity("line", self.id, position)

    def body(self, position: int) -> bytes:
        """Return the answer of a line, or its error."""
        return self.body_of(position, self.ran[position])

    def body_of(self, position: int, ran: LineResult) -> bytes:
        """Return the body of a result, computing it again if it was not kept."""
        if ran.body is not None:
            return ran.body
        return _body_of(self.entries[position].run(self.identity(position)).body, ran.faults)

    def state(self, now: float) -> State:
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

    def snapshot(self, now: float) -> BatchSnapshot:
        """Return the state at ``now``. Lines that are due but have not been run count as succeeded."""
        state, plan, due = self.state(now), self.timeline, self.due(now)
        ended = now >= self.ended_at
        succeeded = due - sum(ran.error is not None for ran in self.ran)
        over = ended and self.final != "failed"
        output_id, error_id = self._file_ids(succeeded) if over else (None, None)
        first_half = state == "running" and now < plan.started + plan.run_seconds / 2
        ran = bool(due) or state in ("running", "finalizing") or (ended and now >= plan.started)
        return BatchSnapshot(
            id=self.id,
            index=self.index,
            api=self.api,
            model=self.model,
            endpoint=self.endpoint,
            label=self.label,
            file_id=self.file_id,
            state=state,
            unknown_status=_UNDOCUMENTED_STATUS if first_half and "odd_status" in self.faults else None,
            counts=self._counts(succeeded, due, ended),
            created_at=plan.created,
            started_at=plan.started if ran else None,
            finalizing_at=plan.finalizing if now >= plan.finalizing and due == plan.total else None,
            cancelling_at=self.cancelled_at,
            ended_at=self.ended_at if ended else None,
            expires_at=plan.expires,
            problems=self.problems if ended else (),
            output_id=output_id,
            error_id=error_id,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            windows=self.windows,
        )

    def result_files(self, now: float, retention: float) -> list[StoredFile]:
        """Return the result files, except expired and deleted ones.

        Args:
            retention: maximum seconds for which the files are kept after the batch has ended.
        """
        expires_at = self.ended_at + min(retention, self.output_lifetime)
        if not self.closed or now >= expires_at:
            return []
        if self.api == "gemini" and self.file_id is None:
            return []  # inline results are part of the batch
        batch = self.snapshot(now)
        parts = ("all",) if self.api == "gemini" else ("succeeded", "failed")
        return [
            StoredFile(
                identity, f"{self.id}_{part}.jsonl", "batch_output", b"",
                self.ended_at, expires_at, self.id, part,
            )
            for part, identity in zip(parts, (batch.output_id, batch.error_id), strict=False)
            if identity is not None and identity not in self.removed
        ]  # fmt: skip

    def _file_ids(self, succeeded: int) -> tuple[str | None, str | None]:
        """Return the IDs of the result files, which never change. Gemini has one file."""
        if self.api == "gemini":
            return f"batch-{self.rng.identity('results', self.id, 'all')}", None
        output_id, error_id = (
            self.ids.file(self.rng.identity("results", self.id, part)) for part in ("good", "bad")
        )
        if self.ids.always_both:
            return output_id, error_id
        return output_id if succeeded else None, error_id if succeeded < self.timeline.total else None

    def _counts(self, succeeded: int, due: int, ended: bool) -> Counts:
        total, errored = self.timeline.total, due - succeeded
        left = total - due
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
        ran = self.result(position, entry)
        faults = ran.faults
        self.ran.append(ran)
        self.input_tokens += ran.billed - ran.output_tokens
        self.output_tokens += ran.output_tokens
        lost = bool(faults & {"missing_lines", "malformed_lines"}) or (
            "swapped_answers" in faults and len(self.entries) > 1
        )
        at = self.timeline.line_at(position)
        line = BatchLine(self.id, position, entry.custom_id, entry.prompt, at, ran.billed, lost=lost)
        if ran.lookup is not None:
            self.caches.keep(ran.lookup, at)
            use = ran.lookup.use
            line.cache_read, line.cache_written, line.cache_saved = use.read, use.written, ran.lookup.saved
            self.cached_tokens += use.read
        return line

    def result(self, position: int, entry: Entry) -> LineResult:
        faults = self.rng.line_faults(self.api, self.index, position, entry.custom_id)
        if "no_money_lines" in self.faults:
            return LineResult("no_money", 0, 0, 0, b"", faults)
        for fault, cause in (("item_error", "server"), ("item_invalid", "invalid"), ("status_zero", "zero")):
            if fault in faults:
                return LineResult(cause, 0, 0, 0, b"", faults)
        try:
            lookup = self._look_up(position, entry)
            output = entry.run(self.identity(position))
        except ApiError as error:
            return LineResult("refused", error.status, 0, 0, error.body, faults)
        body = _body_of(output.body, faults)
        tokens = min(output.output_tokens, output.billed)
        body_kept = body if len(body) <= _CACHED_BYTES else None
        return LineResult(None, 200, output.billed, tokens, body_kept, faults, lookup)

    def _look_up(self, position: int, entry: Entry) -> CacheLookup | None:
        prompt = None if self.caching is None or entry.call is None else entry.call.cacheable(self.caching)
        if self.caching is None or entry.call is None or prompt is None:
            return None
        chance = self.rng.uniform("cache", self.id, position)
        at = self.timeline.line_at(position)
        access = CacheAccess((self.api, self.key), at, chance, (self.id, position))
        lookup = self.caches.look_up(prompt, access, self.caching)
        entry.call.cache = lookup.use
        return lookup


def enqueued_limit_problem(
    batch: StoredBatch, others: Iterable[StoredBatch], limit: float | None, now: float
) -> InputProblem | None:
    """Return the problem of a batch that exceeds the enqueued-token limit, or ``None``.

    Args:
        others: batches that have not ended.
        limit: enqueued tokens of a model; ``None`` for no limit.
    """
    if limit is None:
        return None
    waiting = sum(
        other.charge
        for other in others
        if (other.api, other.key, other.model) == (batch.api, batch.key, batch.model)
        and not other.problems
        and now < other.ended_at
    )
    if waiting + batch.charge <= limit:
        return None
    message = (
        f"Enqueued token limit reached for {batch.model} in organization emulator. Limit: {int(limit):,} "
        "enqueued tokens. Please try again once some in_progress batches have been completed."
    )
    return InputProblem("token_limit_exceeded", message)


def _body_of(body: bytes | list[bytes], faults: frozenset[str]) -> bytes:
    whole = body if isinstance(body, bytes) else b"".join(body)
    if "no_usage" not in faults:
        return whole
    answer = json.loads(whole)
    for name in ("usage", "usageMetadata", "tokenCount"):
        answer.pop(name, None)
    return json.dumps(answer).encode()
