"""The values passed to and returned by the batch backend, and its errors."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

from attrs import field, frozen

from smartbatch.emulator.parsed_requests import ApiError, ModelCall, ModelOutput
from smartbatch.emulator.settings import EmulatorSettings

State: TypeAlias = Literal[
    "validating",
    "queued",
    "running",
    "finalizing",
    "cancelling",
    "completed",
    "failed",
    "expired",
    "cancelled",
]
Outcome: TypeAlias = Literal["succeeded", "errored", "cancelled", "expired"]


class BatchBackendError(Exception):
    """An error of the backend. Each API returns it in its own format.

    Args:
        reason: ``no_such_file``, ``exists`` (a file of that ID), ``storage`` (too many bytes of files),
            ``enqueued`` (too many tokens), ``not_found``, ``not_ended``, ``gone`` (results after their
            retention) or ``unavailable`` (results, temporarily).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@frozen
class IdFormat:
    """How an API writes the IDs of its batches and files.

    Attributes:
        batch: makes the ID of a batch from 24 hexadecimal digits.
        file: makes the ID of a file from 24 hexadecimal digits.
        always_both: whether a finished batch has both result files, even if one is empty.
    """

    batch: Callable[[str], str] = "batch_".__add__
    file: Callable[[str], str] = "file-".__add__
    always_both: bool = False


class AnswerLost(Exception):
    """A create call whose answer does not reach the client.

    Args:
        damage: ``reset`` if the batch exists or will exist; ``reset_before`` if nothing was created.
    """

    def __init__(self, damage: Literal["reset", "reset_before"]) -> None:
        super().__init__(damage)
        self.damage = damage


@frozen
class Entry:
    custom_id: str | None
    prompt: str  # SHA-256 of the prompt (hexadecimal), as in the ledger
    charge: int  # prompt tokens charged to the enqueued-token limit
    # called with 24 hexadecimal digits that identify the work; returns the same output each time, or raises
    # ``ApiError``
    run: Callable[[str], ModelOutput] = field(repr=False)
    metadata: Mapping[str, Any] | None = None  # repeated in its result (Gemini)
    call: ModelCall | None = field(default=None, repr=False)  # ``None`` without a prompt cache


def parse_entry(
    custom_id: str | None,
    parse: Callable[[], ModelCall],
    settings: EmulatorSettings,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Entry:
    """Return the entry of a request. A request that cannot be parsed fails when it runs.

    Args:
        parse: parses the request, or raises ``ApiError``.
        metadata: repeated in the result.
    """
    try:
        call = parse()
    except ApiError as error:
        api_error = error  # the name in the except clause is deleted at its end

        def fail(_identity: str) -> NoReturn:
            raise api_error

        return Entry(custom_id, "", 0, fail, metadata)
    prompt = hashlib.sha256(call.prompt.encode()).hexdigest()
    checked = not call.has_uploads

    def run(identity: str) -> ModelOutput:
        nonlocal checked
        if not checked:
            parse()  # fails if a file is gone when the line runs
            checked = True
        return call.run(settings, identity, refuse=False)

    return Entry(custom_id, prompt, call.prompt_tokens, run, metadata, call)


@frozen
class InputProblem:
    code: str  # such as ``duplicate_custom_id``
    message: str
    line: int | None = None  # line number, from 1; ``None`` if the problem concerns the whole batch
    param: str | None = None  # the invalid field, if there is only one


@frozen
class StoredFile:
    id: str
    name: str
    purpose: str  # ``batch``, or ``batch_output`` for results
    data: bytes = field(repr=False)  # empty for results, which are built for each download
    created_at: float  # monotonic seconds
    expires_at: float  # monotonic seconds; infinite if it does not expire
    batch: str | None = None  # the batch whose results it contains
    # the part of the results; see :meth:`~smartbatch.emulator.batches.backend.BatchBackend.fetch`
    part: str | None = None
    number: int = 0  # number of the upload, from 0; 0 for results


def upload_event(api: str, file: StoredFile) -> dict[str, Any]:
    """Return the ledger event of an upload; see :class:`~smartbatch.emulator.ledger.UploadRecord`."""
    return {
        "file": file.number,
        "event": "uploaded",
        "id": file.id,
        "api": api,
        "name": file.name,
        "purpose": file.purpose,
        "bytes": len(file.data),
        "sha256": hashlib.sha256(file.data).hexdigest(),
        "at": file.created_at,
        "expires_at": file.expires_at if math.isfinite(file.expires_at) else None,
    }


@frozen
class Counts:
    """Numbers of lines by state, as reported by the batch. The fault ``wrong_counts`` falsifies them."""

    total: int
    waiting: int
    succeeded: int
    errored: int
    cancelled: int
    expired: int


@frozen
class BatchSnapshot:
    """The state of a batch at one point in time. Times are monotonic seconds, ``None`` if not reached."""

    id: str  # without a path prefix (Gemini's ``batches/``)
    index: int  # number among the create calls of its API, from 0
    api: str
    model: str  # empty if each line names its own model
    endpoint: str
    label: Mapping[str, str]  # metadata or display name given by the client
    file_id: str | None  # the input file; ``None`` for inline requests
    state: State  # ``completed``, ``failed``, ``expired`` and ``cancelled`` are final
    unknown_status: str | None  # an undocumented status reported instead of the state (fault ``odd_status``)
    counts: Counts
    created_at: float
    started_at: float | None
    finalizing_at: float | None  # when its last line finished
    cancelling_at: float | None  # when it was canceled
    ended_at: float | None
    expires_at: float  # when lines that have not run expire
    problems: tuple[InputProblem, ...]  # why it failed
    # file with the successful lines; ``None`` before the end or without such lines. Gemini has one file with
    # all lines
    output_id: str | None
    error_id: str | None  # file with the other lines; ``None`` if there are none
    input_tokens: int
    output_tokens: int
    cached_tokens: int  # the part of the input read from the prompt cache
    windows: float = 1.0  # time until it expires, in multiples of the setting ``batch_window``

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


@frozen
class BatchEnd:
    api: str
    index: int  # of the batch's create call
    batch_id: str
    state: str  # ``completed``, ``failed``, ``expired`` or ``cancelled``
    callbacks: tuple[str, ...] = ()  # addresses that its create call named for this event


@frozen
class OutputLine:
    custom_id: str | None
    position: int | None  # position of its request, from 0; ``None`` for a line without a request
    outcome: Outcome
    # the API's answer, or its error if ``error`` is ``refused``; otherwise empty
    body: bytes = field(repr=False)
    status: int  # HTTP status of the body: 200 for a success, 0 without a body
    # why it failed: ``refused`` (see body), ``server`` (a retry may succeed), ``invalid`` (a retry cannot
    # succeed), ``no_money``, ``zero`` (a status code of 0), or ``None``
    error: str | None
    identity: str  # 24 hexadecimal digits that identify the work
    damage: str | None = None  # ``cut`` or ``garbage`` for a malformed line
    # whether the line is whole, has the answer of its own request, and is the first with its ID
    correct: bool = True
    metadata: Mapping[str, Any] | None = None  # metadata of the entry with its ID


@frozen
class Download:
    body: bytes | list[bytes] = field(repr=False)  # bytes, or chunks of a body without a content length
    # called once the download has been sent, to update the ledger
    delivered: Callable[[], None] = field(repr=False)


Account = tuple[str, str]  # API name and key: the owner of files and batches


class Files:
    """All uploaded files. Callers hold the backend's lock.

    Args:
        name: returns 24 hexadecimal digits for the number of an upload.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._files: dict[Account, dict[str, StoredFile]] = defaultdict(dict)
        self._uploads = 0

    def put(
        self,
        account: Account,
        name: str,
        data: bytes,
        now: float,
        *,
        identity: str | None,
        purpose: str,
        lifetime: float = math.inf,
        ids: IdFormat,
    ) -> StoredFile:
        files = self._files[account]
        number = self._uploads
        if identity is None:
            identity = ids.file(self._name(number))
        elif self.get(account, identity, now) is not None:
            raise BatchBackendError("exists", f"File {identity} already exists.")
        files.pop(identity, None)  # a file that replaces an expired one counts as the newest
        self._uploads += 1
        files[identity] = StoredFile(identity, name, purpose, data, now, now + lifetime, number=number)
        return files[identity]

    def get(self, account: Account, file_id: str, now: float) -> StoredFile | None:
        file = self._files[account].get(file_id)
        return file if file is not None and now < file.expires_at else None

    def had(self, account: Account, file_id: str) -> bool:
        """Whether there is a file, even if it has expired."""
        return file_id in self._files[account]

    def all(self, account: Account, now: float) -> list[StoredFile]:
        return [file for file in reversed(self._files[account].values()) if now < file.expires_at]

    def delete(self, account: Account, file_id: str) -> None:
        del self._files[account][file_id]
