"""What is said to be there is there after a loss of power: outputs, files on their way, and their folders."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from smartbatch.cli.main import main
from smartbatch.client import BatchingClient
from smartbatch.jobs.job import Job
from smartbatch.jobs.shard_records import ShardRow
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.step import Step
from smartbatch.jobs.store import open_store
from smartbatch.runs.output_file import OutputFile, OutputRow
from smartbatch.runs.stored_rows import StoredRows
from tests.jobs.remote import Remote
from tests.levels import sampled
from tests.lossy_disk import LossyDisk

both_ways = pytest.mark.parametrize("names_kept", sampled([True, False], first=1))
ROWS = 12


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    (folder / "in.txt").write_text("".join(f"prompt {i}\n" for i in range(ROWS)))
    disk = LossyDisk(folder, monkeypatch)
    yield disk
    disk.close()


def sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def rows(content: bytes) -> list[int]:
    return [json.loads(line)["index"] for line in content.splitlines()]


@pytest.mark.full
@both_ways
@pytest.mark.parametrize("in_order", sampled([True, False]))
def test_an_output_is_on_the_disk_before_the_store_forgets_its_answers(
    in_order, names_kept, outputs, monkeypatch
):
    """Its lines and its name, whether or not an ordered copy replaced the first file."""
    forget, append = StoredRows.forget, OutputFile.append
    survived: list[bytes] = []

    def noted(self: StoredRows, *, all_answered: bool) -> None:
        survived.append(outputs.survivors(names_kept=names_kept)["out.jsonl"])
        forget(self, all_answered=all_answered)

    def appended(self: OutputFile, written: Sequence[OutputRow]) -> None:
        append(self, written)
        self._in_order = in_order

    monkeypatch.setattr(StoredRows, "forget", noted)
    monkeypatch.setattr(OutputFile, "append", appended)
    assert main(["run", "in.txt", "--model", "sim:demo", "--parallelism", "1", "-o", "out.jsonl"]) == 0
    assert [sorted(rows(content)) for content in survived] == [list(range(ROWS))]


@pytest.mark.full
@both_ways
def test_no_half_of_an_ordered_copy_takes_the_place_of_an_output(names_kept, outputs, monkeypatch):
    """Between the swap and the final sync, either the old or the complete new file exists."""
    sync, survived = OutputFile.sync, []

    def noted(self: OutputFile) -> None:
        survived.append(outputs.survivors(names_kept=names_kept)["out.jsonl"])
        sync(self)

    command = ["run", "in.txt", "--model", "sim:demo", "-o", "out.jsonl"]
    assert main([*command, "--limit", "6"]) == 0
    content = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    Path("out.jsonl").write_bytes(b"".join(reversed(content)))
    with OutputFile("out.jsonl") as out:
        out.sync()
    monkeypatch.setattr(OutputFile, "sync", noted)
    assert main(command) == 0
    assert len(survived) == 1
    assert set(range(6)) <= set(rows(survived[0]))


@pytest.mark.full
@both_ways
def test_a_table_is_on_the_disk_before_the_store_forgets_its_answers(names_kept, outputs, monkeypatch):
    forget, remove = StoredRows.forget, OutputFile.remove
    survived: list[bytes] = []

    def noted(self: StoredRows, *, all_answered: bool) -> None:
        survived.append(outputs.survivors(names_kept=names_kept)["out.csv"])
        forget(self, all_answered=all_answered)

    def removed(self: OutputFile) -> None:
        remove(self)
        survived.append(outputs.survivors(names_kept=names_kept)["out.csv"])

    monkeypatch.setattr(StoredRows, "forget", noted)
    monkeypatch.setattr(OutputFile, "remove", removed)
    assert main(["run", "in.txt", "--model", "sim:demo", "-o", "out.csv"]) == 0
    assert [len(content.splitlines()) for content in survived] == [1 + ROWS] * 2


@both_ways
def test_results_of_a_job_are_on_the_disk_when_the_command_ends(names_kept, outputs, monkeypatch):
    with BatchingClient("sim:demo?batch_seconds=0", batch_poll_interval=0.05) as client:
        job = client.submit_batch(["a", "b"])
        job.wait(60)
    assert main(["jobs", "results", job.id, "-o", "out.jsonl"]) == 0
    assert rows(outputs.survivors(names_kept=names_kept)["out.jsonl"]) == [0, 1]


@both_ways
def test_files_on_their_way_are_on_the_disk_before_they_are_used(
    names_kept, client_of, clock, tmp_path, monkeypatch
):
    disk = LossyDisk(tmp_path, monkeypatch)
    remote = Remote(clock)
    assert remote.api is not None
    upload, read = remote.api.upload, collect.store_results
    used: list[tuple[str, bool]] = []

    def survives(path: Path) -> None:
        survived = disk.survivors(names_kept=names_kept)
        used.append((path.suffix, survived.get(str(path.relative_to(tmp_path))) == path.read_bytes()))

    def uploaded(name: str, source: Path, timeout: float) -> Any:
        survives(source)
        return upload(name, source, timeout)

    def stored(work: Step, shard: ShardRow, paths: list[Path]) -> collect.ResultTotals:
        for path in paths:
            survives(path)
        return read(work, shard, paths)

    monkeypatch.setattr(remote.api, "upload", uploaded)
    monkeypatch.setattr(collect, "store_results", stored)
    job: Job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    assert job.wait(1e6).completed == 2
    assert used == [(".in", True), (".out0", True)]
    disk.close()


def test_the_folders_of_a_new_store_are_on_the_disk(tmp_path, monkeypatch):
    """SQLite syncs the folder of its file, but none above it."""
    disk = LossyDisk(tmp_path, monkeypatch)
    store = open_store(str(tmp_path / "state" / "smartbatch" / "jobs.db"))
    folder = tmp_path / "state" / "smartbatch"
    (folder / "seen").touch()
    sync(folder)  # as SQLite does
    assert "state/smartbatch/seen" in disk.survivors(names_kept=False)
    store.close()
    disk.close()
