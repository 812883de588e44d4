"""A walk through the store of jobs: two processes do what its verbs allow, and all that it shows is noted."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Callable
from typing import Any

from attrs import evolve, fields, has
from jobs.decisions import decision
from jobs.stores import new_job

from smartbatch.core.routing.outcome import ListDecision, Measured
from smartbatch.errors import ErrorKind, JobNotFound, ProviderError, StoreError
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import (
    IncidentRow,
    ItemName,
    ItemState,
    JobLease,
    JobNote,
    JobPolicy,
    JobSelection,
    JobState,
    LeaseLost,
    NewItem,
    NewResult,
    OverJobBudget,
    StoredCounts,
)
from smartbatch.jobs.shard_records import (
    OPEN_SHARDS,
    TRANSITIONS,
    NewShard,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.jobs.summary_records import Failures, Spending
from smartbatch.types import Route, Usage
from tests.core.walks.record import Record

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
MODELS = ("openai:m", "gemini:n")
ERRORS = tuple(
    encode_error(ProviderError(text, kind=kind))
    for text, kind in (("row 17 broke", ErrorKind.SERVER_ERROR), ("too long", ErrorKind.CLIENT_ERROR))
)
OWN_VERBS = {ShardState.SETTLED, ShardState.DEAD, ShardState.SUBMITTING}
START = 3_600_000_000.0


class _Walk:
    def __init__(self, rng: random.Random, record: Record, folder: str) -> None:
        self._rng, self._record, self._folder = rng, record, folder
        self._now = START
        self._number = 0
        self._jobs: list[str] = []
        self._leases: dict[str, tuple[SqlStore, JobLease]] = {}
        self._counts: list[Any] = []
        self._stores = [self._opened(), self._opened()]
        self._store = self._stores[0]

    def _opened(self) -> SqlStore:
        return open_store(
            f"{self._folder}/jobs.db",
            wall=lambda: self._now,
            rng=random.Random(self._rng.random()),
            counted=self._counted,
        )

    def _counted(self, job_id: str, counts: StoredCounts) -> None:
        self._counts.append((job_id, counts))

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def step(self) -> None:
        self._now += self._rng.choice((0.0, 0.25, 1.0, 30.0, 70.0, 4000.0))
        self._store = self._rng.choice(self._stores)
        verb = self._rng.choice(VERBS)
        try:
            self._note(verb.__name__, verb(self))
        except (StoreError, LeaseLost, OverJobBudget, JobNotFound, ValueError, IndexError) as error:
            self._note(verb.__name__, type(error).__name__)
        for job_id, counts in self._counts:
            self._note("counts", job_id, counts)
        self._counts.clear()

    def _note(self, what: str, *found: Any) -> None:
        self._record.note(what.replace("_", " "), *map(_shown, found))

    # -- what is done ------------------------------------------------------------------------------------

    def accept(self) -> Any:
        rng, count = self._rng, self._rng.choice((0, 1, 4, 8))
        items: list[NewItem] = []
        for ix in range(count):
            alike = [one for one in range(ix) if items[one].leader is None]
            leader = rng.choice(alike) if alike and rng.random() < 0.3 else None
            name = rng.choice((None, f"row {ix}"))
            items.append(NewItem(name, b"ask %d" % ix, 90 + ix, 9 + ix, rng.random() < 0.25, leader))
        policy = JobPolicy(budget=rng.choice((None, None, 3.0)), route=rng.choice((None, Route.BATCH)))
        job = new_job(
            self._new(),
            key=rng.choice((None, None, "key", "klé")),
            model=rng.choice(MODELS),
            scope=rng.choice(("one", "two")),
            policy=policy,
            created_at=self._now,
        )
        made = decision(rng.randrange(3, 90)) if rng.random() < 0.4 else None
        found, is_new = self._store.jobs.accept(job, items, decision=made, digest=lambda: b"digest")
        if is_new:
            self._jobs.append(job.id)
        return found, is_new

    def accept_named(self) -> Any:
        names = [(f"name {self._rng.randrange(5)}", "same"), (f"name {5 + self._rng.randrange(5)}", "same")]
        job = new_job(self._new(), created_at=self._now)
        items = [NewItem(name, b"ask", 10, 5, True, name=ItemName(name, digest)) for name, digest in names]
        row, places = self._store.jobs.accept_named(job, items)
        if row is not None:
            self._jobs.append(row.id)
        return row, places

    def claim(self) -> Any:
        for job_id in self._rng.sample(self._jobs, min(3, len(self._jobs))):
            unknown = self._rng.choice((None, ERRORS[0]))
            lease = self._store.leases.claim(job_id, self._rng.choice((20.0, 9000.0)), unknown=unknown)
            if lease is not None:
                self._leases[job_id] = (self._store, lease)
            self._note("claimed", lease)
        return [job.id for job in self._store.leases.claimable()]

    def renew(self) -> Any:
        return self._store.leases.renew([lease for _, lease in self._leases.values()], 50.0)

    def release(self) -> Any:
        store, lease = self._led()
        store.leases.release(lease)

    def note(self) -> Any:
        store, lease = self._led()
        store.jobs.note(lease, self._rng.choice((None, "waits")), hold=self._rng.random() < 0.3)

    def unhold(self) -> Any:
        self._store.jobs.unhold(self._job())

    def reserve(self) -> Any:
        store, lease = self._led()
        store.jobs.reserve(lease, self._rng.choice((0.5, 2.0)))

    def cancel_one(self) -> Any:
        chosen = JobSelection(ids=(self._job(),))
        return self._store.actions.cancel(chosen, "ada")

    def act(self) -> Any:
        rng, acts = self._rng, self._store.actions
        state = rng.choice((None, "active", "held", "done"))
        chosen = JobSelection(
            ids=tuple(rng.sample(self._jobs, min(2, len(self._jobs)))) if state is None else (),
            state=state,
            model=rng.choice((None, *MODELS)) if state else rng.choice(MODELS),
        )
        one = rng.choice((acts.resume, acts.resume, acts.cancel))
        found = one(chosen, "bob") if rng.random() < 0.5 else None
        return found, acts.finished(chosen), acts.with_failed_rows(chosen)

    def change_policy(self) -> Any:
        budget = self._rng.choice((2.0, 5.0))
        change = lambda policy: evolve(policy, budget=budget)  # noqa: E731
        return self._store.actions.change_policy(self._job(), change, "set_budget", f"{budget}", "ada")

    def drop_unsent(self) -> Any:
        store, lease = self._led()
        return store.items.drop_unsent(lease, ERRORS[1], at=self._now) if self._rng.random() < 0.4 else None

    def forget(self) -> Any:
        job_id = self._job()
        self._store.jobs.forget(job_id, "ada", keep_decision=self._rng.random() < 0.5)
        self._jobs.remove(job_id)
        self._leases.pop(job_id, None)

    def plan(self) -> Any:
        of_each = [(*each, each[0].items.in_state(job_id, limit=4)) for job_id, each in self._leases.items()]
        store, lease, found = self._rng.choice([each for each in of_each if each[2]])
        count = len(store.shards.of_job(lease.job_id))
        new = NewShard(
            f"shard-{lease.job_id}-{count}",
            f"{self._rng.getrandbits(64):016x}",
            tuple(item.ix for item in found),
            bytes=100,
            tokens=10,
            due_at=self._now,
            reserved=self._rng.choice((0.0, 1.0)),
        )
        return store.shards.plan(lease, new)

    def move(self) -> Any:
        rng = self._rng
        store, lease, shard = self._shard()
        ways = [to for to in ShardState if to in TRANSITIONS[shard.state] - OWN_VERBS]
        if shard.state is ShardState.READY and rng.random() < 0.8:
            return store.shards.mark_submitting(lease, shard, exclusive=rng.random() < 0.5)
        if ShardState.SUBMITTED in ways and rng.random() < 0.6:
            ways = [ShardState.SUBMITTED]
        to = rng.choice(ways)
        changes = {"batch_id": f"batch-{shard.id}"} if to is ShardState.SUBMITTED else {}
        return store.shards.advance(lease, shard, to, note=rng.choice((None, "so")), **changes)

    def discard(self) -> Any:
        store, lease, shard = self._shard()
        if ShardState.DEAD not in TRANSITIONS[shard.state] or self._rng.random() < 0.6:
            return None
        if self._rng.random() < 0.3:
            return store.shards.fail(lease, shard, ERRORS[0], note="refused", at=self._now)
        to = self._rng.choice((ItemState.OPEN, ItemState.REALTIME))
        tried, billed = self._rng.random() < 0.5, self._rng.random() < 0.5
        return store.shards.discard(
            lease, shard, items=to, tried=tried, note="gone", at=self._now, maybe_billed=billed
        )

    def ingest(self) -> Any:
        store, lease, shard = self._shard(ShardState.INGESTING)
        at = list(store.shards.measures(shard.id))
        found = store.shards.items_at(shard.id, at)
        results = [self._result(item.ix, Route.BATCH) for item in found.values() if self._rng.random() < 0.8]
        return store.shards.ingest(lease, shard, results, at=self._now)

    def settle(self) -> Any:
        store, lease, shard = self._shard(ShardState.INGESTING)
        unsettled = store.shards.unsettled(shard.id)
        self._note("unsettled", unsettled)
        ways: tuple[list[int], list[int], list[int]] = ([], [], [])
        for item in unsettled:
            self._rng.choice(ways).append(item.ix)
        finals = [NewResult(ix, "failed", ERRORS[1], b"settled") for ix in ways[2]]
        return store.shards.settle(
            lease, shard, opened=ways[0], realtime=ways[1], finals=finals, at=self._now, cleaned_up=True
        )

    def answer(self) -> Any:
        store, lease = self._led()
        asked = store.items.claim_realtime(lease, self._rng.choice((1, 4)))
        self._note("asked", asked)
        going = [item.ix for item in asked if self._rng.random() < 0.9]
        results = [evolve(self._result(ix, Route.INDIVIDUAL), in_realtime=True) for ix in going]
        note = self._rng.choice((None, None, JobNote("waits"), JobNote(None), JobNote("stop", hold=True)))
        stored = store.items.answer(
            lease, results, at=self._now, freed=0.1, note=note, claim=self._rng.choice((0, 1))
        )
        store.leases.report_counts(lease.job_id, stored.counts)
        return stored

    def reopen(self) -> Any:
        job_id, acts = self._job(), self._store.actions
        failed = acts.failed(
            job_id, rows=self._rng.choice((None, {0, 2})), after=-1, limit=self._rng.choice((2, 1000))
        )
        self._note("failed", failed)
        billed = [row.ix for row in failed if self._rng.random() < 0.3]
        return acts.reopen(job_id, dict.fromkeys((row.ix for row in failed), None), billed, "eve")

    def incident(self) -> Any:
        store, lease = self._led()
        row = IncidentRow(
            self._rng.choice("xy"), lease.job_id, None, "so", self._rng.choice((None, 0.5)), 7.0
        )
        return store.facts.add_incident(lease, row)

    def facts(self) -> Any:
        facts, name = self._store.facts, self._rng.choice(("a", "é"))
        if self._rng.random() < 0.5:
            facts.remember(name, self._rng.randrange(9))
        seen = [(n, float(n), self._now) for n in range(self._rng.randrange(4))]
        facts.observe_turnarounds(self._rng.choice(MODELS), seen)
        return facts.recall(name), facts.turnarounds(MODELS[0], limit=3), facts.topics(limit=5)

    def control(self) -> Any:
        controls, name = self._store.controls, self._rng.choice(MODELS)
        match self._rng.randrange(3):
            case 0:
                return controls.pause(name, self._rng.choice((None, "dear")), "ada")
            case 1:
                return controls.resume(name, "ada")
        return controls.set_limit(name, self._rng.choice((None, 5.0)), self._rng.choice((None, 1e4)), "ada")

    def summarise(self) -> Any:
        rng = self._rng
        measured = rng.choice((None, Measured(seconds=9.5, cost=0.25, individual_cost=0.5, batch_cost=0.2)))
        lists = [ListDecision(self._now, name, decision(7), measured) for name in rng.sample(MODELS, 1)]
        failures = [Failures(rng.choice("ab"), rng.choice("mn"), MODELS[0], 2, None, "r") for _ in range(3)]
        spent = [Spending(MODELS[1], "flex", 3, 1, 0.5, 1.0, 1, 20, 30)]
        self._store.summaries.write(lists, failures, spent, at=self._now, part=rng.randrange(20))
        lists[0].measured = Measured(seconds=1.0, cost=None)
        self._store.summaries.write(lists, (), (), at=self._now, part=0)

    def _result(self, ix: int, route: Route) -> NewResult:
        rng = self._rng
        outcome = rng.choice(("succeeded", "succeeded", "failed", "cancelled", "again", "unrun"))
        body = b"answer %d" % rng.randrange(3) if outcome == "succeeded" else rng.choice(ERRORS)
        cost = rng.choice((None, 0.0, 0.25))
        usage = Usage(rng.randrange(9), rng.randrange(9))
        return NewResult(ix, outcome, body, (outcome.encode() + body)[-16:], usage, cost, 0.5, route)

    # -- what is seen ------------------------------------------------------------------------------------

    def look(self) -> None:
        store, rng = self._store, self._rng
        note, jobs, items, shards, overview = (
            self._note,
            store.jobs,
            store.items,
            store.shards,
            store.overview,
        )
        note("jobs", jobs.latest(limit=3), jobs.latest(unfinished=True), jobs.get("key"), jobs.get("klé"))
        for job in jobs.latest():
            note("items", [items.count(job.id, state) for state in ItemState])
            note("results", items.results(job.id, after=rng.choice((-1, 1)), limit=rng.choice((2, 1000))))
            note("fresh", items.fresh(job.id, after=rng.choice((0, 1)), limit=rng.choice((2, 1000))))
            note("bodies", items.bodies(job.id, [0, 2]))
            note("incidents", store.facts.incidents(job.id), overview.incidents(job.id, limit=1))
            note("shards", shards.of_job(job.id), shards.of_job(job.id, states=OPEN_SHARDS))
            note("decision", store.summaries.decision(job.id))
            note(
                "earlier",
                store.actions.earlier_results(job.id, after=rng.choice(((-1, 0), (0, 9))), limit=1000),
            )
            note("forgotten", store.controls.latest(job_id=job.id, limit=100))
        every = tuple(ShardState)
        note(
            "scope",
            shards.in_scope("one", states=every),
            shards.claimed_batches("one", ["batch-shard-job-1-0"]),
        )
        lines = overview.page(JobFilter(), limit=4)
        note("page", lines, overview.page(JobFilter(unfinished=True), before=rng.choice((None, 4)), limit=50))
        note(
            "page",
            overview.page(JobFilter(state=JobState.DONE), limit=50),
            overview.page(JobFilter(name="key"), limit=50),
        )
        note("page", overview.page(JobFilter(model=MODELS[0], unfinished=rng.random() < 0.5), limit=50))
        note("waiting", overview.waiting(limit=2), overview.forecasts(lines), overview.shards(lines))
        note("count", [overview.count(state) for state in JobState], overview.unknown_creations(limit=20))
        note("failed", [overview.failed(line, first=rng.choice((0, 1)), limit=3) for line in lines])
        note("failed", [overview.failed(line, cancelled=False, limit=50) for line in lines])
        note("controls", store.controls.controls(), store.controls.last(), store.controls.after(2, limit=3))
        note("acts", store.controls.latest(before=rng.choice((None, 5)), limit=3))
        summaries = store.summaries
        note(
            "decisions",
            summaries.decisions(limit=2),
            summaries.decisions(before=3, limit=50),
            summaries.numbered(1),
        )
        note("kept", summaries.of_deleted_jobs("k"))
        note("groups", summaries.error_groups(limit=3), summaries.spending(self._now - 5000.0))

    # -- what is at hand ---------------------------------------------------------------------------------

    def _new(self) -> str:
        self._number += 1
        return f"job-{self._number}"

    def _job(self) -> str:
        return self._rng.choice(self._jobs) if self._jobs else "none"

    def _led(self) -> tuple[SqlStore, JobLease]:
        if not self._leases:
            raise ValueError("nothing is owned")
        return self._leases[self._rng.choice(sorted(self._leases))]

    def _shard(self, *states: ShardState) -> tuple[SqlStore, JobLease, ShardRow]:
        for job_id in self._rng.sample(sorted(self._leases), len(self._leases)):
            store, lease = self._leases[job_id]
            if found := store.shards.of_job(job_id, states=states or tuple(OPEN_SHARDS)):
                return store, lease, self._rng.choice(found)
        raise ValueError("no such shard")


VERBS: list[Callable[[_Walk], Any]] = [
    *[_Walk.accept, _Walk.claim, _Walk.plan, _Walk.ingest, _Walk.answer, _Walk.settle] * 3,
    *[_Walk.move] * 12,
    *[_Walk.accept_named, _Walk.renew, _Walk.release, _Walk.note, _Walk.unhold, _Walk.reserve],
    *[_Walk.cancel_one, _Walk.act, _Walk.change_policy, _Walk.drop_unsent, _Walk.forget, _Walk.discard],
    *[_Walk.reopen, _Walk.reopen, _Walk.incident, _Walk.facts, _Walk.control, _Walk.summarise],
]


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if not has(type(value)):
        return value
    real = [field.name for field in fields(type(value)) if "float" in str(field.type)]
    same: dict[str, Any] = {
        name: float(found) for name in real if isinstance(found := getattr(value, name), int)
    }
    if getattr(value, "owner", None) is not None:
        same["owner"] = "somebody"
    if getattr(value, "decision", None) is not None:
        same["decision"] = value.decision.reason
    return evolve(value, **same)


def stores(rng: random.Random, record: Record) -> None:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        contextlib.closing(_Walk(rng, record, folder)) as walk,
    ):
        record.epoch = START
        for step in range(240):
            walk.step()
            if step % 15 == 14:
                walk.look()


WALKS = {"stores": (stores, 36)}
