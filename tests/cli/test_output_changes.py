"""The output is deleted, moved, cut or saved while a run writes to it: the run says so and loses nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cli.runs import prompts, stored_jobs, written
from levels import sampled

from smartbatch.cli.main import main
from smartbatch.runs.output_file import OutputFile, OutputRow

OWN = "call:own_calls:ask"
SIM = "sim:demo?batch_seconds=0.02"
ROWS = 30


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(f"{path}.1")


def rotate(path: Path) -> None:
    path.rename(f"{path}.1")
    path.touch()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3 - 5)


def save(path: Path) -> None:
    Path("saved").write_bytes(path.read_bytes())
    os.replace("saved", path)


def save_in_place(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"a note\n")


def overwrite(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"attempts": 1', b'"attempts": 2'))


CHANGES = [delete, move, rotate, empty, cut, save, save_in_place, extend, overwrite]
WORDS = {
    delete: "is gone: it was deleted or moved away",
    move: "is gone: it was deleted or moved away",
    rotate: "is another file now",
    save: "is another file now",
    overwrite: "no longer contains what was written",
}


def run(model: str, *more: str, output: str = "out.jsonl") -> int:
    batch = (
        ["--strategy", "batch", "--batch-poll-interval", "0.05"] if model == SIM else ["--parallelism", "3"]
    )
    return main(["run", "in.txt", "--model", model, *batch, "-o", output, *more])


@pytest.fixture
def changed(monkeypatch):
    append = OutputFile.append

    def prepare(change: Callable[[Path], object], after: int) -> None:
        lines = 0

        def meddling(self: OutputFile, rows: Sequence[OutputRow]) -> None:
            nonlocal lines
            for row in rows:
                append(self, [row])
                lines += 1
                if lines == after:
                    change(Path(self.path))

        monkeypatch.setattr(OutputFile, "append", meddling)

    return prepare


@pytest.fixture(autouse=True)
def folder(calls, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(Path("sim").resolve()))


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "after", "output"),
    sampled(
        [(change, after, "out.jsonl") for change in CHANGES for after in (10, ROWS)]
        + [(rotate, 10, name) for name in ("out.ndjson", "out")],
        keep=10,
    ),
)
def test_a_run_whose_output_changes_says_so_and_pays_nothing_twice(
    calls, changed, capfd, change, after, output
):
    expected = prompts(ROWS)
    changed(change, after)
    assert run(OWN, output=output) == 1
    printed = capfd.readouterr().err
    assert f"smartbatch: {output} {WORDS.get(change, 'has ')}" in printed
    assert "Traceback" not in printed
    assert len(stored_jobs()) == 1
    assert run(OWN, output=output) == 0
    assert [row["input"]["prompt"] for row in written(output)] == expected
    assert Counter(calls.asked) == Counter(expected)


@pytest.mark.full
def test_an_unreadable_output_is_moved_away(calls, changed, capfd):
    expected = prompts(ROWS)

    def garble(path: Path) -> None:
        path.write_bytes(path.read_bytes().replace(b'"error": null', b'"error":: ull', 1))

    changed(garble, 10)
    assert run(OWN) == 1
    assert run(OWN) == 2
    assert "move the file: then the same command writes the stored answers" in capfd.readouterr().err
    move(Path("out.jsonl"))
    assert run(OWN) == 0
    assert [row["input"]["prompt"] for row in written()] == expected
    assert Counter(calls.asked) == Counter(expected)
