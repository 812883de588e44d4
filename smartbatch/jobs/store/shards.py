"""Shards: which items go together, the state of each attempt, and what came of it.

The tables ``shard``, ``shard_items`` and ``verdict``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from smartbatch.jobs.records import (
    ItemSize,
    ItemState,
    LeaseLost,
    NewResult,
    StoredItem,
    StoredResults,
)
from smartbatch.jobs.shard_records import (
    TRANSITIONS,
    NewShard,
    RemoteProgress,
    ShardRow,
    ShardState,
    UnsettledItem,
)
from smartbatch.jobs.store import outcomes
from smartbatch.jobs.store.database import (
    Database,
    Reader,
    Transaction,
    fitting,
    number,
    packed,
    position,
    record_text,
)
from smartbatch.jobs.store.leases import LeaseTable, leased
from smartbatch.jobs.store.outcomes import items_by_number, job_number, positions
from smartbatch.jobs.store.schema import SHARD_CHANGES, SHARD_COLUMNS, shard_row

_OWN_METHODS = {ShardState.SETTLED: "settle", ShardState.DEAD: "discard or fail"}
_SHARDS = f"SELECT {SHARD_COLUMNS} FROM shard "
_UNRESOLVED = """SELECT count(*) FROM shard WHERE scope = ? AND id <> ?
    AND state IN ({submitting}, {uncertain}, {provisional})"""
_BATCHES_OWN = """SELECT batch_id, CASE WHEN state = {provisional} THEN candidate END
    FROM shard WHERE scope = ? AND (batch_id IN {texts} OR candidate IN {texts})"""
_NO_PROGRESS = record_text(RemoteProgress())


@frozen
class ShardTable:
    """Shards, and the items in them."""

    db: Database
    leases: LeaseTable

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, shard_id: str) -> ShardRow | None:
        """Return a shard."""
        return next(iter(self._where("id = ?", shard_id)), None)

    def with_nonce(self, nonce: str) -> ShardRow | None:
        """Return the shard with that nonce."""
        return next(iter(self._where("nonce = ?", nonce)), None)

    def of_job(self, job_id: str, *, states: Collection[ShardState] = tuple(ShardState)) -> list[ShardRow]:
        """Return a job's shards by number."""
        asked = [state.value for state in states]
        return self._where("job = ? AND state IN {texts} ORDER BY no", job_number(self.db, job_id), asked)

    def in_scope(self, scope: str, *, states: Collection[ShardState]) -> list[ShardRow]:
        """Return shards of all jobs of an account."""
        asked = [state.value for state in states]
        return self._where("scope = ? AND state IN {texts} ORDER BY job, no", scope, asked)

    def _where(self, condition: str, *values: Any) -> list[ShardRow]:
        return [shard_row(row) for row in self.db.rows(f"{_SHARDS}WHERE {condition}", *values)]

    def claimed_batches(self, scope: str, batch_ids: Collection[str]) -> set[str]:
        """Return those ids that belong to a shard of this store, or that one is proving to be its own.

        What a dead shard suspects to be its orphan is not claimed: a shard that looks for its batch comes
        first. Nor is what another shard found foreign to itself, for it may be a third one's.
        """
        asked = list(batch_ids)
        rows = self.db.rows(_BATCHES_OWN, scope, asked, asked) if asked else []
        return {batch_id for row in rows for batch_id in row}.intersection(asked)

    def payloads(self, shard_id: str, *, after: int = -1, limit: int) -> dict[int, StoredItem]:
        """Return up to ``limit`` items of a shard by position, from the one after ``after``."""
        sizes = self.measures(shard_id, range(after + 1, after + 1 + limit))
        fit = fitting(size.bytes for size in sizes.values())
        return self.items_at(shard_id, list(sizes)[:fit])

    def measures(self, shard_id: str, asked: Iterable[int] | None = None) -> dict[int, ItemSize]:
        """Return the size of the item at each position of the shard, or at those asked for that exist."""
        numbers = self._numbers(shard_id, asked)
        rows = self.db.rows(
            """SELECT i.no, length(p.body), i.tokens FROM item i JOIN payload p ON p.no = i.no
            WHERE i.no IN {numbers}""",
            list(numbers.values()),
        )
        found = {no: ItemSize(*sizes) for no, *sizes in rows}
        return {at: found[no] for at, no in numbers.items() if no in found}

    def items_at(self, shard_id: str, asked: Iterable[int]) -> dict[int, StoredItem]:
        """Return the item at each position of the shard that exists."""
        numbers = self._numbers(shard_id, asked)
        found = items_by_number(self.db, numbers.values())
        return {at: found[no] for at, no in numbers.items()}

    def _numbers(self, shard_id: str, asked: Iterable[int] | None) -> dict[int, int]:
        """Return the numbers of the items at positions of a shard, or at all."""
        job, ixs = positions(self.db, shard_id)
        those = range(len(ixs)) if asked is None else asked
        return {at: number(job, ixs[at]) for at in those if 0 <= at < len(ixs)}

    def unsettled(self, shard_id: str) -> list[UnsettledItem]:
        """Return the items of a shard that have no result, by position."""
        job, ixs = positions(self.db, shard_id)
        numbered = [(ix, number(job, ix)) for ix in ixs]
        items = "SELECT no, state, tries FROM item WHERE no IN {numbers}"
        rows = self.db.rows(items, [no for _, no in numbered])
        tries = {no: tried for no, state, tried in rows if state != ItemState.FINAL.value}
        rows = self.db.rows("SELECT no, outcome, body FROM verdict WHERE no IN {numbers}", list(tries))
        told = {no: (outcome, body) for no, outcome, body in rows}
        return [
            UnsettledItem(ix, *told.get(no, (None, None)), tries[no]) for ix, no in numbered if no in tries
        ]

    def is_answered(self, shard: ShardRow) -> bool:
        """Whether all items of a shard that has not ended have their results, as an orphan can give them."""
        return not _left(self.db, shard, limit=1)

    # -- states ----------------------------------------------------------------------------------------------

    @leased
    def plan(self, tx: Transaction, job: int, shard: NewShard) -> ShardRow:
        """Put open items into a new shard, ``PLANNED``, and reserve the most it can cost.

        Raises:
            LeaseLost: also when one of the items is not open.
            OverJobBudget: the job's budget has no room for it.
            ValueError: it has no item, or one twice.
        """
        size = len(shard.items)
        if not size or len(set(shard.items)) != size:
            raise ValueError("a shard has at least one item, and each once")
        outcomes.reserve(tx, job, shard.reserved)
        [(no,)] = tx.rows("SELECT coalesce(max(no), 0) + 1 FROM shard WHERE job = ?", job)
        take = "UPDATE item SET state = {sharded}, shard = ? WHERE no IN {numbers} AND state = {open}"
        if tx.change(take, no, [number(job, ix) for ix in shard.items]) != size:
            raise LeaseLost(f"not every item of the new shard {shard.id} is open; nothing was written")
        kept = packed(shard.items)
        tx.change("INSERT INTO shard_items (id, job, positions) VALUES (?, ?, ?)", shard.id, job, kept)
        sizes = (size, shard.bytes, shard.tokens, shard.due_at, shard.reserved)
        [made] = tx.rows(
            f"""INSERT INTO shard
            (id, job, no, nonce, scope, model, state, size, bytes, tokens, due_at, reserved, remote)
            SELECT ?, j.no, ?, ?, j.scope, coalesce(?, j.model), {{planned}}, ?, ?, ?, ?, ?, ?
            FROM job j WHERE j.no = ? RETURNING {SHARD_COLUMNS}""",
            shard.id,
            no,
            shard.nonce,
            shard.model,
            *sizes,
            _NO_PROGRESS,
            job,
        )
        return shard_row(made)

    @leased
    def advance(
        self, tx: Transaction, job: int, /, shard: ShardRow, to: ShardState, **changes: Any
    ) -> ShardRow:
        """Move a shard to a state that may follow its own (or the same), with other columns changed.

        The cases, in order:

        1. The state is entered by another method, together with the items: ValueError.
        2. The transition is not in the table, or a column is not one that changes: ValueError.
        3. The job or the shard has moved on since it was read: LeaseLost.
        4. Else state and columns are written; a change of ``reserved`` changes the job's as well, and is
           never refused: what a shard may have cost, it may have cost.

        Args:
            shard: as it was read; its state is the guard.
            changes: columns of :class:`ShardRow` by name.
        """
        if to is not shard.state:
            if to in _OWN_METHODS:
                raise ValueError(f"a shard becomes {to.value} by {_OWN_METHODS[to]}, with its items")
            if shard.state is ShardState.READY and to is ShardState.SUBMITTING:
                raise ValueError("a shard becomes submitting by mark_submitting")
        return _move(tx, job, shard, to, changes)

    @leased
    def mark_submitting(
        self, tx: Transaction, job: int, /, shard: ShardRow, *, exclusive: bool, **changes: Any
    ) -> ShardRow | None:
        """Move ``READY`` to ``SUBMITTING``: after it, and never before, the one create is sent.

        Args:
            exclusive: in the same transaction, refuse (return ``None``) while another shard of the scope is
                ``SUBMITTING``, ``UNCERTAIN`` or ``PROVISIONAL``.
        """
        if shard.state is not ShardState.READY:
            raise ValueError(f"only a ready shard can be submitted, and this one is {shard.state.value}")
        if exclusive:
            tx.lock(f"scope {shard.scope}")
            if tx.rows(_UNRESOLVED, shard.scope, shard.id) != [(0,)]:
                return None
        return _move(tx, job, shard, ShardState.SUBMITTING, changes)

    @leased
    def discard(
        self,
        tx: Transaction,
        job: int,
        shard: ShardRow,
        *,
        items: ItemState,
        tried: bool,
        note: str,
        at: float,
        maybe_billed: bool = False,
        ended: Sequence[NewResult] = (),
        orphan: str | None = None,
    ) -> ShardRow:
        """End a shard as ``DEAD`` and free its items, or end some of them.

        Args:
            items: ``OPEN`` or ``REALTIME``: what its items without a result become.
            tried: count it as a try of theirs.
            at: Unix seconds.
            maybe_billed: what was reserved for it stays so: nobody can say that it was not run.
            orphan: id of its batch, which goes on; what comes of it is handled as of any orphan.
            ended: results of items that end with it, because the provider refused them.
        """
        if items not in (ItemState.OPEN, ItemState.REALTIME):
            raise ValueError("the items of a discarded shard become open or real time")
        changes: dict[str, Any] = {
            "note": note,
            "died_at": at,
            "reserved": shard.reserved if maybe_billed else 0.0,
        }
        if orphan is not None:
            changes |= {"batch_id": None, "candidate": orphan, "due_at": at}
        if items is ItemState.REALTIME and shard.remote.rescue is None:
            changes["remote"] = evolve(shard.remote, rescue=note)
        discarded = _move(tx, job, shard, ShardState.DEAD, changes)
        if ended:
            members = outcomes.item_states(tx, job, [result.ix for result in ended])
            _check_members(tx, shard, members, ended)
            outcomes.keep(tx, job, members, ended, at)
        _free(tx, shard, items, _left(tx, shard), tried=tried)
        return discarded

    @leased
    def fail(
        self, tx: Transaction, job: int, shard: ShardRow, body: bytes, *, note: str, at: float
    ) -> ShardRow:
        """End a shard as ``DEAD`` and its items without a result as failed with ``body``."""
        changes = {"note": note, "died_at": at, "reserved": 0.0}
        failed = _move(tx, job, shard, ShardState.DEAD, changes)
        outcomes.end_alike(tx, job, _left(tx, shard), NewResult(-1, "failed", body, cost=0.0), at)
        return failed

    # -- results ---------------------------------------------------------------------------------------------

    @leased
    def ingest(
        self, tx: Transaction, job: int, shard: ShardRow, results: Sequence[NewResult], *, at: float
    ) -> StoredResults:
        """Store up to a thousand results of a shard. The cases, in order:

        1. The shard is neither ``INGESTING`` nor ``DEAD``, or an item was never in it: ValueError.
        2. The shard has moved on since it was read: LeaseLost.
        3. The item has no result: this one is kept, and counted.
        4. It has the same one, by its digest: nothing, because results may be read twice.
        5. It has another one: that stays, and the item is returned as doubled.
        6. A result that is not final (``again``, ``unrun``) is kept as a verdict until the shard is settled.

        Results of a ``DEAD`` shard are of its orphan: paid answers are used for items that are still open.
        """
        if shard.state not in (ShardState.INGESTING, ShardState.DEAD):
            raise ValueError(f"a shard that is {shard.state.value} has no results to take")
        if tx.row("SELECT state FROM shard WHERE id = ? AND job = ?", shard.id, job) != (shard.state.value,):
            raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
        items = outcomes.item_states(tx, job, [result.ix for result in results])
        _check_members(tx, shard, items, results)
        final, doubled = outcomes.keep(tx, job, items, results, at)
        if shard.state is ShardState.INGESTING:
            doubled += outcomes.keep_verdicts(tx, job, results, final, at)
        return StoredResults(tuple(final), tuple(doubled))

    @leased
    def settle(
        self,
        tx: Transaction,
        job: int,
        /,
        shard: ShardRow,
        *,
        opened: Collection[int] = (),
        untried: Collection[int] = (),
        realtime: Collection[int] = (),
        finals: Sequence[NewResult] = (),
        at: float,
        **changes: Any,
    ) -> ShardRow:
        """End a shard as ``SETTLED``. Every item without a result goes one of four ways:

        1. into a new shard, with one try more (``opened``);
        2. into a new shard, with as many tries as before (``untried``);
        3. into real time, with one try more (``realtime``);
        4. it ends with a result (``finals``).

        Args:
            changes: as in :meth:`advance`; ``reserved`` is 0 unless it is given: results say what it cost.

        Raises:
            ValueError: an item without a result goes none of these ways, or an item goes two.
        """
        if not all(result.final for result in finals):
            raise ValueError("results that settle a shard are final")
        ends = {result.ix for result in finals}
        ways = (ends, set(opened), set(untried), set(realtime))
        if sum(map(len, ways)) != len(set().union(*ways)):
            raise ValueError("an item of a settled shard goes one way only")
        changes = {"reserved": 0.0, **changes, "settled_at": at}
        settled = _move(tx, job, shard, ShardState.SETTLED, changes)
        for state, ixs in ((ItemState.OPEN, opened), (ItemState.REALTIME, realtime)):
            _free(tx, shard, state, [number(job, ix) for ix in ixs], tried=True)
        _free(tx, shard, ItemState.OPEN, [number(job, ix) for ix in untried], tried=False)
        if finals:
            items = outcomes.item_states(tx, job, sorted(ends))
            _check_members(tx, shard, items, finals)
            outcomes.keep(tx, job, items, finals, at)
        if left := _left(tx, shard):
            raise ValueError(f"{len(left)} items of shard {shard.id} go nowhere: row {position(left[0])}, …")
        _, ixs = positions(tx, shard.id)
        tx.change("DELETE FROM verdict WHERE no IN {numbers}", [number(job, ix) for ix in ixs])
        return settled


def _move(tx: Transaction, job: int, shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> ShardRow:
    """Change a shard that is still in the state it was read in, and what its job has reserved for it.

    Raises:
        ValueError: see :func:`check_change`.
        LeaseLost: the shard has moved on.
    """
    check_change(shard, to, changes)
    written = {name: write(changes[name]) for name, write in SHARD_CHANGES.items() if name in changes}
    assignments = ", ".join(f"{column} = ?" for column in ("state", *written))
    guarded = "WHERE id = ? AND job = ? AND state = ?"
    statement = f"UPDATE shard SET {assignments} {guarded} RETURNING {SHARD_COLUMNS}"
    found = tx.row(statement, to.value, *written.values(), shard.id, job, shard.state.value)
    if found is None:
        raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
    moved = shard_row(found)
    if moved.reserved != shard.reserved:
        outcomes.reserve_anyway(tx, job, moved.reserved - shard.reserved)
    return moved


def check_change(shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> None:
    """Raise ValueError when the transition is not in the table, or a column cannot be changed."""
    if to is not shard.state and to not in TRANSITIONS[shard.state]:
        raise ValueError(f"a shard that is {shard.state.value} does not become {to.value}")
    unknown = changes.keys() - SHARD_CHANGES.keys()
    if unknown:
        raise ValueError(f"these do not change with a shard's state: {', '.join(sorted(unknown))}")


def _check_members(
    tx: Transaction, shard: ShardRow, items: Mapping[int, outcomes.ItemAt], results: Sequence[NewResult]
) -> None:
    """Raise ValueError for a result of an item that was never in the shard."""
    unexpected = {result.ix for result in results if items.get(result.ix, (0, None))[1] != shard.no}
    if unexpected and (foreign := unexpected.difference(positions(tx, shard.id)[1])):
        raise ValueError(f"item {min(foreign)} is not in shard {shard.id}")


def _free(tx: Transaction, shard: ShardRow, to: ItemState, numbers: list[int], *, tried: bool) -> None:
    """Free items that are still in a shard."""
    free = """UPDATE item SET state = ?, tries = tries + ?, shard = NULL
        WHERE no IN {numbers} AND shard = ? AND state = {sharded}"""
    tx.change(free, to.value, int(tried), numbers, shard.no)


def _left(reader: Reader, shard: ShardRow, *, limit: int | None = None) -> list[int]:
    """Return the numbers of the items that are still in a shard, or of the first ``limit`` of them: all lie
    between its first and its last."""
    job, ixs = positions(reader, shard.id)
    span = number(job, min(ixs)), number(job, max(ixs))
    still = """SELECT no FROM item WHERE no >= ? AND no <= ? AND shard = ? AND state = {sharded}
        ORDER BY no LIMIT ?"""
    return [no for (no,) in reader.rows(still, *span, shard.no, limit or shard.size)]
