"""Collect the results of a batch: download them to files, then read the files into the store.

All outputs are read, whatever state the batch ended in. A file is read only after it is complete and synced
to disk. Results are matched to requests by id, and reading a file twice changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from attrs import define, evolve, field

from smartbatch._words import money
from smartbatch.core.batching.sharding import Crosscheck
from smartbatch.core.limits.cooldown import backoff
from smartbatch.core.preparation.answer_length import SHAPES
from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.events import CachingStopped, ParameterDropped, PriceUnknown
from smartbatch.jobs.batch_caching import note_reads
from smartbatch.jobs.payload import decode_request, is_chat, item_id, prefixes_of
from smartbatch.jobs.records import NewResult, StoredItem
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps.result_lines import (
    MAX_LINE_BYTES,
    OddLines,
    ResultLine,
    ResultReader,
    ends_inside_line,
    nonces_of,
    pages_of,
    read_lines,
)
from smartbatch.jobs.steps.step import Step
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.shared_prefixes import CachingRules
from smartbatch.usage import Usage

CUTS_BEFORE_INCIDENT = 6  # consecutive truncated downloads (about three minutes) before it is recorded
MAX_ANSWER_BYTES = 4 << 20
"""Maximum size of the results for one request: eight times the size of a 128,000-token answer."""
TOO_LARGE_CODE = "too_large"  # error code of a request whose results are larger
MAX_BUFFERED_BYTES = 4 << 20
"""Maximum size of results kept in memory between the two passes. Decoding doubles their size."""
PEEK_BYTES = 1 << 20  # bytes of each output that are read to identify its shard


def download_results(step: Step, shard: ShardRow) -> ShardRow:
    assert shard.batch_id is not None
    try:
        # the URLs of the results may have changed
        batch = step.api.get(shard.batch_id, step.limits.call_timeout)
        nothing = batch is None or (batch.state is RemoteState.COMPLETED and not batch.outputs)
        # 1. the batch lists no results, and the provider may have deleted them by now: treat them as gone
        if nothing and results_may_be_deleted(step, shard):
            return _gone(step, shard)
        # 2. the batch is missing or appears to be running again (a stale replica): try again later
        if batch is None or not batch.state.ended:
            return step.reschedule(shard, step.limits.poll_interval, tries=shard.tries + 1)
        download_all(step, shard, batch)
    except StoreError:
        raise  # 3. the disk is full, which is not the provider's fault
    except Exception as error:
        return _not_fetched(step, shard, step.api.classify(error))  # 4. any other failure
    # 5. all outputs are on disk: read them
    remote = evolve(shard.remote, outputs=batch.outputs, state=batch.state, results_fetched=True)
    return step.advance(shard, ShardState.INGESTING, remote=remote)


def _not_fetched(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    if error.code == TOO_LARGE_CODE:
        _report_at_risk(step, shard, f"are larger than {shard.size:,} requests can produce")
    # 1. the provider refuses the download, and may have deleted the results by now: treat them as gone
    if error.kind is ErrorKind.CLIENT_ERROR and results_may_be_deleted(step, shard):
        return _gone(step, shard)
    # 2. otherwise try again; record an incident once half of the provider's retention period has passed
    until = shard.results_until
    if until is not None and step.wall > ((shard.submitted_at or until) + until) / 2:
        _report_at_risk(step, shard, f"cannot be downloaded ({error.kind.value})")
    return step.retry_later(shard, error)


def download_cut_again(step: Step, shard: ShardRow, size: int) -> ShardRow:
    """Download truncated results again later; ``size`` is the number of bytes received."""
    times = shard.remote.results_cut + 1
    if times >= CUTS_BEFORE_INCIDENT:
        _report_at_risk(step, shard, "end in the middle of a line each time they are downloaded")
    again = step.reschedule(
        shard,
        backoff(times, step.runtime.rng, first=step.limits.reread_pause, longest=step.limits.longest_pause),
        remote=evolve(shard.remote, results_cut=times, results_size=size, results_fetched=False),
        note=f"the results end in the middle of a line after {size:,} bytes; they are downloaded again",
    )
    # after the commit, which fails for a former owner: it must not delete files that are being read
    step.clear_files(shard)
    return again


def _report_at_risk(step: Step, shard: ShardRow, what: str) -> None:
    stored = ""
    if shard.results_until is not None:
        until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(shard.results_until))
        stored = f", and the provider stores them only until {until} UTC"
    step.incident("results_at_risk", f"the results of batch {shard.batch_id} {what}{stored}", shard)


def _gone(step: Step, shard: ShardRow) -> ShardRow:
    # they were not downloaded in time, so the items are lost
    remote = evolve(shard.remote, outputs=(), results_gone=True, results_fetched=True)
    return step.advance(shard, ShardState.INGESTING, remote=remote)


def results_may_be_deleted(step: Step, shard: ShardRow) -> bool:
    return shard.results_until is not None and step.wall >= shard.results_until


def ingest(step: Step, shard: ShardRow) -> ResultTotals | None:
    """Read the result files into the store and return the totals.

    If the files are not on this machine, they are downloaded, and ``None`` is returned.
    """
    paths = _paths(step, shard, shard.remote)
    if shard.remote.results_fetched and all(path.exists() for path in paths):
        try:
            return store_results(step, shard, paths)
        except FileNotFoundError:  # another process took over the job, read the files and deleted them
            step.reschedule(shard, 0.0)
            return None
    download_results(step, shard)  # the files are on another machine, deleted, or incomplete
    return None


def store_results(step: Step, shard: ShardRow, paths: Sequence[Path]) -> ResultTotals:
    """Read the result files of a shard into the store; results already stored are not replaced.

    The first pass counts unusual lines and compares billed tokens with prompt lengths (see
    :mod:`smartbatch.core.batching.sharding`), so that incidents are recorded before the last result is
    stored. The second pass stores the results, one page per transaction. If the files are at most
    :data:`MAX_BUFFERED_BYTES` long, they are read only once.

    If every line was refused, the batch itself may be the cause. A job that may fall back then sends its
    requests in real time, where refusals are free as well.
    """
    check = Crosscheck()
    all_refused = step.falls_back
    odd = OddLines()
    measures = step.store.shards.measures(shard.id)
    size = sum(path.stat().st_size for path in paths)
    read: list[ResultLine] = []
    for line in read_lines(step, shard, paths, odd):
        if size <= MAX_BUFFERED_BYTES:
            read.append(line)
        all_refused = all_refused and line.is_refused
        answer = line.line.answer
        measure = measures.get(line.position)
        if measure is not None and answer is not None and answer.usage is not None:
            check.observe(measure.tokens, answer.usage.input_tokens, measure.bytes)
    reader = ResultReader(step, shard.submitted_at, sends_again=all_refused)
    _report_odd_lines(step, shard, odd, reader)
    _report_mismatch(step, shard, check)
    empty = not odd.seen and (bool(paths) or ran_to_completion(shard))  # a cancelled batch may have no file
    totals = ResultTotals(size=size, unended=odd.unended, cut=odd.cut, uncertain=odd.broken or empty)
    calibration = step.runtime.wiring.calibration(step.job)
    shared = step.shared()
    shape = SHAPES.of(shared.params)
    before = step.job
    rules = step.caching_rules() if shard.remote.marked else None
    marked = Usage()
    lines = iter(read) if size <= MAX_BUFFERED_BYTES else read_lines(step, shard, paths, OddLines())
    for page in pages_of(lines, measures):
        items = step.store.shards.items_at(shard.id, [line.position for line in page])
        results = reader.results_of_page(items, page)
        stored = step.store.shards.ingest(step.lease, shard, results, at=step.wall)
        final = frozenset(stored.final)
        totals.add_page(results, final, frozenset(stored.doubled))
        for line in page:  # calibrate token estimates with the newly stored answers
            item, answer = items.get(line.position), line.line.answer
            if item is not None and item.ix in final and answer is not None and answer.usage is not None:
                learned = calibration
                if is_chat(item.payload):
                    learned = calibration.of(decode_request(item.payload, shared, id=None))
                learned.observe(item.tokens, answer.usage, shape.key)
                if rules is not None and prefixes_of(item.payload):
                    marked += answer.usage
        _report_dropped(step, items.values(), final, reader)
        before = step.runtime.publish_progress(before)
    if rules is not None:
        _learn_reads(step, rules, marked)
    if reader.lacks_price:
        step.runtime.publish_event(PriceUnknown(at=step.now, model=step.job.model, batch=True))
    return totals


def _learn_reads(step: Step, rules: CachingRules, marked: Usage) -> None:
    """Learn how much of the cache that batches write is read, and report if it is too little."""
    model = step.job.model
    too_few = note_reads(step.store, step.job.scope, model, rules, marked, step.wall)
    if too_few is not None:
        reason = f"{too_few.written:,.0f} tokens were written and {too_few.read:,.0f} read"
        stopped = CachingStopped(at=step.now, model=model, prefix="", tokens=0, reason=reason, batch=True)
        step.runtime.publish_event(stopped)


def _report_mismatch(step: Step, shard: ShardRow, check: Crosscheck) -> None:
    if check.unrelated:
        what = "the billed tokens are unrelated to the lengths of the prompts"
    elif suspects := check.suspects():
        what = f"{suspects:,} answers were billed for prompts of a different length"
    else:
        return
    detail = f"{what}: answers may belong to other requests. All are stored; check some before you use them"
    step.incident("token_mismatch", detail, shard)


def _report_dropped(
    step: Step, items: Iterable[StoredItem], final: Collection[int], reader: ResultReader
) -> None:
    dropped = [
        (item, parameter)
        for item in items
        for parameter in (reader.dropped.get(item.ix, ()) if item.ix in final else ())
    ]
    for item, (name, reason) in [*dropped, *((item, each) for each, item in reader.rejected.items())]:
        step.runtime.publish_event(
            ParameterDropped(
                at=step.now,
                request_id=item_id(step.job.id, item.ix, item.user_id),
                field=name,
                reason=reason,
            )
        )
    reader.rejected.clear()


def nonces_in(step: Step, shard: ShardRow, batch: RemoteBatch) -> set[str | None]:
    """Return the nonces in the first megabyte of a batch's results; ``None`` is an id without a nonce.

    A single line would not be enough, because it may be garbled or belong to another batch. An empty set
    proves nothing.

    Raises:
        ProviderError: an output ends in the middle of a line, and the received part does not show which shard
            it belongs to.
    """
    found: set[str | None] = set()
    cut = False
    for output in batch.outputs:
        with closing(received(step, batch, output)) as pieces:
            first = b"".join(_first(pieces, PEEK_BYTES))
        found |= nonces_of(step, [first])
        cut |= len(first) < PEEK_BYTES and ends_inside_line(step, first)
    if cut and shard.nonce not in found:
        raise _was_cut()
    return found


@define
class ResultTotals:
    billed: int = 0  # requests that were processed
    used: int = 0  # billed requests whose result was newly stored
    unused: int = 0  # billed requests that have another result
    doubled: int = 0  # requests that already had another answer
    usd: float | None = 0.0  # cost of the billed requests; None if any price is unknown
    wasted: float | None = 0.0  # cost of the unused results
    twice: float | None = 0.0  # cost of the unused results whose request already had another answer
    unknown: list[int] = field(factory=list)  # positions of requests whose line does not report usage
    size: int = 0  # bytes of the files
    unended: bool = False  # a file ends without a newline
    cut: bool = False  # a file ends in the middle of a line
    uncertain: bool = False
    """The last line of a file is unreadable, or a batch that should have results has none."""

    @property
    def price(self) -> str:
        return "at an unknown cost" if self.usd is None else f"at a cost of {money(self.usd)}"

    def add_page(
        self, results: list[NewResult], final: Collection[int], doubled: Collection[int] = frozenset()
    ) -> None:
        """Add a page of results.

        Args:
            final: items whose result was newly stored.
            doubled: items that already had another answer. A line stating that its request was not processed
                is not an answer.
        """
        for result in results:
            self.doubled += result.ix in doubled and result.outcome != "unrun"
            if result.usage.estimated or result.usage.unknown:
                self.unknown.append(result.ix)
            if result.outcome == "unrun" or not (result.usage.input_tokens or result.outcome == "succeeded"):
                continue
            unused = result.ix in doubled or not result.final
            self.billed += 1
            self.used += result.ix in final
            self.unused += unused
            if result.cost is None or self.usd is None or self.wasted is None or self.twice is None:
                self.usd = self.wasted = self.twice = None
                continue
            self.usd += result.cost
            self.wasted += result.cost if unused else 0.0
            self.twice += result.cost if result.ix in doubled else 0.0


def _report_odd_lines(step: Step, shard: ShardRow, odd: OddLines, reader: ResultReader) -> None:
    _report(step, shard, "malformed_line", odd.malformed, "lines of the results could not be read")
    foreign = "lines of the results have ids that were never sent; they are ignored"
    _report(step, shard, "foreign_line", odd.foreign, foreign)
    costs = [reader.cost(usage, charged) for usage, charged in odd.repeats]
    known = [cost for cost in costs if cost is not None]
    usd = sum(known) if known and len(known) == len(costs) else None
    twice = "requests have two different answers; the first one is used"
    _report(step, shard, "doubled_line", odd.doubled, twice, usd)


def _report(
    step: Step, shard: ShardRow, kind: str, count: int, text: str, money: float | None = None
) -> None:
    if count:
        step.incident(kind, f"{count:,} {text}", shard, money)


def download_all(step: Step, shard: ShardRow, batch: RemoteBatch) -> list[Path]:
    """Download every output of a batch to a local file.

    Raises:
        ProviderError: the outputs are larger than all answers of the batch can be. Without this check, a
            broken server could fill the disk.
    """
    paths = _paths(step, shard, batch)
    most = 2 * shard.bytes + shard.size * MAX_ANSWER_BYTES  # a result line may repeat the request
    for path, output in zip(paths, batch.outputs, strict=True):
        with closing(received(step, batch, output)) as pieces:
            step.write_file(path, _within(most, pieces))
        most -= path.stat().st_size
    return paths


def _within(most: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        most -= len(piece)
        if most < 0:
            text = "the results are larger than its requests can produce; they are downloaded again"
            raise ProviderError(text, kind=ErrorKind.INVALID_RESPONSE, code=TOO_LARGE_CODE)
        yield piece


def download_whole(step: Step, shard: ShardRow, batch: RemoteBatch) -> list[Path]:
    """Like :func:`download_all`, but raise a ``ProviderError`` if an output ends in the middle of a line."""
    paths = download_all(step, shard, batch)
    for path in paths:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LINE_BYTES))
            if ends_inside_line(step, file.read()):
                raise _was_cut()
    return paths


def _was_cut() -> ProviderError:
    text = "the results end in the middle of a line; they are downloaded again"
    return ProviderError(text, kind=ErrorKind.NETWORK_ERROR, code="truncated")


def received(step: Step, batch: RemoteBatch, output: str) -> Generator[bytes, None, None]:
    """Closing the generator ends the download."""
    yield from step.api.download(batch, output, step.limits.transfer_timeout)


def _first(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        most -= len(piece)
        if most <= 0:
            return


def _paths(step: Step, shard: ShardRow, remote: RemoteBatch | RemoteProgress) -> list[Path]:
    return [step.spool_path(shard, f"out{number}") for number in range(len(remote.outputs))]


def ran_to_completion(shard: ShardRow) -> bool:
    """Whether the batch was neither cancelled nor expired, so that every request was processed."""
    return shard.remote.state is RemoteState.COMPLETED
