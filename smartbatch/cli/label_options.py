"""The options ``--label-column`` and ``--label-field``, with which answers are scored."""

from __future__ import annotations

import argparse

from smartbatch._words import escape
from smartbatch.errors import ConfigError, InputError
from smartbatch.quality.labels import LabelScores


def label_scores(args: argparse.Namespace) -> LabelScores | None:
    """Return scores that have counted nothing yet; ``None`` without labels.

    Raises:
        ConfigError: ``--label-field`` is given alone.
    """
    if args.label_column is None:
        if args.label_field is not None:
            raise ConfigError("--label-field needs --label-column")
        return None
    return LabelScores(args.label_column, args.label_field)


def check_labels(scores: LabelScores, path: str) -> None:
    """Raise InputError if no row of an output had a label."""
    if scores.unlabeled and not (scores.scored or scores.unanswered or scores.fields):
        raise InputError(f"{escape(path)}: no row has a label in the column {scores.column!r:.80}")
