"""Decisions, spending and errors that a client saves in the store."""

from __future__ import annotations

import signal

import pytest
from frameworks.run_script import run_script
from inside import inside
from jobs.remote import Remote

from smartbatch.errors import ErrorKind, ProviderError, SmartbatchError, StoreError
from smartbatch.jobs.client_store import SAVE_SECONDS
from smartbatch.jobs.store import open_store
from smartbatch.types import Request
from tests.levels import sampled

PROMPTS = ["one", "two", "three"]
MODEL = "remote:default"
SOON = 12.0  # virtual seconds until notes are saved


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "jobs.db")


@pytest.fixture
def client(client_of, remote, place):
    return client_of(remote, store=place)


@pytest.fixture
def other(client, place):
    client.start()
    store = open_store(place)
    yield store
    store.close()


def spent(store):
    return {each.route: (each.requests, each.failed) for each in store.summaries.spending(0.0)}


def test_the_decision_on_a_list_in_real_time_is_there_soon_and_measured(client, other, clock):
    client.generate(PROMPTS)
    clock.sleep(SOON)
    [listed] = other.summaries.decisions(limit=50)
    found = other.summaries.numbered(listed.no)
    assert (found.route, found.requests, found.job_id) == ("individual", 3, None)
    assert (found.p50, found.model) == (found.decision.chosen.p50, MODEL)
    assert found.measured.seconds <= SOON
    assert found.measured.cost == 0.0


def test_a_list_that_is_still_read_is_there_without_what_it_took(client, other, clock):
    results = client.map(PROMPTS)
    next(results)
    clock.sleep(SOON)
    assert [found.measured for found in other.summaries.decisions(limit=50)] == [None]
    assert len(list(results)) == 2
    clock.sleep(SOON)
    [found] = other.summaries.decisions(limit=50)
    assert found.measured.seconds >= SOON


WAYS = {
    "a list by batch": lambda client: client.generate(PROMPTS, strategy="batch"),
    "a job with a deadline": lambda client: client.submit_batch(PROMPTS, deadline="2h").wait(),
    "a list with a key": lambda client: client.generate(PROMPTS, key="k"),
    "a plan that ran": lambda client: client.plan(PROMPTS, strategy="batch").run(),
    "a run": lambda client: client.submit_run(PROMPTS, client.plan(PROMPTS)).wait(),
}


@pytest.mark.parametrize("way", sampled(WAYS, keep=3))
def test_the_decision_of_a_job_is_stored_with_the_job_and_once(client, other, clock, way):
    WAYS[way](client)
    [job] = other.jobs.latest()  # as soon as the job is there: not after some seconds
    found = other.summaries.decision(job.id)
    assert (found.job_id, found.requests) == (job.id, 3)
    assert job.policy.route is found.decision.chosen.route
    assert job.finished_at is not None
    assert found.measured.seconds == job.finished_at - job.created_at
    clock.sleep(SOON)
    assert [each.no for each in other.summaries.decisions(limit=50)] == [found.no]


def test_a_job_whose_route_nobody_chose_has_no_decision(client, other):
    job = client.submit_batch(PROMPTS)
    assert other.summaries.decision(job.id) is None


def test_a_list_of_a_client_that_names_no_store_is_written_soon_too(client_of, clock, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    client = client_of(Remote(clock))
    client.generate(PROMPTS * 2)
    store = open_store(None)
    clock.sleep(1.0)  # lets the thread write that was started
    clock.sleep(SAVE_SECONDS + 1.0)
    client.generate(PROMPTS * 2)
    clock.sleep(1.0)
    assert len(store.summaries.decisions(limit=50)) == 2
    assert not inside(client).jobs.engine.is_working
    store.close()


@pytest.mark.full
def test_a_process_that_is_killed_has_left_what_its_jobs_came_to(place):
    ended = run_script(
        f"""
        import smartbatch
        from smartbatch.testing import MockProvider
        client = smartbatch.BatchingClient(MockProvider(), store={place!r}, shared="off")
        client.generate(["a", "b", "c"], key="k")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert ended.code == -signal.SIGKILL
    store = open_store(place)
    [job] = store.jobs.latest()
    found = store.summaries.decision(job.id)
    assert found.measured is not None
    assert sum(requests for requests, _ in spent(store).values()) == 3
    store.close()


def test_requests_in_real_time_are_counted_soon_and_by_route(client, other, clock):
    for prompt in PROMPTS:
        client.submit(prompt).result()
    clock.sleep(SOON)
    assert spent(other) == {"individual": (3, 0)}
    [each] = other.summaries.spending(clock.wall())
    assert (each.model, each.input_tokens > 0, each.hour <= clock.wall()) == (MODEL, True, True)
    clock.sleep(SOON)
    assert spent(other) == {"individual": (3, 0)}


def test_what_is_left_at_a_stop_is_written(client, other):
    client.submit("one").result()
    client.generate(PROMPTS)
    client.stop()
    assert sum(requests for requests, _ in spent(other).values()) == 4
    assert len(other.summaries.decisions(limit=50)) == 1


def test_a_request_of_a_job_is_counted_only_with_its_stored_result(client_of, clock, place):
    def reply(prompt):
        if prompt == "two":
            raise ProviderError("the provider answered 400: no", kind=ErrorKind.CLIENT_ERROR)
        return prompt

    client = client_of(Remote(clock, batches=False, reply=reply), store=place, batch_fallback="individual")
    job = client.submit_batch(PROMPTS)
    job.wait()
    store = open_store(place)
    expected = {"individual": (3, 1)}
    assert spent(store) == expected
    [group] = store.summaries.error_groups()
    assert (group.count, group.job_id, group.row) == (1, job.id, 1)
    clock.sleep(SOON)
    client.stop()
    assert spent(store) == expected
    assert [each.count for each in store.summaries.error_groups()] == [1]
    store.close()


def test_errors_in_real_time_are_grouped_with_an_example(client_of, clock, place):
    def reply(prompt):
        raise ProviderError(f"the provider answered 400: {prompt}", kind=ErrorKind.CLIENT_ERROR)

    client = client_of(Remote(clock, reply=reply), store=place)
    for number in range(4):
        future = client.submit(Request(f"bad row-{number}", id=f"mine-{number}"))
        assert isinstance(future.exception(), SmartbatchError)
    client.stop()
    store = open_store(place)
    [group] = store.summaries.error_groups()
    assert (group.kind, group.message) == ("client_error", "the provider answered 400: bad #")
    assert (group.count, group.request_id, group.model) == (4, "mine-3", MODEL)
    assert spent(store) == {"individual": (4, 4)}
    store.close()


def test_what_cannot_be_written_is_kept_and_written_later(client, other, clock, monkeypatch):
    client.generate(PROMPTS)
    tables = inside(client).jobs.engine.store.summaries

    def refuse(*_, **__):
        raise StoreError("locked")

    with monkeypatch.context() as patched:
        patched.setattr(type(tables), "write", refuse)
        clock.sleep(SOON)
        assert spent(other) == {}
        client.submit("four").result()
        clock.sleep(SOON)
    clock.sleep(SOON)
    assert sum(requests for requests, _ in spent(other).values()) == 4
    assert len(other.summaries.decisions(limit=50)) == 1
