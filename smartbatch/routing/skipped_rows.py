"""Rows of a table that are skipped: no request is made for them, and their results say so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from smartbatch.errors import RowSkipped
from smartbatch.tables.row_prompts import SkippedRow
from smartbatch.types import Result


def without_skipped(prompts: Iterable[Any], answers: int) -> tuple[Iterable[Any], dict[int, Result]]:
    """Return prompts, and the results of those rows among them that are skipped, by their position in the
    list of results.

    The prompts keep their positions: whoever makes requests of them leaves out the skipped rows. If they are
    read lazily, their results are there as soon as they have been read.

    Args:
        answers: results of each row that is not skipped.
    """
    skipped: dict[int, Result] = {}

    def read() -> Iterator[Any]:
        for at, prompt in enumerate(prompts):
            if isinstance(prompt, SkippedRow):
                before = len(skipped)
                skipped[(at - before) * answers + before] = _result(at, prompt)
            yield prompt

    if isinstance(prompts, Sequence):
        deque(read(), maxlen=0)
        return prompts, skipped
    return read(), skipped


def _result(at: int, row: SkippedRow) -> Result:
    error = RowSkipped(f"row {at} (counted from 0) was skipped: {row.reason}")
    return Result("", error=error, cost=0.0, row=at)


class Merged(Iterator[Result]):
    """The results of requests with those of skipped rows among them, at their positions.

    Args:
        results: of the requests.
        skipped: results of skipped rows by position; there before the result of any later row.
        ordered: whether the results come in the order of the rows. If not, those of skipped rows come first.
    """

    def __init__(self, results: Iterator[Result], skipped: dict[int, Result], *, ordered: bool) -> None:
        self._results = results
        self._skipped = skipped
        self._ordered = ordered
        self._position = 0
        self._held: Result | None = None
        self._ended = False

    def __next__(self) -> Result:
        if not self._ordered:
            return self._next_unordered()
        if self._position not in self._skipped and self._held is None and not self._ended:
            try:
                self._held = next(self._results)
            except StopIteration:
                self._ended = True
        at = self._position
        self._position += 1
        if at in self._skipped:
            return self._skipped[at]
        held, self._held = self._held, None
        if held is None:
            raise StopIteration
        return held

    def _next_unordered(self) -> Result:
        while True:
            if self._skipped:
                return self._skipped.popitem()[1]
            if self._ended:
                raise StopIteration
            try:
                return next(self._results)
            except StopIteration:
                self._ended = True
