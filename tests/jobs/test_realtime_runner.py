"""Real-time items of jobs: marked before they are sent, stored before they are delivered."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pytest
from jobs.remote import LONG, Remote
from jobs.runtimes import job_runtime
from jobs.stores import Bench

from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.events import AnswersLost, StoreAvailable, StoreUnavailable
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.payload import Shared, encode_params, encode_request
from smartbatch.jobs.records import ItemState, JobPolicy, NewItem
from smartbatch.jobs.runner import RealtimeRunner
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.store.items import ItemTable
from smartbatch.jobs.supervision import LEASE_SECONDS
from smartbatch.prices import Price
from smartbatch.types import Generation, Request, Result

PATIENCE = 30.0  # real seconds


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "jobs.db")


def another_store(place, clock):
    return open_store(place, wall=clock.wall, rng=random.Random(7))


def submitted(client, count, **settings):
    return client.submit_batch([f"p{n}" for n in range(count)], batch_fallback="individual", **settings)


def test_an_item_is_marked_on_disk_before_it_is_asked(client_of, clock, place):
    seen = []
    looking = another_store(place, clock)

    def reply(prompt):
        job = looking.jobs.latest()[0]
        seen.append((prompt, {item.ix for item in looking.items.in_state(job.id, state=ItemState.IN_FLIGHT)}))
        return prompt

    client = client_of(Remote(clock, batches=False, reply=reply, latency=1.0), store=place, parallelism=3)
    submitted(client, 40).wait(LONG)
    assert len(seen) == 40
    assert all(int(prompt[1:]) in asking for prompt, asking in seen)
    assert max(len(asking) for _, asking in seen) <= 6


@pytest.mark.parametrize("how", ["list", pytest.param("requests", marks=pytest.mark.full)])
def test_of_attended_work_only_what_is_in_flight_or_next_is_marked(how, client_of, clock, place):
    """Marked items are reported as possibly paid twice if the process is killed."""
    marked = []
    looking = another_store(place, clock)

    def reply(prompt):
        jobs = looking.jobs.latest()
        marked.append(sum(looking.items.count(job.id, ItemState.IN_FLIGHT) for job in jobs))
        return prompt

    client = client_of(Remote(clock, batches=False, reply=reply, latency=1.0), store=place, parallelism=2)
    prompts = [f"p{n}" for n in range(12)]
    if how == "list":
        assert len(list(client.map(prompts, key="mine", strategy="individual"))) == 12
    else:
        assert all(future.result(LONG).ok for future in [client.submit(p, durable=True) for p in prompts])
    assert len(marked) == 12
    assert max(marked) <= 4


@pytest.mark.full
def test_a_request_is_not_kept_waiting_by_a_list_that_was_there_before(client_of, clock, place):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, store=place, parallelism=2)
    rows = client.map([f"p{n}" for n in range(40)], key="mine", strategy="individual")
    next(rows)
    assert client.submit("soon", durable=True).result(LONG).ok
    assert remote.asked.index("soon") < 16
    assert len(list(rows)) == 39


def test_nobody_hears_of_an_answer_before_it_is_stored(client_of, clock, place):
    looking = another_store(place, clock)
    client = client_of(Remote(clock, batches=False), store=place)
    job = submitted(client, 20)
    found = []
    ended = threading.Event()

    def look(ix):
        found.append(any(row.ix == ix for row in looking.items.results(job.id)))
        if len(found) == 20:
            ended.set()

    for ix, future in enumerate(job.futures()):
        future.add_done_callback(lambda _, ix=ix: look(ix))
    assert ended.wait(PATIENCE)
    assert found == [True] * 20


@pytest.mark.full
def test_answers_that_come_together_are_stored_together(client_of, clock, place, monkeypatch):
    groups = []
    real = ItemTable.answer

    def counted(self, lease, results, **how):
        groups.append(len(results))
        clock.sleep(0.5)  # a slow disk
        return real(self, lease, results, **how)

    monkeypatch.setattr(ItemTable, "answer", counted)
    client = client_of(Remote(clock, batches=False, latency=0.1), store=place, parallelism=20)
    assert submitted(client, 200).wait(LONG).completed == 200
    assert sum(groups) == 200
    assert len(groups) < 40


def test_a_stop_gives_back_what_has_not_started_and_keeps_what_came(client_of, clock, place):
    remote = Remote(clock, batches=False, latency=5.0)
    first = client_of(remote, store=place, parallelism=4)
    job = submitted(first, 30)
    next(job.results(timeout=LONG))
    first.stop()
    asked = len(remote.asked)
    looking = another_store(place, clock)
    row = looking.jobs.get(job.id)
    assert (row.succeeded, row.owner) == (asked, None)
    waiting = looking.items.in_state(job.id, state=ItemState.REALTIME)
    assert (len(waiting), {item.tries for item in waiting}) == (30 - asked, {0})
    second = client_of(remote, store=place, seed_of_rng=2)
    assert second.job(job.id).wait(LONG).completed == 30
    assert sorted(remote.asked) == sorted(f"p{n}" for n in range(30))


@pytest.mark.parametrize("kind", [ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY])
def test_an_account_out_of_use_holds_the_job_and_fails_no_item(kind, client_of, clock, place):
    broken = threading.Event()
    broken.set()

    def reply(prompt):
        if broken.is_set():
            raise ProviderError("out of use", kind=kind, status=401)
        return prompt

    client = client_of(Remote(clock, batches=False, reply=reply), store=place)
    job = submitted(client, 12)
    held = threading.Event()
    job.on_progress(lambda status: held.set() if status.state == "held" else None)
    assert held.wait(PATIENCE)
    status = job.status()
    assert (status.state, status.failed, status.finished) == ("held", 0, 0)
    assert status.note is not None
    assert "then resume the job" in status.note
    broken.clear()
    clock.sleep(60.0)  # the gates keep a refused account closed for a while
    job.resume()
    assert job.wait(LONG).completed == 12


def test_a_used_up_budget_keeps_the_items_open(client_of, clock, place):
    broken = threading.Event()
    broken.set()

    def reply(prompt):
        if broken.is_set():
            raise ProviderError("out of use", kind=ErrorKind.AUTH_ERROR, status=401)
        return prompt

    remote = Remote(clock, batches=False, priced=True, reply=reply)
    prices = {"remote:default": Price(input=1e6, output=1e6)}  # a dollar a token
    first = client_of(remote, store=place, prices=prices, max_tokens=10)
    accepted = submitted(first, 40)
    held = threading.Event()
    accepted.on_progress(lambda status: held.set() if status.state == "held" else None)
    assert held.wait(PATIENCE)
    first.stop(timeout=0)
    broken.clear()
    clock.sleep(60.0)  # the gates keep a refused account closed for a while
    poor = client_of(
        remote, store=place, prices=prices, budget=150.0, max_tokens=10, parallelism=1, seed_of_rng=3
    )
    job = poor.job(accepted.id)
    job.resume()
    waiting = threading.Event()
    job.on_progress(lambda status: waiting.set() if status.note and "budget" in status.note else None)
    assert waiting.wait(PATIENCE)
    poor.stop(timeout=0)
    status = job.status()
    assert (status.state, status.failed) == ("active", 0)
    assert 0 < status.completed < 40
    rich = client_of(remote, store=place, prices=prices, budget=1e6, seed_of_rng=2)
    assert rich.job(job.id).wait(LONG).completed == 40


class FullDisk:
    def __init__(self, monkeypatch):
        self.full = True
        self.refused = threading.Event()
        real = ItemTable.answer

        def answer(table, lease, results, **how):
            if self.full:
                self.refused.set()
                raise StoreError("the disk is full")
            return real(table, lease, results, **how)

        monkeypatch.setattr(ItemTable, "answer", answer)


def attended(client, count):
    prompts = [f"p{n}" for n in range(count)]
    return client.submit_run(prompts, client.forecast(prompts, strategy="individual"))


@pytest.mark.catches("StoreError")
def test_nothing_more_is_asked_while_answers_cannot_be_stored(client_of, clock, place, monkeypatch):
    disk, remote, events = FullDisk(monkeypatch), Remote(clock, batches=False, latency=1.0), []
    client = client_of(remote, store=place, parallelism=4, observers=[events.append])
    job = attended(client, 80)
    clock.sleep(100.0)
    assert len(remote.asked) <= 8  # what was under way, and what began before the first write had failed
    assert job.status().note == "the disk is full"
    disk.full = False
    assert job.wait(LONG).completed == 80
    assert sorted(remote.asked) == sorted(f"p{n}" for n in range(80))
    told = [event for event in events if isinstance(event, (StoreUnavailable, StoreAvailable))]
    assert [event.name for event in told] == ["store_unavailable", "store_available"]
    assert job.status().note is None


@pytest.mark.full
def test_a_write_that_hangs_counts_as_one_that_fails(client_of, clock, place, monkeypatch):
    real, asked = ItemTable.answer, []

    def hung(self, lease, results, **how):
        if not asked:
            clock.sleep(60.0)
            asked.append(len(remote.asked))
        return real(self, lease, results, **how)

    monkeypatch.setattr(ItemTable, "answer", hung)
    remote = Remote(clock, batches=False, latency=1.0)
    job = attended(client_of(remote, store=place, parallelism=4), 80)
    assert job.wait(LONG).completed == 80
    assert asked[0] <= 4 * 6  # for a few seconds, not for sixty
    assert sorted(remote.asked) == sorted(f"p{n}" for n in range(80))


@pytest.mark.full
@pytest.mark.catches("StoreError")
def test_answers_never_stored_are_reported(client_of, clock, place, monkeypatch, caplog):
    disk, events = FullDisk(monkeypatch), []
    remote = Remote(clock, batches=False, latency=1.0, priced=True)
    prices = {"remote:default": Price(input=1e6, output=1e6)}  # a dollar a token
    client = client_of(remote, store=place, parallelism=4, prices=prices, observers=[events.append])
    job = attended(client, 80)
    clock.sleep(30.0)
    client.stop(timeout=5.0)
    asked = len(remote.asked)
    [lost] = [event for event in events if isinstance(event, AnswersLost)]
    assert (lost.answers, lost.awaited, lost.reason) == (asked, 0, "the disk is full")
    assert lost.cost > 0
    assert f"{asked} that had arrived" in caplog.text
    disk.full = False
    again = client_of(remote, store=place, seed_of_rng=2).job(job.id)
    assert again.wait(LONG).completed == 80
    assert len(remote.asked) == 80 + asked
    assert [incident.kind for incident in again.incidents()] == ["maybe_billed"]


@pytest.mark.parametrize("closed", [False, True])
def test_items_claimed_while_the_client_stops_are_recalled(closed, client_of, clock, place, monkeypatch):
    """A claim that outlives the grace period finds the store closed, which is not an error."""
    claiming, stopping = threading.Event(), threading.Event()
    until = (SqlStore, "close") if closed else (RealtimeRunner, "finish")

    def told(original, event, *, first):
        def called(*given):
            if first:
                event.set()
                return original(*given)
            done = original(*given)
            event.set()
            return done

        return called

    def claim(*given):
        claiming.set()
        assert stopping.wait(PATIENCE)
        return original_claim(*given)

    remote = Remote(clock, batches=False)
    client = client_of(remote, store=place)
    original_claim = ItemTable.claim_realtime
    with monkeypatch.context() as patch:
        patch.setattr(ItemTable, "claim_realtime", claim)
        patch.setattr(*until, told(getattr(*until), stopping, first=not closed))
        if closed:  # no time is left for the claim
            patch.setattr(RealtimeRunner, "_works_locked", lambda _: False)
        job = submitted(client, 6, strategy="individual")
        assert claiming.wait(PATIENCE)
        client.stop()
    assert remote.asked == []
    again = client_of(remote, store=place, seed_of_rng=2).job(job.id)
    assert again.wait(LONG).completed == 6
    assert len(remote.asked) == 6
    assert again.incidents() == []


@pytest.mark.parametrize("policy", ["settle", "hold"])
def test_items_that_were_being_asked_when_their_process_died(policy, client_of, clock, place, monkeypatch):
    remote = Remote(clock, batches=False)
    client = client_of(remote, store=place, batch_on_unknown=policy)
    with monkeypatch.context() as patch:
        patch.setattr(JobsEngine, "carry_on", lambda *_: None)  # it submits, and no more
        job = submitted(client, 6)
    dead = another_store(place, clock)
    lease = dead.leases.claim(job.id, LEASE_SECONDS)
    dead.items.claim_realtime(lease, 2)
    dead.abandon()  # as its death would
    second = client_of(remote, store=place, seed_of_rng=2)
    results = list(second.job(job.id).results(timeout=LONG))
    unknown = [result.error for result in results if result.error is not None]
    assert any(incident.kind == "maybe_billed" for incident in job.incidents())
    if policy == "settle":
        assert unknown == []
        assert len(remote.asked) == 6
    else:
        assert [getattr(error, "code", None) for error in unknown] == ["outcome_unknown"] * 2
        assert len(remote.asked) == 4


@pytest.mark.full
def test_a_queue_that_refuses_delays_items_and_fails_none(client_of, clock, place):
    remote = Remote(clock, batches=False, latency=1.0)
    client = client_of(remote, store=place, parallelism=120, queue_capacity=100, queue_full="raise")
    assert submitted(client, 400).wait(LONG).completed == 400
    assert len(remote.asked) == 400


def test_failures_of_an_items_own_end_it_and_the_others_go_on(client_of, clock, place):
    def reply(prompt):
        if prompt == "p3":
            raise ProviderError("no such thing", kind=ErrorKind.CLIENT_ERROR, status=400, code="bad")
        return prompt

    client = client_of(Remote(clock, batches=False, reply=reply), store=place)
    job = submitted(client, 8)
    job.wait(LONG)
    reader = client_of(Remote(clock, batches=False), store=place, seed_of_rng=2)
    results = list(reader.job(job.id).results())
    assert [result.ok for result in results] == [n != 3 for n in range(8)]
    error = results[3].error
    assert isinstance(error, ProviderError)
    assert (error.status, error.code, error.kind) == (400, "bad", ErrorKind.CLIENT_ERROR)
    assert error.request_id == results[3].request_id


@pytest.mark.parametrize("how", ["halted", "forgotten"])
def test_a_halted_runner_and_a_forgotten_job_submit_no_claimed_item(how, clock, place, tmp_path):
    bench = Bench("sqlite", place, tmp_path)
    store = bench.open()
    items = [
        NewItem(f"row-{ix}", encode_request(Request(f"p{ix}"), Shared()), 10, 10, True) for ix in range(50)
    ]
    job, _ = store.jobs.accept(
        bench.job(policy=JobPolicy(attended=True), params=encode_params(Generation())), items
    )
    lease = store.leases.claim(job.id, LONG)
    asked = []
    ended = threading.Event()

    def ask(item):
        asked.append(str(item.request.prompt))
        if len(asked) == 2:
            runner.halt() if how == "halted" else runner.forget(job.id)
            ended.set()
        item.sink(Result(item.request.id, "an answer"))
        return Future()

    runner = RealtimeRunner(
        job_runtime(
            store,
            clock,
            random.Random(3),
            provider_of=lambda _: Remote(clock),
            report=lambda _, error: pytest.fail(str(error)),
            send=ask,
        ),
        limit_of=lambda _: lambda: 50,
        done=lambda _: None,
    )
    runner.offer(lease)
    assert ended.wait(PATIENCE)
    assert not runner.finish(LONG)
    assert asked == ["p0", "p1"]
    assert len(store.items.in_state(job.id, state=ItemState.REALTIME)) == 48
    bench.close()
