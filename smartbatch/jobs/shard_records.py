"""Records of shards. A shard is a part of a job sent as one provider batch.

A shard is one attempt: it has its own nonce, is created at most once and is never sent again. Items that it
leaves without a result are sent in a new shard or in real time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from random import Random
from typing import ClassVar

from attrs import field, frozen
from attrs.converters import optional

from smartbatch.jobs.records import as_texts
from smartbatch.providers.batch_api import RemoteKind, RemoteState


class ShardState(enum.Enum):
    """The state of a shard. :data:`TRANSITIONS` lists the possible next states."""

    PLANNED = "planned"
    UPLOADING = "uploading"
    READY = "ready"
    SUBMITTING = "submitting"  # the one create call may have been sent; after a crash, its outcome is unknown
    UNCERTAIN = "uncertain"  # the outcome is unknown: nothing is sent while the batch is searched for
    # a batch may belong to the shard; its results will show whether it does (Anthropic)
    PROVISIONAL = "provisional"
    FENCED = "fenced"  # not found; the input file was deleted so that a late create call fails
    SUBMITTED = "submitted"
    ENDED = "ended"
    INGESTING = "ingesting"
    SETTLED = "settled"  # every item was classified, and the cost was recorded
    DEAD = "dead"  # not created, or refused; the list of batches is still watched for its nonce


_S = ShardState
TRANSITIONS: Mapping[ShardState, frozenset[ShardState]] = {
    _S.PLANNED: frozenset({_S.UPLOADING, _S.READY, _S.DEAD}),
    _S.UPLOADING: frozenset({_S.READY, _S.DEAD}),
    _S.READY: frozenset({_S.SUBMITTING, _S.UPLOADING, _S.DEAD}),
    # back to READY only after a definite refusal in the process that sent the create call
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
"""States in which a shard still holds its items."""

BEGUN_SHARDS = OPEN_SHARDS - {_S.PLANNED}
"""States of open shards whose input may have been sent."""

UNSENT_SHARDS = frozenset({_S.PLANNED, _S.UPLOADING, _S.READY})
"""States in which the create call has certainly not been sent."""

BEFORE_UPLOAD = frozenset({ShardState.PLANNED, ShardState.UPLOADING})


@frozen(kw_only=True)
class RemoteProgress:
    """The known state of a shard's batch at the provider, and the actions taken. Stored as text."""

    version: ClassVar[int] = 2  # version of the stored form; see JobPolicy

    # None before the first poll
    state: RemoteState | None = field(default=None, converter=optional(RemoteState))
    status: str | None = None  # the provider's name for the state
    completed: int | None = None  # succeeded requests, if reported
    failed: int | None = None  # failed requests, if reported
    # locations of the results, for the adapter
    outputs: tuple[str, ...] = field(default=(), converter=as_texts)
    # Unix seconds, stored before the first cancel request; if None, the batch was cancelled by someone else
    cancel_sent_at: float | None = None
    rescue: str | None = None  # why unanswered requests are sent in real time
    searched_since: float | None = None  # provider's clock at the start of the search, if reported
    fenced_since: float | None = None  # provider's clock when the input file was deleted, if reported
    # parameters that the server rejected earlier
    omitted: tuple[str, ...] = field(default=(), converter=as_texts)
    # whether shared prefixes are marked in the input, stored before it is sent; always in version 1
    marked: bool = True
    files_ready: int = 0  # requests, from the first, whose files were uploaded
    uploads: int = 0  # uploads repeated because an earlier one may still have been in progress
    results_fetched: bool = False  # the results are in local files
    results_refetched: int = field(default=0, converter=int)  # downloads repeated because lines were missing
    results_cut: int = 0  # downloads repeated because the last line was incomplete
    results_size: int | None = None  # bytes received by the latest download that was incomplete or the last
    results_gone: bool = False  # the provider deleted the results before they were downloaded
    # the job was held because the outcome of the create call was unknown; if it is active again, a user
    # resumed it
    held_job: bool = False
    checked_for_duplicates: bool = False  # the provider's list was searched for a second batch of this shard
    # batch ids still to examine
    suspected_duplicates: tuple[str, ...] = field(default=(), converter=as_texts)

    @property
    def done(self) -> int | None:
        """Requests that the provider reports as processed."""
        if self.completed is None and self.failed is None:
            return None
        return (self.completed or 0) + (self.failed or 0)


@frozen
class NewShard:
    id: str
    nonce: str
    items: tuple[int, ...] = field(repr=False)  # positions in the job, in shard order
    bytes: int
    tokens: int  # estimated input tokens
    due_at: float
    reserved: float = 0.0  # maximum cost in USD, reserved in the job's budget
    model: str | None = None  # provider:model of all its requests; None for the job's model
    marked: bool = True  # whether shared prefixes may be marked; ``reserved`` then includes their writes


@frozen
class ShardRow:
    """A stored shard. Times are Unix seconds."""

    id: str
    job_id: str
    no: int  # from 1, in planning order within the job
    nonce: str
    scope: str  # account of its job
    model: str  # provider:model
    state: ShardState
    size: int  # number of requests
    bytes: int
    tokens: int
    due_at: float  # time of the next step
    tries: int  # consecutive refusals, failed polls or failed downloads; determines the pause
    file_id: str | None
    batch_id: str | None
    watermark: str | None  # id of the newest batch in the provider's list before the create call
    server_time: float | None  # the provider's clock at that moment, if reported
    submitted_at: float | None  # time of the create call
    uncertain_since: float | None  # time at which its outcome became unknown
    fenced_at: float | None  # time at which its input file was deleted
    candidate: str | None  # id of a batch that may belong to the shard
    foreign_batches: tuple[str, ...]  # ids of batches that certainly do not belong to the shard
    remote: RemoteProgress
    cancelled: bool  # the provider was asked to cancel it
    ended_at: float | None
    settled_at: float | None
    died_at: float | None  # time at which it became DEAD
    cleaned_up: bool  # no step is left, and what the provider stores for it is recorded for deletion
    results_until: float | None  # time at which the provider deletes its results
    cost: float | None  # USD of its answers once settled; None if unknown
    note: str | None
    reserved: float = 0.0  # its part of JobRow.reserved in USD


@frozen
class UnsettledItem:
    ix: int
    verdict: str | None  # "again" or "unrun" if a result line says so; None without a line
    body: bytes | None = field(repr=False)  # the error that came with the verdict
    tries: int  # earlier shards and calls


@frozen
class RemoteAccount:
    scope: str  # like the scope of a job
    model: str  # provider:model of one of its batches, from which its provider can be opened


@frozen
class RemoteObject:
    """Something that a provider stores for a batch that has ended, or a file uploaded for prompts."""

    no: int
    scope: str
    model: str  # provider:model
    kind: RemoteKind
    id: str  # for outputs, the location of the results; empty for an upload whose outcome is unknown
    bytes: int  # 0 if unknown
    tries: int  # deletions sent so far
    name: str | None = None  # name of an uploaded file


# -- names sent to a provider --------------------------------------------------------------------------------
#
# A nonce is 128 random bits in base62, 22 characters, so that ``nonce-position`` satisfies the strictest rule
# of the three providers, Anthropic's ``[a-zA-Z0-9_-]{1,64}``, and OpenAI's limit for metadata values. A nonce
# is never reused, because the late create call of an old shard could then look like that of a new one.

_BASE62_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WIRE_ID = re.compile(r"([0-9A-Za-z]{22})-([0-9A-Za-z]{1,6})")


def new_nonce(rng: Random) -> str:
    """Return 128 random bits as 22 characters in base62."""
    return _base62(rng.getrandbits(128)).rjust(22, "0")


def wire_id(nonce: str, position: int) -> str:
    """Return the id of the request at ``position``, counted from 0."""
    return f"{nonce}-{_base62(position)}"


def parse_wire_id(text: str) -> tuple[str, int] | None:
    """Split an id made by :func:`wire_id` into nonce and position. Return ``None`` for any other string."""
    found = _WIRE_ID.fullmatch(text)
    if found is None:
        return None
    if len(found.group(2)) > 1 and found.group(2).startswith("0"):
        return None  # accept only one spelling of each number, so that ids are unique
    position = 0
    for digit in found.group(2):
        position = position * 62 + _BASE62_DIGITS.index(digit)
    return found.group(1), position


def file_name(nonce: str, uploads: int) -> str:
    """``uploads`` counts earlier uploads that could not be found."""
    return f"sb-{nonce}-{uploads}" if uploads else f"sb-{nonce}"


def _base62(number: int) -> str:
    digits = []
    while True:
        number, digit = divmod(number, 62)
        digits.append(_BASE62_DIGITS[digit])
        if not number:
            return "".join(reversed(digits))
