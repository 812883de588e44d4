"""The pages, in the order of the navigation."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from smartbatch.dashboard import (
    decisions_page,
    errors_page,
    job_page,
    jobs_page,
    models_page,
    now_page,
)
from smartbatch.dashboard.page import PageOf


@frozen
class PageEntry:
    """A page and its name in the navigation.

    Attributes:
        name: for people.
        page: makes it.
        of_one: makes the page of what the path names behind it, such as a job.
    """

    name: str
    page: PageOf
    of_one: PageOf | None = None


PAGES: Mapping[str, PageEntry] = {
    "": PageEntry("Now", now_page.page),
    "jobs": PageEntry("Jobs", jobs_page.page, of_one=job_page.page),
    "decisions": PageEntry("Decisions", decisions_page.page, of_one=decisions_page.page_of_one),
    "models": PageEntry("Models", models_page.page),
    "errors": PageEntry("Errors", errors_page.page),
}
"""By the first part of the path."""
