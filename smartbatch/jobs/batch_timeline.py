"""The batches of a job on a time line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smartbatch.jobs.records import OPEN_SHARDS, ShardRow
from smartbatch.reports.charts import Span, TimelineRow

WAITING, RUNNING, COLLECTED = "not created yet", "running", "collected"
UNCERTAIN, RESCUED = "creation unknown", "rescued"


def timeline_rows(created_at: float, shards: Iterable[ShardRow], wall: float) -> tuple[TimelineRow, ...]:
    """Return a row for each batch, in the order of planning.

    Args:
        created_at: Unix seconds at which the job was accepted.
        wall: Unix seconds; what goes on lasts until then.
    """
    return tuple(
        TimelineRow(f"batch {shard.no}", tuple(_spans(shard, created_at, wall)), _note(shard))
        for shard in shards
    )


def _spans(shard: ShardRow, created_at: float, wall: float) -> Iterator[Span]:
    """Yield what went on, one after the other; what is not recorded is left out."""
    ended = shard.ended_at or shard.died_at
    last = shard.settled_at or shard.died_at or (wall if shard.state in OPEN_SHARDS else ended) or wall
    sent = shard.submitted_at
    if sent is None:
        yield Span(WAITING, created_at, last)
        return
    yield Span(WAITING, created_at, max(created_at, sent))
    if shard.uncertain_since is not None and shard.batch_id is None:
        yield Span(UNCERTAIN, shard.uncertain_since, max(shard.uncertain_since, last))
        return
    until = last if ended is None else ended
    stopped = shard.remote.cancel_sent_at
    if stopped is None or not sent <= stopped <= until:
        yield Span(RUNNING, sent, max(sent, until))
    else:
        yield Span(RUNNING, sent, stopped)
        yield Span(RESCUED, stopped, until)
    if ended is not None and last > ended:
        yield Span(COLLECTED, ended, last)


def _note(shard: ShardRow) -> str:
    return f"{shard.state.value}, {shard.size:,} requests" + (", cancelled" if shard.cancelled else "")
