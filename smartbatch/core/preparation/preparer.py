"""Turns prompts, lists and tables into checked requests: merges parameters, runs hooks and checks fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, NoReturn, Self, TypeAlias, TypeVar, cast

from attrs import evolve, fields_dict, frozen

from smartbatch.core.preparation import validation
from smartbatch.errors import InvalidRequest
from smartbatch.tables.cells import BadField, MissingFields, listed
from smartbatch.tables.columns import TableKind, is_arrow_column, is_row_stream, kind_of_table
from smartbatch.tables.file_cells import FileColumns, MissingFile
from smartbatch.tables.row_prompts import MAX_EXAMPLES, ON_MISSING, RowPrompts, SkippedRow
from smartbatch.tables.templates import TemplateError
from smartbatch.types import (
    Answer,
    Generation,
    Kind,
    Message,
    OnMissing,
    Prompt,
    Prompts,
    Request,
    TemplateSource,
)

Preprocess: TypeAlias = "Callable[[Request], Request | Answer | str | None]"
"""A hook that runs before a request is queued. It returns the request, a changed request or a local answer,
or raises an error to reject the request.
"""

# names of the generation parameters, as opposed to the fields of a request
GENERATION = frozenset(fields_dict(Generation))
_REQUEST_FIELDS = fields_dict(Request).keys()

_T = TypeVar("_T")


@frozen(eq=False, repr=False)
class RequestPreparer:
    """Prepares the requests of one client: single requests, lists and jobs."""

    _defaults: Generation  # the client's generation parameters, already checked
    _hooks: Sequence[Preprocess]  # run on each request, in order
    _request_timeout: float | None  # seconds, for requests without a timeout of their own
    check: Callable[[Request], None]  # raises ``InvalidRequest`` if the provider cannot handle it
    _deduplicate: bool | None = None  # setting of the client
    # returns the model name to store in a request; see ``providers.registry.OpenedModel.named``
    _named: Callable[[str], str | None] | None = None

    def request(self, prompt: Prompt, params: Mapping[str, Any]) -> Request:
        """Return one checked request, which may require several answers; see :meth:`samples`."""
        return self._with_model(validation.normalise(prompt, self._defaults, **params))

    def _with_model(self, request: Request) -> Request:
        if request.model is None or self._named is None:
            return request
        return evolve(request, model=self._named(request.model))

    def samples(self, request: Request) -> tuple[Request, ...]:
        """Return one request per answer, each with its own id. The answers are independent unless
        ``deduplicate`` is True.
        """
        n = request.params.n
        if n is None:
            return (request,)
        once = evolve(request, params=evolve(request.params, n=None))
        if n == 1:
            return (once,)
        if request.deduplicate is None:  # set in each request, because they may be sent separately
            once = evolve(once, deduplicate=self._deduplicate or None)
        return tuple(evolve(once, id=_numbered(once.id, number), sample=number) for number in range(n))

    def requests(self, prompts: Iterable[Prompt], params: Mapping[str, Any]) -> Iterable[Request]:
        """Return the checked requests of a list: immediately for a sequence, lazily for anything else.

        Raises:
            InvalidRequest: names the row.
        """
        checked = self.admitted(prompts, params)
        if not isinstance(prompts, Sequence):
            return checked
        requests = list(checked)
        for at, request in enumerate(requests):
            row_named(row_of(at, request), partial(self.check, request))
        return requests

    def admitted(self, prompts: Iterable[Prompt], params: Mapping[str, Any]) -> Iterator[Request]:
        """Yield the requests of a list. Each is checked when it is read; skipped rows are left out.

        Raises:
            InvalidRequest: a row is invalid (raised when it is read), or a parameter would have no effect
                (raised immediately).
        """
        if params.get("embedding") is not None:
            validation.refuse_for_vectors(params)
        defaults = self._defaults_with(params)
        others = {
            name: value
            for name, value in params.items()
            if name not in GENERATION and not (value is None and name in _REQUEST_FIELDS)
        }
        unnamed = {name: value for name, value in others.items() if name != "model"}

        def normalise(prompt: Prompt) -> Request:
            own = isinstance(prompt, Request) and prompt.model is not None  # takes precedence
            return self._with_model(validation.normalise(prompt, defaults, **(unnamed if own else others)))

        def read() -> Iterator[Request]:
            position = 0
            for row, prompt in enumerate(prompts):
                if isinstance(prompt, SkippedRow):
                    continue
                for request in self.samples(row_named(row, partial(normalise, prompt))):
                    if request.row is None and (row != position or request.sample is not None):
                        request = evolve(request, row=row)
                    yield request
                    position += 1

        return read()

    def answers_each(self, params: Mapping[str, Any]) -> int:
        """The answers per prompt, for prompts that do not set ``n``."""
        n = self._defaults.n if params.get("n") is None else params["n"]
        return n if isinstance(n, int) else 1

    def defaults_of(self, params: Mapping[str, Any]) -> Generation:
        """The client's parameters, overridden by ``params``."""
        return _once(self._defaults_with(params))

    def _defaults_with(self, params: Mapping[str, Any]) -> Generation:
        own = {name: value for name, value in params.items() if name in GENERATION}
        return validation.admit_defaults(evolve(self._defaults, **own)) if own else self._defaults

    def preprocessed(self, request: Request) -> Request | Answer:
        """Run the hooks, then set the default timeout."""
        prepared = self.hooked(request)
        if isinstance(prepared, Request) and prepared.timeout is None and self._request_timeout is not None:
            prepared = evolve(prepared, timeout=self._request_timeout)
        return prepared

    def hooked(self, request: Request) -> Request | Answer:
        """Run the hooks. An answer completes the request without a call."""
        asked = request
        for hook in self._hooks:
            verdict = hook(request)
            if isinstance(verdict, str):
                return Answer(verdict)
            if isinstance(verdict, Answer):
                return verdict
            if verdict is not None:
                if isinstance(verdict, Request) and verdict.params.n is not None:
                    raise InvalidRequest(
                        "n cannot be set by a preprocess hook, which runs once per answer",
                        field="n",
                    )
                request = self._with_model(validation.normalise(verdict, _once(self._defaults)))
        if (request.row, request.sample) != (asked.row, asked.sample):  # a hook created a new request
            request = evolve(request, row=asked.row, sample=asked.sample)
        return request

    def _for_job(self, request: Request, attended: bool) -> Request:
        prepared = self.hooked(request)
        if isinstance(prepared, Answer):
            raise InvalidRequest(
                "prompt was answered by a preprocess hook, but a job contains only requests to be sent: "
                "leave out such rows, or use generate()",
                field="prompt",
            )
        if prepared.timeout is not None and not attended:
            raise InvalidRequest(
                "timeout is counted from submission, but a job runs as long as it takes: give the job a "
                "deadline=, or send the request with submit()",
                field="timeout",
            )
        self.check(prepared)
        return prepared

    def rows_for_job(self, requests: Iterable[Request], *, attended: bool = False) -> Iterator[Request]:
        """Yield admitted requests in the form that a job stores, running hooks and checks as each is read.

        Args:
            attended: requests are sent in real time while someone waits, so they may have timeouts.

        Raises:
            InvalidRequest: a hook answered a request, a job cannot keep its timeout, or the provider cannot
                handle it; the error names the row.
        """
        return (
            row_named(row_of(at, one), partial(self._for_job, one, attended))
            for at, one in enumerate(requests)
        )


def _once(params: Generation) -> Generation:
    return params if params.n is None else evolve(params, n=None)


def _numbered(id: str | None, sample: int) -> str | None:
    return id if id is None or not sample else f"{id}#{sample + 1}"


def kind_of(request: Request) -> Kind:
    return Kind.GENERATE if request.embedding is None else Kind.EMBED


def row_of(position: int, request: Request) -> int:
    return position if request.row is None else request.row


def row_named(row: int, act: Callable[[], _T]) -> _T:
    """Add the row, counted from 0, to an ``InvalidRequest`` that ``act`` raises."""
    try:
        return act()
    except InvalidRequest as error:
        if error.row is not None:
            raise
        text = f"row {row} (counted from 0): {error.message}"
        raise InvalidRequest(text, field=error.field, row=row) from error


# attributes of DataFrames, Arrow tables and datasets that a single column lacks
_TABLE_ATTRIBUTES = ("__dataframe__", "columns", "column_names")

_MAX_SHOWN_ROWS = 10  # maximum row numbers listed in one error


def _missing_hint(errors: Iterable[BadField]) -> str:
    """Say what ``on_missing`` can do about these errors; nothing if no row lacks a field or file."""
    lacking = [error for error in errors if isinstance(error, MissingFields)]
    hint = "; on_missing='skip' skips such rows" if lacking else ""
    blank = any(not isinstance(error, MissingFile) for error in lacking)
    return hint + (", on_missing='empty' leaves blank fields empty" if blank else "")


def prompt_list(
    prompts: Prompts,
    *,
    template: TemplateSource | None = None,
    column: str | None = None,
    files: FileColumns | None = None,
    on_missing: OnMissing | None = None,
    examples: Prompts | None = None,
) -> Iterable[Any]:
    """Return prompts that can be read one by one: a sequence if their number is known.

    Ordered collections, such as a table column or an array, are read completely. Iterators, generators
    and anything else without a length stay lazy. A table in parts is read part by part.

    Args:
        prompts: also a table or rows (mappings), if ``template`` or ``column`` is given.
        template: text with ``{column}`` placeholders, filled from each row, or a path; see
            :func:`~smartbatch.tables.templates.template_of`.
        column: the column that contains the prompts.
        files: columns with files.
        on_missing: what to do with a row in which a field that the prompt needs is absent, null or
            blank, or a file is missing: ``"error"`` (the default) rejects the row, ``"skip"`` replaces it
            with a :class:`SkippedRow`, ``"empty"`` leaves blank fields empty.
        examples: a table or rows with the fields of the prompt and their ``answer``. Every prompt begins with
            them.

    Raises:
        InvalidRequest: ``prompts`` cannot be read prompt by prompt, such as a single string.
    """
    if template is None and column is None:
        for name, value in {"files": files, "on_missing": on_missing, "examples": examples}.items():
            if value is not None:
                raise InvalidRequest(f"{name} needs a template or a column", field=name)
        return _in_order(prompts)
    maker = _TablePrompts.of(template, column, on_missing or "error", files)
    if examples is not None:
        maker = maker.with_examples(examples)
    if (kind := kind_of_table(prompts)) is not None:
        return maker.all_prompts(_rows_of(kind, prompts, maker.columns_of(kind, prompts), maker.argument))
    if is_row_stream(prompts):
        return maker.prompts(cast("Iterable[Any]", prompts))
    rows = _in_order(prompts)
    unchunked = _unchunked(rows, maker)
    return maker.all_prompts(unchunked) if isinstance(rows, Sequence) else maker.prompts(unchunked)


@frozen
class _TablePrompts:
    rows: RowPrompts  # makes the prompt of a row
    argument: str  # the caller's argument: ``template`` or ``column``

    @classmethod
    def of(
        cls,
        template: TemplateSource | None,
        column: str | None,
        on_missing: OnMissing,
        files: FileColumns | None,
    ) -> Self:
        if template is not None and column is not None:
            raise InvalidRequest("template and column cannot both be given", field="template")
        argument = "column" if template is None else "template"
        if on_missing not in ON_MISSING:
            known = ", ".join(map(repr, ON_MISSING))
            raise InvalidRequest(f"on_missing must be one of {known}", field="on_missing")
        try:
            return cls(RowPrompts.of(template, column, on_missing, files), argument)
        except TemplateError as error:
            raise InvalidRequest(f"template: {error.message}", field=argument) from error

    def with_examples(self, examples: Any) -> Self:
        kind = kind_of_table(examples)
        rows = examples if kind is None else _rows_of(kind, examples, kind.columns(examples), "examples")
        if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
            raise InvalidRequest("examples must be a table or a list of rows", field="examples")
        turns: list[Mapping[str, str]] = []
        for number, row in enumerate(rows):
            try:
                if not isinstance(row, Mapping):
                    raise BadField("must be a mapping with the fields of the prompt and 'answer'")
                if number == MAX_EXAMPLES:
                    raise BadField(f"is beyond the limit of {MAX_EXAMPLES:,} examples")
                turns += self.rows.example(row)
            except BadField as error:
                text = f"examples: row {number} (counted from 0): {error.message}"
                raise InvalidRequest(text, field="examples", row=number) from error
        if not turns:
            raise InvalidRequest("examples has no rows", field="examples")
        return evolve(self, rows=evolve(self.rows, examples=turns))

    def prompts(self, rows: Iterable[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            try:
                yield self._prompt(number, row)
            except BadField as error:
                raise self._refusal(number, error.message + _missing_hint([error])) from error

    def all_prompts(self, rows: Iterable[Any]) -> list[Any]:
        """If rows are rejected, the error lists the first of them and states how many there are."""
        made: list[Any] = []
        bad: dict[int, BadField] = {}
        absent = set(self.rows.fields)
        for number, row in enumerate(rows):
            try:
                made.append(self._prompt(number, row))
            except BadField as error:
                made.append(None)
                bad[number] = error
            absent.difference_update(row)
        if made and absent:
            raise self._refusal(0, f"no row has the field {min(absent)!r}")
        if bad:
            raise self._refusal_of_rows(bad, len(made))
        return made

    def _refusal_of_rows(self, bad: Mapping[int, BadField], total: int) -> InvalidRequest:
        first, error = next(iter(bad.items()))
        shown = list(bad)[:_MAX_SHOWN_ROWS]
        rows = ", ".join(map(str, shown)) + (", …" if len(bad) > len(shown) else "")
        lacking = [isinstance(each, MissingFields) for each in bad.values()]
        problem = "lack a field or file that their prompt needs" if all(lacking) else "cannot be used"
        text = f"{error.message}; {len(bad):,} of {total:,} rows {problem} (rows {rows})"
        text += _missing_hint(bad.values())
        others = [f"row {row}: {bad[row].message}" for row in shown if bad[row].message != error.message]
        return self._refusal(first, "\n  ".join([text, *others]))

    def columns_of(self, kind: TableKind, table: Any) -> Sequence[str]:
        """Return the columns of a table that prompts need."""
        fields = self.rows.fields
        return [*dict.fromkeys((*fields, *kind.columns(table)))] if self.rows.reads_all_fields else fields

    def _prompt(self, number: int, row: Any) -> Any:
        if not isinstance(row, Mapping):
            _refuse(
                f"must be a table, or mappings such as {{{self.rows.fields[0]!r}: …}}, with a "
                f"{self.argument}: row {number} is {type(row).__name__}"
            )
        try:
            return self.rows.prompt(row)
        except MissingFields as error:
            if self.rows.on_missing != "skip":
                raise
            return SkippedRow(error.reason)

    def _refusal(self, number: int, message: str) -> InvalidRequest:
        return InvalidRequest(f"row {number} (counted from 0): {message}", field=self.argument, row=number)


def _rows_of(kind: TableKind, table: Any, wanted: Sequence[str], argument: str) -> Iterator[dict[str, Any]]:
    """Yield rows with the wanted columns; no others are read."""
    names = kind.columns(table)
    for name in wanted:
        if (found := names.count(name)) != 1:
            raise InvalidRequest(
                f"{argument} names {name!r}, but the table has {found or 'no'} columns of that name; "
                f"its columns are {listed(names)}",
                field=argument,
            )
    columns = [kind.values(table, names.index(name)) for name in wanted]
    return (dict(zip(wanted, row, strict=True)) for row in zip(*columns, strict=True))


def _unchunked(rows: Iterable[Any], maker: _TablePrompts) -> Iterator[Any]:
    """Yield rows. Parts of a table, such as batches of a large file, are split into their rows."""
    for row in rows:
        kind = None if isinstance(row, Mapping) else kind_of_table(row)
        if kind is None:
            yield row
        else:
            yield from _rows_of(kind, row, maker.columns_of(kind, row), maker.argument)


def _in_order(prompts: Any) -> Iterable[Any]:
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes | bytearray):
        return prompts
    kind = type(prompts).__name__
    if isinstance(prompts, Mapping) and any(map(_is_table, prompts.values())):
        _refuse(f"contains several tables ({kind}), {listed(prompts)}: pass one of them")
    if isinstance(prompts, str | Mapping | Message | Request):
        _refuse(f"must be a list of prompts, not a single prompt ({kind}): put it in a list, or use submit()")
    if (table := kind_of_table(prompts)) is not None or is_row_stream(prompts):
        # The columns of a stream of rows may be unknown until it is read.
        names = cast("Any", prompts).column_names or () if table is None else table.columns(prompts)
        _refuse(
            f"is a table ({kind}) with the columns {listed(names)}: choose the one with the prompts, as in "
            "column='text', or combine several, as in template='… {title} … {text} …'"
        )
    if any(_has(prompts, mark) for mark in _TABLE_ATTRIBUTES):
        way = "collect it first" if _has(prompts, "collect") else "convert it to pandas, Polars or Arrow"
        _refuse(
            f"is a table of an unsupported type ({kind}): {way}, or pass one column, such as "
            "table['text'], or a list with one string per row"
        )
    if isinstance(prompts, bytes | bytearray | memoryview):
        _refuse(f"must be a list of prompts, not {kind}: decode it and split it into a list of strings")
    if isinstance(prompts, set | frozenset):
        _refuse(f"is a {kind}, which has no order to match results by: pass a list, such as sorted(prompts)")
    if not isinstance(prompts, Iterable):
        _refuse(f"must be a list of prompts, not {kind}")
    if is_arrow_column(prompts):
        values: list[Any] = cast("Any", prompts).to_pylist()
        return values
    return list(prompts) if isinstance(prompts, Sized) else prompts


def _is_table(value: object) -> bool:
    return is_row_stream(value) or kind_of_table(value) is not None


def _has(value: Any, name: str) -> bool:
    """Does not evaluate properties of a lazy table."""
    return hasattr(type(value), name) or name in getattr(value, "__dict__", ())


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequest(f"prompts {problem}", field="prompts")
