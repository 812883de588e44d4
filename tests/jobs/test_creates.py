"""Creates of batches: limits, quotas, pauses, and requests that do not fit."""

from __future__ import annotations

import itertools
import json
from itertools import pairwise

import pytest
from attrs import evolve
from inside import inside
from jobs.remote import LONG, Api

from smartbatch import Price
from smartbatch.errors import BudgetExceeded, ErrorKind, InvalidRequest, ProviderError, StoreError
from smartbatch.events import JobIncident, ShardChanged
from smartbatch.jobs.records import OverJobBudget
from smartbatch.jobs.steps.create import MAX_FILE_TRIES
from smartbatch.jobs.store.leases import LeaseTable
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.types import Route


@pytest.fixture
def api(remote):
    assert remote.api is not None
    return remote.api


def test_a_page_instead_of_the_batch_api_is_waited_out_and_told(client_of, remote, api, clock, monkeypatch):
    """A gateway may return it while its server is down for a long time."""
    upload, find_file = Api.upload, Api.find_file
    until = clock.now() + 150  # some tries more than are made before it is told
    waited_for = []
    told = []

    def page_before(real, *args):
        if clock.now() < until:
            raise ProviderError("a page", kind=ErrorKind.CLIENT_ERROR, status=404, maybe_billed=True)
        waited_for.append(client.job("pages").status().note)
        return real(*args)

    def heard(event):
        if isinstance(event, JobIncident):
            told.append(event)

    monkeypatch.setattr(Api, "upload", lambda *args: page_before(upload, *args))
    monkeypatch.setattr(Api, "find_file", lambda *args: page_before(find_file, *args))
    client = client_of(remote, observers=[heard])
    results = client.submit_batch(["a", "b"], key="pages", batch_fallback="batch").results(timeout=LONG)
    assert [result.route for result in results] == [Route.BATCH] * 2
    assert [incident.kind for incident in told] == ["no_batch_api"]
    assert told[0].detail == (
        "waits for the Batch API: the server answers with a web page (404). "
        "If it has no batches, cancel the job and send its requests in real time"
    )
    assert waited_for[0] == told[0].detail


@pytest.mark.parametrize("sleeps", [False, True], ids=["frozen", "asleep"])
def test_an_intent_that_became_old_is_not_sent(sleeps, client_of, remote, api, clock, tmp_path):
    """Another machine may own the job by then. Sleep also stops the monotonic clock."""
    changes = []
    created = []

    def away(event):
        if not isinstance(event, ShardChanged):
            return
        if event.after == "submitting" and not created:
            created.append(api.calls.count("create"))
            if sleeps:
                clock.set_wall(3600.0)
            else:
                clock.sleep(6.0)
        changes.append(event)

    client = client_of(remote, store=str(tmp_path / "jobs.db"), observers=[away])
    assert client.submit_batch(["a"]).wait(LONG).completed == 1
    ways = [(change.before, change.after) for change in changes]
    assert ways.count(("ready", "submitting")) == 2
    assert ("submitting", "ready") in ways
    assert created == [0]
    assert api.calls.count("create") == 1


@pytest.mark.parametrize(
    ("fallback", "quota", "limits"),
    [
        ("individual", None, ""),
        ("batch", None, "(2,000 bytes); shorten it or"),
        ("batch", 700, "(2,000 bytes and 700 enqueued tokens); shorten it or"),
    ],
)
def test_a_request_too_large_for_a_batch_may_use_real_time(
    fallback, quota, limits, client_of, remote, api, tmp_path
):
    api.abilities = evolve(api.abilities, max_bytes=2000)
    client = client_of(remote, store=str(tmp_path / "jobs.db"), batch_enqueued_tokens=quota)
    job = client.submit_batch(["x" * 3000, "small"], batch_fallback=fallback)
    large, small = job.results(timeout=LONG)
    assert small.route is Route.BATCH
    if fallback == "individual":
        assert (large.ok, large.route) == (True, Route.INDIVIDUAL)
    else:
        assert isinstance(large.error, InvalidRequest)
        assert f"exceeds the limits of a batch {limits}" in str(large.error)


NO_BATCHES = "the Batch API cannot be used ({}): 2 requests are sent in real time"
BY_KEY = {"kind": ErrorKind.AUTH_ERROR}


@pytest.mark.parametrize(
    ("call", "status", "error", "fallback", "told"),
    [
        *(("create", status, {}, "individual", NO_BATCHES.format(status)) for status in (404, 405, 410, 501)),
        ("create", 403, BY_KEY, "individual", NO_BATCHES.format(403)),
        ("upload", 404, {}, "individual", NO_BATCHES.format(404)),
        ("create", 400, {}, "individual", None),
        ("upload", 404, {}, "batch", None),
        ("create", 422, {}, "batch", None),
    ],
)
def test_requests_of_a_refused_batch_use_real_time_or_fail(
    call, status, error, fallback, told, client, remote, api, monkeypatch
):
    refusal = ProviderError("not here", status=status, **{"kind": ErrorKind.CLIENT_ERROR, **error})
    tries = []

    def refuse(*_):
        tries.append(call)
        raise refusal

    monkeypatch.setattr(api, call, refuse)
    job = client.submit_batch(["a", "b"], batch_fallback=fallback)
    results = job.results(timeout=LONG)
    if fallback == "individual":
        assert [(result.text, result.route) for result in results] == [
            ("re: a", Route.INDIVIDUAL),
            ("re: b", Route.INDIVIDUAL),
        ]
    else:
        assert ["not here" in str(result.error) for result in results] == [True] * 2
        assert remote.asked == []
    assert [incident.detail for incident in job.incidents()] == ([] if told is None else [told])
    assert len(tries) == (MAX_FILE_TRIES if (call, status) == ("create", 404) else 1)


@pytest.mark.parametrize(
    ("call", "status", "kind", "fallback"),
    [
        ("create", 401, ErrorKind.AUTH_ERROR, "individual"),
        ("upload", 403, ErrorKind.NO_MONEY, "individual"),
        ("create", 403, ErrorKind.AUTH_ERROR, "batch"),
    ],
)
def test_a_job_whose_account_cannot_be_used_is_held(
    call, status, kind, fallback, client, remote, api, clock, monkeypatch
):
    def refuse(*_):
        raise ProviderError("pay first", status=status, kind=kind)

    with monkeypatch.context() as patch:
        patch.setattr(api, call, refuse)
        job = client.submit_batch(["a", "b"], batch_fallback=fallback)
        clock.sleep(60.0)
        assert (job.status().state, remote.asked, api.made) == ("held", [], {})
        assert "pay first" in job.status().note
    job.resume()
    assert job.wait(LONG).completed == 2
    assert remote.asked == []


@pytest.mark.catches("StoreError")
@pytest.mark.parametrize("kept_out", ["by its budget", "by its size"])
def test_excluded_requests_stay_out_while_the_store_fails(
    kept_out, client_of, remote, api, tmp_path, monkeypatch
):
    tries = itertools.count()
    write = LeaseTable.write

    def failing_first(*given):
        if next(tries) % 2 == 0:
            raise StoreError("the store is locked")
        return write(*given)

    monkeypatch.setattr(LeaseTable, "write", failing_first)
    settings = {}
    if kept_out == "by its budget":
        settings = {"budget": 0.001, "prices": {"remote:default": Price(input=1000.0, output=1000.0)}}
    else:
        api.abilities = evolve(api.abilities, max_bytes=2000)
    client = client_of(remote, store=str(tmp_path / "jobs.db"), **settings)
    job = client.submit_batch(["x" * 3000, "y" * 3000], batch_fallback="batch")
    error = BudgetExceeded if kept_out == "by its budget" else InvalidRequest
    assert [type(result.error) for result in job.results(timeout=LONG)] == [error] * 2
    assert "create" not in api.calls
    assert remote.asked == []


def test_a_budget_buys_what_fits_and_the_rest_is_told_its_price(client_of, remote, store):
    prices = {"remote:default": Price(input=1000.0, output=1000.0)}
    client = client_of(remote, store=store, prices=prices)
    job = client.submit_batch(["x" * 300, "y", "z" * 90], batch_fallback="batch", budget=0.03, max_tokens=10)
    large, small, middle = job.results(timeout=LONG)
    assert small.ok
    assert str(large.error) == str(middle.error)
    assert "2 requests were not sent: the cheapest could cost up to $0.04, and" in str(large.error)


@pytest.mark.full
@pytest.mark.parametrize("labels", [True, False])
def test_an_unknown_create_delays_others_only_without_labels(
    labels, client_of, remote, api, clock, monkeypatch
):
    """Without labels, a batch that turns up could belong to either shard."""
    api.abilities = evolve(api.abilities, labels=labels, fence=labels)
    create = Api.create
    sent = []

    def first_is_lost(self, creation, timeout):
        sent.append(clock.now())
        if len(sent) == 1:
            raise ProviderError("cut", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)
        batch = create(self, creation, timeout)
        return batch if labels else evolve(batch, mark=None)

    monkeypatch.setattr(Api, "create", first_is_lost)
    client = client_of(remote, batch_max_requests=6, batch_settle=600)
    assert client.submit_batch([f"p{n}" for n in range(12)]).wait(LONG).completed == 12
    assert (sent[1] - sent[0] < 60.0) == labels
    assert (sent[1] - sent[0] >= 600.0) == (not labels)


def test_a_briefly_refused_create_is_repeated_after_a_pause(client_of, remote, api, clock, monkeypatch):
    create = Api.create
    sent = []

    def busy_once(self, creation, timeout):
        sent.append(clock.now())
        if len(sent) == 1:
            raise ProviderError("busy", kind=ErrorKind.SERVER_ERROR, status=503)
        return create(self, creation, timeout)

    monkeypatch.setattr(Api, "create", busy_once)
    job = client_of(remote).submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert len(api.made) == 1
    assert 0.5 <= sent[1] - sent[0] <= 10.0
    assert job.incidents() == []


@pytest.mark.parametrize("lost", [False, True], ids=["told", "found"])
def test_a_file_still_being_processed_is_waited_for(lost, client_of, remote, api, clock, monkeypatch):
    upload, find_file = Api.upload, Api.find_file
    ready = clock.now() + 9.0
    looks = []

    def processed(file):
        return evolve(file, ready=clock.now() >= ready)

    def sent(self, name, source, timeout):
        file = upload(self, name, source, timeout)
        if lost:
            raise ProviderError("no answer", kind=ErrorKind.TIMEOUT, maybe_billed=True)
        looks.append(clock.now())
        return processed(file)

    def found(self, name, timeout):
        looks.append(clock.now())
        file = find_file(self, name, timeout)
        return None if file is None else processed(file)

    monkeypatch.setattr(Api, "upload", sent)
    monkeypatch.setattr(Api, "find_file", found)
    assert client_of(remote).submit_batch(["a"]).wait(LONG).completed == 1
    assert api.calls.count("upload") == api.calls.count("create") == 1
    assert [round(later - look, 1) for look, later in pairwise(looks)] == [2.0] * (len(looks) - 1)
    assert ready <= looks[-1] < ready + 2.0


CODE = "token_limit_exceeded"


def full(limit):
    named = "" if limit is None else f" Limit: {limit} enqueued tokens."
    return ProviderError(
        f"Enqueued token limit reached.{named}", kind=ErrorKind.RATE_LIMIT, status=429, code=CODE
    )


def takes(monkeypatch, api, requests, limit):
    sizes = []
    create = api.create

    def picky(creation, timeout):
        sizes.append(creation.size)
        if creation.size > requests:
            raise full(limit)
        return create(creation, timeout)

    monkeypatch.setattr(api, "create", picky)
    return sizes


@pytest.mark.full
def test_a_batch_above_the_limit_that_its_refusal_names_is_cut_at_once(client, api, monkeypatch):
    per_request = 10  # estimated tokens, about: the limit is three requests
    sizes = takes(monkeypatch, api, 4, 3 * per_request)
    job = client.submit_batch([f"p{n}" for n in range(20)])
    assert job.wait(LONG).completed == 20
    assert [size for size in sizes if size > 4] == [20]


@pytest.mark.full
def test_a_batch_refused_repeatedly_while_it_is_alone_is_halved(client, api, monkeypatch):
    """Gemini names no limit."""
    sizes = takes(monkeypatch, api, 5, None)
    job = client.submit_batch([f"p{n}" for n in range(20)])
    assert job.wait(LONG).completed == 20
    assert sizes[:6] == [20, 20, 20, 10, 10, 10]


def test_a_full_quota_that_others_use_halves_nothing(client, api, monkeypatch):
    create, refusals = api.create, iter([full(None), full(None)])

    def busy(creation, timeout):
        if (refusal := next(refusals, None)) is not None:
            raise refusal
        return create(creation, timeout)

    monkeypatch.setattr(api, "create", busy)
    assert client.submit_batch([f"p{n}" for n in range(20)]).wait(LONG).completed == 20
    assert [len(batch.lines) for batch in api.made.values()] == [20]


@pytest.mark.full
def test_batches_refused_in_validation_although_they_fit_become_smaller(client, api, monkeypatch):
    """The provider may count more tokens than the estimate."""
    shown = api.shown

    def failing(batch):
        found = shown(batch)
        if (found.total or 0) <= 5:
            return found
        error = full(1_000_000)
        return RemoteBatch(found.id, RemoteState.FAILED, "failed", found.created_at, found.mark, error=error)

    monkeypatch.setattr(api, "shown", failing)
    assert client.submit_batch([f"p{n}" for n in range(20)]).wait(LONG).completed == 20


@pytest.mark.full
def test_batches_grow_again_when_they_pass(client, api, monkeypatch):
    takes(monkeypatch, api, 5, None)
    client.submit_batch([f"p{n}" for n in range(20)]).wait(LONG)
    monkeypatch.undo()
    for _ in range(12):  # each batch that passes doubles what the next may have
        client.submit_batch(["one"]).wait(LONG)
    made = len(api.made)
    client.submit_batch([f"p{n}" for n in range(40)]).wait(LONG)
    assert len(api.made) == made + 1


def enqueued(api):
    return sum(len(batch.lines) for batch in api.made.values() if not api.shown(batch).state.ended)


@pytest.mark.full
def test_processes_with_other_stores_share_enqueued_tokens(
    client_of, clock, remote, api, tmp_path, monkeypatch
):
    create, most = api.create, []

    def noted(creation, timeout):
        made = create(creation, timeout)
        most.append(enqueued(api))
        return made

    monkeypatch.setattr(api, "create", noted)
    shared = f"sqlite:///{tmp_path / 'limits.db'}"
    told = [{"batch_enqueued_tokens": 300}, {}, {}]
    clients = [
        client_of(remote, store=str(tmp_path / f"{number}.db"), shared=shared, seed_of_rng=number, **settings)
        for number, settings in enumerate(told)
    ]
    jobs = []
    for client in clients:
        jobs.append(client.submit_batch([f"p{n}" for n in range(20)]))
        clock.sleep(5.0)  # the first of them tells the others of the limit
    assert [job.wait(LONG).completed for job in jobs] == [20, 20, 20]
    assert most == [20, 20, 20]


MIB = 2**20


def test_where_batches_have_no_label_no_two_open_ones_are_of_one_size(client, remote, clock):
    remote.api.abilities = evolve(remote.api.abilities, labels=False)
    first = client.submit_batch([f"a{n}" for n in range(6)])
    while not remote.api.made:
        clock.sleep(1.0)
    second = client.submit_batch([f"b{n}" for n in range(6)])
    assert [job.wait(LONG).completed for job in (first, second)] == [6, 6]
    sizes = [len(batch.lines) for batch in remote.api.made.values()]
    assert sum(sizes) == 12
    assert len(sizes) == len(set(sizes)) == 3


def test_a_shard_that_finds_no_room_in_the_budget_is_cut_anew_at_once(client, clock, monkeypatch):
    plan, planned = ShardTable.plan, []

    def without_room(table, lease, new):
        planned.append(clock.now())
        if len(planned) == 1:
            raise OverJobBudget("no room")
        return plan(table, lease, new)

    monkeypatch.setattr(ShardTable, "plan", without_room)
    assert client.submit_batch(["a", "b"]).wait(LONG).completed == 2
    assert len(planned) == 2
    assert planned[1] == planned[0]


@pytest.mark.full
@pytest.mark.parametrize(("more", "fetched"), [(0, True), (1, False)])
def test_results_take_two_copies_of_the_requests_and_4_mib_each(client, remote, monkeypatch, more, fetched):
    download, tries = remote.api.download, []

    def large(batch, output, timeout):
        (shard,) = inside(client).jobs.engine.store.shards.of_job(job.id)
        whole = b"".join(download(batch, output, timeout))
        room = 2 * shard.bytes + 4 * MIB + more - len(whole)
        form = json.loads(whole) | {"pad": ""}
        line = json.dumps(form | {"pad": "x" * (room - len(json.dumps(form)) + len(whole) - 1)}).encode()
        tries.append(len(line))
        yield line + b"\n" if len(tries) == 1 else whole

    monkeypatch.setattr(remote.api, "download", large)
    job = client.submit_batch(["ask"])
    assert job.wait(LONG).completed == 1
    assert (len(tries) == 1) is fetched
    assert ([incident.kind for incident in job.status().incidents] == []) is fetched
