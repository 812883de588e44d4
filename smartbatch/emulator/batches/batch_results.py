"""The results of a batch: its lines in the order and the state in which they are handed out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve

from smartbatch.emulator.batches.batch import Job
from smartbatch.emulator.batches.batch_records import BatchBackendError, Line

__all__ = ["check_ready", "cut_short", "results", "written"]


def check_ready(job: Job, now: float, keeps: float, outage: float) -> None:
    """Raise ``BatchBackendError`` when the results of a batch cannot be had.

    Args:
        job: the batch.
        now: monotonic seconds.
        keeps: seconds its results are kept.
        outage: seconds they cannot be had after its end, if that is its fault.
    """
    if not job.closed:
        raise BatchBackendError("not_ended", f"Batch {job.id} has not ended yet.")
    if now >= job.ended_at + keeps:
        raise BatchBackendError("gone", f"The results of batch {job.id} are no longer kept.")
    if "results_unavailable" in job.faults and now < job.ended_at + outage:
        raise BatchBackendError("unavailable", "The service is temporarily unavailable.")


def results(job: Job, part: str | None = None) -> list[Line]:
    """Return the lines of a batch that has ended, damaged as its faults say.

    Args:
        job: the batch.
        part: ``succeeded``, ``failed`` for all others, ``all`` or ``None`` for both.
    """
    if job.final == "failed":
        return _all_refused(job) if job.api == "anthropic" else []
    lines = [line for position in range(len(job.entries)) for line in _lines(job, position)]
    if "shuffled" in job.faults:
        random.Random(job.id).shuffle(lines)
    if part in (None, "all"):
        return lines
    return [line for line in lines if (line.outcome == "succeeded") == (part == "succeeded")]


def _all_refused(job: Job) -> list[Line]:
    """Return the lines of a batch that failed its validation where a batch does not fail as a whole."""
    return [
        Line(entry.custom_id, position, "errored", b"", 0, "invalid", job.identity(position), note=entry.note)
        for position, entry in enumerate(job.entries)
    ]


def _lines(job: Job, position: int) -> Iterator[Line]:
    entry = job.entries[position]
    identity = job.identity(position)
    if position >= len(job.ran):
        outcome = "cancelled" if job.final == "cancelled" else "expired"
        yield Line(entry.custom_id, position, outcome, b"", 0, None, identity, note=entry.note)  # type: ignore[arg-type]
        return
    ran = job.ran[position]
    if ran.error is not None:
        body = ran.body or b""
        line = Line(entry.custom_id, position, "errored", body, ran.status, ran.error, identity)
    else:
        line = Line(entry.custom_id, position, "succeeded", job.body(position), 200, None, identity)
    yield from _damaged(job, evolve(line, note=entry.note), position)


def _damaged(job: Job, line: Line, position: int) -> Iterator[Line]:
    faults = job.ran[position].faults
    if "malformed_lines" in faults:
        torn = "cut" if job.rng.die("torn", job.id, position) < 0.5 else "garbage"
        yield evolve(line, torn=torn, true=False)
    elif line.error is None and "swapped_answers" in faults and (other := _other(job, position)) is not None:
        yield evolve(line, body=job.body(other), true=False)
    elif "missing_lines" not in faults:
        yield line
        if line.error is None and "doubled_lines" in faults:
            other = _other(job, position)
            identity = job.identity(position + len(job.entries))
            body = job.body(position if other is None else other)
            yield evolve(line, body=body, identity=identity, true=False)
    if "foreign_lines" in faults:
        stranger = job.rng.identity("stranger", job.id, position)
        yield evolve(line, custom_id=f"{stranger}-0", position=None, identity=stranger, true=False, note=None)


def _other(job: Job, position: int) -> int | None:
    """Return the position of another line that succeeded, the next one if possible."""
    count = len(job.ran)
    for step in range(1, count):
        other = (position + step) % count
        if job.ran[other].error is None:
            return other
    return None


def written(lines: Iterable[Line], write: Callable[[Line], bytes]) -> list[bytes]:
    """Return the lines as bytes with their line ends; spoiled where they are to be.

    Args:
        lines: the lines.
        write: makes a line's JSON, without its end.
    """
    return [_spoiled(write(line), line.torn) + b"\n" for line in lines]


def _spoiled(data: bytes, torn: str | None) -> bytes:
    if torn == "cut":
        return data[: len(data) // 2]
    return b"\x00\xff upstream connect error" if torn == "garbage" else data


def cut_short(pieces: list[bytes], die: float) -> tuple[bytes, int]:
    """Return the begin of a download, and how many whole lines are in it.

    Args:
        pieces: its lines with their ends.
        die: from 0 to 1; where the cut is, and whether it falls on the end of a line.
    """
    count = int(die * len(pieces))
    begin = b"".join(pieces[:count])
    half = pieces[count][: len(pieces[count]) // 2] if pieces and int(die * 1000) % 2 else b""
    return begin + half, count
