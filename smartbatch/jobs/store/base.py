"""What a store of jobs does, in the words of the protocol: each method is one transaction.

Rules all stores keep:

- Every write to a job names the writer's :class:`~smartbatch.jobs.records.JobLease`. When the job was taken
  over meanwhile nothing is written and :class:`LeaseLost` is raised.
- A change of a shard's state is guarded by the state it was read in: the second writer gets
  :class:`LeaseLost`.
- What a method returned from is on disk. An error at a commit is looked up, never guessed.
- Pages of requests and results end early where these are large, as some megabytes are read at a time, and
  at gaps; only behind the last one there is none.
- A job becomes ``DONE`` in the transaction that stores its last result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from smartbatch.jobs.records import (
    ClaimedItem,
    IncidentRow,
    ItemSize,
    ItemState,
    JobLease,
    JobRow,
    NewItem,
    NewJob,
    NewResult,
    NewShard,
    OpenItem,
    ResultRow,
    ShardItem,
    ShardPayload,
    ShardRow,
    ShardState,
    StoredResults,
    UnsettledItem,
)

__all__ = ["Store"]


class Store(ABC):
    """A durable book of jobs. Safe to use from several threads and, with others like it, several processes.

    Attributes:
        place: where it is, for people: a path or a DSN without its password.
    """

    place: str

    # -- jobs ------------------------------------------------------------------------------------------------

    @abstractmethod
    def accept(
        self, job: NewJob, items: Iterable[NewItem], *, digest: Callable[[], bytes] | None = None
    ) -> tuple[JobRow, bool]:
        """Store a job and its items; return its row, and whether it is new.

        A key that is known returns the job that has it, and ``items`` are not read. ``items`` is read lazily
        and once. An empty one makes a job that is done. What ``items`` raises is raised, and nothing is kept.

        Args:
            digest: asked for the job's digest once all items were read, which it stands for; it is then
                stored instead of ``job.digest``.
        """

    @abstractmethod
    def job(self, id_or_key: str) -> JobRow | None:
        """Return a job by its id, else by its key."""

    @abstractmethod
    def jobs(self, *, unfinished: bool = False, limit: int = 1000) -> list[JobRow]:
        """Return jobs, newest first."""

    @abstractmethod
    def forget(self, job_id: str) -> None:
        """Delete a finished job with everything it has, and give the room back.

        Raises:
            StoreError: the job is not finished, so forgetting it could lose paid answers.
        """

    @abstractmethod
    def request_cancel(self, job_id: str) -> None:
        """Ask the job's owner, whoever it is, to cancel it."""

    @abstractmethod
    def unhold(self, job_id: str) -> None:
        """Make a held job active again."""

    # -- ownership -------------------------------------------------------------------------------------------

    @abstractmethod
    def claimable(self, *, limit: int = 100) -> list[JobRow]:
        """Return jobs with something left to do that nobody alive owns: unfinished ones, and finished ones
        with shards to tidy. Those this store object owns already are left out."""

    @abstractmethod
    def claim(self, job_id: str, seconds: float, *, unknown: bytes | None = None) -> JobLease | None:
        """Take a job for ``seconds``; ``None`` while somebody alive owns it.

        Somebody is alive whose lease runs by the database's clock, unless the system knows its process has
        died. Items found ``ASKING`` are set back to ``DIRECT``, with one try more, and an incident
        ``maybe_billed`` is written for them.

        Args:
            unknown: the body of the result with which items found ``ASKING`` end as failed instead, for a
                job that sends nothing again whose outcome is unknown.
        """

    @abstractmethod
    def renew(self, leases: Collection[JobLease], seconds: float) -> list[JobLease]:
        """Prolong leases; return those that are still held."""

    @abstractmethod
    def release(self, lease: JobLease) -> None:
        """Give a job back, so that another process may take it at once. Never raises ``LeaseLost``."""

    # -- shards ----------------------------------------------------------------------------------------------

    @abstractmethod
    def open_items(
        self, job_id: str, *, state: ItemState = ItemState.OPEN, limit: int = 100_000
    ) -> list[OpenItem]:
        """Return items in ``state``, in order."""

    @abstractmethod
    def bodies(self, job_id: str, positions: Collection[int]) -> dict[int, bytes]:
        """Return requests of a job by their positions in it; ask for a few hundred at a time."""

    @abstractmethod
    def plan(self, lease: JobLease, shard: NewShard) -> ShardRow:
        """Put open items into a new shard, ``PLANNED``, and pledge the most it can cost.

        Raises:
            LeaseLost: also when one of the items is not open.
            OverBudget: the job's budget has no room for it.
        """

    @abstractmethod
    def reserve(self, lease: JobLease, usd: float) -> None:
        """Take ``usd`` from the job's budget before it may be spent, or give back what was not.

        Held by this and by :meth:`plan`: what is booked and what is pledged never exceed the budget, as long
        as nothing costs more than was pledged for it. After a crash a pledge stays, for nobody knows.

        Raises:
            OverBudget: the budget has no room for it.
        """

    @abstractmethod
    def shard(self, shard_id: str) -> ShardRow | None:
        """Return a shard."""

    @abstractmethod
    def shards(self, job_id: str, *, states: Collection[ShardState] | None = None) -> list[ShardRow]:
        """Return a job's shards by number."""

    @abstractmethod
    def shard_with_nonce(self, nonce: str) -> ShardRow | None:
        """Return the shard with that nonce."""

    @abstractmethod
    def shards_in_scope(self, scope: str, *, states: Collection[ShardState]) -> list[ShardRow]:
        """Return shards of all jobs of an account."""

    @abstractmethod
    def payloads(self, shard_id: str, *, after: int = -1, limit: int = 1000) -> list[ShardPayload]:
        """Return up to ``limit`` requests of a shard by position, from the one after ``after``."""

    @abstractmethod
    def measures(self, shard_id: str) -> dict[int, ItemSize]:
        """Return how large the item at each position of the shard is."""

    @abstractmethod
    def items_at(self, shard_id: str, positions: Collection[int]) -> dict[int, ShardItem]:
        """Return the item at each position of the shard that exists."""

    @abstractmethod
    def advance(self, lease: JobLease, shard: ShardRow, to: ShardState, **changes: Any) -> ShardRow:
        """Move a shard to a state that may follow its own (or the same), with other columns changed.

        Args:
            shard: as it was read; its state is the guard.
            changes: columns of :class:`ShardRow` by name.

        Raises:
            LeaseLost: the job or the shard has moved on.
            ValueError: for a transition that is not in the table.
        """

    @abstractmethod
    def mark_submitting(
        self, lease: JobLease, shard: ShardRow, *, exclusive: bool, **changes: Any
    ) -> ShardRow | None:
        """Move ``READY`` to ``SUBMITTING``: after it, and never before, the one create is sent.

        Args:
            exclusive: in the same transaction, refuse (return ``None``) while another shard of the scope is
                ``SUBMITTING``, ``UNCERTAIN`` or ``PROVISIONAL``.
        """

    @abstractmethod
    def discard(
        self,
        lease: JobLease,
        shard: ShardRow,
        *,
        items: ItemState,
        tried: bool,
        note: str,
        at: float,
        maybe_billed: bool = False,
    ) -> ShardRow:
        """End a shard as ``DEAD`` and free its items in the same transaction.

        Args:
            items: ``OPEN`` or ``DIRECT``: what its items without a result become.
            tried: count it as a try of theirs.
            at: Unix seconds.
            maybe_billed: what was pledged for it stays so: nobody can say that it was not run.
        """

    @abstractmethod
    def fail_shard(self, lease: JobLease, shard: ShardRow, body: bytes, *, note: str, at: float) -> ShardRow:
        """End a shard as ``DEAD`` and its items without a result as failed with ``body``."""

    # -- results ---------------------------------------------------------------------------------------------

    @abstractmethod
    def ingest(
        self, lease: JobLease, shard: ShardRow, results: Sequence[NewResult], *, at: float
    ) -> StoredResults:
        """Store up to a thousand results of a shard; the first of an item wins, the same again is nothing.

        Also takes those of a ``DEAD`` shard, for items that are still open: a orphan's paid answers are used.
        """

    @abstractmethod
    def unsettled(self, shard_id: str) -> list[UnsettledItem]:
        """Return the items of a shard that have no result, by position."""

    @abstractmethod
    def settle(
        self,
        lease: JobLease,
        shard: ShardRow,
        *,
        opened: Collection[int] = (),
        realtime: Collection[int] = (),
        finals: Sequence[NewResult] = (),
        at: float,
        **changes: Any,
    ) -> ShardRow:
        """End a shard as ``SETTLED``, with every item that is left going somewhere, in one transaction.

        Args:
            opened: items for a new shard, with one try more.
            realtime: items to be sent in real time, with one try more.
            finals: results for the rest.
            changes: as in :meth:`advance`; ``reserved`` is 0 unless it is given: results say what it cost.

        Raises:
            ValueError: when an item without a result is in none of the three.
        """

    @abstractmethod
    def claim_realtime(self, lease: JobLease, limit: int) -> list[ClaimedItem]:
        """Turn ``DIRECT`` items to ``ASKING`` and return them: only after that are they asked."""

    @abstractmethod
    def answer(
        self, lease: JobLease, results: Sequence[NewResult], *, at: float, freed: float = 0.0
    ) -> StoredResults:
        """Store what came of ``ASKING`` items; ``again`` makes them ``DIRECT`` with one try more, ``unrun``
        makes them ``DIRECT`` without. What those cost all the same is booked.

        Args:
            freed: USD that was pledged for them and is no more.
        """

    @abstractmethod
    def drop_unsent(self, lease: JobLease, body: bytes, *, at: float) -> int:
        """End every ``OPEN`` and ``DIRECT`` item as cancelled with ``body``; return how many.

        Some thousands a transaction: interrupted, the next call goes on.
        """

    @abstractmethod
    def results(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[ResultRow]:
        """Return up to ``limit`` results by the item's position, from the one after ``after``."""

    @abstractmethod
    def fresh(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[ResultRow]:
        """Return up to ``limit`` results by ``seq``, from the one after ``after``; none is ever skipped."""

    # -- notes -----------------------------------------------------------------------------------------------

    @abstractmethod
    def note(self, lease: JobLease, note: str | None, *, hold: bool = False) -> None:
        """Say what a job waits for; with ``hold`` it waits for a person."""

    @abstractmethod
    def add_incident(self, incident: IncidentRow, *, lease: JobLease | None = None) -> bool:
        """Keep an incident; False when the same kind, shard and detail is known.

        Args:
            lease: where it is given, what a former owner still believes is not kept.
        """

    @abstractmethod
    def incidents(self, job_id: str | None = None) -> list[IncidentRow]:
        """Return incidents, oldest first."""

    @abstractmethod
    def claimed_batches(self, scope: str, batch_ids: Collection[str]) -> set[str]:
        """Return those ids that belong to a shard of this store, or that one is proving to be its own.

        What a dead shard suspects to be its orphan is not claimed: a shard that looks for its batch comes
        first. Nor is what another shard found foreign to itself, for it may be a third one's.
        """

    @abstractmethod
    def observe_turnaround(self, model: str, size: int, seconds: float, at: float) -> None:
        """Remember how long a batch took, for forecasts."""

    @abstractmethod
    def observe_turnarounds(self, model: str, seen: Sequence[tuple[int, float, float]]) -> None:
        """As :meth:`observe_turnaround`, of several, each with its size, seconds and time."""

    @abstractmethod
    def turnarounds(self, model: str, *, limit: int = 100) -> list[tuple[int, float, float]]:
        """Return size, seconds and time of the latest batches of ``model``, newest first."""

    @abstractmethod
    def remember(self, key: str, value: Any) -> None:
        """Keep a small JSON-able fact, such as a learned limit."""

    @abstractmethod
    def recall(self, key: str) -> Any:
        """Return a fact, or ``None``."""

    # -- life ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def spool(self) -> str:
        """A folder of this store, on the local disk, for files on their way; mode 0700."""

    @abstractmethod
    def close(self) -> None:
        """Release everything held and close. May be called twice."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: forget connections, locks and leases without touching the parent's."""
