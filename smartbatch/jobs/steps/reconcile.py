"""Reconcile a shard: in one transaction, each of its items gets a result or is marked to be sent again."""

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
from smartbatch.jobs.steps.step import Step
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Result, Route, Usage


def reconcile_shard(step: Step, shard: ShardRow) -> ShardRow:
    """Read the results, and settle the shard unless they have to be downloaded again."""
    read = collect.ingest(step, shard)
    if read is None:
        return shard
    rest = step.store.shards.unsettled(shard.id)
    missing = [item for item in rest if item.verdict is None]
    # 1. the provider has deleted the results: record an incident, and fail the items as lost
    if missing and shard.remote.results_gone:
        step.incident(
            "results_gone",
            f"the provider no longer stores the results of batch {shard.batch_id}, which were not downloaded "
            f"in time: {len(missing):,} requests may have been billed and have no answer",
            shard,
        )
    # 2. the results were cut off, which proves nothing: download them again while the provider stores them
    if missing and _was_cut(step, shard, read):
        return collect.download_cut_again(step, shard, read.size)
    # 3. items have no line although they may have been processed: download the results again, because they
    # may be incomplete. Pauses grow while more results arrive or the files appear broken. A second download
    # of the same size without new results confirms that the lines are missing
    may_have_run = bool(missing) and _may_have_run(shard, rest, read.billed)
    has_results = collect.ran_to_completion(shard) or bool(shard.remote.outputs)
    pause = None if _is_confirmed(shard, read) else step.reread_pause(shard.remote.results_refetched)
    if may_have_run and pause is not None:
        return _download_again(step, shard, pause, read.size, len(missing))
    # 4. items still have no line: record an incident, since they may be paid for twice, unless the batch
    # never had results
    if may_have_run and has_results:
        step.incident(
            "missing_items",
            f"{len(missing):,} requests have no result although they may have been processed; they are sent "
            "again and may be paid for twice",
            shard,
        )
    unused = _paid_twice(step, shard, read)
    if may_have_run or shard.remote.results_gone:  # their cost is unknown and stays reserved
        unused += _lost_cost(step, shard, [item.ix for item in missing])
    unused += _lost_cost(step, shard, read.unknown)
    # 5. someone else cancelled the batch: record an incident, and hold the job until a person resumes it
    elsewhere = _hold_if_cancelled_elsewhere(step, shard, rest)
    # 6. classify each item
    items = _classified(step, shard, rest, may_have_run=may_have_run, elsewhere=elsewhere)
    cost = None if shard.remote.results_gone else read.usd
    return _settle_with(step, shard, items, unused, cost, read.size)


def _lost_cost(step: Step, shard: ShardRow, ixs: Sequence[int]) -> float:
    if not shard.reserved:
        return 0.0
    ceiling, most = CostCeiling.of(step.runtime, step.job), 0.0
    for page in pages(ixs):
        bodies = step.store.items.bodies(step.job.id, page).values()
        most += sum(ceiling.in_batch(body, marked=shard.remote.marked) for body in bodies)
    return min(shard.reserved, most)


def _paid_twice(step: Step, shard: ShardRow, read: collect.ResultTotals) -> float:
    """Record an incident about answers to requests that already had one; return their cost in USD."""
    if not read.doubled:
        return 0.0
    detail = f"{read.doubled:,} requests had another answer already; the first one is used"
    step.incident("doubled_line", detail, shard, read.twice)
    return shard.reserved if read.twice is None else read.twice


def _download_again(step: Step, shard: ShardRow, pause: float, size: int, missing: int) -> ShardRow:
    """Download incomplete results again later; ``size`` is the number of bytes received."""
    rereads = shard.remote.results_refetched + 1
    again = step.reschedule(
        shard,
        pause,
        remote=evolve(shard.remote, results_refetched=rereads, results_size=size, results_fetched=False),
        note=f"{missing:,} requests have no result yet; the results are downloaded again",
    )
    # after the commit, which fails for a former owner: it must not delete files that are being read
    step.clear_files(shard)
    return again


def _settle_with(
    step: Step, shard: ShardRow, items: _Outcomes, unused: float, cost: float | None, size: int
) -> ShardRow:
    """Store the classified items and the state of the shard, and report them.

    Args:
        unused: USD that remain reserved because no result accounts for them.
        cost: USD of the results; ``None`` if they are gone.
        size: bytes of the results.
    """
    before = step.store.jobs.get(step.job.id) or step.job
    now = step.wall
    if items.no_money:
        step.hold(items.no_money)
    remote = evolve(shard.remote, results_size=size)
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
        cleaned_up=not shard.remote.suspected_duplicates,
        cost=cost,
        note=None,
        remote=remote,
    )
    step.report_change(shard, settled)
    step.clear_files(shard)
    step.runtime.publish_progress(before)
    return settled


def _was_cut(step: Step, shard: ShardRow, read: collect.ResultTotals) -> bool:
    # 1. the results are gone or no longer stored, or the job is cancelled: use the results that arrived
    if shard.remote.results_gone or step.job.cancel_requested or collect.results_may_be_deleted(step, shard):
        return False
    # 2. they end in the middle of a line: they were cut off
    # 3. they end with a complete line without a newline: they may have been cut off there, unless the
    # previous download had the same size. Some servers end their files without a newline
    return read.cut or (read.unended and read.size != shard.remote.results_size)


def _is_confirmed(shard: ShardRow, read: collect.ResultTotals) -> bool:
    """Whether the batch has ended and two downloads of its results lack the same lines.

    A broken download confirms nothing if the provider counts more answers than arrived: a gateway may
    truncate it at the same byte each time.
    """
    remote = shard.remote
    broken = read.uncertain and (remote.completed or 0) > read.billed
    return remote.results_refetched > 0 and read.size == remote.results_size and not (read.used or broken)


def _may_have_run(shard: ShardRow, rest: list[UnsettledItem], billed: int) -> bool:
    # 1. the results are gone: the callers handle this case separately
    if shard.remote.results_gone:
        return False
    # 2. the batch ended on its own: all items were processed
    if collect.ran_to_completion(shard) and not shard.cancelled:
        return True
    # 3. it expired or was cancelled. Some providers omit the lines of requests that were not processed, some
    # write them, and some count them as failed. Items are therefore missing only if other items are reported
    # as unprocessed and they are not, or if the provider counts more successes than billed lines were read
    if any(item.verdict == "unrun" for item in rest):
        return True
    return (shard.remote.completed or 0) > billed


@define
class _Outcomes:
    opened: list[int] = field(factory=list)  # go into a new shard; a try is counted
    untried: list[int] = field(factory=list)  # go into a new shard; no try is counted
    realtime: list[int] = field(factory=list)  # are sent in real time
    finals: list[NewResult] = field(factory=list)  # end without an answer
    no_money: ProviderError | None = None  # the account has no credit


def _hold_if_cancelled_elsewhere(step: Step, shard: ShardRow, rest: Sequence[UnsettledItem]) -> bool:
    if step.job.cancel_requested or shard.remote.cancel_sent_at is not None:
        return False
    unrun = [item for item in rest if item.verdict in ("unrun", None)]
    cancelled = shard.remote.state is RemoteState.CANCELLED or any(map(_says_cancelled, unrun))
    if not (unrun and cancelled):
        return False
    what = f"batch {shard.batch_id} was cancelled at the provider, not by smartbatch"
    step.incident(
        "batch_cancelled",
        f"{what}: its answers so far are stored, and {len(unrun):,} requests were not processed. To send "
        f"them, run: smartbatch jobs resume {step.job.id}",
        shard,
    )
    note = f"held: {what}; to send its other requests, run: smartbatch jobs resume {step.job.id}"
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
    found = _Outcomes()
    cancelled = RequestCancelled(
        "the job was cancelled before this request was processed", kind=ErrorKind.UNKNOWN
    )
    lost = ProviderError(
        "the answer was not downloaded in time: the provider no longer stores the results of its batch, "
        "which may have been billed; submit the request again if it is still needed",
        kind=ErrorKind.CLIENT_ERROR,
        code="results_gone",
        maybe_billed=True,
    )
    for item in items:
        error = None if item.body is None else decode_error(item.body)
        # 1. the account has no credit: the item stays open and the job is held; in a cancelled job, see 3
        if isinstance(error, ProviderError) and error.kind is ErrorKind.NO_MONEY:
            found.no_money = error
            if not step.job.cancel_requested:
                found.opened.append(item.ix)
                continue
        unknown = item.verdict is None and (may_have_run or shard.remote.results_gone)
        end = partial(_final_result, step, item, unknown=unknown)
        # 2. the results are gone, and the item has no line: it fails as lost
        if shard.remote.results_gone and item.verdict is None:
            found.finals.append(end("failed", lost))
        # 3. the job is cancelled: it ends as cancelled
        elif step.job.cancel_requested:
            found.finals.append(end("cancelled", cancelled))
        # 4. the server rejects a parameter that the next batch omits: it goes into a new shard, and this try
        # does not count
        elif isinstance(error, ParameterRejected) and refusals.may_have_sent(shard, error):
            found.untried.append(item.ix)
        # 5. it has used up its tries: it fails, with its last error if there is one. A batch that someone
        # else cancelled does not count as a try
        elif (
            item.tries + 1 >= step.limits.max_tries
            and found.no_money is None
            and not (elsewhere and item.verdict != "again")
        ):
            last = error if item.verdict == "again" or isinstance(error, ParameterRejected) else None
            found.finals.append(end("failed", last or _exhausted(shard, item)))
        # 6. its error is transient, or the job may fall back: it is sent in real time
        elif item.verdict == "again" or step.falls_back:
            found.realtime.append(item.ix)
        # 7. it goes into a new shard
        else:
            found.opened.append(item.ix)
    return found


def _final_result(
    step: Step, item: UnsettledItem, outcome: str, error: SmartbatchError, *, unknown: bool
) -> NewResult:
    """Return the final result of an item without an answer; its earlier tries contain the cost of its line.

    Args:
        unknown: the item may have been billed.
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
    what = "had no result in" if collect.ran_to_completion(shard) else "was not processed in"
    return ProviderError(
        f"the request {what} {item.tries + 1} batches (the last one: {shard.remote.status or 'ended'}); "
        "submit it again, or send it in real time",
        kind=ErrorKind.SERVER_ERROR,
    )
