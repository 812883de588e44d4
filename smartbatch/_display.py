"""How values are shown: reprs of bounded length, and HTML for notebooks, without script and style sheet, so a
saved notebook shows what the live one did."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smartbatch._html import Html

MOST = 240
"""Characters of a text in a table of HTML."""
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


def paragraph(text: str) -> Html:
    """Return a text as HTML."""
    return _el("p", text)


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """Return named facts as a table of two columns."""
    return _el("table", (_el("tr", _el("th", name), _cell(words)) for name, words in rows))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], chosen: int | None = None) -> Html:
    """Return a table; the row at position ``chosen`` is bold."""
    lines = (_el("tr", (_cell(cell, bold=at == chosen) for cell in row)) for at, row in enumerate(rows))
    return _el("table", _el("thead", _el("tr", (_el("th", title) for title in head))), _el("tbody", lines))


def bar(done: int, total: int) -> Html:
    """Return a bar that is filled as far as ``done`` of ``total``."""
    return _el("progress", value=done, max=max(total, 1), style="width: 20em")


def _cell(text: object, *, bold: bool = False) -> Html:
    words = cut(str(text))
    return _el("td", _el("b", words) if bold else words, style="text-align: left")


def _el(tag: str, *children: Any, **attributes: Any) -> Html:
    """Return an element; what makes elements is imported when a notebook shows the first one."""
    from smartbatch._html import el

    return el(tag, *children, **attributes)
