"""Settlement of a shard: every item has a result, or goes elsewhere, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attrs import define, evolve, field

from smartbatch.errors import (
    ErrorKind,
    ParameterRejected,
    ProviderError,
    RequestCancelled,
    SmartbatchError,
)
from smartbatch.jobs.job_budget import CostCeiling, pages
from smartbatch.jobs.payload import decode_error, decode_result, encode_result
from smartbatch.jobs.records import NewResult
from smartbatch.jobs.shard_records import ShardRow, UnsettledItem
from smartbatch.jobs.steps import collect, refusals
from smartbatch.jobs.steps.context import Step
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Result, Route, Usage


def settle(step: Step, shard: ShardRow) -> ShardRow:
    """``INGESTING``: read the results, and settle the shard unless they have to be fetched again."""
    read = collect.ingest(step, shard)
    if read is None:
        return shard
    rest = step.store.shards.unsettled(shard.id)
    missing = [item for item in rest if item.verdict is None]
    # 1. the provider has deleted the results: an incident, and the items fail as lost
    if missing and shard.remote.results_gone:
        step.incident(
            "results_gone",
            f"the provider no longer keeps the results of batch {shard.batch_id}, and nobody fetched them in "
            f"time: {len(missing):,} requests may have been paid for and have no answer",
            shard,
        )
    # 2. the results were cut, which proves nothing: fetch them again as long as they are kept
    if missing and _was_cut(step, shard, read):
        return collect.fetch_cut_again(step, shard, read.size)
    # 3. items have no line although they may have been run: fetch the results again, as they may not have
    # been complete; soon, then after longer pauses as long as more comes, or they look broken. A further
    # download that is as long and brings nothing else confirms that these lines are missing
    may_have_run = bool(missing) and _may_have_run(shard, rest, read.billed)
    has_results = collect.ended_by_itself(shard) or bool(shard.remote.outputs)
    pause = None if _is_confirmed(shard, read) else step.reread_pause(shard.remote.results_refetched)
    if may_have_run and pause is not None:
        return _fetch_again(step, shard, pause, read.size, len(missing))
    # 4. they still have none: an incident, since they may be paid twice, unless there never were results
    if may_have_run and has_results:
        step.incident(
            "missing_items",
            f"{len(missing):,} requests have no result although they may have been run; they go again, and "
            "may be paid twice",
            shard,
        )
    unused = _paid_twice(step, shard, read)
    if may_have_run or shard.remote.results_gone:  # what they cost stays reserved: nobody can know it
        unused += _lost_cost(step, shard, [item.ix for item in missing])
    unused += _lost_cost(step, shard, read.unknown)
    # 5. the batch was cancelled, and not by us: an incident, and the job is held until a person resumes it
    elsewhere = _hold_where_cancelled_elsewhere(step, shard, rest)
    # 6. each item is classified
    items = _classified(step, shard, rest, may_have_run=may_have_run, elsewhere=elsewhere)
    return _settle_with(step, shard, items, unused, None if shard.remote.results_gone else read.usd)


def _lost_cost(step: Step, shard: ShardRow, ixs: Sequence[int]) -> float:
    """Return the most that items of a shard can have cost whose answers are lost, USD."""
    if not shard.reserved:
        return 0.0
    ceiling, most = CostCeiling.of(step.runtime, step.job), 0.0
    for page in pages(ixs):
        most += sum(ceiling.in_batch(body) for body in step.store.items.bodies(step.job.id, page).values())
    return min(shard.reserved, most)


def _paid_twice(step: Step, shard: ShardRow, read: collect.ResultTotals) -> float:
    """Return what answers cost whose requests had another one already, such as that of an orphan, USD; an
    incident says so."""
    if not read.doubled:
        return 0.0
    detail = f"{read.doubled:,} requests had another answer already, which counts"
    step.incident("doubled_line", detail, shard, read.twice)
    return shard.reserved if read.twice is None else read.twice


def _fetch_again(step: Step, shard: ShardRow, pause: float, size: int, missing: int) -> ShardRow:
    """Have results that were not complete fetched again after a pause; ``size`` bytes came of them."""
    rereads = shard.remote.results_refetched + 1
    again = step.reschedule(
        shard,
        pause,
        remote=evolve(shard.remote, results_refetched=rereads, results_size=size, results_fetched=False),
        note=f"{missing:,} requests have no result yet; the results are fetched again",
    )
    collect.clear(step, shard)  # after the commit: a former owner must not delete what is being read
    return again


def _settle_with(
    step: Step, shard: ShardRow, items: _Outcomes, unused: float, cost: float | None
) -> ShardRow:
    """Store where the items go, and that the shard is settled; tell it.

    Args:
        unused: USD that stay reserved: no result has what they were, or may have been, paid for.
        cost: USD of the results; ``None`` where they are gone.
    """
    before = step.store.jobs.get(step.job.id) or step.job
    now = step.wall
    if items.no_money:
        step.hold(items.no_money)
    remote = shard.remote
    if items.realtime and remote.rescue is None:
        remote = evolve(remote, rescue=f"no answer in a batch that ended as {remote.status or 'ended'!r}")
    settled = step.store.shards.settle(
        step.lease,
        shard,
        opened=items.opened,
        untried=items.untried,
        realtime=items.realtime,
        finals=items.finals,
        at=now,
        settled_at=now,
        reserved=unused,
        cleaned_up=step.policy.retention is None and not shard.remote.suspected_duplicates,
        cost=cost,
        note=None,
        remote=remote,
    )
    step.tell_change(shard, settled)
    collect.clear(step, shard)
    step.runtime.tell_progress(before)
    return settled


def _was_cut(step: Step, shard: ShardRow, read: collect.ResultTotals) -> bool:
    """Whether results that were read are to be fetched again because they end too early."""
    # 1. the results are gone or no longer kept, or the job is cancelled: what came is all there is
    if shard.remote.results_gone or step.job.cancel_requested or collect.no_longer_kept(step, shard):
        return False
    # 2. they end in the middle of a line: they were cut
    # 3. they end with a line, without its newline: they may have been cut there, unless the download before
    # was of the same size. Some servers end their files like that
    return read.cut or (read.unended and read.size != shard.remote.results_size)


def _is_confirmed(shard: ShardRow, read: collect.ResultTotals) -> bool:
    """Whether the results lack the same lines as when they were read before, of a batch that has ended.

    A download that looks broken confirms nothing where the provider counts more answers than came: a gateway
    may have ended it, each time at the same byte.
    """
    remote = shard.remote
    broken = read.uncertain and (remote.completed or 0) > read.billed
    return remote.results_refetched > 0 and read.size == remote.results_size and not (read.used or broken)


def _may_have_run(shard: ShardRow, rest: list[UnsettledItem], billed: int) -> bool:
    """Whether items without a line may have been run, and billed."""
    # 1. the results are gone: nothing more can be found out
    if shard.remote.results_gone:
        return False
    # 2. the batch ended by itself: all were run
    if collect.ended_by_itself(shard) and not shard.cancelled:
        return True
    # 3. it expired or was cancelled. Providers leave out the lines of what was not run, or write them, and
    # some count it as failed. So items are missing only when others are said to be unrun and these are not,
    # or when the provider counts more successes than the billed lines that were read
    if any(item.verdict == "unrun" for item in rest):
        return True
    return (shard.remote.completed or 0) > billed


@define
class _Outcomes:
    """Where the items of a shard go that have no result: into a new shard, with a try more or without one
    (``untried``), into real time, or to an end."""

    opened: list[int] = field(factory=list)
    untried: list[int] = field(factory=list)
    realtime: list[int] = field(factory=list)
    finals: list[NewResult] = field(factory=list)
    no_money: ProviderError | None = None


def _hold_where_cancelled_elsewhere(step: Step, shard: ShardRow, rest: Sequence[UnsettledItem]) -> bool:
    """Hold the job of a batch that somebody cancelled at the provider before all of it had run; return
    whether somebody did."""
    if step.job.cancel_requested or shard.remote.cancel_sent_at is not None:
        return False
    unrun = [item for item in rest if item.verdict in ("unrun", None)]
    cancelled = shard.remote.state is RemoteState.CANCELLED or any(map(_says_cancelled, unrun))
    if not (unrun and cancelled):
        return False
    what = f"batch {shard.batch_id} was cancelled at the provider, and not by smartbatch"
    step.incident(
        "batch_cancelled",
        f"{what}: its answers so far are kept, and {len(unrun):,} requests were not run. The job waits until "
        f"they are wanted: smartbatch jobs resume {step.job.id}",
        shard,
    )
    note = f"held: {what}; its other requests go again after: smartbatch jobs resume {step.job.id}"
    step.store.jobs.note(step.lease, note, hold=True)
    return True


def _says_cancelled(item: UnsettledItem) -> bool:
    error = None if item.body is None else decode_error(item.body)
    return isinstance(error, ProviderError) and error.code == "batch_cancelled"


def _classified(
    step: Step,
    shard: ShardRow,
    items: Sequence[UnsettledItem],
    *,
    may_have_run: bool,
    elsewhere: bool,
) -> _Outcomes:
    """Classify items one by one."""
    found = _Outcomes()
    cancelled = RequestCancelled("the job was cancelled before this request was run", kind=ErrorKind.UNKNOWN)
    lost = ProviderError(
        "the answer was not fetched in time: the provider no longer keeps the results of its batch, "
        "which may have been paid for; submit the request again if it is still needed",
        kind=ErrorKind.CLIENT_ERROR,
        code="results_gone",
        maybe_billed=True,
    )
    for item in items:
        error = None if item.body is None else decode_error(item.body)
        # 1. the account had no credit: it stays open and the job is held; a cancelled job goes on with 3
        if isinstance(error, ProviderError) and error.kind is ErrorKind.NO_MONEY:
            found.no_money = error
            if not step.job.cancel_requested:
                found.opened.append(item.ix)  # the account's fault, not the item's: it stays open
                continue
        unknown = item.verdict is None and (may_have_run or shard.remote.results_gone)
        end = partial(_end, step, item, unknown=unknown)
        # 2. the results are gone, and no line of it was read: it fails as lost
        if shard.remote.results_gone and item.verdict is None:
            found.finals.append(end("failed", lost))
        # 3. the job is cancelled: it ends as cancelled
        elif step.job.cancel_requested:
            found.finals.append(end("cancelled", cancelled))
        # 4. the server rejects a parameter that the next batch lacks: it goes into a new shard; this was no
        # try
        elif isinstance(error, ParameterRejected) and refusals.is_new(shard, error):
            found.untried.append(item.ix)
        # 5. it was sent often enough: it fails, with its last error where there is one. That somebody else
        # has cancelled its batch (elsewhere) does not count
        elif (
            item.tries + 1 >= step.limits.max_tries
            and found.no_money is None
            and not (elsewhere and item.verdict != "again")
        ):
            last = error if item.verdict == "again" or isinstance(error, ParameterRejected) else None
            found.finals.append(end("failed", last or _exhausted(shard, item)))
        # 6. its line asks for another try, or the job may fall back: it runs in real time
        elif item.verdict == "again" or step.falls_back:
            found.realtime.append(item.ix)
        # 7. it goes into a new shard
        else:
            found.opened.append(item.ix)
    return found


def _end(
    step: Step, item: UnsettledItem, outcome: str, error: SmartbatchError, *, unknown: bool
) -> NewResult:
    """Return the end of an item without an answer.

    What its line was billed is known of its earlier tries, since the line was read.

    Args:
        unknown: nobody knows whether it was billed.
    """
    paid = None if unknown else 0.0
    last = Result("") if item.body is None else decode_result(item.body, request_id="")
    result = evolve(
        last,
        text=last.text if outcome == "failed" else None,
        error=error,
        usage=Usage(unknown=unknown),
        cost=paid,
        attempts=item.tries + (item.verdict == "again"),
        route=Route.BATCH,
        model=step.job.model,
    )
    return NewResult(item.ix, outcome, encode_result(result), cost=paid, route=Route.BATCH)


def _exhausted(shard: ShardRow, item: UnsettledItem) -> ProviderError:
    what = "had no result in" if collect.ended_by_itself(shard) else "was not run in"
    return ProviderError(
        f"the request {what} {item.tries + 1} batches (the last one: {shard.remote.status or 'ended'}); "
        "submit it again, or send it in real time",
        kind=ErrorKind.SERVER_ERROR,
    )
