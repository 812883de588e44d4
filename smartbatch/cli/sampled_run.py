"""A sampled run: draws the rows, shows their answers, and offers to send the other rows."""

from __future__ import annotations

import argparse
import json
import random
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

from smartbatch._words import plural
from smartbatch.cli.clients import config_of
from smartbatch.cli.printing import one_line, print_out, say, terminal_width
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.preparation.validation import admit_defaults, normalise
from smartbatch.errors import ConfigError
from smartbatch.quality.projection import Projection, project
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.sample import draw
from smartbatch.result_display import prompt_text
from smartbatch.runs.output_file import OutputRow
from smartbatch.runs.output_reader import row_of
from smartbatch.runs.row_requests import InputRequests
from smartbatch.runs.run_identity import RowSelection
from smartbatch.tables.cells import text_of
from smartbatch.types import Generation, Request
from smartbatch.views.model import Cell, Column
from smartbatch.views.terminal import fitted, table_lines

_OPTIONS: Final = ("sample", "sample_seed", "by", "yes")
_MIN_CELL_WIDTH: Final = 12  # of a prompt or an answer, in characters
_OTHER_CELLS: Final = 24  # width of the other columns


def check_sample(args: argparse.Namespace) -> None:
    """Check the options of a sample.

    Raises:
        ConfigError: they contradict each other, or the input cannot be read twice.
    """
    if args.sample is None:
        for name in _OPTIONS:
            if getattr(args, name):
                raise ConfigError(f"--{name.replace('_', '-')} needs --sample")
        return
    if args.input == "-":
        raise ConfigError("--sample reads the input twice, so it needs an input file, not standard input")
    if args.resend is not None:
        raise ConfigError("--sample and --resend each select rows: leave out one of them")


def without_sample(args: argparse.Namespace, spent: float) -> argparse.Namespace:
    """Return the arguments of the run that sends the other rows.

    Args:
        spent: USD spent on the sample; the other rows may spend what is left of the budget.
    """
    config, rest = config_of(args), {**vars(args), **dict.fromkeys(_OPTIONS)}
    if config.budget is not None and config.budget_scope == "client":  # a shared budget counts both runs
        rest["budget"] = max(0.0, config.budget - spent)
    return argparse.Namespace(**rest)


def in_real_time(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments of the run that sends the sample: in real time, without the run's deadline."""
    return argparse.Namespace(**{**vars(args), "strategy": "individual", "deadline": None})


class KeptLines:
    """Keeps the lines of a sample that has no output file."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def append(self, rows: Sequence[OutputRow]) -> None:
        self.lines += [line for _, line, _ in rows]

    def rows(self) -> Iterable[RecordedRow]:
        return (row_of(json.loads(line)) for line in self.lines)


@define(eq=False, repr=False)
class SampledRun:
    """The sample of a run.

    Attributes:
        selection: the drawn rows, each with all its answers.
    """

    _rows: InputRequests
    _params: Generation
    _model: str
    _groups: list[str] | None
    selection: RowSelection
    _sizes: array[float] = field(factory=lambda: array("d"), init=False)  # estimated tokens of each row

    @classmethod
    def draw(cls, rows: InputRequests, args: argparse.Namespace, params: Generation) -> SampledRun:
        """Draw the sample of a checked input.

        Raises:
            InputError: no row has the column of ``--by``.
        """
        keys, seed = rows.keys, args.sample_seed or 0
        sent = [index for index in range(keys.rows) if not keys.is_skipped(index * keys.n)]
        groups = None if args.by is None else rows.values_of(args.by)
        grouped = None if groups is None else [groups[index] for index in sent]
        chosen = bytearray(len(keys))
        for position in draw(len(sent), args.sample, random.Random(seed), grouped):
            first = sent[position] * keys.n
            chosen[first : first + keys.n] = b"\1" * keys.n
        by = "" if args.by is None else f" by {args.by}"
        return cls(
            rows,
            params,
            args.model,
            groups,
            RowSelection(f"sample of {args.sample}, seed {seed}{by}", chosen),
        )

    def show(self, answers: Iterable[RecordedRow]) -> None:
        """Print the prompts and answers of the sample on standard output, as a table."""
        width = terminal_width()
        for line in table_lines(*_table(self.read(answers), width), width):
            print_out(line)

    def read(self, answers: Iterable[RecordedRow]) -> list[tuple[RecordedRow, Request]]:
        """Estimate the tokens of each row; return the answers of the sample with their requests."""
        keys, params = self._rows.keys, admit_defaults(self._params)
        by_place = {row.index * keys.n + (row.sample or 0): row for row in answers}
        self._sizes = array("d", bytes(8 * keys.rows))
        answered = []
        for row, request in self._rows.requests(keys.is_skipped):
            sent = normalise(request, params, embedding=self._rows.embedding)
            self._sizes[row.index] = keys.n * estimate_request(sent, sent.model or self._model)
            if row.place in self.selection and row.place in by_place:
                answered.append((by_place[row.place], sent))
        return answered

    def projection(self, answers: Iterable[RecordedRow]) -> Projection:
        """Project the cost of all rows, once :meth:`read` has read them."""
        drawn, earlier = list[RecordedRow](), defaultdict[int, float](float)
        for row in answers:
            if row.index * self._rows.keys.n in self.selection:
                drawn.append(row)
            elif row.ok:
                earlier[row.index] += row.cost or 0.0
        return project(drawn, self._sizes, self._groups, earlier)


def _table(
    shown: Sequence[tuple[RecordedRow, Request]], width: int
) -> tuple[list[Column], list[tuple[Cell, ...]]]:
    fields = list(dict.fromkeys(name for row, _ in shown for name in row.fields))
    names = fields or ["answer"]
    columns = [Column(name) for name in ("row", "prompt", *names, "problem")]
    room = max(_MIN_CELL_WIDTH, (width - _OTHER_CELLS) // (1 + len(names)))
    cells: list[tuple[Cell, ...]] = []
    for row, request in shown:
        number = str(row.index) if row.sample is None else f"{row.index}.{row.sample}"
        answers = [row.fields.get(name) for name in fields] or [row.text]
        texts = ["" if value is None else text_of(value) for value in (prompt_text(request), *answers)]
        cells.append((number, *(fitted(one_line(text), room) for text in texts), _problem(row)))
    return columns, cells


def _problem(row: RecordedRow) -> str:
    return ", ".join(row.defects) if row.ok else f"{row.error_kind}: {one_line(row.error or '')}"


def asks_for_rest(args: argparse.Namespace, rest: int) -> bool:
    """Ask in a terminal whether to send the other rows; return whether to send them."""
    if not rest:
        return False
    if args.yes:
        return True
    if not args.quiet and sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write(f"Run the other {plural(rest, 'row')}? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    if not args.quiet:
        say(f"Run the same command without --sample to send the other {plural(rest, 'row')}.")
    return False
