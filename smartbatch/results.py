"""The results of a list, in the order of its requests and with totals, and the error for Ctrl-C."""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from attrs import evolve, frozen

from smartbatch._words import money
from smartbatch.errors import AllRequestsFailed, InvalidRequest, ListStopped, RowSkipped
from smartbatch.keywords import ConstraintParams, RequestParams
from smartbatch.result_display import has_failed, result_tables, shown_positions
from smartbatch.tables.answer_columns import (
    answer_columns,
    as_rows,
    fits,
    has_samples,
    rows_of,
    taken,
    with_answers,
)
from smartbatch.tables.columns import index_of, table_of, to_arrow, to_pandas, to_polars
from smartbatch.types import DEFECTS, Defect, Request, Result, Route, T, Usage, Vector

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from numpy import float32
    from numpy.typing import NDArray

__all__ = ["ResultList", "ended"]


class ReportFile(Protocol):
    """A report as a single HTML file. A notebook displays it as the value of a cell."""

    @property
    def html(self) -> str:
        """The whole file."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, replacing an existing one."""
        ...


class RetryParams(RequestParams[T], ConstraintParams, total=False):
    """The keywords of :meth:`ResultList.retry_failed`; ``n`` and ``id`` cannot be changed."""


class SendAgain(Protocol):
    """Sends requests of a list again. Returns them as they were sent, and their results."""

    def __call__(
        self, requests: Mapping[int, Request], changes: Mapping[str, Any], progress: bool | None
    ) -> tuple[Sequence[Request], ResultList[Any]]:
        """``requests`` are those to send, by their positions in the list."""
        ...


@frozen(eq=False, repr=False)
class SentRequests:
    """The requests of the failed, flawed and displayed results of a list.

    Args:
        _by_result: results and their requests by the identity of the result, because users sort lists.
    """

    send_again: SendAgain
    _by_result: dict[int, tuple[Result, Request]]

    @classmethod
    def of(
        cls, results: ResultList[Any], requests: Mapping[int, Request], send_again: SendAgain
    ) -> SentRequests:
        """Keep only the necessary requests of a list, given by position."""
        needed = {at for group in shown_positions(results) for at in group if at is not None}
        needed |= {at for at, each in enumerate(results) if not _is_plain(each)}
        pairs = ((results[at], requests[at]) for at in needed & requests.keys())
        return cls(send_again, {id(pair[0]): pair for pair in pairs})

    def request_of(self, result: Result) -> Request | None:
        found = self._by_result.get(id(result))
        return None if found is None else found[1]


class DefectCounts(Protocol):
    @property
    def truncated(self) -> int: ...
    @property
    def empty(self) -> int: ...
    @property
    def refused(self) -> int: ...


def defects_in_words(counts: DefectCounts) -> str:
    """Describe the number of answers with each defect; an empty string if there are none."""
    each = ((getattr(counts, name), name) for name in DEFECTS)
    return ", ".join(f"{number:,} {name}" for number, name in each if number)


class ResultList(list[Result[T]]):
    """Results in the order of the requests, with totals.

    Attributes:
        wall: seconds from the first submission to the last result.
        table: the source of the prompts: a table, a column or a list of rows; ``None`` for a list of strings
            or an iterator.
        rescue: the number of requests planned for a batch but sent in real time, and the reason; ``None`` if
            there are none.
        reporter: creates the report; ``None`` for lists not returned by a client.
        sent: the requests that :meth:`retry_failed` can send again; ``None`` for lists not returned by a
            client.
    """

    wall: float = 0.0
    table: Any = None
    rescue: str | None = None
    reporter: Callable[[ResultList[Any]], ReportFile] | None = None
    sent: SentRequests | None = None

    @property
    def succeeded(self) -> int:
        """The number of answered requests."""
        return sum(result.ok for result in self)

    @property
    def failed(self) -> int:
        """The number of requests without an answer."""
        return len(self) - self.succeeded - self.skipped

    @property
    def skipped(self) -> int:
        """The number of rows without a request, because a field of the prompt is blank and ``on_missing`` is
        ``"skip"``.
        """
        return sum(isinstance(result.error, RowSkipped) for result in self)

    @property
    def truncated(self) -> int:
        """The number of answers cut off by the output limit; see :attr:`Result.truncated`."""
        return sum(result.truncated for result in self)

    @property
    def empty(self) -> int:
        """The number of answers without text; see :attr:`Result.empty`. A truncated answer can be empty as
        well.
        """
        return sum(result.empty for result in self)

    @property
    def refused(self) -> int:
        """The number of requests refused by the model or a content filter; see :attr:`Result.refused`."""
        return sum(result.refused for result in self)

    @property
    def texts(self) -> list[str | None]:
        """The texts of the answers; ``None`` for failed requests."""
        return [result.text for result in self]

    @property
    def vectors(self) -> NDArray[float32] | list[Vector | None]:
        """The vectors, in order: a float32 matrix if NumPy is installed and no request failed, otherwise a
        list with ``None`` for failed requests.
        """
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
        """Total USD of the results with a known cost; complete if :attr:`cost_known` is true."""
        return sum((result.cost for result in self if result.cost is not None), 0.0)

    @property
    def unconfirmed_cost(self) -> float:
        """USD that may have been billed in addition to :attr:`cost`: a call counts at its maximum cost if its
        answer was lost or its usage was not reported.
        """
        return sum(result.unconfirmed_cost for result in self)

    @property
    def paid_now(self) -> float:
        """USD paid by this call or run, part of :attr:`cost`; the rest was paid earlier, for stored
        answers."""
        return sum((each.cost for each in self if each.cost is not None and not each.paid_before), 0.0)

    @property
    def cost_known(self) -> bool:
        """Whether the complete cost of every result is known."""
        return all(result.cost is not None and not result.unconfirmed_cost for result in self)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models, as ``provider:model``, of results missing from :attr:`cost` because their price is
        unknown.
        """
        unknown = [each for each in self if each.cost is None and not each.unconfirmed_cost]
        return tuple(dict.fromkeys(each.model or "unknown" for each in unknown))

    @property
    def total_latency(self) -> float:
        """Total latency in seconds. For calls, this is roughly the time of a sequential loop; for batches,
        latency counts from the submission of the batch to each result.
        """
        return sum(result.latency for result in self)

    @property
    def mean_latency(self) -> float:
        """Mean latency per answer in seconds: that of its call or, in a batch, the time since the batch was
        submitted; 0 without answers.
        """
        return self.total_latency / self.succeeded if self.succeeded else 0.0

    @property
    def speed_up(self) -> float | None:
        """How many times faster the list was than its calls made one after another: the sum of their
        latencies divided by the duration of the list.

        ``None`` if a request was answered in a batch, whose latency is not comparable with that of a call, or
        if nothing was timed.
        """
        if self.wall <= 0 or any(result.route is Route.BATCH for result in self):
            return None
        return self.total_latency / self.wall

    def report(self) -> ReportFile:
        """Return a report as a single HTML file. It shows what was sent and answered, by which route and why,
        and its cost compared with the alternatives. It contains no prompts or answers.

        Raises:
            ValueError: these are not the results of one client call; for a job, use ``job.report()``.
        """
        if self.reporter is None:
            raise ValueError("only the results of one client call have a report; for a job, use job.report()")
        return self.reporter(self)

    # -- failures --------------------------------------------------------------------------------------------

    @property
    def failures(self) -> ResultList[T]:
        """The results of the failed requests, without skipped rows. The ``row`` of each is the position of
        its prompt, and :attr:`table` has only the rows of these prompts.

        A notebook displays them grouped by kind and message, with a suggested action for each group.
        """
        positions = [at for at, each in enumerate(self) if has_failed(each)]
        rows = rows_of(self)
        failed = ResultList[T](evolve(self[at], row=rows[at]) for at in positions)
        failed.table = self.table
        if self.table is not None and not has_samples(self):
            failed.table = taken(self.table, positions)
        if self.sent is not None:
            pairs = ((at, self.sent.request_of(self[row])) for at, row in enumerate(positions))
            requests = {at: request for at, request in pairs if request is not None}
            failed.sent = SentRequests.of(failed, requests, self.sent.send_again)
        return failed

    def retry_failed(
        self,
        *,
        also: Defect | Collection[Defect] = (),
        progress: bool | None = None,
        **changes: Unpack[RetryParams[T]],
    ) -> ResultList[T]:
        """Send the failed requests again, and return all results with the new ones in place.

        The requests are sent through the client that returned this list, with the constraints of that call;
        a client that was stopped runs until they are answered. The usage, cost and attempts of a new result
        include those of the old one. If a flawed answer cannot be replaced, the old one remains. Skipped rows
        are not sent.

        Args:
            also: defects of answers to replace as well: ``"truncated"``, ``"empty"`` or ``"refused"``, or
                several of them.
            progress: see :meth:`BatchingClient.generate`.
            changes: parameters that replace those of the requests, such as ``max_tokens`` and ``model`` (of
                the same provider), and constraints for this call.

        Raises:
            ValueError: these are not the results of one client call in this process, or the prompts were read
                from an iterator.
            InvalidRequest, ConfigError: a change is invalid; nothing was sent.
            AllRequestsFailed: no request was answered, by this call or before it.
            Interrupted: Ctrl-C was pressed; its ``results`` are those of the whole list.
        """
        defects = {also} if isinstance(also, str) else set(also)
        if defects - set(DEFECTS):
            known = ", ".join(map(repr, DEFECTS))
            raise InvalidRequest(f"also: {sorted(defects)!r:.80} must be some of {known}", field="also")
        positions = [
            at for at, each in enumerate(self) if has_failed(each) or defects.intersection(each.defects)
        ]
        if not positions:
            return self
        requests: dict[int, Request] = {}
        for at in positions:
            request = None if self.sent is None else self.sent.request_of(self[at])
            if self.sent is None or request is None:
                raise ValueError(
                    "only results of generate(), embed() or plan.run() in this process can be sent again, "
                    "and only if the prompts were not read from an iterator; a job has job.retry_failed()"
                )
            if self[at].ok and not changes and request.deduplicate is None:
                request = evolve(request, deduplicate=False)  # the cache has the old answer
            requests[at] = request
        assert self.sent is not None
        send_again = self.sent.send_again
        try:
            sent, new = send_again(requests, changes, progress)
        except Interrupted as error:
            came = error.results
            raise Interrupted(str(error), lambda: self._with_new(requests, came)) from None
        merged = self._with_new(dict(zip(positions, sent, strict=True)), new)
        merged.raise_if_all_failed()
        return merged

    def _with_new(self, requests: Mapping[int, Request], new: ResultList[T]) -> ResultList[T]:
        """Return a copy of the list with new results at the positions of ``requests``."""
        merged = ResultList[T](self)
        merged.wall, merged.table = self.wall + new.wall, self.table
        for at, result in zip(requests, new, strict=True):
            merged[at] = replacement(self[at], result)
        if self.sent is not None:
            pairs = ((at, self.sent.request_of(each)) for at, each in enumerate(self))
            known = {at: request for at, request in pairs if request is not None}
            merged.sent = SentRequests.of(merged, {**known, **requests}, self.sent.send_again)
        return merged

    # -- as tables: one row per request ----------------------------------------------------------------------

    def to_table(self, table: Any = None, *, columns: Sequence[str] | None = None, suffix: str = "") -> Any:
        """Return the table the prompts came from, with the answers added as columns. The type stays the same.

        Rows, order and index do not change; a prompt with several answers has a row for each. The added
        columns are those of :meth:`as_dicts`; if the table already has a column of that name, the new one is
        called ``result_…``.

        Args:
            table: defaults to :attr:`table`; pass one for results read one by one, for example from
                :meth:`Job.results`: ``ResultList(job.results()).to_table(table)``.
            columns: the answer columns to add, in this order; ``None`` for all.
            suffix: appended to the name of each added column, such as ``"_mini"`` to tell models apart.

        Raises:
            ValueError: there is no table, it does not have exactly one row per prompt, or there is no answer
                column of a given name.
        """
        return with_answers(
            self.table if table is None else table, self, answer_columns(self, columns, suffix)
        )

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary per request: ``text``, the fields of parsed objects by their own names,
        ``embedding`` if vectors were requested, ``input_tokens``, ``output_tokens``, ``cached_tokens``,
        ``reasoning_tokens``, ``cost``, ``latency``, ``route``, ``attempts``, ``model``, ``finish_reason``,
        ``error_kind`` and ``error``. With several answers per prompt, ``row`` (the position of the prompt)
        and ``sample`` (the number of the answer) come first, both from 0.

        A parsed field with the name of another column is called ``parsed_…``; a parsed value without fields
        is ``parsed``.
        """
        return as_rows(answer_columns(self))

    def to_pandas(self, *, columns: Sequence[str] | None = None, suffix: str = "") -> pandas.DataFrame:
        """Return the columns of :meth:`as_dicts` as a pandas frame, with the index of the frame or column the
        prompts came from.

        Args, Raises:
            see :meth:`to_table`.
        """
        return to_pandas(answer_columns(self, columns, suffix), self._index())

    def to_polars(self, *, columns: Sequence[str] | None = None, suffix: str = "") -> polars.DataFrame:
        """Return the columns of :meth:`as_dicts` as a Polars frame; see :meth:`to_table`."""
        return to_polars(answer_columns(self, columns, suffix))

    def to_arrow(self, *, columns: Sequence[str] | None = None, suffix: str = "") -> pyarrow.Table:
        """Return the columns of :meth:`as_dicts` as an Arrow table; see :meth:`to_table`."""
        return to_arrow(answer_columns(self, columns, suffix))

    def _index(self) -> Any:
        """Return the index of the frame the prompts came from, with one label per result."""
        index = index_of(self.table)
        return index.take(rows_of(self)) if index is not None and has_samples(self) else index

    def __getstate__(self) -> dict[str, Any]:
        """Leave out ``reporter`` and ``sent``, which work only in their own process."""
        return {name: value for name, value in vars(self).items() if name not in ("reporter", "sent")}

    def __repr__(self) -> str:
        return f"<ResultList {_summary(self)}>"

    def _repr_html_(self) -> str:
        from smartbatch.views.html import notebook
        from smartbatch.views.model import Section, View  # imported late: rarely needed

        index, request_of = self._index(), None if self.sent is None else self.sent.request_of
        labels, heading = (rows_of(self), "row") if index is None else (index, "index")
        tables = result_tables(self, labels, heading, request_of)
        return notebook(View(_summary(self), (Section("results", "Results", tables),)))

    def raise_if_all_failed(self) -> None:
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
    """Set the duration and the source table of the list, and return it.

    Raises:
        AllRequestsFailed: no request was answered.
    """
    results.wall = wall
    of_prompts(results, prompts).raise_if_all_failed()
    return results


def of_prompts(results: ResultList[T], prompts: object) -> ResultList[T]:
    """Set the source table of the list, if any, and return the list."""
    table = table_of(prompts)
    results.table = table if table is not None and fits(table, results) else None
    return results


def _is_plain(result: Result[Any]) -> bool:
    """Whether a result is an answer without a defect. In long lists, :attr:`Result.defects` takes seconds."""
    if result.error is None and result.finish_reason == "stop" and result.text and not result.text.isspace():
        return True
    return result.error is None and not result.defects


def replacement(old: Result[T], new: Result[T]) -> Result[T]:
    """Return the result of a request that was sent twice: the old one if only that is an answer."""
    known = [each.cost for each in (old, new) if each.cost is not None]
    return evolve(
        old if old.ok and not new.ok else new,
        usage=old.usage + new.usage,
        cost=sum(known) if known else None,
        unconfirmed_cost=old.unconfirmed_cost + new.unconfirmed_cost,
        attempts=old.attempts + new.attempts,
        row=old.row,
        sample=old.sample,
    )


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
    if result.route is not None:
        return result.route.value
    if result.attempts:
        return "failed"
    return "outcome unknown" if result.cost is None else "not sent"


def as_kept(result: Result) -> Result:
    """Mark a stored result as paid for earlier, without a call."""
    kept = evolve(result, latency=0.0, queued=0.0, attempts=0, paid_before=True)
    return evolve(kept, route=Route.CACHED) if result.ok else kept


_MAX_SHOWN_FRAMES = 3
"""Traceback frames that a notebook shows: the innermost ones, down to the interrupted call."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or an interrupted notebook cell, while a call of this library was waiting for results.

    In a notebook or a shell, ``sys.last_value`` is the last uncaught exception.

    Args:
        message: the number of results, and how to continue.
        results: a function called each time the results are read.
    """

    def __init__(self, message: str = "", results: Callable[[], ResultList] = ResultList) -> None:
        super().__init__(message)
        self._results = results

    @property
    def results(self) -> ResultList:
        """The answers so far, read again at each access, because calls in flight may have finished.

        For a list, they are in the order of the requests, with a ``RequestCancelled`` for each request
        without an answer. For loops over ``map`` and ``as_completed``, they are the answers not yielded yet;
        for a job, the stored ones.
        """
        return self._results()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (str(self), list(self.results))

    def _render_traceback_(self) -> list[str]:
        """Return the lines IPython shows, without the code around each frame."""
        lines = ["Traceback (most recent call last):"]
        frames = [one for one in _frames(self.__traceback__) if not _is_shell(one.tb_frame.f_globals)]
        for one in frames[-_MAX_SHOWN_FRAMES:]:
            (summary,) = traceback.extract_tb(one, limit=1)
            lines.append(f'  File "{summary.filename}", line {summary.lineno}, in {summary.name}')
            lines.append(f"    {summary.line}")
        return [*lines, *traceback.format_exception_only(self)]


def as_interrupted(error: KeyboardInterrupt, results: ResultList | None = None) -> Interrupted:
    """Return the interrupt that a public call raises ``from None`` in place of one raised inside it.

    Its traceback has only the caller's frames. If the context of ``error`` has an ``Interrupted``, such as
    that of a first Ctrl-C, that one is returned.

    Args:
        results: results of the whole list, if all arrived.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, Interrupted):
        found = found.__context__
    if found is None and results is not None:
        all_of_them = results
        found = Interrupted("interrupted; all results had arrived: .results has them", lambda: all_of_them)
    elif found is None:
        found = Interrupted("interrupted before any result was awaited")
    found.__context__ = None
    return found.with_traceback(None)


def _rebuilt(message: str, results: list[Any]) -> Interrupted:
    return Interrupted(message, lambda: ResultList(results))


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_shell(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).startswith("IPython.")
