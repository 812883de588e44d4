"""From an input to requests: every row is checked before the first is sent, then asked lazily."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from smartbatch.cli.inputs import BadRow, Row, Source
from smartbatch.cli.lines import AskedRow
from smartbatch.cli.prompts import BadField, Keys, PromptMaker
from smartbatch.core.preparation import validation
from smartbatch.errors import InputError, InvalidRequest
from smartbatch.types import Generation, Request, evolve

__all__ = ["Questions"]

_SHOWN_AT_MOST: Final = 10
"""Bad rows listed in one error: enough to see the pattern, few enough to read."""


class Questions:
    """The requests of an input.

    Args:
        source: where the rows come from.
        maker: makes a row's prompt and id.
        model: ``provider:model``.
        params: generation parameters of every row.
        limit: only the first rows are looked at.
    """

    def __init__(
        self, source: Source, maker: PromptMaker, *, model: str, params: Generation, limit: int | None = None
    ) -> None:
        self._source = source
        self._maker = maker
        self._params = params
        self._keys_of = Keys.of(model, params)
        self._limit = limit
        self.keys = array("Q")
        self._changed = f"{source.name}: changed while it was being read; run the same line again"

    def check(self) -> array[int]:
        """Read the input once, refuse it if any row is bad, and return the rows' keys.

        Raises:
            InputError: the input is empty or has bad rows; up to ten are named, each with line and field.
        """
        bad: list[str] = []
        count = 0
        for row in self._rows():
            try:
                if isinstance(row, BadRow):
                    raise BadField(row.message)
                self.keys.append(self._ask(row)[0].key)
            except (BadField, InvalidRequest) as error:
                count += 1
                if len(bad) < _SHOWN_AT_MOST:
                    bad.append(f"line {row.line}: {_told(error)}")
        if bad:
            rest = f"\n  and {count - len(bad)} more" if count > len(bad) else ""
            rows = "1 row" if count == 1 else f"{count} rows"
            raise InputError(
                f"{self._source.name}: {rows} cannot be asked; nothing was sent\n  " + "\n  ".join(bad) + rest
            )
        if not self.keys:
            raise InputError(f"{self._source.name}: has no rows; nothing was sent")
        return self.keys

    def requests(self, skip: Callable[[int], bool], stopped: Callable[[], bool]) -> Iterator[Request]:
        """Read the input again and yield its requests, each with an :class:`AskedRow` as context.

        Args:
            skip: says of a row's index that it need not be asked.
            stopped: asked before each row; once true, no more requests come.

        Raises:
            InputError: the input is no longer what was checked.
        """
        changed, count = self._changed, 0
        for row in self._rows():
            if stopped():
                return
            if isinstance(row, BadRow) or row.index >= len(self.keys):
                raise InputError(changed)
            count += 1
            if skip(row.index):
                continue
            try:
                asked, request = self._ask(row)
            except (BadField, InvalidRequest) as error:
                raise InputError(changed) from error
            if asked.key != self.keys[row.index]:
                raise InputError(changed)
            yield evolve(request, context=asked)
        if count != len(self.keys):
            raise InputError(changed)

    def finder(self, skip: Callable[[int], bool], *, ordered: bool) -> Callable[[int], AskedRow]:
        """Return what finds a row by its index, once each.

        The input is read as far as is asked for.

        Args:
            skip: says of a row's index that it will not be asked for.
            ordered: rows are asked for in their order; else those that were passed over are held.
        """
        rows = self.requests(skip, stopped=lambda: False)
        held: dict[int, AskedRow] = {}

        def find(index: int) -> AskedRow:
            while index not in held:
                if ordered:
                    held.clear()
                request = next(rows, None)
                if request is None:
                    raise InputError(self._changed)
                row: AskedRow = request.context
                held[row.index] = row
            return held.pop(index)

        return find

    def _rows(self) -> Iterator[Row | BadRow]:
        return islice(self._source.rows(), self._limit)

    def _ask(self, row: Row) -> tuple[AskedRow, Request]:
        prompt = self._maker.prompt(row)
        # The parameters are part of the settings digest, so what is checked here is the prompt alone.
        request = validation.normalise(prompt, self._params)
        asked = AskedRow(row.index, self._maker.id(row), row.fields, self._keys_of.key(prompt))
        return asked, request


def _told(error: BadField | InvalidRequest) -> str:
    field = getattr(error, "field", None)
    return f"{field}: {error.message}" if field and field not in error.message else error.message
