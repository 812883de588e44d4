"""The report of a job, or of the output of a run, as one file of HTML."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import final

from smartbatch._html import el
from smartbatch.reports.components import standalone
from smartbatch.reports.report_data import ReportData, shortened
from smartbatch.reports.report_sections import Bounds, body

MOST_BYTES = 300_000
"""Of a report, whatever the size of the job."""
_TRIES = (Bounds(), Bounds(rows=12, timeline=12, text=160), Bounds(rows=4, timeline=0, text=60))
"""How much of everything is shown, where the one before is too much."""


@final
class Report:
    """What was asked, what came, when, by which route and why, and what it cost. It holds no prompt and no
    answer, loads nothing and runs nothing. Made by ``job.report()``; a notebook shows it.

    Attributes:
        data: the figures.
    """

    def __init__(self, data: ReportData) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<Report {self.data.title[:80]} {self.data.total:,} requests>"

    @cached_property
    def html(self) -> str:
        """The whole file, at most 300 kB."""
        for bounds in _TRIES:
            data = shortened(self.data, bounds.text)
            page = standalone(f"{data.title} – smartbatch report", body(data, bounds))
            if len(page.encode()) <= MOST_BYTES:
                break
        return page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; one that is there already is replaced."""
        Path(path).write_text(self.html, "utf-8")

    def _repr_html_(self) -> str:
        """Return the report in a frame of its own, as its style sheet must not reach the notebook."""
        return el("iframe", srcdoc=self.html, sandbox=True, width="100%", height=800, title="report")
