"""The pages of one job: key figures, progress, batches, incidents, failed requests, actions and downloads;
and its prompts and answers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

from attrs import evolve

from smartbatch._words import UNKNOWN, money
from smartbatch.chats import Message
from smartbatch.dashboard.action_forms import job_forms
from smartbatch.dashboard.jobs_page import Outlook, deadline_of, outlook, risk_of, time_of
from smartbatch.dashboard.page import Page, Query, number_of, pages_of
from smartbatch.dashboard.rows_page import Shown, row_section
from smartbatch.dashboard.source import Source
from smartbatch.dashboard.web_application import Refused
from smartbatch.errors import JobNotFound, kind_name
from smartbatch.jobs.job import Job
from smartbatch.jobs.payload import decode_params, decode_request, decode_result
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.status import (
    JobStatus,
    batch_parts,
    cost_in_words,
    incident_parts,
    job_tiles,
    progress_chart,
    shown_state,
    status_of,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import FailedRequest
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.results import defects_in_words
from smartbatch.tables.cells import text_of
from smartbatch.tables.result_files import stored_lines, write_stored
from smartbatch.views.model import (
    Cell,
    DataTable,
    Facts,
    Link,
    Links,
    Moment,
    Note,
    Part,
    ProgressBar,
    Section,
    State,
    Tile,
    Value,
    View,
)

KINDS: Mapping[str, str] = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
}
"""Media types by download format."""
BLOCK_BYTES = 1 << 16
MAX_BATCHES = 100
FAILED_PER_PAGE = 50
MAX_INCIDENTS = 50
ROWS_PER_PAGE = 25
ROWS_REFRESH_SECONDS = 30.0  # stored answers do not change
_FORMAT_NAMES = (("jsonl", "JSON lines"), ("csv", "CSV"), ("parquet", "Parquet"))
_MIN_USD = 1e-9  # smaller amounts are rounding errors


def may_download(source: Source, query: Query) -> bool:
    return source.show_content or query.granted == "all"


def formats() -> list[str]:
    return [kind for kind in KINDS if kind != "parquet" or find_spec("pyarrow") is not None]


def results_file(source: Source, job_id: str, format: str) -> tuple[str, Iterator[bytes]]:
    """Return a file name and a job's results in blocks.

    The results are never all in memory: JSON lines are sent as they are read, and tables are written to a
    temporary file.
    """
    job = source.jobs.job(job_id)
    content = _blocks_of_lines(job) if format == "jsonl" else _blocks_of_table(job, format)
    return f"{job.id}.{format}", content


def _blocks_of_lines(job: Job) -> Iterator[bytes]:
    block = bytearray()
    for line in stored_lines(job):
        block += line
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _blocks_of_table(job: Job, format: str) -> Iterator[bytes]:
    with tempfile.TemporaryFile(prefix="smartbatch-") as file:
        write_stored(format, job, file, formulas="escape")  # downloads may be opened in a spreadsheet
        file.seek(0)
        while block := file.read(BLOCK_BYTES):
            yield block


def page(source: Source, query: Query) -> Page:
    store, line = _job_of(source, query)
    now, shards = source.now(), store.overview.shards([line])[line.id]
    incidents = store.overview.incidents(line.id, limit=MAX_INCIDENTS)[::-1]
    times = source.history.turnaround(line.model)
    ends = outlook(line, shards, times, now)
    status = status_of(line, shards, asking=0, incidents=incidents, remaining=None, note=None, wall=now)
    if ends is not None:
        status = evolve(status, remaining=max(0.0, ends.median - now))
    expected = None if ends is None else (ends.median, ends.late)
    sections = (
        Section(
            "job", "Details", _details(source, store, line, status, ends, risk_of(line, shards, times, now))
        ),
        Section(
            "progress", "Progress", (progress_chart(line, shards, now, expected),), empty="No results yet."
        ),
        Section("batches", "Batches", _batches(status), empty="No batches: requests are sent in real time."),
        Section("incidents", "Incidents", _incidents(status), empty="No incidents."),
        Section("failed", "Failed requests", _failed(store, line, query), empty="No failed requests."),
        Section("results", "Results", _downloads(source, line, query)),
        Section("actions", "Actions", job_forms(line, query), is_live=False),
    )
    tiles = (*job_tiles(status), *_budget(line))
    title = f"Job {line.key or line.id}"
    state = shown_state(status.state, cancelling=status.cancelling, failed=status.failed)
    return Page(View(title, sections, state, _subtitle(line), tiles))


def _job_of(source: Source, query: Query) -> tuple[SqlStore, JobRow]:
    store = source.store
    line = None if store is None else store.jobs.get(query.argument)
    if store is None or line is None:
        raise JobNotFound(f"The store {source.place} has no job {query.argument!r:.80}.")
    return store, line


def _subtitle(line: JobRow) -> str:
    route = "" if line.policy.route is None else f", {line.policy.route.value}"
    return f"{line.model}, {line.kind}{route}"


def _budget(line: JobRow) -> Iterator[Tile]:
    budget = line.policy.budget
    if budget is not None:
        reserved = f"{money(line.reserved)} reserved" if line.reserved > _MIN_USD else ""
        bar = ProgressBar("budget of the job", line.cost, budget)
        yield Tile("Budget", money(budget), reserved, progress=bar)


def _details(
    source: Source, store: SqlStore, line: JobRow, status: JobStatus, ends: Outlook | None, risk: float | None
) -> tuple[Part, ...]:
    now, forecast = source.now(), store.overview.forecasts([line]).get(line.no)
    counts: list[Value] = [f"{line.finished:,} of {line.total:,}"]
    if defects := defects_in_words(line):
        counts.append(State(defects, "warn"))
    if line.failed:
        counts.append(State(f"{line.failed:,} failed", "bad"))
    if line.cancelled:
        counts.append(f"{line.cancelled:,} cancelled")
    rows: list[tuple[str, Cell]] = [
        ("requests", tuple(counts)),
        ("time", time_of(line, forecast, ends, now)),
        ("deadline", deadline_of(line, risk, now)),
        ("cost", cost_in_words(status)),
        ("tokens", _tokens(line)),
        ("accepted (UTC)", Moment(line.created_at)),
        ("id", line.id),
        *([("rescued", status.rescue)] if status.rescue else []),
        *((f"label {name}", str(value)) for name, value in sorted(line.metadata.items())),
    ]
    note = None if line.note is None else Note(line.note, "warn")
    return tuple(part for part in (note, Facts(tuple(rows))) if part is not None)


def _tokens(line: JobRow) -> str:
    if line.unpriced and not line.input_tokens + line.output_tokens:
        return UNKNOWN
    return f"{line.input_tokens:,} in, {line.output_tokens:,} out"


def _batches(status: JobStatus) -> tuple[Part, ...]:
    return tuple(batch_parts(status, MAX_BATCHES)) if status.shards else ()


def _incidents(status: JobStatus) -> tuple[Part, ...]:
    return tuple(incident_parts(status.incidents)) if status.incidents else ()


def _failed(store: SqlStore, line: JobRow, query: Query) -> tuple[Part, ...]:
    first = min(number_of(query.values.get("failed")) or 0, line.total)
    found = store.overview.failed(line, first=first, limit=FAILED_PER_PAGE + 1)
    more = found[FAILED_PER_PAGE].ix if len(found) > FAILED_PER_PAGE else None
    links = pages_of("failed requests", query, "failed", more, words=("First", "More"))
    rows = list(_reasons(found[:FAILED_PER_PAGE]))
    table = DataTable.of("Failed requests", "row:number, id, error, reason", rows) if rows else None
    return tuple(part for part in (table, links) if part is not None)


def _reasons(rows: Sequence[FailedRequest]) -> Iterator[tuple[Cell, ...]]:
    for row in rows:
        error = decode_result(row.body, request_id=row.user_id or "").error
        kind, why = (row.outcome, None) if error is None else (kind_name(error), error.message)
        yield row.ix, row.user_id, kind, why


def _downloads(source: Source, line: JobRow, query: Query) -> tuple[Part, ...]:
    if not may_download(source, query):
        return (Note("To download results you need full access, unless content is shown to everyone."),)
    links = tuple(
        Link(name, query.link("download", line.id, format=kind), is_download=True)
        for kind, name in _FORMAT_NAMES
        if kind in formats()
    )
    count = f"{line.finished:,} of {line.total:,} requests have results."
    if source.show_content:
        links = (Link("Show answers", query.link("answers", line.id)), *links)
    return Note(count), Links("Results", links)


def answers_page(source: Source, query: Query) -> Page:
    """The page of a job's prompts and answers, which the dashboard only has with ``show_content``."""
    if not source.show_content:
        raise Refused(
            "403 Forbidden", "This dashboard was started without show_content: it shows no answers."
        )
    store, line = _job_of(source, query)
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
    return Page(View(f"Answers of job {line.key or line.id}", (*sections, pages)), ROWS_REFRESH_SECONDS)


def _text_of(prompt: str | tuple[Message, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message.role}: {text_of(message.content)}" for message in prompt)
