"""Deletes what forgotten jobs left in a store, and what finished jobs left at providers."""

from __future__ import annotations

from attrs import frozen

from smartbatch.jobs.shard_records import RemoteObject
from smartbatch.jobs.steps import housekeeping
from smartbatch.jobs.wiring import JobRuntime
from smartbatch.providers.batch_api import RemoteKind


@frozen
class CleanResult:
    """What was deleted or, in a dry run, what would be.

    Attributes:
        names: names of deferred requests whose jobs were forgotten.
        files: temporary files on this machine that no job needs.
        deleted: files and batches deleted at providers.
        left: files and batches of finished jobs that could not be deleted yet: this process has no key for
            their account, a deletion failed, or the hour's maximum was reached.
        undeletable: those that the provider does not delete; they expire.
        in_use: number of uploads that were not deleted because requests in real time may be using them.
    """

    names: int
    files: int
    deleted: tuple[RemoteObject, ...] = ()
    left: tuple[RemoteObject, ...] = ()
    undeletable: tuple[RemoteObject, ...] = ()
    in_use: int = 0


def clean(runtime: JobRuntime, *, remote: bool, dry_run: bool) -> CleanResult:
    """Clean a store, and with ``remote`` also the accounts for which this process has keys."""
    store, wall = runtime.store, runtime.wall()
    names, files = store.clean(at=wall, dry_run=dry_run)
    if not remote:
        return CleanResult(names, files)
    apis = {}
    named: set[tuple[RemoteKind, str]] = set()  # kinds of objects that are deleted in an account
    for account in store.remote_objects.accounts():
        provider = runtime.provider_of(account)
        if provider is not None and (api := provider.batches()) is not None:
            apis[account.scope] = api
        if provider is not None and provider.files() is not None:
            named.add((RemoteKind.UPLOAD, account.scope))
        if provider is not None and provider.caches() is not None:
            named.add((RemoteKind.CACHE, account.scope))
    before = [
        one
        for one in store.remote_objects.of_finished_jobs(wall)
        if one.kind is not RemoteKind.OUTPUT
        or one.scope not in apis
        or apis[one.scope].abilities.result_files
    ]
    deletable = {
        one.no
        for one in before
        if (one.kind, one.scope) in named
        or (one.scope in apis and one.kind in apis[one.scope].abilities.deletes)
    }
    undeletable = tuple(one for one in before if one.scope in apis and one.no not in deletable)
    after = {one.no for one in before} - deletable
    if not dry_run:
        store.remote_objects.make_due(list(deletable), at=wall)
        while housekeeping.delete_next(runtime):
            pass
        after = store.remote_objects.remaining([one.no for one in before])
    return CleanResult(
        names,
        files,
        deleted=tuple(one for one in before if one.no not in after),
        left=tuple(one for one in before if one.no in after and one not in undeletable),
        undeletable=undeletable,
        in_use=store.remote_objects.in_use(wall),
    )
