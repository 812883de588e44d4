"""The command ``smartbatch emulator``."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from levels import sampled
from raw_client import RawClient, chat

from smartbatch.cli import emulator_command
from smartbatch.cli.option_tables import CommandParser
from smartbatch.emulator import Emulator, Ledger

_ROOT = Path(__file__).parents[2]


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "smartbatch", "emulator", "--port", "0", "--latency", "0", *options]
    with subprocess.Popen(
        command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            line = running.stdout.readline()
            assert "OPENAI_BASE_URL=http://127.0.0.1:" in line
            yield running, int(line.split("/v1")[0].rsplit(":", 1)[1])
        finally:
            running.kill()


def parsed(*options: str) -> argparse.Namespace:
    parser = CommandParser()
    emulator_command.add_parser(parser.add_subparsers(dest="command").add_parser)
    return parser.parse_args(["emulator", *options])


@pytest.mark.full
@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM], keep=1))
def test_it_serves_until_a_signal(number):
    with process() as (running, port), RawClient(port) as client:
        assert client.ask(chat())[0] == 200
        running.send_signal(number)
        out, err = running.communicate(timeout=10)
    assert (running.returncode, out, err) == (0, "", "")


@pytest.mark.full
def test_the_ledger_file_survives_a_kill(tmp_path):
    path, answers = tmp_path / "ledger.jsonl", tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"question": "2+2?", "answer": "4"}) + "\n\n")
    options = ["--ledger-file", str(path), "--answers", str(answers), "--prompt-field", "question"]
    with process(*options) as (running, port), RawClient(port) as client:
        assert client.ask(chat("2+2?"))[2]["choices"][0]["message"]["content"] == "4"
        running.kill()
        running.wait(timeout=10)
    [call] = Ledger.read(path).calls
    assert call.delivered
    assert call.billed > 0


def test_options_become_settings():
    options = (
        "--faults",
        "500=0.1,reset=0.2",
        "--outage",
        "5:10",
        "--outage-between",
        "1:2.5",
        "--rpm",
        "60",
        "--enforce",
        "second",
        "--no-retry-after",
        "--seed",
        "7",
        "--batch-cancel-seconds",
        "2.5",
        "--batch-enqueued-tokens",
        "1000",
        "--batch-faults",
        "lost_create=0.1,missing_lines=0.2",
        "--batch-no-input-file",
    )
    with Emulator(**emulator_command.settings_of(parsed("--port", "0", *options))) as emu:
        made = emu.settings
    assert made.batch_faults == {"lost_create": 0.1, "missing_lines": 0.2}
    assert (made.batch_cancel_seconds, made.batch_enqueued_tokens) == (2.5, 1000)
    assert (made.batch_echo_input_file, made.batch_echo_metadata) == (False, True)
    assert made.faults == {"500": 0.1, "reset": 0.2}
    assert (made.outage, made.outage_between) == ((5, 10), (1.0, 2.5))
    assert (made.rpm, made.enforce, made.retry_after, made.seed) == (60, "second", False, 7)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--faults", "2"], "faults"),
        (["--faults", "gremlin=1"], "gremlin"),
        (["--batch-faults", "gremlin=1"], "lost_create"),
        (["--batch-turnaround", "-1"], "batch_turnaround"),
        (["--host", "0.0.0.0"], "loopback"),
        (["--port", "99999"], "port 99999"),
        (["--answers", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_settings_end_with_exit_code_2(capsys, options, named):
    assert emulator_command.run(parsed(*options)) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--faults", "x"], ["--outage", "5"], ["--enforce", "hour"], ["--batch-faults", "0.5"]]
)
def test_options_that_cannot_be_read_are_bad_usage(capsys, options):
    with pytest.raises(SystemExit) as caught:
        parsed(*options)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("line", "said"), [("{", "not JSON"), ('{"prompt": 1}', "'prompt'"), ("[]", "'prompt'")]
)
def test_answers_that_cannot_be_used_name_their_line(tmp_path, capsys, line, said):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line)
    assert emulator_command.run(parsed("--answers", str(path))) == 2
    err = capsys.readouterr().err
    assert "line 2" in err
    assert said in err
