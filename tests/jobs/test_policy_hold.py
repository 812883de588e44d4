"""The policy ``hold``: nothing is sent again while a create is unknown."""

from __future__ import annotations

import contextlib
import sqlite3
import sys

import pytest
from attrs import evolve
from jobs.remote import Remote

from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.errors import ErrorKind, JobTimeout, ProviderError
from smartbatch.events import JobHeld
from smartbatch.jobs.store.items import ItemTable
from smartbatch.jobs.wiring import StepLimits
from smartbatch.observe.logs import level_of
from smartbatch.providers.batch_api import BatchPage
from smartbatch.types import Request

MINUTE = 60.0
WATCH = 10 * MINUTE  # instead of 26 hours


class Lost:
    """Loses the answer of the second create; its batch is listed after ``lag`` seconds, or never."""

    def __init__(self, api, clock, monkeypatch, lag):
        self.sizes = []
        self._refused_from = sys.maxsize
        create, page = api.create, api.page
        hidden = {}

        def losing(creation, timeout):
            self.sizes.append(creation.size)
            if len(self.sizes) >= self._refused_from:
                refused("")
            if len(self.sizes) != 2:
                return create(creation, timeout)
            if lag is not None:
                hidden[create(creation, timeout).id] = clock.now() + lag
            raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

        def lagging(after, timeout):
            batches = page(after, timeout).batches
            return BatchPage(tuple(b for b in batches if hidden.get(b.id, 0.0) <= clock.now()))

        monkeypatch.setattr(api, "create", losing)
        monkeypatch.setattr(api, "page", lagging)

    def refuse_from(self, create):
        self._refused_from = create


@pytest.fixture
def events():
    return []


@pytest.fixture
def start(client_of, clock, tmp_path, monkeypatch, events):
    """Submit three batches: the second is lost for ``lag`` seconds or forever, the third waits for room."""

    usual = StepLimits.of
    monkeypatch.setattr(StepLimits, "of", lambda config: evolve(usual(config), orphan_watch=WATCH))

    def begin(lag):
        remote = Remote(clock, turnaround=3 * MINUTE)
        assert remote.api is not None
        lost = Lost(remote.api, clock, monkeypatch, lag)
        settings = {
            "batch_on_unknown": "hold",
            "batch_settle": MINUTE,
            "batch_max_requests": 1,
            "observers": [events.append],
        }
        settings["batch_enqueued_tokens"] = 2 * estimate_request(Request("a"))
        return client_of(remote, store=str(tmp_path / "jobs.db"), **settings).submit_batch(
            ["a", "b", "c"]
        ), lost

    return begin


@pytest.mark.full
def test_whoever_waits_for_a_held_job_is_told_once_why_and_what_to_do(start, events):
    def told():
        return [event for event in events if isinstance(event, JobHeld)]

    job, _ = start(None)
    with pytest.raises(JobTimeout):
        job.wait(2 * MINUTE)
    assert told() == []
    with pytest.raises(JobTimeout):
        job.wait(2 * MINUTE)
    with pytest.raises(JobTimeout):
        list(job.results(timeout=MINUTE))
    assert len(told()) == 1
    assert told()[0].reason.startswith("held: it is unknown whether a batch was created")
    assert told()[0].remedy == f"smartbatch.job({job.id!r}).resume()"
    assert level_of(told()[0]) == "warning"


def test_each_way_to_wait_for_a_held_job_tells_it(start, events, clock):
    job, _ = start(None)
    clock.sleep(5 * MINUTE)
    assert job.status().state == "held"
    assert not any(isinstance(event, JobHeld) for event in events)
    assert not any(future.done() for future in job.futures()[1:])
    clock.sleep(MINUTE)
    assert [event.job_id for event in events if isinstance(event, JobHeld)] == [job.id]


@pytest.mark.full
def test_a_job_that_is_held_once_more_is_told_once_more(client_of, clock, tmp_path, events):
    remote = Remote(clock, batches=False, reply=refused)
    client = client_of(remote, store=str(tmp_path / "jobs.db"), observers=[events.append])
    job = client.submit_batch(["a"], batch_fallback="individual")
    for times in (1, 2):
        with pytest.raises(JobTimeout, match="the API key was rejected"):
            job.wait(10 * MINUTE)
        assert sum(isinstance(event, JobHeld) for event in events) == times
        job.resume()


def test_a_refused_item_is_open_again_only_once_its_job_is_held(client_of, clock, tmp_path, monkeypatch):
    """Otherwise the item would be sent once more in between."""
    states = []
    real = ItemTable.answer

    def looked_at(table, lease, *given, **named):
        stored = real(table, lease, *given, **named)
        states.append(client.job(lease.job_id).status().state)
        return stored

    monkeypatch.setattr(ItemTable, "answer", looked_at)
    client = client_of(Remote(clock, batches=False, reply=refused), store=str(tmp_path / "jobs.db"))
    job = client.submit_batch(["a"], batch_fallback="individual")
    with pytest.raises(JobTimeout, match="the API key was rejected"):
        job.wait(MINUTE)
    assert states == ["held"]


def test_items_under_way_do_not_hold_a_held_job_once_more(client_of, clock, tmp_path, events):
    def slowly_refused(prompt):
        clock.sleep(20.0 * int(prompt))
        raise ProviderError(f"bad key {prompt}", kind=ErrorKind.AUTH_ERROR, status=401)

    remote = Remote(clock, batches=False, reply=slowly_refused)
    client = client_of(remote, store=str(tmp_path / "jobs.db"), observers=[events.append])
    job = client.submit_batch(["1", "2", "3"], batch_fallback="individual")
    with pytest.raises(JobTimeout, match="bad key 1"):
        job.wait(10 * MINUTE)
    assert sum(isinstance(event, JobHeld) for event in events) == 1


def refused(_):
    raise ProviderError("bad key", kind=ErrorKind.AUTH_ERROR, status=401)


@pytest.mark.full
def test_a_batch_that_is_found_late_answers_the_question(start):
    job, lost = start(4 * MINUTE)
    assert job.wait(8 * MINUTE).completed == 3
    assert lost.sizes == [1, 1, 1]


@pytest.mark.full
def test_a_job_resumes_once_all_creates_are_known(start, tmp_path):
    """The note may come from another release, so the marks of the shards decide."""
    job, lost = start(4 * MINUTE)
    with pytest.raises(JobTimeout):
        job.wait(3.5 * MINUTE)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", timeout=10)) as database:
        database.execute("UPDATE job SET note = ?", (b"held: in other words",))
        database.commit()
    status = job.status()
    assert (status.state, status.note) == ("held", "held: in other words")
    assert job.wait(8 * MINUTE).completed == 3
    assert lost.sizes == [1, 1, 1]


@pytest.mark.full
def test_a_job_whose_question_was_answered_can_be_held_for_another_reason(start):
    job, lost = start(4 * MINUTE)
    with pytest.raises(JobTimeout):
        job.wait(3.5 * MINUTE)
    assert job.status().state == "held"
    lost.refuse_from(3)
    with pytest.raises(JobTimeout, match="the API key was rejected"):
        job.wait(60 * MINUTE)
    assert (job.status().state, lost.sizes) == ("held", [1, 1, 1])


@pytest.mark.full
def test_after_the_watch_it_is_certain_and_goes_again(start):
    job, lost = start(None)
    assert job.wait(60 * MINUTE).completed == 3
    assert job.status().elapsed > WATCH
    assert lost.sizes == [1, 1, 1, 1]


@pytest.mark.full
def test_a_person_who_resumes_it_is_believed(start):
    job, lost = start(None)
    with pytest.raises(JobTimeout):
        job.wait(4 * MINUTE)
    job.resume()
    assert job.wait(20 * MINUTE).completed == 3
    assert lost.sizes == [1, 1, 1, 1]
