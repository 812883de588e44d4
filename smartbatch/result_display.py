"""Shows results in a notebook: failures first and grouped, then prompts and answers with their images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from smartbatch._words import short
from smartbatch.chats import texts_in
from smartbatch.errors import InvalidRequest, RowSkipped, kind_name
from smartbatch.failure_groups import FailureGroups, remedy_for
from smartbatch.media import Image, Media
from smartbatch.media_content import BROWSER_IMAGES, type_of_content
from smartbatch.types import Request, Result, Usage

if TYPE_CHECKING:
    from smartbatch.views.model import Cell, DataTable, Picture

MAX_SHOWN_RESULTS = 5
"""Results a notebook shows from each end of a list, and failures before them."""

_MAX_PIXELS = 50_000_000  # larger images would take hundreds of megabytes to scale
_THUMBNAIL_PIXELS = 20_000
_MAX_THUMBNAIL_BYTES = 100_000


def shown_positions(results: Sequence[Result[Any]]) -> tuple[list[int | None], list[int | None]]:
    """Return the positions a notebook shows, failures first; ``None`` stands for results left out."""
    failed: list[int | None] = [at for at, each in enumerate(results) if has_failed(each)]
    left_out = set(failed)
    others: list[int | None] = [at for at in range(len(results)) if at not in left_out]
    if len(failed) > MAX_SHOWN_RESULTS + 1:
        failed = [*failed[:MAX_SHOWN_RESULTS], None]
    if len(others) > 2 * MAX_SHOWN_RESULTS + 1:
        others = [*others[:MAX_SHOWN_RESULTS], None, *others[-MAX_SHOWN_RESULTS:]]
    return failed, others


def has_failed(result: Result[Any]) -> bool:
    return result.error is not None and not isinstance(result.error, RowSkipped)


def result_tables(
    results: Sequence[Result[Any]],
    labels: Sequence[object],
    heading: str,
    request_of: Callable[[Result[Any]], Request | None] | None,
) -> tuple[DataTable, ...]:
    """Return the tables of a list: groups of failures, if any, and some results.

    Args:
        labels: name of each result's row.
        heading: what the labels are.
        request_of: returns the request of a result; ``None`` if no requests are known.
    """
    from smartbatch.views.model import DataTable  # imported late: rarely needed

    groups = FailureGroups()
    for at, each in enumerate(results):
        if each.error is not None and has_failed(each):
            groups.count(kind_name(each.error), each.error.message, str(labels[at]), at)
    found = [
        (group.kind, group.message, group.count, group.example, remedy_for(group.kind).action)
        for group in groups.largest()[: 2 * MAX_SHOWN_RESULTS]
    ]
    columns = f"{heading}, {'' if request_of is None else 'prompt, '}answer, route, tokens, cost:money, error"
    rows: list[tuple[Cell, ...]] = []
    for shown in (at for group in shown_positions(results) for at in group):
        if shown is None:
            rows.append(("…",) * len(columns.split(", ")))
            continue
        prompt = () if request_of is None else (prompt_cell(request_of(results[shown])),)
        rows.append((str(labels[shown]), *prompt, *_row(results[shown])))
    failures = DataTable.of("Failures", "error, message, rows:number, first row, suggested action", found)
    return (*((failures,) if found else ()), DataTable.of("Results", columns, rows))


def prompt_text(request: Request | None) -> str:
    """Return a string prompt, or the last message of a chat with the names of its files in brackets."""
    if request is None:
        return ""
    if isinstance(request.prompt, str):
        return request.prompt
    content = request.prompt[-1].content if request.prompt else ""
    parts = (content,) if isinstance(content, str) else content
    pieces = (f"[{_name(part)}]" if isinstance(part, Media) else "".join(texts_in([part])) for part in parts)
    return " ".join(piece for piece in pieces if piece)


def _name(media: Media) -> str:
    is_path = isinstance(media.source, str) and media.url is None
    return os.path.basename(str(media.source)) if is_path else media.described()


def prompt_cell(request: Request | None) -> Cell:
    """Return the :func:`prompt_text`, followed by thumbnails of the images in the same message."""
    messages = () if request is None or isinstance(request.prompt, str) else request.prompt
    content = messages[-1].content if messages else ""
    thumbnails = (_thumbnail(part) for part in content if isinstance(part, Media))
    return prompt_text(request), *(one for one in thumbnails if one is not None)


def answer_cell(result: Result[Any]) -> Cell:
    """Return the :func:`answer_text`, followed by the files in the answer."""
    return answer_text(result), *(_thumbnail(file) or file.described() for file in result.files)


def _thumbnail(media: Media) -> Picture | None:
    """Return a small image; ``None`` if the file is not an image that a browser shows."""
    from smartbatch.views.model import Picture

    if not isinstance(media, Image) or (media.width or 0) * (media.height or 0) > _MAX_PIXELS:
        return None
    try:
        content = evolve(media, max_pixels=_THUMBNAIL_PIXELS).content()
    except InvalidRequest:  # a URL, a file that has changed, or one that cannot be scaled
        return None
    found = type_of_content(content)
    if found is None or found not in BROWSER_IMAGES or len(content) > _MAX_THUMBNAIL_BYTES:
        return None
    return Picture(media.described(), found, content)


def answer_text(result: Result[Any]) -> str:
    """Return the text of an answer, or a short description of its vector or parsed object."""
    if result.text is not None:
        return result.text
    if result.embedding is not None:
        return f"a vector of length {len(result.embedding):,}"
    return "" if result.parsed is None else short(result.parsed)


def _row(result: Result[Any]) -> tuple[Cell, ...]:
    return (
        answer_cell(result),
        "" if result.route is None else result.route.value,
        tokens_in_words(result.usage),
        "unknown" if result.cost is None else result.cost,
        "" if result.error is None else f"{type(result.error).__name__}: {result.error}",
    )


def tokens_in_words(usage: Usage) -> str:
    """Describe the tokens of a request; estimates are marked, and unknown tokens are not shown as 0."""
    if usage.unknown:
        return f"at least {usage.total_tokens:,}" if usage.total_tokens else "unknown"
    return f"{usage.total_tokens:,}" + (" (estimated)" if usage.estimated else "")
