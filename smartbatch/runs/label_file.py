"""Reads labels from a file of JSON lines, or derives them from the marks of an output."""

from __future__ import annotations

import json
from typing import Any

from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.quality.labels import GivenLabels, LabelScores, class_of
from smartbatch.quality.marks import Mark
from smartbatch.runs.marks_file import MarksFile, output_of_marks
from smartbatch.runs.output_reader import read_rows


def read_labels(path: str, compared: str | None) -> GivenLabels:
    """Read a file whose lines have an ``id`` or an ``index``, and a ``label``; or a file of marks.

    An answer marked right becomes the label of its row; one marked wrong is only known to be wrong.

    Args:
        compared: the field of the answers that is compared, if one was chosen.

    Raises:
        InputError: the file, or the output of the marks, cannot be read or contains something else.
    """
    labels = GivenLabels()
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, text in enumerate(file, 1):
                line = _decoded(text)
                if "verdict" in line:
                    return _labels_of_marks(path, compared)
                row = line.get("id", line.get("index"))
                if not isinstance(row, int | str) or "label" not in line:
                    raise InputError(
                        f"{escape(path)}: line {number} is not a label; write an object with id (or index) "
                        "and label, or name a file of marks"
                    )
                if (label := class_of(line["label"])) is not None:
                    labels.right[str(row)] = label
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{escape(path)}: cannot be read: {reason}") from error
    return labels


def _decoded(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    return line if isinstance(line, dict) else {}


def _labels_of_marks(path: str, compared: str | None) -> GivenLabels:
    marks: dict[tuple[int, int], list[Mark]] = {}
    for mark in MarksFile(path).read():
        if mark.field in (None, compared):
            marks.setdefault((mark.index, mark.sample or 0), []).append(mark)
    output = output_of_marks(path)
    if output is None:
        raise InputError(f"{escape(path)}: the output with the marked answers is not next to it")
    labels, scores = GivenLabels(), LabelScores("", compared)
    for row in read_rows(output):
        for mark in marks.get((row.index, row.sample or 0), ()):
            is_whole = mark.field is None and len(row.fields) > 1
            if not mark.is_of(row) or (is_whole and compared is None):
                continue
            if mark.verdict == "right":
                labels.right[str(row.id)] = scores.answer_of(row)
            elif mark.verdict == "wrong" and not is_whole:  # else it is unknown which field is wrong
                labels.wrong.setdefault(str(row.id), set()).add(scores.answer_of(row))
    return labels
