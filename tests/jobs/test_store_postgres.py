"""PostgreSQL stores when the connection, the server or another session fails."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from attrs import evolve
from jobs.relay import Relay
from jobs.stores import Bench, led, new_items, result, started
from psycopg.conninfo import conninfo_to_dict
from realtime.scenes import eventually

from smartbatch._database import Address
from smartbatch.errors import ConfigError, StoreError
from smartbatch.jobs.records import IncidentRow, ItemName, JobPolicy, LeaseLost, NewItem
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import jobs as jobs_module
from smartbatch.jobs.store import open_store, postgres
from smartbatch.jobs.store.postgres import PostgresDatabase, SessionLocks
from tests.levels import sampled

PASSWORD = "hunter2-%2F-secret"


@pytest.fixture
def bench(postgres_address, tmp_path):
    made = Bench("postgres", postgres_address, tmp_path)
    yield made
    made.close()


@pytest.fixture
def relay(postgres_address):
    made = Relay(conninfo_to_dict(postgres_address))
    yield made
    made.close()


def through(relay, bench, **settings):
    user = conninfo_to_dict(bench.place.partition("?schema")[0].partition("&schema")[0])
    query = f"host={relay.folder}&sslmode=disable&gssencmode=disable&schema={bench.schema}"
    place = f"postgresql://{user['user']}@/{user['dbname']}?{query}"
    return bench.open(place, **{"patience": 5.0, **settings})


@pytest.mark.full
def test_a_commit_that_happened_although_its_answer_was_lost_counts_once(relay, bench):
    store = through(relay, bench)
    job, lease = started(store, bench, 6)
    cuts = 0

    def cut():
        nonlocal cuts
        cuts += 1
        relay.cut_at(b"COMMIT", pass_on=True)

    cut()
    assert store.jobs.accept(bench.job(key="k"), new_items(3))[1]
    assert store.jobs.get("k") is not None
    cut()
    shard = store.shards.plan(lease, bench.shard(0, 1, 2))
    cut()
    shard = store.shards.advance(lease, shard, ShardState.READY)
    cut()
    intended = store.shards.mark_submitting(lease, shard, exclusive=True)
    assert store.shards.get(shard.id) == intended
    shard = led_on(store, lease, intended)
    cut()
    assert store.shards.ingest(lease, shard, [result(0), result(1)], at=1.0).final == (0, 1)
    cut()
    assert store.shards.settle(lease, shard, realtime=[2], at=2.0).state is ShardState.SETTLED
    cut()
    assert [item.ix for item in store.items.claim_realtime(lease, 5)] == [2]
    cut()
    assert store.facts.add_incident(lease, IncidentRow("kind", job.id, None, "x", None, 1.0))
    cut()
    assert store.items.drop_unsent(lease, b"", at=3.0) == 3
    cut()
    store.leases.release(lease)
    found = bench.open().jobs.get(job.id)
    assert (found.succeeded, found.cancelled, found.owner) == (2, 3, None)
    assert [row.ix for row in store.items.results(job.id)] == [0, 1, 3, 4, 5]
    assert relay.cuts == cuts == 10


def led_on(store, lease, shard):
    for state in (ShardState.SUBMITTED, ShardState.ENDED, ShardState.INGESTING):
        shard = store.shards.advance(lease, shard, state)
    return shard


@pytest.mark.full
def test_a_commit_that_never_reached_the_server_is_an_error(relay, bench):
    store = through(relay, bench)
    job, lease = started(store, bench, 6)
    new = bench.shard(0, 1)
    relay.cut_at(b"COMMIT", pass_on=False)
    with pytest.raises(StoreError, match="nothing was written; try again"):
        store.shards.plan(lease, new)
    assert relay.cuts == 1
    assert store.shards.of_job(job.id) == []
    assert store.shards.plan(lease, new).no == 1
    relay.cut_at(b"COMMIT", pass_on=False)
    with pytest.raises(StoreError, match="nothing was written"):
        store.jobs.accept(bench.job(key="k"), new_items(3))
    assert store.jobs.get("k") is None
    assert store.jobs.accept(bench.job(key="k"), new_items(3))[1]


@pytest.mark.full
def test_a_commit_that_nobody_can_look_up_is_told_as_unknown(relay, bench):
    store = through(relay, bench)
    _, lease = started(store, bench, 6)
    relay.cut_at(b"COMMIT", pass_on=True)

    def vanish():
        os.rename(f"{relay.folder}/.s.PGSQL.5432", f"{relay.folder}/away")
        bench.behind(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'smartbatch' AND state = 'idle'"
        )
        return b"digest"

    with pytest.raises(StoreError, match="it is unknown whether the write succeeded: read before"):
        store.jobs.accept(bench.job(key="k"), new_items(3), digest=vanish)
    os.rename(f"{relay.folder}/away", f"{relay.folder}/.s.PGSQL.5432")
    found = store.jobs.get("k")
    assert (found.total, found.digest) == (3, b"digest")
    assert store.leases.renew([lease], 60) == [lease]


@pytest.mark.parametrize("word", sampled([b"INSERT INTO shard_items", b"UPDATE item", b"FOR UPDATE"]))
def test_a_wire_cut_in_the_middle_of_a_write_leaves_nothing_of_it(relay, bench, word):
    store = through(relay, bench)
    job, lease = started(store, bench, 6)
    relay.cut_at(word, pass_on=True)
    with pytest.raises(StoreError, match="lost the connection: nothing was written"):
        store.shards.plan(lease, bench.shard(0, 1))
    assert relay.cuts == 1
    assert store.shards.of_job(job.id) == []
    assert len(store.items.in_state(job.id)) == 6
    assert store.shards.plan(lease, bench.shard(0, 1)).no == 1


def test_a_disconnected_owner_may_be_replaced_and_writes_nothing(relay, bench):
    store, other = through(relay, bench), bench.open()
    job, lease = started(store, bench)
    relay.cut_all()
    taken = None
    for _ in range(200):  # the server needs a moment to see it
        taken = taken or other.leases.claim(job.id, 60)
    assert taken is not None
    with pytest.raises(LeaseLost):
        store.shards.plan(lease, bench.shard(0))
    assert store.leases.renew([lease], 60) == []
    assert other.leases.renew([taken], 60) == [taken]


def test_a_job_committed_by_an_owner_that_seems_dead_keeps_its_items(relay, bench, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)
    store, other = through(relay, bench), bench.open()
    fresh, _ = other.jobs.accept(bench.job(), new_items(1))
    database = PostgresDatabase(Address.of(bench.place))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def cut():
        [(owner,)] = bench.behind("SELECT owner FROM incomplete_job")
        relay.cut_all()
        assert eventually(lambda: not SessionLocks(database).alive(owner))
        return JobPolicy()

    with closing(database), ThreadPoolExecutor(1) as pool:
        claims = []

        def claimed_meanwhile():
            claims.append(pool.submit(other.leases.claim, fresh.id, 60))
            assert eventually(lambda: claims[0].done() or bench.behind(waiting) != [(0,)])
            return b"digest"

        job, new = store.jobs.accept(bench.job(), new_items(25), digest=claimed_meanwhile, policy=cut)
        assert claims[0].result() is not None
    assert (new, job.total, len(store.items.in_state(job.id))) == (True, 25, 25)


def test_a_server_that_is_unavailable_is_an_error_that_names_it(bench, tmp_path):
    with pytest.raises(StoreError, match="cannot be reached") as told:
        open_store(f"postgresql://me:{PASSWORD}@/jobs?host={tmp_path}&connect_timeout=2")
    assert "check that the server is running" in str(told.value)
    assert "No such file or directory" in str(told.value)  # in the words of the driver
    assert "hunter2" not in str(told.value)


def test_a_server_that_goes_away_and_comes_back_is_used_again(relay, bench):
    store = through(relay, bench)
    job, lease = started(store, bench)
    os.rename(f"{relay.folder}/.s.PGSQL.5432", f"{relay.folder}/away")
    relay.cut_all()
    with pytest.raises(StoreError, match="cannot be reached"):
        store.jobs.get(job.id)
    with pytest.raises(StoreError, match="cannot be reached"):
        store.shards.plan(lease, bench.shard(0))
    os.rename(f"{relay.folder}/away", f"{relay.folder}/.s.PGSQL.5432")
    assert store.jobs.get(job.id) is not None
    assert store.shards.plan(lease, bench.shard(0)).no == 1


def test_one_session_at_a_time_holds_the_lock_of_an_owner(bench):
    databases = [PostgresDatabase(Address.of(bench.place)) for _ in range(2)]
    first, second = map(SessionLocks, databases)
    assert (first.alive("one"), first.take("one"), second.take("one")) == (False, True, False)
    second.leave()  # it holds nothing
    assert (second.alive("one"), second.alive("two")) == (True, False)
    first.leave()  # the server notices it a moment later
    assert eventually(lambda: second.take("one"))
    assert not first.take("one")
    bench.behind("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    assert eventually(lambda: not first.alive("one"))
    second.ensure()
    assert first.alive("one")
    second.abandon()
    assert eventually(lambda: not first.alive("one"))
    for database in databases:
        database.close()


@pytest.mark.parametrize("when", ["beginning", "read"])
def test_a_session_that_is_interrupted_is_closed(when, bench, monkeypatch):
    """A traceback could keep the connection, and the next read could take the late answer for its own."""
    database, used = PostgresDatabase(Address.of(bench.place)), []

    def interrupted(session, *_):
        used.append(session)
        if when == "read":
            session.execute("BEGIN")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if when == "read":
            patch.setattr(postgres, "_rows", interrupted)
        else:
            patch.setattr(psycopg.Connection, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            database.rows("SELECT 1")
    assert [session.closed for session in used] == [True]
    assert database.rows("SELECT 1") == [(1,)]
    database.close()


def test_of_two_that_store_one_name_at_once_the_second_finds_the_firsts(bench):
    one, other = bench.open(), bench.open()
    seconds = []

    def named(count):
        names = [ItemName("shared", "digest"), ItemName("own", "digest")]
        return [evolve(item, name=name) for item, name in zip(new_items(count), names, strict=False)]

    class Slow(list[NewItem]):
        def __iter__(self):
            yield self[0]
            seconds.append(pool.submit(accept, other, named(1)))
            while bench.behind("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
                """The second waits for the first."""
            yield self[1]

    def accept(store, items):
        return store.jobs.accept_named(bench.job(), items)[1]

    with ThreadPoolExecutor(1) as pool:
        first = accept(one, Slow(named(2)))
        assert seconds[0].result() == first[:1]
    assert [job.total for job in one.jobs.latest()] == [2]


@pytest.mark.full
def test_a_locked_row_is_an_error_after_a_bounded_wait(bench):
    store = bench.open(busy_timeout=0.1)
    job, lease = started(store, bench)
    with bench.writing("SELECT no FROM job WHERE id = ? FOR UPDATE", job.id):
        with pytest.raises(StoreError, match=r"locked: another process .* 100 ms"):
            store.shards.plan(lease, bench.shard(0))
        assert bench.open().leases.claim(job.id, 60) is None  # who claims does not wait at all
        assert store.jobs.get(job.id) is not None
    assert store.shards.plan(lease, bench.shard(0)).no == 1


@pytest.mark.full
def test_giving_up_the_store_ends_waits_for_the_server_at_once(bench):
    store = bench.open(busy_timeout=60.0)
    job, lease = started(store, bench)
    with ThreadPoolExecutor(1) as pool, bench.writing("SELECT no FROM job WHERE id = ? FOR UPDATE", job.id):
        waiting = pool.submit(store.shards.plan, lease, bench.shard(0))
        while bench.behind("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
            """It does not wait yet."""
        store.give_up()
        assert isinstance(waiting.exception(20.0), StoreError)


@pytest.mark.full
def test_a_process_frozen_during_a_write_loses_its_locks(bench):
    frozen, store = bench.open(busy_timeout=0.2), bench.open()

    def freeze():
        store.jobs.accept(bench.job(key="other"), [])  # waits until the server has ended the frozen session
        return b""

    with pytest.raises(StoreError, match="nothing was written"):
        frozen.jobs.accept(bench.job(key="frozen"), new_items(1), digest=freeze)
    assert store.jobs.get("other") is not None
    assert store.jobs.get("frozen") is None
    frozen.facts.remember("k", 1)  # with a new session


def test_reads_leave_no_transaction_open(bench):
    store = bench.open()
    job, lease = started(store, bench)
    store.items.results(job.id)
    store.leases.claimable()
    with pytest.raises(ValueError, match="at least one item"):
        store.shards.plan(lease, bench.shard())
    states = bench.behind("SELECT state FROM pg_stat_activity WHERE application_name = 'smartbatch'")
    assert states
    assert {state for (state,) in states} == {"idle"}


@pytest.mark.full
def test_leases_run_by_the_servers_clock_whatever_the_machines_say(bench):
    past, future = bench.open(wall=lambda: 0.0), bench.open(wall=lambda: 4e9)
    job, _ = past.jobs.accept(bench.job(), new_items(1))
    lease = past.leases.claim(job.id, 60)
    assert future.leases.claimable() == []
    assert future.leases.claim(job.id, 60) is None
    past.leases.release(lease)
    assert future.leases.claim(job.id, 60) is not None
    assert past.leases.claim(job.id, 60) is None
    (left,) = bench.behind("SELECT lease_until - extract(epoch FROM clock_timestamp()) FROM job")
    assert 50 < left[0] <= 60


@pytest.mark.full
def test_stores_in_two_schemas_of_a_server_know_nothing_of_each_other(bench, postgres_address, tmp_path):
    other = Bench("postgres", postgres_address, tmp_path)
    one, two = bench.open(), other.open()
    job, lease = started(one, bench, key="k")
    assert two.jobs.latest() == []
    assert two.jobs.accept(evolve(other.job(key="k"), id=job.id), new_items(1))[1]
    assert two.leases.claim(job.id, 60) is not None
    assert one.leases.renew([lease], 60) == [lease]
    assert one.spool != two.spool
    other.close()


@pytest.mark.full
def test_commits_are_durable_even_where_the_servers_default_is_not(bench, monkeypatch):
    sessions = []
    connect = psycopg.connect

    def watched(*args, **settings):
        sessions.append(connect(*args, **settings))
        return sessions[-1]

    monkeypatch.setattr(psycopg, "connect", watched)
    bench.open().facts.remember("k", 1)
    (dbname,) = bench.behind("SELECT current_database()")
    bench.behind(f'ALTER DATABASE "{dbname[0]}" SET synchronous_commit TO off')
    try:
        bench.open().facts.remember("k", 2)
        used = [session for session in sessions if not session.closed]
        assert len(used) == 4  # one that reads and one that writes, of each store
        assert {session.execute("SHOW synchronous_commit").fetchone() for session in used} == {("on",)}
    finally:
        bench.behind(f'ALTER DATABASE "{dbname[0]}" RESET synchronous_commit')


@pytest.mark.full
def test_a_user_without_rights_is_told_so(bench):
    bench.open().close()
    role = f"{bench.schema}_guest"
    bench.behind(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        asked = conninfo_to_dict(bench.place.partition("?schema")[0].partition("&schema")[0])
        at = f"host={asked.get('host', '')}&port={asked.get('port', 5432)}"
        with pytest.raises(StoreError, match="denies access to its user: grant it the schema"):
            open_store(f"postgresql://{role}:x@/{asked['dbname']}?{at}&schema={bench.schema}")
    finally:
        bench.behind(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        (
            f"postgresql://me:{PASSWORD}@db.example:5433/jobs",
            "postgresql://me@db.example:5433/jobs?schema=smartbatch",
        ),
        (
            f"postgres://db/jobs?user=me&password={PASSWORD}&schema=team_1",
            "postgresql://me@db/jobs?schema=team_1",
        ),
        ("postgresql:///jobs?host=/run/pg", "postgresql:///run/pg/jobs?schema=smartbatch"),
    ],
)
def test_an_address_is_shown_without_its_password(dsn, place):
    address = Address.of(dsn)
    assert address.place == place
    assert "hunter2" not in repr(address)
    assert "schema" not in address.parameters
    assert len(address.digest) == 12


def test_what_an_address_says_is_kept_and_the_rest_has_careful_defaults():
    address = Address.of("postgresql://db/jobs?connect_timeout=3&options=-c%20a%3Db&application_name=mine")
    assert address.parameters["options"] == "-c a=b"
    assert address.parameters["connect_timeout"] == "3"
    assert address.parameters["application_name"] == "mine"
    assert address.parameters["keepalives_idle"] == 20


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{PASSWORD}@db:port/jobs?x",
        f"postgresql://me:{PASSWORD}@[::1/jobs",
        f"postgresql://me:{PASSWORD}@db/jobs?colour=red",
        f"postgresql://me:{PASSWORD}@db/jobs?schema=a;drop",
        f"postgresql://me:{PASSWORD}@db/jobs?schema=",
        f"postgresql://me:a/{PASSWORD}@db/jobs",
        f"postgresql://me:a@{PASSWORD}@db/jobs",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_showing_it(dsn):
    with pytest.raises((ConfigError, StoreError)) as told:
        open_store(dsn)
    assert "hunter2" not in str(told.value)


@pytest.mark.full
def test_without_its_package_the_extra_is_named():
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from smartbatch import ConfigError\n"
        "from smartbatch.jobs.store import open_store\n"
        "try: open_store('postgresql://db/jobs')\n"
        "except ConfigError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'smartbatch-llm[postgres]'" in run.stdout


def test_errors_of_the_server_show_no_values_of_rows(bench):
    store = bench.open()
    _, lease = started(store, bench)
    store.shards.plan(lease, bench.shard(0, nonce="the-secret-nonce"))
    with pytest.raises(StoreError, match="rejected a statement") as told:
        store.shards.plan(lease, bench.shard(1, nonce="the-secret-nonce"))
    assert "secret" not in str(told.value)
    assert led(store, lease, store.shards.plan(lease, bench.shard(1)), ShardState.READY).no == 2
