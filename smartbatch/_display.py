"""How values are shown: reprs of bounded length, and HTML for notebooks. Everything is escaped; there is no
script and no style sheet, so a saved notebook shows what the live one did."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence

from attrs import frozen

MOST = 240
"""Characters of a text in a table of HTML."""
_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 84, 12, 32
_NAME, _LINE = 56, 12
"""Width and height of the name of a route."""
_TIMES = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 86_400: "1 d"}

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 160
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = _short.maxarray = 3
_short.maxlevel = 3


def short(value: object, most: int = 240) -> str:
    """Return a repr of some ``most`` characters, whatever is in ``value``."""
    return without_middle(_short.repr(value), most)


def brief(value: object) -> str:
    """Return a repr of a few words, for what there are many of."""
    return short(value, 80)


def without_middle(words: str, most: int = 300) -> str:
    """Return at most ``most`` characters of a repr, its end included."""
    return words if len(words) <= most else f"{words[: most - 43]}...{words[-40:]}"


def counted(word: str, values: Sequence[object]) -> str:
    """Return how many values there are, in place of what may be thousands."""
    return f"<{len(values):,} {word}>"


def cut(text: str) -> str:
    """Return at most :data:`MOST` characters of a text."""
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def escaped(text: object) -> str:
    """Return a text for HTML."""
    import html  # late: with its table of entities it takes longer than this file

    return html.escape(str(text))


def paragraph(text: str) -> str:
    """Return a text as HTML."""
    return f"<p>{escaped(text)}</p>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return named facts as a table of two columns."""
    cells = (f"<tr><th>{escaped(name)}</th>{_cell(words)}</tr>" for name, words in rows)
    return f"<table>{''.join(cells)}</table>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], chosen: int | None = None) -> str:
    """Return a table; the row at position ``chosen`` is bold."""
    titles = "".join(f"<th>{escaped(title)}</th>" for title in head)
    lines = ("".join(_cell(cell, bold=at == chosen) for cell in row) for at, row in enumerate(rows))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def bar(done: int, total: int) -> str:
    """Return a bar that is filled as far as ``done`` of ``total``."""
    return f'<progress value="{done}" max="{max(total, 1)}" style="width: 20em"></progress>'


def _cell(text: object, *, bold: bool = False) -> str:
    words = escaped(cut(str(text)))
    return f'<td style="text-align: left">{f"<b>{words}</b>" if bold else words}</td>'


@frozen
class Mark:
    """A way in the picture of time against cost.

    Attributes:
        name: next to it.
        p50, p95: seconds.
        low, cost, high: USD.
        chosen: whether it is filled.
    """

    name: str
    p50: float
    p95: float
    low: float
    cost: float
    high: float
    chosen: bool


def picture(marks: Sequence[Mark]) -> str:
    """Return a picture of time, on a logarithmic scale, against cost; each way as a point with the range of
    both. Empty where there is nothing to compare."""
    if not marks:
        return ""
    first = max(min(mark.p50 for mark in marks), 0.01) / 1.5
    last = max(max(mark.p95 for mark in marks), first * 10) * 1.5
    most = max(mark.high for mark in marks) * 1.1 or 1.0

    def x(seconds: float) -> float:
        share = math.log(max(seconds, first) / first) / math.log(last / first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(usd: float) -> float:
        return _HEIGHT - _BOTTOM - usd / most * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_line(_LEFT, y(0), _WIDTH - _RIGHT, y(0)), _line(_LEFT, y(0), _LEFT, _TOP)]
    for seconds, words in _TIMES.items():
        if first <= seconds <= last:
            parts += [
                _line(x(seconds), y(0), x(seconds), y(0) + 4),
                _words(x(seconds), y(0) + 16, words, "middle"),
            ]
    for usd in (0.0, most / 2.2, most / 1.1):
        parts += [_line(_LEFT - 4, y(usd), _LEFT, y(usd)), _words(_LEFT - 8, y(usd) + 4, f"{usd:.3g}", "end")]
    named: list[tuple[float, float]] = []
    for mark in marks:
        across, down = x(mark.p50), y(mark.cost)
        right, under = x(mark.p95) + 6, down + 4
        while any(abs(right - other) < _NAME and abs(under - line) < _LINE for other, line in named):
            under += _LINE
        named.append((right, under))
        fill = "currentColor" if mark.chosen else "none"
        parts += [
            _line(across, down, x(mark.p95), down),
            _line(across, y(mark.low), across, y(mark.high)),
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{fill}" stroke="currentColor"/>',
            _words(right, under, mark.name, "start"),
        ]
    title = "USD against the time to the last answer: from half of such lists to 95 of 100"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="currentColor">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor"/>'


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'
