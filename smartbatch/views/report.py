"""A report: a view as one file of HTML, small enough to send."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, final

from attrs import evolve, fields_dict, frozen, has

from smartbatch.views.html import render, report
from smartbatch.views.model import DataTable, Facts, View

MAX_BYTES = 300_000
"""Size of a report, whatever the size of the job."""

_T = TypeVar("_T")


@frozen
class _Bounds:
    rows: int  # of a table, or of facts
    text: int  # characters of a name or a message


_TRIES = (_Bounds(40, 240), _Bounds(12, 160), _Bounds(4, 60))


@final
class Report:
    """What was requested, what came back, when, by which route and why, and what it cost. It holds no prompt
    and no answer, loads nothing and runs nothing. Made by ``job.report()``; a notebook shows it.

    Attributes:
        view: what it shows: a title, key figures, and sections of facts, tables and charts.
        requests: how many it is about.
    """

    def __init__(self, view: View, requests: int) -> None:
        self.view = view
        self.requests = requests

    def __repr__(self) -> str:
        return f"<Report {self.view.title[:80]} {self.requests:,} requests>"

    @cached_property
    def html(self) -> str:
        """The whole file, at most 300 kB: of more rows and longer texts the first are shown."""
        for bounds in _TRIES:
            page = report(_bounded(self.view, bounds))
            if len(page.encode()) <= MAX_BYTES:
                break
        return page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; an existing file is replaced."""
        Path(path).write_text(self.html, "utf-8")

    def _repr_html_(self) -> str:
        """Return the report in a frame of its own, as its style sheet must not reach the notebook."""
        return render("frame.html", document=self.html)


def _bounded(value: _T, bounds: _Bounds) -> _T:
    """Return a part of a view with fewer rows and shorter texts."""
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
