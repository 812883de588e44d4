"""Files in the answers of runs: written next to the output, whatever the rows are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from levels import sampled

from smartbatch.cli.main import main
from smartbatch.emulator.composed_answers import picture_for
from smartbatch.tables.row_source import READERS

MODEL = "sim:demo?latency=0&batch_seconds=0"
TEMPLATE = "Draw a {animal} as PNG"
ROUTES = {"individual": (), "batch": ("--batch-poll-interval", "0.05")}
ROWS = {"cat/1": "cat", "../../dog": "dog", "": "cow"}


def write_rows(rows=ROWS):
    lines = [{"id": id, "animal": animal} if id else {"animal": animal} for id, animal in rows.items()]
    Path("in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def run(*args, output="out.jsonl"):
    return main(["run", "in.jsonl", "--template", TEMPLATE, "--model", MODEL, "-o", output, *args])


def rows_of(output):
    if output.endswith(".jsonl"):
        return [json.loads(line) for line in Path(output).read_text().splitlines()]
    with open(output, "rb") as file:
        rows = [dict(row[1]) for row in READERS[output.rpartition(".")[2]](file)]
    if output.endswith(".csv"):
        rows = [{**row, "files": json.loads(row["files"])} for row in rows]
    return rows


def drawn(output):
    """Return the content of the file of each row."""
    return [[Path(name).read_bytes() for name in row["files"]] for row in rows_of(output)]


@pytest.mark.parametrize(
    ("output", "route"),
    sampled(
        [(f"out.{format}", route) for format in ("jsonl", "csv", "parquet") for route in ROUTES],
        keep=3,
    ),
)
def test_each_row_names_its_files_in_a_folder_next_to_the_output(output, route, folder):
    write_rows()
    for limit in ("1", "9"):
        assert run("--strategy", route, "--limit", limit, *ROUTES[route], output=output) == 0
    assert [row["files"] for row in rows_of(output)] == [
        ["out.files/cat_1-0.png"],
        ["out.files/_.._dog-0.png"],
        ["out.files/2-0.png"],
    ]
    assert drawn(output) == [[picture_for(f"Draw a {animal} as PNG")] for animal in ROWS.values()]
    assert run("--strategy", route, *ROUTES[route], output=output) == 0  # nothing is missing
    assert sorted(os.listdir("out.files")) == ["2-0.png", "_.._dog-0.png", "cat_1-0.png"]


def test_a_file_is_never_replaced_by_that_of_another_answer(folder):
    write_rows({"a": "cat", "b": "dog"})
    assert run() == 0
    write_rows({"a": "horse", "b": "dog"})
    assert run("--changed", "rows") == 0
    assert drawn("out.jsonl") == [[picture_for(f"Draw a {animal} as PNG")] for animal in ("horse", "dog")]
    assert drawn("out.previous-1.jsonl") == [
        [picture_for(f"Draw a {animal} as PNG")] for animal in ("cat", "dog")
    ]
    assert len(os.listdir("out.files")) == 3


def test_a_run_to_standard_output_keeps_the_job_with_the_files(folder, capfd):
    write_rows()
    assert main(["run", "in.jsonl", "--template", TEMPLATE, "--model", MODEL]) == 0
    out, said = capfd.readouterr()
    for line in map(json.loads, out.splitlines()):
        [path] = line["files"]
        assert Path(path).read_bytes() == picture_for(f"Draw a {line['input']['animal']} as PNG")
    job = said.partition("Job ")[2].split()[0]
    assert f"smartbatch jobs results {job} -o NAME.jsonl copies them" in said
    assert main(["jobs", "results", job, "-o", "copy.csv"]) == 0
    assert main(["jobs", "forget", job]) == 0
    assert drawn("copy.csv") == [[picture_for(f"Draw a {animal} as PNG")] for animal in ROWS.values()]


def test_a_full_disk_leaves_the_answer_to_the_next_run(folder, monkeypatch, capfd):
    write_rows()
    opened = os.open

    def no_room(path, *rest, **options):
        if ".files/.cat_1-0.png." not in str(path):
            return opened(path, *rest, **options)
        os.close(opened(path, *rest, **options))
        return opened("/dev/full", os.O_RDWR)

    monkeypatch.setattr(os, "open", no_room)
    assert run() == 1
    assert "out.files: cannot be written: No space left on device" in capfd.readouterr().err
    monkeypatch.setattr(os, "open", opened)
    assert run() == 0
    assert drawn("out.jsonl") == [[picture_for(f"Draw a {animal} as PNG")] for animal in ROWS.values()]


@pytest.mark.full  # starts a process
def test_a_killed_run_is_completed_with_every_file(folder):
    write_rows({f"r{number}": f"fish {number}" for number in range(40)})
    command = f"{sys.executable} -m smartbatch run in.jsonl -o out.jsonl --strategy individual".split()
    command += ["--parallelism", "2", "--model", "sim:demo?latency=0.02", "--template", TEMPLATE]
    with subprocess.Popen(command) as process:
        while len(list(Path().glob("out.files/*"))) < 5:
            time.sleep(0.002)
        process.kill()
    assert subprocess.call(command) == 0
    assert drawn("out.jsonl") == [[picture_for(f"Draw a fish {number} as PNG")] for number in range(40)]
