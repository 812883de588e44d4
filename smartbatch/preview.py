"""A preview of a list: a random sample of its rows is answered, and the other rows are planned."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import Any, Generic, Protocol, Unpack, cast

from attrs import evolve, frozen

from smartbatch._words import count_of, plural
from smartbatch.core.preparation.preparer import row_of
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.errors import AllRequestsFailed, ConfigError, InvalidRequest
from smartbatch.keywords import ListParams
from smartbatch.plan import Plan
from smartbatch.quality.projected_routes import (
    ProjectedRoute,
    projected_routes,
    projection_lines,
    projection_parts,
)
from smartbatch.quality.projection import Projection, project
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.sample import draw
from smartbatch.result_display import answer_cell, prompt_cell, tokens_in_words
from smartbatch.results import Interrupted, ResultList, SentRequests, of_prompts, replacement
from smartbatch.routing.list_planner import ListPlanner, prompts_of, split_known
from smartbatch.routing.list_results import ListClient, send_again, unanswered, without_skipped
from smartbatch.tables.answer_columns import has_samples, taken
from smartbatch.tables.cells import text_of
from smartbatch.tables.columns import index_of, kind_of_table, table_of
from smartbatch.types import Prompts, Request, Result, T
from smartbatch.views.model import Cell, DataTable, Note, Part, Section, View

__all__ = ["Preview"]

MAX_SHOWN_ROWS = 40
"""Rows of the sample that a notebook shows; those with problems come first."""


class PreviewClient(ListClient, Protocol):
    """The client that sends the sample and plans the other rows."""

    @property
    def model(self) -> str: ...

    def plan(self, prompts: Prompts, **params: Unpack[ListParams[Any]]) -> Plan[Any]: ...


@frozen
class SampleOptions:
    """How a sample is drawn and sent; see :meth:`smartbatch.BatchingClient.preview`."""

    size: int
    seed: int
    by: str | None
    progress: bool | None


@frozen(eq=False, repr=False)
class _CheckedRows:
    """All rows of a previewed list, checked.

    Attributes:
        prompts: as given.
        requests: the requests of all rows, in order; each has its ``row``.
        skipped: results of skipped rows, by position in the results of the whole list.
        groups: the group of every row, if the sample is drawn by groups.
        constraints: as given.
        budget: USD for the sample and the other rows together.
    """

    client: PreviewClient
    prompts: Prompts
    requests: Sequence[Request]
    skipped: Mapping[int, Result]
    groups: Sequence[Hashable] | None
    constraints: Mapping[str, Any]
    budget: float | None

    @property
    def rows(self) -> list[int]:
        """The position of each row that has a request."""
        return list(dict.fromkeys(row_of(at, request) for at, request in enumerate(self.requests)))


class Preview(Generic[T]):
    """A random sample of a list with its answers, and a plan for the other rows; returned by
    ``client.preview``. A notebook displays the answers, those with problems first, and the routes of the
    other rows.

    Attributes:
        results: the results of the sample, in order. The ``row`` of each is the position of its prompt, and
            ``table`` has only the sampled rows.
        projection: the cost of all rows in real time, projected from the sample, with a range that contains
            the true cost in about 90 % of samples; see :class:`~smartbatch.quality.projection.Projection`.
    """

    def __init__(self, rows: _CheckedRows, sampled: Sequence[int], results: ResultList[T]) -> None:
        self.results = results
        self._rows = rows
        self._sampled = dict(zip(sampled, results, strict=True))  # by position in the requests
        self._rest = [
            at for at in range(len(rows.requests)) if at not in self._sampled or not self._sampled[at].ok
        ]
        sizes = [0] * (1 + max(rows.rows, default=-1))
        for at, request in enumerate(rows.requests):
            sizes[row_of(at, request)] += estimate_request(request, request.model or rows.client.model)
        recorded = [RecordedRow.of_result(row_of(at, rows.requests[at]), self._sampled[at]) for at in sampled]
        groups = None if rows.groups is None else rows.groups[: len(sizes)]
        self.projection: Projection = project(recorded, sizes, groups)
        self._plan = self._planned()

    def _planned(self) -> Plan[T] | ConfigError:
        constraints = dict(self._rows.constraints)
        if self._rows.budget is not None:
            spent = self.results.cost + self.results.unconfirmed_cost
            constraints["budget"] = max(0.0, self._rows.budget - spent)
        try:
            return self._rows.client.plan([self._rows.requests[at] for at in self._rest], **constraints)
        except ConfigError as error:
            return error  # raised when the plan is used, so that the answers are not lost

    @property
    def plan(self) -> Plan[T]:
        """The plan of the other rows and of the sampled rows without an answer, based on the lengths of the
        sampled answers.

        Raises:
            ConfigError: no route meets the constraints any longer.
        """
        if isinstance(self._plan, ConfigError):
            raise self._plan
        return self._plan

    @property
    def routes(self) -> list[ProjectedRoute]:
        """The routes of the other rows, with time and cost.

        Raises:
            ConfigError: see :attr:`plan`.
        """
        return projected_routes(self.projection, self.plan)

    def explain(self) -> str:
        """Return the projected cost in sentences, and the routes of the other rows as a table.

        Raises:
            ConfigError: see :attr:`plan`.
        """
        return "\n".join(projection_lines(self.projection, self.plan))

    def run(self, *, budget: float | str | None = None, progress: bool | None = None) -> ResultList[T]:
        """Send the other rows by the planned route, and return the results of all rows in order.

        Answers to the sample are not paid for again; sampled rows without an answer are sent again. Every
        call sends the other rows, so keep the list it returns.

        Args:
            budget, progress: see :meth:`Plan.run`. The budget is for the other rows alone.

        Raises:
            ConfigError: see :attr:`plan`; or the budget is invalid.
            AllRequestsFailed: no row was answered, in the sample or now.
            Interrupted: Ctrl-C was pressed; its ``results`` are those of all rows so far.
        """
        if not self._rest:
            return self._with_new(ResultList())
        try:
            new = self.plan.run(budget=budget, progress=progress)
        except AllRequestsFailed as error:
            new = cast("ResultList[T]", error.results)
        except Interrupted as error:
            interrupted = error
            raise Interrupted(str(error), lambda: self._with_new(interrupted.results)) from None
        merged = self._with_new(new)
        merged.raise_if_all_failed()
        return merged

    def _with_new(self, new: ResultList[T]) -> ResultList[T]:
        """Return the results of all rows; ``new`` has the results of the rows that were sent now."""
        rows = self._rows
        found = {at: evolve(result, paid_before=True) for at, result in self._sampled.items()}
        for at, result in zip(self._rest, new, strict=False):
            found[at] = replacement(found[at], result) if at in found else result
        of_requests = (
            found.get(at) or unanswered(request, sent=False) for at, request in enumerate(rows.requests)
        )
        total = len(rows.requests) + len(rows.skipped)
        merged = ResultList[T](rows.skipped.get(at) or next(of_requests) for at in range(total))
        merged.wall = self.results.wall + new.wall
        merged.rescue = new.rescue
        positions = (at for at in range(total) if at not in rows.skipped)
        requests = dict(zip(positions, rows.requests, strict=True))
        merged.sent = SentRequests.of(merged, requests, partial(send_again, rows.client, rows.constraints))
        return of_prompts(merged, rows.prompts)

    def __repr__(self) -> str:
        words = f"{self.projection.sampled:,} of {plural(self.projection.rows, 'row')}"
        words += f": {self.results.succeeded:,} succeeded"
        words += f", {self.results.failed:,} failed" if self.results.failed else ""
        if self.projection.total is not None:
            words += f"; all rows in real time {self.projection.total}"
        return f"<Preview {words}>"

    def _repr_html_(self) -> str:
        from smartbatch.views.html import notebook  # imported late: only notebooks use it

        parts: list[Part] = []
        if isinstance(self._plan, ConfigError):
            parts.append(Note(str(self._plan), "bad"))
        else:
            parts += projection_parts(self.projection, self._plan)
        sections = Section("answers", "Answers", (self._table(),)), Section("routes", "Routes", tuple(parts))
        return notebook(View(repr(self).strip("<>"), sections))

    def _table(self) -> DataTable:
        """Return the sampled rows: failed ones first, then those with a flawed answer."""
        labels = index_of(table_of(self._rows.prompts))
        shown = sorted(self._sampled, key=lambda at: (self._sampled[at].ok, not self._sampled[at].defects))
        rows: list[tuple[Cell, ...]] = []
        for at in shown[:MAX_SHOWN_ROWS]:
            request, result = self._rows.requests[at], self._sampled[at]
            row = row_of(at, request)
            rows.append(
                (
                    str(row if labels is None else labels[row]),
                    prompt_cell(request),
                    answer_cell(result),
                    ", ".join(result.defects) if result.error is None else str(result.error),
                    tokens_in_words(result.usage),
                    "unknown" if result.cost is None else result.cost,
                )
            )
        caption = "Answers of the sample"
        if len(shown) > MAX_SHOWN_ROWS:
            rows.append(("…",) * 6)
        name = "row" if labels is None else "index"
        return DataTable.of(caption, f"{name}, prompt, answer, problem, tokens, cost:money", rows)


def preview(
    client: PreviewClient,
    planner: ListPlanner,
    prompts: Prompts,
    options: SampleOptions,
    params: Mapping[str, Any],
) -> Preview[Any]:
    """Check a whole list, then send a sample of it and plan the rest.

    Raises:
        InvalidRequest, ConfigError: the list or an argument is invalid; nothing was sent.
    """
    size = count_of("sample", options.size)
    if not size:
        raise ConfigError("sample = 0 would send no row; choose 1 or more, or use plan() to send nothing")
    rows = _checked_rows(client, planner, prompts, options.by, params)
    sent = rows.rows
    groups = None if rows.groups is None else [rows.groups[row] for row in sent]
    drawn = [sent[at] for at in draw(len(sent), size, random.Random(options.seed), groups)]
    in_sample = frozenset(drawn)
    sampled = [at for at, request in enumerate(rows.requests) if row_of(at, request) in in_sample]
    constraints = {**rows.constraints, "strategy": "individual", "deadline": None}
    try:
        results = client.generate(
            [rows.requests[at] for at in sampled],
            on_error="result",
            progress=options.progress,
            **cast("ListParams[Any]", constraints),
        )
    except AllRequestsFailed as error:
        results = cast("ResultList[Any]", error.results)
    table = table_of(rows.prompts)
    results.table = table if table is None or has_samples(results) else taken(table, drawn)
    return Preview(rows, sampled, results)


def _checked_rows(
    client: PreviewClient, planner: ListPlanner, given: Prompts, by: str | None, params: Mapping[str, Any]
) -> _CheckedRows:
    if params.get("key") is not None:
        raise InvalidRequest("key cannot be used for a preview, which is not stored", field="key")
    if isinstance(given, Iterable) and not isinstance(given, Sized):
        given = cast("Prompts", list(given))
    prompts, others = prompts_of(given, params)
    prompts, skipped = without_skipped(prompts, planner.preparer.answers_each(others))
    plain, constraints = split_known(others)
    asked = planner.checked(prompts, plain, constraints)
    planner.considered(asked)  # rejects constraints that no route meets
    requests = [evolve(request, row=row_of(at, request)) for at, request in enumerate(asked.requests)]
    if planner.preparer.answers_each({}) > 1:  # each of these requests is for one answer
        requests = [
            request if request.embedding is not None else evolve(request, params=evolve(request.params, n=1))
            for request in requests
        ]
    groups = None if by is None else _column(given, by)
    return _CheckedRows(client, given, requests, skipped, groups, constraints, asked.constraints.budget)


def _column(prompts: Prompts, name: str) -> list[str]:
    """Return the values of a column as text.

    Raises:
        InvalidRequest: the prompts do not come from a table with that column.
    """
    table = table_of(prompts)
    if table is None:
        raise InvalidRequest("by needs a table, or rows as mappings, with that column", field="by")
    kind = kind_of_table(table)
    if kind is None:
        values = [row.get(name) for row in table]
    else:
        names = kind.columns(table)
        values = kind.values(table, names.index(name)) if name in names else []
    if all(value is None for value in values):
        raise InvalidRequest(f"by = {name!r:.60}: no row has a value in that column", field="by")
    return ["" if value is None else text_of(value) for value in values]
