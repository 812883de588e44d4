"""``smartbatch jobs``: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli.runs import until

from smartbatch import BatchingClient, Job, StoredJobs
from smartbatch.cli.main import main
from smartbatch.testing import emulator

SIM = "sim:demo?batch_seconds=0.02"


@pytest.fixture
def client(folder, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.05")
    with BatchingClient(SIM) as client:
        yield client


@pytest.fixture
def done(client):
    job = client.submit_batch(["a", "b", "c"], key="letters")
    job.wait(20)
    until(lambda: all(shard.state == "settled" for shard in job.status().shards))
    return job


def jobs(*args: str) -> int:
    return main(["jobs", *args])


@pytest.mark.parametrize("args", [[], ["list"], ["watch"]])
def test_without_a_store_none_is_made(args, tmp_path, capfd):
    store = tmp_path / "none.db"
    assert jobs(*args, "--store", str(store)) == 0
    assert f"no jobs: there is no store at {store} yet" in capfd.readouterr().err
    assert jobs("show", "letters", "--store", str(store)) == 1
    assert "so no job 'letters'" in capfd.readouterr().err
    assert not store.exists()


def test_the_list_has_a_line_for_each_job_newest_first(client, done, capfd):
    second = client.submit_batch(["d"])
    second.wait(20)
    assert jobs() == 0
    head, newest, oldest = capfd.readouterr().out.splitlines()
    assert head.split() == ["job", "model", "state", "requests", "route", "time", "cost", "deadline"]
    assert newest.startswith(f"{second.id}, ")
    assert oldest.startswith("letters, ")
    assert re.search(r" done  +########## 100%, 3 of 3  .* took ", oldest)
    assert jobs("list", "--json") == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["id"] for record in records] == [second.id, done.id]
    assert records[1]["completed"] == 3
    assert [batch["size"] for batch in records[1]["batches"]] == [3]


def test_a_job_is_shown_by_its_key_in_text_and_as_json(done, capfd):
    assert jobs("show", "nobody", "letters") == 1
    shown = capfd.readouterr()
    assert shown.out.startswith(f"Job letters  done\n{SIM.partition('?')[0]}\nDone 3 of 3")
    assert re.search(rf"^id +{done.id}$", shown.out, re.MULTILINE)
    assert re.search(r"^ +1  settled +3 +3 .* completed +batch_", shown.out, re.MULTILINE)
    assert "nobody" in shown.err
    assert jobs("show", done.id, "--json") == 0
    assert json.loads(capfd.readouterr().out)["key"] == "letters"


@pytest.mark.full
def test_a_job_is_named_by_the_output_of_its_run(client, capfd):
    Path("in.txt").write_text("a\nb\n")
    for folder in ("one", "two"):
        Path(folder).mkdir()
        line = ["run", "in.txt", "--model", SIM, "--strategy", "batch", "--quiet"]
        assert main([*line, "-o", f"{folder}/labels.jsonl"]) == 0
        code = jobs("show", "labels.jsonl")
        printed = capfd.readouterr()
        if folder == "one":
            assert (code, "requests  2 total" in printed.out) == (0, True)
    assert code == 1
    assert all(job.id in printed.err for job in client.jobs())
    assert jobs("show", "label") == 1
    assert jobs("show", "two/labels.jsonl") == 0
    assert client.jobs()[0].id in capfd.readouterr().out
    assert jobs("show", "three/labels.jsonl") == 1


def test_results_are_lines_in_order_and_a_file_is_never_replaced(done, capfd):
    assert jobs("results", "letters") == 0
    printed = capfd.readouterr().out
    assert [json.loads(line)["index"] for line in printed.splitlines()] == [0, 1, 2]
    assert jobs("results", "letters", "-o", "out.jsonl") == 0
    assert Path("out.jsonl").read_text() == printed
    assert jobs("results", "letters", "-o", "out.jsonl") == 2
    assert "out.jsonl: already exists" in capfd.readouterr().err
    assert sorted(path.name for path in Path().glob("*out*")) == ["out.jsonl"]


def test_a_file_that_gets_the_name_meanwhile_stays(done, monkeypatch, capfd):
    stored = Job.stored

    def meddling(self: Job, *args: Any, **more: Any) -> Any:
        Path("out.jsonl").write_text("notes")
        return stored(self, *args, **more)

    monkeypatch.setattr(Job, "stored", meddling)
    assert jobs("results", "letters", "-o", "out.jsonl") == 2
    assert "out.jsonl: already exists" in capfd.readouterr().err
    assert Path("out.jsonl").read_text() == "notes"
    assert not Path(".out.jsonl.writing").exists()


def test_a_job_that_goes_on_is_watched_to_its_end(client, capfd):
    job = client.submit_batch([f"row {i}" for i in range(5)])
    assert jobs("watch", "--json") == 0
    states = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {state["id"] for state in states} == {job.id}
    assert (states[-1]["state"], states[-1]["completed"]) == ("done", 5)
    assert jobs("watch") == 0
    assert "no unfinished jobs" in capfd.readouterr().err


def test_a_job_is_forgotten_once_it_has_ended(done, capfd):
    assert jobs("forget", "letters") == 0
    assert f"job {done.id}: deleted" in capfd.readouterr().err
    assert jobs("forget", "letters") == 1
    assert jobs() == 0
    assert "no jobs in " in capfd.readouterr().err


def test_what_a_finished_job_left_at_its_provider_is_listed_and_deleted(done, capfd):
    until(lambda: done._engine.clean(remote=True, dry_run=True).deleted)  # once the batch is over
    assert jobs("clean", "--remote", "--dry-run") == 0
    shown = capfd.readouterr()
    kinds = [line.split()[0] for line in shown.out.splitlines()]
    assert sorted(kinds) == ["batch", "input"]
    assert f" of {done.model}" in shown.out
    assert shown.err.endswith("at providers: 2 files and batches would be deleted\n")
    assert jobs("clean", "--remote", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert sorted(one["kind"] for one in found["deleted"]) == ["batch", "input"]
    assert jobs("clean", "--remote") == 0
    assert "0 files and batches deleted" in capfd.readouterr().err
    assert done.status().completed == 3


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_what_needs_another_key_is_left_and_named(options, folder, monkeypatch, capfd):
    with emulator(batch_turnaround=0.01) as emu:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", emu.base_url)
        with BatchingClient("openai:gpt-5-mini", batch_poll_interval=0.02) as client:
            job = client.submit_batch(["a"])
            job.wait(20)
            until(lambda: all(shard.state == "settled" for shard in job.status().shards))
            capfd.readouterr()
        monkeypatch.delenv("OPENAI_API_KEY")
        assert jobs("clean", "--remote", *options) == 1
        *_, counts, reason = capfd.readouterr().err.splitlines()
        assert counts.endswith("would be left" if options else "could not be deleted yet")
        assert reason.startswith("3 in the account openai:127.0.0.1:")
        assert "OPENAI_API_KEY is not set" in reason
        assert [file.deleted_at for file in emu.ledger.files] == [None]


@pytest.mark.parametrize("args", [["clean", "letters"], ["list", "--remote"], ["forget", "a", "--dry-run"]])
def test_options_of_clean_are_for_clean_only(args, done, capfd):
    assert jobs(*args) == 2
    assert "clean" in capfd.readouterr().err


def test_a_job_that_is_cancelled_ends_with_exit_code_0(client, capfd):
    slow = BatchingClient("sim:demo?batch_seconds=3600")
    job = slow.submit_batch(["a", "b"])
    assert jobs("cancel", job.id, "--quiet") == 0
    status = client.job(job.id).status()
    assert (status.state, status.finished) == ("done", 2)
    assert f"{status.cancelled:,} cancelled" in capfd.readouterr().out
    slow.stop(0)


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        (["list", "letters"], "jobs list takes no names"),
        (["show"], "jobs show needs the ids or keys of jobs"),
        (["results"], "jobs results takes the id or key of one job"),
        (["results", "a", "b"], "jobs results takes the id or key of one job"),
        (["show", "a", "--wait"], "--wait is for jobs results only"),
        (["list", "-o", "x"], "--output is for jobs results only"),
        (["results", "job-1", "-o", "x.xlsx"], "results cannot be written as .xlsx"),
        (["list", "--batch-poll-interval", "-1"], "batch_poll_interval = '-1'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args, printed, capfd):
    assert jobs(*args) == 2
    assert printed in capfd.readouterr().err


def test_failed_requests_are_retried(client, capfd):
    plan = client.forecast(["a"], strategy="individual")
    job = client.submit_run(["a", "b"], plan, key="letters")
    job.wait(20)
    assert jobs("retry-failed", "letters") == 0
    assert "0 requests are being retried\n" in capfd.readouterr().err
    assert jobs("retry-failed") == 2


def test_deadline_and_budget_of_a_job_are_changed(client, done, capfd):
    assert jobs("set-deadline", "letters", "--deadline", "2h") == 0
    assert jobs("set-budget", "letters", "--budget", "5 USD") == 0
    assert f"job {done.id}: the budget is now 5 USD" in capfd.readouterr().err
    assert jobs("set-budget", "letters", "--budget", "none") == 0
    assert jobs("set-budget", "letters") == jobs("set-budget", "letters", "--budget", "much") == 2
    assert jobs("show", "letters", "--deadline", "2h") == 2
    actions = StoredJobs(client.config).actions(job_id=done.id)
    assert [action.name for action in actions] == ["set_budget", "set_budget", "set_deadline"]


def test_a_model_is_paused_listed_and_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SMARTBATCH_STORE", str(tmp_path / "jobs.db"))
    assert main(["pause"]) == 0
    assert main(["resume", "sim:demo"]) == 1
    assert not (tmp_path / "jobs.db").exists()
    assert main(["pause", "sim:demo", "openai", "--reason", "too dear"]) == 0
    capfd.readouterr()
    assert main(["pause"]) == 0
    listed = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["sim:demo", "openai:*"]
    assert all(line.endswith(": too dear") for line in listed)
    assert main(["resume", "sim:demo", "openai"]) == 0
    assert main(["resume", "openai"]) == 1
    assert "openai is not paused" in capfd.readouterr().out
