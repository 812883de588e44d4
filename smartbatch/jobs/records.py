"""Records of the store: jobs, items, results, incidents and actions. For shards, see ``shard_records``.

A *job* is submitted by the user, an *item* is one of its requests, and a *shard* is the part of a job that
becomes one provider batch.
"""

from __future__ import annotations

import enum
import getpass
import socket
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from attrs import define, field, frozen
from attrs.converters import optional

from smartbatch.errors import ErrorKind, InvalidRequest, SmartbatchError
from smartbatch.types import Defect, Result, Route, Usage

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

LEASE_SECONDS = 15.0
"""Another process may take over a job whose lease was not renewed for this long."""

Fallback = Literal["individual", "batch"]
"""Whether items that a batch did not process are sent in real time or in another batch."""


def as_texts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


# -- jobs ----------------------------------------------------------------------------------------------------


class JobState(enum.Enum):
    ACTIVE = "active"  # some items have no result
    HELD = "held"  # waiting for a user; see ``JobRow.note`` for the reason
    DONE = "done"


@frozen(kw_only=True)
class JobPolicy:
    """The options a job was submitted with, which apply in every process that runs it. Stored as text.

    The polling interval is not included: each process uses its own setting.
    """

    # Increases with every change of the fields. A job with a newer version or an unknown field is refused and
    # left unchanged.
    version: ClassVar[int] = 1

    fallback: Fallback = "batch"
    # if it is unknown whether a batch was created: send its items again after the settle time, or hold the
    # job
    on_unknown: Literal["settle", "hold"] = "settle"
    # seconds until a batch is cancelled; for None here and below, the process's setting applies
    timeout: float | None = None
    settle: float | None = None  # seconds to search for a batch whose creation is uncertain
    max_requests: int | None = None  # per shard
    deadline: float | None = None  # Unix seconds
    # cost of a missed deadline as a share of the real-time price; None for the default
    late_penalty: float | None = None
    budget: float | None = None  # USD
    budget_account: str | None = None  # id of the client that reserves this budget within its own
    # seconds from the end of the job until its batches and files are deleted; None to keep them
    retention: float | None = None
    exclusive_workspace: bool = False  # no other program creates batches in the account's workspace
    route: Route | None = field(default=None, converter=optional(Route))
    # Items are sent in real time, and only while a process waits for the job. They fail as they would without
    # a job, instead of waiting for budget.
    attended: bool = False
    keep_going: bool = False  # send all items even if the first ones fail with the same error
    traceparent: str | None = None  # span of the submitter (W3C Trace Context)
    models: tuple[str, ...] = field(default=(), converter=as_texts)  # the requests' models as provider:model
    caching: bool = False  # prefixes that requests share are marked for the provider's cache
    groups: bool = False  # only some requests share a prefix; they should be neighbors in batches


@frozen
class JobRow:
    """A stored job. A job to be accepted has only the fields without a default. Times are Unix seconds."""

    id: str  # "job-" and 16 random characters
    key: str | None  # the user's name for the job, unique in the store
    scope: str  # identifies the provider's account without revealing the API key
    model: str  # provider:model
    kind: str  # "generate" or "embed"
    params: bytes  # parameters shared by all items; see ``payload``
    metadata: Mapping[str, Any]  # the user's labels
    policy: JobPolicy
    created_at: float
    digest: bytes = b""  # of all items in order; submitting other items under the same key is refused
    state: JobState = JobState.ACTIVE
    finished_at: float | None = None  # time of the last result
    total: int = 0  # number of items
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cost: float = 0.0  # USD so far, of results with a known price
    realtime_cost: float = 0.0  # USD for the same results in real time
    unpriced: int = 0  # results with an unknown price
    input_tokens: int = 0
    output_tokens: int = 0
    truncated: int = 0  # number of truncated answers
    empty: int = 0
    refused: int = 0
    cancel_requested: bool = False
    note: str | None = None  # shown to users: what the job is waiting for
    epoch: int = 0  # of the current or last owner
    owner: str | None = None  # None if no process owns the job
    # USD that shards and items in flight can still cost, and that lost answers may have cost. Used only for
    # jobs with a budget.
    reserved: float = 0.0
    no: int = 0  # increases with each job in the store

    @property
    def finished(self) -> int:
        """Items with a result."""
        return self.succeeded + self.failed + self.cancelled


@frozen
class JobLease:
    """The right to write to a job. It is lost when another process takes over the job."""

    job_id: str
    epoch: int  # increases with each takeover; writes with an older epoch are rejected


class LeaseLost(SmartbatchError):
    """Another process owns the job or has advanced the shard; nothing was written."""


class OverJobBudget(SmartbatchError):
    """The reservation exceeds the job's budget; nothing was written."""


@frozen
class JobNote:
    text: str | None  # shown to users: what the job is waiting for; None if it no longer waits
    hold: bool = False  # waiting for a user


ACCOUNT_ERRORS = frozenset({ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR})
"""Errors that make the account unusable and hold the job until a user resumes it."""


def held_note(error: SmartbatchError) -> str:
    problem = "the account has no credit" if error.kind is ErrorKind.NO_MONEY else "the API key was rejected"
    return f"held: {problem} ({error.message}); fix this, then resume the job"


# -- items ---------------------------------------------------------------------------------------------------


class ItemState(enum.Enum):
    """The state of an item. The index ``item_waiting`` covers the first three, which are unfinished work."""

    OPEN = 0  # not in a shard yet
    REALTIME = 1  # waiting to be sent in real time
    IN_FLIGHT = 2  # sent in real time, not answered yet; after a crash, the call may have been billed
    SHARDED = 3  # in a shard that is not settled
    FINAL = 4  # has its result
    FOLLOWING = 5  # gets the result of an identical item


@frozen
class ItemName:
    """The name that identifies an item in the store across jobs."""

    text: str
    digest: str  # hexadecimal digest of the content that is sent


@frozen
class NewItem:
    """An item to be accepted, in the order of its job."""

    user_id: str | None  # the request's own id, returned with its result
    payload: bytes  # the request; see ``payload``
    size: int  # approximate bytes of the encoded line, for planning shards
    tokens: int  # estimated input tokens
    realtime: bool = False  # sent in real time from the start
    leader: int | None = None  # position of the earlier identical item with the result
    name: ItemName | None = None


@frozen
class OpenItem:
    """An item that is waiting for a shard or to be sent in real time."""

    ix: int
    size: int
    tokens: int
    tries: int


@frozen
class StoredItem:
    ix: int
    user_id: str | None
    payload: bytes = field(repr=False)
    tokens: int  # estimated input tokens
    tries: int  # earlier shards and calls


@frozen
class ItemSize:
    bytes: int  # bytes of the stored request
    tokens: int  # estimated input tokens


@frozen
class NamedPlace:
    """The place of a named request in the store."""

    job_id: str
    ix: int
    digest: str  # hexadecimal digest of the content that is sent
    outcome: str | None = None  # of its result, if it had one when the place was read
    after: int = 0  # sequence number of an older result of the job, or 0


# -- results -------------------------------------------------------------------------------------------------


@frozen
class NewResult:
    """The final result of an item, or a preliminary one."""

    ix: int
    outcome: str  # "succeeded", "failed" or "cancelled"; if preliminary, "again" (in real time) or "unrun"
    body: bytes = field(repr=False)  # the encoded result; for "again" and "unrun" the error
    digest: bytes = b""  # 16 bytes of the line's digest, to detect a second, different line
    usage: Usage = field(factory=Usage)  # all known tokens of the item
    cost: float | None = None  # USD; None if the price is unknown
    realtime_cost: float | None = None  # USD for the same tokens in real time
    route: Route | None = None  # None if the item was not sent
    in_realtime: bool = False  # sent in real time; its usage is counted as such
    defects: tuple[Defect, ...] = ()

    @property
    def final(self) -> bool:
        return self.outcome in ("succeeded", "failed", "cancelled")


@define
class StoredCounts:
    """Totals that one transaction stored for a job and a route, published after the commit."""

    model: str  # provider:model
    route: Route | None
    in_realtime: bool
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    deduplicated: int = 0  # items among these that share the answer of an identical request
    usage: Usage = field(factory=Usage)  # known tokens, including those of answers that completed no item
    cost: float = 0.0  # USD, including the cost of answers that completed no item
    realtime_cost: float = 0.0
    unpriced: int = 0
    truncated: int = 0
    empty: int = 0
    refused: int = 0


@frozen
class EarlierTries:
    """Usage of an item's earlier tries, which did not complete it."""

    cost: float | None  # USD in total; None if a price is unknown
    usage: Usage
    refused: bytes | None = field(default=None, repr=False)  # the last result with an answer

    def __add__(self, later: EarlierTries) -> EarlierTries:
        cost = None if self.cost is None or later.cost is None else self.cost + later.cost
        return EarlierTries(cost, self.usage + later.usage, later.refused or self.refused)


@frozen
class ResultRow:
    ix: int
    user_id: str | None
    outcome: str
    body: bytes = field(repr=False)
    payload: bytes = field(repr=False)  # the item's request, read for its context
    cost: float | None
    seq: int  # increases within a job in commit order
    follower: bool = False  # the item shares the result of an identical one
    earlier: EarlierTries | None = None  # None if nothing was billed before


@frozen
class StoredResult:
    """A result and its position.

    Attributes:
        index: position of the request, from 0.
        sequence: increases with each result of the store.
        result: the result.
    """

    index: int
    sequence: int
    result: Result


@frozen
class StoredResults:
    """The changes made by storing results."""

    final: tuple[int, ...]  # items that received their result
    doubled: tuple[int, ...]  # items that already had a different result, which was kept
    counts: tuple[StoredCounts, ...] = ()  # not published yet
    claimed: tuple[StoredItem, ...] = ()  # items claimed in the same transaction


# -- incidents -----------------------------------------------------------------------------------------------


@frozen
class IncidentRow:
    """An unexpected event, recorded for users.

    Attributes:
        kind: a key of ``INCIDENT_TITLES``.
        job_id: the job.
        shard_id: the batch, or ``None``.
        detail: a description without prompts or answers.
        money: additional USD that the event cost, if known.
        at: Unix seconds.
    """

    kind: str
    job_id: str
    shard_id: str | None
    detail: str
    money: float | None
    at: float


INCIDENT_TITLES = {
    "double_submission": "A batch was created twice",
    "maybe_billed": "Requests may be paid for twice",
    "asked_again": "Failed requests were sent again",
    "missing_items": "Requests of a finished batch have no result",
    "batch_vanished": "The provider no longer knows a batch",
    "batch_cancelled": "A batch was cancelled at the provider",
    "no_batch_api": "The Batch API cannot be used",
    "deadline_at_risk": "The deadline may be missed",
    "results_at_risk": "Results cannot be downloaded yet",
    "results_gone": "Results were deleted before they were downloaded",
    "storage_full": "The provider's file storage is full",
    "storage_nearly_full": "The provider's file storage is nearly full",
    "malformed_line": "Some result lines cannot be read",
    "foreign_line": "Some result lines belong to no request",
    "doubled_line": "Requests have two different answers",
    "token_mismatch": "An answer may belong to another request",
}


def incident_title(kind: str) -> str:
    """Return the title of an incident, or for a kind that only a newer release knows, the kind itself."""
    return INCIDENT_TITLES.get(kind, kind.replace("_", " "))


# -- actions -------------------------------------------------------------------------------------------------

MAX_JOBS_PER_ACTION = 1_000
MAX_ROWS_PER_ACTION = 100_000
"""Maximum number of rows that one action sends again."""
MAX_COUNTED_JOBS = 10_000
"""Jobs left out of an action are counted up to this number."""
MAX_STORED_ACTIONS = 10_000
MAX_TEXT_CHARS = 500
"""Maximum length of the reason for a pause and of a user name."""

ActionName = Literal[
    "cancel",
    "resume",
    "forget",
    "set_deadline",
    "set_budget",
    "retry_failed",
    "pause_model",
    "resume_model",
    "set_limit",
]


@frozen(kw_only=True)
class Action:
    """A user action on jobs or models, as recorded in the store.

    Attributes:
        number: increases with each action in the store.
        at: Unix seconds, by the clock of the store.
        by: the user.
        name: the kind of action.
        target: the job id, ``provider:model``, or a description of the selected jobs.
        job_id: the job, if the action was on exactly one.
        count: number of changed jobs, rows or models.
        left_out: number of further matches left unchanged because of a limit or an error.
        detail: a description of the new value.
    """

    number: int = 0
    at: float
    by: str
    name: ActionName
    target: str
    job_id: str | None = None
    count: int = 1
    left_out: int = 0
    detail: str | None = None


def _ids(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidRequest(f"ids = {given!r:.60} is a string: give a list of ids", field="ids")
    return tuple(given)


@frozen(kw_only=True)
class JobSelection:
    """The jobs of a store that match all given criteria.

    Attributes:
        ids: only these jobs.
        state: ``active``, ``held`` or ``done``.
        model: as ``provider:model``.
    """

    ids: tuple[str, ...] = field(default=(), converter=_ids)
    state: Literal["active", "held", "done"] | None = None
    model: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.state not in (None, "active", "held", "done"):
            raise InvalidRequest(f"state = {self.state!r:.60} is not active, held or done", field="state")
        if not self.ids and self.state is None and self.model is None:
            raise InvalidRequest(
                "a selection of jobs needs at least one of ids, state and model", field="state"
            )
        for text in (*self.ids, self.model or ""):
            if not isinstance(text, str) or not text.isprintable():  # a text column rejects some characters
                raise InvalidRequest(f"{text!r:.60} is not a job id or a model", field="ids")

    def __str__(self) -> str:
        words = [
            f"{name} {value}" for name in ("state", "model") if (value := getattr(self, name)) is not None
        ]
        if self.ids:
            words.append(self.ids[0] if len(self.ids) == 1 else f"{len(self.ids):,} ids from {self.ids[0]}")
        return ", ".join(words)


@frozen
class ActionResult:
    """The outcome of an action on a selection of jobs.

    Attributes:
        count: number of changed jobs; for failed rows, number of rows.
        left_out: number of matching jobs left for the next action, at most 10,000.
    """

    count: int
    left_out: int


@frozen
class RetriedRows:
    """The outcome of sending failed rows of a job again.

    Attributes:
        count: number of rows sent again.
        left_out: number of failed rows not sent again, including those in ``billed``.
        billed: positions of failed rows that were, or may have been, paid for. To send them again, name them
            or pass ``billed=True``.
    """

    count: int
    left_out: int
    billed: tuple[int, ...] = field(repr=False)


def actor(by: str | None) -> str:
    """Return the given user, by default the user and machine of this process."""
    if by is None:
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):  # the user has no name, as in some containers
            user = "unknown"
        by = f"{user}@{socket.gethostname()}"
    return one_line(by) or "unknown"


def one_line(text: str | None) -> str | None:
    """Convert a user's text to its stored form; ``None`` if it is empty."""
    if text is None:
        return None
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line[:MAX_TEXT_CHARS] or None
