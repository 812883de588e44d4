"""What the report of a run's output tells: the file is read line by line, in little memory."""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Any

from attrs import define, field

from smartbatch._words import escape
from smartbatch.core.limits.failures import pattern_of
from smartbatch.core.preparation.validation import MAX_SAMPLES
from smartbatch.errors import InputError, RowSkipped, snake_case
from smartbatch.jobs.job_report import run_of_list
from smartbatch.jobs.report_view import (
    ReportedRequests,
    ReportedRun,
    RequestFigures,
    SeenResults,
    report_view,
    totals,
)
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.runs.output_lines import defects_of, figures_of, is_answer, number_of, sample_of
from smartbatch.runs.table_output import read_table, table_format
from smartbatch.types import DEFECTS
from smartbatch.views.html import Report

_SUBJECTS = "name the output of a run, of jobs results, or a job"
_TOKENS = ("input_tokens", "output_tokens")
_ANSWERED, _FAILED = 2, 1
_SKIPPED = snake_case(RowSkipped.__name__)
_MOST_ROWS = 200_000_000
"""Rows beyond which an index is taken for damaged."""


def output_report(path: str, runs: Sequence[ReportedRun], made_at: float) -> Report:
    """Return the report of an output.

    Args:
        runs: jobs whose answers it has, as far as the store has them.
        made_at: Unix seconds.

    Raises:
        InputError: the file cannot be read, or is not an output.
    """
    figures, written = figures_of_output(path)
    status, asked = figures.status(), figures.asked(path, made_at, written)
    title = f"Results in {os.path.basename(path)}"
    return Report(report_view(title, status, figures.seen, runs, asked), status.total)


def figures_of_output(path: str) -> tuple[OutputFigures, float]:
    """Return the figures of an output, and when it was last written."""
    figures = OutputFigures()
    try:
        with open(path, "rb") as file:
            counts = _which_counts(_lines(path, file))
            file.seek(0)
            written = os.fstat(file.fileno()).st_mtime
            for line_number, line in enumerate(_lines(path, file)):
                if counts[line_number]:
                    figures.add(line)
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be read: {error.strerror or error}") from error
    return figures, written


def ended_runs(decisions: Sequence[tuple[str, StoredDecision]]) -> tuple[ReportedRun, ...]:
    """Return how the latest run in real time went, whose jobs were deleted when the output had all answers.

    Args:
        decisions: on the jobs of runs, with the keys of these, newest first.
    """
    runs = [(key.partition("#")[0], one) for key, one in decisions]
    return tuple(run_of_list(one, key) for key, one in reversed(runs) if key == runs[0][0])


@define
class OutputFigures:
    """Adds up the lines of an output."""

    seen: SeenResults = field(factory=SeenResults)
    models: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)
    cost: float = 0.0

    def add(self, line: dict[str, Any]) -> None:
        """Add a line that counts for its row."""
        usage, error, cost = line.get("usage") or {}, line["error"], line.get("cost")
        if error is not None and error["kind"] == _SKIPPED:
            self.counts["skipped"] += 1
            return
        self.models[str(line.get("model"))] += 1
        self.counts["failed" if error is not None else "succeeded"] += 1
        tokens = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
        self.seen.input_tokens += tokens[0]
        self.seen.output_tokens += tokens[1]
        self.seen.estimated += bool(usage.get("estimated"))
        self.seen.unknown += bool(usage.get("unknown"))
        self.counts["unpriced"] += cost is None
        self.cost += cost or 0.0
        self.counts.update(defects_of(line))
        for name, why in (line.get("dropped") or {}).items():
            self.seen.dropped.setdefault(name, str(why))
        if error is not None:
            self.seen.failures_read += 1
            message = pattern_of(str(error["message"]))
            self.seen.failures.count(str(error["kind"]), message, str(line.get("id")))
            return
        took = line.get("latency") or 0.0, cost
        self.seen.sample.take(RequestFigures("", *took, *tokens, line.get("attempts") or 0))

    def status(self) -> JobStatus:
        """Return the totals."""
        counts = self.counts
        return totals(
            next(iter(self.models), ""),
            total=counts["succeeded"] + counts["failed"],
            completed=counts["succeeded"],
            failed=counts["failed"],
            cost=self.cost,
            **{name: counts[name] for name in ("unpriced", *DEFECTS)},
        )

    def asked(self, path: str, made_at: float, written: float) -> ReportedRequests:
        """Return what the requests have in common."""
        return ReportedRequests(
            kind=None,
            models=tuple(model for model, _ in self.models.most_common()),
            skipped=self.counts["skipped"],
            place=os.path.abspath(path),
            made_at=made_at,
            written_at=written,
        )


def _which_counts(lines: Iterator[dict[str, Any]]) -> bytearray:
    """Return a byte for each line: 1 where it counts for its answer. A row that failed, or whose answer is
    replaced, has several while a run lasts: the first answer counts, else the last failure.
    """
    counts = bytearray()
    samples: dict[int, tuple[array[int], bytearray]] = {}
    for number, line in enumerate(lines):
        line_of, state = samples.setdefault(sample_of(line), (array("q"), bytearray()))
        index, found = line["index"], _ANSWERED if is_answer(line) else _FAILED
        if index >= len(state):
            more = index + 1 - len(state)
            state.extend(bytes(more))
            line_of.extend([0] * more)
        known = state[index]
        counts.append(known != _ANSWERED)
        if known == _FAILED and counts[number]:
            counts[line_of[index]] = 0
        if counts[number]:
            state[index], line_of[index] = found, number
    return counts


def _lines(path: str, file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the results that are the lines of an output, or the rows of one that is a table.

    Raises:
        InputError: it is none. A last line that is torn, as a kill leaves it, is left out.
    """
    format = table_format(path)
    if format is not None:
        for number, row in enumerate(
            read_table(format, file, escape(path), keyed=False, advice=_SUBJECTS), 1
        ):
            result = figures_of(row)
            if not _is_result(result):
                raise _foreign(path, f"row {number} is no result")
            yield result
        return
    for number, text in enumerate(file, 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            if number > 1 and not text.endswith(b"\n"):
                return
            raise _foreign(path, f"line {number} is no JSON") from None
        if not _is_result(line):
            raise _foreign(path, f"line {number} is no result")
        yield line


def _is_result(line: Any) -> bool:
    """Whether a line has what each result has, in the form that is read here."""
    if not isinstance(line, dict) or "error" not in line:
        return False
    index, error, usage, dropped = (line.get(name) for name in ("index", "error", "usage", "dropped"))
    if type(index) is not int or not 0 <= index < _MOST_ROWS:
        return False
    if type(sample := line.get("sample", 0)) is not int or not 0 <= sample < MAX_SAMPLES:
        return False
    if not all(one is None or isinstance(one, dict) for one in (usage, dropped)):
        return False
    numbers = [line.get(name) for name in ("cost", "latency", "attempts")]
    numbers += [(usage or {}).get(name) for name in _TOKENS]
    figures = map(number_of, numbers)
    if any(
        one is not None and (figure is None or figure < 0)
        for one, figure in zip(numbers, figures, strict=True)
    ):
        return False
    return error is None or (isinstance(error, dict) and {"kind", "message"} <= error.keys())


def _foreign(path: str, what: str) -> InputError:
    return InputError(f"{escape(path)}: {what}; {_SUBJECTS}")
