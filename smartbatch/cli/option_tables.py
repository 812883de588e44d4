"""Options of a command, from a table such as its help prints."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import groupby
from typing import Any, Final

_FURTHER: Final = "further"
"""The attribute of actions that only ``--help-all`` shows."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Prints the help of a command: all of it.

    Each option has its help up to the first semicolon; the reference has the rest. Paragraphs are fitted to
    the terminal, lines that are indented stay, and no blank lines stand between groups.
    """

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{**settings, "max_help_position": 27})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrap = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=indent)
        filled: list[str] = []
        for stays, group in groupby(text.splitlines(), lambda line: line[:1] in ("", " ")):
            lines = list(group)
            filled += lines if stays else wrap.wrap(" ".join(lines))
        return "\n".join(filled)

    def _expand_help(self, action: argparse.Action) -> str:
        return super()._expand_help(action).partition(";")[0]

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return all names of an option, and its value once."""
        text = super()._format_action_invocation(action)
        return re.sub(r"^(-\w) \S+, ", r"\1, ", text)

    def format_help(self) -> str:
        return re.sub(r"\n\n(?=[a-z, ]+:\n  )", r"\n", super().format_help())


class _OneScreen(_Help):
    """Prints the help of a command on one screen: without its further options."""

    def add_argument(self, action: argparse.Action) -> None:
        if not getattr(action, _FURTHER, False):
            super().add_argument(action)


class _ShowHelp(argparse.Action):
    """Prints the help of a command; on one screen, where it is asked for by ``--help``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        if self.dest == "help":
            parser.formatter_class = _OneScreen
        parser.print_help()
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """A parser whose ``--help`` is one screen. Without the further options, if it has ``further`` ones;
    ``--help-all`` prints those as well."""

    def __init__(self, *, further: bool = False, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=_Help, allow_abbrev=False, add_help=False)
        help: dict[str, Any] = {"action": _ShowHelp, "nargs": 0, "default": argparse.SUPPRESS}
        self.add_argument("-h", "--help", **help, help="show this and exit")
        if further:
            self.add_argument("--help-all", **help, help="show all options and exit")


def add_options(
    add: Callable[..., object], table: str, special: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Add the options of a table to a parser.

    Args:
        add: ``add_argument`` of the parser, or of a group of it.
        table: for each option a line with its names, its metavar or its choices as ``a|b`` (a switch has
            neither), two spaces and its help, which goes on in lines that are indented. Those below a line
            ``further:`` are left to ``--help-all``.
        special: arguments of ``add_argument``, by the metavar or the last name of the options that need them.
    """
    usual, _, further = table.partition("\nfurther:\n")
    for entry in (*_entries(usual), *_entries(further)):
        head, _, text = entry.partition("  ")
        names = [word for word in head.split() if word.startswith("-")]
        value = "".join(word for word in head.split() if not word.startswith("-"))
        kind: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        if "|" in value:
            kind = {"choices": value.split("|")}
        for key in (value, names[-1]):
            kind |= (special or {}).get(key, {})
        action = add(*names, help=" ".join(text.split()), **kind)
        vars(action)[_FURTHER] = entry in further


def _entries(table: str) -> list[str]:
    return [entry for entry in re.split(r"\n(?=-)", table.strip()) if entry]


_SHORT = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_COUNT = re.compile(r"(\d+|\d{1,3}(?:[,_]\d{3})+)(\.\d+)? ?([kK]?|M|G|Ki|Mi|Gi)(B?)")


def whole(text: str, bytes_too: bool = False) -> int:
    """Return a whole number as people write it: ``1500``, ``1,500``, ``1.5k``, ``2M``.

    Args:
        bytes_too: of bytes: also ``50 MB`` and ``64 MiB``.
    """
    found = _COUNT.fullmatch(text.strip())
    if found is not None and (bytes_too or (not found[4] and "i" not in found[3])):
        digits, fraction, unit = found[1].replace(",", "").replace("_", ""), found[2] or "", found[3]
        value = Decimal(digits + fraction) * _SHORT["k" if unit == "K" else unit]
        if value == int(value):
            return int(value)
    examples = "200MB or 64MiB" if bytes_too else "200000, 200k or 1.5M"
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number such as {examples}")


def size(text: str) -> int:
    """Return the bytes that a text such as ``200MB`` says."""
    return whole(text, bytes_too=True)


def number(text: str) -> float:
    """Return a number, whole where it is written so; counts may be short, as :func:`whole` takes them."""
    with suppress(ValueError):
        return int(text) if text.isdecimal() else float(text)
    with suppress(argparse.ArgumentTypeError):
        return whole(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number")
