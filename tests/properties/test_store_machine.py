"""The store of jobs under any order of its verbs, of deaths and take-overs."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from jobs.stores import Bench, new_items
from properties.store_model import (
    IN_FLIGHT,
    OPEN,
    OWN_VERBS,
    REALTIME,
    SHARDED,
    STRAIGHT,
    UNRESOLVED,
    Item,
    Job,
    Shard,
    can_die,
    has_asking,
    has_direct,
    has_moved,
    has_open,
    has_steps,
    has_taken,
    is_ingesting,
    is_lost,
    is_on_its_way,
    takes_results,
)

from smartbatch.errors import StoreError
from smartbatch.jobs.records import (
    IncidentRow,
    ItemState,
    JobLease,
    JobSelection,
    JobState,
    LeaseLost,
    NewResult,
)
from smartbatch.jobs.shard_records import OPEN_SHARDS, TRANSITIONS, ShardState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store import jobs as jobs_module
from smartbatch.types import Usage
from tests.levels import sampled
from tests.realtime.scenes import eventually

MEMORY = Path("/dev/shm")  # where a sync costs nothing; what a disk keeps is tested elsewhere
picks = st.integers(0, 2**32)


class StoreMachine(RuleBasedStateMachine):
    kind = "sqlite"
    address = ""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        jobs_module.PAGE_ITEMS = 4
        self.rng = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="sbmachine", dir=MEMORY if MEMORY.is_dir() else None))
        address = str(self.folder / "jobs.db") if self.kind == "sqlite" else self.address
        self.bench = Bench(self.kind, address, self.folder)
        self.reader = self.bench.open()
        self.stores: list[SqlStore] = [self.bench.open(), self.bench.open()]
        self.jobs: dict[str, Job] = {}
        self.keys: dict[str, str] = {}
        self.now = 0.0
        for who in (0, 1):
            self.accept(who, 7 + who, direct=who == 1, key=None, scope="scope-1")
            job = list(self.jobs.values())[-1]
            assert self.stores[who].leases.claim(job.id, 1e6) == JobLease(job.id, 1)
            job.owner, job.epoch = who, 1

    def teardown(self) -> None:
        jobs_module.PAGE_ITEMS = 5_000
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- choosing ------------------------------------------------------------------------------------------

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def owned(
        self, pick: int, wanted: Callable[[Job], Any] = lambda job: True
    ) -> tuple[Job, SqlStore, JobLease] | None:
        found = [job for job in self.jobs.values() if job.owner is not None and job.alive and wanted(job)]
        if not found:
            return None
        job = found[pick % len(found)]
        assert job.owner is not None
        return job, self.stores[job.owner], JobLease(job.id, job.epoch)

    def owned_shard(
        self, pick: int, wanted: Callable[[Shard], Any]
    ) -> tuple[Job, SqlStore, JobLease, Shard] | None:
        found = self.owned(pick, lambda job: any(wanted(shard) for shard in job.shards.values()))
        if found is None:
            return None
        shards = [shard for shard in found[0].shards.values() if wanted(shard)]
        return (*found, shards[pick // 7 % len(shards)])

    def some(self, values: Any, least: int = 0) -> list[Any]:
        values = list(values)
        return self.rng.sample(values, self.rng.randint(min(least, len(values)), len(values)))

    def made(self, ix: int, words: tuple[str, ...]) -> NewResult:
        word = self.rng.choice(words)
        body = b"%s %d" % (word.encode(), self.rng.randrange(3))
        cost = self.rng.choice([None, 0.0, 0.25, 0.5])
        usage = Usage(self.rng.randrange(9), self.rng.randrange(9))
        real = None if cost is None else self.rng.choice([None, 2 * cost])
        return NewResult(ix, word, body, body.ljust(16)[:16], usage, cost, real)

    @precondition(lambda self: self.jobs)
    @rule(
        what=st.sampled_from(
            ("accept_breaks_off", "forget", "request_cancel", "unhold", "die", "die_in_the_middle_of_a_write")
        ),
        who=st.integers(0, 1),
        pick=picks,
    )
    def incident(self, what: str, who: int, pick: int) -> None:
        getattr(self, what)(who, pick)

    @precondition(lambda self: self.owned(0))
    @rule(
        what=st.sampled_from(("come_second", "note", "plan_what_is_not_open", "release", "tell_an_incident")),
        pick=picks,
    )
    def small_step(self, what: str, pick: int) -> None:
        getattr(self, what)(pick)

    @precondition(lambda self: self.owned(0))
    @rule(seed=st.integers(0, 2**32))
    def work(self, seed: int) -> None:
        self.rng.seed(seed)
        verbs = (self.plan, self.expedite, self.advance, self.ingest, self.ingest, self.settle, self.answer)
        for _ in range(6):
            self.rng.choice(verbs)(self.rng.getrandbits(32))
            self.claim_realtime(self.rng.getrandbits(32), self.rng.randint(1, 5))

    # -- jobs ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(
        who=st.integers(0, 1),
        count=st.integers(0, 11),
        direct=st.booleans(),
        key=st.sampled_from([None, None, "a", "b"]),
        scope=st.sampled_from(["scope-1", "scope-2"]),
    )
    def accept(self, who: int, count: int, direct: bool, key: str | None, scope: str) -> None:
        at = self.tick()
        new = self.bench.job(key=key, scope=scope, created_at=at)
        row, is_new = self.stores[who].jobs.accept(new, new_items(count, realtime=direct))
        assert is_new == (key is None or key not in self.keys)
        if not is_new:
            assert row.id == self.keys[str(key)]
            return
        job = Job(new.id, scope, [Item(REALTIME if direct else OPEN) for _ in range(count)])
        if not count:
            job.state, job.finished_at = JobState.DONE, at
        self.jobs[new.id] = job
        if key is not None:
            self.keys[key] = new.id

    def accept_breaks_off(self, who: int, pick: int) -> None:
        def items() -> Any:
            yield from new_items(pick % 11)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.stores[who].jobs.accept(self.bench.job(key="broken"), items())

    def forget(self, who: int, pick: int) -> None:
        job = list(self.jobs.values())[pick % len(self.jobs)]
        if job.state is not JobState.DONE:
            with pytest.raises(StoreError):
                self.stores[who].jobs.forget(job.id)
            return
        self.stores[who].jobs.forget(job.id)
        del self.jobs[job.id]
        self.keys = {key: job_id for key, job_id in self.keys.items() if job_id != job.id}

    def request_cancel(self, who: int, pick: int) -> None:
        job = list(self.jobs.values())[pick % len(self.jobs)]
        self.stores[who].actions.cancel(JobSelection(ids=(job.id,)), "ada")
        job.cancel |= job.state is not JobState.DONE

    def note(self, pick: int) -> None:
        if found := self.owned(pick):
            job, store, lease = found
            hold, note = self.rng.random() < 0.5, self.rng.choice([None, "wait"])
            store.jobs.note(lease, note, hold=hold)
            if not hold:
                job.note = note
            elif job.state is not JobState.DONE:
                job.note, job.state = note, JobState.HELD

    def unhold(self, who: int, pick: int) -> None:
        job = list(self.jobs.values())[pick % len(self.jobs)]
        self.stores[who].jobs.unhold(job.id)
        if job.state is JobState.HELD:
            job.state, job.note = JobState.ACTIVE, None

    # -- ownership -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(who=st.integers(0, 1), pick=picks, leases_over=st.booleans(), unknown=st.sampled_from([None, b"?"]))
    def claim(self, who: int, pick: int, leases_over: bool, unknown: bytes | None) -> None:
        job = list(self.jobs.values())[pick % len(self.jobs)]
        if leases_over:
            self.bench.let_leases_run_out()
        claim = partial(self.stores[who].leases.claim, job.id, 1e6, unknown=unknown)
        # a lease just given still runs; those given before are over by the store's clock
        free = job.owner is None or not job.alive or (leases_over and job.owner != who)
        lease = eventually(claim) if free else claim()
        assert (lease is not None) == free, (job.owner, job.alive, leases_over, who)
        if lease is None:
            if leases_over and job.owner is not None and job.alive:
                self.stores[job.owner].leases.renew([JobLease(job.id, job.epoch)], 1e6)
            self.renew_all()
            return
        job.owner, job.alive = who, True
        job.epoch += 1
        assert lease == JobLease(job.id, job.epoch)
        self.renew_all()
        asked = job.those(IN_FLIGHT)
        job.maybe_billed += bool(asked)
        for ix in asked:
            job.items[ix].tries += 1
            job.items[ix].state = REALTIME
            if unknown is not None:
                job.end(ix, NewResult(ix, "failed", unknown), job_time := self.bench.clock.wall())
                if job.state is JobState.DONE and job.finished_at == job_time:
                    job.finished_at = None  # by the store's clock

    def renew_all(self) -> None:
        for who, store in enumerate(self.stores):
            mine = [JobLease(j.id, j.epoch) for j in self.jobs.values() if j.owner == who and j.alive]
            assert {lease.job_id for lease in store.leases.renew(mine, 1e6)} == {
                lease.job_id for lease in mine
            }

    def release(self, pick: int) -> None:
        if found := self.owned(pick):
            job, store, lease = found
            store.leases.release(lease)
            job.owner = None

    def die(self, who: int, pick: int = 0) -> None:
        self.stores[who].abandon()
        self.stores[who] = self.bench.open()
        for job in self.jobs.values():
            if job.owner == who:
                job.alive = False

    def die_in_the_middle_of_a_write(self, who: int, pick: int) -> None:
        statements = (
            "UPDATE item SET state = 4",
            "UPDATE shard SET state = 'dead'",
            "DELETE FROM result",
            "UPDATE job SET epoch = 99, owner = 'me', state = 'done'",
        )
        with contextlib.suppress(ConnectionError), self.bench.writing(statements[pick % 4]):
            raise ConnectionError("the process died before the commit")
        self.die(who)

    @precondition(lambda self: any(is_lost(job) for job in self.jobs.values()))
    @rule(pick=picks)
    def write_with_a_lease_that_is_lost(self, pick: int) -> None:
        jobs = [job for job in self.jobs.values() if is_lost(job)]
        job = jobs[pick % len(jobs)]
        lost = JobLease(job.id, job.epoch if job.owner is None else job.epoch - 1)
        store = self.stores[pick % 2]
        verbs: list[Callable[[], Any]] = [
            lambda: store.jobs.note(lost, "lost"),
            lambda: store.items.claim_realtime(lost, 5),
            lambda: store.items.drop_unsent(lost, b"", at=0.0),
            lambda: store.shards.plan(lost, self.bench.shard(0)),
        ]
        verbs += [
            partial(store.shards.advance, lost, s.row, s.row.state, tries=9) for s in job.shards.values()
        ]
        with pytest.raises(LeaseLost):
            verbs[pick % len(verbs)]()
        assert store.leases.renew([lost], 60) == []
        store.leases.release(lost)

    # -- shards --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.owned(0, has_open))
    @rule(pick=picks)
    def plan(self, pick: int) -> None:
        if found := self.owned(pick, has_open):
            job, store, lease = found
            items = tuple(self.some(job.those(OPEN), least=1))
            row = store.shards.plan(lease, self.bench.shard(*items))
            assert (row.no, row.size, row.state) == (len(job.shards) + 1, len(items), ShardState.PLANNED)
            job.shards[row.id] = Shard(row, items)
            for ix in items:
                job.items[ix].state, job.items[ix].shard = SHARDED, row.id

    def plan_what_is_not_open(self, pick: int) -> None:
        if found := self.owned(pick, has_taken):
            job, store, lease = found
            taken = [ix for ix, item in enumerate(job.items) if item.state is not OPEN]
            with pytest.raises(LeaseLost):
                store.shards.plan(
                    lease, self.bench.shard(*self.some(job.those(OPEN)), self.rng.choice(taken))
                )

    @precondition(lambda self: self.owned_shard(0, has_steps))
    @rule(pick=picks)
    def advance(self, pick: int) -> None:
        if (found := self.owned_shard(pick, has_steps)) is None:
            return
        job, store, lease, shard = found
        to = self.rng.choice(sorted(TRANSITIONS[shard.row.state] - OWN_VERBS, key=lambda s: s.value))
        if shard.row.state is ShardState.READY and to is ShardState.SUBMITTING:
            exclusive = self.rng.random() < 0.5
            others = {
                other.row.state
                for any_job in self.jobs.values()
                for other in any_job.shards.values()
                if any_job.scope == job.scope and other.row.id != shard.row.id
            }
            row = store.shards.mark_submitting(lease, shard.row, exclusive=exclusive, tries=pick % 5)
            assert (row is None) == bool(exclusive and others & UNRESOLVED)
            if row is None:
                return
        else:
            row = store.shards.advance(lease, shard.row, to, tries=pick % 5, note="n")
        expected = evolve(shard.row, state=to, tries=pick % 5)
        assert row == (expected if to is ShardState.SUBMITTING else evolve(expected, note="n"))
        shard.old.append(shard.row)
        shard.row = row

    @precondition(lambda self: self.owned_shard(0, is_on_its_way))
    @rule(pick=picks)
    def expedite(self, pick: int) -> None:
        if (found := self.owned_shard(pick, is_on_its_way)) is None:
            return
        _, store, lease, shard = found
        while (to := STRAIGHT.get(shard.row.state)) is not None:
            shard.old.append(shard.row)
            if to is ShardState.SUBMITTING:
                row = store.shards.mark_submitting(lease, shard.row, exclusive=False)
                assert row is not None
                shard.row = row
            else:
                shard.row = store.shards.advance(lease, shard.row, to)

    def come_second(self, pick: int) -> None:
        found = self.owned_shard(pick, has_moved)
        if found is not None:
            _, store, lease, shard = found
            with pytest.raises(LeaseLost):
                store.shards.advance(lease, shard.old[-1], shard.old[-1].state, tries=3)

    @precondition(lambda self: self.owned_shard(0, can_die))
    @rule(pick=picks, tried=st.booleans(), to=st.sampled_from([OPEN, REALTIME]), fail=st.booleans())
    def discard(self, pick: int, tried: bool, to: ItemState, fail: bool) -> None:
        if (found := self.owned_shard(pick, can_die)) is None:
            return
        job, store, lease, shard = found
        at = self.tick()
        if fail:
            row = store.shards.fail(lease, shard.row, b"refused", note="no", at=at)
        else:
            row = store.shards.discard(lease, shard.row, items=to, tried=tried, note="no", at=at)
        remote = shard.row.remote
        if not fail and to is REALTIME and remote.rescue is None:
            remote = evolve(remote, rescue="no")
        assert row == evolve(shard.row, state=ShardState.DEAD, note="no", died_at=at, remote=remote)
        for ix in sorted(shard.items):
            item = job.items[ix]
            if item.state is not SHARDED or item.shard != row.id:
                continue
            if fail:
                job.end(ix, NewResult(ix, "failed", b"refused", cost=0.0), at)
            else:
                item.state, item.shard = to, None
                item.tries += tried
        shard.old.append(shard.row)
        shard.row = row

    # -- results -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.owned_shard(0, takes_results))
    @rule(pick=picks)
    def ingest(self, pick: int) -> None:
        found = self.owned_shard(pick, is_ingesting if self.rng.random() < 0.8 else takes_results)
        found = found or self.owned_shard(pick, takes_results)
        if found is None:
            return
        job, store, lease, shard = found
        words = ("succeeded", "succeeded", "failed", "cancelled", "again", "unrun")
        lines = [self.made(ix, words) for ix in self.some(shard.items)]
        lines += self.some(lines) + [self.made(ix, words) for ix in self.some(shard.items)][:2]
        self.rng.shuffle(lines)
        others = sorted(set(range(len(job.items) + 1)) - set(shard.items))
        if self.rng.random() < 0.1:
            with pytest.raises(ValueError, match="not in shard"):
                store.shards.ingest(
                    lease, shard.row, [*lines, self.made(self.rng.choice(others), words)], at=0.0
                )
            return
        at = self.tick()
        told = store.shards.ingest(lease, shard.row, lines, at=at)
        final, doubled = [], []
        for line in (line for line in lines if line.final):
            word = job.end(line.ix, line, at)
            final += [line.ix] * (word == "final")
            doubled += [line.ix] * (word == "doubled")
        for line in (line for line in lines if not line.final):
            item = job.items[line.ix]
            if shard.row.state is ShardState.DEAD:
                continue
            known = {each.digest for each in (item.verdict, item.result) if each is not None}
            if not known:
                item.verdict = line
                if line.cost and (line.usage.input_tokens or line.usage.output_tokens):
                    job.paid_for_nothing.append(line)
            elif line.digest not in known and line.ix not in final:
                doubled.append(line.ix)
        assert list(told.final) == final
        assert sorted(told.doubled) == sorted(doubled)

    @precondition(lambda self: self.owned_shard(0, is_ingesting))
    @rule(pick=picks)
    def settle(self, pick: int) -> None:
        if (found := self.owned_shard(pick, is_ingesting)) is None:
            return
        job, store, lease, shard = found
        left = [u.ix for u in store.shards.unsettled(shard.row.id)]
        ways: list[list[int]] = [[], [], []]
        for ix in left:
            self.rng.choice(ways).append(ix)
        opened, direct, ended = ways
        finals = [self.made(ix, ("failed", "cancelled")) for ix in ended]
        at = self.tick()
        if left and self.rng.random() < 0.1:
            dropped = self.rng.choice(left)
            short = [[ix for ix in way if ix != dropped] for way in (opened, direct)]
            rest = [result for result in finals if result.ix != dropped]
            with pytest.raises(ValueError, match="are not assigned"):
                store.shards.settle(lease, shard.row, opened=short[0], realtime=short[1], finals=rest, at=at)
            return
        row = store.shards.settle(
            lease, shard.row, opened=opened, realtime=direct, finals=finals, at=at, cost=1.5
        )
        assert row == evolve(shard.row, state=ShardState.SETTLED, settled_at=at, cost=1.5)
        for to, ixs in ((OPEN, opened), (REALTIME, direct)):
            for ix in ixs:
                job.items[ix].state, job.items[ix].shard = to, None
                job.items[ix].tries += 1
        for result in finals:
            assert job.end(result.ix, result, at) == "final"
        for ix in shard.items:
            job.items[ix].verdict = None
        shard.old.append(shard.row)
        shard.row = row

    @precondition(lambda self: self.owned(0, has_direct))
    @rule(pick=picks, limit=st.integers(1, 5))
    def claim_realtime(self, pick: int, limit: int) -> None:
        if found := self.owned(pick, has_direct):
            job, store, lease = found
            asked = store.items.claim_realtime(lease, limit)
            assert [d.ix for d in asked] == job.those(REALTIME)[:limit]
            assert [d.tries for d in asked] == [job.items[d.ix].tries for d in asked]
            for item in asked:
                job.items[item.ix].state = IN_FLIGHT

    @precondition(lambda self: self.owned(0, has_asking))
    @rule(pick=picks)
    def answer(self, pick: int) -> None:
        if found := self.owned(pick, has_asking):
            job, store, lease = found
            at = self.tick()
            words = ("succeeded", "failed", "again", "unrun")
            results = [self.made(ix, words) for ix in self.some(job.those(IN_FLIGHT))]
            ends = [result for result in results if result.final]
            told = store.items.answer(lease, results, at=at)
            assert told.final == tuple(r.ix for r in ends)
            for result in results:
                if result.final:
                    job.end(result.ix, result, at)
                else:
                    job.items[result.ix].state = REALTIME
                    job.items[result.ix].tries += result.outcome == "again"
                    if result.cost and (result.usage.input_tokens or result.usage.output_tokens):
                        job.paid_for_nothing.append(result)

    @precondition(lambda self: self.owned(0))
    @rule(pick=picks)
    def drop_unsent(self, pick: int) -> None:
        if self.rng.random() < 0.1 and (found := self.owned(pick)):
            job, store, lease = found
            at = self.tick()
            unsent = sorted(job.those(OPEN) + job.those(REALTIME))
            assert store.items.drop_unsent(lease, b"dropped", at=at) == len(unsent)
            for ix in unsent:
                job.end(ix, NewResult(ix, "cancelled", b"dropped", cost=0.0), at)

    def tell_an_incident(self, pick: int) -> None:
        if found := self.owned(pick):
            job, store, lease = found
            detail = f"line {pick % 3}"
            incident = IncidentRow("doubled_line", job.id, None, detail, None, self.tick())
            assert store.facts.add_incident(lease, incident) == (detail not in job.told)
            job.told.add(detail)

    # -- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        if not hasattr(self, "bench"):
            return
        read = self.reader
        assert [row.id for row in read.jobs.latest()] == list(self.jobs)[::-1]
        for job in self.jobs.values():
            self.check_job(read, job)
        total = sum(len(job.items) for job in self.jobs.values())
        assert self.bench.behind("SELECT count(*) FROM item") >= [(total,)]

    def check_job(self, read: SqlStore, job: Job) -> None:
        row = read.jobs.get(job.id)
        assert row is not None
        results = [item.result for item in job.items if item.result is not None]
        count = {
            word: sum(r.outcome == word for r in results) for word in ("succeeded", "failed", "cancelled")
        }
        assert (row.state, row.note, row.cancel_requested) == (job.state, job.note, job.cancel)
        assert (row.epoch, row.owner is not None) == (job.epoch, job.owner is not None)
        assert (row.succeeded, row.failed, row.cancelled) == tuple(count.values())
        assert (row.finished == row.total) == (row.state is JobState.DONE) == (row.finished_at is not None)
        assert job.finished_at is None or row.finished_at == job.finished_at
        priced = [r for r in results if r.cost is not None] + job.paid_for_nothing
        assert row.cost == pytest.approx(sum(r.cost or 0 for r in priced))
        real = sum((r.cost if r.realtime_cost is None else r.realtime_cost) or 0 for r in priced)
        assert row.realtime_cost == pytest.approx(real)
        assert row.unpriced == sum(r.cost is None for r in results)
        counted = results + job.paid_for_nothing
        assert row.input_tokens == sum(r.usage.input_tokens for r in counted)
        assert row.output_tokens == sum(r.usage.output_tokens for r in counted)
        for state in ItemState:
            items = read.items.in_state(job.id, state=state)
            assert [(i.ix, i.tries) for i in items] == [(ix, job.items[ix].tries) for ix in job.those(state)]
        fresh = read.items.fresh(job.id, limit=1000)
        assert [(r.ix, r.seq) for r in fresh] == [(ix, n) for n, ix in enumerate(job.order, 1)]
        kept = [(r.ix, r.user_id, r.outcome, r.body, r.payload, r.cost) for r in read.items.results(job.id)]
        assert kept == [
            (ix, f"row-{ix}", item.result.outcome, item.result.body, b"ask %d" % ix, item.result.cost)
            for ix, item in enumerate(job.items)
            if item.result is not None
        ]
        assert read.shards.of_job(job.id) == [shard.row for shard in job.shards.values()]
        for shard in job.shards.values():
            self.check_shard(read, job, shard)
        kinds = [incident.kind for incident in read.facts.incidents(job.id)]
        assert (kinds.count("maybe_billed"), kinds.count("doubled_line")) == (job.maybe_billed, len(job.told))

    def check_shard(self, read: SqlStore, job: Job, shard: Shard) -> None:
        payloads = read.shards.payloads(shard.row.id, limit=1000)
        assert [(position, item.ix) for position, item in payloads.items()] == list(enumerate(shard.items))
        held = [
            ix for ix in shard.items if job.items[ix].state is SHARDED and job.items[ix].shard == shard.row.id
        ]
        if shard.row.state not in OPEN_SHARDS:
            assert held == []
            return
        assert [(u.ix, u.verdict, u.tries) for u in read.shards.unsettled(shard.row.id)] == [
            (ix, item.verdict and item.verdict.outcome, item.tries)
            for ix in shard.items
            if (item := job.items[ix]).result is None
        ]


class PostgresMachine(StoreMachine):
    kind = "postgres"


def run(machine: type[StoreMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=examples < 1_000,
            database=None,
            phases=[Phase.generate],  # to shorten a failure takes minutes; its seed repeats it
            print_blob=True,
        ),
    )


@pytest.mark.parametrize("examples", sampled([6, 50]))
def test_an_sqlite_store_says_what_the_model_says(examples):
    run(StoreMachine, examples, 40)


@pytest.mark.full
def test_a_postgres_store_says_what_the_model_says(postgres_address):
    PostgresMachine.address = postgres_address
    run(PostgresMachine, 12, 40)


@pytest.mark.soak
def test_an_sqlite_store_says_what_the_model_says_for_hours():
    run(StoreMachine, 5_000, 100)


@pytest.mark.soak
def test_a_postgres_store_says_what_the_model_says_for_hours(postgres_address):
    PostgresMachine.address = postgres_address
    run(PostgresMachine, 1_000, 100)
