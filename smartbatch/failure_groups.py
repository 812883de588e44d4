"""Groups failures by kind and message, and says what to do about each kind."""

from __future__ import annotations

import re
from typing import Final

from attrs import define, frozen

MAX_PATTERN_CHARACTERS = 200
"""Maximum characters of the pattern by which error messages are grouped."""
_MAX_SCANNED_CHARACTERS: Final = 1_000  # the time of a search grows with the square of the length
OTHER_MESSAGES = "(further messages)"
"""The message under which errors are counted once there are too many groups."""
MAX_FAILURE_GROUPS = 200
"""Further groups are merged into one group per kind."""
_IDS = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # UUIDs
    r"|\b(?=[a-z]*\d|[a-z]*[A-Z])[A-Za-z0-9]{16,}\b"  # random characters
    r"|\b[a-z]{2,12}_(?=\w*\d)\w{6,}"  # req_0123abcd
    r"|\b(?:job|shard|batch|file|msg|resp|row)-(?=[\w-]*\d)[\w-]+"
)
_NUMBERS = re.compile(r"(?<![\w.-])[+-]?\d[\w.,:%/-]*(?:\s\d[\d.,]*)*")
_STATUS = re.compile(r"[1-5]\d\d[,:.]?")


def pattern_of(message: str) -> str:
    """Return the message with ids and numbers replaced by ``#``, so that equal causes give equal messages.

    A three-digit number stays, because it may be an HTTP status.
    """
    text = _IDS.sub("#", message[:_MAX_SCANNED_CHARACTERS])
    text = _NUMBERS.sub(lambda found: found[0] if _STATUS.fullmatch(found[0]) else "#", text)
    return text if len(text) <= MAX_PATTERN_CHARACTERS else text[: MAX_PATTERN_CHARACTERS - 1] + "…"


@define
class FailureGroup:
    """Requests with the same kind of error and the same message."""

    kind: str  # an ErrorKind, or the error's class
    message: str  # the part that all messages share
    example: str  # the name of one request
    row: int  # the position of that request, the lowest in the group
    text: str  # the message of that request
    is_unsent: bool = False  # whether it was never sent
    count: int = 0


class FailureGroups:
    """Counts failures by kind and message. Beyond a limit, further messages are counted by kind only."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], FailureGroup] = {}

    def count(self, kind: str, message: str, example: str, row: int = 0, *, is_unsent: bool = False) -> None:
        """Add a failed request, named ``example``. A group keeps the example with the lowest ``row``."""
        key = (kind, pattern_of(message))
        if key not in self._groups and len(self._groups) >= MAX_FAILURE_GROUPS:
            key = (kind, OTHER_MESSAGES)
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = FailureGroup(*key, example, row, message, is_unsent)
        elif row < group.row:
            group.example, group.row, group.text, group.is_unsent = example, row, message, is_unsent
        group.count += 1

    def largest(self) -> tuple[FailureGroup, ...]:
        return tuple(sorted(self._groups.values(), key=lambda group: -group.count))

    def earliest(self) -> tuple[FailureGroup, ...]:
        return tuple(sorted(self._groups.values(), key=lambda group: group.row))


@frozen
class Remedy:
    """What to do about failed rows, or about flawed answers."""

    action: str
    option: str = ""  # the option of ``smartbatch run`` that helps when the rows are sent again


_OTHER_MODEL: Final = "--model PROVIDER:MODEL"
_REMEDIES: Final = {
    "rate_limit": Remedy("send the rows again at a lower rate", "--max-rpm N"),
    "timeout": Remedy("allow more time per call", "--call-timeout 5min"),
    "request_timeout": Remedy("allow more time per request"),
    "network_error": Remedy("check the connection and send the rows again"),
    "server_error": Remedy("send the rows again later"),
    "auth_error": Remedy("check the API key and its permissions"),
    "no_money": Remedy("add credit or raise the spending limit at the provider"),
    "invalid_response": Remedy("use a simpler schema or another model", _OTHER_MODEL),
    "client_error": Remedy("correct what the message names"),
    "context_too_long": Remedy("choose a model with a longer context or shorten the prompts", _OTHER_MODEL),
    "budget_exceeded": Remedy("raise the budget or limit the length of the answers", "--budget USD"),
    "list_stopped": Remedy("correct what the message names"),
    "truncated": Remedy("allow longer answers", "--max-tokens N"),
    "empty": Remedy("allow longer answers, or choose another model", "--max-tokens N"),
    "refused": Remedy("reword the prompt or choose another model", _OTHER_MODEL),
}


def remedy_for(kind: str) -> Remedy:
    """Return what to do about a kind of error or a defect."""
    return _REMEDIES.get(kind, Remedy("see the message, then send the rows again"))
