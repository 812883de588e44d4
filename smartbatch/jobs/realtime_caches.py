"""Explicit prompt caches in real time: their creation, use, cost and deletion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from attrs import define, evolve, field, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.core.prefixes.explicit_caches import LIFETIME_SECONDS, RELIED_SECONDS
from smartbatch.errors import StoreError
from smartbatch.jobs.records import MINUTE
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.prompt_caches import CacheRecord
from smartbatch.jobs.threads import OwnThreads, wait_while
from smartbatch.observe import logs
from smartbatch.providers.base import Provider
from smartbatch.providers.cache_api import CacheApi, RemoteCache, is_about_cache
from smartbatch.types import Request

CREATE_SECONDS = 60.0  # maximum time of the call that creates a cache
FIND_SECONDS = 10.0
DELETE_SECONDS = 10.0
_HOUR = 3600.0

_Key = tuple[str, str, str]
"""Scope of the account, model and key of the prefix."""


@define(eq=False)
class _Live:
    api: CacheApi
    record: CacheRecord
    remote: RemoteCache
    created_at: float  # monotonic seconds
    storage: float  # price of a token per hour, relative to an input token
    charged: int = 0  # input tokens
    lost_at: float = math.inf  # the provider refused it

    def due(self, now: float) -> int:
        """Return the input tokens that its creation and its storage have cost since the latest call."""
        until = min(now, self.lost_at, self.created_at + LIFETIME_SECONDS)
        owed = math.floor(self.remote.tokens * (1 + self.storage * (until - self.created_at) / _HOUR))
        due, self.charged = owed - self.charged, owed
        return due


@frozen
class _Uncertain:
    """A cache that may exist, because the answer to its creation was lost. None is created in its place."""

    record: CacheRecord | None  # None if it was searched for in vain, or has expired
    created_at: float  # monotonic seconds


@define(eq=False, repr=False)
class RealtimeCaches:
    """Creates explicit caches for requests in real time, and deletes them.

    Each request that uses a cache is charged for the time since the previous charge, and the client for the
    time until the cache is deleted.

    Args:
        store: opens the store, where caches are recorded.
        charge_rest: called when a cache is deleted or left to housekeeping, with its model as
            ``provider:model`` and the input tokens that no request was charged for.
    """

    _clock: Clock
    _store: Callable[[], SqlStore]
    _charge_rest: Callable[[str, int], object]
    _caches: dict[_Key, _Live | _Uncertain] = field(factory=dict, init=False)
    _creating: set[_Key] = field(factory=set, init=False)
    _deleting: int = field(default=0, init=False)
    _monitor: Monitor = field(init=False)

    @_monitor.default
    def _new_monitor(self) -> Monitor:
        return self._clock.monitor()

    def refer(self, provider: Provider, model: str, request: Request, deadline: float) -> Request:
        """See :class:`smartbatch.realtime.call.CacheReferences`."""
        mark = request.cache
        if mark is None or mark.explicit is None:
            return request
        key, now = (provider.scope, model, mark.prefixes[-1].key), self._clock.now()
        with self._monitor:
            found = self._caches.get(key)
            creates = mark.explicit == "create" and key not in self._creating
            # a request that creates a cache uses an existing one only if its readers may rely on it
            lasts = RELIED_SECONDS - CREATE_SECONDS if creates else LIFETIME_SECONDS
            if found is not None and now >= found.created_at + lasts:
                found = None  # its record is replaced, or removed by housekeeping
            if creates and not isinstance(found, _Live):
                self._creating.add(key)
        if creates and not isinstance(found, _Live):
            try:
                found = self._obtained(provider, model, request, found, min(deadline - now, CREATE_SECONDS))
            finally:
                self._note(key, found)
        if (
            not isinstance(found, _Live)
            or found.lost_at < math.inf
            or not found.api.takes(request, mark.prefixes[-1])
        ):
            return request
        return evolve(request, cache=evolve(mark, cache_id=found.remote.id))

    def forget_lost(self, provider: Provider, sent: Sequence[Request], error: Exception) -> bool:
        """See :class:`smartbatch.realtime.call.CacheReferences`."""
        if not is_about_cache(provider.classify(error)):
            return False
        ids = {request.cache.cache_id for request in sent if request.cache is not None}
        with self._monitor:
            for each in self._caches.values():
                if isinstance(each, _Live) and each.api.scope == provider.scope and each.remote.id in ids:
                    each.lost_at = min(each.lost_at, self._clock.now())
        return True

    def due(self, provider: Provider, model: str, key: str) -> int:
        """See :class:`smartbatch.realtime.call.CacheReferences`."""
        with self._monitor:
            found = self._caches.get((provider.scope, model, key))
            return found.due(self._clock.now()) if isinstance(found, _Live) else 0

    def release(self, provider: Provider, model: str, keys: Sequence[str]) -> None:
        """See :class:`smartbatch.realtime.call.CacheReferences`."""
        with self._monitor:
            found = {key: self._caches.pop((provider.scope, model, key), None) for key in keys}
            self._deleting += 1
        try:
            OwnThreads(self._clock).start(lambda: self._delete_all(found.values()), "smartbatch-caches")
        except RuntimeError:  # no thread can be started: they are deleted when the client stops
            with self._monitor:
                self._deleting -= 1
                for key, each in found.items():
                    if each is not None:
                        self._caches[provider.scope, model, key] = each

    def finish(self, until: float) -> None:
        """Delete all caches by ``until``, in monotonic seconds; what is left is left to housekeeping."""
        with self._monitor:
            wait_while(lambda: self._deleting, self._monitor, self._clock, until - self._clock.now())
            caches, self._caches = list(self._caches.values()), {}
        for each in caches:
            self._delete(each, min(DELETE_SECONDS, until - self._clock.now()))

    def _note(self, key: _Key, found: _Live | _Uncertain | None) -> None:
        with self._monitor:
            self._creating.discard(key)
            before = self._caches.pop(key, None)
            if found is not None:
                self._caches[key] = found
        if before is not None and (found is None or before.record is not found.record):
            self._delete(before, DELETE_SECONDS)

    def _obtained(
        self, provider: Provider, model: str, request: Request, found: _Uncertain | None, timeout: float
    ) -> _Live | _Uncertain | None:
        """Create a cache, or search for it if an earlier call may have created it.

        Returns:
            ``None`` if it certainly does not exist.
        """
        api, rules, mark = provider.caches(), provider.caching(model), request.cache
        if api is None or rules is None or rules.storage is None or mark is None or timeout <= 0:
            return found
        # 1. It may exist: search for it.
        if found is not None:
            return self._searched(api, found, rules.storage)
        # 2. Record it, and create it.
        prefix, label = mark.prefixes[-1], f"{provider.name}:{model}"
        if not api.takes(request, prefix):
            return None
        try:
            table, at = self._store().caches, self._clock.wall()
            expires_at = at + LIFETIME_SECONDS + CREATE_SECONDS
            record = table.begin(provider.scope, label, at=at, expires_at=expires_at)
        except StoreError as error:
            logs.warn("cache_not_created", model=label, error=type(error).__name__)
            return None
        created_at = self._clock.now()
        try:
            remote = api.create(record.name, request, model, prefix, LIFETIME_SECONDS, timeout)
        except Exception as raised:
            refusal = api.classify(raised)
            logs.warn("cache_not_created", model=label, error=refusal.kind.value)
            # 3. It was refused: no request with this prefix has a cache.
            if not refusal.maybe_billed:
                self._noted(lambda: table.remove(record))
                return None
            # 4. The outcome is unknown: search for it.
            return self._searched(api, _Uncertain(record, created_at), rules.storage)
        self._noted(lambda: table.complete(record, remote.id))
        return _Live(api, record, remote, created_at, rules.storage)

    def _searched(self, api: CacheApi, lost: _Uncertain, storage: float) -> _Live | _Uncertain:
        if (record := lost.record) is None:
            return lost
        try:
            remote = api.find(record.name, FIND_SECONDS)
        except Exception as raised:  # searched for again by the next request that would create it
            logs.warn("cache_not_found", error=api.classify(raised).kind.value)
            return lost
        if remote is None:
            self._delete(lost, 0.0)
            return evolve(lost, record=None)
        self._noted(lambda: self._store().caches.complete(record, remote.id))
        return _Live(api, record, remote, lost.created_at, storage)

    def _delete_all(self, caches: Iterable[_Live | _Uncertain | None]) -> None:
        try:
            for each in caches:
                if each is not None:
                    self._delete(each, DELETE_SECONDS)
        finally:
            with self._monitor:
                self._deleting -= 1
                self._monitor.notify_all()

    def _delete(self, cache: _Live | _Uncertain, timeout: float) -> None:
        """Delete a cache with a single call; if that fails, housekeeping repeats it."""
        record, wall = cache.record, self._clock.wall()
        if record is None:
            return
        if isinstance(cache, _Uncertain):  # searched for later: an interrupted call may have a late effect
            self._noted(lambda: self._store().caches.leave(record, due=wall + MINUTE))
            return
        try:
            if timeout <= 0:
                raise TimeoutError
            cache.api.delete(cache.remote.id, timeout)
        except Exception as raised:
            logs.warn("cache_not_deleted", error=cache.api.classify(raised).kind.value)
            self._noted(lambda: self._store().caches.leave(record, due=wall))
        else:
            self._noted(lambda: self._store().caches.remove(record))
        with self._monitor:
            rest = cache.due(self._clock.now())
        self._charge_rest(record.model, rest)

    def _noted(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreError as error:  # housekeeping finds the cache by its name
            logs.warn("cache_not_recorded", error=type(error).__name__)
