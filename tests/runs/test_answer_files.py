"""The folder with the files of answers, written by two runs at the same time."""

from __future__ import annotations

import threading

from smartbatch import Document
from smartbatch.runs.answer_files import AnswerFolder
from tests.threads_together import PATIENCE, run_together


def test_outputs_that_share_a_folder_keep_the_files_of_both(tmp_path):
    contents = {ending: ending.encode() * 1000 for ending in ("csv", "jsonl", "parquet")}
    paths: dict[str, list[str]] = {ending: [] for ending in contents}
    row_begins = threading.Barrier(len(contents), timeout=PATIENCE)

    def write(ending: str) -> None:
        folder = AnswerFolder(str(tmp_path / f"out.{ending}"))
        files = [Document(contents[ending]).accepted("answer")]
        for row in range(20):
            row_begins.wait()
            paths[ending] += folder.write(f"row {row}", files)

    run_together(write, contents)
    for ending, content in contents.items():
        assert len(paths[ending]) == 20
        assert all((tmp_path / path).read_bytes() == content for path in paths[ending])
    assert not list(tmp_path.glob("out.files/.*"))
