"""The tables and the picture of :mod:`benchmarks.peers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TypeAlias

from attrs import astuple, frozen


@frozen
class Measured:
    """What a peer took for a case.

    Attributes:
        cpu, wall: seconds.
        memory: the peak, MB.
        answered: rows with their answer.
        calls: that reached the server.
        refused: of them, those that exceeded a limit.
    """

    cpu: float
    wall: float
    memory: float
    answered: float
    calls: float
    refused: float

    @property
    def figures(self) -> tuple[float, ...]:
        return astuple(self)


@frozen
class Column:
    """One figure that is told of a case."""

    head: str
    value: Callable[[Measured], float]
    digits: int = 2

    def text(self, found: Measured) -> str:
        """Return the figure in words."""
        return f"{self.value(found):,.{self.digits}f}"


Tables: TypeAlias = Mapping[str, tuple[Sequence[Column], Mapping[str, Measured]]]
"""What was measured: the columns of each case, and the medians of each peer."""

BAR, ROW, LEFT, WIDTH = 260, 20, 150, 520


def page(tables: Tables, where: str) -> str:
    """Return the tables in Markdown."""
    parts = [where]
    for name, (columns, rows) in tables.items():
        parts.append(f"**{name}**")
        lines = [f"| | {' | '.join(column.head for column in columns)} |", "|---" * (len(columns) + 1) + "|"]
        for peer, found in rows.items():
            lines.append(f"| {peer} | {' | '.join(column.text(found) for column in columns)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def picture(tables: Tables) -> str:
    """Return bars of the first column of each case, as an SVG that needs nothing else."""
    drawn: list[str] = []
    y = 10
    for name, (columns, rows) in tables.items():
        column = columns[0]
        drawn.append(f'<text x="8" y="{y + 14}" class="head">{escape(f"{name}: {column.head}")}</text>')
        y += 24
        most = max(column.value(found) for found in rows.values()) or 1.0
        for peer, found in rows.items():
            length = max(1.0, BAR * column.value(found) / most)
            kind = "own" if peer == "smartbatch" else "peer"
            drawn.append(f'<text x="{LEFT - 8}" y="{y + 13}" class="name">{escape(peer)}</text>')
            drawn.append(f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="14" class="{kind}"/>')
            drawn.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 13}">{column.text(found)}</text>')
            y += ROW
        y += 14
    style = (
        "text{font:12px sans-serif;fill:#333}.head{font-weight:bold}.name{text-anchor:end}"
        ".own{fill:#2a6fbb}.peer{fill:#b8c4d0}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
        f"<style>{style}</style>\n" + "\n".join(drawn) + "\n</svg>\n"
    )
