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
    """One request of a batch.

    Attributes:
        custom_id: the client's id; ``None`` without one.
        prompt: SHA-256 (hexadecimal) of the prompt, as in the ledger.
        charge: prompt tokens that count for the limit of enqueued tokens.
        run: called with 24 hexadecimal digits that identify the work; returns the same output each time, or
            raises ``ApiError``.
        metadata: what its result repeats (Gemini's ``metadata``).
    """

    custom_id: str | None
    prompt: str
    charge: int
    run: Callable[[str], ModelOutput] = field(repr=False)
    metadata: Mapping[str, Any] | None = None


def parse_entry(
    custom_id: str | None,
    parse: Callable[[], ModelCall],
    settings: EmulatorSettings,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Entry:
    """Return the entry of a request; one that cannot be parsed fails with its error when it runs.

    Args:
        custom_id: the client's id; ``None`` without one.
        parse: parses the request, or raises ``ApiError``.
        settings: seed and scripted answers.
        metadata: what the result repeats.
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
    """A reason why a batch fails its validation.

    Attributes:
        code: for programs, such as ``duplicate_custom_id``.
        message: for people.
        line: number of the line, from 1; ``None`` when it is about the whole batch.
        param: the invalid field; ``None`` when there is no single one.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@frozen
class StoredFile:
    """A file.

    Attributes:
        id: its identifier.
        name: its file name.
        purpose: ``batch``, or ``batch_output`` for results.
        data: its bytes; empty for results, which are built for each download.
        created_at: monotonic seconds.
        expires_at: monotonic seconds; infinite when it does not expire.
        batch: the id of the batch whose results it has.
        part: which of its lines; see :meth:`~smartbatch.emulator.batches.backend.BatchBackend.fetch`.
    """

    id: str
    name: str
    purpose: str
    data: bytes = field(repr=False)
    created_at: float
    expires_at: float
    batch: str | None = None
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
    """The state of a batch at one moment. All times are monotonic seconds, ``None`` when not reached.

    Attributes:
        id: its identifier, without the prefix of a path (Gemini's ``batches/``).
        index: number of its create among those of its API, from 0.
        api: ``openai``, ``anthropic`` or ``gemini``.
        model: its model; empty where each line names its own.
        endpoint: the endpoint of its lines.
        label: metadata or display name given by the client.
        file_id: its input file; ``None`` for inline requests.
        state: ``completed``, ``failed``, ``expired`` and ``cancelled`` are final.
        unknown_status: an undocumented status to report instead of the state (fault ``odd_status``).
        counts: numbers of its lines by state.
        created_at: when it was created.
        started_at: when its first line ran.
        finalizing_at: when its last line had run.
        cancelling_at: when it was cancelled.
        ended_at: when it reached a final state.
        expires_at: when the lines that have not run expire.
        problems: why it failed.
        output_id: the file with the lines that succeeded; ``None`` before the end and without such lines.
            Gemini has one file with all lines.
        error_id: the file with the other lines, likewise.
        input_tokens: input tokens of all lines that have run.
        output_tokens: output tokens of all lines that have run.
    """

    id: str
    index: int
    api: str
    model: str
    endpoint: str
    label: Mapping[str, str]
    file_id: str | None
    state: State
    unknown_status: str | None
    counts: Counts
    created_at: float
    started_at: float | None
    finalizing_at: float | None
    cancelling_at: float | None
    ended_at: float | None
    expires_at: float
    problems: tuple[InputProblem, ...]
    output_id: str | None
    error_id: str | None
    input_tokens: int
    output_tokens: int

    @property
    def ended(self) -> bool:
        """True in a final state."""
        return self.ended_at is not None


@frozen
class OutputLine:
    """One line of a batch's results.

    Attributes:
        custom_id: its id.
        position: position of its request, from 0; ``None`` for a line without a request.
        outcome: its outcome.
        body: the API's answer, or its error when ``error`` is ``refused``; else empty.
        status: HTTP status of that body: 200 for a success, 0 without a body.
        error: why it failed: ``refused`` (see body), ``server`` (a retry may succeed), ``invalid`` (a retry
            cannot succeed), ``no_money``, ``zero`` (a status code of 0), or ``None``.
        identity: 24 hexadecimal digits that identify the work.
        damage: ``cut`` or ``garbage`` for a malformed line; ``None`` for a whole one.
        correct: True when it is whole, has the answer of its own request, and is the first of its id.
        metadata: that of the entry with its id.
    """

    custom_id: str | None
    position: int | None
    outcome: Outcome
    body: bytes = field(repr=False)
    status: int
    error: str | None
    identity: str
    damage: str | None = None
    correct: bool = True
    metadata: Mapping[str, Any] | None = None


@frozen
class Download:
    """A download of results.

    Attributes:
        body: bytes, or the pieces of a body without a content length.
        delivered: called once it has been sent, for the ledger.
    """

    body: bytes | list[bytes] = field(repr=False)
    delivered: Callable[[], None] = field(repr=False)


Account = tuple[str, str]
"""An API's name and the key: the owner of files and batches."""


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
        """Store a file; see :meth:`smartbatch.emulator.batches.backend.BatchBackend.put_file`."""
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
        """Return the files of an account, newest first."""
        return [file for file in reversed(self._files[account].values()) if now < file.expires_at]

    def delete(self, account: Account, file_id: str) -> None:
        """Delete an existing file."""
        del self._files[account][file_id]
