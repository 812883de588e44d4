"""The rows of an input, found again by their index when results come for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smartbatch.cli.inputs import Source
from smartbatch.cli.prompts import PromptMaker
from smartbatch.cli.requests import Questions
from smartbatch.errors import InputError
from smartbatch.types import Generation


@pytest.fixture
def questions(tmp_path: Path) -> Iterator[Questions]:
    """Ten checked rows."""
    path = tmp_path / "in.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(10)))
    with Source(str(path)) as source:
        asked = Questions(source, PromptMaker(), model="sim:demo", params=Generation())
        asked.check()
        yield asked


def test_rows_are_found_in_any_order(questions: Questions) -> None:
    """What was passed over is held until it is asked for."""
    row_at = questions.finder(lambda _: False, ordered=False)
    for index in (3, 0, 9, 1, 2, 8, 4, 5, 7, 6):
        row = row_at(index)
        assert (row.index, row.fields) == (index, {"prompt": f"prompt {index}"})


def test_rows_that_come_in_order_are_not_held(questions: Questions) -> None:
    """Some may be left out; one that was passed over is gone, and so is one that is skipped."""
    row_at = questions.finder(lambda index: index == 8, ordered=True)
    assert [row_at(index).index for index in (0, 2, 3, 7)] == [0, 2, 3, 7]
    with pytest.raises(InputError, match="changed while it was being read"):
        row_at(8)
