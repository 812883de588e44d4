"""The results of a batch that has ended: fetched whole into files, then read into the store.

Both places of results are read in every terminal state. A file counts once it was received whole and synced;
a half one is never looked at. Reading is by id, never by position, and reading again changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from attrs import define, field, frozen

from smartbatch.core.batching.crosscheck import Crosscheck
from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.jobs.raw_lines import raw_lines
from smartbatch.jobs.records import NewResult, ShardRow, ShardState
from smartbatch.jobs.spool_files import write_whole
from smartbatch.jobs.steps.context import StepContext, report
from smartbatch.jobs.steps.result_reader import Reader
from smartbatch.jobs.store.base import ItemAt, Measure
from smartbatch.jobs.wire_ids import parse_wire_id
from smartbatch.providers.batch_api import Line, RemoteBatch, RemoteState
from smartbatch.types import Kind, Usage

__all__ = [
    "Taken",
    "clear",
    "fetch",
    "incomplete",
    "ingest",
    "no_longer_kept",
    "nonces_in",
    "price",
    "salvage",
    "take_in",
]

PAGE = 1000
"""Lines a transaction."""
PAGE_BYTES = 8 << 20
"""Bytes of lines and of the requests they answer that are held at a time, at most."""
PEEK = 1 << 20
"""Bytes read at most of each place of a candidate's results to see whose they are."""


def fetch(step: StepContext, shard: ShardRow) -> ShardRow:
    """``ENDED``: receive every place of results, whole."""
    assert shard.batch_id is not None
    try:
        batch = step.api.get(shard.batch_id, step.limits.call_timeout)  # addresses of results may have moved
        nothing = batch is None or (batch.state is RemoteState.COMPLETED and not batch.outputs)
        if nothing and no_longer_kept(step, shard):
            return _gone(step, shard)
        if batch is None or not batch.state.ended:
            return step.later(shard, step.limits.poll_interval, tries=shard.tries + 1)
        for number, output in enumerate(batch.outputs):
            _download(step, shard, batch, number, output)
    except StoreError:
        raise  # the disk is full: nothing is wrong at the provider
    except Exception as error:
        return _not_fetched(step, shard, step.api.classify(error))
    return _fetched(step, shard, outputs=list(batch.outputs), state=batch.state.value)


def _fetched(step: StepContext, shard: ShardRow, **remote: object) -> ShardRow:
    return step.move(shard, ShardState.INGESTING, remote={**shard.remote, **remote, "fetched": True})


def _not_fetched(step: StepContext, shard: ShardRow, error: ProviderError) -> ShardRow:
    if error.kind is ErrorKind.CLIENT_ERROR and no_longer_kept(step, shard):
        return _gone(step, shard)
    until = shard.results_until
    if until is not None and step.wall > ((shard.submitted_at or until) + until) / 2:
        step.incident(
            "results_at_risk",
            f"the results of batch {shard.batch_id} cannot be fetched ({error.kind.value}), and the provider "
            f"keeps them until {time.strftime('%Y-%m-%d %H:%M', time.gmtime(until))} UTC only",
            shard,
        )
    return step.stumbled(shard, error)


def _gone(step: StepContext, shard: ShardRow) -> ShardRow:
    """Nobody fetched the results while the provider kept them; what has none is settled as lost."""
    return _fetched(step, shard, outputs=[], gone=True)


def no_longer_kept(step: StepContext, shard: ShardRow) -> bool:
    """Whether the provider may have deleted the results of a shard by now."""
    return shard.results_until is not None and step.wall >= shard.results_until


def ingest(step: StepContext, shard: ShardRow) -> bool:
    """``INGESTING``: read the files into the store, or fetch them again where they are not here.

    Returns:
        True when everything was read, so that the shard can be settled.
    """
    paths = [_path(step, shard, number) for number in range(len(shard.remote.get("outputs") or ()))]
    if shard.remote.get("fetched") and all(path.exists() for path in paths):
        try:
            again = take_in(step, shard, paths).doubled
        except FileNotFoundError:  # whoever took the job over has read and deleted them
            step.later(shard, 0.0)
            return False
        _tell(step, shard, "doubled_line", again, "requests had another answer when they were read before")
        return True
    fetch(step, shard)  # fetched on another machine, tidied away, or to be read a second time
    return False


def take_in(step: StepContext, shard: ShardRow, paths: list[Path]) -> Taken:
    """Read result files of a shard into the store; what is there already stays as it is.

    The first pass learns how the provider counts the tokens of these prompts; the second reads, and an answer
    whose tokens fit another prompt is not believed (see :mod:`smartbatch.core.batching.crosscheck`). What is
    odd about
    the lines is told between the two: whoever sees the last result sees it, too.
    """
    check = Crosscheck()
    tally = _Tally()
    measures = step.store.measures(shard.id)
    for read in _lines(step, shard, paths, tally):
        if read.position not in measures:
            tally.foreign += 1
        elif read.line.answer is not None and read.line.answer.usage is not None:
            check.observe(measures[read.position].tokens, read.line.answer.usage.input_tokens)
    reader = Reader(step, check)
    _tell_oddities(step, shard, tally, reader)
    if check.unrelated:
        step.incident(
            "token_mismatch",
            "the tokens billed have nothing to do with the lengths of the prompts: answers may belong to "
            "other requests. Compare some before you use them",
            shard,
        )
    sums = Taken()
    before = step.store.job(step.job.id) or step.job
    for page in _pages(_lines(step, shard, paths, _Tally()), measures):
        items = step.store.items_at(shard.id, [read.position for read in page])
        results = [
            reader.result(items[read.position], read.line, read.digest)
            for read in page
            if read.position in items
        ]
        taken = step.store.ingest(step.lease, shard, results, at=step.wall)
        sums.doubled += len(taken.doubled)
        sums.add(results, taken.final)
        _learn(step, page, items, frozenset(taken.final))
        before = report(step.store, before, step.tell, step.clock)
    mismatched = "answers were billed for a prompt of another length than theirs; they are asked again alone"
    _tell(step, shard, "token_mismatch", reader.suspicious, mismatched)
    return sums


def _learn(step: StepContext, page: list[_Read], items: Mapping[int, ItemAt], final: Collection[int]) -> None:
    """Let answers that were stored now teach what requests of the model take, as those in real time do."""
    known = step.calibration(step.job)
    for read in page:
        item, answer = items.get(read.position), read.line.answer
        if item is not None and item.ix in final and answer is not None and answer.usage is not None:
            known.observe(item.tokens, answer.usage)


def salvage(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> Taken:
    """Fetch and read the results of a orphan: answers that were paid for are used where they still can be."""
    for number, output in enumerate(batch.outputs):
        _download(step, shard, batch, number, output)
    return take_in(step, shard, [_path(step, shard, number) for number in range(len(batch.outputs))])


def price(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> Taken:
    """Fetch and read the results of a second batch of a shard that is settled, only for what they cost."""
    for number, output in enumerate(batch.outputs):
        _download(step, shard, batch, number, output)
    paths = [_path(step, shard, number) for number in range(len(batch.outputs))]
    reader = Reader(step, Crosscheck())
    sums = Taken()
    for page in _pages(_lines(step, shard, paths, _Tally()), step.store.measures(shard.id)):
        items = step.store.items_at(shard.id, [read.position for read in page])
        sums.add(
            [
                reader.result(items[read.position], read.line, read.digest)
                for read in page
                if read.position in items
            ],
            (),
        )
    clear(step, shard)
    return sums


def nonces_in(step: StepContext, batch: RemoteBatch) -> set[str | None]:
    """Return whose ids the first megabyte of a batch's results carries: nonces, ``None`` for ids of others.

    Not the first line alone: a line may be garbled, or stray in from elsewhere. An empty set proves nothing.
    """
    kind = Kind(step.job.kind)
    found: set[str | None] = set()
    for output in batch.outputs:
        with closing(_received(step, batch, output)) as pieces:
            for raw in raw_lines(_first(pieces, PEEK)):
                if raw.data is not None:
                    with contextlib.suppress(ValueError):
                        named = parse_wire_id(step.api.read_line(raw.data, kind).wire_id)
                        found.add(None if named is None else named[0])
    return found


@define
class Taken:
    """What result files held.

    Attributes:
        billed: requests that were run.
        used: of these, those whose result was stored now.
        doubled: requests that had another answer already.
        usd: what the billed ones cost; ``None`` when the price of one is unknown.
        wasted: what those of them cost that were not used.
    """

    billed: int = 0
    used: int = 0
    doubled: int = 0
    usd: float | None = 0.0
    wasted: float | None = 0.0

    def add(self, results: list[NewResult], final: tuple[int, ...]) -> None:
        """Count a page of them."""
        for result in results:
            if result.outcome == "unrun" or not (result.input_tokens or result.outcome == "succeeded"):
                continue
            self.billed += 1
            self.used += result.ix in final
            if result.cost is None or self.usd is None or self.wasted is None:
                self.usd = self.wasted = None
                continue
            self.usd += result.cost
            self.wasted += 0.0 if result.ix in final else result.cost


@define
class _Tally:
    """What was odd in the files of a shard."""

    malformed: int = 0
    foreign: int = 0
    doubled: int = 0
    repeats: list[Usage] = field(factory=list)
    seen: dict[int, bytes] = field(factory=dict)


@frozen
class _Read:
    """A line of a shard's results.

    Attributes:
        position: of its request in the shard.
        line: what it says.
        digest: of its bytes.
        size: how many these are.
    """

    position: int
    line: Line = field(repr=False)
    digest: bytes
    size: int


def _pages(lines: Iterator[_Read], measures: Mapping[int, Measure]) -> Iterator[list[_Read]]:
    """Yield up to a thousand lines at a time; fewer where they, or the requests they answer, are large."""
    page: list[_Read] = []
    size = 0
    for read in lines:
        more = read.size + (measures[read.position].bytes if read.position in measures else 0)
        if page and (len(page) >= PAGE or size + more > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(read)
        size += more
    if page:
        yield page


def _lines(step: StepContext, shard: ShardRow, paths: list[Path], tally: _Tally) -> Iterator[_Read]:
    """Yield the lines of a shard's files, the first of each request."""
    kind = Kind(step.job.kind)
    for path in paths:
        with open(path, "rb") as file:
            for raw in raw_lines(_chunks(file)):
                try:
                    if raw.data is None:
                        raise ValueError("too long a line")
                    line = step.api.read_line(raw.data, kind)
                except ValueError:
                    tally.malformed += 1
                    continue
                named = parse_wire_id(line.wire_id)
                if named is None or named[0] != shard.nonce or named[1] >= shard.size:
                    tally.foreign += 1
                    continue
                digest = hashlib.blake2b(raw.data, digest_size=16).digest()
                if (known := tally.seen.get(named[1])) is not None:
                    if known != digest:
                        tally.doubled += 1
                        if line.answer is not None and line.answer.usage is not None:
                            tally.repeats.append(line.answer.usage)
                    continue  # the first wins
                tally.seen[named[1]] = digest
                yield _Read(named[1], line, digest, len(raw.data))


def _tell_oddities(step: StepContext, shard: ShardRow, tally: _Tally, reader: Reader) -> None:
    _tell(step, shard, "malformed_line", tally.malformed, "lines of the results could not be read")
    strange = "lines of the results carry ids that were never sent; not delivered"
    _tell(step, shard, "foreign_line", tally.foreign, strange)
    costs = [reader.cost(usage) for usage in tally.repeats]
    known = [cost for cost in costs if cost is not None]
    money = sum(known) if known and len(known) == len(costs) else None
    twice = "requests were answered twice, differently; the first answer counts"
    _tell(step, shard, "doubled_line", tally.doubled, twice, money)


def _tell(
    step: StepContext, shard: ShardRow, kind: str, count: int, text: str, money: float | None = None
) -> None:
    if count:
        step.incident(kind, f"{count:,} {text}", shard, money)


def _download(step: StepContext, shard: ShardRow, batch: RemoteBatch, number: int, output: str) -> None:
    path = _path(step, shard, number)
    with closing(_received(step, batch, output)) as pieces:
        write_whole(path, step.partial(path), pieces)


def _received(step: StepContext, batch: RemoteBatch, output: str) -> Generator[bytes, None, None]:
    """The pieces of a download, with a close: leaving early ends the download."""
    yield from step.api.download(batch, output, step.limits.transfer_timeout)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(1 << 16):
        yield piece


def _first(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        most -= len(piece)
        if most <= 0:
            return


def _path(step: StepContext, shard: ShardRow, number: int) -> Path:
    return step.spooled(shard, f"out{number}")


def clear(step: StepContext, shard: ShardRow) -> None:
    """Delete the shard's local files."""
    for path in Path(step.store.spool).glob(f"{shard.id}.*"):
        path.unlink(missing_ok=True)


def incomplete(shard: ShardRow) -> bool:
    """Whether items without a line may have been run, and billed: only where the batch ended by itself."""
    return shard.remote.get("state") == RemoteState.COMPLETED.value
