"""The results of a list, in the order of the requests, with sums over the whole."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve

from smartbatch._words import money, short
from smartbatch.errors import AllRequestsFailed, ListStopped, RowSkipped
from smartbatch.tables.answer_columns import answer_columns, as_rows, fits, has_samples, rows_of, with_answers
from smartbatch.tables.columns import to_arrow, to_pandas, to_polars
from smartbatch.tables.kinds import index_of, table_of
from smartbatch.types import DEFECTS, Result, Route, T, Usage, Vector

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from numpy import float32
    from numpy.typing import NDArray

    from smartbatch.views.model import Cell

__all__ = ["ResultList", "ended"]


class ReportFile(Protocol):
    """A report: one file of HTML; as the last line of a cell a notebook shows it."""

    @property
    def html(self) -> str:
        """The whole file."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; one that is there already is replaced."""
        ...


class DefectCounts(Protocol):
    """Counts of answers by their defects."""

    @property
    def truncated(self) -> int: ...
    @property
    def empty(self) -> int: ...
    @property
    def refused(self) -> int: ...


def defects_in_words(counts: DefectCounts) -> str:
    """Return how many answers have which defect; an empty string if none has any."""
    each = ((getattr(counts, name), name) for name in DEFECTS)
    return ", ".join(f"{number:,} {name}" for number, name in each if number)


class ResultList(list[Result[T]]):
    """Results in the order of the requests, with sums over the whole.

    Attributes:
        wall: seconds from the first submission to the last result.
        table: what the prompts came from: a table, a column of one, or a list of rows; ``None`` where they
            were a list of texts, or came one by one.
        rescue: how many requests that were planned for a batch were sent in real time, and why; ``None`` if
            there are none.
        reporter: makes their report; ``None`` where they were put together elsewhere.
    """

    wall: float = 0.0
    table: Any = None
    rescue: str | None = None
    reporter: Callable[[ResultList[Any]], ReportFile] | None = None

    @property
    def succeeded(self) -> int:
        """Requests that were answered."""
        return sum(result.ok for result in self)

    @property
    def failed(self) -> int:
        """Requests that were not."""
        return len(self) - self.succeeded - self.skipped

    @property
    def skipped(self) -> int:
        """Rows for which no request was made, as a field of the prompt is blank and ``on_missing`` is
        ``"skip"``."""
        return sum(isinstance(result.error, RowSkipped) for result in self)

    @property
    def truncated(self) -> int:
        """Answers that the output limit cut off; see :attr:`Result.truncated`."""
        return sum(result.truncated for result in self)

    @property
    def empty(self) -> int:
        """Answers without a text; see :attr:`Result.empty`. One that was truncated can be empty as well."""
        return sum(result.empty for result in self)

    @property
    def refused(self) -> int:
        """Answers that the model, or a content filter, refused to give; see :attr:`Result.refused`."""
        return sum(result.refused for result in self)

    @property
    def texts(self) -> list[str | None]:
        """The answers' texts; ``None`` where a request failed."""
        return [result.text for result in self]

    @property
    def vectors(self) -> NDArray[float32] | list[Vector | None]:
        """The vectors, in order: a float32 matrix where NumPy is installed and every text has its vector,
        else a list with ``None`` where a request failed."""
        vectors = [result.embedding for result in self]
        if not vectors or any(vector is None for vector in vectors):
            return vectors
        try:
            import numpy
        except ImportError:
            return vectors
        return numpy.array(vectors, dtype=numpy.float32)

    @property
    def usage(self) -> Usage:
        """Tokens of all attempts of all requests."""
        return sum((result.usage for result in self), Usage())

    @property
    def cost(self) -> float:
        """USD of the results whose cost is known: of all of them where :attr:`cost_known`."""
        return sum((result.cost for result in self if result.cost is not None), 0.0)

    @property
    def unconfirmed_cost(self) -> float:
        """USD that these requests may have cost beyond :attr:`cost`: calls whose answer was lost, or did not
        say what it used, are counted at the most they can have cost."""
        return sum(result.unconfirmed_cost for result in self)

    @property
    def paid_now(self) -> float:
        """The part of :attr:`cost` that was paid by this call or run, USD; the rest was paid earlier, for
        answers that were stored."""
        return sum((each.cost for each in self if each.cost is not None and not each.paid_before), 0.0)

    @property
    def cost_known(self) -> bool:
        """Whether the whole cost of every result is known."""
        return all(result.cost is not None and not result.unconfirmed_cost for result in self)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models, as ``provider:model``, of the results that are not in :attr:`cost` because no table has
        a price for them."""
        unknown = [each for each in self if each.cost is None and not each.unconfirmed_cost]
        return tuple(dict.fromkeys(each.model or "unknown" for each in unknown))

    @property
    def total_latency(self) -> float:
        """Seconds of all results together: of the calls that answered, which is about the time a sequential
        loop needs; by batch, from the submission of the batch to each result."""
        return sum(result.latency for result in self)

    @property
    def mean_latency(self) -> float:
        """Mean seconds to an answer: of its call, or by batch from the batch's submission; 0 when nothing was
        answered."""
        return self.total_latency / self.succeeded if self.succeeded else 0.0

    @property
    def speed_up(self) -> float | None:
        """How many times faster than the calls one after the other: their seconds, added up, by the seconds
        of the whole list.

        ``None`` where a request was answered by batch, since requests that wait together say nothing of a
        loop, and when nothing was timed.
        """
        if self.wall <= 0 or any(result.route is Route.BATCH for result in self):
            return None
        return self.total_latency / self.wall

    def report(self) -> ReportFile:
        """Return a report: one file of HTML that says what was asked, what came, by which route and why, and
        what it cost next to the alternatives. It holds no prompt and no answer.

        Raises:
            ValueError: these are not the results of a whole list of a client: of a job ``job.report()`` tells
                more.
        """
        if self.reporter is None:
            raise ValueError("only a list that a client returned has a report, and a job: job.report()")
        return self.reporter(self)

    # -- as tables: one row a request ------------------------------------------------------------------------

    def to_table(self, table: Any = None) -> Any:
        """Return the table that the prompts came from with the answers as further columns, in its own kind.

        Its rows, their order and their index are kept; with several answers to a prompt, its row comes once
        for each. The answers' columns are those of :meth:`as_dicts`;
        one whose name the table has already is called ``result_…``.

        Args:
            table: :attr:`table` when ``None``; needed for results that were read one by one, as of
                :meth:`Job.results`: ``ResultList(job.results()).to_table(table)``.

        Raises:
            ValueError: there is none, or it has not one row a prompt.
        """
        return with_answers(self.table if table is None else table, self)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary a request: ``text``, the fields of parsed objects by their own names,
        ``embedding`` where vectors were asked for, ``input_tokens``, ``output_tokens``, ``cached_tokens``,
        ``reasoning_tokens``, ``cost``, ``latency``, ``route``, ``attempts``, ``model``, ``finish_reason``,
        ``error_kind`` and ``error``. With several answers to a prompt, ``row`` (the position of the prompt)
        and ``sample`` (the number of the answer) come first, both from 0.

        A parsed field with the name of another column is called ``parsed_…``; what is parsed and has no
        fields is ``parsed``.
        """
        return as_rows(answer_columns(self))

    def to_pandas(self) -> pandas.DataFrame:
        """Return the columns of :meth:`as_dicts` as a frame of pandas; with the index of the frame, or of the
        column, that the prompts came from."""
        index = index_of(self.table)
        if index is not None and has_samples(self):
            index = index.take(rows_of(self))
        return to_pandas(answer_columns(self), index)

    def to_polars(self) -> polars.DataFrame:
        """Return the columns of :meth:`as_dicts` as a frame of Polars."""
        return to_polars(answer_columns(self))

    def to_arrow(self) -> pyarrow.Table:
        """Return the columns of :meth:`as_dicts` as a table of Arrow."""
        return to_arrow(answer_columns(self))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the maker of the report, which belongs to its process."""
        return {name: value for name, value in vars(self).items() if name != "reporter"}

    def __repr__(self) -> str:
        return f"<ResultList {_summary(self)}>"

    def _repr_html_(self) -> str:
        """Return the sums and the first and last results, for a notebook."""
        from smartbatch.views.html import notebook
        from smartbatch.views.model import DataTable, Section, View  # late: most programs are no notebooks

        places: list[int | None] = list(range(len(self)))
        if len(self) > 2 * SHOWN + 1:
            places = [*places[:SHOWN], None, *places[-SHOWN:]]
        rows = [("…",) * 6 if at is None else (str(at), *_row(self[at])) for at in places]
        table = DataTable.of("Results", "row, answer, route, tokens, cost:money, error", rows)
        return notebook(View(_summary(self), (Section("results", "Results", (table,)),)))

    def raise_if_all_failed(self) -> None:
        """Raise ``AllRequestsFailed`` when there are requests and not one was answered."""
        if self.failed and not self.succeeded:
            failed = next(result for result in self if not isinstance(result.error, RowSkipped))
            first = failed.error
            message = f"all {self.failed} requests failed; the first with: {first}"
            stopped = next((each.error for each in self if isinstance(each.error, ListStopped)), None)
            if stopped is not None:
                skipped = sum(isinstance(each.error, RowSkipped) for each in self)
                message = stopped.summary(sum(not each.attempts for each in self) - skipped)
            raise AllRequestsFailed(
                message,
                kind=first.kind if first is not None else None,
                request_id=failed.request_id,
                results=self,
            ) from first


def ended(results: ResultList[T], wall: float, prompts: object = None) -> ResultList[T]:
    """Note the seconds that a list took, and the table that its prompts came from, and return it; raises as
    ``raise_if_all_failed``."""
    results.wall = wall
    of_prompts(results, prompts).raise_if_all_failed()
    return results


def of_prompts(results: ResultList[T], prompts: object) -> ResultList[T]:
    """Note the table that the prompts of a list came from, if they did, and return the list."""
    table = table_of(prompts)
    results.table = table if table is not None and fits(table, results) else None
    return results


SHOWN = 5
"""Results at each end of a list that a notebook shows."""


def _summary(results: ResultList[T]) -> str:
    routes = Counter(_way(each) for each in results)
    ways = ", ".join(f"{route} {number:,}" for route, number in routes.most_common())
    known = len(results) - len([each for each in results if each.cost is None])
    cost = "cost unknown" if results and not known else f"{money(results.cost)}"
    least = "at least " if 0 < known < len(results) else ""
    failed = f", {results.failed:,} failed" if results.failed else ""
    failed += f", {results.skipped:,} skipped" if results.skipped else ""
    defects = f" ({defects})" if (defects := defects_in_words(results)) else ""
    if any(each.paid_before for each in results):
        cost += f", {money(results.paid_now)} of it paid now"
    took = f"; {results.wall:,.1f} s" if results.wall else ""
    counts = f"{results.succeeded:,} succeeded{defects}{failed}"
    words = f"{len(results):,} results: {counts}; {least}{cost}"
    rescue = f"; {results.rescue}" if results.rescue else ""
    return words + (f"; {ways}" if ways else "") + took + rescue


def _way(result: Result[T]) -> str:
    """Return the route of a result; ``not sent`` only of a request that was certainly not sent."""
    if result.route is not None:
        return result.route.value
    if result.attempts:
        return "failed"
    return "outcome unknown" if result.cost is None else "not sent"


def _row(result: Result[T]) -> tuple[Cell, ...]:
    answer = result.text
    if answer is None and result.embedding is not None:
        answer = f"a vector of {len(result.embedding):,}"
    elif answer is None:
        answer = "" if result.parsed is None else short(result.parsed)
    return (
        answer,
        "" if result.route is None else result.route.value,
        tokens_in_words(result.usage),
        "unknown" if result.cost is None else result.cost,
        "" if result.error is None else f"{type(result.error).__name__}: {result.error}",
    )


def tokens_in_words(usage: Usage) -> str:
    """Return the tokens of a request; marked if they are estimated, and never 0 if they are unknown."""
    if usage.unknown:
        return f"at least {usage.total_tokens:,}" if usage.total_tokens else "unknown"
    return f"{usage.total_tokens:,}" + (" (estimated)" if usage.estimated else "")


def as_kept(result: Result) -> Result:
    """Return a result that was stored before it was asked for: without a call, and paid for earlier."""
    kept = evolve(result, latency=0.0, queued=0.0, attempts=0, paid_before=True)
    return evolve(kept, route=Route.CACHED) if result.ok else kept
