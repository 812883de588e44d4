"""Decisions after a poll of a batch."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.records import ItemState
from smartbatch.jobs.shard_records import RemoteProgress, ShardState
from smartbatch.jobs.steps import poll as polls
from smartbatch.jobs.steps.poll import poll_batch
from smartbatch.providers.batch_api import RemoteState

SENT = 1_000.0
DAY = 86_400.0
SEEN = RemoteProgress(state=RemoteState.RUNNING)


def shard(**given):
    plain = {
        "id": "shard",
        "scope": "scope",
        "batch_id": "batch",
        "submitted_at": SENT,
        "results_until": None,
        "cancelled": False,
        "state": ShardState.SUBMITTED,
        "size": 1,
    }
    return SimpleNamespace(**{**plain, "remote": SEEN, "tries": 9, **given})


class Step:
    def __init__(self, wall, **given):
        self.wall = wall
        self.done = []
        self.batch = None
        self.refusal = None
        self.answered = False
        self.falls_back, self.timeout = True, DAY
        times = {"visibility": 120.0, "poll_interval": 60.0, "longest_pause": 600.0, "call_timeout": 60.0}
        self.limits = SimpleNamespace(**times)
        self.policy = SimpleNamespace(deadline=1e9)
        self.job = SimpleNamespace(cancel_requested=False, id="job", created_at=SENT)
        self.api = SimpleNamespace(
            get=lambda *_: self.batch,
            cancel=self._cancel,
            classify=lambda error: error,
            abilities=SimpleNamespace(cancels=True),
        )
        self.runtime = SimpleNamespace(
            publish_progress=lambda *_, running: self.done.append(("told", running)),
            wiring=SimpleNamespace(
                exchange_enqueued=None,
                speed=lambda _: SimpleNamespace(throughput=SimpleNamespace(finish=lambda *_: 0.0)),
            ),
        )
        shards = SimpleNamespace(of_job=lambda *_, states: [], is_answered=lambda _: self.answered)
        events = SimpleNamespace(is_expected=lambda *_, at: False)
        self.store = SimpleNamespace(shards=shards, webhook_events=events)
        for name, value in given.items():
            part, _, field = name.rpartition("__")
            setattr(getattr(self, part) if part else self, field, value)

    def provider_calls(self):
        return nullcontext()

    def _cancel(self, *_):
        if self.refusal is not None:
            raise self.refusal

    def reschedule(self, of, seconds, **changes):
        remote = changes.pop("remote", None)
        if remote is not None and not changes:  # that it is to be cancelled, before it is
            assert remote.cancel_sent_at == self.wall
            return SimpleNamespace(**{**vars(of), "remote": remote})
        self.done.append(("later", seconds, {name: what for name, what in changes.items() if name != "note"}))
        self.note = changes.get("note")
        return self

    def retry_later(self, *_):
        self.done.append("again")
        return self

    def advance(self, _, to, *__, **changes):
        self.done.append((to.value, changes))
        return self

    def discard(self, *_, **how):
        self.done.append(("discarded", how))
        return self

    def incident(self, kind, *_):
        self.done.append(kind)

    def hold(self, error):
        self.done.append(f"held: {error.message}")

    def give_up(self, _, error, __, **how):
        self.done.append((f"given up: {error.message}", how))
        return self


GONE = ["batch_vanished", ("later", 600.0, {})]
SOON = [("later", 30.0, {"tries": 10})]
UNSEEN = RemoteProgress()


@pytest.mark.parametrize(
    ("wall", "sent", "given", "done"),
    [
        (SENT + 119.5, {}, {}, SOON),
        (SENT + 120.0, {}, {}, GONE),
        (SENT + 599.5, {}, {"limits__poll_interval": 600.0}, SOON),
        (SENT + 600.0, {}, {"limits__poll_interval": 600.0}, GONE),
        (SENT + 10.0, {}, {"limits__poll_interval": 20.0}, [("later", 20.0, {"tries": 10})]),
        (SENT + 900.0, {"submitted_at": None}, {}, SOON),
        (SENT + 900.0, {"remote": UNSEEN, "tries": 3}, {}, [("later", 30.0, {"tries": 4})]),
        (SENT + 900.0, {"remote": UNSEEN, "tries": 4}, {}, GONE),
        (SENT + 900.0, {"tries": 3}, {}, GONE),
        (SENT + 900.0, {"results_until": SENT + 900.5}, {}, GONE),
        (SENT + 900.0, {"results_until": SENT + 900.0}, {}, [("ended", {"ended_at": SENT + 900.0})]),
        (
            SENT + 900.0,
            {"cancelled": True},
            {"job__cancel_requested": True},
            ["batch_vanished", ("discarded", {"tried": True, "maybe_billed": True})],
        ),
    ],
)
def test_a_batch_that_the_provider_does_not_know(wall, sent, given, done):
    step = Step(wall, **given)
    assert poll_batch(step, shard(**sent)) is step
    assert step.done == done


CANCELLED = [("later", 1.0, {"tries": 0, "cancelled": True})]
TIMED = {"policy__deadline": None, "timeout": 100.0}


@pytest.mark.parametrize(
    ("age", "given", "note"),
    [
        (1.0, {"job__cancel_requested": True}, "the job was cancelled"),
        (100.0, TIMED, "the batch takes too long"),
        (99.5, TIMED, None),
        (100.0, {"timeout": 100.0}, None),
        (100.0, {**TIMED, "falls_back": False}, None),
        (
            1.0,
            {"answered": True},
            "its requests were answered by a batch that was written off but turned out to exist",
        ),
    ],
)
def test_a_batch_is_cancelled_if_it_is_late_or_not_needed(age, given, note):
    step = Step(SENT + age, **given)
    assert poll_batch(step, shard()) is step
    assert (step.done == CANCELLED, step.note if note else None) == (note is not None, note)


@pytest.mark.parametrize("given", [TIMED, {"job__cancel_requested": True}])
def test_a_batch_that_cannot_be_cancelled_is_polled_until_it_ends(monkeypatch, given):
    monkeypatch.setattr(polls.orphans, "search_duplicates_once", lambda _, shard, __: shard.remote)
    running = SimpleNamespace(state=RemoteState.RUNNING, word="running", completed=3, failed=None, outputs=())
    step = Step(SENT + 100.0, batch=running, api__abilities=SimpleNamespace(cancels=False), **given)
    assert poll_batch(step, shard()) is step
    assert step.done == [("later", 60.0, {"tries": 0}), ("told", 0)]


@pytest.mark.parametrize(
    ("status", "known", "done"),
    [(404, False, SOON), (404, True, ["again"]), (403, False, ["again"]), (405, False, ["again"])],
)
def test_a_refused_cancel_is_repeated_while_the_batch_exists(status, known, done):
    refusal = ProviderError("no", kind=ErrorKind.CLIENT_ERROR, status=status)
    running = SimpleNamespace(state=RemoteState.RUNNING)
    step = Step(SENT, job__cancel_requested=True, refusal=refusal, batch=running if known else None)
    assert poll_batch(step, shard()) is step
    assert step.done == done


@pytest.mark.parametrize(
    ("age", "asked", "pause", "late"),
    [
        (10.0, None, 60.0, False),
        (DAY, None, 60.0, False),
        (DAY + 0.5, None, 60.0, True),
        (10.0, 9.5, 1.0, False),
        (10.0, 5.0, 5.0, False),
        (90.0, 5.0, 60.0, False),
    ],
)
def test_a_batch_that_runs_is_polled_sooner_after_a_cancel(monkeypatch, age, asked, pause, late):
    monkeypatch.setattr(polls.orphans, "search_duplicates_once", lambda _, shard, __: shard.remote)
    known = evolve(SEEN, cancel_sent_at=None if asked is None else SENT + asked)
    facts = {"word": "running", "completed": 3, "failed": None, "outputs": ()}
    step = Step(SENT + age, batch=SimpleNamespace(state=RemoteState.RUNNING, **facts))
    assert poll_batch(step, shard(remote=known, cancelled=asked is not None)) is step
    assert step.done == [("later", pause, {"tries": 0}), ("told", 0)]
    assert (step.note is not None) == late
    step.done.clear()
    assert (
        poll_batch(
            step, shard(remote=evolve(known, status="running", completed=3), cancelled=asked is not None)
        )
        is step
    )
    assert len(step.done) == 1  # nothing new is told


@pytest.mark.parametrize(
    ("state", "cancelled", "kept"),
    [
        (RemoteState.RUNNING, False, 37.0),
        (RemoteState.COMPLETED, False, 30.0),
        (RemoteState.COMPLETED, True, 30.0),
    ],
)
def test_tokens_of_a_batch_are_published_until_it_ends(monkeypatch, state, cancelled, kept):
    monkeypatch.setattr(polls.orphans, "search_duplicates_once", lambda _, shard, __: shard.remote)
    facts = {"word": state.value, "completed": 3, "failed": None, "outputs": ("out",)}
    refusal = ProviderError("too late", kind=ErrorKind.CLIENT_ERROR, status=409) if cancelled else None
    step = Step(SENT, batch=SimpleNamespace(state=state, **facts), refusal=refusal)
    step.job = SimpleNamespace(scope="us", model="m", cancel_requested=cancelled, id="job", created_at=SENT)
    asks = []
    step.runtime.wiring.exchange_enqueued = lambda *ask: asks.append(ask)
    step.limits.enqueued_tokens = 500
    step.store.facts = SimpleNamespace(recall=lambda name: "we" if name == "enqueued:store" else None)
    mine = shard(submitted_at=None, scope="us", model="m", tokens=7)
    others = [mine, shard(id="2", model="m", tokens=30), shard(id="3", model="other", tokens=900)]
    step.store.shards.in_scope = lambda scope, states: others if scope == "us" else []
    assert poll_batch(step, mine) is step
    [(scope, model, ask)] = asks
    assert (scope, model, ask.member, ask.kept[0], ask.limits.caps[0]) == ("us", "m", "we", kept, 500.0)
    assert (ask.least[0], ask.wanted[0]) == (0.0, 0.0)


ABANDONED = {"to": ItemState.REALTIME, "tried": True, "maybe_billed": True, "orphan": "batch"}
QUARTER_HOUR = 900.0


@pytest.mark.parametrize(
    ("kind", "age", "deadline", "given_up"),
    [
        (ErrorKind.SERVER_ERROR, QUARTER_HOUR, None, True),
        (ErrorKind.SERVER_ERROR, QUARTER_HOUR - 1.0, None, False),
        (ErrorKind.NETWORK_ERROR, QUARTER_HOUR, None, False),
        (ErrorKind.TIMEOUT, QUARTER_HOUR, None, False),
        (ErrorKind.TIMEOUT, 10.0, SENT, True),
        (ErrorKind.TIMEOUT, 9.0, SENT, False),
    ],
)
def test_a_cancelled_batch_that_cannot_be_polled_is_given_up(kind, age, deadline, given_up):
    step = Step(SENT + age, policy__deadline=deadline)

    def fail(*_):
        raise ProviderError("no answer", kind=kind)

    step.api.get = fail
    sought = shard(remote=evolve(SEEN, cancel_sent_at=SENT), cancelled=True)
    if given_up:
        assert poll_batch(step, sought) is step
        assert step.done == ["maybe_billed", ("discarded", ABANDONED)]
    else:
        with pytest.raises(ProviderError):
            poll_batch(step, sought)


@pytest.mark.parametrize(
    ("kind", "code", "tries", "done"),
    [
        (ErrorKind.AUTH_ERROR, None, 0, ["held: bad", ("discarded", {"tried": False})]),
        (ErrorKind.CLIENT_ERROR, "token_limit_exceeded", 9, ["quota", ("discarded", {"tried": False})]),
        (ErrorKind.CLIENT_ERROR, None, 0, [("discarded", {"tried": True})]),
        (ErrorKind.CLIENT_ERROR, None, 1, [("given up: bad", {"tried": True})]),
        (ErrorKind.SERVER_ERROR, None, 2, [("discarded", {"tried": True})]),
        (ErrorKind.SERVER_ERROR, None, 3, [("given up: bad", {"tried": True})]),
    ],
)
def test_a_batch_that_failed_as_a_whole_is_sent_again_or_not(monkeypatch, kind, code, tries, done):
    step = Step(SENT, limits__max_tries=4)
    error = ProviderError("bad", kind=kind)
    facts = {"word": "failed", "completed": None, "failed": None, "outputs": (), "reason": "bad"}
    step.batch = SimpleNamespace(state=RemoteState.FAILED, code=code, error=error, **facts)
    refusals = {"handle_known_refusal": None, "repeats_a_prompt": False, "max_tries_of": tries}
    for name, found in refusals.items():
        monkeypatch.setattr(polls.refusals, name, lambda *_, found=found: found)
    monkeypatch.setattr(polls.refusals, "quota_refused", lambda *_: step.done.append("quota"))
    monkeypatch.setattr(polls.orphans, "search_duplicates_once", lambda _, shard, __: shard.remote)
    assert poll_batch(step, shard()) is step
    assert step.done == done
