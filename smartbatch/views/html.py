"""Renders views as HTML: dashboard pages, reports and notebook output.

Templates escape all text. Characters that cannot be shown or would reverse the direction of text are
replaced first, so no name, id or error text can add an element, an attribute or an address.
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, final

from attrs import evolve, fields_dict, frozen, has
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from smartbatch import _words as words
from smartbatch.views import model
from smartbatch.views.drawings import HEIGHT, WIDTH, drawing
from smartbatch.views.model import Cell, DataTable, Facts, Kind, Section, View

_REPLACEMENT = "\ufffd"
_CLEAN: dict[int, str] = {
    **{code: _REPLACEMENT for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n\r"},
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),  # lone surrogates
    **dict.fromkeys((0x202D, 0x202E), _REPLACEMENT),  # overrides of the text direction
}
_CELLS = (
    *(model.State, model.Link, model.ProgressBar, model.Moment, model.Picture, model.Thumbnail, model.Form),
    tuple,
)
_PARTS = (
    model.ValueDistribution,
    model.Note,
    model.LongText,
    model.Bullets,
    model.Facts,
    model.DataTable,
    model.Folded,
    model.Links,
    model.Form,
)
_NUMERIC = ("number", "money", "duration")
_MAX_NOTEBOOK_CHARACTERS = 240  # per text


def render(template: str, /, **values: Any) -> str:
    """Render a template from ``views/templates``."""
    return _environment().get_template(template).render(**values)


def live_parts(view: View) -> dict[str, str]:
    """Return the HTML of the elements that are updated while the page is open, by element id."""
    parts: Any = _environment().get_template("parts.html").module
    found = {"head": str(parts.head(view))}
    return found | {one.id: str(parts.body(one)) for one in view.sections if one.is_live}


def report(view: View) -> str:
    """Return a self-contained document that loads no other files and runs no scripts."""
    return render("report.html", view=view, styles=styles(), source=source_of(styles()))


def notebook(view: View) -> str:
    """Render a view for a notebook cell, as plain HTML with a few inline styles."""
    return render("notebook.html", view=view)


@cache
def styles() -> Markup:
    return Markup(files("smartbatch.views").joinpath("views.css").read_text("utf-8"))


def source_of(text: str) -> str:
    """Return the CSP source expression that allows this inline style sheet only."""
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
    if value is None:
        return ""
    return value if isinstance(value, Markup) else str(value).translate(_CLEAN)


def _shown(value: Any, kind: Kind = "text") -> str:
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
    """Return the key by which a browser sorts rows; empty if they are sorted by the cell's text."""
    first = cell[0] if isinstance(cell, tuple) and cell else cell
    if isinstance(first, model.ProgressBar):
        return f"{first.share:.6g}"
    if isinstance(first, model.Moment):
        return f"{first.at:.3f}"
    return f"{first:.15g}" if isinstance(first, int | float) else ""


def _is_empty(section: Section) -> bool:
    charts = (model.BarsOverTime, model.ProgressOverTime, model.ValueDistribution)
    return not any(not isinstance(part, charts) or drawing(part) is not None for part in section.parts)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_NOTEBOOK_CHARACTERS else f"{text[: _MAX_NOTEBOOK_CHARACTERS - 1]}…"


MAX_BYTES = 300_000  # per report

_T = TypeVar("_T")


@frozen
class _Bounds:
    rows: int  # per table
    text: int  # characters per name or message


_TRIES = (_Bounds(40, 240), _Bounds(12, 160), _Bounds(4, 60))


@final
class Report:
    """A report on requests: what was sent and returned, when, by which route and why, and at what cost.

    It contains no prompts and no answers, loads no other files and runs no scripts. Created by
    ``job.report()``; notebooks display it.

    Attributes:
        view: its title, key figures, and sections of facts, tables and charts.
        requests: number of requests it covers.
    """

    def __init__(self, view: View, requests: int) -> None:
        self.view = view
        self.requests = requests

    def __repr__(self) -> str:
        return f"<Report {self.view.title[:80]} {self.requests:,} requests>"

    @cached_property
    def html(self) -> str:
        """The report as HTML, at most 300 kB: long tables and texts are cut."""
        for bounds in _TRIES:
            page = report(_bounded(self.view, bounds))
            if len(page.encode()) <= MAX_BYTES:
                break
        return page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file, replacing any existing one."""
        Path(path).write_text(self.html, "utf-8")

    def _repr_html_(self) -> str:
        """Return the report in a frame, so that its style sheet does not affect the notebook."""
        return render("frame.html", document=self.html)


def _bounded(value: _T, bounds: _Bounds) -> _T:
    found: Any = value
    if isinstance(found, str):
        found = found if len(found) <= bounds.text else f"{found[: bounds.text - 1]}…"
    elif isinstance(found, tuple):
        found = tuple(_bounded(each, bounds) for each in found)
    elif has(type(found)):
        left = len(found.rows) - bounds.rows if isinstance(found, DataTable | Facts) else 0
        if left > 0:
            found = evolve(found, rows=found.rows[: bounds.rows])
        if left > 0 and isinstance(found, DataTable):
            found = evolve(found, caption=f"{found.caption} (the first {bounds.rows}; {left:,} left out)")
        texts = {name: getattr(found, name) for name in fields_dict(type(found))}
        found = evolve(found, **{name: _bounded(each, bounds) for name, each in texts.items()})
    result: _T = found
    return result
