"""The results of a batch: its lines in the order of the download, damaged by its faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve

from smartbatch.emulator.batches.batch import LineResult, StoredBatch
from smartbatch.emulator.batches.batch_records import BatchBackendError, Entry, Outcome, OutputLine


def check_available(batch: StoredBatch, now: float, retention: float, outage: float) -> None:
    """Raise ``BatchBackendError`` if the results of a batch are not available.

    Args:
        retention: seconds the results are kept after the end.
        outage: seconds after the end during which the fault ``results_unavailable`` applies.
    """
    if not batch.closed:
        raise BatchBackendError("not_ended", f"Batch {batch.id} has not ended yet.")
    if now >= batch.ended_at + retention:
        raise BatchBackendError("gone", f"The results of batch {batch.id} are no longer kept.")
    if "results_unavailable" in batch.faults and now < batch.ended_at + outage:
        raise BatchBackendError("unavailable", "The service is temporarily unavailable.")


def result_lines(batch: StoredBatch, part: str | None = None) -> list[OutputLine]:
    """Return the lines of a batch that has ended, damaged by its faults.

    Args:
        part: ``succeeded``, ``failed`` (all others) or ``errored`` (those that have run and failed); ``all``
            or ``None`` for all lines.
    """
    if batch.final == "failed":
        return _all_failed(batch) if batch.api == "anthropic" else []
    lines = [line for position in range(len(batch.entries)) for line in _lines(batch, position)]
    if "shuffled" in batch.faults:
        random.Random(batch.id).shuffle(lines)
    if part in (None, "all"):
        return lines
    if part == "errored":
        return [line for line in lines if line.outcome == "errored"]
    return [line for line in lines if (line.outcome == "succeeded") == (part == "succeeded")]


def _all_failed(batch: StoredBatch) -> list[OutputLine]:
    """Return the lines of a batch that failed its validation, for an API without failed batches."""
    return [
        OutputLine(
            entry.custom_id,
            position,
            "errored",
            b"",
            0,
            "invalid",
            batch.identity(position),
            metadata=entry.metadata,
        )
        for position, entry in enumerate(batch.entries)
    ]


def _lines(batch: StoredBatch, position: int) -> Iterator[OutputLine]:
    entry = batch.entries[position]
    if position < len(batch.ran):
        yield from _damaged(batch, _line(batch, position, entry, batch.ran[position]), position)
    else:
        yield _line(batch, position, entry, None)


def lines_as_run(batch: StoredBatch, now: float) -> Iterator[OutputLine]:
    """Run the lines of a batch without faults one by one and yield their results without storing them."""
    due = batch.due(now)
    for position, entry in enumerate(batch.entries):
        yield _line(batch, position, entry, batch.result(position, entry) if position < due else None)


def _line(batch: StoredBatch, position: int, entry: Entry, ran: LineResult | None) -> OutputLine:
    outcome: Outcome = "cancelled" if batch.final == "cancelled" else "expired"
    body, status, error = b"", 0, None
    if ran is not None:
        outcome, body, status, error = "errored", ran.body or b"", ran.status, ran.error
        if error is None:
            outcome, body = "succeeded", batch.body_of(position, ran)
    identity = batch.identity(position)
    return OutputLine(
        entry.custom_id, position, outcome, body, status, error, identity, metadata=entry.metadata
    )


def _damaged(batch: StoredBatch, line: OutputLine, position: int) -> Iterator[OutputLine]:
    faults = batch.ran[position].faults
    if "malformed_lines" in faults:
        damage = "cut" if batch.rng.uniform("torn", batch.id, position) < 0.5 else "garbage"
        yield evolve(line, damage=damage, correct=False)
    elif (
        line.error is None and "swapped_answers" in faults and (other := _other(batch, position)) is not None
    ):
        yield evolve(line, body=batch.body(other), correct=False)
    elif "missing_lines" not in faults:
        yield line
        if line.error is None and "doubled_lines" in faults:
            other = _other(batch, position)
            identity = batch.identity(position + len(batch.entries))
            body = batch.body(position if other is None else other)
            yield evolve(line, body=body, identity=identity, correct=False)
    if "foreign_lines" in faults:
        foreign = batch.rng.identity("foreign", batch.id, position)
        yield evolve(
            line, custom_id=f"{foreign}-0", position=None, identity=foreign, correct=False, metadata=None
        )


def _other(batch: StoredBatch, position: int) -> int | None:
    count = len(batch.ran)
    for step in range(1, count):
        other = (position + step) % count
        if batch.ran[other].error is None:
            return other
    return None


def encode_lines(lines: Iterable[OutputLine], write: Callable[[OutputLine], bytes]) -> list[bytes]:
    """Return the lines as bytes with line breaks, and with their damage.

    Args:
        write: encodes a line as JSON, without its line break.
    """
    return [_damage(write(line), line.damage) + b"\n" for line in lines]


def _damage(data: bytes, damage: str | None) -> bytes:
    if damage == "cut":
        return data[: len(data) // 2]
    return b"\x00\xff upstream connect error" if damage == "garbage" else data


def truncate_download(pieces: list[bytes], fraction: float) -> tuple[bytes, int]:
    """Return the first part of a download, and the number of whole lines in it.

    Args:
        pieces: the lines of the download, with line breaks.
        fraction: from 0 to 1; determines the position of the cut, and whether it is at the end of a line.
    """
    count = int(fraction * len(pieces))
    whole = b"".join(pieces[:count])
    half = pieces[count][: len(pieces[count]) // 2] if pieces and int(fraction * 1000) % 2 else b""
    return whole + half, count
