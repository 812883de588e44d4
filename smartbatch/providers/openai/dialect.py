"""How Batch APIs modelled on OpenAI's differ from each other, as data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import evolve, field, frozen

from smartbatch.errors import ConfigError
from smartbatch.types import Kind

_WINDOW = re.compile(r"(\d{1,4})([hd])")
_CHATS = frozenset({Kind.GENERATE})
_DAY = 86_400.0


@frozen(kw_only=True)
class BatchDialect:
    """One host's variant of the Batch API.

    Attributes:
        kinds: kinds of requests that batches accept.
        max_requests: maximum requests per batch.
        max_bytes: maximum bytes per batch input.
        inline: whether the create call contains the requests, so that no file is uploaded.
        purpose: the purpose of an uploaded input file.
        upload_fields: other fields of the upload form.
        file_id_header: header with the file's id in an answer that redirects the upload to a storage server;
            ``None`` if the form contains the file.
        files_query: query of the list of files; a ``purpose`` in it is replaced by :attr:`purpose`.
        line: fields of an input line: some of ``custom_id``, ``method``, ``url`` and ``body``.
        path: path of the list of batches, and of the create call.
        create: fields of the create call, in order. A string names the value: ``file`` or ``files`` (the
            input's id, or a list with only that id), ``endpoint``, ``model``, ``window``, ``hours`` (the
            window in hours), ``metadata`` (an object with the mark), ``name`` (a string with the mark) or
            ``callback`` (the address for an event when the batch ends; left out if there is none). Any other
            value is sent as it is. Lines have no model if the create call has one.
        window: the time allowed for a batch, such as ``24h`` or ``7d``.
        cancel: added to the path of a batch to cancel it; ``None`` if batches cannot be cancelled.
        deletes: whether ended batches can be deleted.
        listed: field with the batches in a list of batches; ``None`` if the list is a bare array.
        list_query: query of the list of batches.
        cursor: query parameter of the next page: the id of the last entry, a token in the answer, or a page
            number from 0. ``None`` if lists have a single page.
        newest_first: whether the list of batches is known to begin with the newest.
        counters: whether a batch has counters of its requests instead of a status.
        results: whether results are files, pages of JSON, or part of an ended batch.
        detail_errors: whether a refusal may have ``detail`` as its only field, as gateways' answers do.
        labels: whether listed batches show their mark or their input file.
        retention: seconds from the create call until results are deleted.
        storage: bytes that an account may store in files.
        input_files: number of uploaded inputs that an account may store.
    """

    kinds: frozenset[Kind] = frozenset({Kind.GENERATE, Kind.EMBED})
    max_requests: int = 50_000
    max_bytes: int = 200_000_000
    inline: bool = False
    purpose: str = "batch"
    upload_fields: Mapping[str, str] = field(factory=dict)
    file_id_header: str | None = None
    files_query: Mapping[str, str] = {"purpose": "batch", "limit": "10000", "order": "desc"}
    line: tuple[str, ...] = ("custom_id", "method", "url", "body")
    path: str = "/batches"
    create: Mapping[str, Any] = {
        "input_file_id": "file",
        "endpoint": "endpoint",
        "completion_window": "window",
        "metadata": "metadata",
    }
    window: str = "24h"
    cancel: str | None = "/cancel"
    deletes: bool = False
    listed: str | None = "data"
    list_query: Mapping[str, str] = {"limit": "100"}
    cursor: Literal["after", "pagination_token", "page"] | None = "after"
    newest_first: bool = True
    counters: bool = False
    results: Literal["files", "pages", "inline"] = "files"
    detail_errors: bool = False
    labels: bool = True
    retention: float = 29 * _DAY
    storage: float = math.inf
    input_files: float = math.inf

    @property
    def window_hours(self) -> int:
        """The window in hours.

        Raises:
            ConfigError: the window is not in hours or days.
        """
        found = _WINDOW.fullmatch(self.window)
        if found is None:
            raise ConfigError(f"batch_window={self.window!r} is not in hours or days, such as '24h' or '7d'")
        return int(found[1]) * (24 if found[2] == "d" else 1)


_INPUT_SECONDS = "1209600"  # 14 days: expiry of an input that no process deletes
_OUTPUT_EXPIRY = {"anchor": "created_at", "seconds": 2_592_000}  # 30 days

# servers modelled on OpenAI's: some of them, such as Perplexity's, reject files with an expiry
OPENAI_LIKE = BatchDialect()

# OpenAI's OpenAPI document 2.3.0: both expiries are 1 hour to 30 days. Files API reference: a project may
# store 2.5 TB
OPENAI = BatchDialect(
    storage=2.5e12,
    upload_fields={"expires_after[anchor]": "created_at", "expires_after[seconds]": _INPUT_SECONDS},
    create={**OPENAI_LIKE.create, "output_expires_after": _OUTPUT_EXPIRY},
)

# Azure's REST reference and Batch guide: a resource may have 10,000 input files with an expiry, the shortest
# of which is 14 days, and 500 without; batches never expire. No size is documented for all files together
AZURE = evolve(OPENAI, storage=math.inf, input_files=10_000)

# SDK groq 1.7.0: the list has no parameters
GROQ = BatchDialect(
    kinds=_CHATS,
    max_bytes=100_000_000,
    list_query={},
    cursor=None,
    newest_first=False,
)

DASHSCOPE = BatchDialect(max_bytes=100_000_000)

# SDK mistralai 3.7.0; files of at most 512 MB, a million requests
MISTRAL = BatchDialect(
    max_requests=1_000_000,
    max_bytes=512_000_000,
    files_query={"purpose": "batch", "page_size": "100"},
    line=("custom_id", "body"),
    path="/batch/jobs",
    create={
        "input_files": "files",
        "endpoint": "endpoint",
        "model": "model",
        "timeout_hours": "hours",
        "metadata": "metadata",
    },
    deletes=True,
    list_query={"page_size": "100", "order_by": "-created"},
    cursor="page",
    detail_errors=True,
)

# litellm 1.110.2, and xAI's REST reference: files are kept until they are deleted, or for 1 hour to 30 days.
# They have no purpose, and the order of lists is not documented
XAI = BatchDialect(
    kinds=_CHATS,
    upload_fields={"expires_after": _INPUT_SECONDS},
    files_query={"limit": "100"},
    create={"name": "name", "input_file_id": "file"},
    cancel=":cancel",
    listed="batches",
    list_query={"limit": "100"},
    cursor="pagination_token",
    newest_first=False,
    counters=True,
    results="pages",
)

# SDK together 3.1.1 and Batch guide; batches have no metadata, so their input file identifies them
TOGETHER = BatchDialect(
    kinds=_CHATS,
    max_bytes=100_000_000,
    purpose="batch-api",
    file_id_header="x-together-file-id",
    files_query={},
    line=("custom_id", "body"),
    create={"input_file_id": "file", "endpoint": "endpoint", "completion_window": "window"},
    listed=None,
    list_query={},
    cursor=None,
    newest_first=False,
)

# SDK openrouter 1.3.84 and Batch guide; nothing in a listed batch identifies it, and there is no cancel call
OPENROUTER = BatchDialect(
    max_requests=5_000,
    inline=True,
    line=("custom_id", "body"),
    # these fields must precede the requests
    create={"endpoint": "endpoint", "model": "model", "callback_url": "callback"},
    cancel=None,
    deletes=True,
    results="inline",
    labels=False,
)
