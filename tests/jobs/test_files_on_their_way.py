"""Input and result files of shards, which processes share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve
from jobs.remote import LONG, Remote

from smartbatch import _files
from smartbatch.errors import ErrorKind, JobTimeout, ProviderError
from smartbatch.jobs.steps import collect


def test_results_deleted_while_they_are_read_are_fetched_again(client_of, clock, tmp_path, monkeypatch):
    store_results, left = collect.store_results, [1]

    def robbed(work, shard, paths):
        if left.pop() if left else 0:
            work.clear_files(shard)
        return store_results(work, shard, paths)

    monkeypatch.setattr(collect, "store_results", robbed)
    remote = Remote(clock)
    client = client_of(remote, store=str(tmp_path / "jobs.db"))
    job = client.submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert not left
    assert remote.api.calls.count("download") == 2
    assert job.incidents() == []


def test_each_owner_of_a_job_writes_into_files_of_its_own(client_of, clock, tmp_path, monkeypatch):
    written = []

    def noted(self, target):
        written.append(self.name)
        os.replace(self, target)
        return Path(target)

    monkeypatch.setattr(Path, "replace", noted)
    store, remote = str(tmp_path / "jobs.db"), Remote(clock)
    first = client_of(remote, store=store)
    job = first.submit_batch(["a"])
    clock.sleep(1.0)  # the batch is sent, and not over
    first.stop()
    client_of(remote, store=store, seed_of_rng=2).job(job.id).wait(LONG)
    assert [name.partition(".")[2] for name in written] == ["in.1.part", "out0.2.part"]


@pytest.mark.full
@pytest.mark.catches("StoreError")
@pytest.mark.parametrize("what", ["in", "out0"])
def test_a_full_disk_is_told_and_waited_out(what, client_of, clock, tmp_path, monkeypatch):
    full = [True]
    opened = os.open

    def no_room(path, *rest, **options):
        if full[0] and f".{what}." in str(path):
            opened(path, *rest, **options)
            return opened("/dev/full", os.O_WRONLY)
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", no_room)
    remote = Remote(clock)
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    with pytest.raises(
        JobTimeout, match=r"cannot be written to \(No space left on device\).* free some disk space"
    ):
        job.wait(1000.0)
    assert not list(tmp_path.glob("*.spool/*.part"))
    full[0] = False
    assert job.wait(LONG).completed == 2
    assert len(remote.api.made) == 1


@pytest.mark.parametrize("told", [True, False], ids=["size", "no size"])
def test_half_an_upload_found_by_name_is_not_used(told, client_of, clock, tmp_path, monkeypatch):
    remote = Remote(clock)
    api, upload = remote.api, remote.api.upload
    sizes = {}

    def cut_once(name, source, timeout):
        if sizes:
            return upload(name, source, timeout)
        whole = source.read_bytes()
        half = source.with_name("half")
        half.write_bytes(whole[: whole.index(b"\n") + 1] if told else whole)
        sizes[upload(name, half, timeout).id] = half.stat().st_size
        raise ProviderError("no answer", kind=ErrorKind.TIMEOUT, maybe_billed=True)

    find_file = api.find_file

    def found(name, timeout):
        file = find_file(name, timeout)
        return file if file is None or not told else evolve(file, size=sizes[file.id])

    monkeypatch.setattr(api, "upload", cut_once)
    monkeypatch.setattr(api, "find_file", found)
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert [len(batch.lines) for batch in api.made.values()] == [2]
    assert api.calls.count("upload") == (2 if told else 1)


def test_a_file_that_a_successor_deleted_is_no_full_disk(tmp_path):
    path, partial = tmp_path / "shard.out0", tmp_path / "shard.out0.1.part"

    def pieces():
        yield b"a"
        partial.unlink()

    with pytest.raises(FileNotFoundError):
        _files.write_whole(path, partial, pieces())
    assert not path.exists()
