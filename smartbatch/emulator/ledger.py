"""The ledger: every request, what was billed for it, and whether its whole answer was sent."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define

from smartbatch.emulator.batches.batch import BatchLedger, BatchLine, BatchRecord
from smartbatch.emulator.limits import Limits
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.errors import ConfigError


@define
class Call:
    index: int  # number in the order of arrival, from 0
    at: float  # monotonic seconds at arrival
    endpoint: str
    model: str | None = None
    prompt: str | None = None  # SHA-256 of the text of the last user message (hexadecimal)
    text: str | None = None
    fault: str | None = None  # including ``outage`` and ``limit``
    admitted: bool = False  # whether it passed authentication, validation, outage and limits
    latency: float = 0.0  # seconds by which the answer was delayed
    status: int | None = None  # the HTTP status sent; ``None`` if nothing was sent
    billed: int = 0  # billed tokens; 0 if the model did not run
    delivered: bool = False  # whether the whole answer was written to an open connection
    done: bool = False  # whether it has finished
    cache_read: int = 0  # input tokens read from the prompt cache
    cache_written: int = 0  # input tokens written to it
    cache_saved: float = 0.0  # the saving, as a number of uncached input tokens
    tier: str | None = None  # service tier; ``flex`` is the cheaper, slower one, whose tokens cost half


@define
class UploadRecord:
    """An upload. Times are monotonic seconds."""

    number: int  # in the order of all uploads, from 0
    id: str
    api: str  # ``openai``, ``anthropic``, ``gemini`` or the host of the emulated dialect
    name: str
    purpose: str  # in the terms of the API: OpenAI's purpose, or the media type
    bytes: int
    sha256: str  # hexadecimal
    at: float
    expires_at: float | None  # ``None`` if it does not expire
    deleted_at: float | None = None


class Ledger:
    """All calls, uploads and batches since the start or the last reset. The emulator writes it; any thread
    may read it.

    Args:
        path: a file that receives one JSON line when a call ends, and one for each event of a batch. Of
            several lines with the same index, the last one is valid. An existing ledger in this file is
            replaced.

    Raises:
        ConfigError: the file cannot be written, or contains something other than a ledger.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._calls: list[Call] = []
        self._batch_ledger = BatchLedger()
        self._files: dict[int, UploadRecord] = {}
        self._update: Callable[[], object] = lambda: None
        self._limits = Limits(EmulatorSettings())
        self._file = None if path is None else _open_empty(path)

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read the ledger that another process wrote to ``path``. An incomplete last line is ignored."""
        found: dict[int, Call] = {}
        ledger = cls()
        for line in Path(path).read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            if "batch" in row:
                ledger.batch_event(row)
            elif "file" in row:
                ledger.file_event(row)
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
        return len(self._calls)

    @property
    def files(self) -> tuple[UploadRecord, ...]:
        """All uploads in chronological order, including input files of batches and deleted files."""
        return tuple(self._files.values())

    @property
    def batches(self) -> tuple[BatchRecord, ...]:
        """All create calls of batches in the order of arrival, with the lines that have run."""
        self._update()
        return self._batch_ledger.records

    @property
    def billed_by_prompt(self) -> dict[str, list[Call | BatchLine]]:
        """Billed calls and batch lines by the SHA-256 of their prompt, in chronological order."""
        self._update()
        found: dict[str, list[Call | BatchLine]] = defaultdict(list)
        entries: list[Call | BatchLine] = [*self.calls, *self._batch_ledger.lines()]
        for each in sorted(entries, key=lambda each: each.at):
            if each.billed and each.prompt is not None:
                found[each.prompt].append(each)
        return dict(found)

    def paid_twice(self, *, excluding_lost: bool = True) -> list[str]:
        """Return the prompts (by SHA-256) that were billed more than once, in real time or in batches.

        Args:
            excluding_lost: omit prompts whose earlier answers were all lost, in transit or in the results of
                a batch, so that only another request could obtain one. The answer of a line that has run can
                be fetched, so it is not lost.
        """
        return [
            prompt
            for prompt, billed in self.billed_by_prompt.items()
            if len(billed) > 1 and (not excluding_lost or any(map(_was_available, billed[:-1])))
        ]

    def allowed_requests(self, now: float) -> float:
        """Return the number of requests that the limits allow from the first request to ``now``.

        Args:
            now: ``time.monotonic()`` seconds.
        """
        return self._limits.allowed_requests(now)

    def utilisation(self) -> float | None:
        """Return the number of admitted requests relative to the number allowed until the last admission;
        ``None`` without a limit.
        """
        admitted = [call.at for call in self.calls if call.admitted]
        allowed = self.allowed_requests(max(admitted)) if admitted else 0.0
        return len(admitted) / allowed if 0 < allowed < float("inf") else None

    def summary(self) -> dict[str, Any]:
        self._update()
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
            "prompt_cache": self.prompt_cache(),
            "files": {
                "uploaded": len(self.files),
                "deleted": sum(file.deleted_at is not None for file in self.files),
                "bytes": sum(file.bytes for file in self.files),
            },
            "batches": self._batch_ledger.summary(),
        }

    def prompt_cache(self) -> dict[str, float]:
        """Return the totals of the prompt caches, in real time and in batches, in input tokens.

        ``read`` and ``written`` are the tokens read and written. ``saved`` is the saving after the prices of
        writes and storage, as a number of uncached tokens of the same requests.
        """
        self._update()
        entries: list[Call | BatchLine] = [*self.calls, *self._batch_ledger.lines()]
        return {
            "read": sum(each.cache_read for each in entries),
            "written": sum(each.cache_written for each in entries),
            "saved": sum(each.cache_saved for each in entries),
        }

    def full(self) -> dict[str, Any]:
        calls = [asdict(call) for call in self.calls]
        files = [asdict(file) for file in self.files]
        records = self._batch_ledger.full()
        return {**self.summary(), "calls": calls, "file_records": files, "batch_records": records}

    def open(self, call: Call) -> None:
        self._calls.append(call)

    def close(self, call: Call, *, status: int | None, billed: int = 0, delivered: bool = False) -> None:
        """Record the end of a request. A later call for the same request replaces the record."""
        call.status, call.billed, call.delivered, call.done = status, billed, delivered, True
        if self._file is not None and call.index < len(self._calls) and self._calls[call.index] is call:
            os.write(self._file, json.dumps(asdict(call)).encode() + b"\n")

    def batch_event(self, event: Mapping[str, Any]) -> None:
        """Record an event of a batch; see :class:`BatchLedger`."""
        self._batch_ledger.apply(event)
        if self._file is not None:
            os.write(self._file, json.dumps(event).encode() + b"\n")

    def file_event(self, event: Mapping[str, Any]) -> None:
        """Record an upload or a deletion."""
        number, what = event["file"], event["event"]
        if what == "uploaded":
            fields = {name: value for name, value in event.items() if name not in ("file", "event")}
            self._files[number] = UploadRecord(number, **fields)
        elif number in self._files:
            self._files[number].deleted_at = event["at"]
        if self._file is not None:
            os.write(self._file, json.dumps(event).encode() + b"\n")

    def update_with(self, update: Callable[[], object]) -> None:
        """Call ``update`` before batches are read, to record the events that are due."""
        self._update = update

    def use_limits(self, limits: Limits) -> None:
        """Compute :meth:`allowed_requests` from these limits."""
        self._limits = limits

    def reset(self) -> None:
        """Delete all calls, uploads and batches, including those in the file."""
        self._calls = []
        self._files = {}
        self._batch_ledger = BatchLedger()
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def end(self) -> None:
        """Close the file. Later events are not recorded."""
        self._update()
        self._update = lambda: None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _was_available(billed: Call | BatchLine) -> bool:
    return not billed.lost if isinstance(billed, BatchLine) else billed.delivered


def _open_empty(path: str | Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"ledger file {path}: {error.strerror}") from error
    if os.pread(file, 9, 0) not in (b"", b'{"index":', b'{"batch":', b'{"file": '):
        os.close(file)
        raise ConfigError(f"ledger file {path} contains something other than a ledger; name another file")
    os.ftruncate(file, 0)
    return file
