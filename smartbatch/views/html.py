"""Views as HTML: a page of the dashboard, a report that is one file, and the output of a notebook's cell.

Templates escape every text. What cannot be shown, or would turn the text after it around, is replaced before,
so no name, id or error text can add an element, an attribute or an address.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from smartbatch import _words as words
from smartbatch.views import model
from smartbatch.views.drawings import HEIGHT, WIDTH, drawing
from smartbatch.views.model import Cell, Kind, Section, View

_REPLACED = "\ufffd"
_CLEAN: dict[int, str] = {
    **{code: _REPLACED for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n\r"},
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACED),  # halves of a pair, which no encoding has
    **dict.fromkeys((0x202D, 0x202E), _REPLACED),  # overrides of the direction of a text
}
_CELLS = (model.State, model.Link, model.ProgressBar, model.Moment, model.Form, tuple)
_PARTS = (
    model.ValueDistribution,
    model.Note,
    model.Bullets,
    model.Facts,
    model.DataTable,
    model.Folded,
    model.Links,
    model.Form,
)
_NUMERIC = ("number", "money", "duration")
_MAX_NOTEBOOK = 240
"""Characters of a text in a notebook."""


def render(template: str, /, **values: Any) -> str:
    """Return a document made of a template of ``views/templates``."""
    return _environment().get_template(template).render(**values)


def live_parts(view: View) -> dict[str, str]:
    """Return what is renewed while somebody looks, by the ids of the elements whose content it is."""
    parts: Any = _environment().get_template("parts.html").module
    found = {"head": str(parts.head(view))}
    return found | {one.id: str(parts.body(one)) for one in view.sections if one.is_live}


def report(view: View) -> str:
    """Return a document that is one file: its style sheet is in it, and nothing is loaded or run."""
    return render("report.html", view=view, styles=styles(), source=source_of(styles()))


def notebook(view: View) -> str:
    """Return a view for the output of a cell: plain HTML, whose few styles are in its elements."""
    return render("notebook.html", view=view)


@cache
def styles() -> Markup:
    """Return the style sheet of pages and reports."""
    return Markup(files("smartbatch.views").joinpath("views.css").read_text("utf-8"))


def source_of(text: str) -> str:
    """Return how a policy allows a style sheet that stands in the document, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("smartbatch.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters |= {"shown": _shown, "sort_key": _sort_key, "drawing": drawing, "cut": _cut}
    environment.filters |= {"share": words.share, "moment": words.moment, "empty": _is_empty}
    environment.globals |= {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "NUMERIC": _NUMERIC}
    environment.tests |= {kind.__name__.lower(): _is_one(kind) for kind in {*_CELLS, *_PARTS}}
    return environment


def _is_one(kind: type) -> Any:
    return lambda value: isinstance(value, kind)


def _clean(value: object) -> object:
    """Return what a template puts into a document; ``None`` is nothing."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else str(value).translate(_CLEAN)


def _shown(value: Any, kind: Kind = "text") -> str:
    """Return a plain value of a cell in words."""
    if value is None or value == "":
        return "–"
    if isinstance(value, str):
        return value
    if kind == "time":
        return words.moment(value)
    if kind == "money":
        return words.money(value)
    return words.duration(value) if kind == "duration" else words.number(value)


def _sort_key(cell: Cell) -> str:
    """Return what a browser sorts the rows of a table by; empty where the text of the cell does."""
    first = cell[0] if isinstance(cell, tuple) and cell else cell
    if isinstance(first, model.ProgressBar):
        return f"{first.share:.6g}"
    if isinstance(first, model.Moment):
        return f"{first.at:.3f}"
    return f"{first:.15g}" if isinstance(first, int | float) else ""


def _is_empty(section: Section) -> bool:
    """Whether a section has nothing to show."""
    charts = (model.BarsOverTime, model.ProgressOverTime, model.ValueDistribution)
    return not any(not isinstance(part, charts) or drawing(part) is not None for part in section.parts)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_NOTEBOOK else f"{text[: _MAX_NOTEBOOK - 1]}…"
