"""What the report of a run's output tells: the file is read line by line, in little memory."""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Any

from attrs import evolve

from smartbatch._display import escape
from smartbatch.cli.output_lines import defects_of, figures_of, is_answer, number_of, sample_of
from smartbatch.cli.result_tables import read_table, table_format
from smartbatch.core.limits.error_patterns import pattern_of
from smartbatch.core.preparation.validation import MAX_SAMPLES
from smartbatch.errors import InputError, RowSkipped, snake_case
from smartbatch.jobs.job import Job
from smartbatch.jobs.job_report import list_figures, versions
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.reports.report_data import ReportData, ReportedJob
from smartbatch.reports.sampling import EvenSample, FailureGroups, RequestFigures

_SUBJECTS = "name the output of a run, of jobs results, or a job"
_TOKENS = ("input_tokens", "output_tokens")
_ANSWERED, _FAILED = 2, 1
_SKIPPED = snake_case(RowSkipped.__name__)
_MOST_ROWS = 200_000_000
"""Rows beyond which an index is taken for damaged."""


def output_report(path: str, jobs: Sequence[ReportedJob], made_at: float) -> ReportData:
    """Return what the report of an output tells.

    Args:
        jobs: those whose answers it has, as far as the store has them.
        made_at: Unix seconds.

    Raises:
        InputError: the file cannot be read, or is not an output.
    """
    figures = _Figures()
    try:
        with open(path, "rb") as file:
            counts = _which_counts(_lines(path, file))
            file.seek(0)
            written = os.fstat(file.fileno()).st_mtime
            for number, line in enumerate(_lines(path, file)):
                if counts[number]:
                    figures.add(line)
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be read: {error.strerror or error}") from error
    return evolve(figures.data(path, jobs, made_at), written_at=written)


def reported_jobs(jobs: Sequence[Job]) -> tuple[ReportedJob, ...]:
    """Return how jobs went, oldest first."""
    return tuple(
        each for job in sorted(jobs, key=lambda job: job.created_at) for each in job.report().data.jobs
    )


def ended_runs(decisions: Sequence[tuple[str, StoredDecision]]) -> tuple[ReportedJob, ...]:
    """Return how the latest run in real time went, whose jobs were deleted when the output had all answers.

    Args:
        decisions: on the jobs of runs, with the keys of these, newest first.
    """
    runs = [(key.partition("#")[0], one) for key, one in decisions]
    return tuple(list_figures(one, key=key) for key, one in reversed(runs) if key == runs[0][0])


class _Figures:
    """Adds up the lines of an output."""

    def __init__(self) -> None:
        self._sample, self._failures = EvenSample(), FailureGroups()
        self._models: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._cost = 0.0
        self._dropped: dict[str, str] = {}

    def add(self, line: dict[str, Any]) -> None:
        """Add a line that counts for its row."""
        usage, error, cost = line.get("usage") or {}, line["error"], line.get("cost")
        if error is not None and error["kind"] == _SKIPPED:
            self._counts["skipped"] += 1
            return
        self._models[str(line.get("model"))] += 1
        self._counts["failed" if error is not None else "succeeded"] += 1
        self._counts["input"] += usage.get("input_tokens") or 0
        self._counts["output"] += usage.get("output_tokens") or 0
        self._counts["unpriced"] += cost is None
        self._counts["estimated"] += bool(usage.get("estimated"))
        self._counts["unknown"] += bool(usage.get("unknown"))
        self._cost += cost or 0.0
        self._counts.update(defects_of(line))
        for name, why in (line.get("dropped") or {}).items():
            self._dropped.setdefault(name, str(why))
        if error is not None:
            self._failures.add(str(error["kind"]), pattern_of(str(error["message"])), str(line.get("id")))
            return
        self._sample.add(
            RequestFigures(
                route="",
                latency=line.get("latency") or 0.0,
                cost=cost,
                input_tokens=usage.get("input_tokens") or 0,
                output_tokens=usage.get("output_tokens") or 0,
                attempts=line.get("attempts") or 0,
            )
        )

    def data(self, path: str, jobs: Sequence[ReportedJob], made_at: float) -> ReportData:
        """Return the whole."""
        counts = self._counts
        return ReportData(
            title=f"Results in {os.path.basename(path)}",
            place=os.path.abspath(path),
            made_at=made_at,
            models=tuple(model for model, _ in self._models.most_common()),
            total=counts["succeeded"] + counts["failed"],
            succeeded=counts["succeeded"],
            failed=counts["failed"],
            skipped=counts["skipped"],
            truncated=counts["truncated"],
            empty=counts["empty"],
            refused=counts["refused"],
            dropped=tuple(self._dropped.items()),
            input_tokens=counts["input"],
            output_tokens=counts["output"],
            estimated=counts["estimated"],
            unknown=counts["unknown"],
            cost=self._cost,
            unpriced=counts["unpriced"],
            sample=self._sample.kept(),
            sampled_of=self._sample.seen,
            failures=self._failures.largest(),
            failures_read=counts["failed"],
            jobs=tuple(jobs),
            versions=versions(),
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
