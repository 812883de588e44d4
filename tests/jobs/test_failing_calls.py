"""Batches that expired or vanished, and remote calls that fail."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from jobs.remote import LONG, Api, Remote

from smartbatch.errors import ErrorKind, JobTimeout, ProviderError, RequestCancelled, StoreError
from smartbatch.jobs.steps import orphans
from smartbatch.observe import logs
from smartbatch.providers.batch_api import LineOutcome, RemoteState


@pytest.fixture
def ignored(monkeypatch):
    lines = []

    def warn(event, **fields):
        if event == "job_call_ignored":
            lines.append((fields["call"], fields["kind"]))

    monkeypatch.setattr(logs, "warn", warn)
    return lines


def no_network(*_):
    raise ProviderError("no network", kind=ErrorKind.NETWORK_ERROR)


def test_a_list_that_cannot_be_searched_for_duplicates(client_of, clock, monkeypatch, ignored):
    remote = Remote(clock)
    page = Api.page

    def flaky(self, after, timeout):
        return no_network() if self.made and not ignored else page(self, after, timeout)

    monkeypatch.setattr(Api, "page", flaky)
    assert client_of(remote).submit_batch(["a", "b"]).wait(LONG).completed == 2
    assert ignored == [("list of batches", "network_error")]


def test_an_input_file_that_cannot_be_searched_for(client_of, clock, monkeypatch, ignored):
    def refuse(*_):
        raise ProviderError("no such model", kind=ErrorKind.CLIENT_ERROR, status=400)

    monkeypatch.setattr(Api, "create", refuse)
    monkeypatch.setattr(Api, "find_file", no_network)
    assert client_of(Remote(clock)).submit_batch(["a", "b"]).wait(LONG).failed == 2
    assert ignored == [("search for an input file", "network_error")]


def test_a_batch_that_cannot_be_polled_after_its_cancel_was_refused(client_of, clock, monkeypatch, ignored):
    remote = Remote(clock, turnaround=500.0)
    cancel, get = Api.cancel, Api.get

    def unknown(self, batch_id, timeout):
        if ignored:
            cancel(self, batch_id, timeout)
        else:
            raise ProviderError("no such batch", kind=ErrorKind.CLIENT_ERROR, status=404)

    job = client_of(remote).submit_batch(["a", "b"])
    clock.sleep(60.0)
    monkeypatch.setattr(Api, "cancel", unknown)
    monkeypatch.setattr(
        Api, "get", lambda self, *args: get(self, *args) if ignored or not cancelled else no_network()
    )
    cancelled = True
    job.cancel()
    assert job.wait(LONG).cancelled == 2
    assert ignored == [("poll of a batch", "network_error")]


@pytest.mark.catches("StoreError")
def test_an_error_of_the_store_is_not_taken_for_one_of_the_provider(client_of, clock, monkeypatch):
    def lost(*_):
        raise ProviderError("no answer", kind=ErrorKind.TIMEOUT, maybe_billed=True)

    def full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(Api, "create", lost)
    job = client_of(Remote(clock)).submit_batch(["a", "b"])
    clock.sleep(0.5)
    monkeypatch.setattr(orphans, "find_orphans", full)
    clock.sleep(5.0)
    assert job.status().note == "the disk is full"


HOUR = 3600.0


@pytest.fixture
def remote(clock):
    return Remote(clock, turnaround=10 * HOUR)


@pytest.fixture
def api(remote, monkeypatch):
    """A Batch API that answers 404 to the cancel of an unknown batch."""
    api = remote.api
    cancel = api.cancel

    def strict(batch_id, timeout):
        if batch_id not in api.made:
            raise ProviderError("no such batch", kind=ErrorKind.CLIENT_ERROR, status=404)
        cancel(batch_id, timeout)

    monkeypatch.setattr(api, "cancel", strict)
    return api


@pytest.fixture
def job(client_of, remote, api, clock, tmp_path):
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    clock.sleep(60.0)
    api.made.clear()
    clock.sleep(2 * HOUR)
    return job


@pytest.mark.full
def test_a_vanished_batch_is_told_and_not_sent_again(job, api):
    with pytest.raises(JobTimeout, match="no longer knows the batch"):
        job.wait(HOUR)
    assert [incident.kind for incident in job.incidents()] == ["batch_vanished"]
    assert api.calls.count("create") == 1


@pytest.mark.full
def test_a_job_whose_batch_has_vanished_ends_when_it_is_cancelled(job, api):
    job.cancel()
    status = job.wait(HOUR)
    assert (status.state, status.cancelled) == ("done", 2)
    assert {type(result.error) for result in job.results()} == {RequestCancelled}
    assert api.calls.count("create") == 1


def test_a_batch_cancelled_before_it_is_seen_is_cancelled(client_of, remote, api, clock, tmp_path):
    """The provider may not list the batch yet."""
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    clock.sleep(1.0)
    hidden = dict(api.made)
    api.made.clear()
    job.cancel()
    clock.sleep(20.0)
    api.made.update(hidden)
    assert job.wait(HOUR).cancelled == 2
    assert all(batch.cancelled for batch in api.made.values())


@pytest.mark.full
def test_a_missing_line_next_to_an_unprocessed_one_is_waited_for(client_of, clock, tmp_path, monkeypatch):
    """The batch may have run requests that it reports nothing about."""
    remote = Remote(clock)
    api = remote.api
    shown, download, read_line = api.shown, api.download, api.read_line
    sent = []

    def expired(batch):
        found = shown(batch)
        if found.state is RemoteState.COMPLETED and found.id == next(iter(api.made)):
            return evolve(found, state=RemoteState.EXPIRED, completed=None)
        return found

    def late(batch, output, timeout):
        lines = list(download(batch, output, timeout))
        sent.append([json.loads(line)["prompt"] for line in lines])
        first = len(sent) == 1
        yield from lines[:1] if first else lines

    def unrun(line, kind):
        found = read_line(line, kind)
        if len(api.made) == 1 and json.loads(line)["prompt"] == "not run":
            return evolve(found, outcome=LineOutcome.UNRUN, answer=None)
        return found

    monkeypatch.setattr(api, "shown", expired)
    monkeypatch.setattr(api, "download", late)
    monkeypatch.setattr(api, "read_line", unrun)
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["not run", "run"])
    assert [result.text for result in job.results(timeout=1e6)] == ["by batch: not run", "by batch: run"]
    assert sent == [["not run", "run"], ["not run", "run"], ["not run"]]
    assert job.incidents() == []
