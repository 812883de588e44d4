"""The batch backend: files and batches, without the differences between the three Batch APIs.

It uses no sockets, clocks or threads: the time is an argument, and each call first applies what has become
due by then. Simulations call it with virtual time, the request handler with real time.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smartbatch.emulator.batches.batch import StoredBatch, enqueued_limit_problem
from smartbatch.emulator.batches.batch_records import (
    Account,
    AnswerLost,
    BatchBackendError,
    BatchEnd,
    BatchSnapshot,
    Download,
    Entry,
    Files,
    IdFormat,
    InputProblem,
    OutputLine,
    StoredFile,
    upload_event,
)
from smartbatch.emulator.batches.batch_results import (
    check_available,
    encode_lines,
    lines_as_run,
    result_lines,
    truncate_download,
)
from smartbatch.emulator.batches.timeline import BatchRandomness, Timeline, timeline
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.prompt_cache import PromptCaches
from smartbatch.emulator.prompt_files import UploadGone
from smartbatch.emulator.settings import EmulatorSettings

_IDS = {"openai": IdFormat(), "anthropic": IdFormat(batch="msgbatch_".__add__), "gemini": IdFormat(batch=str)}
UPLOAD_SECONDS = 86_400.0
"""How long an upload that was begun can be continued. The services do not state it."""
_PRUNE_SECONDS = 3600.0


class BatchBackend:
    """All files and batches of an emulator. Thread-safe.

    Every method takes ``api`` (``openai``, ``anthropic``, ``gemini`` or a host) and ``key``, the credential,
    which gives access to its own files and batches only. ``now`` is monotonic seconds and never decreases.

    Args:
        ledger: records what happens to batches. Without one, lines run only while their results are fetched,
            and count as succeeded when they are due.
        epoch: Unix seconds of the monotonic time 0.

    Attributes:
        open_uploads: resumable uploads that have not ended, by ID. Each has the time ``expires_at``.
        on_callback: called when a create call names addresses for an event.
        caches: the prompt caches, which batches share with requests in real time.
    """

    open_uploads: dict[str, Any]
    on_callback: Callable[[], None]
    caches: PromptCaches

    def __init__(self, settings: EmulatorSettings, ledger: Ledger | None, *, epoch: float = 0.0) -> None:
        self._lock = threading.RLock()
        self._ledger = ledger
        self._epoch = epoch
        self._generation = 0
        self.on_callback = lambda: None
        self.configure(settings)
        self._clear()

    def configure(self, settings: EmulatorSettings) -> None:
        """Use other settings from now on. Existing batches keep their timelines."""
        with self._lock:
            self._settings = settings
            self._rng = BatchRandomness(settings)

    def reset(self) -> None:
        with self._lock:
            self._generation += 1
            self._clear()

    def _clear(self) -> None:
        generation = self._generation
        self._files = Files(lambda number: self._rng.identity("file", generation, number))
        self._batches: dict[Account, dict[str, StoredBatch]] = defaultdict(dict)
        self._unfinished: list[StoredBatch] = []
        self._late_creates: list[StoredBatch] = []
        self._ends: list[BatchEnd] = []
        self._creates: dict[str, int] = defaultdict(int)
        self._new_ids = 0
        self._now = self._pruned_at = -math.inf
        self.open_uploads = {}
        self.caches = PromptCaches()

    def prune(self, now: float) -> None:
        """Forget, once per hour, prompt caches and open uploads that have expired."""
        with self._lock:
            if now < self._pruned_at + _PRUNE_SECONDS:
                return
            self._pruned_at = now
            self.advance(now)  # lines that were due use the caches of their time
            self.caches.prune(now)
            for name, upload in tuple(self.open_uploads.items()):
                if now >= upload.expires_at:
                    self.open_uploads.pop(name, None)

    def new_id(self) -> str:
        """Return 24 hexadecimal digits that no other call returns."""
        with self._lock:
            self._new_ids += 1
            return self._rng.identity("new", self._generation, self._new_ids)

    def unix(self, now: float) -> float:
        return self._epoch + now

    def put_file(
        self,
        api: str,
        key: str,
        name: str,
        data: bytes,
        now: float,
        *,
        identity: str | None = None,
        purpose: str = "batch",
        lifetime: float = math.inf,
        ids: IdFormat | None = None,
    ) -> StoredFile:
        """Store a file.

        Args:
            identity: the ID chosen by the client; ``None`` generates one.
            purpose: the file's purpose or type, in the API's terms.
            lifetime: seconds until it expires.
            ids: the format of a generated ID; ``None`` for OpenAI's.

        Raises:
            BatchBackendError: ``exists``, if there is a file with that ID; ``storage``, if the files of the
                account would exceed the setting ``file_storage``.
        """
        with self._lock:
            self.advance(now)
            most = self._settings.file_storage
            stored = sum(len(file.data) for file in self._files.all((api, key), now))
            if most is not None and stored + len(data) > most:
                raise BatchBackendError(
                    "storage", f"The file would exceed the storage limit of {most} bytes."
                )
            file = self._files.put(
                (api, key),
                name,
                data,
                now,
                identity=identity,
                purpose=purpose,
                lifetime=lifetime,
                ids=ids or IdFormat(),
            )
            if self._ledger is not None:
                self._ledger.file_event(upload_event(api, file))
            return file

    def upload(self, api: str, key: str, file_id: str, now: float) -> StoredFile:
        """Return an uploaded file for a request that refers to it, which may be a line that runs just now.

        Raises:
            UploadGone: the account does not have the file.
        """
        with self._lock:
            account = api, key
            file = self._files.get(account, file_id, max(now, self._now))
            if file is None:
                raise UploadGone(file_id, expired=self._files.had(account, file_id))
            return file

    def file(self, api: str, key: str, file_id: str, now: float) -> StoredFile | None:
        """Return an uploaded file or a result file; ``None`` if it is unknown, deleted or expired."""
        with self._lock:
            self.advance(now)
            found = self._files.get((api, key), file_id, now)
            if found is None:
                outputs = self._outputs(api, key, now)
                found = next((file for file in outputs if file.id == file_id), None)
            return found

    def files(self, api: str, key: str, now: float) -> list[StoredFile]:
        """Return the files of an account, including result files, newest first."""
        with self._lock:
            self.advance(now)
            found = [*self._files.all((api, key), now), *self._outputs(api, key, now)]
            return sorted(found, key=lambda file: -file.created_at)

    def delete_file(self, api: str, key: str, file_id: str, now: float) -> bool:
        """Delete a file; return False if there is none.

        An existing batch keeps its lines. A late create call with this input file will not take effect.
        """
        with self._lock:
            found = self.file(api, key, file_id, now)
            if found is None:
                return False
            if found.batch is not None:
                self._batches[api, key][found.batch].removed.add(found.id)
            else:
                self._files.delete((api, key), file_id)
                if self._ledger is not None:
                    self._ledger.file_event({"file": found.number, "event": "deleted", "at": now})
            return True

    def _outputs(self, api: str, key: str, now: float) -> list[StoredFile]:
        retention = self._settings.batch_retention
        batches = self._batches[api, key].values()
        return [file for batch in batches for file in batch.result_files(now, retention)]

    def create(
        self,
        api: str,
        key: str,
        entries: Sequence[Entry],
        *,
        now: float,
        label: Mapping[str, str] | None = None,
        model: str = "",
        endpoint: str = "",
        file_id: str | None = None,
        problems: Sequence[InputProblem] = (),
        identity: str | None = None,
        ids: IdFormat | None = None,
        windows: float = 1.0,
        needs_file: bool = True,
        output_lifetime: float = math.inf,
        callbacks: Sequence[str] = (),
    ) -> BatchSnapshot:
        """Create a batch and return it.

        Args:
            label: metadata or display name given by the client.
            model: the model whose enqueued-token limit applies.
            endpoint: the endpoint of the batch's lines.
            problems: why the batch's validation will fail.
            identity: the batch's ID; ``None`` generates one.
            ids: the format of the batch's ID and those of its result files; ``None`` for that of the API.
            windows: time until lines expire, in multiples of the setting ``batch_window``.
            needs_file: whether a late create call has no effect if the input file was deleted first.
            output_lifetime: seconds from the end of the batch until its result files expire, if that is
                before the end of the setting ``batch_retention``.
            callbacks: addresses for an event when the batch ends.

        Raises:
            BatchBackendError: ``no_such_file``, ``enqueued`` or ``bad_line``; no batch was created.
            AnswerLost: the client gets no answer; the batch may exist now or later.
        """
        with self._lock:
            self.advance(now)
            index = self._creates[api]
            self._creates[api] += 1
            label = dict(label or {})
            ids = ids or _IDS.get(api, IdFormat())
            name = identity or ids.batch(self._rng.identity("batch", self._generation, api, index))
            faults = self._rng.batch_faults(api, index, label)
            if "fail_validation" in faults and not problems:
                problems = [InputProblem("invalid_request", "The batch could not be validated.")]
            problems = problems or self._bad_lines(api, index, entries)
            failing = bool(problems)
            batch = StoredBatch(
                name, index, api, key, model, endpoint, label, file_id, entries, tuple(problems), faults,
                self._rng, self._timeline(index, api, now, len(entries), faults, windows, failing=failing),
                self.caches, self._settings.prompt_caching, ids, windows, needs_file, output_lifetime,
                tuple(callbacks),
            )  # fmt: skip
            if callbacks:
                self.on_callback()
            return self._accept(batch, now)

    def _accept(self, batch: StoredBatch, now: float) -> BatchSnapshot:
        if "dropped_create" in batch.faults:
            self._record_create(batch, now, "dropped")
            raise AnswerLost("reset_before")
        if batch.api == "anthropic" and batch.problems and batch.problems[0].line is not None:
            self._record_create(batch, now, "refused")
            raise BatchBackendError("bad_line", batch.problems[0].message)
        if not self._has_file(batch, now):
            self._record_create(batch, now, "refused")
            raise BatchBackendError("no_such_file", f"File {batch.file_id} does not exist.")
        if not self._refuses_late(batch) and (problem := self._enqueued_problem(batch, now)) is not None:
            self._record_create(batch, now, "refused")
            raise BatchBackendError("enqueued", problem.message)
        if "late_create" in batch.faults:
            self._record_create(batch, now, "late")
            seconds = self._settings.batch_late_seconds * self._rng.uniform("late", batch.api, batch.index)
            self._restart_timeline(batch, now + seconds)
            self._late_creates.append(batch)
            self._late_creates.sort(key=lambda batch: batch.timeline.created)
            self.advance(now)
            raise AnswerLost("reset")
        self._record_create(batch, now, "lost" if "lost_create" in batch.faults else "created")
        self._register(batch)
        self._run(batch, now)
        if "lost_create" in batch.faults:
            raise AnswerLost("reset")
        return batch.snapshot(now)

    def _bad_lines(self, api: str, index: int, entries: Sequence[Entry]) -> list[InputProblem]:
        """Return a problem for each line with the fault ``refused_lines``, in the words of the API."""
        if not self._rng.has_line_faults:
            return []
        bad = [
            at
            for at, entry in enumerate(entries)
            if "refused_lines" in self._rng.line_faults(api, index, at, entry.custom_id)
        ]
        if api == "anthropic":
            text = "requests.{}.params.messages: at least one message is required"
            return [InputProblem("invalid_request", text.format(at), at + 1) for at in bad]
        where = "" if api == "openai" else "Line {} of the input file: "
        return [
            InputProblem("invalid_request", where.format(at + 1) + "Invalid value for content", at + 1)
            for at in bad
        ]

    def batch(self, api: str, key: str, batch_id: str, now: float) -> BatchSnapshot | None:
        """Return the state of a batch; ``None`` if there is none, or if the fault ``get_lag`` hides it."""
        with self._lock:
            batch = self._find(api, key, batch_id, now)
            if batch is None or self._is_hidden(batch, "get_lag", self._settings.batch_get_lag, now):
                return None
            return batch.snapshot(now)

    def batches(self, api: str, key: str, now: float) -> list[BatchSnapshot]:
        """Return an account's batches as listed, newest first."""
        with self._lock:
            self.advance(now)
            lag = self._settings.batch_list_lag
            batches = [batch for batch in self._batches[api, key].values() if not batch.deleted]
            shown = [
                batch.snapshot(now) for batch in batches if not self._is_hidden(batch, "list_lag", lag, now)
            ]
            return sorted(shown, key=lambda batch: (-batch.created_at, -batch.index))

    def cancel(self, api: str, key: str, batch_id: str, now: float) -> BatchSnapshot | None:
        """Cancel a batch, unless it has ended, and return it; ``None`` if there is none.

        Lines that have run keep their results. The batch ends after ``batch_cancel_seconds``.
        """
        with self._lock:
            batch = self._find(api, key, batch_id, now)
            if batch is None:
                return None
            if not batch.closed and batch.cancelled_at is None:
                batch.cancel(now, self._settings.batch_cancel_seconds)
                self._record({"batch": batch.id, "event": "cancelled", "at": now})
                self._run(batch, now)
            return batch.snapshot(now)

    def delete(self, api: str, key: str, batch_id: str, now: float) -> bool:
        """Hide a batch from now on; return False if there is none. Its lines still run."""
        with self._lock:
            batch = self._find(api, key, batch_id, now)
            if batch is not None:
                batch.deleted = True
            return batch is not None

    def outputs(self, api: str, key: str, batch_id: str, now: float) -> Iterable[OutputLine]:
        """Return the results of a batch that has ended, damaged by its faults.

        Raises:
            BatchBackendError: ``not_found``, ``not_ended``, ``gone`` or ``unavailable``.
        """
        with self._lock:
            batch = self._ended(api, key, batch_id, now)
            return lines_as_run(batch, now) if self._ledger is None else result_lines(batch)

    def fetch(
        self,
        api: str,
        key: str,
        batch_id: str,
        now: float,
        *,
        write: Callable[[OutputLine], bytes],
        part: str | None = None,
    ) -> Download:
        """Return a download of results, damaged by the batch's faults.

        Args:
            write: encodes a line as JSON, without its line break.
            part: ``succeeded`` or ``failed`` (all others); ``all`` or ``None`` for all lines.

        Raises:
            BatchBackendError: see :meth:`outputs`.
        """
        with self._lock:
            batch = self._ended(api, key, batch_id, now)
            lines = result_lines(batch, part)
            pieces = encode_lines(lines, write)
            body: bytes | list[bytes] = b"".join(pieces)
            if "cut_download" in batch.faults and part not in batch.fetched:
                start, whole = truncate_download(pieces, self._rng.uniform("cut", batch.id, part))
                body, lines = [start] if start else b"", lines[:whole]
            batch.fetched.add(part)
            return Download(body, lambda: self.delivered(batch_id, lines))

    def size(
        self,
        api: str,
        key: str,
        batch_id: str,
        now: float,
        *,
        write: Callable[[OutputLine], bytes],
        part: str,
    ) -> int:
        """Return the size of an undamaged download in bytes; 0 if there is none. See :meth:`fetch`."""
        with self._lock:
            try:
                batch = self._ended(api, key, batch_id, now)
            except BatchBackendError:
                return 0
            return sum(map(len, encode_lines(result_lines(batch, part), write)))

    def delivered(self, batch_id: str, lines: Sequence[OutputLine]) -> None:
        """Record in the ledger that lines were sent. Lines without their own answer do not count."""
        with self._lock:
            if positions := [line.position for line in lines if line.correct and line.outcome == "succeeded"]:
                self._record({"batch": batch_id, "event": "delivered", "positions": positions})

    def _ended(self, api: str, key: str, batch_id: str, now: float) -> StoredBatch:
        batch = self._find(api, key, batch_id, now)
        if batch is None:
            raise BatchBackendError("not_found", f"No batch found with id '{batch_id}'.")
        check_available(batch, now, self._settings.batch_retention, self._settings.batch_results_outage)
        return batch

    def advance(self, now: float) -> None:
        """Apply everything that is due: late create calls, lines and ends of batches."""
        with self._lock:
            self._now = max(self._now, now)
            while self._late_creates and self._late_creates[0].timeline.created <= now:
                batch = self._late_creates.pop(0)
                if not batch.needs_file or self._has_file(batch, batch.timeline.created):
                    self._register(batch)
                else:
                    self._record({"batch": batch.id, "event": "fenced"})
            for batch in tuple(self._unfinished):
                self._run(batch, now)

    def take_ends(self) -> list[BatchEnd]:
        """Return the batches that have ended since the last call and are reported by webhooks."""
        with self._lock:
            ends, self._ends = self._ends, []
            return ends

    def _has_file(self, batch: StoredBatch, now: float) -> bool:
        return (
            batch.file_id is None or self._files.get((batch.api, batch.key), batch.file_id, now) is not None
        )

    def _register(self, batch: StoredBatch) -> None:
        created = batch.timeline.created
        if (
            not batch.problems
            and self._refuses_late(batch)
            and (problem := self._enqueued_problem(batch, created)) is not None
        ):
            batch.problems = (problem,)
            self._restart_timeline(batch, created)
        self._batches[batch.api, batch.key][batch.id] = batch
        self._unfinished.append(batch)
        self._record({"batch": batch.id, "event": "created", "at": created})

    def _run(self, batch: StoredBatch, now: float) -> None:
        if batch.closed:
            return
        if self._ledger is not None and (lines := batch.run_lines(now)):
            rows = [
                [
                    *(line.position, line.custom_id, line.prompt, line.at, line.billed, line.lost),
                    *(line.cache_read, line.cache_written, line.cache_saved),
                ]
                for line in lines
            ]
            self._record({"batch": batch.id, "event": "ran", "lines": rows})
        if now >= batch.ended_at:
            batch.closed = True
            self._unfinished.remove(batch)
            end = {"batch": batch.id, "event": "ended", "at": batch.ended_at, "state": batch.final}
            self._record(end)
            by_project = self._settings.batch_webhook_url is not None and batch.api != "anthropic"
            if by_project or batch.callbacks:
                self._ends.append(BatchEnd(batch.api, batch.index, batch.id, batch.final, batch.callbacks))

    def _timeline(
        self,
        index: int,
        api: str,
        created: float,
        total: int,
        faults: frozenset[str],
        windows: float,
        *,
        failing: bool,
    ) -> Timeline:
        turnaround = self._rng.turnaround(api, index)
        return timeline(self._settings, created, turnaround, total, faults, failing=failing, windows=windows)

    def _restart_timeline(self, batch: StoredBatch, created: float) -> None:
        batch.set_timeline(
            self._timeline(
                batch.index,
                batch.api,
                created,
                len(batch.entries),
                batch.faults,
                batch.windows,
                failing=bool(batch.problems),
            )
        )

    def _enqueued_problem(self, batch: StoredBatch, now: float) -> InputProblem | None:
        return enqueued_limit_problem(batch, self._unfinished, self._settings.batch_enqueued_tokens, now)

    def _refuses_late(self, batch: StoredBatch) -> bool:
        """Whether a batch above the enqueued-token limit is created and then fails, as with OpenAI."""
        return batch.api not in ("anthropic", "gemini") and self._settings.batch_enqueued_refusal == "late"

    def _is_hidden(self, batch: StoredBatch, fault: str, seconds: float, now: float) -> bool:
        if fault not in batch.faults:
            return False
        return now < batch.timeline.created + seconds * self._rng.uniform(fault, batch.api, batch.index)

    def _find(self, api: str, key: str, batch_id: str, now: float) -> StoredBatch | None:
        self.advance(now)
        batch = self._batches[api, key].get(batch_id)
        return None if batch is None or batch.deleted else batch

    def _record_create(self, batch: StoredBatch, now: float, outcome: str) -> None:
        if self._ledger is not None:
            self._record(batch.create_event(now, outcome))

    def _record(self, event: Mapping[str, Any]) -> None:
        if self._ledger is not None:
            self._ledger.batch_event(event)
