"""A provider with a Batch API, in memory and in virtual time."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import define, field

from smartbatch._clock import VirtualClock
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    LineOutcome,
    RemoteBatch,
    RemoteFile,
    RemoteState,
)
from smartbatch.types import Answer, Kind, Request, Usage

LONG = 1e6  # virtual seconds


@define
class Made:
    id: str
    mark: str
    file_id: str
    at: float
    lines: list[dict[str, Any]] = field(repr=False)
    cancelled: bool = False


class Remote(Provider):
    """Answers real-time calls after ``latency`` seconds, and batches ``turnaround`` seconds after the create.

    Attributes:
        asked: prompts of real-time calls, in order.
        api: the Batch API.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        turnaround: float = 100.0,
        scope: str = "remote:1",
        batches: bool = True,
        kinds: frozenset[Kind] = frozenset({Kind.GENERATE}),
        reply: Callable[[str], str] = lambda prompt: f"re: {prompt}",
        latency: float = 0.0,
        name: str = "remote",
        priced: bool = False,
    ) -> None:
        self.name = name
        self.scope = scope
        self.capabilities = Capabilities(priced=priced, max_texts=10)
        self.clock = clock
        self.asked: list[str] = []
        self.attempts: list[int] = []
        self._reply = reply
        self._latency = latency
        self._lock = threading.Lock()
        self.api = Api(self, clock, turnaround, kinds) if batches else None

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        prompt = str(request.prompt)
        with self._lock:
            self.asked.append(prompt)
            self.attempts.append(attempt)
        if self._latency:
            self.clock.sleep(self._latency)
        return Answer(self._reply(prompt), Usage(len(prompt), 2))

    def batches(self) -> BatchApi | None:
        return self.api


class Api(BatchApi):
    def __init__(
        self, provider: Remote, clock: VirtualClock, turnaround: float, kinds: frozenset[Kind]
    ) -> None:
        self.name = provider.name
        self.scope = provider.scope
        self.abilities = BatchAbilities(max_requests=1000, max_bytes=10_000_000, kinds=kinds)
        self.turnaround = turnaround
        self.made: dict[str, Made] = {}
        self.slow = 0.0
        self.down: Exception | None = None
        self.calls: list[str] = []
        self._clock = clock
        self._files: dict[str, tuple[str, bytes]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        return json.dumps({"id": wire_id, "model": model, "prompt": request.prompt}).encode()

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        self._call("upload")
        with self._lock:
            file_id = f"file-{next(self._numbers)}"
            self._files[file_id] = (name, source.read_bytes())
        return RemoteFile(file_id, name)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        self._call("find_file")
        found = [key for key, (known, _) in self._files.items() if known == name]
        return RemoteFile(found[-1], name) if found else None

    def delete_file(self, file_id: str, timeout: float) -> None:
        self._call("delete_file")
        self._files.pop(file_id, None)

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        self._call("delete_batch")

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        self._call("create")
        assert creation.file_id is not None
        with self._lock:
            lines = [json.loads(line) for line in self._files[creation.file_id][1].split(b"\n") if line]
            batch = Made(
                f"batch-{next(self._numbers)}", creation.mark, creation.file_id, self._clock.wall(), lines
            )
            self.made[batch.id] = batch
        return self.shown(batch)

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        self._call("get")
        batch = self.made.get(batch_id)
        return None if batch is None else self.shown(batch)

    def page(self, after: str | None, timeout: float) -> BatchPage:
        self._call("page")
        return BatchPage(tuple(self.shown(batch) for batch in reversed(list(self.made.values()))))

    def cancel(self, batch_id: str, timeout: float) -> None:
        self._call("cancel")
        self.made[batch_id].cancelled = True

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:
        self._call("download")
        for line in self.made[batch.id].lines:
            yield json.dumps(line).encode() + b"\n"

    def read_line(self, line: bytes, kind: Kind) -> Line:
        form = json.loads(line)
        prompt = str(form["prompt"])
        return Line(
            form["id"],
            LineOutcome.OK,
            Answer(f"by batch: {prompt}", Usage(estimate_request(Request(prompt)), 3)),
        )

    def _call(self, name: str) -> None:
        with self._lock:
            self.calls.append(name)
        if self.slow:
            self._clock.sleep(self.slow)
        if self.down is not None:
            raise self.down

    def shown(self, batch: Made) -> RemoteBatch:
        age = self._clock.wall() - batch.at
        size = len(batch.lines)
        over = age >= self.turnaround
        state = RemoteState.COMPLETED if over else RemoteState.RUNNING
        if batch.cancelled and not over:
            state, batch.lines = RemoteState.CANCELLED, []
        return RemoteBatch(
            batch.id,
            state,
            state.value,
            batch.at,
            batch.mark,
            batch.file_id,
            total=size,
            completed=size if over else int(size * min(1.0, age / self.turnaround)),
            outputs=("out",) if state.ended else (),
        )
