"""The page of a job's prompts and answers, which the dashboard only has with ``show_content``."""

from __future__ import annotations

from attrs import evolve

from smartbatch.chats import Message
from smartbatch.dashboard.page import Page, Query, number_of, pages_of
from smartbatch.dashboard.rows_page import Shown, row_section
from smartbatch.dashboard.source import Source
from smartbatch.dashboard.web_application import Refused
from smartbatch.errors import JobNotFound
from smartbatch.jobs.payload import decode_params, decode_request
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.tables.cells import text_of
from smartbatch.views.model import Section, View

ROWS_PER_PAGE = 25
REFRESH_SECONDS = 30.0  # stored answers do not change


def page_of_one(source: Source, query: Query) -> Page:
    if not source.show_content:
        raise Refused(
            "403 Forbidden", "This dashboard was started without show_content: it shows no answers."
        )
    store = source.store
    line = None if store is None else store.jobs.get(query.argument)
    if store is None or line is None:
        raise JobNotFound(f"The store {source.place} has no job {query.argument!r:.80}.")
    job, after = source.jobs.job(line.id), number_of(query.values.get("after"))
    stored, shared = job.stored(after=after, limit=ROWS_PER_PAGE + 1), decode_params(line.params)
    last = stored[ROWS_PER_PAGE - 1].index if len(stored) > ROWS_PER_PAGE else None
    requests = store.items.bodies(line.id, [one.index for one in stored])
    sections = []
    for one in stored[:ROWS_PER_PAGE]:
        if one.index not in requests:  # the job was forgotten in the meantime
            continue
        prompt = decode_request(requests[one.index], shared, id=None).prompt
        row = RecordedRow.of_result(one.index, one.result, {"prompt": _text_of(prompt)})
        sections.append(row_section(evolve(row, id=one.result.request_id), row.index, (), Shown()))
    pages = Section("pages", "Pages", (pages_of("answers", query, "after", last, words=("First", "Next")),))
    return Page(View(f"Answers of job {line.key or line.id}", (*sections, pages)), REFRESH_SECONDS)


def _text_of(prompt: str | tuple[Message, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message.role}: {text_of(message.content)}" for message in prompt)
