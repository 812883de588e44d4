"""Sends the same sample to several models: the arguments and output of each run, and the comparison."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from smartbatch._words import escape
from smartbatch.cli.clients import config_of
from smartbatch.cli.printing import print_out, say, terminal_width
from smartbatch.errors import ConfigError
from smartbatch.quality.model_comparison import SampledModel, model_view
from smartbatch.quality.projection import Projection
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_matching import compare_rows
from smartbatch.views.terminal import lines_of

_UNSAFE: Final = re.compile(r"[^\w.]+")  # not used in file names


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
