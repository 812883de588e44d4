"""Records of shards: some items of a job, sent as one provider batch.

A shard is one attempt: it has its own nonce, is created at most once and never sent again. Items that a shard
leaves without a result go into a new shard or are sent in real time.
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
from smartbatch.providers.batch_api import RemoteState


class ShardState(enum.Enum):
    """The state of a shard; :data:`TRANSITIONS` lists what may follow."""

    PLANNED = "planned"
    UPLOADING = "uploading"
    READY = "ready"
    SUBMITTING = "submitting"  # the one create may be on its way; after a crash its outcome is unknown
    UNCERTAIN = "uncertain"  # the outcome is unknown: nothing is sent while the batch is being looked for
    PROVISIONAL = "provisional"  # a batch that may be the shard's exists; its results will tell (Anthropic)
    FENCED = "fenced"  # not found, and its input file was deleted, so that a late create must fail
    SUBMITTED = "submitted"
    ENDED = "ended"
    INGESTING = "ingesting"
    SETTLED = "settled"  # every item was classified, and the cost is recorded
    DEAD = "dead"  # not created (certainly, or according to the search), or refused; its nonce is watched


_S = ShardState
TRANSITIONS: Mapping[ShardState, frozenset[ShardState]] = {
    _S.PLANNED: frozenset({_S.UPLOADING, _S.READY, _S.DEAD}),
    _S.UPLOADING: frozenset({_S.READY, _S.DEAD}),
    _S.READY: frozenset({_S.SUBMITTING, _S.UPLOADING, _S.DEAD}),
    # back to READY only after a definite refusal, seen by the process that sent the create
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
"""States of open shards whose input may be on its way."""

UNSENT_SHARDS = frozenset({_S.PLANNED, _S.UPLOADING, _S.READY})
"""States in which the create has certainly not been sent."""


@frozen(kw_only=True)
class RemoteProgress:
    """The known state of a shard's batch at the provider, and the actions taken. Stored as text."""

    version: ClassVar[int] = 1  # of the stored form; see JobPolicy

    state: RemoteState | None = field(
        default=None, converter=optional(RemoteState)
    )  # None before the first poll
    status: str | None = None  # the provider's own word for the state
    completed: int | None = None  # requests that succeeded, if the provider says
    failed: int | None = None  # requests that failed, if the provider says
    outputs: tuple[str, ...] = field(default=(), converter=as_texts)  # where the adapter finds the results
    # Unix seconds, stored before the first cancel request; if None, someone else cancelled the batch
    cancel_sent_at: float | None = None
    rescue: str | None = None  # why its unanswered requests are sent in real time
    searched_since: float | None = None  # provider's clock at the start of the search, if it reports one
    fenced_since: float | None = None  # provider's clock when the input file was deleted, if it reports one
    omitted: tuple[str, ...] = field(default=(), converter=as_texts)  # parameters the server rejected before
    uploads: int = 0  # uploads restarted because an earlier one may still have been in progress
    results_fetched: bool = False  # the results are in local files
    results_refetched: int = field(default=0, converter=int)  # fetched again because lines were missing
    results_cut: int = 0  # fetched again because the last line was incomplete
    results_size: int | None = None  # bytes received the last time either happened
    results_gone: bool = False  # the provider deleted the results before they were fetched
    # it was held because the outcome of the create was unknown; if it is active now, a user resumed it
    held_job: bool = False
    checked_for_duplicates: bool = False  # the provider's list was searched for a second batch of this shard
    suspected_duplicates: tuple[str, ...] = field(
        default=(), converter=as_texts
    )  # batch ids still to examine

    @property
    def done(self) -> int | None:
        """Requests that have run, according to the provider."""
        if self.completed is None and self.failed is None:
            return None
        return (self.completed or 0) + (self.failed or 0)


@frozen
class NewShard:
    """A shard to be planned."""

    id: str  # unique in the store
    nonce: str
    items: tuple[int, ...] = field(repr=False)  # positions in the job, in the shard's order
    bytes: int
    tokens: int  # estimated input tokens
    due_at: float
    reserved: float = 0.0  # USD: its maximum cost, reserved in the job's budget
    model: str | None = None  # provider:model of all its requests; None for the job's


@frozen
class ShardRow:
    """A stored shard. Times are Unix seconds."""

    id: str
    job_id: str
    no: int  # from 1, in planning order within the job
    nonce: str
    scope: str  # of its job, to find the shards of one account
    model: str  # provider:model
    state: ShardState
    size: int  # requests in it
    bytes: int
    tokens: int
    due_at: float  # when its next step is due
    tries: int  # consecutive refusals, failed polls or failed downloads; determines the pause
    file_id: str | None
    batch_id: str | None
    watermark: str | None  # id of the newest batch in the provider's list before the create
    server_time: float | None  # the provider's clock at that moment, if reported
    submitted_at: float | None  # when the create was sent
    uncertain_since: float | None  # when its outcome became unknown
    fenced_at: float | None  # when its input file was deleted
    candidate: str | None  # id of the batch that may be the shard's
    foreign_batches: tuple[str, ...]  # ids of batches that are certainly not the shard's
    remote: RemoteProgress
    cancelled: bool  # the provider was asked to cancel it
    ended_at: float | None
    settled_at: float | None
    died_at: float | None  # when it became DEAD
    cleaned_up: bool  # its remote files are deleted
    results_until: float | None  # when the provider deletes its results
    cost: float | None  # USD of its answers, once settled; None if unknown
    note: str | None
    reserved: float = 0.0  # USD counted in JobRow.reserved, besides the stored results


@frozen
class UnsettledItem:
    """An item of a shard that has no result yet."""

    ix: int
    verdict: str | None  # "again" or "unrun" if a line says so; None without a line
    body: bytes | None = field(repr=False)  # the error that came with the verdict
    tries: int  # earlier shards and calls


# -- names sent to a provider --------------------------------------------------------------------------------
#
# A nonce is 128 random bits in base62, 22 characters, so that ``nonce-position`` satisfies the strictest rule
# of the three providers, Anthropic's ``[a-zA-Z0-9_-]{1,64}``, and OpenAI's metadata values. Every shard has
# its own: reusing one could make a late create look like a new shard's.

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WIRE_ID = re.compile(r"([0-9A-Za-z]{22})-([0-9A-Za-z]{1,6})")


def new_nonce(rng: Random) -> str:
    """Return 128 random bits as 22 characters of base62."""
    return _base62(rng.getrandbits(128)).rjust(22, "0")


def wire_id(nonce: str, position: int) -> str:
    """Return the id of the request at ``position`` (from 0) of the shard with ``nonce``."""
    return f"{nonce}-{_base62(position)}"


def parse_wire_id(text: str) -> tuple[str, int] | None:
    """Return nonce and position of an id made by :func:`wire_id`; ``None`` for any other string."""
    found = _WIRE_ID.fullmatch(text)
    if found is None:
        return None
    if len(found.group(2)) > 1 and found.group(2).startswith("0"):
        return None  # only one spelling of a number is valid, so that no id has two names
    position = 0
    for digit in found.group(2):
        position = position * 62 + _DIGITS.index(digit)
    return found.group(1), position


def file_name(nonce: str, uploads: int) -> str:
    """Return the file name of a shard's input, after ``uploads`` uploads that could not be found."""
    return f"sb-{nonce}-{uploads}" if uploads else f"sb-{nonce}"


def _base62(number: int) -> str:
    digits = []
    while True:
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
        if not number:
            return "".join(reversed(digits))
