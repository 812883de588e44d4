"""Searches for the batch of a create without an answer."""

from __future__ import annotations

import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from smartbatch.jobs.records import JobState
from smartbatch.jobs.shard_records import RemoteProgress, ShardState
from smartbatch.jobs.steps import recover
from smartbatch.jobs.steps.orphans import NewerBatches
from smartbatch.providers.batch_api import RemoteState

DAY = 86_400.0
SINCE = 1_000_000.0


def shard(**given):
    plain = {"id": "shard", "nonce": "n", "file_id": "file", "batch_id": None, "tries": 9, "candidate": None}
    since = {"uncertain_since": SINCE, "fenced_at": None, "state": ShardState.UNCERTAIN}
    told = {name: given.pop(name) for name in ("searched_since", "fenced_since", "held_job") if name in given}
    return SimpleNamespace(**{**plain, **since, "remote": RemoteProgress(**told), **given})


class Step:
    settle_time = 1_800.0

    def __init__(self, after, *, fence=False, hold=False, state=None):
        self.wall = SINCE + after
        self.done = []
        self.lease = None
        self.limits = SimpleNamespace(
            visibility=120.0, orphan_watch=26 * 3600.0, poll_interval=60.0, call_timeout=60.0
        )
        self.policy = SimpleNamespace(on_unknown="hold" if hold else "settle")
        self.job = SimpleNamespace(id="job", state=state or JobState.ACTIVE)
        abilities = SimpleNamespace(labels=True, fence=fence)
        self.api = SimpleNamespace(abilities=abilities, delete_file=lambda *_: self.done.append("deleted"))
        self.runtime = SimpleNamespace(rng=random.Random(5))
        jobs = SimpleNamespace(note=lambda *_, hold: self.done.append(f"hold {hold}"))
        self.store = SimpleNamespace(jobs=jobs)

    def provider_calls(self):
        return nullcontext()

    def reschedule(self, _, seconds, **changes):
        self.pause, self.remote = seconds, changes["remote"]
        self.done.append(f"searched again, try {changes['tries']}")

    def advance(self, _, to, *__, **changes):
        remote = changes.pop("remote")
        self.done.append((to.value, {**changes, "told": remote.fenced_since}))

    def discard(self, *_, maybe_billed):
        self.done.append(f"sent again, billed {maybe_billed}")


AGAIN = ["searched again, try 10"]
SENT = ["sent again, billed True"]
SAFE = ["sent again, billed False"]


def fenced(since, **given):
    return shard(state=ShardState.FENCED, fenced_at=SINCE + since, **given)


@pytest.mark.parametrize(
    ("after", "listed", "sought", "done"),
    [
        # by our clock, where the provider's tells nothing
        (1_799.5, None, shard(), AGAIN),
        (1_800.0, None, shard(), SENT),
        (9_000.0, None, shard(uncertain_since=None), AGAIN),
        # what both clocks agree on
        (9_000.0, 5_000.0, shard(), AGAIN),
        (9_000.0, 6_800.5, shard(searched_since=5_000.0), AGAIN),
        (9_000.0, 6_801.0, shard(searched_since=5_000.0), SENT),
        (1_799.5, 9_000.0, shard(searched_since=5_000.0), AGAIN),
        (9_000.0, 4_000.0, shard(searched_since=5_000.0), AGAIN),
        # ours was set back
        (-5.0, 6_801.0, shard(searched_since=5_000.0), SENT),
        (-5.0, 6_800.5, shard(searched_since=5_000.0), AGAIN),
        (0.0, 9_000.0, shard(searched_since=5_000.0), AGAIN),
        # after a fence: until a late create would be seen, and as long in all
        (1_800.0, None, fenced(1_680.5), AGAIN),
        (1_800.0, None, fenced(1_680.0), SAFE),
        (1_799.5, None, fenced(100.0), AGAIN),
        (9_000.0, 9_120.5, fenced(100.0, searched_since=1.0, fenced_since=9_000.0), AGAIN),
        (9_000.0, 9_121.0, fenced(100.0, searched_since=1.0, fenced_since=9_000.0), SAFE),
    ],
)
def test_a_batch_must_be_absent_for_the_settle_time(monkeypatch, after, listed, sought, done):
    step = Step(after)
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=listed))
    recover.search_batch(step, sought)
    assert step.done == done


FENCE = ["deleted", ("fenced", {"fenced_at": SINCE + 120.0, "due_at": SINCE + 240.0, "told": None})]


@pytest.mark.parametrize(
    ("after", "settle", "sought", "done"),
    [
        (119.5, 1_800.0, shard(), AGAIN),
        (120.0, 1_800.0, shard(), FENCE),
        (120.0, 100.0, shard(), FENCE),
        (99.5, 100.0, shard(), AGAIN),
        (120.0, 1_800.0, shard(file_id=None), AGAIN),
        (1_800.0, 1_800.0, shard(file_id=None), SENT),
        (1_800.0, 1_800.0, fenced(100.0), SAFE),
    ],
)
def test_a_file_is_deleted_once_a_batch_of_it_would_be_seen(monkeypatch, after, settle, sought, done):
    step = Step(after, fence=True)
    step.settle_time = settle
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=None))
    recover.search_batch(step, sought)
    assert step.done == done


def test_a_fence_notes_the_time_of_both_clocks(monkeypatch):
    step = Step(500.0, fence=True)
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=9_200.0))
    step.api.delete_file = lambda *_: setattr(step, "wall", SINCE + 503.0)
    recover.search_batch(step, shard(searched_since=9_000.0))
    assert step.done == [("fenced", {"fenced_at": SINCE + 503.0, "due_at": SINCE + 623.0, "told": 9_203.0})]


@pytest.mark.parametrize(
    ("after", "state", "sought", "done", "held"),
    [
        (120.0, JobState.ACTIVE, shard(), AGAIN, False),
        (120.5, JobState.ACTIVE, shard(), ["hold True", *AGAIN], True),
        (DAY, JobState.HELD, shard(held_job=True), AGAIN, True),
        (DAY, JobState.ACTIVE, shard(held_job=True), SENT, None),
        (26 * 3600.0 - 0.5, JobState.HELD, shard(held_job=True), AGAIN, True),
        (26 * 3600.0, JobState.HELD, shard(held_job=True), SENT, None),
        (1_800.0, JobState.HELD, fenced(100.0), SAFE, None),
    ],
)
def test_a_held_job_waits_for_a_person_or_26_hours(monkeypatch, after, state, sought, done, held):
    step = Step(after, hold=True, state=state)
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=None))
    recover.search_batch(step, sought)
    assert step.done == done
    assert held is None or step.remote.held_job is held


@pytest.mark.parametrize(
    ("rest", "tries", "least", "most"),
    [(0.25, 9, 1.0, 1.0), (5.0, 9, 5.0, 5.0), (900.0, 0, 0.0, 1.0), (900.0, 9, 9.0, 60.0)],
)
def test_it_is_searched_for_soon_at_first_and_when_the_time_is_over(monkeypatch, rest, tries, least, most):
    step = Step(1_800.0 - rest)
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=None))
    recover.search_batch(step, shard(tries=tries))
    assert least <= step.pause <= most


def listed(name, **given):
    plain = {"created_at": None, "mark": "n", "file_id": None, "total": 3, "state": RemoteState.COMPLETED}
    return SimpleNamespace(**{"id": name, **plain, **given})


def adopted(step, monkeypatch):
    monkeypatch.setattr(recover, "adopt", lambda _, __, batch, *___: step.done.append(f"adopted {batch.id}"))


def test_the_oldest_labelled_batch_is_adopted(monkeypatch):
    step = Step(1.0)
    adopted(step, monkeypatch)
    cancel = lambda _, __, others: step.done.append([one.id for one in others])  # noqa: E731
    monkeypatch.setattr(recover.orphans, "cancel_duplicates", cancel)
    found = [listed("5"), listed("4", mark="m"), listed("3", created_at=7.0), listed("2", created_at=7.0)]
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(None, found))
    recover.search_batch(step, shard())
    assert step.done == [["5", "3"], "adopted 2"]


@pytest.mark.parametrize(
    ("seen", "nonces", "tries", "done"),
    [
        (None, set(), 9, [("uncertain", {"candidate": None})]),
        (RemoteState.RUNNING, set(), 9, ["searched again, try 0"]),
        (RemoteState.COMPLETED, {"m", "n"}, 0, ["adopted batch"]),
        (RemoteState.COMPLETED, {"m"}, 2, ["searched again, try 3"]),
        (RemoteState.COMPLETED, set(), 3, ["maybe_billed", ("uncertain", {"candidate": None})]),
        (RemoteState.COMPLETED, {"m"}, 3, [("uncertain", {"candidate": None})]),
        (RemoteState.COMPLETED, {None, "dead"}, 3, ["orphan dead", ("uncertain", {"candidate": None})]),
        (RemoteState.COMPLETED, {"open"}, 3, [("uncertain", {"candidate": None})]),
        (RemoteState.COMPLETED, {"other's"}, 3, [("uncertain", {"candidate": None})]),
    ],
)
def test_the_results_of_a_batch_without_a_label_tell_whose_it_is(monkeypatch, seen, nonces, tries, done):
    step = Step(1.0)
    adopted(step, monkeypatch)
    known = {
        "dead": SimpleNamespace(id="dead", state=ShardState.DEAD, job_id="job"),
        "open": SimpleNamespace(id="open", state=ShardState.UNCERTAIN, job_id="job"),
        "other's": SimpleNamespace(id="other's", state=ShardState.DEAD, job_id="other"),
    }
    foreign = []

    def later(of, seconds, **changes):
        if "candidate" in changes:
            step.done.append(f"orphan {of.id}")
            assert (seconds, changes) == (0.0, {"candidate": "batch"})
        else:
            step.done.append(f"searched again, try {changes['tries']}")

    def advance(_, to, *__, **changes):
        foreign.extend(changes.pop("foreign_batches", ()))
        assert changes.pop("due_at", step.wall) >= step.wall
        step.done.append((to.value, changes))

    step.api.get = lambda *_: None if seen is None else listed("batch", state=seen)
    step.store.shards = SimpleNamespace(with_nonce=known.get)
    step.reread_pause = lambda times: 2.0 if times < 3 else None
    step.incident = lambda kind, *_: step.done.append(kind)
    step.reschedule, step.advance = later, advance
    monkeypatch.setattr(recover, "nonces_in", lambda *_: nonces)
    recover.verify(step, shard(candidate="batch", size=3, tries=tries, foreign_batches=("alien",)))
    assert step.done == done
    assert foreign in ([], ["alien", "batch"])
    assert bool(foreign) == (seen is RemoteState.COMPLETED and tries == 3)


@pytest.mark.parametrize(
    ("after", "found", "exclusive", "done"),
    [
        (1.0, ["new", "old"], True, [("provisional", {"candidate": "old", "told": None})]),
        (1.0, ["one"], False, [("provisional", {"candidate": "one", "told": None})]),
        (1.0, ["one"], True, ["adopted one"]),
        (1_799.5, [], True, AGAIN),
        (1_800.0, [], True, SENT),
    ],
)
def test_without_labels_a_batch_of_the_size_is_a_candidate(monkeypatch, after, found, exclusive, done):
    step = Step(after)
    step.api.abilities.labels = False
    step.policy.exclusive_workspace = exclusive
    adopted(step, monkeypatch)
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=None))
    monkeypatch.setattr(recover, "unclaimed", lambda *_: [listed(name) for name in found])
    recover.search_batch(step, shard())
    assert step.done == done


@pytest.mark.parametrize(
    ("known", "at", "kept"), [(None, 70.0, 70.0), (60.0, 70.0, 60.0), (None, None, None)]
)
def test_the_provider_s_time_of_the_first_search_stays(monkeypatch, known, at, kept):
    step = Step(1.0)
    monkeypatch.setattr(recover, "newer_than_intent", lambda *_: NewerBatches(at=at))
    recover.search_batch(step, shard(searched_since=known))
    assert step.remote.searched_since == kept


MARKED = {"held_job": True}


@pytest.mark.parametrize(
    ("state", "shards", "done"),
    [
        (JobState.HELD, [{**MARKED, "state": ShardState.SUBMITTED}, {}], ["resumed", "unmarked"]),
        (JobState.ACTIVE, [{**MARKED, "state": ShardState.DEAD}] * 2, ["unmarked", "unmarked"]),
        (JobState.HELD, [{**MARKED, "state": ShardState.SUBMITTED}, MARKED], []),
        (JobState.HELD, [{"state": ShardState.SUBMITTED}], []),
        (JobState.HELD, [], []),
    ],
)
def test_a_held_job_goes_on_once_the_outcome_of_each_create_is_known(state, shards, done):
    step = Step(1.0, hold=True, state=state)

    def advance(_, of, to, *, remote):
        assert (to, remote.held_job) == (of.state, False)
        step.done.append("unmarked")

    step.store.shards = SimpleNamespace(of_job=lambda _: [shard(**one) for one in shards], advance=advance)
    step.store.jobs.unhold = lambda _: step.done.append("resumed")
    assert recover.resume_if_known(step) is bool(done)
    assert step.done == done
