"""The emulator's book: every request, what was billed for it, and whether its answer went out whole."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define

from smartbatch.emulator.batches.batch_ledger import BatchBook, BatchLine, BatchRecord
from smartbatch.emulator.limits import Limits
from smartbatch.emulator.settings import Settings
from smartbatch.errors import ConfigError

__all__ = ["Call", "Ledger"]


@define
class Call:
    """One request.

    Attributes:
        index: its number, from 0, in the order of arrival.
        at: monotonic seconds of its arrival.
        endpoint: method and path.
        model: the model it named.
        tier: ``flex`` for one in the cheaper, slower tier, whose tokens cost half.
        prompt: SHA-256 (hexadecimal) of the text of the last user message.
        text: that text, when prompts are kept.
        fault: the fault it met, ``outage`` and ``limit`` included.
        admitted: True when it passed authentication, validation, outage and limits.
        latency: seconds the answer was held back.
        status: the HTTP status that was sent; ``None`` when nothing was.
        billed: tokens it is paid for; 0 when no work was done.
        delivered: True when the whole answer was handed to a connection that was still open.
        done: True when the emulator has finished with it.
    """

    index: int
    at: float
    endpoint: str
    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    fault: str | None = None
    admitted: bool = False
    latency: float = 0.0
    status: int | None = None
    billed: int = 0
    delivered: bool = False
    done: bool = False
    tier: str | None = None


class Ledger:
    """All calls and batches since the start or the last reset. Written by the emulator, read by any thread.

    Args:
        path: a file that gets one JSON line as each call ends, at once, and one for each thing that happens
            to a batch. Where an index has several lines, the last one counts. An earlier ledger there is
            replaced.

    Raises:
        ConfigError: when the file cannot be written, or holds something that is not a ledger.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._calls: list[Call] = []
        self._book = BatchBook()
        self._catch_up: Callable[[], object] = lambda: None
        self._limits = Limits(Settings())
        self._file = None if path is None else _open_fresh(path)

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Return the ledger another process wrote to ``path``; a torn last line is ignored."""
        found: dict[int, Call] = {}
        ledger = cls()
        for line in Path(path).read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            if "batch" in row:
                ledger._book.apply(row)
            else:
                found[row["index"]] = Call(**row)
        ledger._calls = [found[index] for index in sorted(found)]
        return ledger

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls in the order of arrival."""
        return tuple(self._calls)

    @property
    def received(self) -> int:
        """How many calls there are."""
        return len(self._calls)

    @property
    def batches(self) -> tuple[BatchRecord, ...]:
        """All creates of batches in the order of arrival, with the lines that ran."""
        self._catch_up()
        return self._book.records

    @property
    def billed_by_prompt(self) -> dict[str, list[Call | BatchLine]]:
        """The billed calls and lines of batches of each prompt (by its SHA-256), in the order of time."""
        self._catch_up()
        found: dict[str, list[Call | BatchLine]] = defaultdict(list)
        mixed: list[Call | BatchLine] = [*self.calls, *self._book.lines()]
        for each in sorted(mixed, key=lambda each: each.at):
            if each.billed and each.prompt is not None:
                found[each.prompt].append(each)
        return dict(found)

    def paid_twice(self, *, excluding_lost: bool = True) -> list[str]:
        """Return the prompts (by their SHA-256) that were billed more than once, in real time or in batches.

        Args:
            excluding_lost: leave out those whose earlier answers were all lost in transit or in the results
                of a batch, so that asking again was the only way. The answer of a line that ran can be
                fetched, so it is not lost before it was fetched.
        """
        return [
            prompt
            for prompt, billed in self.billed_by_prompt.items()
            if len(billed) > 1 and (not excluding_lost or any(map(_was_to_be_had, billed[:-1])))
        ]

    def allowed_requests(self, now: float) -> float:
        """Return how many requests the limits would have allowed from the first one to ``now``.

        Args:
            now: ``time.monotonic()`` seconds.
        """
        return self._limits.allowed_requests(now)

    def utilisation(self) -> float | None:
        """Return admitted over allowed requests when the last one was admitted; ``None`` without a limit."""
        admitted = [call.at for call in self.calls if call.admitted]
        allowed = self.allowed_requests(max(admitted)) if admitted else 0.0
        return len(admitted) / allowed if 0 < allowed < float("inf") else None

    def summary(self) -> dict[str, Any]:
        """Return the figures, fit for JSON."""
        self._catch_up()
        calls = self.calls
        billed = [call for call in calls if call.billed]
        return {
            "received": len(calls),
            "in_flight": sum(not call.done for call in calls),
            "admitted": sum(call.admitted for call in calls),
            "answered": sum(call.status == 200 and call.delivered for call in calls),
            "by_status": dict(Counter(str(call.status) for call in calls if call.done)),
            "by_fault": dict(Counter(call.fault for call in calls if call.fault)),
            "billed": len(billed),
            "billed_tokens": sum(call.billed for call in billed),
            "billed_flex_tokens": sum(call.billed for call in billed if call.tier == "flex"),
            "prompts_billed": len(self.billed_by_prompt),
            "paid_twice": len(self.paid_twice()),
            "utilisation": self.utilisation(),
            "batches": self._book.summary(),
        }

    def full(self) -> dict[str, Any]:
        """Return the figures and every call, fit for JSON."""
        calls = [asdict(call) for call in self.calls]
        return {**self.summary(), "calls": calls, "batch_records": self._book.full()}

    def open(self, call: Call) -> None:
        """Enter a request that arrived."""
        self._calls.append(call)

    def close(self, call: Call, *, status: int | None, billed: int = 0, delivered: bool = False) -> None:
        """Enter how a request ended; again when it turns out differently."""
        call.status, call.billed, call.delivered, call.done = status, billed, delivered, True
        if self._file is not None and call.index < len(self._calls) and self._calls[call.index] is call:
            os.write(self._file, json.dumps(asdict(call)).encode() + b"\n")

    def batch_event(self, event: Mapping[str, Any]) -> None:
        """Enter something that happened to a batch; see :class:`BatchBook`."""
        self._book.apply(event)
        if self._file is not None:
            os.write(self._file, json.dumps(event).encode() + b"\n")

    def follow(self, catch_up: Callable[[], object]) -> None:
        """Call this before figures are read: it enters what has become due meanwhile."""
        self._catch_up = catch_up

    def judge_by(self, limits: Limits) -> None:
        """Use other limits for :meth:`allowed_requests`."""
        self._limits = limits

    def reset(self) -> None:
        """Forget all calls, in the file as well."""
        self._calls = []
        self._book = BatchBook()
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def end(self) -> None:
        """Close the file; what becomes due from now on is not entered any more."""
        self._catch_up()
        self._catch_up = lambda: None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _was_to_be_had(billed: Call | BatchLine) -> bool:
    return not billed.lost if isinstance(billed, BatchLine) else billed.delivered


def _open_fresh(path: str | Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"ledger file {path}: {error.strerror}") from error
    if os.pread(file, 9, 0) not in (b"", b'{"index":', b'{"batch":'):
        os.close(file)
        raise ConfigError(f"ledger file {path} holds something else; name another file")
    os.ftruncate(file, 0)
    return file
