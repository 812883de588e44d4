"""What the store remembers: jobs, their items, the shards they go in, results and incidents.

A *job* is what a user submits; an *item* is one of its requests; a *shard* is some items of a job sent as one
provider batch. A shard is one attempt: it has its own nonce, is created at most once and never sent again.
What a shard leaves over goes into a new one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

__all__ = [
    "OPEN_SHARDS",
    "TRANSITIONS",
    "UNSENT_SHARDS",
    "IncidentRow",
    "ItemState",
    "JobLease",
    "JobRow",
    "JobState",
    "NewItem",
    "NewJob",
    "NewResult",
    "NewShard",
    "OpenItem",
    "ResultRow",
    "ShardRow",
    "ShardState",
]


class JobState(enum.Enum):
    """Where a job stands."""

    ACTIVE = "active"
    """Some items have no result yet."""
    HELD = "held"
    """Waits for a person: its policy is ``hold`` and a create's outcome is unknown, or its account is out of
    use. ``JobRow.note`` says what to do."""
    DONE = "done"
    """Every item has a result."""


class ItemState(enum.Enum):
    """Where an item stands."""

    OPEN = "open"
    """To be put into a shard."""
    SHARDED = "sharded"
    """In a shard that is not settled."""
    DIRECT = "direct"
    """To be asked alone, in real time."""
    ASKING = "asking"
    """Being asked alone; found so after a crash, the call may have been billed."""
    FINAL = "final"
    """Has its result."""


class ShardState(enum.Enum):
    """Where a shard stands; see :data:`TRANSITIONS` for what may follow."""

    PLANNED = "planned"
    UPLOADING = "uploading"
    READY = "ready"
    SUBMITTING = "submitting"
    """The one create may be on its way. Found so by another process or after a crash: unknown."""
    UNCERTAIN = "uncertain"
    """The create's outcome is unknown: it is looked for, and nothing is sent meanwhile."""
    PROVISIONAL = "provisional"
    """A batch that could be ours exists; its results will prove it (Anthropic)."""
    FENCED = "fenced"
    """Not found; its input file was deleted, so that a late create must fail."""
    SUBMITTED = "submitted"
    ENDED = "ended"
    INGESTING = "ingesting"
    SETTLED = "settled"
    """Every item was classified; cost is booked."""
    DEAD = "dead"
    """Certainly, or after the settle time, not created, or refused as a whole. Its nonce stays watched."""


_S = ShardState
TRANSITIONS: Mapping[ShardState, frozenset[ShardState]] = {
    _S.PLANNED: frozenset({_S.UPLOADING, _S.READY, _S.DEAD}),
    _S.UPLOADING: frozenset({_S.READY, _S.DEAD}),
    _S.READY: frozenset({_S.SUBMITTING, _S.UPLOADING, _S.DEAD}),
    # back to READY only by a definite refusal seen by the process that sent it
    _S.SUBMITTING: frozenset({_S.SUBMITTED, _S.READY, _S.UNCERTAIN, _S.DEAD}),
    _S.UNCERTAIN: frozenset({_S.SUBMITTED, _S.PROVISIONAL, _S.FENCED, _S.DEAD}),
    _S.PROVISIONAL: frozenset({_S.SUBMITTED, _S.UNCERTAIN}),
    _S.FENCED: frozenset({_S.SUBMITTED, _S.DEAD}),
    _S.SUBMITTED: frozenset({_S.ENDED, _S.DEAD}),
    _S.ENDED: frozenset({_S.INGESTING}),
    _S.INGESTING: frozenset({_S.SETTLED, _S.INGESTING}),
    _S.SETTLED: frozenset(),
    _S.DEAD: frozenset(),
}

OPEN_SHARDS = frozenset(_S) - {_S.SETTLED, _S.DEAD}
"""Shards that still hold their items."""

UNSENT_SHARDS = frozenset({_S.PLANNED, _S.UPLOADING, _S.READY})
"""Shards whose create was certainly not sent yet."""


@frozen
class JobLease:
    """The right to write to a job: lost as soon as another process takes the job over.

    Attributes:
        job_id: the job.
        epoch: grows by one with every taking; a write under an old one changes nothing.
    """

    job_id: str
    epoch: int


@frozen
class NewJob:
    """A job to be accepted.

    Attributes:
        id: ``job-`` and 16 random characters.
        key: the user's own name for it; a key is accepted once.
        scope: the scope of the provider's account, never the key itself.
        model: ``provider:model``.
        kind: ``generate`` or ``embed``.
        params: what all items share, as JSON bytes (see :mod:`smartbatch.jobs.payload`).
        metadata: the user's labels.
        policy: JSON-able choices: ``fallback`` (``"individual"`` or ``"batch"``), ``on_unknown``
            (``"settle"`` or ``"hold"``), ``timeout``, ``settle``, ``max_requests``, ``deadline`` (Unix
            seconds or None), ``budget`` (USD or None), ``account`` (who holds it back), ``retention``
            (seconds or None), ``exclusive``, ``route`` and what else the engine wants to find again.
            ``attended`` marks the job of a command somebody sits before: only a process that was told to
            carries it on, and its requests end as they would in real time, instead of waiting for money.
        created_at: Unix seconds.
        digest: over all items in order; a key that comes again with other items is refused.
    """

    id: str
    key: str | None
    scope: str
    model: str
    kind: str
    params: bytes
    metadata: Mapping[str, Any]
    policy: Mapping[str, Any]
    created_at: float
    digest: bytes = b""


@frozen
class NewItem:
    """An item to be accepted, in its job's order.

    Attributes:
        user_id: the request's own id, returned with its result; ``None`` where it has none.
        payload: the request as bytes, see :mod:`smartbatch.jobs.payload`.
        size: bytes of its encoded line, about; for cutting.
        tokens: estimated input tokens.
        direct: True when it is asked alone from the beginning.
    """

    user_id: str | None
    payload: bytes
    size: int
    tokens: int
    direct: bool = False


@frozen
class JobRow:
    """A job as the store has it.

    Attributes:
        total, succeeded, failed, cancelled: items; the last three have results.
        cost: USD so far of the items whose price is known.
        realtime_cost: USD the same items would have cost in real time.
        unpriced: results whose price is unknown.
        cancel_requested: somebody asked to cancel it.
        note: what it waits for, for people.
        epoch: of the present or last owner.
        owner: of the present owner; ``None`` when it was given back.
        finished_at: Unix seconds of the last result.
        pledged: USD that may be spent besides ``cost``: the most that shards, and items being asked alone,
            can still cost, and what answers that are lost may have cost. Counted for jobs with a budget.
    """

    id: str
    key: str | None
    scope: str
    model: str
    kind: str
    params: bytes
    metadata: Mapping[str, Any]
    policy: Mapping[str, Any]
    state: JobState
    created_at: float
    finished_at: float | None
    total: int
    succeeded: int
    failed: int
    cancelled: int
    cost: float
    realtime_cost: float
    unpriced: int
    input_tokens: int
    output_tokens: int
    cancel_requested: bool
    note: str | None
    epoch: int
    owner: str | None
    digest: bytes
    pledged: float = 0.0

    @property
    def finished(self) -> int:
        """Items that have a result."""
        return self.succeeded + self.failed + self.cancelled


@frozen
class OpenItem:
    """An item that waits to be put into a shard, or to be asked alone."""

    ix: int
    size: int
    tokens: int
    tries: int


@frozen
class NewShard:
    """A shard to be planned.

    Attributes:
        id: unique in the store.
        nonce: see :mod:`smartbatch.jobs.wire_ids`.
        items: positions in the job, in the shard's order.
        most: USD it can cost, taken from the budget of a job that has one.
    """

    id: str
    nonce: str
    items: tuple[int, ...] = field(repr=False)
    bytes: int
    tokens: int
    due_at: float
    most: float = 0.0


@frozen
class ShardRow:
    """A shard as the store has it. Times are Unix seconds.

    Attributes:
        no: from 1, in the order of planning within the job.
        scope, model: those of its job, to find shards of one account.
        size: requests in it.
        due_at: when its next step is due.
        tries: refusals, failed polls or failed downloads in a row, for pauses between them.
        watermark: id of the newest batch in the provider's list before the create.
        server_time: the provider's clock at that time, where it told.
        submitted_at: when the create was sent.
        uncertain_since: when its outcome became unknown.
        fenced_at: when its input file was deleted.
        candidate: id of the batch that could be ours.
        foreign: ids of batches that certainly are not.
        remote: what the provider last said: ``word``, ``completed``, ``failed``, ``outputs``, ``reason``, …
        cancelled: the provider was asked to cancel it.
        died_at: when it became DEAD.
        tidied: its remote files are deleted.
        results_until: when the provider will have dropped its results.
        most: USD it is counted with besides the results that are stored, in ``JobRow.pledged``.
    """

    id: str
    job_id: str
    no: int
    nonce: str
    scope: str
    model: str
    state: ShardState
    size: int
    bytes: int
    tokens: int
    due_at: float
    tries: int
    file_id: str | None
    batch_id: str | None
    watermark: str | None
    server_time: float | None
    submitted_at: float | None
    uncertain_since: float | None
    fenced_at: float | None
    candidate: str | None
    foreign: tuple[str, ...]
    remote: Mapping[str, Any]
    cancelled: bool
    ended_at: float | None
    settled_at: float | None
    died_at: float | None
    tidied: bool
    results_until: float | None
    cost: float | None
    note: str | None
    most: float = 0.0


@frozen
class NewResult:
    """The end of an item, or a note on one that is not final yet.

    Attributes:
        ix: the item's position in its job.
        outcome: ``succeeded``, ``failed`` or ``cancelled``; or, not final, ``again`` (ask it alone) or
            ``unrun`` (never executed).
        body: the result as bytes, see :mod:`smartbatch.jobs.payload`; for ``again`` and ``unrun`` the error.
        digest: of the line it came in, so that a second, different one is noticed; 16 bytes.
        cost, realtime_cost: USD; ``None`` where the price is unknown.
    """

    ix: int
    outcome: str
    body: bytes = field(repr=False)
    digest: bytes = b""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    realtime_cost: float | None = None

    @property
    def final(self) -> bool:
        return self.outcome in ("succeeded", "failed", "cancelled")


@frozen
class ResultRow:
    """A result as the store has it.

    Attributes:
        payload: the item's own bytes, for its context.
        seq: grows within a job in the order of commit.
    """

    ix: int
    user_id: str | None
    outcome: str
    body: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    cost: float | None
    seq: int


@frozen
class IncidentRow:
    """Something that should not have happened, kept for people.

    Attributes:
        kind: ``double_submission``, ``foreign_line``, ``doubled_line``, ``malformed_line``,
            ``token_mismatch``, ``missing_items``, ``batch_vanished``, ``maybe_billed``, …
        detail: in words, without prompts or answers.
        money: USD it may have cost, where that can be said.
    """

    kind: str
    job_id: str
    shard_id: str | None
    detail: str
    money: float | None
    at: float
