"""The page of a job's stored answers, which the dashboard only has with ``show_content``."""

from __future__ import annotations

from attrs import evolve

from smartbatch.dashboard.page import Page, Query, number_of, pages_of
from smartbatch.dashboard.rows_page import Shown, row_section
from smartbatch.dashboard.source import Source
from smartbatch.dashboard.web_application import Refused
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.views.model import Section, View

ROWS_PER_PAGE = 25
REFRESH_SECONDS = 30.0  # stored answers do not change


def page_of_one(source: Source, query: Query) -> Page:
    if not source.show_content:
        raise Refused(
            "403 Forbidden", "This dashboard shows no answers; it was started without show_content."
        )
    job, after = source.jobs.job(query.argument), number_of(query.values.get("after"))
    stored = job.stored(after=after, limit=ROWS_PER_PAGE + 1)
    rows = [
        evolve(RecordedRow.of_result(one.index, one.result), id=one.result.request_id)
        for one in stored[:ROWS_PER_PAGE]
    ]
    last = rows[-1].index if len(stored) > ROWS_PER_PAGE else None
    pages = Section("pages", "Pages", (pages_of("answers", query, "after", last, words=("First", "Next")),))
    sections = [row_section(row, row.index, (), Shown()) for row in rows]
    return Page(View(f"Answers of job {job.key or job.id}", (*sections, pages)), REFRESH_SECONDS)
