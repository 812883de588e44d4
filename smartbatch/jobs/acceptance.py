"""Accepts jobs: checks their requests and stores them as rows, without sending anything."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from attrs import define, evolve, field

from smartbatch.core.file_uses import FileUses, LineSizes, local_files
from smartbatch.core.prefixes.batch_marks import with_batch_mark
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.preparer import kind_of, row_named
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.routing.choice import Decision
from smartbatch.errors import InvalidRequest, JobConflict, StoreError
from smartbatch.jobs.payload import RunningDigest, Shared, difference, encode_request, with_cache
from smartbatch.jobs.records import ItemName, JobPolicy, JobRow, NewItem
from smartbatch.jobs.shard_records import wire_id
from smartbatch.jobs.store import JobFiles, SqlStore
from smartbatch.jobs.wiring import JobWiring, PolicyChange
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.file_api import FileApi
from smartbatch.types import Priority, Request

_LONGEST_WIRE_ID = wire_id("0" * 22, 99_999)
"""The longest possible id, so that the sizes of lines are not underestimated."""

_NO_ORDER = (
    "a batch has no order, so priority only affects requests of a job that are sent in real time; use "
    "submit() for urgent requests"
)
MAX_ID_DRAWS = 10
"""How many other ids are tried if an id is taken, which happens only with a seeded generator."""
MAX_LABELS, MAX_LABEL_CHARS = 64, 512
_KEY_CACHE_KB = 8_192
"""Above this size, the keys spill into a temporary file, which takes about 30 bytes per row."""
_KEY_BYTES = 16
"""Long enough to treat requests with equal fingerprints as identical."""


@define(eq=False, slots=False)
class Items:
    """Produces the rows of a job, in one pass and constant memory, while a store reads them."""

    _requests: Iterable[Request]
    _job: JobRow
    _shared: Shared
    _wiring: JobWiring = field(kw_only=True)
    _api: BatchApi | None = field(kw_only=True)  # None if all requests are sent in real time
    # by the label of a model: whether the shared prefixes of its batches' requests are marked
    _marks: Callable[[str], bool] = field(default=lambda _: True, kw_only=True)
    # number of leading rows sent in real time; None for all
    _realtime: int | None = field(default=0, kw_only=True)
    # purposes whose requests are always sent in real time
    _realtime_for: Collection[str] = field(default=(), kw_only=True)
    _deduplicates: bool = field(default=False, kw_only=True)
    # maximum cost of an item in USD
    _priced: Callable[[NewItem], float] | None = field(default=None, kw_only=True)
    # gets the maximum cost of all items and returns the job's budget
    _within: Callable[[float], float] | None = field(default=None, kw_only=True)
    _names: Sequence[ItemName | None] = field(default=(), kw_only=True)  # in row order
    _files: JobFiles | None = field(default=None, kw_only=True)  # None rejects files given as bytes
    kept_in: tuple[str, ...] = field(default=(), kw_only=True)  # jobs that get the files given as bytes
    # the provider's Files API, if it has one
    _file_api: Callable[[], FileApi | None] = field(default=lambda: None, kw_only=True)
    decision: Decision | None = field(default=None, kw_only=True)
    count: int = field(default=0, init=False)  # rows read so far
    _most: float = field(default=0.0, init=False)
    _models: set[str] = field(factory=set, init=False)
    _prefixes: set[str | None] = field(factory=set, init=False)  # the longest shared prefix of each row
    _uses: FileUses = field(factory=FileUses, init=False)
    _sizes: LineSizes = field(factory=LineSizes, init=False)

    def __attrs_post_init__(self) -> None:
        self._digest = RunningDigest(b"%b\n%b" % (self._job.model.encode(), self._job.params))

    def __iter__(self) -> Iterator[NewItem]:
        identical = _IdenticalRows(self._job, self._wiring.shares) if self._deduplicates else None
        try:
            for row, request in enumerate(self._requests):
                item = self._item(row, request)
                self.count += 1
                if identical is not None:
                    leader = identical.leader_of(row, request, realtime=item.realtime)
                    item = item if leader is None else evolve(item, leader=leader)
                if item.leader is None:
                    self._count_files(request, item)
                if self._priced is not None and item.leader is None:
                    self._most += self._priced(item)
                yield item
        finally:
            if identical is not None:
                identical.close()

    def digest(self) -> bytes:
        return self._digest.value()

    def uploaded(self) -> list[str]:
        """Return the keys of the files to upload, known once all rows have been read."""
        return self._uses.chosen()

    def _count_files(self, request: Request, item: NewItem) -> None:
        for media in local_files(request):
            files = self._file_api()
            if files is not None and files.accepts(media):
                too_large = self._api is not None and item.size > self._api.abilities.max_bytes
                self._uses.add(media, too_large=too_large)

    def policy(self) -> JobPolicy:
        """Return the policy of the job, known once all rows have been read."""
        policy = self.described(self._job.policy)
        return policy if self._within is None else evolve(policy, budget=self._within(self._most))

    def described(self, policy: JobPolicy) -> JobPolicy:
        """Return ``policy`` with the models and groups of the rows read so far."""
        models, groups = tuple(sorted(self._models)), len(self._prefixes) > 1
        return evolve(policy, models=models, groups=policy.groups or groups)

    def _item(self, row: int, request: Request) -> NewItem:
        if kind_of(request).value != self._job.kind:
            raise InvalidRequest(
                f"row {row} (counted from 0): embedding: a job generates texts or embeddings, not both; "
                "submit two jobs",
                field="embedding",
                row=row,
            )
        if request.model is not None:
            self._models.add(model_label(request, self._job))
        params = request.params
        if params is not self._shared.params and not difference(params, self._shared.params):
            self._shared = evolve(self._shared, params=params)  # lets the next row reuse this object
        keep = None if self._files is None else partial(self._files.keep, self.kept_in)
        payload = encode_request(request, self._shared, row=row, keep=keep)
        self._digest.include(request.id, payload)
        first = self._realtime is None or row < self._realtime
        in_real_time = self._api is None or first or request.purpose in self._realtime_for
        label = model_label(request, self._job)
        if request.cache is not None and not in_real_time and not self._marks(label):
            request = evolve(request, cache=None)
        payload = with_cache(payload, request.cache)
        self._prefixes.add(None if request.cache is None else request.cache.prefixes[-1].key)
        size = len(payload)
        if self._api is not None and not in_real_time:
            if request.priority > Priority.NORMAL:
                self._wiring.warn_dropped("priority", _NO_ORDER)
            encode, model = self._api.encode, request.model or self._job.model.partition(":")[2]
            rules = self._api.caching(model=model) if self._job.policy.caching else None
            sent = with_batch_mark(request, rules, row)
            line = partial(encode, model=model, wire_id=_LONGEST_WIRE_ID)
            size = row_named(row, lambda: self._sizes.size_of(sent, line))
        name = self._names[row] if self._names else None
        tokens = estimate_request(request, label)
        return NewItem(request.id, payload, size, tokens, realtime=in_real_time, name=name)


def accept(
    store: SqlStore,
    job: JobRow,
    items: Items,
    wiring: JobWiring,
    named: Callable[[str], object],
    *,
    new_id: Callable[[], str],
    at: float,
) -> tuple[JobRow, bool]:
    """Store a job. If its key is already in the store, append the missing rows to that job.

    Args:
        named: called with the id before the job is stored under it.
        new_id: draws another id if the first one is taken.
        at: Unix seconds.

    Returns:
        the job, and true if it is new.
    """
    for _ in range(1 + MAX_ID_DRAWS):
        named(job.id)
        items.kept_in = (job.id,)
        try:
            row, new = store.jobs.accept(
                job,
                items,
                digest=items.digest,
                policy=items.policy,
                decision=items.decision,
                uploaded=items.uploaded,
            )
        finally:
            store.jobs.drop_files(job.id)
        if new:
            return row, True
        if job.key is not None and row.key == job.key:
            break
        job = evolve(job, id=new_id())  # a seeded generator repeated an id
    items.kept_in = (row.id,)
    return _with_further_rows(store, row, items, wiring, deadline=job.policy.deadline, at=at), False


def _with_further_rows(
    store: SqlStore, row: JobRow, items: Items, wiring: JobWiring, *, deadline: float | None, at: float
) -> JobRow:
    """Append the rows of ``items`` that the job ``row`` lacks.

    If another thread or process stored the key after the rows were read, its rows must be identical.

    Args:
        deadline: deadline of the call that adds rows, in Unix seconds.

    Raises:
        JobConflict: the rows, the model or the parameters differ, or the job was cancelled.
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
        policy = change(items.described(evolve(row.policy, deadline=deadline)))
        return store.jobs.extend(row, further, digest, policy, at=at, uploaded=items.uploaded())

    extended = wiring.reopen(row.id, extend) or store.jobs.get(row.id) or row
    if extended.digest != digest:
        reason = "was cancelled" if extended.cancel_requested else "was changed by another process"
        raise JobConflict(
            f"the key {row.key!r:.80} belongs to job {row.id}, which {reason}, so no rows can be added: "
            "choose another key"
        )
    return extended


def model_label(request: Request, job: JobRow) -> str:
    return job.model if request.model is None else f"{job.model.partition(':')[0]}:{request.model}"


class _IdenticalRows:
    """Finds the first of several identical requests.

    The keys are stored in a private SQLite database. Above 8 MB, it spills into a temporary file.
    """

    def __init__(self, job: JobRow, shares: Callable[[Request], bool]) -> None:
        self._job = job
        self._shares = shares
        self._keys = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{_KEY_CACHE_KB}",
            "CREATE TABLE leader (key BLOB PRIMARY KEY, row INTEGER, realtime INTEGER) WITHOUT ROWID",
            "BEGIN",
        ):
            self._keys.execute(statement)

    def leader_of(self, row: int, request: Request, *, realtime: bool) -> int | None:
        """Return the row whose answer the request shares; ``None`` for the first of its kind.

        A real-time request never waits for the answer of a batch. Later identical requests share the
        real-time answer.

        Raises:
            StoreError: the disk has no room for the keys.
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
        self._keys.close()


def checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    labels = dict(metadata or {})
    if len(labels) > MAX_LABELS:
        problem = f"metadata has {len(labels)} labels; a job takes at most {MAX_LABELS}"
        raise InvalidRequest(problem, field="metadata")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(
                "metadata must map strings to strings, such as {'run': '7'}", field="metadata"
            )
        if len(name) > MAX_LABEL_CHARS or len(value) > MAX_LABEL_CHARS:
            problem = f"a label in metadata has more than {MAX_LABEL_CHARS} characters"
            raise InvalidRequest(problem, field="metadata")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "a label in metadata contains a lone surrogate, which UTF-8 cannot encode", field="metadata"
            ) from None
    return labels
