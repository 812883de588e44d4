"""Delete what providers store for finished batches, and uploaded files, once their retention has passed.

Only recorded objects are deleted (see :mod:`smartbatch.jobs.store.remote_objects`), one per call. Deleting
twice does no harm, since a missing object counts as deleted: after a crash or a lost answer, the call is
repeated. Any process that uses the store and has the account's key may do it, without owning the job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attrs import frozen

from smartbatch.core.limits.cooldown import backoff
from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.jobs.records import DAY
from smartbatch.jobs.shard_records import RemoteObject
from smartbatch.jobs.steps import storage
from smartbatch.jobs.wiring import JobRuntime
from smartbatch.observe import logs
from smartbatch.providers.base import Provider
from smartbatch.providers.batch_api import BatchApi, RemoteKind
from smartbatch.providers.cache_api import CacheApi
from smartbatch.providers.file_api import FileApi

LONGEST_PAUSE_SECONDS = DAY  # between attempts at a failing deletion


@frozen
class Deletion:
    """A deletion that was sent."""

    of: RemoteObject
    error: ProviderError | None  # why it failed


def has_due(runtime: JobRuntime) -> bool:
    """Whether this process can delete an object now, unless the hour's maximum is reached."""
    accounts = runtime.store.remote_objects.accounts(runtime.wall())
    return any(runtime.provider_of(account) is not None for account in accounts)


def delete_next(runtime: JobRuntime) -> Deletion | None:
    """Delete one object, with at most one remote call; return ``None`` if there is none to delete now."""
    objects, wall = runtime.store.remote_objects, runtime.wall()
    for account in objects.accounts(wall):
        provider = runtime.provider_of(account)
        if provider is None or not (provider.batches() or provider.files() or provider.caches()):
            continue
        one = objects.take(account.scope, at=wall, most=runtime.limits.deletions_per_hour)
        if one is not None:
            return Deletion(one, _delete(runtime, provider, one))
    return None


def delete_now(runtime: JobRuntime, one: RemoteObject) -> ProviderError | None:
    """Delete an object regardless of its retention; return the error of the call.

    It stays if it is in use, if the hour's maximum is reached, or if this process cannot use its account.
    """
    objects, provider, error = runtime.store.remote_objects, runtime.provider_of(one), None
    while provider is not None and error is None:
        taken = objects.take_now(one.no, at=runtime.wall(), most=runtime.limits.deletions_per_hour)
        if taken is None:
            break
        error = _delete(runtime, provider, taken)
        if taken.id:  # otherwise it was only searched for
            break
    return error


def _delete(runtime: JobRuntime, provider: Provider, one: RemoteObject) -> ProviderError | None:
    if one.kind in (RemoteKind.UPLOAD, RemoteKind.CACHE):
        named = provider.files() if one.kind is RemoteKind.UPLOAD else provider.caches()
        if named is not None:
            return _attempt(runtime, one, named, partial(_delete_named, runtime, named, one))
        runtime.store.remote_objects.postpone(one, runtime.wall() + DAY)  # another process may
    elif (api := provider.batches()) is not None:
        return _delete_of_batch(runtime, api, one)
    return None


def _delete_named(runtime: JobRuntime, api: FileApi | CacheApi, one: RemoteObject) -> bool:
    """Delete an uploaded file or a cache. If its creation has an unknown outcome, it is only searched for."""
    if one.id:
        api.delete(one.id, runtime.limits.call_timeout)
        return True
    found = api.find(one.name or "", runtime.limits.call_timeout)
    if found is None:
        return True
    runtime.store.remote_objects.found(one, found.id, at=runtime.wall())
    return False


def _delete_of_batch(runtime: JobRuntime, api: BatchApi, one: RemoteObject) -> ProviderError | None:
    objects = runtime.store.remote_objects
    # 1. results that are part of their batch are deleted with it
    if one.kind is RemoteKind.OUTPUT and not api.abilities.result_files:
        objects.remove(one)
        return None
    # 2. the provider does not delete such objects: leave it until it expires
    if one.kind not in api.abilities.deletes:
        objects.postpone(one, None)
        return None
    delete = {
        RemoteKind.INPUT: api.delete_file,
        RemoteKind.OUTPUT: api.delete_output,
        RemoteKind.BATCH: api.delete_batch,
    }[one.kind]
    call_timeout = runtime.limits.call_timeout
    return _attempt(runtime, one, api, lambda: delete(one.id, call_timeout) is None)


def _attempt(
    runtime: JobRuntime, one: RemoteObject, api: BatchApi | FileApi | CacheApi, delete: Callable[[], bool]
) -> ProviderError | None:
    """Call ``delete``, which returns whether the object is gone. Return its error."""
    objects = runtime.store.remote_objects
    try:
        gone = delete()
    except StoreError:
        raise
    except Exception as raised:
        error = api.classify(raised)
        logs.warn("deletion_failed", scope=one.scope, what=one.kind.value, kind=error.kind.value)
        # 1. the provider refuses to: leave the object until it expires
        if error.kind is ErrorKind.CLIENT_ERROR:
            objects.postpone(one, None)
            return error
        # 2. the call failed: repeat it after a growing pause
        wait = backoff(
            one.tries + 1,
            runtime.rng,
            first=runtime.limits.longest_pause,
            longest=LONGEST_PAUSE_SECONDS,
            asked=error.retry_after,
        )
        objects.postpone(one, runtime.wall() + wait)
        return error
    # 3. it was deleted, or was missing
    if gone:
        objects.remove(one)
        if one.kind not in (RemoteKind.BATCH, RemoteKind.CACHE):
            storage.freed(runtime, one.scope)
    return None
