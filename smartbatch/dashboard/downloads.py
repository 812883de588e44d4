"""The results of a job as a file: JSON lines as they are read, tables by a temporary one; never in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.jobs.job import Job
from smartbatch.tables.result_files import stored_lines, write_stored

KINDS: Mapping[str, str] = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
}
"""The formats, and the type of each."""
BLOCK = 1 << 16
"""Bytes that are sent at a time."""


def may_download(source: Source, query: Query) -> bool:
    """Whether a request may have the answers of a job: content is shown, or it may do everything."""
    return source.show_content or query.granted == "all"


def formats() -> list[str]:
    """Return the formats that can be written here."""
    return [kind for kind in KINDS if kind != "parquet" or find_spec("pyarrow") is not None]


def results_file(source: Source, job_id: str, format: str) -> tuple[str, Iterator[bytes]]:
    """Return the name of a file of results and its content, in blocks.

    Args:
        format: one of :data:`KINDS`.

    Raises:
        JobNotFound: there is no such job.
        StoreError: the store cannot be read.
    """
    job = source.jobs.job(job_id)
    content = _blocks_of_lines(job) if format == "jsonl" else _blocks_of_table(job, format)
    return f"{job.id}.{format}", content


def _blocks_of_lines(job: Job) -> Iterator[bytes]:
    block = bytearray()
    for line in stored_lines(job):
        block += line
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _blocks_of_table(job: Job, format: str) -> Iterator[bytes]:
    with tempfile.TemporaryFile(prefix="smartbatch-") as file:
        write_stored(format, job, file, formulas="escape")  # opened by a click, in a spreadsheet
        file.seek(0)
        while block := file.read(BLOCK):
            yield block
