"""Options of a command, from a table such as its help prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any


def add_options(
    add: Callable[..., object], table: str, special: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Add the options of a table to a parser.

    Args:
        add: ``add_argument`` of the parser, or of a group of it.
        table: for each option a line with its names, its metavar or its choices as ``a|b`` (a switch has
            neither), two spaces and its help, which goes on in lines that are indented.
        special: arguments of ``add_argument``, by the metavar or the last name of the options that need them.
    """
    for entry in re.split(r"\n(?=-)", table.strip()):
        head, _, text = entry.partition("  ")
        names = [word for word in head.split() if word.startswith("-")]
        value = "".join(word for word in head.split() if not word.startswith("-"))
        kind: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        if "|" in value:
            kind = {"choices": value.split("|")}
        for key in (value, names[-1]):
            kind |= (special or {}).get(key, {})
        add(*names, help=" ".join(text.split()), **kind)


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def number(text: str) -> float:
    """Return a number, whole where it is written so."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
