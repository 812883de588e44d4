"""A store of another version is left unchanged, and statements name states by their enums."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from jobs.stores import bench, new_items

from smartbatch.errors import StoreError
from smartbatch.jobs.records import JobState
from smartbatch.jobs.shard_records import RemoteProgress, ShardState
from smartbatch.jobs.store import database
from smartbatch.jobs.store.schema import SCHEMA_VERSION

__all__ = ["bench"]  # fixtures


def stored_version(bench):
    return int(bench.behind("SELECT version FROM schema_version")[0][0])


@pytest.fixture
def store(bench):
    opened = bench.open()
    job, _ = opened.jobs.accept(bench.job(), new_items(3))
    lease = opened.leases.claim(job.id, 60)
    assert lease is not None
    opened.shards.plan(lease, bench.shard(0, 1, 2))
    return opened


def the_job(store):
    (job,) = store.jobs.latest()
    return job


def test_a_new_store_has_the_present_version_and_keeps_it(bench, store):
    known = the_job(store)
    store.close()
    assert stored_version(bench) == SCHEMA_VERSION == 4
    reopened = the_job(bench.open())
    assert (reopened.id, reopened.digest, reopened.total) == (known.id, known.digest, 3)
    assert stored_version(bench) == SCHEMA_VERSION


@pytest.mark.parametrize("version", [0, 1, 10])
def test_a_store_of_another_version_is_refused_with_advice(bench, store, version):
    bench.behind("UPDATE schema_version SET version = ?", version)
    store.close()
    advice = rf"has version {version}, but .* uses version 4; use the release that wrote it"
    with pytest.raises(StoreError, match=advice):
        bench.open()
    assert stored_version(bench) == version


def test_an_existing_store_is_opened_without_a_write(bench):
    bench.open()
    with bench.writing("UPDATE schema_version SET version = version"):
        assert bench.open(busy_timeout=0.2).jobs.latest() == []


@pytest.mark.parametrize("change", [{"version": 3}, {"version": 3, "colour": "red"}])
@pytest.mark.parametrize(
    ("table", "column", "kind"), [("job", "policy", "JobPolicy"), ("shard", "remote", "RemoteProgress")]
)
def test_a_record_of_a_newer_release_is_refused_and_left_as_it_is(bench, store, table, column, kind, change):
    job_id = the_job(store).id
    newer = json.dumps(change)
    bench.behind(f"UPDATE {table} SET {column} = ?", newer)
    with pytest.raises(StoreError, match=rf"a {kind} in the store has version 3.*Update smartbatch"):
        store.shards.of_job(job_id) if table == "shard" else store.jobs.get(job_id)
    assert bench.behind(f"SELECT {column} FROM {table}") == [(newer,)]


@pytest.mark.parametrize("damage", ['{"version": 1, "colour": "red"}', "{}", "[]", "no JSON"])
def test_a_record_with_an_unknown_field_or_without_a_version_is_refused(bench, store, damage):
    job_id = the_job(store).id
    bench.behind("UPDATE job SET policy = ?", damage)
    with pytest.raises(StoreError, match="a JobPolicy in the store is damaged"):
        store.jobs.get(job_id)


def test_the_progress_of_a_shard_of_an_earlier_release_is_read_and_its_input_was_marked(bench, store):
    bench.behind("UPDATE shard SET remote = ?", '{"version": 1, "status": "ended", "files_ready": 2}')
    [shard] = store.shards.of_job(the_job(store).id)
    assert shard.remote == RemoteProgress(status="ended", files_ready=2, marked=True)


FOLDER = Path(database.__file__).parent
NUMBERED = re.compile(r"\bstate (=|<|<>|IN) *\(?\d")


def literals(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def magic(source):
    words = {f"'{state.value}'" for states in (JobState, ShardState) for state in states}
    return [text for text in literals(source) if NUMBERED.search(text) or any(word in text for word in words)]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_no_statement_has_a_number_or_a_text_of_its_own_for_a_state(file):
    assert magic(file.read_text("utf-8")) == []


@pytest.mark.parametrize("statement", ["UPDATE item SET state = 3", "WHERE j.state <> 'done'"])
def test_a_state_that_is_spelled_out_would_be_found(statement):
    assert magic(f"TEXT = {statement!r}") == [statement]
