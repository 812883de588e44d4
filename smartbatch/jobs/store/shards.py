"""Shards, their items, and verdicts on items: tables ``shard``, ``shard_items`` and ``verdict``."""

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
from smartbatch.jobs.store import outcomes, remote_objects
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
_COUNT_UNRESOLVED = """SELECT count(*) FROM shard WHERE scope = ? AND id <> ?
    AND state IN ({submitting}, {uncertain}, {provisional})"""
_BATCHES_OWN = """SELECT batch_id, CASE WHEN state = {provisional} THEN candidate END
    FROM shard WHERE scope = ? AND (batch_id IN {texts} OR candidate IN {texts})"""


@frozen
class ShardTable:
    db: Database
    leases: LeaseTable

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, shard_id: str) -> ShardRow | None:
        return next(iter(self._where("id = ?", shard_id)), None)

    def with_nonce(self, nonce: str) -> ShardRow | None:
        return next(iter(self._where("nonce = ?", nonce)), None)

    def of_job(self, job_id: str, *, states: Collection[ShardState] = tuple(ShardState)) -> list[ShardRow]:
        """Return a job's shards in the order of planning."""
        values = [state.value for state in states]
        return self._where("job = ? AND state IN {texts} ORDER BY no", job_number(self.db, job_id), values)

    def in_scope(self, scope: str, *, states: Collection[ShardState]) -> list[ShardRow]:
        values = [state.value for state in states]
        return self._where("scope = ? AND state IN {texts} ORDER BY job, no", scope, values)

    def _where(self, condition: str, *values: Any) -> list[ShardRow]:
        return [shard_row(row) for row in self.db.rows(f"{_SHARDS}WHERE {condition}", *values)]

    def claimed_batches(self, scope: str, batch_ids: Collection[str]) -> set[str]:
        """Return the batch ids that a shard of this store owns or is verifying.

        Candidates of dead shards are excluded, since a shard that searches for its batch takes precedence.
        Batches that another shard found to be foreign are excluded too, since they may belong to a third
        shard.
        """
        ids = list(batch_ids)
        rows = self.db.rows(_BATCHES_OWN, scope, ids, ids) if ids else []
        return {batch_id for row in rows for batch_id in row}.intersection(ids)

    def payloads(self, shard_id: str, *, after: int = -1, limit: int) -> dict[int, StoredItem]:
        """Return up to ``limit`` items of a shard by position, starting after ``after``."""
        sizes = self.measures(shard_id, range(after + 1, after + 1 + limit))
        fit = fitting(size.bytes for size in sizes.values())
        return self.items_at(shard_id, list(sizes)[:fit])

    def measures(self, shard_id: str, places: Iterable[int] | None = None) -> dict[int, ItemSize]:
        """Return the sizes of a shard's items by position; of all items if ``places`` is ``None``."""
        numbers = self._numbers(shard_id, places)
        rows = self.db.rows(
            """SELECT i.no, length(p.body), i.tokens FROM item i JOIN payload p ON p.no = i.no
            WHERE i.no IN {numbers}""",
            list(numbers.values()),
        )
        found = {no: ItemSize(*sizes) for no, *sizes in rows}
        return {at: found[no] for at, no in numbers.items() if no in found}

    def items_at(self, shard_id: str, places: Iterable[int]) -> dict[int, StoredItem]:
        numbers = self._numbers(shard_id, places)
        found = items_by_number(self.db, numbers.values())
        return {at: found[no] for at, no in numbers.items()}

    def _numbers(self, shard_id: str, places: Iterable[int] | None) -> dict[int, int]:
        job, ixs = positions(self.db, shard_id)
        those = range(len(ixs)) if places is None else places
        return {at: number(job, ixs[at]) for at in those if 0 <= at < len(ixs)}

    def unsettled(self, shard_id: str) -> list[UnsettledItem]:
        job, ixs = positions(self.db, shard_id)
        numbered = [(ix, number(job, ix)) for ix in ixs]
        items = "SELECT no, state, tries FROM item WHERE no IN {numbers}"
        rows = self.db.rows(items, [no for _, no in numbered])
        tries = {no: tried for no, state, tried in rows if state != ItemState.FINAL.value}
        rows = self.db.rows("SELECT no, outcome, body FROM verdict WHERE no IN {numbers}", list(tries))
        verdicts = {no: (outcome, body) for no, outcome, body in rows}
        return [
            UnsettledItem(ix, *verdicts.get(no, (None, None)), tries[no])
            for ix, no in numbered
            if no in tries
        ]

    def is_answered(self, shard: ShardRow) -> bool:
        """Whether all items of an open shard have results, for example from an orphan."""
        return not _items_left(self.db, shard, limit=1)

    # -- states ----------------------------------------------------------------------------------------------

    @leased
    def plan(self, tx: Transaction, job: int, shard: NewShard) -> ShardRow:
        """Put open items into a new ``PLANNED`` shard, and reserve its maximum cost.

        Raises:
            LeaseLost: also if one of the items is not open.
            OverJobBudget: the job's budget has no room for it.
            ValueError: it has no item, or an item twice.
        """
        size = len(shard.items)
        if not size or len(set(shard.items)) != size:
            raise ValueError("a shard has at least one item, and no item twice")
        outcomes.reserve(tx, job, shard.reserved)
        [(no,)] = tx.rows("SELECT coalesce(max(no), 0) + 1 FROM shard WHERE job = ?", job)
        take = "UPDATE item SET state = {sharded}, shard = ? WHERE no IN {numbers} AND state = {open}"
        if tx.change(take, no, [number(job, ix) for ix in shard.items]) != size:
            raise LeaseLost(f"not every item of the new shard {shard.id} is open; nothing was written")
        data = packed(shard.items)
        tx.change("INSERT INTO shard_items (id, job, positions) VALUES (?, ?, ?)", shard.id, job, data)
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
            record_text(RemoteProgress(marked=shard.marked)),
            job,
        )
        return shard_row(made)

    @leased
    def advance(
        self, tx: Transaction, job: int, /, shard: ShardRow, to: ShardState, **changes: Any
    ) -> ShardRow:
        """Change a shard's state and other columns.

        A change of ``reserved`` changes the job's reservation too and is never refused, since the money may
        have been spent already.

        Args:
            shard: the shard as previously read; nothing is written if its state is different now.
            to: the same state, or one that may follow it.
            changes: columns of :class:`ShardRow` by name.

        Raises:
            ValueError: the transition is not in the table or belongs to another method, or a column cannot be
                changed.
            LeaseLost: the job or the shard has changed since it was read.
        """
        if to is not shard.state:
            if to in _OWN_METHODS:
                raise ValueError(
                    f"use {_OWN_METHODS[to]} to make a shard {to.value}: its items change as well"
                )
            if shard.state is ShardState.READY and to is ShardState.SUBMITTING:
                raise ValueError("use mark_submitting to make a shard submitting")
        return _move(tx, job, shard, to, changes)

    @leased
    def mark_submitting(
        self, tx: Transaction, job: int, /, shard: ShardRow, *, exclusive: bool, **changes: Any
    ) -> ShardRow | None:
        """Change ``READY`` to ``SUBMITTING``, before the create call is sent.

        Args:
            exclusive: return ``None``, with nothing written, while another shard of the scope is
                ``SUBMITTING``, ``UNCERTAIN`` or ``PROVISIONAL``.
        """
        if shard.state is not ShardState.READY:
            raise ValueError(f"only a ready shard can be submitted, but this one is {shard.state.value}")
        if exclusive:
            tx.lock(f"scope {shard.scope}")
            if tx.rows(_COUNT_UNRESOLVED, shard.scope, shard.id) != [(0,)]:
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
        """End a shard as ``DEAD``, and free or end its items.

        Args:
            items: new state of its items without a result, ``OPEN`` or ``REALTIME``.
            tried: count this shard as one of their tries.
            at: Unix seconds.
            maybe_billed: keep its reservation, because the batch may have been billed.
            ended: results of items that the provider refused and that end with the shard.
            orphan: id of its batch if that is still running; the batch is then handled like any orphan.
        """
        if items not in (ItemState.OPEN, ItemState.REALTIME):
            raise ValueError("the items of a discarded shard must become open or real time")
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
            outcomes.store_results(tx, job, members, ended, at)
        _free(tx, shard, items, _items_left(tx, shard), tried=tried)
        return discarded

    @leased
    def fail(
        self, tx: Transaction, job: int, shard: ShardRow, body: bytes, *, note: str, at: float
    ) -> ShardRow:
        """End a shard as ``DEAD``, and its items without a result as failed with ``body``."""
        changes = {"note": note, "died_at": at, "reserved": 0.0}
        failed = _move(tx, job, shard, ShardState.DEAD, changes)
        outcomes.end_alike(tx, job, _items_left(tx, shard), NewResult(-1, "failed", body, cost=0.0), at)
        return failed

    # -- results ---------------------------------------------------------------------------------------------

    @leased
    def ingest(
        self, tx: Transaction, job: int, shard: ShardRow, results: Sequence[NewResult], *, at: float
    ) -> StoredResults:
        """Store up to a thousand results of a shard.

        - If an item has no result, the new one is stored and counted.
        - If it has the same result (by digest), nothing changes, since results may be read twice.
        - If it has a different result, that result is kept, and the item is returned as doubled.
        - Results that are not final (``again``, ``unrun``) are stored as verdicts until the shard is settled.

        The results of a ``DEAD`` shard come from its orphan; its paid answers are used for open items.

        Raises:
            ValueError: the shard is neither ``INGESTING`` nor ``DEAD``, or an item was never in it.
            LeaseLost: also if the shard has changed since it was read.
        """
        if shard.state not in (ShardState.INGESTING, ShardState.DEAD):
            raise ValueError(f"results of a {shard.state.value} shard cannot be stored")
        if tx.row("SELECT state FROM shard WHERE id = ? AND job = ?", shard.id, job) != (shard.state.value,):
            raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
        items = outcomes.item_states(tx, job, [result.ix for result in results])
        _check_members(tx, shard, items, results)
        final, doubled = outcomes.store_results(tx, job, items, results, at)
        if shard.state is ShardState.INGESTING:
            doubled += outcomes.store_verdicts(tx, job, results, final, at)
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
        """End a shard as ``SETTLED``.

        Args:
            opened: items that go into a new shard; a try is counted.
            untried: items that go into a new shard; no try is counted.
            realtime: items that are sent in real time; a try is counted.
            finals: final results of items.
            changes: as in :meth:`advance`; ``reserved`` becomes 0 by default, since results contain the cost.

        Raises:
            ValueError: an item without a result is in none of these collections, or an item is in two.
        """
        if not all(result.final for result in finals):
            raise ValueError("results that settle a shard must be final")
        ends = {result.ix for result in finals}
        ways = (ends, set(opened), set(untried), set(realtime))
        if sum(map(len, ways)) != len(set().union(*ways)):
            raise ValueError("an item of a settled shard must be in one collection only")
        changes = {"reserved": 0.0, **changes, "settled_at": at}
        settled = _move(tx, job, shard, ShardState.SETTLED, changes)
        for state, ixs in ((ItemState.OPEN, opened), (ItemState.REALTIME, realtime)):
            _free(tx, shard, state, [number(job, ix) for ix in ixs], tried=True)
        _free(tx, shard, ItemState.OPEN, [number(job, ix) for ix in untried], tried=False)
        if finals:
            items = outcomes.item_states(tx, job, sorted(ends))
            _check_members(tx, shard, items, finals)
            outcomes.store_results(tx, job, items, finals, at)
        if left := _items_left(tx, shard):
            raise ValueError(
                f"{len(left)} items of shard {shard.id} are not assigned: row {position(left[0])}, …"
            )
        _, ixs = positions(tx, shard.id)
        tx.change("DELETE FROM verdict WHERE no IN {numbers}", [number(job, ix) for ix in ixs])
        return settled


def _move(tx: Transaction, job: int, shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> ShardRow:
    """Change a shard that is still in the state it was read in, and its job's reservation. What the provider
    stores for a shard without further steps is recorded for deletion.

    Raises:
        ValueError: see :func:`check_change`.
        LeaseLost: the shard has changed.
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
    if moved.cleaned_up and not shard.cleaned_up:
        remote_objects.record(tx, job, moved)
    return moved


def check_change(shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the transition is not in the table or a column cannot be changed."""
    if to is not shard.state and to not in TRANSITIONS[shard.state]:
        raise ValueError(f"a {shard.state.value} shard cannot become {to.value}")
    unknown = changes.keys() - SHARD_CHANGES.keys()
    if unknown:
        raise ValueError(f"columns of a shard that cannot be changed: {', '.join(sorted(unknown))}")


def _check_members(
    tx: Transaction, shard: ShardRow, items: Mapping[int, outcomes.ItemAt], results: Sequence[NewResult]
) -> None:
    """Raise ``ValueError`` for a result of an item that was never in the shard."""
    unexpected = {result.ix for result in results if items.get(result.ix, (0, None))[1] != shard.no}
    if unexpected and (foreign := unexpected.difference(positions(tx, shard.id)[1])):
        raise ValueError(f"item {min(foreign)} is not in shard {shard.id}")


def _free(tx: Transaction, shard: ShardRow, to: ItemState, numbers: list[int], *, tried: bool) -> None:
    free = """UPDATE item SET state = ?, tries = tries + ?, shard = NULL
        WHERE no IN {numbers} AND shard = ? AND state = {sharded}"""
    tx.change(free, to.value, int(tried), numbers, shard.no)


def _items_left(reader: Reader, shard: ShardRow, *, limit: int | None = None) -> list[int]:
    """Return the numbers of the items that are still in a shard, or of the first ``limit`` of them."""
    job, ixs = positions(reader, shard.id)
    span = number(job, min(ixs)), number(job, max(ixs))
    still = """SELECT no FROM item WHERE no >= ? AND no <= ? AND shard = ? AND state = {sharded}
        ORDER BY no LIMIT ?"""
    return [no for (no,) in reader.rows(still, *span, shard.no, limit or shard.size)]
