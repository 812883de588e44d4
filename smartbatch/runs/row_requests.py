"""Turns the rows of an input into requests, each with a prompt, an id and a key.

The whole input is checked before the first request is sent, and then read again row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from attrs import evolve

from smartbatch.core.preparation import validation
from smartbatch.errors import InputError, InvalidRequest, did_you_mean
from smartbatch.runs.example_turns import example_turns
from smartbatch.runs.row_keys import KeyedRow, Keys, RowKeys, UniqueIds, digest_of_id
from smartbatch.tables.cells import BadField, MissingFields, listed, missing_fields, text_of
from smartbatch.tables.file_cells import FileColumns, MissingFile
from smartbatch.tables.row_formats import BadRow
from smartbatch.tables.row_prompts import RowPrompts, SkippedRow
from smartbatch.tables.row_source import Row, RowSource
from smartbatch.tables.templates import TemplateError
from smartbatch.types import Embedding, Generation, OnMissing, Request, TemplateSource

_MAX_BAD_ROWS: Final = 10  # listed in one error
_SHOWN_CHARACTERS: Final = 1000  # of the beginning and of the end of a prompt
NO_ID_FIELD: Final = "-"  # numbers the rows


class RunInterrupted(Exception):
    """The run was interrupted while its rows were being read. None of them is stored."""


class PromptMaker:
    """Creates the prompt and the id of a row.

    Args:
        template: text with ``{field}`` placeholders, or a path; see
            :func:`~smartbatch.tables.templates.template_of`.
        prompt_field: the field with the prompt (a string or a list of chat messages). By default, and without
            a template, it is ``prompt``, otherwise ``messages``, otherwise the only text field.
        id_field: the field with the id, or ``-`` to number the rows. By default, it is ``id``; rows without
            this field are numbered.
        on_missing: what to do with rows that lack a field or a file of their prompt.
        files: columns with files.
        examples: rows with the fields of the prompt and their ``answer``. Every prompt begins with them.
        schema: the schema of the answers, which the examples must follow.

    Raises:
        InputError: the template or an example is invalid; the error says where.
    """

    def __init__(
        self,
        *,
        template: TemplateSource | None = None,
        prompt_field: str | None = None,
        id_field: str | None = None,
        on_missing: OnMissing = "error",
        files: FileColumns | None = None,
        examples: RowSource | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._id_field = id_field
        try:
            self._prompts = RowPrompts.of(template, prompt_field, on_missing, files)
        except TemplateError as error:
            raise InputError(f"--template: {error.message}") from error
        if examples is not None:
            turns = example_turns(examples, self._prompts, schema)
            self._prompts = evolve(self._prompts, examples=turns)
        self.fields = self._prompts.fields  # fields that prompts name; empty if each row decides
        self.file_columns = () if files is None else tuple(files.kinds)
        self._may_name_models = template is None and prompt_field in (None, *_REQUEST_FIELDS)

    @property
    def has_ids(self) -> bool:
        return self._id_field != NO_ID_FIELD

    def prompt(self, row: Row) -> Any:
        """Return the unvalidated prompt of a row or a :class:`SkippedRow`.

        The prompt of a row that names a model is a request with that model.

        Raises:
            MissingFields: the row lacks a field and must not be skipped.
            BadField: a field is unusable.
        """
        try:
            prompt = self._prompts.prompt(row.fields)
        except MissingFields as error:
            if self._prompts.on_missing != "skip":
                raise
            return SkippedRow(error.reason)
        model = _model_of(row) if self._may_name_models else None
        return prompt if model is None else Request(prompt, model=model)

    def recorded_fields(self, row: Row) -> dict[str, Any]:
        """Return the fields of a row as an output has them: without the bytes of files."""
        files = self._prompts.files
        return row.fields if files is None else files.without_content(row.fields)

    def id(self, row: Row) -> str | int:
        """Return the row's id, or its index if it has none.

        Strings and integers stay unchanged, ``1.0`` becomes ``1``, and other numbers and dates become text.

        Raises:
            BadField: the configured field is missing, or the id is blank, a boolean, a list or a record.
        """
        if not self.has_ids or (self._id_field is None and "id" not in row.fields):
            return row.index
        name = self._id_field or "id"
        if name not in row.fields:
            raise BadField(f"no field {name!r}; the row has {listed(row.fields)}")
        value = row.fields[name]
        if missing_fields([name], row.fields):
            raise BadField(f"field {name!r} is blank, and cannot be an id; {_OTHER_ID}")
        if isinstance(value, bool | list | tuple | dict):
            raise BadField(f"field {name!r}: an id must be text or a number; {_OTHER_ID}")
        if isinstance(value, str | int):
            return value
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        return int(value) if is_whole else text_of(value)


def _model_of(row: Row) -> str | None:
    """Return the model of a row with a field ``prompt`` or ``messages``. In other rows, ``model`` is an
    ordinary column.

    Raises:
        BadField: the model is not a string.
    """
    if "model" not in row.fields or row.fields.keys().isdisjoint(_REQUEST_FIELDS):
        return None
    if missing_fields(["model"], row.fields):
        return None
    if not isinstance(model := row.fields["model"], str):
        raise BadField("field 'model' must be text, the name of a model")
    return model


_REQUEST_FIELDS: Final = ("prompt", "messages")
_OTHER_ID: Final = f"--id-field names another field, --id-field {NO_ID_FIELD} numbers the rows"


class InputRequests:
    """The requests of an input. They are checked first and then read one by one.

    Args:
        embedding: how vectors are requested; ``None`` for texts.
        n: answers per row.
    """

    def __init__(
        self,
        source: RowSource,
        maker: PromptMaker,
        *,
        model: str,
        params: Generation,
        embedding: Embedding | None = None,
        limit: int | None = None,
        n: int = 1,
    ) -> None:
        self._source = source
        self._maker = maker
        self.embedding = embedding
        self._params = params
        self._keys_of = Keys.of(model, params, embedding)
        self._limit = limit
        self.keys = RowKeys(self._keys_of.settings, n)  # complete after check()

    def check(self) -> RowKeys:
        """Read and validate the whole input, and return the keys of the rows.

        Raises:
            InputError: the input is empty or has invalid rows. The first ten are listed, each with its line
                and field.
        """
        bad = _BadRows(self._source)
        absent: set[str] = set()
        any_read = False
        ids = UniqueIds()
        for row in self._rows():
            try:
                if isinstance(row, BadRow):
                    raise BadField(row.message)
                absent = (absent if any_read else set(self._maker.fields)) - row.fields.keys()
                any_read = True
                self.keys.append(self._keys_of.digest(self._checked_prompt(row)))
                ids.add_id(self._maker.id(row))
            except (BadField, InvalidRequest) as error:
                bad.add_row(row, error)
        if bad.count == 0 and ids.suspects:
            self._find_equal_ids(ids.suspects, bad)
        if bad.count and absent:
            bad.advice = f"no row has the field {min(absent)!r}"
        bad.raise_if_any()
        if not self.keys:
            raise InputError(f"{self._source.name}: has no rows; nothing was sent")
        if absent:
            raise InputError(f"{self._source.name}: no row has the field {min(absent)!r}; nothing was sent")
        return self.keys

    def _find_equal_ids(self, suspects: set[bytes], bad: _BadRows) -> None:
        seen: dict[str, Row] = {}
        for row in self._rows():
            if isinstance(row, BadRow) or digest_of_id(id := self._maker.id(row)) not in suspects:
                continue
            first = seen.setdefault(str(id), row)
            if first is not row:
                bad.add_row(row, BadField(f"has the same id as {self._source.place(first)}; {_OTHER_ID}"))

    def read(
        self,
        skip: Callable[[int], bool],
        stopped: Callable[[], bool],
        context: Callable[[KeyedRow], Any] = lambda row: row,
    ) -> Iterator[Request]:
        """Read the input again and yield its requests without parameters, which the client adds.

        Args:
            context: returns the context of a row's request.

        Raises:
            InputError: the input has changed since it was checked.
            RunInterrupted: ``stopped`` returned true.
        """
        for row, request in self.requests(skip, stopped):
            yield evolve(request, context=context(row), embedding=self.embedding)

    def requests(
        self, skip: Callable[[int], bool], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[KeyedRow, Request]]:
        """Read the input again and yield its rows with their requests; raises the errors of :meth:`read`."""
        for row, prompt in self._read_again(skip, stopped):
            request = prompt if isinstance(prompt, Request) else Request(prompt)
            if row.sample is not None:
                request = evolve(request, row=row.index, sample=row.sample)
            yield row, request

    def settings_with(self, model: str) -> bytes:
        """Return the settings half of the keys of all rows if another model answered them."""
        return Keys.of(model, self._params, self.embedding).settings

    def ids(self) -> Iterator[str | int]:
        """Read the input again and yield the ids of its rows."""
        return (self._maker.id(row) for row in self._rows() if isinstance(row, Row))

    def keyed_rows(self, skip: Callable[[int], bool]) -> Iterator[KeyedRow]:
        """Read the input again and yield its rows, once for each needed answer; raises the errors of
        :meth:`read`.
        """
        return (row for row, _ in self._read_again(skip, stopped=lambda: False))

    def values_of(self, column: str) -> list[str]:
        """Read the input again and return the value of a column in each row, as text.

        Raises:
            InputError: no row has the column.
        """
        self.check_column(column)
        rows = [row.fields.get(column) if isinstance(row, Row) else None for row in self._rows()]
        return ["" if value is None else text_of(value) for value in rows]

    def check_column(self, column: str) -> None:
        """Read the input again, up to the first row that has a value in a column.

        Raises:
            InputError: no row has one.
        """
        known: set[str] = set()
        for row in self._rows():
            if isinstance(row, Row):
                known.update(row.fields)
                if row.fields.get(column) not in (None, ""):
                    return
        hint = did_you_mean(column, known)
        raise InputError(f"{self._source.name}: no row has a value in the column {column!r:.80}{hint}")

    def first_prompt(self) -> tuple[str, str] | None:
        """Return the position of the first prompt that is not skipped, and its text; ``None`` if all are
        skipped. Of a long prompt, only the beginning and the end are returned.
        """
        for row in self._rows():
            if isinstance(row, Row) and not self.keys.is_skipped(row.index * self.keys.n):
                prompt = self._maker.prompt(row)
                text = text_of(prompt.prompt if isinstance(prompt, Request) else prompt)
                if (left_out := len(text) - 2 * _SHOWN_CHARACTERS) > 0:
                    ends = text[:_SHOWN_CHARACTERS], text[-_SHOWN_CHARACTERS:]
                    text = f" … ({left_out:,} more characters) … ".join(ends)
                return self._source.place(row), text
        return None

    def skipped_rows(self, written: Callable[[int], bool]) -> Iterator[KeyedRow]:
        """Read the input again and yield the skipped rows that are not ``written``."""
        if self.keys.skipped:
            yield from self.keyed_rows(lambda place: written(place) or not self.keys.has_skipped(place))

    def _read_again(
        self, skip: Callable[[int], bool], stopped: Callable[[], bool]
    ) -> Iterator[tuple[KeyedRow, Any]]:
        """Yield rows with their prompts, once for each needed answer; raises the errors of :meth:`read`.

        Rows whose key has not changed since :meth:`check` are not validated again. If all of the first rows
        are to be skipped, most of them are not even read.
        """
        keys, n = self.keys, self.keys.n
        needed = (place for place in range(len(keys)) if not skip(place))
        count = self._source.start_before(next(needed, 0) // n)
        for row in self._rows(count):
            if stopped():
                raise RunInterrupted
            if isinstance(row, BadRow) or row.index >= keys.rows:
                raise self._changed()
            count += 1
            first = row.index * n
            samples = [sample for sample in range(n) if not skip(first + sample)]
            if not samples:
                continue
            try:
                prompt = self._maker.prompt(row)
                reason = prompt.reason if isinstance(prompt, SkippedRow) else None
                key = self._keys_of.key(prompt)
                fields = self._maker.recorded_fields(row)
                keyed = KeyedRow(row.index, self._maker.id(row), fields, key, reason)
            except (BadField, TypeError, ValueError) as error:
                raise self._changed() from error
            if keyed.key != keys[first]:
                raise self._changed()
            if n == 1:
                yield keyed, prompt
            elif reason is None:
                for sample in samples:
                    yield evolve(keyed, sample=sample, place=first + sample), prompt
            elif samples[0] == 0:
                yield evolve(keyed, place=first), prompt
        if count != keys.rows:
            raise self._changed()

    def row_lookup(self, skip: Callable[[int], bool], *, ordered: bool) -> Callable[[int], KeyedRow]:
        """Return a function that returns the row at a place. It must be called at most once per place.

        The function reads the input up to that row. If rows are not looked up in order, the rows in between
        stay in memory.
        """
        rows = self._read_again(skip, stopped=lambda: False)
        passed: dict[int, KeyedRow] = {}

        def find(place: int) -> KeyedRow:
            while place not in passed:
                if ordered:
                    passed.clear()
                found = next(rows, None)
                if found is None:
                    raise self._changed()
                passed[found[0].place] = found[0]
            return passed.pop(place)

        return find

    def _rows(self, start: int = 0) -> Iterator[Row | BadRow]:
        return islice(self._source.rows(start), None if self._limit is None else self._limit - start)

    def _changed(self) -> InputError:
        return InputError(f"{self._source.name}: changed while it was being read; run the same command again")

    def _checked_prompt(self, row: Row) -> Any:
        prompt = self._maker.prompt(row)
        # Only the prompt is validated. The parameters are part of the settings digest.
        if isinstance(prompt, Request):
            validation.check_prompt(prompt.prompt, self.embedding)
        elif not isinstance(prompt, SkippedRow):
            validation.check_prompt(prompt, self.embedding)
        return prompt


class _BadRows:
    def __init__(self, source: RowSource) -> None:
        self._source = source
        self._shown: list[str] = []
        self._missing: Counter[str] = Counter()
        self._blank = False  # whether a field of a row is blank
        self.count = 0
        self.advice = ""

    def add_row(self, row: Row | BadRow, error: BadField | InvalidRequest) -> None:
        self.count += 1
        if isinstance(error, MissingFields):
            self._missing[error.reason] += 1
            self._blank = self._blank or not isinstance(error, MissingFile)
        if len(self._shown) < _MAX_BAD_ROWS:
            self._shown.append(f"{self._source.place(row)}: {_message(error)}")

    def raise_if_any(self) -> None:
        if not self.count:
            return
        lines = list(self._shown)
        if self.count > len(lines):
            lines.append(f"and {self.count - len(lines):,} more")
        if self.advice:
            lines.append(self.advice)
        elif self._missing:
            fields = ", ".join(f"{count:,} with {reason}" for reason, count in self._missing.most_common(5))
            advice = "--on-missing skip leaves such rows out"
            advice += ", --on-missing empty leaves blank fields empty" if self._blank else ""
            lines.append(f"{fields}: {advice}")
        rows = "1 row" if self.count == 1 else f"{self.count:,} rows"
        raise InputError(
            "\n  ".join([f"{self._source.name}: {rows} cannot be used; nothing was sent", *lines])
        )


def _message(error: BadField | InvalidRequest) -> str:
    field = getattr(error, "field", None)
    return f"{field}: {error.message}" if field and field not in error.message else error.message
