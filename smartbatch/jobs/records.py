"""The records of the store: jobs, items, results, incidents and actions; shards are in ``shard_records``.

A *job* is what a user submits, an *item* is one of its requests, and a *shard* is some items sent as one
provider batch.
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

LEASE_SECONDS = 15.0
"""Seconds after which another process may take over a job whose lease is not renewed."""

Fallback = Literal["individual", "batch"]
"""What to do with items that a batch did not process: send them in real time or in another batch."""


def as_texts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


# -- jobs ----------------------------------------------------------------------------------------------------


class JobState(enum.Enum):
    ACTIVE = "active"  # some items have no result yet
    HELD = "held"  # waiting for a person: ``JobRow.note`` gives the reason
    DONE = "done"  # every item has a result


@frozen(kw_only=True)
class JobPolicy:
    """The choices a job was submitted with, for every process that runs it. Stored as text.

    The polling interval of its batches is not one of them: each process uses its own setting.
    """

    # Grows with every change of the fields: a store with a newer version, or with a field unknown to this
    # release, is refused and left unchanged.
    version: ClassVar[int] = 1

    fallback: Fallback = "batch"
    # if it is unknown whether a batch was created: send again after the settle time, or hold the job
    on_unknown: Literal["settle", "hold"] = "settle"
    timeout: float | None = (
        None  # seconds until a batch is cancelled; None: the process's setting (also below)
    )
    settle: float | None = None  # seconds for which a batch whose creation is uncertain is looked for
    max_requests: int | None = None  # maximum requests per shard
    deadline: float | None = None  # Unix seconds by which every item should have its result
    late_penalty: float | None = None  # USD at which a missed deadline is valued; None: the default
    budget: float | None = None  # USD that may be spent on the job
    budget_account: str | None = None  # the client that reserves this budget within its own
    retention: float | None = None  # seconds from the job's end until the provider's files are deleted
    exclusive_workspace: bool = False  # no other program creates batches in the account's workspace
    route: Route | None = field(default=None, converter=optional(Route))  # chosen for the whole job
    # Items are sent in real time, and only while a process that submitted or named the job is running. They
    # fail as they would without a job, instead of waiting for money.
    attended: bool = False
    keep_going: bool = False  # send all items, whatever happens to the first ones
    traceparent: str | None = None  # the submitter's span (W3C Trace Context)
    models: tuple[str, ...] = field(default=(), converter=as_texts)  # provider:model named by its requests


@frozen
class JobRow:
    """A stored job; a job to be accepted has only the fields without a default. Times are Unix seconds."""

    id: str  # "job-" and 16 random characters
    key: str | None  # the user's own name for it, unique in the store
    scope: str  # of the provider's account; never the API key itself
    model: str  # provider:model
    kind: str  # "generate" or "embed"
    params: bytes  # what all items share; see ``payload``
    metadata: Mapping[str, Any]  # the user's labels
    policy: JobPolicy
    created_at: float
    digest: bytes = b""  # over all items in order; a key that is used again with other items is refused
    state: JobState = JobState.ACTIVE
    finished_at: float | None = None  # time of the last result
    total: int = 0  # items
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cost: float = 0.0  # USD so far, of the items whose price is known
    realtime_cost: float = 0.0  # USD the same items would have cost in real time
    unpriced: int = 0  # results whose price is unknown
    input_tokens: int = 0
    output_tokens: int = 0
    truncated: int = 0  # answers with this defect, as the next two
    empty: int = 0
    refused: int = 0
    cancel_requested: bool = False
    note: str | None = None  # what it is waiting for, as shown to users
    epoch: int = 0  # of the current or last owner
    owner: str | None = None  # None if no process has it
    # USD that may be spent besides ``cost``: the most that its shards and its items in flight can still cost,
    # and what lost answers may have cost. Counted only for jobs with a budget.
    reserved: float = 0.0
    no: int = 0  # its number in the store; grows with each job

    @property
    def finished(self) -> int:
        """Items that have a result."""
        return self.succeeded + self.failed + self.cancelled


@frozen
class JobLease:
    """The right to write to a job, lost as soon as another process takes the job over."""

    job_id: str
    epoch: int  # grows with each takeover; a write under an older epoch changes nothing


class LeaseLost(SmartbatchError):
    """Another process owns the job now, or has advanced the shard; nothing was written."""


class OverJobBudget(SmartbatchError):
    """The job's budget has no room for the reservation; nothing was written."""


@frozen
class JobNote:
    text: str | None  # what the job is waiting for, as shown to users; None if it is no longer waiting
    hold: bool = False  # it is waiting for a person


ACCOUNT_ERRORS = frozenset({ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR})
"""The account cannot be used: the job is held until a person resumes it."""


def held_note(error: SmartbatchError) -> str:
    """Return the note for a job whose account cannot be used."""
    problem = "the account has no credit" if error.kind is ErrorKind.NO_MONEY else "the API key was rejected"
    return f"held: {problem} ({error.message}); fix this, then resume the job"


# -- items ---------------------------------------------------------------------------------------------------


class ItemState(enum.Enum):
    """The state of an item. The first three are unfinished work, covered by the index ``item_waiting``."""

    OPEN = 0  # to be put into a shard
    REALTIME = 1  # to be sent in real time
    IN_FLIGHT = 2  # sent in real time, no answer yet; after a crash, the call may have been billed
    SHARDED = 3  # in a shard that is not settled
    FINAL = 4  # has its result
    FOLLOWING = 5  # gets the result of an identical item


@frozen
class ItemName:
    """The name under which an item is found in the store, whichever job it is in."""

    text: str
    digest: str  # of the content that is sent, in hexadecimal


@frozen
class NewItem:
    """An item to be accepted, in its job's order."""

    user_id: str | None  # the request's own id, returned with its result
    payload: bytes  # the request; see ``payload``
    size: int  # approximate bytes of its encoded line, for planning shards
    tokens: int  # estimated input tokens
    realtime: bool = False  # sent in real time from the start
    leader: int | None = None  # position of the identical earlier item whose result it gets
    name: ItemName | None = None


@frozen
class OpenItem:
    """An item that waits to be put into a shard or to be sent in real time."""

    ix: int
    size: int
    tokens: int
    tries: int


@frozen
class StoredItem:
    """An item with its request."""

    ix: int
    user_id: str | None
    payload: bytes = field(repr=False)
    tokens: int  # estimated input tokens
    tries: int  # earlier shards and calls


@frozen
class ItemSize:
    bytes: int  # size of its request in the store
    tokens: int  # estimated input tokens


@frozen
class NamedPlace:
    """Where a named request is stored."""

    job_id: str
    ix: int
    digest: str  # of the content that is sent, in hexadecimal
    outcome: str | None = None  # of its result, if it had one when it was found
    after: int = 0  # sequence number of an older result of the job; 0 if none is known


# -- results -------------------------------------------------------------------------------------------------


@frozen
class NewResult:
    """The final result of an item, or a note on an item that has none yet."""

    ix: int
    outcome: str  # succeeded, failed or cancelled; not final: again (send in real time), unrun (not executed)
    body: bytes = field(repr=False)  # the result; for "again" and "unrun" the error
    digest: bytes = b""  # 16 bytes of its line's digest, so that a second, different line is noticed
    usage: Usage = field(factory=Usage)  # all of its tokens, as far as known
    cost: float | None = None  # USD; None if the price is unknown
    realtime_cost: float | None = None  # USD it would have cost in real time
    route: Route | None = None  # None if it was not sent
    in_realtime: bool = False  # a real-time request, which is counted there
    defects: tuple[Defect, ...] = ()

    @property
    def final(self) -> bool:
        return self.outcome in ("succeeded", "failed", "cancelled")


@define
class StoredCounts:
    """Totals that one transaction stored for a job by one route; published once, after the commit."""

    model: str  # provider:model
    route: Route | None
    in_realtime: bool
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    deduplicated: int = 0  # of these, items that got the answer of an identical request
    usage: Usage = field(factory=Usage)  # known tokens, including those of answers that ended no item
    cost: float = 0.0  # USD, likewise
    realtime_cost: float = 0.0
    unpriced: int = 0
    truncated: int = 0
    empty: int = 0
    refused: int = 0


@frozen
class EarlierTries:
    """Usage of an item in tries that did not end it."""

    cost: float | None  # USD in total; None if one price is unknown
    usage: Usage
    refused: bytes | None = field(default=None, repr=False)  # result of the last one with an answer

    def __add__(self, later: EarlierTries) -> EarlierTries:
        cost = None if self.cost is None or later.cost is None else self.cost + later.cost
        return EarlierTries(cost, self.usage + later.usage, later.refused or self.refused)


@frozen
class ResultRow:
    """A stored result."""

    ix: int
    user_id: str | None
    outcome: str
    body: bytes = field(repr=False)
    payload: bytes = field(repr=False)  # the item's request, for its context
    cost: float | None
    seq: int  # grows within a job in commit order
    follower: bool = False  # ``body`` is the result of the identical item that it followed
    earlier: EarlierTries | None = None  # None if nothing was billed before


@frozen
class StoredResult:
    """A result and its position.

    Attributes:
        index: the position of its request, from 0.
        sequence: grows with each result of the store.
        result: the result.
    """

    index: int
    sequence: int
    result: Result


@frozen
class StoredResults:
    """The changes made by storing some results."""

    final: tuple[int, ...]  # items that got their result
    doubled: tuple[int, ...]  # items that already had a different result, which stays
    counts: tuple[StoredCounts, ...] = ()  # not published yet
    claimed: tuple[StoredItem, ...] = ()  # items claimed in the same transaction


# -- incidents -----------------------------------------------------------------------------------------------


@frozen
class IncidentRow:
    """An unexpected event, recorded for users.

    Attributes:
        kind: a key of ``INCIDENT_TITLES``.
        job_id: the job.
        shard_id: the batch; ``None`` if it concerns none.
        detail: a description without prompts or answers.
        money: USD it cost in addition to the results, if known.
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
    "malformed_line": "Some result lines cannot be read",
    "foreign_line": "Some result lines belong to no request",
    "doubled_line": "Requests have two different answers",
    "token_mismatch": "An answer may belong to another request",
}


def incident_title(kind: str) -> str:
    """Return the title of a kind of incident; the kind itself if a newer release stored it."""
    return INCIDENT_TITLES.get(kind, kind.replace("_", " "))


# -- actions -------------------------------------------------------------------------------------------------

MAX_JOBS_PER_ACTION = 1_000
"""Maximum number of jobs that one action on a selection changes."""
MAX_ROWS_PER_ACTION = 100_000
"""Maximum number of rows of a job that one action sends again."""
MAX_COUNTED_JOBS = 10_000
"""Maximum to which jobs that an action leaves out are counted."""
MAX_STORED_ACTIONS = 10_000
"""Maximum number of actions that a store keeps."""
MAX_TEXT_CHARS = 500
"""Maximum characters of a reason, and of the name of the acting user."""

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
        number: grows with each action in the store.
        at: Unix seconds, by the clock of the store.
        by: the user.
        name: the kind of action.
        target: the job id, ``provider:model``, or a description of the selected jobs.
        job_id: the job, if the action concerned exactly one.
        count: how many jobs, rows or models it changed.
        left_out: how many more it applied to but left unchanged, because they were too many or refused.
        detail: the new value, in words.
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
            if not isinstance(text, str) or not text.isprintable():  # a text column refuses some characters
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
        count: jobs it changed; for failed rows, the rows.
        left_out: matching jobs left for the next action, counted up to 10,000.
    """

    count: int
    left_out: int


@frozen
class RetriedRows:
    """The outcome of sending failed rows of a job again.

    Attributes:
        count: rows that are sent again.
        left_out: failed rows that are not, including those in ``billed``.
        billed: positions of failed rows that were, or may have been, paid for. They are sent again only if
            they are named or ``billed=True`` is given.
    """

    count: int
    left_out: int
    billed: tuple[int, ...] = field(repr=False)


def actor(by: str | None) -> str:
    """Return the name of the acting user: the given one, or the user and machine of this process."""
    if by is None:
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):  # the user has no name, as in some containers
            user = "unknown"
        by = f"{user}@{socket.gethostname()}"
    return one_line(by) or "unknown"


def one_line(text: str | None) -> str | None:
    """Return a user's text in its stored form: one line of limited length; ``None`` if it is empty."""
    if text is None:
        return None
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line[:MAX_TEXT_CHARS] or None
