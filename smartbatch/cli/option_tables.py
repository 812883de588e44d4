"""Options of a command, defined by a table that looks like its help."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, TypeAlias

AddParser: TypeAlias = Callable[..., argparse.ArgumentParser]
_FURTHER: Final = "further"  # marks the options that only ``--help-all`` shows


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formats the complete help of a command.

    The help of an option is cut at the first semicolon; the reference has the rest. Paragraphs are wrapped to
    the terminal, indented lines are kept, and there are no blank lines between groups.
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
        """Show the value of an option once, after all its names."""
        text = super()._format_action_invocation(action)
        return re.sub(r"^(-\w) \S+, ", r"\1, ", text)

    def format_help(self) -> str:
        return re.sub(r"\n\n(?=[a-z, ]+:\n  )", r"\n", super().format_help())


class _OneScreen(_Help):
    """Formats the help of a command without its further options, so that it fits one screen."""

    def add_argument(self, action: argparse.Action) -> None:
        if not getattr(action, _FURTHER, False):
            super().add_argument(action)


class _ShowHelp(argparse.Action):
    """Prints the help of a command; ``--help`` leaves out the further options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        if self.dest == "help":
            parser.formatter_class = _OneScreen
        parser.print_help()
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """A parser whose ``--help`` fits one screen; with ``further`` options it also has ``--help-all``."""

    def __init__(self, *, further: bool = False, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=_Help, allow_abbrev=False, add_help=False)
        help: dict[str, Any] = {"action": _ShowHelp, "nargs": 0, "default": argparse.SUPPRESS}
        self.add_argument("-h", "--help", **help, help="show this help and exit")
        if further:
            self.add_argument("--help-all", **help, help="show all options and exit")


def add_options(
    add: Callable[..., object], table: str, special: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Add the options of a table to a parser.

    Args:
        add: ``add_argument`` of the parser, or of a group of it.
        table: one line per option, with its names, its metavar or its choices as ``a|b`` (neither for a
            switch), two spaces and the help, which may continue on indented lines. Options below the
            line ``further:`` appear in ``--help-all`` only.
        special: arguments of ``add_argument``, by metavar or last name of an option.
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
    """Parse a whole number such as ``1,500``, ``1.5k`` or ``2M``; with ``bytes_too``, also ``50 MB``."""
    found = _COUNT.fullmatch(text.strip())
    if found is not None and (bytes_too or (not found[4] and "i" not in found[3])):
        digits, fraction, unit = found[1].replace(",", "").replace("_", ""), found[2] or "", found[3]
        value = Decimal(digits + fraction) * _SHORT["k" if unit == "K" else unit]
        if value == int(value):
            return int(value)
    examples = "200MB or 64MiB" if bytes_too else "200000, 200k or 1.5M"
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number such as {examples}")


def positive(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def size(text: str) -> int:
    return whole(text, bytes_too=True)


def number(text: str) -> float:
    with suppress(ValueError):
        return int(text) if text.isdecimal() else float(text)
    with suppress(argparse.ArgumentTypeError):
        return whole(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number")


def file_name(text: str) -> str | None:
    return None if text == "-" else text
