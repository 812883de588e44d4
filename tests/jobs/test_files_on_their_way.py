"""Files of a shard on their way: whoever else works on them, no half and no foreign content is ever read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import Remote

from smartbatch.client import BatchingClient
from smartbatch.clock import VirtualClock
from smartbatch.jobs import collecting
from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.work import Work

ClientOf = Callable[..., BatchingClient]
LONG = 1e6


def test_results_that_are_deleted_while_they_are_read_are_fetched_again(
    client_of: ClientOf, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process that had the job before and tidies late; it is no trouble worth a word."""
    take_in, left = collecting.take_in, [1]

    def robbed(work: Work, shard: ShardRow, paths: list[Path]) -> collecting.Taken:
        if left.pop() if left else 0:
            collecting.clear(work, shard)
        return take_in(work, shard, paths)

    monkeypatch.setattr(collecting, "take_in", robbed)
    remote = Remote(clock)
    client = client_of(remote, store=str(tmp_path / "jobs.db"))
    job = client.submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert not left
    assert remote.api is not None
    assert remote.api.calls.count("download") == 2
    assert job.incidents() == []


def test_each_owner_of_a_job_writes_into_files_of_its_own(
    client_of: ClientOf, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is frozen while it writes and wakes later must not write into its successor's."""
    written: list[str] = []

    def noted(self: Path, target: Path) -> Path:
        written.append(self.name)
        os.replace(self, target)
        return Path(target)

    monkeypatch.setattr(Path, "replace", noted)
    store, remote = str(tmp_path / "jobs.db"), Remote(clock)
    first = client_of(remote, store=store)
    job = first.submit_batch(["a"])
    clock.sleep(1.0)  # the batch is sent, and not over
    first.stop()
    client_of(remote, store=store, seed_of_dice=2).job(job.id).wait(LONG)
    assert [name.partition(".")[2] for name in written] == ["in.1.part", "out0.2.part"]
