"""Deletes what forgotten jobs left in a store, and what finished jobs left at providers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import frozen

from smartbatch.errors import ProviderError
from smartbatch.jobs.shard_records import RemoteObject
from smartbatch.jobs.steps import housekeeping
from smartbatch.jobs.wiring import InAccount, JobRuntime
from smartbatch.providers.batch_api import RemoteKind


@frozen
class CleanResult:
    """What was deleted or, in a dry run, what would be.

    Attributes:
        names: names of deferred requests whose jobs were forgotten.
        files: temporary files on this machine that no job needs.
        deleted: files and batches deleted at providers.
        left: files and batches of finished jobs that could not be deleted yet; see ``reasons``.
        undeletable: those that the provider does not delete; they expire.
        reasons: why something is left, or, in a dry run, why not everything would be deleted at once, as a
            sentence per account and cause.
        in_use: number of uploads that were not deleted because requests in real time may be using them.
    """

    names: int
    files: int
    deleted: tuple[RemoteObject, ...] = ()
    left: tuple[RemoteObject, ...] = ()
    undeletable: tuple[RemoteObject, ...] = ()
    reasons: tuple[str, ...] = ()
    in_use: int = 0


def clean(
    runtime: JobRuntime, problem_with: Callable[[InAccount], str | None], *, remote: bool, dry_run: bool
) -> CleanResult:
    """Clean a store, and with ``remote`` also the accounts for which this process has keys.

    Args:
        problem_with: returns why this process cannot use an account.
    """
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
    after, failed = {one.no for one in before} - deletable, {}
    if not dry_run:
        # they are not made due first: other workers of the store would then take them, and they would be
        # counted as left
        for one in before:
            if one.no in deletable and (error := housekeeping.delete_now(runtime, one)) is not None:
                failed[one.no] = error
        after = store.remote_objects.remaining([one.no for one in before])
        store.remote_objects.make_due(list(after & deletable - failed.keys()), at=wall)
    deleted = tuple(one for one in before if one.no not in after)
    left = tuple(one for one in before if one.no in after and one not in undeletable)
    most = runtime.limits.deletions_per_hour
    return CleanResult(
        names,
        files,
        deleted=deleted,
        left=left,
        undeletable=undeletable,
        reasons=(
            *_reasons(left, problem_with, failed, most),
            *(_beyond_limit(deleted, most) if dry_run else ()),
        ),
        in_use=store.remote_objects.in_use(wall),
    )


def _reasons(
    left: Sequence[RemoteObject],
    problem_with: Callable[[InAccount], str | None],
    failed: Mapping[int, ProviderError],
    most: int,
) -> Iterator[str]:
    def reason(one: RemoteObject) -> str:
        if (problem := problem_with(one)) is not None:
            return problem
        if (error := failed.get(one.no)) is not None:
            return f"the deletion failed: {error.message}"
        return _limit(most)

    counted = Counter((_account(one), reason(one)) for one in left)
    for (account, why), count in counted.items():
        yield f"{count:,} in the account {account}: {why}"


def _beyond_limit(due: Sequence[RemoteObject], most: int) -> Iterator[str]:
    for account, count in Counter(map(_account, due)).items():
        if count > most:
            yield f"{count:,} in the account {account}: {_limit(most)}"


def _account(one: RemoteObject) -> str:
    """Return the host and address of an account, without the fingerprint of its key."""
    return one.scope.rpartition(":")[0] or one.scope


def _limit(most: int) -> str:
    return f"at most {most:,} are deleted per hour; run the same command again later"
