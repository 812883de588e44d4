"""Collection of a batch's results: fetched whole into files, then read into the store.

All outputs are read in every terminal state. A file is read once it was received whole and synced.
Results are matched by id, never by position, and reading them again changes nothing.
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
from smartbatch.events import ParameterDropped
from smartbatch.jobs.payload import decode_params, item_id
from smartbatch.jobs.records import NewResult, StoredItem
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps.context import Step
from smartbatch.jobs.steps.result_lines import (
    MAX_LINE,
    OddLines,
    ResultLine,
    ResultReader,
    ends_in_a_line,
    nonces_of,
    pages_of,
    read_lines,
)
from smartbatch.providers.batch_api import RemoteBatch, RemoteState

_MANY_CUTS = 6
"""Downloads in a row that are cut before an incident tells it: some three minutes."""
LARGEST_ANSWER = 4 << 20
"""Bytes of results that a request can have at most: eight times the longest answer, of 128,000 tokens."""
TOO_LARGE = "too_large"
"""Code of the error of results that are larger."""
HELD = 4 << 20
"""Most bytes of results that are held from one pass to the other; decoded they take twice as many."""
PEEK = 1 << 20
"""Most bytes of each output of a candidate that are read to see whose it is."""


def fetch(step: Step, shard: ShardRow) -> ShardRow:
    """``ENDED``: fetch every output, whole."""
    assert shard.batch_id is not None
    try:
        # the addresses of results may have changed
        batch = step.api.get(shard.batch_id, step.limits.call_timeout)
        nothing = batch is None or (batch.state is RemoteState.COMPLETED and not batch.outputs)
        # 1. the results may be deleted by now, and there are none: they are gone
        if nothing and no_longer_kept(step, shard):
            return _gone(step, shard)
        # 2. the batch is not there, or not ended any more (a late replica): later
        if batch is None or not batch.state.ended:
            return step.reschedule(shard, step.limits.poll_interval, tries=shard.tries + 1)
        download_all(step, shard, batch)
    except StoreError:
        raise  # 3. the disk is full: nothing is wrong at the provider
    except Exception as error:
        return _not_fetched(step, shard, step.api.classify(error))  # 4. any other failure
    # 5. all outputs are on the disk: read them
    remote = evolve(shard.remote, outputs=batch.outputs, state=batch.state, results_fetched=True)
    return step.advance(shard, ShardState.INGESTING, remote=remote)


def _not_fetched(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    if error.code == TOO_LARGE:
        _tell_at_risk(step, shard, f"are larger than {shard.size:,} requests can have")
    # the provider refuses, and may have deleted the results by now: they are gone
    if error.kind is ErrorKind.CLIENT_ERROR and no_longer_kept(step, shard):
        return _gone(step, shard)
    # else try again; an incident once half of the time is over that results are kept
    until = shard.results_until
    if until is not None and step.wall > ((shard.submitted_at or until) + until) / 2:
        _tell_at_risk(step, shard, f"cannot be fetched ({error.kind.value})")
    return step.retry_later(shard, error)


def fetch_cut_again(step: Step, shard: ShardRow, size: int) -> ShardRow:
    """Have results fetched again that were cut, after a pause that grows from one time to the next.

    Args:
        size: bytes that came.
    """
    times = shard.remote.results_cut + 1
    if times >= _MANY_CUTS:
        _tell_at_risk(step, shard, "end in the middle of a line each time they are fetched")
    again = step.reschedule(
        shard,
        backoff(times, step.runtime.rng, first=step.limits.reread_pause, longest=step.limits.longest_pause),
        remote=evolve(shard.remote, results_cut=times, results_size=size, results_fetched=False),
        note=f"the results end in the middle of a line, after {size:,} bytes; they are fetched again",
    )
    clear(step, shard)  # after the commit: a former owner must not delete what is being read
    return again


def _tell_at_risk(step: Step, shard: ShardRow, what: str) -> None:
    kept = ""
    if shard.results_until is not None:
        until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(shard.results_until))
        kept = f", and the provider keeps them until {until} UTC only"
    step.incident("results_at_risk", f"the results of batch {shard.batch_id} {what}{kept}", shard)


def _gone(step: Step, shard: ShardRow) -> ShardRow:
    """Settle a shard whose results were not fetched while the provider kept them: its items are lost."""
    remote = evolve(shard.remote, outputs=(), results_gone=True, results_fetched=True)
    return step.advance(shard, ShardState.INGESTING, remote=remote)


def no_longer_kept(step: Step, shard: ShardRow) -> bool:
    """Whether the provider may have deleted the results of a shard by now."""
    return shard.results_until is not None and step.wall >= shard.results_until


def ingest(step: Step, shard: ShardRow) -> ResultTotals | None:
    """Read the files into the store, or fetch them again where they are not on this machine.

    Returns:
        what was in them, when everything was read, so that the shard can be settled; else ``None``.
    """
    paths = _paths(step, shard, shard.remote)
    if shard.remote.results_fetched and all(path.exists() for path in paths):
        try:
            return store_results(step, shard, paths)
        except FileNotFoundError:  # a process that took the job over has read and deleted them
            step.reschedule(shard, 0.0)
            return None
    fetch(step, shard)  # fetched on another machine, deleted, or to be fetched again
    return None


def store_results(step: Step, shard: ShardRow, paths: Sequence[Path]) -> ResultTotals:
    """Read result files of a shard into the store; results that are stored already stay as they are.

    There are two passes. The first one finds what is odd about the lines, and whether the tokens that were
    billed fit the prompts (see :mod:`smartbatch.core.batching.sharding`); that is told before the second
    one, so that it is known when the last result is stored. The second one stores results, a page in each
    transaction. Files of at most :data:`HELD` bytes are read once, larger ones in both passes.

    Where every line was refused, it may be the batch that failed: the requests of a job that may fall back
    go in real time, where a refusal costs nothing either.
    """
    check = Crosscheck()
    all_refused = step.falls_back
    odd = OddLines()
    measures = step.store.shards.measures(shard.id)
    size = sum(path.stat().st_size for path in paths)
    read: list[ResultLine] = []
    for line in read_lines(step, shard, paths, odd):
        if size <= HELD:
            read.append(line)
        all_refused = all_refused and line.is_refused
        answer = line.line.answer
        measure = measures.get(line.position)
        if measure is not None and answer is not None and answer.usage is not None:
            check.observe(measure.tokens, answer.usage.input_tokens, measure.bytes)
    reader = ResultReader(step, shard.submitted_at, sends_again=all_refused)
    _tell_odd_lines(step, shard, odd, reader)
    _tell_mismatch(step, shard, check)
    empty = not odd.seen and (bool(paths) or ended_by_itself(shard))  # a cancelled batch may name no file
    totals = ResultTotals(size=size, unended=odd.unended, cut=odd.cut, uncertain=odd.broken or empty)
    calibration = step.runtime.wiring.calibration(step.job)
    shape = SHAPES.of(decode_params(step.job.params).params)
    before = step.job
    lines = iter(read) if size <= HELD else read_lines(step, shard, paths, OddLines())
    for page in pages_of(lines, measures):
        items = step.store.shards.items_at(shard.id, [line.position for line in page])
        results = reader.results(items, page)
        stored = step.store.shards.ingest(step.lease, shard, results, at=step.wall)
        final = frozenset(stored.final)
        totals.add(results, final, frozenset(stored.doubled))
        for line in page:  # learn from answers that were stored now how many tokens requests take
            item, answer = items.get(line.position), line.line.answer
            if item is not None and item.ix in final and answer is not None and answer.usage is not None:
                calibration.observe(item.tokens, answer.usage, shape.key)
        _tell_dropped(step, items.values(), final, reader)
        before = step.runtime.tell_progress(before)
    return totals


def _tell_mismatch(step: Step, shard: ShardRow, check: Crosscheck) -> None:
    """Tell once of a batch that its answers may be exchanged. All are kept: nothing says which are right."""
    if check.unrelated:
        what = "the tokens billed have nothing to do with the lengths of the prompts"
    elif suspects := check.suspects():
        what = f"{suspects:,} answers were billed for a prompt of another length than theirs"
    else:
        return
    detail = f"{what}: answers may belong to other requests. All are kept; compare some before you use them"
    step.incident("token_mismatch", detail, shard)


def _tell_dropped(
    step: Step, items: Iterable[StoredItem], final: Collection[int], reader: ResultReader
) -> None:
    """Tell which parameters were left out of the requests whose results were stored now, and which ones the
    server rejected.
    """
    dropped = [
        (item, parameter)
        for item in items
        for parameter in (reader.dropped.get(item.ix, ()) if item.ix in final else ())
    ]
    for item, (name, reason) in [*dropped, *((item, each) for each, item in reader.rejected.items())]:
        step.runtime.tell(
            ParameterDropped(
                at=step.now,
                request_id=item_id(step.job.id, item.ix, item.user_id),
                field=name,
                reason=reason,
            )
        )
    reader.rejected.clear()


def nonces_in(step: Step, shard: ShardRow, batch: RemoteBatch) -> set[str | None]:
    """Return the nonces in the first megabyte of a batch's results; ``None`` stands for ids of another form.

    Not of the first line alone: a line may be garbled, or foreign. An empty set proves nothing.

    Raises:
        ProviderError: an output ends in the middle of a line, and what came does not say whose it is.
    """
    found: set[str | None] = set()
    cut = False
    for output in batch.outputs:
        with closing(received(step, batch, output)) as pieces:
            first = b"".join(_first(pieces, PEEK))
        found |= nonces_of(step, [first])
        cut |= len(first) < PEEK and ends_in_a_line(step, first)
    if cut and shard.nonce not in found:
        raise _was_cut()
    return found


@define
class ResultTotals:
    """Counts and costs of the results in a batch's files.

    Attributes:
        billed: requests that were run.
        used: of these, those whose result was stored now.
        unused: of these, those whose result is not the one that its request has, also by an earlier reading.
        doubled: requests that had another answer already.
        usd: what the billed ones cost; ``None`` when the price of one is unknown.
        wasted: what the unused ones cost.
        twice: what those of them cost whose request had another answer already.
        unknown: positions of requests whose line does not say what was used.
        size: bytes of the files.
        unended: a file ends without a newline.
        cut: a file ends in the middle of a line.
        uncertain: the last line of a file cannot be read, or no line came of a batch that names a file or
            that was completed.
    """

    billed: int = 0
    used: int = 0
    unused: int = 0
    doubled: int = 0
    usd: float | None = 0.0
    wasted: float | None = 0.0
    twice: float | None = 0.0
    unknown: list[int] = field(factory=list)
    size: int = 0
    unended: bool = False
    cut: bool = False
    uncertain: bool = False

    @property
    def price(self) -> str:
        """What the billed ones cost, in words."""
        return "an unknown amount" if self.usd is None else f"{money(self.usd)}"

    def add(
        self, results: list[NewResult], final: Collection[int], doubled: Collection[int] = frozenset()
    ) -> None:
        """Add a page of results, of which those in ``final`` were stored now, and those in ``doubled`` are of
        requests that had another answer. A line that says that its request was not run is no answer."""
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


def _tell_odd_lines(step: Step, shard: ShardRow, odd: OddLines, reader: ResultReader) -> None:
    _tell(step, shard, "malformed_line", odd.malformed, "lines of the results could not be read")
    foreign = "lines of the results carry ids that were never sent; not delivered"
    _tell(step, shard, "foreign_line", odd.foreign, foreign)
    costs = [reader.cost(usage) for usage in odd.repeats]
    known = [cost for cost in costs if cost is not None]
    money = sum(known) if known and len(known) == len(costs) else None
    twice = "requests were answered twice, differently; the first answer counts"
    _tell(step, shard, "doubled_line", odd.doubled, twice, money)


def _tell(step: Step, shard: ShardRow, kind: str, count: int, text: str, money: float | None = None) -> None:
    if count:
        step.incident(kind, f"{count:,} {text}", shard, money)


def download_all(step: Step, shard: ShardRow, batch: RemoteBatch) -> list[Path]:
    """Fetch every output of a batch into a local file.

    Raises:
        ProviderError: they are larger than all answers of the batch can be. Nothing else bounds what a broken
            server has us write.
    """
    paths = _paths(step, shard, batch)
    most = 2 * shard.bytes + shard.size * LARGEST_ANSWER  # a line may repeat its request
    for path, output in zip(paths, batch.outputs, strict=True):
        with closing(received(step, batch, output)) as pieces:
            step.write_file(path, _within(most, pieces))
        most -= path.stat().st_size
    return paths


def _within(most: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        most -= len(piece)
        if most < 0:
            text = "the results are larger than the requests of the batch can have; they are fetched again"
            raise ProviderError(text, kind=ErrorKind.INVALID_RESPONSE, code=TOO_LARGE)
        yield piece


def download_whole(step: Step, shard: ShardRow, batch: RemoteBatch) -> list[Path]:
    """Fetch every output as :func:`download_all` does.

    Raises:
        ProviderError: one ends in the middle of a line.
    """
    paths = download_all(step, shard, batch)
    for path in paths:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LINE))
            if ends_in_a_line(step, file.read()):
                raise _was_cut()
    return paths


def _was_cut() -> ProviderError:
    text = "the results end in the middle of a line; they are fetched again"
    return ProviderError(text, kind=ErrorKind.NETWORK_ERROR, code="truncated")


def received(step: Step, batch: RemoteBatch, output: str) -> Generator[bytes, None, None]:
    """Yield the pieces of a download; closing the generator ends the download."""
    yield from step.api.download(batch, output, step.limits.transfer_timeout)


def _first(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        most -= len(piece)
        if most <= 0:
            return


def _paths(step: Step, shard: ShardRow, remote: RemoteBatch | RemoteProgress) -> list[Path]:
    """Return the local file of each output."""
    return [step.spool_path(shard, f"out{number}") for number in range(len(remote.outputs))]


def clear(step: Step, shard: ShardRow) -> None:
    """Delete the shard's local files."""
    for path in Path(step.store.spool).glob(f"{shard.id}.*"):
        path.unlink(missing_ok=True)


def ended_by_itself(shard: ShardRow) -> bool:
    """Whether the batch was completed, and neither cancelled nor expired: then every item was run."""
    return shard.remote.state is RemoteState.COMPLETED
