"""The jobs that hold deferred requests: which of their answers nobody has been given yet, and for what.

A process that defers a request looks here first, so that what another process deferred before it died is not
sent, and paid, again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from attrs import define, evolve, frozen

from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.fingerprint import fingerprint, shares_answer
from smartbatch.core.preparation.preparer import kind_of
from smartbatch.errors import InvalidRequest
from smartbatch.jobs.payload import Shared, decode_params, decode_request, encode_request
from smartbatch.jobs.preconditions import batches_of
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.service import JobService
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wire_ids import wire_id
from smartbatch.providers.registry import OpenedModel
from smartbatch.types import Request

PREFIX = "deferred-"
"""Begins the keys of jobs that hold deferred requests."""
UNTAKEN = 7 * 86_400.0
"""Seconds for which an answer that nobody was given stands ready for an equal request."""
LOOKED_AT = 1_000
"""The latest jobs of deferred requests that are looked at."""
PAGE = 500
"""Requests read at a time."""
_NOTHING = Shared()
_SOME_WIRE_ID = wire_id("0" * 22, 99_999)
_TAKEN = "deferred-taken "
"""Begins the name of the fact that all answers of a job were given to those who asked."""


@frozen
class Place:
    """Where a deferred request is: a position in a job."""

    job_id: str
    ix: int


@frozen
class Found:
    """An equal request that was deferred before.

    Attributes:
        first: whether nobody here waits for its answer yet; then who asks now is told what it cost.
    """

    place: Place
    first: bool


@frozen
class Storable:
    """A request as a job of deferred requests keeps it.

    Attributes:
        request: without what the process that asked keeps to itself.
        key: equal for requests that may share one answer, in every process; ``None`` for one that must not.
    """

    request: Request
    key: bytes | None


@define
class _Known:
    """A job.

    Attributes:
        open: keys of the requests whose answers were not given to anybody here, by position.
        awaited: positions for which somebody here waits, or has waited.
    """

    open: dict[int, bytes | None]
    awaited: set[int]


class DeferredJobs:
    """Finds deferred requests in the jobs of a store, by what is sent. Safe from any thread.

    Args:
        model: that answers; jobs of other models and accounts are passed over.
    """

    def __init__(self, config: BatchingConfig, model: OpenedModel, service: JobService) -> None:
        self._config = config
        self._model = model
        self._service = service
        self._lock = threading.Lock()
        self._jobs: dict[str, _Known] = {}
        self._places: dict[bytes, Place] = {}
        self._looked_at: set[str] = set()

    def storable(self, request: Request) -> Storable | None:
        """Return how a job keeps a request; ``None`` where a batch cannot take it.

        Its time-out becomes that of the job, and a context without a JSON form stays with this process.
        """
        api, _ = batches_of(self._config, self._model, kind_of(request))
        if api is None:
            return None
        kept = evolve(request, timeout=None)
        for one in (kept, evolve(kept, context=None)):
            with suppress(InvalidRequest):
                body = encode_request(one, _NOTHING)
                api.encode(one, model=self._model.of(one).name, wire_id=_SOME_WIRE_ID)
                return Storable(one, self._key(body, _NOTHING, self._model.name))
        return None

    def new_key(self) -> str:
        """Return a key for a job of deferred requests that no job has."""
        while True:
            key = PREFIX + self._service.new_id().removeprefix("job-")
            if self._service.store.jobs.get(key) is None:
                return key

    def find(self, keys: Iterable[bytes]) -> dict[bytes, Found]:
        """Return where equal requests wait, or have an answer that nobody was given.

        Raises:
            StoreError: the store cannot be read.
        """
        self._look()
        keys = list(keys)
        with self._lock:
            jobs = {place.job_id for key in keys if (place := self._places.get(key)) is not None}
        for job_id in jobs:
            if not self._is_of_use(job_id):
                self._forget(job_id)
        found: dict[bytes, Found] = {}
        with self._lock:  # what is given from here on is given to who asks as well
            for key in keys:
                place = self._places.get(key)
                if place is not None:
                    awaited = self._jobs[place.job_id].awaited
                    found[key] = Found(place, first=place.ix not in awaited)
                    awaited.add(place.ix)
        return found

    def add(self, row: JobRow, keys: Sequence[bytes | None]) -> list[Place]:
        """Remember a job that was stored here, and return where its requests are.

        Args:
            keys: of its requests, in order.
        """
        with self._lock:
            self._looked_at.add(row.id)
        self._add(row.id, _Known(dict(enumerate(keys)), set(range(row.total))))
        return [Place(row.id, ix) for ix in range(len(keys))]

    def given(self, place: Place) -> None:
        """The answer of a request was given to who asked. Once all of a job are, the store remembers it.

        Raises:
            StoreError: the store cannot be written; then the answers stand ready once more.
        """
        with self._lock:
            known = self._jobs.get(place.job_id)
            if known is None:
                return
            self._drop_locked(known.open.pop(place.ix, None), place)
            if known.open:
                return
            del self._jobs[place.job_id]
        self._service.store.facts.remember(_TAKEN + place.job_id, self._service.wall())

    # -- inside ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the jobs of deferred requests that were stored since the last look."""
        store, now = self._service.store, self._service.wall()
        for row in store.jobs.with_keys(PREFIX, limit=LOOKED_AT):
            ours = row.scope == self._model.provider.scope
            if not ours or row.created_at < now - UNTAKEN or row.id in self._looked_at:
                continue
            if self._is_of_use(row.id):
                self._add(row.id, _Known(dict(self._keys_of(store, row)), set()))
            self._looked_at.add(row.id)

    def _keys_of(self, store: SqlStore, row: JobRow) -> Iterator[tuple[int, bytes | None]]:
        """Yield the keys of a job's requests by position, but for those that failed and those that follow."""
        shared, model = decode_params(row.params), row.model.partition(":")[2]
        failed: set[int] = set()
        last = -1
        while page := store.items.results(row.id, after=last):
            last = page[-1].ix
            failed.update(result.ix for result in page if result.outcome != "succeeded")
        seen: set[bytes] = set()
        for start in range(0, row.total, PAGE):
            bodies = store.items.bodies(row.id, range(start, min(start + PAGE, row.total)))
            for ix, body in bodies.items():
                key = None if ix in failed else self._key(body, shared, model)
                if key is not None and key not in seen:
                    seen.add(key)
                    yield ix, key

    def _key(self, body: bytes, shared: Shared, model: str) -> bytes | None:
        """Return the key of a stored request: a schema made of a class is a plain one there."""
        request = decode_request(body, shared, id=None)
        if not shares_answer(request, self._config.deduplicate):
            return None
        return fingerprint(request, request.model or model, self._model.provider.scope)

    def _is_of_use(self, job_id: str) -> bool:
        """Whether a job will have answers, or has some that nobody was given."""
        store = self._service.store
        row = store.jobs.get(job_id)
        return row is not None and not row.cancel_requested and store.facts.recall(_TAKEN + job_id) is None

    def _add(self, job_id: str, known: _Known) -> None:
        with self._lock:
            self._jobs[job_id] = known
            for ix, key in known.open.items():
                if key is not None:
                    self._places.setdefault(key, Place(job_id, ix))

    def _forget(self, job_id: str) -> None:
        with self._lock:
            known = self._jobs.pop(job_id, None)
            for ix, key in () if known is None else known.open.items():
                self._drop_locked(key, Place(job_id, ix))

    def _drop_locked(self, key: bytes | None, place: Place) -> None:
        if key is not None and self._places.get(key) == place:
            del self._places[key]
