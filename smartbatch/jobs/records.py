"""The records of the store: jobs, their items, the shards they go in, results and incidents.

A *job* is what a user submits; an *item* is one of its requests; a *shard* is some items of a job sent as one
provider batch. A shard is one attempt: it has its own nonce, is created at most once and never sent again.
Items that a shard leaves without a result go into a new shard, or are sent in real time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from smartbatch.errors import SmartbatchError
from smartbatch.jobs.versioned_records import JobPolicy, RemoteProgress
from smartbatch.types import Defect, Route, Usage


class JobState(enum.Enum):
    """Where a job stands."""

    ACTIVE = "active"
    """Some items have no result yet."""
    HELD = "held"
    """Waits for a person: its policy is ``hold`` and the outcome of a create is unknown, or its account
    cannot be used. ``JobRow.note`` says what to do."""
    DONE = "done"
    """Every item has a result."""


class ItemState(enum.Enum):
    """The state of an item. The first three are unfinished work; see ``item_waiting``, the table's index."""

    OPEN = 0
    """To be put into a shard."""
    REALTIME = 1
    """To be sent in real time."""
    IN_FLIGHT = 2
    """Sent in real time, not answered yet; found so after a crash, the call may have been billed."""
    SHARDED = 3
    """In a shard that is not settled."""
    FINAL = 4
    """Has its result."""
    FOLLOWING = 5
    """Ends with the result of the equal item that it follows."""


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


LEASE = 15.0
"""Seconds after which a job of a process that does not renew its lease may be taken over."""


@frozen
class JobLease:
    """The right to write to a job: lost as soon as another process takes the job over.

    Attributes:
        job_id: the job.
        epoch: grows by one with every taking; a write under an old one changes nothing.
    """

    job_id: str
    epoch: int


class LeaseLost(SmartbatchError):
    """Another process owns the job now, or moved the shard on; nothing was written."""


class OverJobBudget(SmartbatchError):
    """The job's budget has no room for it; nothing was written."""


@frozen
class ItemName:
    """The name by which an item is found in the store, whatever job it is in."""

    text: str
    digest: str  # of what is sent, as hexadecimal text


@frozen
class NewItem:
    """An item to be accepted, in its job's order.

    Attributes:
        user_id: the request's own id, returned with its result; ``None`` where it has none.
        payload: the request as bytes, see :mod:`smartbatch.jobs.payload`.
        size: bytes of its encoded line, about; for cutting.
        tokens: estimated input tokens.
        realtime: True when it is sent in real time from the beginning.
        leader: position of the equal item before it whose result it gets; ``None`` where it is sent itself.
        name: under which its place can be found; ``None`` where it has none.
    """

    user_id: str | None
    payload: bytes
    size: int
    tokens: int
    realtime: bool = False
    leader: int | None = None
    name: ItemName | None = None


@frozen
class JobRow:
    """A job as the store has it; one that is to be accepted has only the fields without a default.

    Attributes:
        id: ``job-`` and 16 random characters.
        key: the user's own name for it; a key is accepted once.
        scope: the scope of the provider's account, never the key itself.
        model: ``provider:model``.
        kind: ``generate`` or ``embed``.
        params: what all items share, as JSON bytes (see :mod:`smartbatch.jobs.payload`).
        metadata: the user's labels.
        created_at: Unix seconds.
        digest: over all items in order; a key that comes again with other items is refused.
        finished_at: Unix seconds of the last result.
        total, succeeded, failed, cancelled: items; the last three have results.
        cost: USD so far of the items whose price is known.
        realtime_cost: USD the same items would have cost in real time.
        unpriced: results whose price is unknown.
        truncated, empty, refused: answers with these defects.
        cancel_requested: somebody asked to cancel it.
        note: what it waits for, for people.
        epoch: of the present or last owner.
        owner: of the present owner; ``None`` when it was given back.
        no: its number in the store; grows with each job.
        reserved: USD that may be spent besides ``cost``: the most that shards, and items in flight in real
            time, can still cost, and what answers that are lost may have cost. Counted for jobs with a
            budget.
    """

    id: str
    key: str | None
    scope: str
    model: str
    kind: str
    params: bytes
    metadata: Mapping[str, Any]
    policy: JobPolicy
    created_at: float
    digest: bytes = b""
    state: JobState = JobState.ACTIVE
    finished_at: float | None = None
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cost: float = 0.0
    realtime_cost: float = 0.0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    truncated: int = 0
    empty: int = 0
    refused: int = 0
    cancel_requested: bool = False
    note: str | None = None
    epoch: int = 0
    owner: str | None = None
    reserved: float = 0.0
    no: int = 0

    @property
    def finished(self) -> int:
        """Items that have a result."""
        return self.succeeded + self.failed + self.cancelled


@frozen
class OpenItem:
    """An item that waits to be put into a shard, or to be sent in real time."""

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
        reserved: the most it can cost, USD; reserved from the budget of a job that has one.
        model: ``provider:model`` of all its requests; the job's when ``None``.
    """

    id: str
    nonce: str
    items: tuple[int, ...] = field(repr=False)
    bytes: int
    tokens: int
    due_at: float
    reserved: float = 0.0
    model: str | None = None


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
        foreign_batches: ids of batches that certainly are not.
        remote: what is known of its batch.
        cancelled: the provider was asked to cancel it.
        died_at: when it became DEAD.
        cleaned_up: its remote files are deleted.
        results_until: when the provider will have deleted its results.
        cost: USD of the answers in its results, once it is settled; ``None`` where it cannot be known.
        reserved: USD it is counted with in ``JobRow.reserved``, besides the results that are stored.
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
    foreign_batches: tuple[str, ...]
    remote: RemoteProgress
    cancelled: bool
    ended_at: float | None
    settled_at: float | None
    died_at: float | None
    cleaned_up: bool
    results_until: float | None
    cost: float | None
    note: str | None
    reserved: float = 0.0


@frozen
class NewResult:
    """The end of an item, or a note on one that is not final yet.

    Attributes:
        ix: the item's position in its job.
        outcome: ``succeeded``, ``failed`` or ``cancelled``; or, not final, ``again`` (send it in real time)
            or ``unrun`` (never executed).
        body: the result as bytes, see :mod:`smartbatch.jobs.payload`; for ``again`` and ``unrun`` the error.
        digest: of the line it came in, so that a second, different one is noticed; 16 bytes.
        usage: all of its tokens, as far as they are known.
        cost, realtime_cost: USD; ``None`` where the price is unknown.
        route: how it came; ``None`` where it was not sent.
        in_realtime: whether it was a request in real time, which is counted there.
        defects: of an answer, see :attr:`smartbatch.Result.defects`.
    """

    ix: int
    outcome: str
    body: bytes = field(repr=False)
    digest: bytes = b""
    usage: Usage = field(factory=Usage)
    cost: float | None = None
    realtime_cost: float | None = None
    route: Route | None = None
    in_realtime: bool = False
    defects: tuple[Defect, ...] = ()

    @property
    def final(self) -> bool:
        return self.outcome in ("succeeded", "failed", "cancelled")


@frozen
class JobNote:
    """What a job waits for.

    Attributes:
        text: for users; ``None`` where it waits no more.
        hold: it waits for a person.
    """

    text: str | None
    hold: bool = False


@define
class StoredCounts:
    """What one transaction stored of a job by one route, told once and after its commit.

    Attributes:
        model: ``provider:model``.
        route, in_realtime: of all of it, as in :class:`NewResult`.
        succeeded, failed, cancelled: results; an answer that does not end its item is none.
        deduplicated: the part of them that got the answer of an equal request of the job.
        usage, cost: tokens and USD, where they are known, of the results and of answers that are none.
        realtime_cost: USD the same would have cost in real time.
        unpriced: results whose cost is unknown.
        truncated, empty, refused: answers with these defects.
    """

    model: str
    route: Route | None
    in_realtime: bool
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    deduplicated: int = 0
    usage: Usage = field(factory=Usage)
    cost: float = 0.0
    realtime_cost: float = 0.0
    unpriced: int = 0
    truncated: int = 0
    empty: int = 0
    refused: int = 0


@frozen
class EarlierTries:
    """What tries of an item used that did not end it.

    Attributes:
        cost: USD of all of them; ``None`` where the price of one is unknown.
        usage: tokens of all of them.
        refused: the result of the last one, as bytes, where it brought an answer.
    """

    cost: float | None
    usage: Usage
    refused: bytes | None = field(default=None, repr=False)

    def __add__(self, later: EarlierTries) -> EarlierTries:
        cost = None if self.cost is None or later.cost is None else self.cost + later.cost
        return EarlierTries(cost, self.usage + later.usage, later.refused or self.refused)


@frozen
class ResultRow:
    """A result as the store has it.

    Attributes:
        payload: the item's own bytes, for its context.
        seq: grows within a job in the order of commit.
        follower: whether ``body`` is the result of the equal item that it followed.
        earlier: tries before the one in ``body``, likewise; ``None`` where nothing was billed for them.
    """

    ix: int
    user_id: str | None
    outcome: str
    body: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    cost: float | None
    seq: int
    follower: bool = False
    earlier: EarlierTries | None = None


@frozen
class NamedPlace:
    """Where a request stands that has a name of its own: a position in a job.

    Attributes:
        digest: of what is sent, as hexadecimal text.
        outcome: of the result that it had when it was found; ``None`` where it had none.
        after: sequence number of a result of the job that is older than its own; 0 if none is known.
    """

    job_id: str
    ix: int
    digest: str
    outcome: str | None = None
    after: int = 0


@frozen
class IncidentRow:
    """Something that should not have happened, kept for people.

    Attributes:
        kind: ``double_submission``, ``foreign_line``, ``doubled_line``, ``malformed_line``,
            ``token_mismatch``, ``missing_items``, ``batch_vanished``, ``maybe_billed``, …
        detail: in words, without prompts or answers.
        money: USD it cost besides what results hold, where that can be said.
    """

    kind: str
    job_id: str
    shard_id: str | None
    detail: str
    money: float | None
    at: float


@frozen
class StoredItem:
    """An item with its request.

    Attributes:
        user_id: the request's own id.
        tokens: estimated input tokens.
        tries: shards and calls it went through before.
    """

    ix: int
    user_id: str | None
    payload: bytes = field(repr=False)
    tokens: int
    tries: int


@frozen
class ItemSize:
    """The size of an item: bytes of its request in the store, estimated input tokens."""

    bytes: int
    tokens: int


@frozen
class UnsettledItem:
    """An item of a shard that has no result yet.

    Attributes:
        verdict: ``again`` or ``unrun`` where a line said so; ``None`` when no line came: it is missing.
        body: the error that came with the verdict.
        tries: shards and calls it went through before.
    """

    ix: int
    verdict: str | None
    body: bytes | None = field(repr=False)
    tries: int


@frozen
class StoredResults:
    """What an ingest changed.

    Attributes:
        final: items that have their result by it.
        doubled: items that had another result already, which stays.
        counts: what it counted, where that is still to be told.
        claimed: items that were claimed along with it.
    """

    final: tuple[int, ...]
    doubled: tuple[int, ...]
    counts: tuple[StoredCounts, ...] = ()
    claimed: tuple[StoredItem, ...] = ()


_TITLES = {
    "double_submission": "A batch was created twice",
    "maybe_billed": "Requests may be paid twice",
    "missing_items": "Requests of an ended batch have no result",
    "batch_vanished": "The provider no longer knows a batch",
    "batch_cancelled": "A batch was cancelled at the provider",
    "no_batch_api": "The Batch API cannot be used",
    "deadline_at_risk": "The deadline may be missed",
    "results_at_risk": "Results cannot be fetched so far",
    "results_gone": "Results were deleted before they were fetched",
    "malformed_line": "Lines of the results cannot be read",
    "foreign_line": "Lines of the results belong to nobody",
    "doubled_line": "Requests were answered twice, differently",
    "token_mismatch": "An answer may belong to another request",
}


def incident_title(kind: str) -> str:
    """Return what happened; the kind itself, where a newer release stored it."""
    return _TITLES.get(kind, kind.replace("_", " "))
