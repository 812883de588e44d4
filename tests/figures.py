"""Recorded figures of scenarios: text that a reviewer can read, and a comparison that names what differs.

A file of figures has a heading for each group, and below it a line for each scenario of the group::

    unreported limits
      steady 10 a second: calls 1500, refused 12, seconds 151.3, order 0-1499

A long line goes on in lines that are indented further. What is missing is zero, or nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["Figures", "Table", "differences", "groups_of", "read", "runs", "write"]

Figures = Mapping[str, str]
"""Figures by name; names are single words, and figures contain no commas."""
Table = Mapping[str, Mapping[str, Figures]]
"""By group and scenario."""
WIDTH = 180
SCENARIO, CONTINUED = "  ", "      "


def write(path: Path, table: Table) -> None:
    lines: list[str] = []
    for group, scenarios in table.items():
        lines.append(group)
        for scenario, figures in scenarios.items():
            told = ", ".join(f"{name} {figure}" for name, figure in figures.items())
            lines += textwrap.wrap(
                f"{scenario}: {told}",
                WIDTH,
                initial_indent=SCENARIO,
                subsequent_indent=CONTINUED,
                break_long_words=False,
                break_on_hyphens=False,
            )
    path.write_text("".join(f"{line}\n" for line in lines))


def read(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    whole: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith(CONTINUED):
            whole[-1] += " " + line.strip()
        else:
            whole.append(line)
    table: dict[str, dict[str, dict[str, str]]] = {}
    for line in whole:
        if not line.startswith(SCENARIO):
            scenarios = table[line] = {}
            continue
        scenario, _, told = f"{line.strip()} ".partition(": ")
        figures = (figure.partition(" ") for figure in told.strip().split(", ") if figure)
        scenarios[scenario] = {name: figure for name, _, figure in figures}
    return table


def groups_of(path: Path, *names: str) -> dict[str, dict[str, dict[str, str]]]:
    recorded = read(path)
    return {name: recorded.get(name, {}) for name in names}


def differences(recorded: Table, found: Table) -> list[str]:
    """Return a line for each figure that differs, and for each scenario that only one side has."""
    lines: list[str] = []
    for group in {**recorded, **found}:
        before, now = recorded.get(group, {}), found.get(group, {})
        for scenario in {**before, **now}:
            name = f"{group}, {scenario}"
            if scenario not in before or scenario not in now:
                lines.append(f"{name}: {'is not recorded' if scenario in now else 'no longer takes place'}")
                continue
            was, is_now = before[scenario], now[scenario]
            lines += [
                f"{name}: {figure} was {was.get(figure, 0)}, is {is_now.get(figure, 0)}"
                for figure in {**was, **is_now}
                if was.get(figure, "0") != is_now.get(figure, "0")
            ]
    return lines


def runs(numbers: Iterable[int]) -> str:
    """Shorten an order: ``0-3 5 4`` for 0, 1, 2, 3, 5, 4."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1][1:] = [number]
        else:
            pieces.append([number])
    return " ".join("-".join(map(str, piece)) for piece in pieces)
