"""``smartbatch run --sample``: random rows first, then the rest without paying for them again."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cli.runs import Child, prompts, stored_jobs, until, use_emulator, written

from smartbatch.cli.main import main
from smartbatch.testing import emulator

OWN = "call:own_calls:ask"


def run(*args: str, output: str | None = "out.jsonl", input: str = "in.txt") -> int:
    out = [] if output is None else ["-o", output]
    return main(["run", input, "--model", OWN, "--parallelism", "3", *out, *args])


def rows_of_table(text: str) -> list[str]:
    head, *rows = text.splitlines()
    assert head.split() == ["row", "prompt", "answer", "problem"]
    return rows


def test_a_sample_sends_random_rows_and_shows_their_answers(calls, capsys):
    expected = prompts(50)

    assert run("--sample", "5") == 0

    assert len(calls.asked) == 5
    assert set(calls.asked) <= set(expected)
    rows = rows_of_table(capsys.readouterr().out)
    assert [row.split("  ")[1].strip() for row in rows if row] == [
        row["input"]["prompt"] for row in written()
    ]
    assert all("answer to prompt" in row for row in rows)


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", None])
def test_the_run_after_a_sample_sends_only_the_other_rows(calls, capsys, output):
    expected = prompts(30)
    assert run("--sample", "4", output=output) == 0
    sampled = list(calls.asked)

    assert run(output=output) == 0

    assert sorted(calls.asked) == sorted(expected)
    assert calls.asked[:4] == sampled
    assert stored_jobs() == []


def test_the_same_sample_is_shown_again_without_paying_for_it(calls, capsys):
    prompts(30)
    assert run("--sample", "4") == 0
    first = capsys.readouterr().out
    calls.asked.clear()

    assert run("--sample", "4") == 0

    assert calls.asked == []
    assert capsys.readouterr().out == first


@pytest.mark.full
def test_another_seed_draws_other_rows(calls):
    prompts(50)
    assert run("--sample", "5") == 0
    assert run("--sample", "5", "--sample-seed", "1") == 0
    assert 5 < len(set(calls.asked)) == len(calls.asked) <= 10


def test_rows_of_an_earlier_sample_are_not_projected(folder, capsys):
    prompts(30)
    line = ["run", "in.txt", "--model", "sim:demo?latency=0", "-o", "out.jsonl"]
    assert main([*line, "--sample", "4", "--quiet"]) == 0
    assert main([*line, "--sample", "5", "--sample-seed", "1"]) == 0

    left = 30 - len(written())
    assert 21 <= left < 25
    assert capsys.readouterr().err.count(f"the other {left} rows") == 2


def test_yes_sends_the_other_rows_at_once(calls):
    expected = prompts(12)

    assert run("--sample", "3", "--yes") == 0

    assert sorted(calls.asked) == sorted(expected)
    assert [row["input"]["prompt"] for row in written()] == expected


def test_a_sample_by_a_column_has_each_of_its_values(calls, tmp_path):
    Path("in.jsonl").write_text(
        "".join(
            json.dumps({"prompt": f"p{i}", "kind": "rare" if i == 7 else "usual"}) + "\n" for i in range(40)
        )
    )

    assert run("--sample", "4", "--by", "kind", input="in.jsonl") == 0

    assert "p7" in calls.asked
    assert len(calls.asked) == 4


def test_failed_answers_of_a_sample_are_pointed_out(calls, capsys):
    prompts(6)
    calls.broken |= {f"prompt {number}" for number in range(0, 6, 2)}

    assert run("--sample", "6", "--retries", "0") == 1

    shown = capsys.readouterr().out
    assert shown.count("broken on purpose") == 3


def killed_after_two_answers(*args: str) -> set[str]:
    with Child("--parallelism", "1", "-o", "out.jsonl", *args) as child:
        child.release(2)
        child.begun(3)
        until(lambda: Path("out.jsonl").exists() and len(written()) == 2)
        child.process.kill()
        child.process.wait()
    return {row["input"]["prompt"] for row in written()}


def finished(*args: str, calls: int) -> list[str]:
    with Child("--parallelism", "1", "-o", "out.jsonl", *args) as child:
        child.release(calls)
        begun = child.begun(calls)
        assert child.process.wait() == 0
    return begun


@pytest.mark.full
def test_a_killed_sample_is_not_paid_for_again(calls):
    expected = prompts(12)
    known = killed_after_two_answers("--sample", "6")

    assert sorted(finished(calls=10)) == sorted(set(expected) - known)
    assert stored_jobs() == []


@pytest.mark.full
def test_a_sample_after_a_killed_run_sends_no_row_outside_it(calls):
    expected = prompts(12)
    known = killed_after_two_answers()
    assert known == {"prompt 0", "prompt 1"}

    sampled = finished("--sample", "4", "--sample-seed", "2", calls=3)
    assert len({*sampled, *known}) == 5
    rest = finished(calls=7)

    assert sorted([*known, *sampled, *rest]) == sorted(expected)
    assert stored_jobs() == []


def test_the_rows_left_are_counted_with_failed_ones_and_once_per_row(calls, capsys):
    prompts(6)
    calls.broken.add("prompt 1")

    assert run("--sample", "4", "--sample-seed", "1", "--n", "2", "--retries", "0") == 1

    failed = sum(row["error"] is not None for row in written())
    said = capsys.readouterr().err
    assert failed == 2
    assert said.endswith("Run the same command without --sample to send the other 3 rows.\n")


@pytest.mark.parametrize("option", [["--yes"], ["--by", "kind"], ["--sample-seed", "3"]])
def test_options_of_a_sample_need_one(calls, capsys, option):
    prompts(3)
    assert run(*option) == 2
    assert f"{option[0]} needs --sample" in capsys.readouterr().err


def test_a_sample_by_a_missing_column_sends_nothing(calls, capsys):
    prompts(3)
    assert run("--sample", "2", "--by", "kind") == 2
    assert "no row has a value in the column 'kind'" in capsys.readouterr().err
    assert calls.asked == []


def test_control_characters_in_a_sample_are_escaped(calls, capsys):
    Path("in.jsonl").write_text(json.dumps({"prompt": "a \x1b[31mred\x1b[0m row\u2028<b>=1+1"}) + "\n")

    assert run("--sample", "1", input="in.jsonl") == 0

    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u2028" not in shown
    assert len(rows_of_table(shown)) == 1


@pytest.mark.full
@pytest.mark.parametrize(("reply", "sent"), [(b"y\n", 8), (b"\n", 3)])
def test_a_terminal_asks_whether_to_send_the_other_rows(calls, reply, sent):
    prompts(8)
    here, there = pty.openpty()
    command = [sys.executable, "-m", "smartbatch", "run", "in.txt", "--model", OWN, "-o", "out.jsonl"]
    process = subprocess.Popen(
        [*command, "--sample", "3"], stdin=there, stdout=subprocess.DEVNULL, stderr=there
    )
    os.close(there)
    said = b""
    with process:
        while b"Run the other 5 rows? [y/N]" not in said:
            said += os.read(here, 1 << 16)
        os.write(here, reply)
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while os.read(here, 1 << 16):
                pass
        assert process.wait() == 0
    os.close(here)
    assert len(written()) == sent


def test_time_and_cost_of_the_other_rows_are_projected(capsys, folder, monkeypatch, state):
    with emulator() as emu:
        use_emulator(emu, monkeypatch)
        prompts(40)
        assert (
            main(["run", "in.txt", "--model", "openai:gpt-5-mini", "-o", "out.jsonl", "--sample", "5"]) == 0
        )

    said = capsys.readouterr().err
    assert "Samples are never sent as a batch." in said
    assert "In real time, the other 35 rows would cost $" in said
    assert "projected from 5 answers" in said
    routes = [line.split()[:2] for line in said.splitlines() if line.startswith(("> ", "  "))]
    assert {"individual", "batch"} <= {word for words in routes for word in words}
    assert said.endswith("Run the same command without --sample to send the other 35 rows.\n")


def test_the_other_rows_spend_only_what_the_sample_left_of_the_budget(capsys, folder, monkeypatch, state):
    command = ["run", "in.txt", "--model", "openai:gpt-5-mini", "-o", "out.jsonl", "--max-tokens", "50"]
    with emulator() as emu:
        use_emulator(emu, monkeypatch)
        prompts(40)
        assert main([*command, "--sample", "20", "--strategy", "individual"]) == 0
        paid = sum(row["cost"] for row in written())
        Path("out.jsonl").unlink()
        budget = str(1.5 * paid + 0.0001)
        options = ["--strategy", "individual", "--parallelism", "1", "--budget", budget]
        main([*command, "--sample", "20", "--yes", *options])

    costs = [row["cost"] or 0.0 for row in written()]
    assert sum(costs) <= float(budget)
    assert "budget_exceeded" in Path("out.jsonl").read_text()
