"""The options ``--label-column``, ``--labels`` and ``--label-field``, which score answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from smartbatch._words import escape
from smartbatch.errors import ConfigError, InputError, did_you_mean
from smartbatch.quality.labels import LabelScores
from smartbatch.runs.label_file import read_labels


def label_scores(args: argparse.Namespace) -> LabelScores | None:
    """Return scores without any rows yet; ``None`` if no labels were given.

    Raises:
        ConfigError: the options contradict each other.
        InputError: the file of labels cannot be used.
    """
    column, path, compared = args.label_column, args.labels, args.label_field
    if column is not None and path is not None:
        raise ConfigError("--label-column and --labels both name labels: leave out one of them")
    if path is not None:
        return LabelScores(path, compared, read_labels(path, compared))
    if column is not None:
        return LabelScores(column, compared)
    if compared is not None:
        raise ConfigError("--label-field needs --label-column or --labels")
    return None


def check_label_field(name: str, schema: Mapping[str, Any] | None) -> None:
    """Raise ConfigError if answers that follow a schema have no such field."""
    if schema is None:
        raise ConfigError("--label-field needs answers with fields: add --output-field or --schema")
    fields = schema.get("properties")
    if isinstance(fields, Mapping) and name not in fields:
        raise ConfigError(
            f"--label-field {name!r:.60} is not a field of the answers{did_you_mean(name, fields)}"
        )


def check_labels(scores: LabelScores, path: str) -> None:
    """Raise InputError if no row of an output had a label."""
    if scores.unlabeled and not (scores.scored or scores.unanswered or scores.fields):
        where = f"the column {scores.column!r:.80}" if scores.given is None else escape(scores.column)
        raise InputError(f"{escape(path)}: no row has a label in {where}")
