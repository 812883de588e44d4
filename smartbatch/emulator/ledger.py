"""The emulator's book: every request, what was billed for it, and whether its answer went out whole."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from attrs import asdict, define

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


class Ledger:
    """All calls since the start or the last reset. Written by the emulator's thread, read by any.

    Args:
        path: a file that gets one JSON line as each call ends, at once. Where an index has several lines,
            the last one counts. An earlier ledger there is replaced.

    Raises:
        ConfigError: when the file cannot be written, or holds something that is not a ledger.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._calls: list[Call] = []
        self._limits = Limits(Settings())
        self._file = None if path is None else _open_fresh(path)

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Return the ledger another process wrote to ``path``; a torn last line is ignored."""
        found: dict[int, Call] = {}
        for line in Path(path).read_bytes().split(b"\n")[:-1]:
            call = Call(**json.loads(line))
            found[call.index] = call
        ledger = cls()
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
    def billed_by_prompt(self) -> dict[str, list[Call]]:
        """The billed calls of each prompt (by its SHA-256), in the order of arrival."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.billed and call.prompt is not None:
                found[call.prompt].append(call)
        return dict(found)

    def paid_twice(self, *, excluding_lost: bool = True) -> list[str]:
        """Return the prompts (by their SHA-256) that were billed more than once.

        Args:
            excluding_lost: leave out those whose earlier answers were all lost in transit, so that asking
                again was the only way.
        """
        return [
            prompt
            for prompt, calls in self.billed_by_prompt.items()
            if len(calls) > 1 and (not excluding_lost or any(call.delivered for call in calls[:-1]))
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
            "prompts_billed": len(self.billed_by_prompt),
            "paid_twice": len(self.paid_twice()),
            "utilisation": self.utilisation(),
        }

    def full(self) -> dict[str, Any]:
        """Return the figures and every call, fit for JSON."""
        return {**self.summary(), "calls": [asdict(call) for call in self.calls]}

    def open(self, call: Call) -> None:
        """Enter a request that arrived."""
        self._calls.append(call)

    def close(self, call: Call, *, status: int | None, billed: int = 0, delivered: bool = False) -> None:
        """Enter how a request ended; again when it turns out differently."""
        call.status, call.billed, call.delivered, call.done = status, billed, delivered, True
        if self._file is not None and call.index < len(self._calls) and self._calls[call.index] is call:
            os.write(self._file, json.dumps(asdict(call)).encode() + b"\n")

    def judge_by(self, limits: Limits) -> None:
        """Use other limits for :meth:`allowed_requests`."""
        self._limits = limits

    def reset(self) -> None:
        """Forget all calls, in the file as well."""
        self._calls = []
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_fresh(path: str | Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"ledger file {path}: {error.strerror}") from error
    if os.pread(file, 9, 0) not in (b"", b'{"index":'):
        os.close(file)
        raise ConfigError(f"ledger file {path} holds something else; name another file")
    os.ftruncate(file, 0)
    return file
