"""A store in a shared folder ignores files planted by other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from jobs.remote import Remote

from smartbatch import _files
from smartbatch.errors import StoreError
from smartbatch.jobs.store import open_store
from tests.levels import sampled

ADVICE = "others could read prompts and answers, and change them; remove it, or name another store"


@pytest.mark.parametrize("planted", ["jobs.db.spool", "jobs.db.spool/owners"])
def test_a_planted_folder_is_refused(planted, client_of, clock, tmp_path):
    theirs, link = tmp_path / "theirs", tmp_path / planted
    theirs.mkdir()
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(theirs)
    client = client_of(Remote(clock), store=str(tmp_path / "jobs.db"))
    submissions = [
        lambda: client.submit_batch(["a"]),
        lambda: client.generate(["a", "b"], key="two"),
        lambda: client.submit("a", durable=True).result(60.0),
    ]
    for submit in submissions:
        with pytest.raises(StoreError, match=f"{link} is a symbolic link: {ADVICE}"):
            submit()
    assert not client.jobs()
    assert not list(theirs.iterdir())
    link.unlink()
    assert client.submit_batch(["a"]).wait(1e6).completed == 1


def test_another_users_folder_is_refused(tmp_path, monkeypatch):
    """The owner of a folder can change its files."""
    store = open_store(str(tmp_path / "jobs.db"))
    assert Path(store.spool).is_dir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match=f"jobs.db.spool belongs to another user: {ADVICE}"):
        _ = store.spool
    store.close()


def test_an_empty_file_of_another_user_becomes_no_store(tmp_path, monkeypatch):
    path = tmp_path / "jobs.db"
    path.touch()
    own = os.lstat(tmp_path).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    made = os.lstat

    def lstat(name):
        found = made(name)
        return found if name == str(path) else os.stat_result((*found[:4], own + 1, *found[5:]))

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(StoreError, match=f"jobs.db belongs to another user: {ADVICE}"):
        open_store(str(path))
    assert path.read_bytes() == b""


@pytest.mark.parametrize("ending", sampled(["-wal", "-shm", "-journal"]))
def test_a_log_of_another_user_is_not_taken_for_the_stores(ending, tmp_path, monkeypatch):
    """SQLite would apply its content to the store."""
    store = tmp_path / "jobs.db"
    open_store(str(store)).close()
    made = os.lstat

    def lstat(name):
        planted = name == f"{store}{ending}"
        found = made(store if planted else name)
        return os.stat_result((*found[:4], found.st_uid + planted, *found[5:]))

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(StoreError, match=f"jobs.db{ending} belongs to another user: {ADVICE}"):
        open_store(str(store))


def test_a_folder_that_others_could_write_to_is_closed_to_them(client_of, clock, tmp_path):
    spool = tmp_path / "jobs.db.spool"
    spool.mkdir()
    spool.chmod(0o777)
    job = client_of(Remote(clock), store=str(tmp_path / "jobs.db")).submit_batch(["a"])
    assert job.wait(1e6).completed == 1
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700


def test_files_on_their_way_are_for_their_owner_only(tmp_path):
    path, partial, target = tmp_path / "shard.in", tmp_path / "shard.in.1.part", tmp_path / "target"
    target.write_text("precious")
    partial.symlink_to(target)
    before = os.umask(0)
    try:
        _files.write_whole(path, partial, [b"prompts"])
    finally:
        os.umask(before)
    assert path.read_bytes() == b"prompts"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert target.read_text() == "precious"


@pytest.mark.parametrize("link", [True, False])
def test_a_file_planted_at_the_last_moment_is_not_written_to(link, tmp_path, monkeypatch):
    path, partial, target = tmp_path / "shard.in", tmp_path / "shard.in.1.part", tmp_path / "target"
    target.write_text("precious")
    unlink = Path.unlink

    def planting(removed, missing_ok=False):
        unlink(removed, missing_ok=missing_ok)
        if link:
            partial.symlink_to(target)
        else:
            partial.touch()

    monkeypatch.setattr(Path, "unlink", planting)
    with pytest.raises(StoreError):
        _files.write_whole(path, partial, [b"prompts"])
    assert target.read_text() == "precious"
    assert not path.exists()
    assert partial.read_bytes() in (b"precious", b"")


def test_a_new_store_is_not_made_where_another_users_link_leads(tmp_path, monkeypatch):
    link, target = tmp_path / "jobs.db", tmp_path / "target"
    link.symlink_to(target)
    made, other = os.lstat, os.geteuid() + 1
    monkeypatch.setattr(os, "lstat", lambda name: os.stat_result((*made(name)[:4], other, *made(name)[5:])))
    with pytest.raises(StoreError, match=f"jobs.db is a symbolic link owned by another user: {ADVICE}"):
        open_store(str(link))
    assert not target.exists()
    monkeypatch.undo()
    open_store(str(link)).close()
    assert target.exists()


def test_a_new_store_is_not_made_through_a_link(tmp_path):
    """The name of the lock is predictable."""
    (tmp_path / "jobs.db.new").symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match=f"jobs.db.new is a symbolic link: {ADVICE}"):
        open_store(str(tmp_path / "jobs.db"))
    assert not (tmp_path / "target").exists()
