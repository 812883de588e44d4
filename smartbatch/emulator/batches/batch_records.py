"""The values that the batch backend takes and returns: entries, files, batches, lines, and its errors."""

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
    """An error of the backend; each API returns it in its own shape.

    Args:
        reason: ``no_such_file``, ``exists`` (a file of that id), ``enqueued`` (too many tokens),
            ``not_found``, ``not_ended``, ``gone`` (results after their retention) or ``unavailable``
            (results, temporarily).
        message: for people.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class AnswerLost(Exception):
    """A create whose answer does not reach the client.

    Args:
        damage: ``reset`` when the batch exists or will exist; ``reset_before`` when nothing was created.
    """

    def __init__(self, damage: Literal["reset", "reset_before"]) -> None:
        super().__init__(damage)
        self.damage = damage


@frozen
class Entry:
    """One request of a batch."""

    custom_id: str | None  # the client's id, if any
    prompt: str  # SHA-256 (hexadecimal) of the prompt, as in the ledger
    charge: int  # prompt tokens that count for the limit of enqueued tokens
    # called with 24 hexadecimal digits that identify the work; returns the same output each time, or raises
    # ``ApiError``
    run: Callable[[str], ModelOutput] = field(repr=False)
    metadata: Mapping[str, Any] | None = None  # repeated in its result (Gemini)


def parse_entry(
    custom_id: str | None,
    parse: Callable[[], ModelCall],
    settings: EmulatorSettings,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Entry:
    """Return the entry of a request; one that cannot be parsed fails with its error when it runs.

    Args:
        custom_id: the client's id, if any.
        parse: parses the request, or raises ``ApiError``.
        settings: seed and scripted answers.
        metadata: repeated in the result.
    """
    try:
        call = parse()
    except ApiError as error:
        api_error = error  # the name in the except clause ends with it

        def fail(_identity: str) -> NoReturn:
            raise api_error

        return Entry(custom_id, "", 0, fail, metadata)
    prompt = hashlib.sha256(call.prompt.encode()).hexdigest()
    tokens = call.prompt_tokens
    return Entry(
        custom_id, prompt, tokens, lambda identity: call.run(settings, identity, refuse=False), metadata
    )


@frozen
class InputProblem:
    """A reason why a batch fails its validation."""

    code: str  # for programs, such as ``duplicate_custom_id``
    message: str  # for people
    line: int | None = None  # number of the line, from 1; None if it is about the whole batch
    param: str | None = None  # the invalid field, if there is a single one


@frozen
class StoredFile:
    """A file."""

    id: str
    name: str
    purpose: str  # ``batch``, or ``batch_output`` for results
    data: bytes = field(repr=False)  # its bytes; empty for results, which are built for each download
    created_at: float  # monotonic seconds
    expires_at: float  # monotonic seconds; infinite if it does not expire
    batch: str | None = None  # the id of the batch whose results it has
    # which of its lines; see :meth:`~smartbatch.emulator.batches.backend.BatchBackend.fetch`
    part: str | None = None


@frozen
class Counts:
    """Numbers of lines by state, as the batch reports them (the fault ``wrong_counts`` falsifies them)."""

    total: int
    waiting: int
    succeeded: int
    errored: int
    cancelled: int
    expired: int


@frozen
class BatchSnapshot:
    """The state of a batch at one moment. All times are monotonic seconds, ``None`` when not reached."""

    id: str  # its identifier, without the prefix of a path (Gemini's ``batches/``)
    index: int  # counts the creates of its API, from 0
    api: str  # ``openai``, ``anthropic`` or ``gemini``
    model: str  # its model; empty where each line names its own
    endpoint: str  # the endpoint of its lines
    label: Mapping[str, str]  # metadata or display name given by the client
    file_id: str | None  # its input file; ``None`` for inline requests
    state: State  # ``completed``, ``failed``, ``expired`` and ``cancelled`` are final
    unknown_status: str | None  # an undocumented status to report instead of the state (fault ``odd_status``)
    counts: Counts  # numbers of its lines by state
    created_at: float  # when it was created
    started_at: float | None  # when its first line ran
    finalizing_at: float | None  # when its last line finished
    cancelling_at: float | None  # when it was cancelled
    ended_at: float | None  # when it reached a final state
    expires_at: float  # when the lines that have not run expire
    problems: tuple[InputProblem, ...]  # why it failed
    # the file with the lines that succeeded; ``None`` before the end and without such lines. Gemini has one
    # file with all lines
    output_id: str | None
    error_id: str | None  # the file with the other lines; None if there are none
    input_tokens: int  # input tokens of all lines that have run
    output_tokens: int  # output tokens of all lines that have run

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


@frozen
class OutputLine:
    """One line of a batch's results."""

    custom_id: str | None
    position: int | None  # position of its request, from 0; ``None`` for a line without a request
    outcome: Outcome  # its outcome
    # the API's answer, or its error when ``error`` is ``refused``; else empty
    body: bytes = field(repr=False)
    status: int  # HTTP status of that body: 200 for a success, 0 without a body
    # why it failed: ``refused`` (see body), ``server`` (a retry may succeed), ``invalid`` (a retry cannot
    # succeed), ``no_money``, ``zero`` (a status code of 0), or ``None``
    error: str | None
    identity: str  # 24 hexadecimal digits that identify the work
    damage: str | None = None  # ``cut`` or ``garbage`` for a malformed line; ``None`` for a whole one
    # true if it is whole, has the answer of its own request, and is the first of its id
    correct: bool = True
    metadata: Mapping[str, Any] | None = None  # metadata of the entry with its id


@frozen
class Download:
    """A download of results."""

    body: bytes | list[bytes] = field(repr=False)  # bytes, or the pieces of a body without a content length
    delivered: Callable[[], None] = field(repr=False)  # called once it has been sent, for the ledger


Account = tuple[str, str]  # an API's name and the key: the owner of files and batches


class Files:
    """All uploaded files. Callers hold the backend's lock.

    Args:
        name: makes a file id from the number of an upload.
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
    ) -> StoredFile:
        files = self._files[account]
        if identity is None:
            identity = self._name(self._uploads)
            self._uploads += 1
        elif self.get(account, identity, now) is not None:
            raise BatchBackendError("exists", f"File {identity} already exists.")
        files.pop(identity, None)  # a file that replaces an expired one is the newest
        files[identity] = StoredFile(identity, name, purpose, data, now, now + lifetime)
        return files[identity]

    def get(self, account: Account, file_id: str, now: float) -> StoredFile | None:
        """Return a file; ``None`` for an unknown, deleted or expired one."""
        file = self._files[account].get(file_id)
        return file if file is not None and now < file.expires_at else None

    def all(self, account: Account, now: float) -> list[StoredFile]:
        return [file for file in reversed(self._files[account].values()) if now < file.expires_at]

    def delete(self, account: Account, file_id: str) -> None:
        del self._files[account][file_id]
