"""Runs whose rows have files: ``--file``, ``--files-root`` and ``--on-missing``."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.runs import written

from smartbatch.cli.main import main

PHOTOS = {name: b"\x89PNG\r\n\x1a\n" + name.encode() for name in ("a.png", "b.png", "c.png")}
HASHES = [hashlib.sha256(data).hexdigest() for data in PHOTOS.values()]


@pytest.fixture
def table(folder):
    (folder / "in" / "photos").mkdir(parents=True)
    for name, data in PHOTOS.items():
        (folder / "in" / "photos" / name).write_bytes(data)
    return write_table(folder / "in", [f"photos/{name}" for name in PHOTOS])


def write_table(folder: Path, cells: list[str]) -> Path:
    (folder / "in.csv").write_text("photo,note\n" + "".join(f"{cell},n\n" for cell in cells))
    return folder / "in.csv"


def run(table: Path, *args: str, command: str = "run") -> int:
    template = "What is the SHA-256 of {photo}? {note}"
    return main(
        [command, str(table), "--model", "sim:demo", "--template", template, "--file", "photo=image", *args]
    )


def test_paths_are_relative_to_the_table(table):
    assert run(table, "-o", "out.jsonl") == 0
    assert [row["text"] for row in written()] == HASHES
    assert written()[0]["input"] == {"photo": "photos/a.png", "note": "n"}


def test_a_moved_table_keeps_its_answers_and_a_replaced_photo_is_a_changed_row(table, folder, capfd):
    assert run(table, "-o", "out.jsonl") == 0
    moved = folder / "moved"
    shutil.move(folder / "in", moved)
    assert run(moved / "in.csv", "-o", "out.jsonl") == 0
    assert "3 rows answered already" in capfd.readouterr().err

    (moved / "photos" / "b.png").write_bytes(PHOTOS["b.png"] + b" replaced")
    assert run(moved / "in.csv", "-o", "out.jsonl") == 2
    assert "the prompt of 1 answered row has changed" in capfd.readouterr().err
    assert run(moved / "in.csv", "-o", "out.jsonl", "--changed", "rows") == 0
    replaced = hashlib.sha256(PHOTOS["b.png"] + b" replaced").hexdigest()
    assert [row["text"] for row in written()] == [HASHES[0], replaced, HASHES[2]]


def test_unusable_files_are_reported_before_the_run_starts(table, folder, capfd):
    (folder / "in" / "notes.txt").write_text("words")
    cells = ["photos/a.png", "gone.png", "../in/notes.txt", "../../x.png", "/etc/hostname", "also-gone.png"]
    assert run(write_table(folder / "in", cells), "-o", "out.jsonl", "--on-missing", "skip") == 2
    said = capfd.readouterr().err
    assert "3 rows cannot be used; nothing was sent" in said
    assert "row 2 (line 4): field 'photo' is the file" in said
    assert "row 4 (line 6): field 'photo': the file '/etc/hostname' is not below" in said

    table = write_table(folder / "in", ["photos/a.png", "gone.png", "also-gone.png"])
    assert run(table, "-o", "out.jsonl") == 2
    said = capfd.readouterr().err
    assert f"row 1 (line 3): field 'photo': there is no file '{folder}/in/gone.png'" in said
    assert "--on-missing skip leaves such rows out" in said
    assert "leave blank" not in said
    assert "2 with missing file `photo`: --on-missing skip" in said
    assert run(table, "-o", "out.jsonl", "--on-missing", "skip") == 0
    assert "2 rows skipped: missing file `photo`" in capfd.readouterr().err
    assert [row["error"] and row["error"]["message"] for row in written()] == [
        None,
        "skipped: missing file `photo`",
        "skipped: missing file `photo`",
    ]


@pytest.mark.parametrize("form", [bytes, lambda data: {"bytes": data, "path": "x.png"}, lambda data: [data]])
def test_bytes_in_parquet_are_sent_but_not_written(folder, form):
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = [form(data) for data in PHOTOS.values()]
    import pyarrow

    parquet.write_table(pyarrow.table({"photo": cells, "note": ["n"] * 3}), "in.parquet")
    assert run(Path("in.parquet"), "-o", "out.jsonl", "--store", "jobs.db") == 0
    assert [row["text"] for row in written()] == HASHES
    for row, known in zip(written(), HASHES, strict=True):
        assert f"sha256:{known}" in str(row["input"]["photo"])
    data = next(iter(PHOTOS.values()))
    left = [path for path in folder.rglob("*") if path.is_file() and data in path.read_bytes()]
    assert left == [folder / "in.parquet"]


def test_files_root_names_another_folder(table, folder):
    shutil.move(folder / "in" / "photos", folder / "photos")
    assert run(table, "-o", "out.jsonl") == 2
    assert run(table, "-o", "out.jsonl", "--files-root", str(folder)) == 0
    assert [row["text"] for row in written()] == HASHES


@pytest.mark.parametrize("more", [["--sample", "2", "--yes"], ["--strategy", "batch"], ["--n", "2"]])
def test_every_kind_of_run_sends_the_files(table, more, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.05")
    assert run(table, "-o", "out.jsonl", *more) == 0
    assert sorted({row["text"] for row in written()}) == sorted(HASHES)


def test_urls_are_passed_on_unless_they_are_fetched(folder, capfd):
    table = write_table(folder, ["https://localhost/a.png"])
    assert run(table, command="plan") == 0
    assert run(table, "--fetch-to", "fetched", command="plan") == 2
    assert "row 0 (line 2): field 'photo': the URL 'https://localhost/a.png' cannot be fetched" in "".join(
        capfd.readouterr()
    )


def test_a_plan_counts_the_files(table, folder, capfd):
    assert run(table, "-v", command="plan") == 0
    assert f"<Image: the file '{folder}/in/photos/a.png'>" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["--file", "photo=picture"],
            "--file: the files in 'photo' must be of the kind image, document or audio",
        ),
        (["--file", "photo"], "--file 'photo' needs the form COLUMN=KIND"),
        (["--file", "a=image", "--file", "a=audio"], "--file a: is given twice"),
        (["--files-root", "."], "--files-root needs --file"),
        (["--fetch-to", "."], "--fetch-to needs --file"),
        (
            ["--file", "photo=audio", "--max-pixels", "9"],
            "--max-pixels: max_pixels needs a column with images",
        ),
        (
            ["--file", "photo=image", "--files-root", "nowhere"],
            "--files-root: the folder of the files, 'nowhere',",
        ),
        (["--file", "scan=document"], "--template: the files in 'scan' need a place in the prompt"),
        (["--file", "photo=image", "--embed"], "--file applies to answers"),
    ],
)
def test_wrong_options_are_rejected(table, args: Any, problem, capfd):
    assert main(["run", str(table), "--model", "sim:demo", "--template", "{photo}", *args]) == 2
    assert problem in capfd.readouterr().err
