"""A sampled run: draws the rows, shows their answers, and offers to send the other rows, or compares the
answers of several models.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field, frozen

from smartbatch._words import escape, plural
from smartbatch.cli.clients import config_of
from smartbatch.cli.printing import one_line, print_out, say, terminal_width
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.preparation.validation import admit_defaults, normalise
from smartbatch.errors import ConfigError
from smartbatch.quality.model_comparison import SampledModel, model_view
from smartbatch.quality.projection import Projection, project
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_matching import compare_rows
from smartbatch.quality.sample import draw
from smartbatch.result_display import prompt_text
from smartbatch.runs.output_file import OutputRow
from smartbatch.runs.output_reader import row_of
from smartbatch.runs.row_requests import InputRequests
from smartbatch.runs.run_identity import RowSelection
from smartbatch.tables.cells import text_of
from smartbatch.types import Generation, Request
from smartbatch.views.model import Cell, Column
from smartbatch.views.terminal import fitted, lines_of, table_lines

_OPTIONS: Final = ("sample", "sample_seed", "by", "yes")
_MIN_CELL_WIDTH: Final = 12  # of a prompt or an answer, in characters
_OTHER_CELLS: Final = 24  # width of the other columns
_UNSAFE: Final = re.compile(r"[^\w.]+")  # not used in file names


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


# -- several models ------------------------------------------------------------------------------------------


def without_options(model: str) -> str:
    """Return a model without the provider options after its name, which may be secret."""
    return model.partition("?")[0]


def runs_of_models(args: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the arguments of the run of each model. A budget is divided evenly.

    Raises:
        ConfigError: the options contradict each other, or two models have the same output.
    """
    models = [name.strip() for name in args.models.split(",") if name.strip()]
    if len(models) < 2:
        raise ConfigError("--models needs two or more models, separated by commas")
    if args.sample is None or args.output is None:
        raise ConfigError("--models compares the answers to a sample: give --sample N and -o as well")
    if args.yes:
        raise ConfigError("--models sends the sample only: leave out --yes")
    start, ending = os.path.splitext(args.output)
    outputs = [f"{start}.{_UNSAFE.sub('-', without_options(name))}{ending}" for name in models]
    if len(set(outputs)) < len(outputs):
        raise ConfigError("--models names a model twice, but each model needs its own output file")
    total = config_of(args).budget
    budget = args.budget if total is None else total / len(models)
    return [
        argparse.Namespace(**{**vars(args), "model": model, "output": output, "budget": budget})
        for model, output in zip(models, outputs, strict=True)
    ]


@frozen
class AnsweredSample:
    """What one model answered.

    Attributes:
        name: the model without its options.
        answers: the answers to the sample.
        projection: the cost of all rows.
    """

    name: str
    output: str
    answers: Sequence[RecordedRow]
    projection: Projection


def show_models(samples: Sequence[AnsweredSample]) -> None:
    """Print the comparison of the models on standard output, and how to continue."""
    first = samples[0]
    models = [
        SampledModel(
            compare_rows(first.answers, each.answers, names=(first.name, each.name), max_flipped=0),
            each.projection,
        )
        for each in samples
    ]
    print_out("\n".join(line.text for line in lines_of(model_view(models), terminal_width())))
    outputs = f"{escape(first.output)} {escape(samples[1].output)}"
    say(
        f"smartbatch compare {outputs} shows the rows with different answers. To send all rows to one model, "
        "run the same command with --model and its -o, without --models and --sample."
    )
