"""Acceptance of a job: checked requests become the rows of the store; nothing is sent."""

from __future__ import annotations

import sqlite3
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from attrs import define, evolve, field

from smartbatch._words import duration, money, usd_in
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.preparer import kind_of, row_named
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import seconds_until
from smartbatch.errors import InvalidRequest, JobConflict, StoreError
from smartbatch.jobs.job_budget import remaining_budget
from smartbatch.jobs.payload import RunningDigest, Shared, difference, encode_request
from smartbatch.jobs.records import ItemName, JobPolicy, JobRow, NewItem
from smartbatch.jobs.retried_rows import PolicyChange, Reopening
from smartbatch.jobs.shard_records import wire_id
from smartbatch.jobs.store import SqlStore
from smartbatch.providers.batch_api import BatchApi
from smartbatch.types import Deadline, Priority, Request

_SOME_WIRE_ID = wire_id("0" * 22, 99_999)
"""As long as the longest id of a shard, so that sizes are estimated from above."""

_NO_ORDER = (
    "a batch has no order, so it counts only for requests of a job that go in real time; ask what is urgent "
    "with submit()"
)
DRAWS = 10
"""Ids tried for a job; the second is needed with a seeded generator only."""
LABELS = 64
LABEL = 512
"""Labels of a job, and letters of each: enough for people, too few for content."""
_CACHE_KB = 8_192
"""Memory for keys, in all; those that do not fit lie in a temporary file, some 30 bytes a row."""
_KEY_BYTES = 16
"""Bytes of a fingerprint that are kept: enough that equal ones mean equal requests."""


@define(eq=False, slots=False)
class Items:
    """Makes the rows of a job while a store reads them; one pass, in flat memory.

    Args:
        requests: checked, one a row, in order.
        job: the job they belong to.
        shared: what they have in common.
        api: the Batch API that will carry them; ``None`` when all run in real time.
        realtime: how many, counted from the first, run in real time from the beginning; ``None`` is all.
        realtime_for: requests of these purposes run in real time as well.
        shares: whether a request gets the answer of an equal one; ``None`` where none does.
        tell_dropped: takes the name of a field that has no effect in a batch, and why.
        priced: returns the most an item can cost, USD.
        within: takes what all can cost at most, and returns the job's budget.
        names: of the rows, in order; empty where none has one.
        decision: by which the job goes, where its route was chosen.
        count: rows read so far.
    """

    _requests: Iterable[Request]
    _job: JobRow
    _shared: Shared
    _api: BatchApi | None = field(kw_only=True)
    _realtime: int | None = field(default=0, kw_only=True)
    _realtime_for: Collection[str] = field(default=(), kw_only=True)
    _shares: Callable[[Request], bool] | None = field(default=None, kw_only=True)
    _tell_dropped: Callable[[str, str], None] = field(default=lambda _name, _why: None, kw_only=True)
    _priced: Callable[[NewItem], float] | None = field(default=None, kw_only=True)
    _within: Callable[[float], float] | None = field(default=None, kw_only=True)
    _names: Sequence[ItemName | None] = field(default=(), kw_only=True)
    decision: Decision | None = field(default=None, kw_only=True)
    count: int = field(default=0, init=False)
    _most: float = field(default=0.0, init=False)
    _models: set[str] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._digest = RunningDigest(b"%b\n%b" % (self._job.model.encode(), self._job.params))

    def __iter__(self) -> Iterator[NewItem]:
        equal = None if self._shares is None else _EqualRows(self._job, self._shares)
        try:
            for row, request in enumerate(self._requests):
                item = self._item(row, request)
                self._digest.add(item)
                self.count += 1
                if equal is not None:
                    leader = equal.leader_of(row, request, realtime=item.realtime)
                    item = item if leader is None else evolve(item, leader=leader)
                if self._priced is not None and item.leader is None:
                    self._most += self._priced(item)
                yield item
        finally:
            if equal is not None:
                equal.close()

    def digest(self) -> bytes:
        """Return the digest of what was read so far."""
        return self._digest.value()

    def policy(self) -> JobPolicy:
        """Return the policy of the job, all of whose rows were read."""
        policy = evolve(self._job.policy, models=tuple(sorted(self._models)))
        return policy if self._within is None else evolve(policy, budget=self._within(self._most))

    def _item(self, row: int, request: Request) -> NewItem:
        if kind_of(request).value != self._job.kind:
            raise InvalidRequest(
                f"row {row} (counted from 0): embedding: a job asks for texts or for vectors, not for both; "
                "submit two jobs",
                field="embedding",
                row=row,
            )
        if request.model is not None:
            self._models.add(model_label(request, self._job))
        params = request.params
        if params is not self._shared.params and not difference(params, self._shared.params):
            self._shared = evolve(self._shared, params=params)  # the next row has this very object as well
        payload = encode_request(request, self._shared, row=row)
        size = len(payload)
        first = self._realtime is None or row < self._realtime
        in_real_time = self._api is None or first or request.purpose in self._realtime_for
        if self._api is not None and not in_real_time:
            if request.priority > Priority.NORMAL:
                self._tell_dropped("priority", _NO_ORDER)
            encode, model = self._api.encode, request.model or self._job.model.partition(":")[2]
            size = len(row_named(row, lambda: encode(request, model=model, wire_id=_SOME_WIRE_ID)))
        name = self._names[row] if self._names else None
        tokens = estimate_request(request)
        return NewItem(request.id, payload, size, tokens, realtime=in_real_time, name=name)


def accept(
    store: SqlStore,
    job: JobRow,
    items: Items,
    named: Callable[[str], object],
    *,
    new_id: Callable[[], str],
    reopening: Reopening,
    at: float,
) -> tuple[JobRow, bool]:
    """Store a job, or find the one that has its key, and add the rows that follow its own.

    Args:
        named: called with the id under which it is stored next.
        new_id: returns another id, where a job has this one.
        reopening, at: as of the rows that are added.

    Returns:
        the job, and whether it is new.
    """
    for _ in range(1 + DRAWS):
        named(job.id)
        row, new = store.jobs.accept(
            job, items, digest=items.digest, policy=items.policy, decision=items.decision
        )
        if new:
            return row, True
        if job.key is not None and row.key == job.key:
            break
        job = evolve(job, id=new_id())  # a seeded generator, used a second time on one store
    deadline = job.policy.deadline
    return _with_further_rows(store, row, items, deadline=deadline, reopening=reopening, at=at), False


def _with_further_rows(
    store: SqlStore, row: JobRow, items: Items, *, deadline: float | None, reopening: Reopening, at: float
) -> JobRow:
    """Return the job ``row`` after adding the rows of ``items`` that follow its own.

    If another thread or process stored the key meanwhile, the rows were read already and must be equal.

    Args:
        deadline: of the call that adds them, Unix seconds.
        reopening: has requests of a job run within the budget of the client that asks.

    Raises:
        JobConflict: its own rows, its model or its parameters differ, or it was cancelled.
    """
    rest = iter(items)
    if not items.count:
        deque(islice(rest, row.total), maxlen=0)
    if items.count != row.total or items.digest() != row.digest:
        raise JobConflict(
            f"the key {row.key!r:.80} belongs to job {row.id}, whose rows, model or parameters differ (rows "
            "may only be added at the end): choose another key, or open that job with client.job(key)"
        )
    if not (further := list(rest)):
        return row
    digest = items.digest()

    def extend(change: PolicyChange) -> JobRow | None:
        policy = change(evolve(row.policy, deadline=deadline))
        return store.jobs.extend(row, further, digest, policy, at=at)

    extended = reopening(row.id, extend) or store.jobs.get(row.id) or row
    if extended.digest != digest:
        reason = "was cancelled" if extended.cancel_requested else "was changed by another process"
        raise JobConflict(
            f"the key {row.key!r:.80} belongs to job {row.id}, which {reason}, so no rows are added to it: "
            "choose another key"
        )
    return extended


def model_label(request: Request, job: JobRow) -> str:
    """Return the model of a job's request, as ``provider:model``: its own, or that of the job."""
    return job.model if request.model is None else f"{job.model.partition(':')[0]}:{request.model}"


class _EqualRows:
    """Finds the first of equal requests among any number of them, read one after the other.

    Keys are kept in a private database of SQLite's, in memory up to some 8 MB and beyond that in a file that
    the system deletes with the process: a million rows take 30 MB of disk while they are accepted.

    Args:
        job: the job they belong to.
        shares: whether a request gets the answer of an equal one.
    """

    def __init__(self, job: JobRow, shares: Callable[[Request], bool]) -> None:
        self._job = job
        self._shares = shares
        self._keys = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{_CACHE_KB}",
            "CREATE TABLE leader (key BLOB PRIMARY KEY, row INTEGER, realtime INTEGER) WITHOUT ROWID",
            "BEGIN",
        ):
            self._keys.execute(statement)

    def leader_of(self, row: int, request: Request, *, realtime: bool) -> int | None:
        """Return the row that a request follows; ``None`` where it is the first of its kind.

        One that goes in real time follows none that waits for a batch: it leads from now on.

        Raises:
            StoreError: there is no room for the keys.
        """
        if not self._shares(request):
            return None
        model = model_label(request, self._job)
        key = fingerprint(request, model, self._job.scope)[:_KEY_BYTES]
        try:
            new = "INSERT INTO leader VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            if self._keys.execute(new, (key, row, realtime)).rowcount:
                return None
            found = self._keys.execute("SELECT row, realtime FROM leader WHERE key = ?", (key,)).fetchone()
            if found[1] or not realtime:
                return int(found[0])
            self._keys.execute("UPDATE leader SET row = ?, realtime = 1 WHERE key = ?", (row, key))
        except sqlite3.Error as error:
            raise StoreError(
                f"the temporary folder has no room for the keys of a job's rows ({error}): make room for "
                "them, or submit with deduplicate=False, which needs none"
            ) from None
        return None

    def close(self) -> None:
        """Drop the keys."""
        self._keys.close()


def checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of a job's labels.

    Raises:
        InvalidRequest: there are too many, one is too long, or one is no text.
    """
    labels = dict(metadata or {})
    if len(labels) > LABELS:
        raise InvalidRequest(f"metadata has {len(labels)} labels, a job takes {LABELS}", field="metadata")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest("metadata must be texts by name, as {'run': '7'}", field="metadata")
        if len(name) > LABEL or len(value) > LABEL:
            raise InvalidRequest(f"a label of metadata has at most {LABEL} letters", field="metadata")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "a label of metadata has a lone surrogate, which UTF-8 cannot carry", field="metadata"
            ) from None
    return labels


def change_deadline(store: SqlStore, job_id: str, deadline: Deadline | None, by: str) -> None:
    """Change when the last result of a job has to be there; see :meth:`smartbatch.Job.set_deadline`."""
    now = store.acts.db.now()
    left = seconds_until(deadline, now)
    until = None if left is None else now + left
    detail = "none" if left is None else f"in {duration(left)}"

    def change(policy: JobPolicy) -> JobPolicy:
        return evolve(policy, deadline=until, fallback="batch" if until is None else "individual")

    store.acts.change_policy(job_id, change, "set_deadline", detail, by)


def change_budget(store: SqlStore, job_id: str, budget: float | str | None, by: str) -> float:
    """Change what may be spent on a job, and return what is left of it; see
    :meth:`smartbatch.Job.set_budget`.
    """
    most = None if budget is None else usd_in(budget)
    number = isinstance(most, int | float) and not isinstance(most, bool)
    if most is not None and not (number and 0 <= most <= sys.float_info.max):
        raise InvalidRequest(f"budget = {budget!r:.60} is no amount of USD", field="budget")
    limit = None if most is None else float(most)
    detail = "none" if limit is None else money(limit)
    row = store.acts.change_policy(
        job_id, lambda policy: evolve(policy, budget=limit), "set_budget", detail, by
    )
    return remaining_budget(row)
