"""Split, parse and evaluate the lines of a batch's results, and match them to their requests.

Downloads are split at newlines only, in constant memory: a JSON string may contain U+2028, U+0085 or a lone
carriage return without ending its line. Lines are matched by id, never by position.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from attrs import define, evolve, field, frozen

from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.core.preparation.tokens import estimate
from smartbatch.errors import ErrorKind, ParameterRejected, ProviderError, SmartbatchError
from smartbatch.jobs.job_budget import CostCeiling
from smartbatch.jobs.payload import decode_request, encode_result
from smartbatch.jobs.records import ItemSize, NewResult, StoredItem
from smartbatch.jobs.shard_records import ShardRow, parse_wire_id
from smartbatch.jobs.steps.file_uploads import forget_uploads
from smartbatch.jobs.steps.step import Step
from smartbatch.prices import RateCard
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.providers.file_api import is_about_missing_file
from smartbatch.providers.foreign_text import without_echo
from smartbatch.types import Answer, Kind, Result, Route, Usage, answer_fields

PAGE_LINES = 1000  # per transaction
PAGE_BYTES = 8 << 20  # lines in memory at a time, together with their requests
MAX_LINE_BYTES = 64 * 2**20
"""Maximum length of a line. It is far longer than any answer (128,000 tokens are about 512 kB, 3,072 floats
about 60 kB), but fits in memory.
"""
_TAIL_BYTES = 4096  # bytes at the end of a file that show whether it ends with a newline
_OUTCOMES = {LineOutcome.FAILED: "failed", LineOutcome.RETRY: "again", LineOutcome.UNRUN: "unrun"}
_BOM = b"\xef\xbb\xbf"


def raw_lines(pieces: Iterable[bytes], *, max_line: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """Yield the lines in ``pieces`` without their line ends; blank lines are skipped.

    Args:
        pieces: chunks of any size, split at any byte; the caller closes the iterator.
        max_line: maximum bytes of a line without its newline; ``None`` is yielded for a longer line.
    """
    begun, first = bytearray(), True  # the line in progress, up to one byte more than allowed
    for piece in pieces:
        *parts, rest = piece.split(b"\n")
        for part in parts:
            begun += part[: max_line + 1 - len(begun)]
            yield from _line(begun, first, b"\r", max_line)
            begun.clear()
            first = False
        begun += rest[: max_line + 1 - len(begun)]
    yield from _line(begun, first, b"", max_line)


def _line(begun: bytearray, first: bool, end: bytes, max_line: int) -> Iterator[bytes | None]:
    if len(begun) > max_line:
        yield None
        return
    data = bytes(begun).removeprefix(_BOM if first else b"").removesuffix(end)
    if data and not data.isspace():
        yield data


# -- lines of a shard ----------------------------------------------------------------------------------------


@define
class OddLines:
    malformed: int = 0  # lines that could not be read
    foreign: int = 0  # lines with ids that were never sent
    doubled: int = 0  # further, different lines of a request
    # usage of the doubled lines, and the USD that the provider says it charged
    repeats: list[tuple[Usage, float | None]] = field(factory=list)
    unended: bool = False  # a file ends without a newline, so it may have been cut
    cut: bool = False  # a file ends without a newline and its last line cannot be read, so it was cut
    broken: bool = False  # the last line of a file cannot be read, with or without a newline
    seen: dict[int, bytes] = field(factory=dict)  # digest of the first line of each request, by position


@frozen
class ResultLine:
    position: int  # position of the request in the shard
    line: Line = field(repr=False)
    digest: bytes  # of the line's bytes
    size: int  # bytes

    @property
    def is_refused(self) -> bool:
        """Whether the request was refused before it was processed, and therefore not billed."""
        error = self.line.error
        billed = isinstance(error, ProviderError) and (error.maybe_billed or error.usage is not None)
        return self.line.outcome is LineOutcome.FAILED and not billed


def read_lines(step: Step, shard: ShardRow, paths: Iterable[Path], odd: OddLines) -> Iterator[ResultLine]:
    """Yield the first line of each request in a shard's files, and count unusual lines in ``odd``."""
    kind = Kind(step.job.kind)
    for path in paths:
        with open(path, "rb") as file:
            readable = True
            for raw in raw_lines(iter(partial(file.read, 1 << 16), b"")):
                # 1. it is too long or unreadable
                try:
                    if raw is None:
                        raise ValueError("the line is too long")
                    line = step.api.read_line(raw, kind)
                    readable = True
                except ValueError:
                    readable = False
                    odd.malformed += 1
                    continue
                # 2. it has an id that is not the shard's
                parsed = parse_wire_id(line.wire_id)
                if parsed is None or parsed[0] != shard.nonce or parsed[1] >= shard.size:
                    odd.foreign += 1
                    continue
                # 3. it is another line for the same request: the first one counts
                position = parsed[1]
                digest = hashlib.blake2b(raw, digest_size=16).digest()
                if (first := odd.seen.get(position)) is not None:
                    if first != digest:
                        odd.doubled += 1
                        if line.answer is not None and line.answer.usage is not None:
                            odd.repeats.append((line.answer.usage, line.answer.cost))
                    continue
                # 4. it answers a request
                odd.seen[position] = digest
                yield ResultLine(position, line, digest, len(raw))
            odd.broken |= not readable
            if _lacks_final_newline(file):
                odd.unended = True
                odd.cut |= not readable


def _lacks_final_newline(file: IO[bytes]) -> bool:
    file.seek(max(0, file.tell() - _TAIL_BYTES))
    return bool(file.read().rpartition(b"\n")[2].strip())


def ends_inside_line(step: Step, data: bytes) -> bool:
    """Whether the text after the last newline cannot be parsed."""
    tail = data.rpartition(b"\n")[2].strip()
    if not tail:
        return False
    try:
        step.api.read_line(tail, Kind(step.job.kind))
    except ValueError:
        return True
    return False


def pages_of(lines: Iterator[ResultLine], measures: Mapping[int, ItemSize]) -> Iterator[list[ResultLine]]:
    """Yield pages of up to :data:`PAGE_LINES` lines, fewer if the lines or their requests are large."""
    page: list[ResultLine] = []
    size = 0
    for line in lines:
        more = line.size + (measures[line.position].bytes if line.position in measures else 0)
        if page and (len(page) >= PAGE_LINES or size + more > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(line)
        size += more
    if page:
        yield page


def nonces_of(step: Step, pieces: Iterable[bytes]) -> set[str | None]:
    """Return the nonces in the ids of the lines; ``None`` stands for an id without a nonce."""
    kind = Kind(step.job.kind)
    found: set[str | None] = set()
    for raw in raw_lines(pieces):
        if raw is not None:
            with contextlib.suppress(ValueError):  # a garbled line proves nothing
                parsed = parse_wire_id(step.api.read_line(raw, kind).wire_id)
                found.add(None if parsed is None else parsed[0])
    return found


# -- what a line means for its item --------------------------------------------------------------------------


class ResultReader:
    """Converts the lines of a batch to results of its job's items.

    Args:
        submitted_at: Unix time at which the batch was created.
        sends_again: requests that were refused are sent again.
    """

    def __init__(self, step: Step, submitted_at: float | None, *, sends_again: bool = False) -> None:
        self._step = step
        self._outcomes = {**_OUTCOMES, LineOutcome.FAILED: "again"} if sends_again else _OUTCOMES
        now, accepted = step.wall, step.job.created_at
        sent = now if submitted_at is None else submitted_at
        self._latency, self._queued = max(0.0, now - sent), max(0.0, sent - accepted)
        self._shared = step.shared()
        provider, _, model = step.job.model.partition(":")
        self._batch = step.runtime.prices.rates(provider, model, step.wall, processing="batch")
        self._realtime = step.runtime.prices.rates(provider, model, step.wall)
        self._ceiling: CostCeiling | None = None
        self.lacks_price = False  # whether a cost could not be computed
        # latest page: omitted parameters and reasons, by item index
        self.dropped: dict[int, tuple[tuple[str, str], ...]] = {}
        # rejected parameters and reasons, each with one item that was refused because of it
        self.rejected: dict[tuple[str, str], StoredItem] = {}

    def results_of_page(self, items: Mapping[int, StoredItem], page: Iterable[ResultLine]) -> list[NewResult]:
        """``items`` are keyed by their position in the shard."""
        self.dropped.clear()
        return [
            self._result(items[line.position], line.line, line.digest)
            for line in page
            if line.position in items
        ]

    def _result(self, item: StoredItem, line: Line, digest: bytes) -> NewResult:
        if line.outcome is LineOutcome.OK and line.answer is not None:
            return self._answered(item, line.answer, digest)
        error = line.error or ProviderError("the request failed in its batch", kind=ErrorKind.UNKNOWN)
        if isinstance(error, ParameterRejected):
            self.rejected.update(dict.fromkeys(error.omitted, item))
        request = decode_request(item.payload, self._shared, id=item.user_id)
        outcome = self._outcomes[line.outcome]
        if is_about_missing_file(error) and forget_uploads(self._step, request):
            outcome = "again"
        error = without_echo(error, request)
        usage = error.usage if isinstance(error.usage, Usage) else Usage()
        return self._failed(item, outcome, error, digest, usage)

    def cost(self, usage: Usage, charged: float | None) -> float | None:
        """Return the cost in USD: what the provider says it charged, or else computed from the tokens;
        ``None`` if the price is unknown.
        """
        cost = self._price(self._batch, usage) if charged is None else charged
        self.lacks_price |= cost is None
        return cost

    def _answered(self, item: StoredItem, answer: Answer, digest: bytes) -> NewResult:
        request = decode_request(item.payload, self._shared, id=item.user_id)
        usage = answer.usage or Usage(item.tokens, estimate(answer.text or ""), estimated=True)
        dimensions = None if request.embedding is None else request.embedding.dimensions
        # 1. it is a vector of the wrong size: discard it and send the item again
        if dimensions and len(answer.embedding or ()) != dimensions:
            error = ProviderError(
                f"the vector has {len(answer.embedding or ())} numbers instead of {dimensions}",
                kind=ErrorKind.INVALID_RESPONSE,
                cost=answer.cost,
            )
            return self._failed(item, "again", error, digest, usage)
        dropped = answer.dropped or self._step.api.dropped(request, model=self._step.model)
        if dropped:
            self.dropped[item.ix] = dropped
        unknown = answer.cost is None and usage.estimated
        cost = None if unknown else self.cost(usage, answer.cost)
        result = Result(
            "",
            usage=usage,
            cost=cost,
            unconfirmed_cost=self._max_cost(item) if unknown else 0.0,
            latency=self._latency,
            queued=self._queued,
            attempts=1,
            route=Route.BATCH,
            model=self._step.job.model,
            **{**answer_fields(answer), "dropped": dropped},
        )
        verdict = read_answer(request.params, answer.text, answer.finish_reason)
        # 2. it does not match the requested schema: send the item again or fail it. The answer is stored with
        # the error, since it was paid for
        if not isinstance(verdict, Parsed):
            reason = verdict.error(finish_reason=answer.finish_reason, usage=usage)
            outcome = "failed" if verdict.final else "again"
            return self._new_result(item, outcome, evolve(result, error=reason), digest)
        # 3. otherwise it succeeded, with the parsed object if a schema was requested
        if verdict.value is not None:
            result = evolve(result, parsed=verdict.value)
        return self._new_result(item, "succeeded", result, digest)

    def _failed(
        self, item: StoredItem, outcome: str, error: SmartbatchError, digest: bytes, usage: Usage
    ) -> NewResult:
        # it is billed if it used tokens; it may be billed if its answer is unusable and reports no usage
        charged = getattr(error, "cost", None)
        unpriced = charged is None and not usage.total_tokens
        lost = outcome != "unrun" and unpriced and getattr(error, "maybe_billed", False)
        if lost:
            usage = Usage(unknown=True)
        result = Result(
            "",
            usage=usage,
            cost=None if lost else 0.0 if unpriced else self.cost(usage, charged),
            unconfirmed_cost=self._max_cost(item) if lost else 0.0,
            latency=self._latency,
            queued=self._queued,
            attempts=0 if outcome == "unrun" else 1,
            route=Route.BATCH,
            model=self._step.job.model,
            error=error,
        )
        return self._new_result(item, outcome, result, digest)

    def _new_result(self, item: StoredItem, outcome: str, result: Result, digest: bytes) -> NewResult:
        usage, cost = result.usage, result.cost
        billed = bool(usage.total_tokens or outcome == "succeeded")
        realtime = self._price(self._realtime, usage) if billed else 0.0
        body = encode_result(result, partial(self._step.store.files.keep, (self._step.job.id,)))
        found = NewResult(item.ix, outcome, body, digest, usage, cost, realtime, Route.BATCH)
        return evolve(found, defects=result.defects)

    def _max_cost(self, item: StoredItem) -> float:
        if self._ceiling is None:
            self._ceiling = CostCeiling.of(self._step.runtime, self._step.job)
        return self._ceiling.in_batch(item.payload)

    def _price(self, rates: RateCard | None, usage: Usage) -> float | None:
        if not self._step.api.abilities.priced:
            return 0.0
        return None if rates is None else rates.cost(usage)
