"""The provider of a simulation: a Batch API of any flavour on the emulator's backend, without HTTP."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from smartbatch.emulator.batches import batch_records as records
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.parsed_requests import ModelOutput
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.media import returned_file
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    LineOutcome,
    RemoteBatch,
    RemoteFile,
    RemoteKind,
    RemoteState,
)
from smartbatch.providers.error_table import explained
from smartbatch.types import Answer, Kind, Request, Usage
from tests.faults.simulation.clock import SimClock
from tests.faults.simulation.crash_points import Crash, CrashPoints
from tests.faults.simulation.faults import FaultPlan
from tests.faults.simulation.scenario import HOUR, MINUTE, Flavour, Scenario
from tests.faults.simulation.uploads import check_files, file_of, text_of

_FOREIGN = 12  # foreign batches in a run at most
_STATES = {
    "finalizing": RemoteState.ENDING,
    "cancelling": RemoteState.ENDING,
    "completed": RemoteState.COMPLETED,
    "failed": RemoteState.FAILED,
    "expired": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
}
_KINDS = {
    "server": (LineOutcome.RETRY, ErrorKind.SERVER_ERROR),
    "zero": (LineOutcome.RETRY, ErrorKind.SERVER_ERROR),
    "invalid": (LineOutcome.FAILED, ErrorKind.CLIENT_ERROR),
    "refused": (LineOutcome.FAILED, ErrorKind.CLIENT_ERROR),
    "no_money": (LineOutcome.UNRUN, ErrorKind.NO_MONEY),
}


def digest_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()


def tokens_of(prompt: str) -> int:
    return max(1, len(prompt) // 4)


class Network:
    """What all processes of a run share of the provider: the backend, random numbers, and what was sent."""

    def __init__(
        self,
        flavour: Flavour,
        what: Scenario,
        backend: BatchBackend,
        faults: FaultPlan,
        clock: SimClock,
        points: CrashPoints,
        rng: Random,
        repeats: int,
    ) -> None:
        self.flavour = flavour
        self.what = what
        self.backend = backend
        self.faults = faults
        self.clock = clock
        self.points = points
        self.rng = rng
        self.repeats = repeats
        self.creates: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        # called with the id of a file or batch before it is deleted
        self.check_deletion: Callable[[str], object] = lambda _: None
        self.check_upload_deletion: Callable[[str], object] = lambda _: None
        self.called_at: list[float] = []
        self._arrivals = 0
        self._foreign = 0

    def arrive(self, lines: Sequence[dict[str, str]], key: str, **given: Any) -> records.BatchSnapshot:
        self.faults.late_by(self.backend, self._arrivals)
        self._arrivals += 1
        entries = [_entry(line["id"], line["prompt"]) for line in lines]
        return self.backend.create(self.flavour.api, key, entries, now=self.clock.now(), model="m", **given)

    def create_foreign(self, key: str) -> None:
        if self.faults.calm or self._foreign == _FOREIGN or self.rng.random() >= self.what.foreign:
            return
        self._foreign += 1
        size = self.rng.randint(1, self.what.max_requests)
        lines = [
            {"id": f"foreign-{self._foreign}-{at}", "prompt": f"foreign {self._foreign} {at}"}
            for at in range(size)
        ]
        self.arrive(lines, key, label={"foreign": "1"})


def _entry(custom_id: str, prompt: str) -> records.Entry:
    digest, tokens = digest_of(prompt), tokens_of(prompt)

    def run(identity: str) -> ModelOutput:
        body = json.dumps({"text": f"{digest[:16]} {identity}", "usage": [tokens, 5]}).encode()
        return ModelOutput(body, 5, tokens + 5)

    return records.Entry(custom_id, digest, tokens, run)


class SimApi(BatchApi):
    """The provider, as one process with one key reaches it. Every call is a crash point and may fail.

    What it does against its own word, where a plan says so:

    - ``vanishing``: a batch is not there from five minutes after its creation, for 20 minutes; ``vanished``:
      for ever.
    - ``short``: results are kept for 25 minutes; ``empty``: there are none.
    - ``withheld``: results are not given for 25 minutes, and then no longer.
    - ``cut``: each download ends in the middle of a line; ``garbled``: no line can be read.
    - ``undated``: nothing says when it was created.
    - ``locked``: no create is taken for 20 minutes; ``large``: none of more than one request; ``repeating``:
      the first two are refused, with a prompt in the text.
    - ``narrow``: a batch has few bytes.
    - ``full``: no file is stored for 40 minutes.
    """

    name = "sim"

    def __init__(self, network: Network, key: str) -> None:
        self.network = network
        self.key = key
        self._flavour = network.flavour
        self.scope = f"sim {key}"
        self.abilities = BatchAbilities(
            max_requests=1000,
            max_bytes=150 if self._is("narrow") else 1_000_000,
            files=self._flavour.files,
            labels=self._flavour.labels,
            fence=self._flavour.files,
            result_files=self._flavour.files,
            deletes=frozenset(RemoteKind if self._flavour.files else {RemoteKind.BATCH}),
            retention=25 * MINUTE if self._is("short") else 29 * 24 * HOUR,
        )

    def _is(self, odd: str) -> bool:
        return odd in self.network.what.odd

    # -- input -----------------------------------------------------------------------------------------------

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        return json.dumps({"id": wire_id, "prompt": text_of(request), **file_of(request)}).encode()

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        data = source.read_bytes()
        self.change("upload")
        self.check_storage()
        drawn = self._drawn()
        cut = drawn < self.network.what.calls
        try:
            self.network.points.reach("upload.part")
        except Crash:
            if self.network.rng.random() < 0.5:
                self._put(name, data[: len(data) // 2])
            raise
        if cut:  # and kept as if it were whole
            self._put(name, data[: len(data) // 2])
            raise _failed("the upload was cut")
        file = self._put(name, data)
        self.network.points.reach("upload.after")
        if drawn < 2 * self.network.what.calls:
            raise _failed("the answer to the upload is lost")
        return _file(file)

    def check_storage(self) -> None:
        if self._is("full") and self._now() < 40 * MINUTE:
            raise ProviderError(
                "You have exceeded your file storage quota.", kind=ErrorKind.CLIENT_ERROR, status=400
            )

    def _put(self, name: str, data: bytes) -> records.StoredFile:
        named = name if self._flavour.named_files else None
        backend, api, now = self.network.backend, self._flavour.api, self._now()
        if named is not None and (known := backend.file(api, self.key, named, now)) is not None:
            return known
        return backend.put_file(api, self.key, name, data, now, identity=named)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        self.look("find_file")
        files = self.network.backend.files(self._flavour.api, self.key, self._now())
        return next((_file(file) for file in files if file.name == name and file.batch is None), None)

    def delete_file(self, file_id: str, timeout: float) -> None:
        self.network.check_deletion(file_id)
        self.change("delete_file")
        self.network.backend.delete_file(self._flavour.api, self.key, file_id, self._now())
        self.answer("delete_file")

    # -- batches ---------------------------------------------------------------------------------------------

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        self.change("create", unsent=True)
        self.network.points.reach("create.part")
        self.network.creates[creation.mark] += 1
        sent = 0
        while True:
            try:
                batch = self._create(creation)
                break
            except records.AnswerLost:
                if sent == self.network.repeats:
                    self.network.points.reach("create.waiting")
                    raise _failed("the answer to the create is lost") from None
                sent += 1
                self.network.clock.advance(1.0)
            except records.BatchBackendError as error:
                if error.reason == "bad_line":  # certainly not created, so that it may be sent once more
                    self.network.creates[creation.mark] -= 1
                raise _refused(error) from None
        self.network.points.reach("create.after")
        return self._seen(batch)

    def _create(self, creation: Creation) -> records.BatchSnapshot:
        if creation.file_id is not None:
            backend = self.network.backend
            file = backend.file(self._flavour.api, self.key, creation.file_id, self._now())
            if file is None:
                raise records.BatchBackendError("no_such_file", "there is no such file")
            data = file.data
        else:
            assert creation.lines is not None
            data = creation.lines.read_bytes()
        lines = [json.loads(line) for line in data.split(b"\n") if line]
        check_files(self.network.backend, self._flavour.api, self.key, lines, self._now())
        self._refuse(lines)
        return self.network.arrive(lines, self.key, label={"sb": creation.mark}, file_id=creation.file_id)

    def _refuse(self, lines: Sequence[dict[str, str]]) -> None:
        if self._is("locked") and self._now() < 20 * MINUTE:
            raise ProviderError("no such key", kind=ErrorKind.AUTH_ERROR, status=401)
        if self._is("large") and len(lines) > 1:
            raise ProviderError("too large", kind=ErrorKind.CLIENT_ERROR, status=413)
        if self._is("repeating") and self.network.calls["create"] < 3:
            text = f"what is {lines[0]['prompt']}?"
            raise ProviderError(text, kind=ErrorKind.CLIENT_ERROR, status=400)

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        self.look("get")
        found = self.network.backend.batch(self._flavour.api, self.key, batch_id, self._now())
        return None if found is None or self._is_hidden(found) else self._seen(found)

    def _is_hidden(self, batch: records.BatchSnapshot) -> bool:
        age = self._now() - batch.created_at
        return age > 5 * MINUTE and (self._is("vanished") or (self._is("vanishing") and age < 25 * MINUTE))

    def page(self, after: str | None, timeout: float) -> BatchPage:
        self.look("page")
        if after is None:
            self.network.create_foreign(self.key)
        found = self.network.backend.batches(self._flavour.api, self.key, self._now())
        ids = [batch.id for batch in found]
        begin = 0 if after is None else ids.index(after) + 1
        shown = found[begin : begin + self.network.what.page]
        more = begin + len(shown) < len(found)
        server_time = None if self._is("undated") else self._unix(self._now())
        return BatchPage(tuple(map(self._seen, shown)), shown[-1].id if more else None, server_time)

    def cancel(self, batch_id: str, timeout: float) -> None:
        self.change("cancel")
        found = self.network.backend.cancel(self._flavour.api, self.key, batch_id, self._now())
        if found is None or self._is_hidden(found):
            raise ProviderError("no such batch", kind=ErrorKind.CLIENT_ERROR, status=404)
        self.answer("cancel")

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        self.network.check_deletion(batch_id)
        self.change("delete_batch")
        self.network.backend.delete(self._flavour.api, self.key, batch_id, self._now())
        self.answer("delete_batch")

    def delete_output(self, output: str, timeout: float) -> None:
        self.delete_file(output.partition(" ")[2], timeout)

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:
        self.look("download")
        if self._is("withheld"):
            late = self._unix(self._now()) - (batch.created_at or 0.0) > 25 * MINUTE
            raise _refused(records.BatchBackendError("gone" if late else "unavailable", "no results"))
        backend, api = self.network.backend, self._flavour.api
        try:
            came = backend.fetch(api, self.key, batch.id, self._now(), write=_written, part=output.split()[0])
        except records.BatchBackendError as error:
            raise _refused(error) from None
        body = came.body if isinstance(came.body, bytes) else b"".join(came.body)
        if self._is("garbled"):
            body = b"{\n" * body.count(b"\n")
        middle = len(body) // 2
        yield body[:middle]
        if self._is("cut"):
            yield body[middle:-3]
            return
        self.network.points.reach("download.part")
        if self._drawn() < self.network.what.calls:
            raise _failed("the download was cut")
        yield body[middle:]
        came.delivered()

    def read_line(self, line: bytes, kind: Kind) -> Line:
        try:
            form = json.loads(line)
            return _line(form)
        except (KeyError, TypeError) as error:
            raise ValueError("no line of results") from error

    # -- what may go wrong -----------------------------------------------------------------------------------

    def look(self, name: str) -> None:
        self.network.points.reach(name)
        self._pass(name)
        if self._drawn() < self.network.what.calls:
            raise _failed(f"{name} failed", billed=False)

    def change(self, name: str, *, unsent: bool = False) -> None:
        self.network.points.reach(f"{name}.before")
        self._pass(name)
        if self._drawn() < self.network.what.calls:
            kind = self.network.rng.choice((ErrorKind.NETWORK_ERROR, ErrorKind.RATE_LIMIT))
            raise ProviderError(f"{name} was not taken", kind=kind, maybe_billed=False)

    def answer(self, name: str) -> None:
        self.network.points.reach(f"{name}.after")
        if self._drawn() < self.network.what.calls:
            raise _failed(f"the answer to {name} is lost")

    def _pass(self, name: str) -> None:
        self.network.calls[name] += 1
        self.network.called_at.append(self._now())
        self.network.clock.advance(self.network.rng.uniform(0.05, 1.0))

    def _drawn(self) -> float:
        drawn = self.network.rng.random()
        return 1.0 if self.network.faults.calm else drawn

    def _now(self) -> float:
        return self.network.clock.now()

    # -- how it looks ----------------------------------------------------------------------------------------

    def _unix(self, moment: float) -> float:
        return self.network.backend.unix(moment) + self.network.what.skew

    def _seen(self, batch: records.BatchSnapshot) -> RemoteBatch:
        problem = batch.problems[0] if batch.problems else None
        state = RemoteState.RUNNING if batch.unknown_status else _STATES.get(batch.state, RemoteState.RUNNING)
        return RemoteBatch(
            id=batch.id,
            state=state,
            word=batch.unknown_status or batch.state,
            created_at=None if self._is("undated") else self._unix(batch.created_at),
            mark=batch.label.get("sb") if self._flavour.shows_mark else None,
            file_id=batch.file_id,
            total=batch.counts.total,
            completed=batch.counts.succeeded,
            failed=batch.counts.errored,
            outputs=self._outputs(batch),
            error=None if problem is None else _failure(batch.problems),
        )

    def _outputs(self, batch: records.BatchSnapshot) -> tuple[str, ...]:
        if not batch.ended or batch.state == "failed" or self._is("empty"):
            return ()
        if self._flavour.api == "anthropic":
            return ("all",)
        if self._flavour.api == "gemini":
            return (f"all {batch.output_id}",)
        parts = (("succeeded", batch.output_id), ("failed", batch.error_id))
        return tuple(f"{part} {name}" for part, name in parts if name is not None)


def _file(file: records.StoredFile) -> RemoteFile:
    return RemoteFile(file.id, file.name, len(file.data))


def _failed(text: str, *, billed: bool = True) -> ProviderError:
    return ProviderError(text, kind=ErrorKind.NETWORK_ERROR, maybe_billed=billed)


def _refused(error: records.BatchBackendError) -> ProviderError:
    if error.reason == "unavailable":
        return ProviderError(error.message, kind=ErrorKind.SERVER_ERROR, status=503)
    if error.reason == "enqueued":
        return ProviderError(
            error.message, kind=ErrorKind.RATE_LIMIT, status=429, code="token_limit_exceeded"
        )
    if error.reason == "bad_line":
        return explained(ProviderError(error.message, kind=ErrorKind.CLIENT_ERROR, status=400), error.message)
    return ProviderError(error.message, kind=ErrorKind.CLIENT_ERROR, status=404)


def _failure(problems: Sequence[records.InputProblem]) -> ProviderError:
    first = problems[0]
    told = [{"message": problem.message, "line": problem.line} for problem in problems]
    return explained(ProviderError(first.message, kind=ErrorKind.CLIENT_ERROR, code=first.code), told)


def _written(line: records.OutputLine) -> bytes:
    form: dict[str, Any] = {"id": line.custom_id, "outcome": line.outcome}
    if line.error is not None:
        form["error"] = line.error
    elif line.outcome == "succeeded":
        form["body"] = json.loads(line.body)
    return json.dumps(form).encode()


def _line(form: dict[str, Any]) -> Line:
    name = form["id"]
    if form["outcome"] in ("expired", "cancelled"):
        return Line(name, LineOutcome.UNRUN, error=ProviderError(f"the batch was {form['outcome']}"))
    if "error" in form:
        outcome, kind = _KINDS[form["error"]]
        return Line(name, outcome, error=ProviderError(f"the line failed: {form['error']}", kind=kind))
    body = form["body"]
    usage = Usage(*body["usage"]) if "usage" in body else None
    files = (returned_file(body["text"].encode()),)
    return Line(name, LineOutcome.OK, answer=Answer(body["text"], usage, files=files))
