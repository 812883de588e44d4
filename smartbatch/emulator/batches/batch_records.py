"""What the house of batches hands in and out: entries, files, batches, lines, and its two refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

from attrs import field, frozen

from smartbatch.emulator.openai.parsing import Refused
from smartbatch.emulator.provider_api import Done, Task
from smartbatch.emulator.settings import Settings

__all__ = [
    "BatchBackendError",
    "Counts",
    "Entry",
    "Fetched",
    "Line",
    "Lost",
    "Outcome",
    "Problem",
    "RemoteBatch",
    "RemoteFile",
    "State",
    "entry_of",
    "wrong_entry",
]

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
    """Something the house refuses; each API says it in its own way.

    Args:
        reason: ``no_such_file``, ``exists`` (a file of that id), ``enqueued`` (too many tokens),
            ``not_found``, ``not_ended``, ``gone`` (results after their retention) or ``unavailable``
            (results, for a while).
        message: for people.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Lost(Exception):
    """A create whose answer never arrives.

    Args:
        damage: ``reset`` when the batch exists, or will; ``reset_before`` when nothing happened.
    """

    def __init__(self, damage: Literal["reset", "reset_before"]) -> None:
        super().__init__(damage)
        self.damage = damage


@frozen
class Entry:
    """One request of a batch.

    Attributes:
        custom_id: what the client calls it; ``None`` where it has no name.
        prompt: SHA-256 (hexadecimal) of the prompt, as the ledger knows it.
        charge: tokens (of its prompt) it counts for while it waits.
        run: called with 24 hexadecimal digits that name the work; returns its outcome, always the same,
            or raises ``Refused``.
        note: what else the client wrote on it, to be repeated in its result (Gemini's ``metadata``).
    """

    custom_id: str | None
    prompt: str
    charge: int
    run: Callable[[str], Done] = field(repr=False)
    note: Mapping[str, Any] | None = None


def entry_of(
    custom_id: str | None, task: Task, settings: Settings, *, note: Mapping[str, Any] | None = None
) -> Entry:
    """Return the entry of a task that was understood."""
    prompt = hashlib.sha256(task.prompt.encode()).hexdigest()
    tokens = task.prompt_tokens
    return Entry(
        custom_id, prompt, tokens, lambda identity: task.perform(settings, identity, refuse=False), note
    )


def wrong_entry(custom_id: str | None, refused: Refused, *, note: Mapping[str, Any] | None = None) -> Entry:
    """Return the entry of a request that will be refused when its turn comes."""

    def run(identity: str) -> NoReturn:  # noqa: ARG001
        raise refused

    return Entry(custom_id, "", 0, run, note)


@frozen
class Problem:
    """Why a batch fails its validation.

    Attributes:
        code: for programs, such as ``duplicate_custom_id``.
        message: for people.
        line: from 1; ``None`` when it is not about a line.
        param: the field that is wrong, may be ``None``.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@frozen
class RemoteFile:
    """A file.

    Attributes:
        id: its name for programs.
        name: its name for people.
        purpose: ``batch``, or ``batch_output`` of one that holds results.
        data: its bytes; empty for results, which are made when they are fetched.
        created_at: monotonic seconds.
        expires_at: monotonic seconds; infinite when it stays.
        batch: the id of the batch whose results it holds.
        part: which of its lines: see :meth:`~smartbatch.emulator.batches.backend.House.fetch`.
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
    """How many lines of a batch are how far, as the batch tells it (which may be wrong)."""

    total: int
    waiting: int
    succeeded: int
    errored: int
    cancelled: int
    expired: int


@frozen
class RemoteBatch:
    """A batch as it is at one moment. All times are monotonic seconds, ``None`` when not reached.

    Attributes:
        id: without a prefix of the path (Gemini's ``batches/``).
        index: the number of its create among those of its API, from 0.
        api: ``openai``, ``anthropic`` or ``gemini``.
        model: its model; may be empty where lines have their own.
        endpoint: what its lines are sent to.
        label: what the client wrote on it.
        file_id: its input file, or ``None`` when it came inline.
        state: how far it is; ``completed``, ``failed``, ``expired`` and ``cancelled`` are ends.
        odd: a status word nobody knows, to be told instead of the state.
        counts: its lines.
        created_at: when it came to exist.
        started_at: when its first line ran.
        finalizing_at: when its last line had run.
        cancelling_at: when it was cancelled.
        ended_at: when it reached an end.
        expires_at: when what has not run expires.
        problems: why it failed.
        output_id: the file with the lines that succeeded; only after the end, ``None`` without such lines.
            Gemini's has all lines.
        error_id: the file with the other lines; likewise.
        input_tokens: of all lines so far.
        output_tokens: likewise.
    """

    id: str
    index: int
    api: str
    model: str
    endpoint: str
    label: Mapping[str, str]
    file_id: str | None
    state: State
    odd: str | None
    counts: Counts
    created_at: float
    started_at: float | None
    finalizing_at: float | None
    cancelling_at: float | None
    ended_at: float | None
    expires_at: float
    problems: tuple[Problem, ...]
    output_id: str | None
    error_id: str | None
    input_tokens: int
    output_tokens: int

    @property
    def ended(self) -> bool:
        """True at an end."""
        return self.ended_at is not None


@frozen
class Line:
    """One line of a batch's results.

    Attributes:
        custom_id: the id it carries.
        position: of the request it answers, from 0; ``None`` for one nobody asked.
        outcome: what became of it.
        body: the API's answer, or its refusal when ``error`` is ``refused``; else empty.
        status: HTTP status of that body; 200 for a success, 0 when there is none.
        error: why it failed: ``refused`` (see body), ``server`` (send again), ``invalid`` (do not),
            ``no_money``, ``zero`` (a status code of 0) or ``None``.
        identity: 24 hexadecimal digits that name the work.
        torn: ``cut`` or ``garbage`` when the line is to be spoiled; ``None`` when it is whole.
        true: True when it is whole, carries its own answer, and is the first of its id.
        note: of the entry it carries the id of.
    """

    custom_id: str | None
    position: int | None
    outcome: Outcome
    body: bytes = field(repr=False)
    status: int
    error: str | None
    identity: str
    torn: str | None = None
    true: bool = True
    note: Mapping[str, Any] | None = None


@frozen
class Fetched:
    """A download.

    Attributes:
        body: bytes, or pieces of a body whose length is not told beforehand.
        delivered: to be called once it is out, for the ledger.
    """

    body: bytes | list[bytes] = field(repr=False)
    delivered: Callable[[], None] = field(repr=False)
