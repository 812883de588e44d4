"""Standard output that takes no more: its reader has ended, or its disk is full."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli.runs import prompts
from levels import sampled

from smartbatch import BatchingClient
from smartbatch.cli.main import main

OWN = "call:own_calls:ask"
SIM = "sim:demo?batch_seconds=0.02"
FULL = Path("/dev/full")
NO_SPACE = f"smartbatch: standard output cannot be written: {os.strerror(errno.ENOSPC)}"
ON_A_FULL_DISK = pytest.mark.skipif(not FULL.exists(), reason="only Linux has a disk that is always full")

COMMANDS = [
    ["models"],
    ["models", "openai"],
    ["models", "openai", "--json"],
    ["plan", "in.txt", "--model", "sim:echo"],
    ["doctor"],
    ["doctor", "--json"],
    ["pause"],
    ["top"],
    ["completion", "bash"],
    ["jobs", "list"],
    ["jobs", "results", "letters"],
]


@pytest.fixture
def job(folder, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.05")
    with BatchingClient(SIM) as client:
        client.submit_batch(["a", "b"], key="letters").wait(20)
    prompts(2)
    return "letters"


@contextmanager
def standard_output(to: int) -> Iterator[None]:
    with os.fdopen(to, "w") as file, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", file)
        yield


def without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("words", sampled(COMMANDS, keep=2), ids=" ".join)
def test_a_reader_that_went_away_ends_a_command_quietly(job, words, capfd):
    capfd.readouterr()
    with standard_output(without_reader()):
        assert main(words) == 0
    assert capfd.readouterr().err == ""


@ON_A_FULL_DISK
@pytest.mark.parametrize("words", sampled(COMMANDS, keep=2), ids=" ".join)
def test_a_full_disk_ends_a_command_with_one_line(job, words, capfd):
    capfd.readouterr()
    with standard_output(os.open(FULL, os.O_WRONLY)):
        assert main(words) == 1
    assert capfd.readouterr().err == NO_SPACE + "\n"


@ON_A_FULL_DISK
def test_a_run_whose_standard_output_is_full_goes_on_with_the_same_line(calls, capfd):
    expected = prompts(3)
    line = ["run", "in.txt", "--model", OWN, "--parallelism", "1", "--quiet"]
    with standard_output(os.open(FULL, os.O_WRONLY)):
        assert main(line) == 1
    assert capfd.readouterr().err == f"{NO_SPACE}; run the same command again to continue\n"
    assert calls.asked
    assert main(line) == 0
    assert capfd.readouterr().out.count("answer to prompt") == 3
    assert sorted(calls.asked) == expected


def test_a_watched_job_is_carried_on_when_the_reader_went_away(folder):
    with BatchingClient(SIM, batch_poll_interval=0.05) as client:
        job = client.submit_batch(["a", "b"])
    with standard_output(without_reader()):
        main(["jobs", "watch", job.id, "--json", "--batch-poll-interval", "0.05"])
    with BatchingClient(SIM) as client:
        assert client.job(job.id).status().completed == 2


def test_the_exit_code_is_that_of_the_command_when_the_reader_went_away(job, calls, monkeypatch, capfd):
    with BatchingClient(f"{SIM}&faults=500:1", batch_poll_interval=0.05, retries=0) as client:
        client.submit_batch(["a", "b"], key="failed").wait(20)
    monkeypatch.setenv("SMARTBATCH_PARALLELISM", "none of these")
    wrong = [["doctor"], ["doctor", "--json"]]
    for words in wrong:
        with standard_output(without_reader()):
            assert main(words) == 1
    monkeypatch.delenv("SMARTBATCH_PARALLELISM")
    for action in ("show", "results", "watch", "resume"):
        with standard_output(without_reader()):
            assert main(["jobs", action, "letters"]) == 0
    for words in (["show", "letters", "nosuch"], ["results", "failed"], ["watch", "failed"]):
        with standard_output(without_reader()):
            assert main(["jobs", *words]) == 1
    with standard_output(without_reader()):
        assert main(["resume", "openai"]) == 1
    with standard_output(without_reader()):
        assert main(["resume", "openai", "--store", "none.db"]) == 1


CLOSED = [words for words in COMMANDS if words[:2] != ["jobs", "results"]]


@pytest.mark.parametrize("words", sampled(CLOSED, keep=2), ids=" ".join)
def test_closed_standard_output_is_no_error(job, words, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == 0


@pytest.mark.parametrize(
    "words", [["run", "in.txt", "--model", OWN], ["jobs", "results", "letters"]], ids=" ".join
)
def test_results_are_refused_where_standard_output_is_closed(job, calls, words, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == 2
    assert (
        "smartbatch: standard output is closed; use -o to write the results to a file\n"
        in capfd.readouterr().err
    )
    assert calls.asked == []
    assert main([*words, "-o", "out.jsonl"]) == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 2


def test_a_run_of_standard_input_that_is_closed_is_refused(calls, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["run", "-", "--model", OWN]) == 2
    assert capfd.readouterr().err == "smartbatch: standard input is closed\n"


def test_a_run_says_nothing_where_standard_error_is_closed(calls, monkeypatch, capfd):
    prompts(2)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["run", "in.txt", "--model", "sim:m?faults=500:1&latency=0", "-v", "--retries", "0"]) == 1
    assert main(["emulator", "--port", "99999999"]) == 2
    printed = capfd.readouterr().out.splitlines()
    assert len(printed) == 2
    assert all(json.loads(line)["error"] for line in printed)


@pytest.mark.full
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_no_file_gets_the_number_of_a_stream_that_is_closed(folder, closed):
    prompts(2)
    code = (
        "import os, sys\n"
        "from smartbatch.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "for number in range(3): os.fstat(number)\n"
        "sys.exit(code)\n"
    )
    line = [sys.executable, "-c", code, "run", "in.txt", "--model", SIM, "-o", "out.jsonl"]
    assert subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *line]).returncode == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 2
