"""Crash points: every commit and every remote call, before and after, numbered in the order they are met."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

from smartbatch.jobs.store import SqlStore


class Crash(BaseException):
    pass


class Violation(AssertionError):
    """An invariant is broken."""


class CrashPoints:
    """Numbers the points of one run, crashes or freezes at some of them, and keeps the trace."""

    def __init__(
        self, rng: Random, *, rate: float, crashes: frozenset[int], freezes: float, now: Callable[[], float]
    ) -> None:
        self._rng = rng
        self._rate = rate
        self._crashes = crashes
        self._freezes = freezes
        self._now = now
        self._trace = hashlib.blake2b(digest_size=16)
        self.names: list[str] = []
        self.calm = False
        self.freeze: Callable[[], None] | None = None
        self.crashed: list[str] = []
        self.frozen = 0

    def reach(self, name: str) -> None:
        """Meet a point."""
        number = len(self.names)
        self.names.append(name)
        self.record(name)
        drawn = self._rng.random()
        if number in self._crashes or (not self.calm and drawn < self._rate):
            self.crashed.append(name)
            raise Crash(f"at point {number}, {name}")
        if self.freeze is not None and not self.calm and 1 - drawn < self._freezes:
            self.frozen += 1
            self.freeze()

    def record(self, text: str) -> None:
        self._trace.update(f"{self._now():.6f} {text}\n".encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()


WRITES = {
    *("accept", "unhold", "claim", "plan", "advance", "mark_submitting"),
    *("discard", "fail", "ingest", "settle", "remember"),
    *("take", "remove", "postpone", "mark_used"),
    *("obtain", "complete", "leave_uncertain", "not_found", "not_sent", "lost", "send_inline"),
    *("fail_open", "move_to_realtime", "claim_realtime", "answer", "drop_unsent", "note", "add_incident"),
}
"""The commits that matter. Leases and observed turnarounds are written outside the protocol."""
PARTS = (
    "jobs",
    "leases",
    "items",
    "shards",
    "facts",
    "remote_objects",
    "webhook_events",
    "uploads",
)  # the parts of a store that write


class CrashingStore:
    def __init__(self, store: SqlStore, points: CrashPoints) -> None:
        self._store = store
        self._parts = {name: _CrashingPart(getattr(store, name), points) for name in PARTS}

    def __getattr__(self, name: str) -> Any:
        return self._parts.get(name) or getattr(self._store, name)


class _CrashingPart:
    def __init__(self, part: object, points: CrashPoints) -> None:
        self._part = part
        self._points = points

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name not in WRITES:
            return method

        def watched(*given: Any, **named: Any) -> Any:
            point = _name_of(name, given)
            self._points.reach(f"{point}.before")
            came = method(*given, **named)
            self._points.reach(f"{point}.after")
            return came

        return watched


def _name_of(verb: str, given: tuple[Any, ...]) -> str:
    if verb != "advance":
        return verb
    shard, to = given[1], given[2]
    return f"{shard.state.value}>{'same' if to is shard.state else to.value}"


_STEPS = {
    "K1": ("accept.before",),
    "K2": ("accept.after",),
    "K3": ("plan.", "planned>uploading.", "planned>ready."),
    "K4": ("upload.before",),
    "K5": ("upload.part",),
    "K6": ("upload.after", "uploading>ready.before", "find_file"),
    "K7": ("mark_submitting.before", "uploading>ready.after"),
    "K8": ("mark_submitting.after", "create.before"),
    "K9": ("create.part",),
    "K10": ("create.waiting",),
    "K11": ("create.after", "submitting>submitted.before"),
    "K12": ("submitting>submitted.after",),
    "K13": ("page",),
    "K14": ("uncertain>submitted.", "provisional>submitted.", "fenced>submitted."),
    "K15": ("cancel.",),
    "K16": ("delete_file.before",),
    "K17": ("delete_file.after", "uncertain>fenced."),
    "K18": ("discard.",),
    "K19": ("get", "submitted>ended.", "mark_used."),
    "K20": ("download", "ended>ingesting."),
    "K21": ("ingest.",),
    "K22": ("settle.",),
    "K23": ("deliver",),
    "K24": ("settled>same.", "dead>same.", "delete_batch", "take.", "remove.", "postpone."),
    "K25": ("obtain.", "not_found.", "leave_uncertain.", "not_sent."),
    "K26": ("file_upload.", "find_upload", "complete."),
    "K27": ("delete_upload",),
}


def step_of(name: str) -> str | None:
    return next((step for step, begins in _STEPS.items() if name.startswith(begins)), None)
