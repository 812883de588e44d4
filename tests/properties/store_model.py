"""What a store of jobs says, as a plain model; ``test_store_machine.py`` compares the two."""

from __future__ import annotations

from attrs import define, field

from smartbatch.jobs.records import ItemState, JobState, NewResult
from smartbatch.jobs.shard_records import TRANSITIONS, ShardRow, ShardState

OWN_VERBS = {ShardState.SETTLED, ShardState.DEAD}
UNRESOLVED = {ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.PROVISIONAL}
STRAIGHT = {
    ShardState.PLANNED: ShardState.READY,
    ShardState.READY: ShardState.SUBMITTING,
    ShardState.SUBMITTING: ShardState.SUBMITTED,
    ShardState.SUBMITTED: ShardState.ENDED,
    ShardState.ENDED: ShardState.INGESTING,
}
OPEN, REALTIME, IN_FLIGHT, SHARDED, FINAL, FOLLOWING = ItemState


@define
class Item:
    state: ItemState
    tries: int = 0
    shard: str | None = None
    verdict: NewResult | None = None
    result: NewResult | None = None


@define
class Shard:
    row: ShardRow
    items: tuple[int, ...]
    old: list[ShardRow] = field(factory=list)


@define
class Job:
    id: str
    scope: str
    items: list[Item]
    shards: dict[str, Shard] = field(factory=dict)
    order: list[int] = field(factory=list)
    owner: int | None = None
    epoch: int = 0
    alive: bool = True
    state: JobState = JobState.ACTIVE
    note: str | None = None
    cancel: bool = False
    finished_at: float | None = None
    maybe_billed: int = 0
    told: set[str] = field(factory=set)
    paid_for_nothing: list[NewResult] = field(factory=list)

    def those(self, state: ItemState) -> list[int]:
        return [ix for ix, item in enumerate(self.items) if item.state is state]

    def end(self, ix: int, result: NewResult, at: float) -> str:
        item = self.items[ix]
        if item.result is not None:
            return "" if item.result.digest == result.digest else "doubled"
        item.state, item.result = FINAL, result
        self.order.append(ix)
        if len(self.order) == len(self.items):
            self.state, self.note, self.finished_at = JobState.DONE, None, at
        return "final"


def has_open(job: Job) -> bool:
    return bool(job.those(OPEN))


def has_taken(job: Job) -> bool:
    return len(job.those(OPEN)) < len(job.items)


def has_direct(job: Job) -> bool:
    return bool(job.those(REALTIME))


def has_asking(job: Job) -> bool:
    return bool(job.those(IN_FLIGHT))


def is_lost(job: Job) -> bool:
    return job.epoch > 1 or job.owner is None


def has_steps(shard: Shard) -> bool:
    return bool(TRANSITIONS[shard.row.state] - OWN_VERBS)


def is_on_its_way(shard: Shard) -> bool:
    return shard.row.state in STRAIGHT


def has_moved(shard: Shard) -> bool:
    return bool(shard.old) and shard.old[-1].state is not shard.row.state


def can_die(shard: Shard) -> bool:
    return ShardState.DEAD in TRANSITIONS[shard.row.state]


def takes_results(shard: Shard) -> bool:
    return shard.row.state in (ShardState.INGESTING, ShardState.DEAD)


def is_ingesting(shard: Shard) -> bool:
    return shard.row.state is ShardState.INGESTING
