"""Labels from a file: lines with an id and a label, and marks of an output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smartbatch.cli.main import main
from smartbatch.errors import InputError
from smartbatch.quality.labels import LabelScores
from smartbatch.quality.marks import Mark, answer_digest
from smartbatch.runs.label_file import read_labels
from smartbatch.runs.marks_file import MarksFile, marks_path
from smartbatch.runs.output_reader import read_rows


def written(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return str(path)


def line(index: int, text: str | None, **fields: Any) -> dict[str, Any]:
    parsed = fields or None
    return {"index": index, "id": f"r{index}", "input": {}, "text": text, "parsed": parsed, "error": None}


def scored(output: str, labels: str, compared: str | None = None) -> LabelScores:
    scores = LabelScores(labels, compared, read_labels(labels, compared))
    for row in read_rows(output):
        scores.count(row)
    return scores


def marked(output: str, *verdicts: tuple[int, Any, str | None]) -> str:
    rows = {row.index: row for row in read_rows(output)}
    file = MarksFile(marks_path(output))
    for index, verdict, field in verdicts:
        row = rows[index]
        file.add(Mark(index=index, id=row.id, answer=answer_digest(row), verdict=verdict, field=field))
    return file.path


def test_labels_belong_to_rows_by_id(tmp_path):
    output = written(tmp_path / "out.jsonl", line(0, "Good"), line(1, "bad"), line(2, "bad"))
    labels = written(
        tmp_path / "labels.jsonl", {"id": "r0", "label": "good"}, {"id": "r1", "label": "good", "note": ""}
    )
    scores = scored(output, labels)
    assert (scores.scored, scores.right, scores.unlabeled) == (2, 1, 1)


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"id": "a"}', '{"label": "a"}', '{"id": null, "label": "a"}', "\xff"]
)
def test_a_file_that_has_no_labels_is_rejected(tmp_path, text):
    path = tmp_path / "labels.jsonl"
    path.write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(InputError, match=r"line 1 is not a label|not UTF-8"):
        read_labels(str(path), None)


def test_marks_score_other_answers_to_the_same_rows(tmp_path):
    old = written(tmp_path / "old.jsonl", line(0, "good"), line(1, "good"), line(2, "bad"), line(3, "bad"))
    marks = marked(old, (0, "right", None), (1, "wrong", None), (2, "wrong", None), (3, "unsure", None))
    assert (scored(old, marks).scored, scored(old, marks).right) == (3, 1)
    new = written(tmp_path / "new.jsonl", line(0, "bad"), line(1, "good"), line(2, "good"), line(3, "bad"))
    scores = scored(new, marks)
    assert (scores.scored, scores.right, scores.unlabeled) == (2, 0, 2)
    assert scores.confusion() == {"good": [0, 1]}


def test_a_mark_of_an_earlier_answer_is_no_label(tmp_path):
    output = written(tmp_path / "out.jsonl", line(0, "good"), line(1, "good"))
    marks = marked(output, (0, "right", None), (1, "right", None))
    written(tmp_path / "out.jsonl", line(0, "good"), line(1, "bad"))
    assert (scored(output, marks).scored, scored(output, marks).unlabeled) == (1, 1)


def test_marks_of_a_field_label_that_field(tmp_path):
    output = written(
        tmp_path / "out.jsonl", *(line(index, None, mood="good", stars=index) for index in range(3))
    )
    marks = marked(output, (0, "wrong", "mood"), (1, "right", None), (2, "wrong", "stars"))
    scores = scored(output, marks, "mood")
    assert (scores.scored, scores.right, scores.unlabeled) == (2, 1, 1)


def test_marks_need_their_output(tmp_path):
    output = written(tmp_path / "out.jsonl", line(0, "good"))
    marks = marked(output, (0, "right", None))
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(InputError, match="the output with the marked answers is not next to it"):
        read_labels(marks, None)


def test_a_report_takes_marks_as_labels(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_STORE", str(tmp_path / "none.db"))
    output = written(tmp_path / "out.jsonl", line(0, "good"), line(1, "bad"))
    marks, page = marked(output, (0, "right", None), (1, "wrong", None)), tmp_path / "r.html"
    assert main(["report", output, "--labels", marks, "-o", str(page)]) == 0
    assert "50.0 % (95 %: 9.5 to 90.5 %) of 2 answers" in page.read_text("utf-8")
    assert main(["report", output, "--labels", marks, "--label-column", "a", "-o", str(page)]) == 2
