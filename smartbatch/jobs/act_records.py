"""What people do to work that runs, and the records of it."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable
from typing import Literal

from attrs import field, frozen

from smartbatch.errors import InvalidRequest

AT_ONCE = 1_000
"""Jobs that one act on a selection changes at most."""
ROWS_AT_ONCE = 100_000
"""Rows of a job that are asked again by one act."""
MOST_COUNTED = 10_000
"""Jobs that an act leaves out are counted up to here."""
ACTS_KEPT = 10_000
"""Acts of a store that are remembered."""
LONGEST_TEXT = 500
"""Characters of a reason, and of the name of who acted."""

ActName = Literal[
    "cancel",
    "resume",
    "forget",
    "set_deadline",
    "set_budget",
    "retry_failed",
    "pause_model",
    "resume_model",
    "set_limit",
]


@frozen(kw_only=True)
class Act:
    """Something a person did to work that runs, as it is noted in the store.

    Attributes:
        number: grows with each act of the store.
        at: Unix seconds, by the clock of the store.
        by: who did it.
        name: what was done.
        target: the id of the job, ``provider:model``, or the selection of jobs in words.
        job_id: of the one job it concerned; ``None`` for others.
        count: how many jobs, rows or models it changed.
        left_out: those that it would have concerned and that were too many for one act, or refused.
        detail: what was set, in words.
    """

    number: int = 0
    at: float
    by: str
    name: ActName
    target: str
    job_id: str | None = None
    count: int = 1
    left_out: int = 0
    detail: str | None = None


def _ids(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidRequest(f"ids = {given!r:.60} is a text: give a list of ids", field="ids")
    return tuple(given)


@frozen(kw_only=True)
class JobSelection:
    """Jobs of a store: those for which all that is given holds.

    Attributes:
        ids: these jobs only.
        state: ``active``, ``held`` or ``done``.
        model: as ``provider:model``.
    """

    ids: tuple[str, ...] = field(default=(), converter=_ids)
    state: Literal["active", "held", "done"] | None = None
    model: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.state not in (None, "active", "held", "done"):
            raise InvalidRequest(f"state = {self.state!r:.60} is not active, held or done", field="state")
        if not self.ids and self.state is None and self.model is None:
            raise InvalidRequest(
                "a selection of jobs names at least one of ids, state and model", field="state"
            )
        for text in (*self.ids, self.model or ""):
            if not isinstance(text, str) or not text.isprintable():  # a text column refuses some characters
                raise InvalidRequest(f"{text!r:.60} is no id and no model", field="ids")

    def __str__(self) -> str:
        told = [
            f"{name} {value}" for name in ("state", "model") if (value := getattr(self, name)) is not None
        ]
        if self.ids:
            told.append(self.ids[0] if len(self.ids) == 1 else f"{len(self.ids):,} ids from {self.ids[0]}")
        return ", ".join(told)


@frozen
class Acted:
    """What an act on a selection of jobs came to.

    Attributes:
        count: jobs it changed; for failed rows, the rows.
        left_out: jobs it would have concerned and that are left for the next one, counted up to 10,000.
    """

    count: int
    left_out: int


@frozen
class RetriedRows:
    """What came of asking failed rows of a job again.

    Attributes:
        count: rows that are asked again.
        left_out: failed rows that are not, those of ``billed`` included.
        billed: positions of failed rows that were paid for, or may have been. They are asked again only where
            they are named, or ``billed=True`` says so.
    """

    count: int
    left_out: int
    billed: tuple[int, ...] = field(repr=False)


def actor(by: str | None) -> str:
    """Return who acts: who is named, or else the user of this process and its machine."""
    if by is None:
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):  # no such user is known, as in some containers
            user = "unknown"
        by = f"{user}@{socket.gethostname()}"
    return cut(by) or "unknown"


def cut(text: str | None) -> str | None:
    """Return a text of a person as it is kept: one line, not too long; ``None`` for an empty one."""
    if text is None:
        return None
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line[:LONGEST_TEXT] or None
