"""The house of files and batches: what every provider's Batch API is behind its own words.

Nothing here touches a socket, a clock or a thread: the time is an argument, and what was due until then
happens when somebody asks. A simulation drives it in virtual time, the service behind HTTP in real time.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smartbatch.emulator.batches.batch import Job, crowded
from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    Entry,
    Fetched,
    Line,
    Lost,
    Problem,
    RemoteBatch,
    RemoteFile,
)
from smartbatch.emulator.batches.batch_results import check_ready, cut_short, results, written
from smartbatch.emulator.batches.stored_files import Account, Files
from smartbatch.emulator.batches.timeline import BatchRandomness, Timeline, timeline
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.settings import Settings

__all__ = ["BatchBackend"]

_PREFIXES = {"openai": "batch_", "anthropic": "msgbatch_", "gemini": ""}


class BatchBackend:
    """All files and batches of an emulator. Safe to use from several threads.

    Every method takes ``api`` (``openai``, ``anthropic`` or ``gemini``) and ``key``, the credential: another
    key sees only its own things. ``now`` is monotonic seconds and never goes back.

    Args:
        settings: times, limits and faults; see
        :class:`~smartbatch.emulator.batches.batch_settings.BatchSettings`.
        ledger: where it books.
        epoch: what is added to monotonic seconds to make them Unix seconds.

    Attributes:
        begun: uploads in pieces that have begun and not ended, by what their API calls them.
    """

    begun: dict[str, Any]

    def __init__(self, settings: Settings, ledger: Ledger, *, epoch: float = 0.0) -> None:
        self._lock = threading.RLock()
        self._ledger = ledger
        self._epoch = epoch
        self._generation = 0
        self.configure(settings)
        self._clear()

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on; batches that exist keep their course."""
        with self._lock:
            self._settings = settings
            self._rng = BatchRandomness(settings)

    def reset(self) -> None:
        """Forget everything; no id is ever used again."""
        with self._lock:
            self._generation += 1
            self._clear()

    def _clear(self) -> None:
        generation = self._generation
        self._files = Files(lambda number: "file-" + self._rng.identity("file", generation, number))
        self._jobs: dict[Account, dict[str, Job]] = defaultdict(dict)
        self._active: list[Job] = []
        self._coming: list[Job] = []  # late creates
        self._creates: dict[str, int] = defaultdict(int)
        self.begun = {}

    def unix(self, now: float) -> float:
        """Return monotonic seconds as Unix seconds."""
        return self._epoch + now

    # files

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
    ) -> RemoteFile:
        """Keep a file.

        Args:
            name: for people.
            data: its bytes.
            identity: its id where the client chooses it; ``None`` makes one.
            purpose: what it is for.
            lifetime: seconds until it is gone.

        Raises:
            BatchBackendError: ``exists``, when there is a file of that id.
        """
        with self._lock:
            self.advance(now)
            return self._files.put(
                (api, key), name, data, now, identity=identity, purpose=purpose, lifetime=lifetime
            )

    def file(self, api: str, key: str, file_id: str, now: float) -> RemoteFile | None:
        """Return a file, results included; ``None`` for one that never was or is no more."""
        with self._lock:
            self.advance(now)
            found = self._files.get((api, key), file_id, now)
            if found is None and file_id.startswith(("file-", "batch-")):
                outputs = self._outputs(api, key, now)
                found = next((file for file in outputs if file.id == file_id), None)
            return found

    def files(self, api: str, key: str, now: float) -> list[RemoteFile]:
        """Return the files of an account, results included, the newest first."""
        with self._lock:
            self.advance(now)
            found = [*self._files.all((api, key), now), *self._outputs(api, key, now)]
            return sorted(found, key=lambda file: -file.created_at)

    def delete_file(self, api: str, key: str, file_id: str, now: float) -> bool:
        """Delete a file; False when there is none.

        A batch that has landed keeps its lines. A create that has not landed and names the file never will.
        """
        with self._lock:
            found = self.file(api, key, file_id, now)
            if found is None:
                return False
            if found.batch is not None:
                self._jobs[api, key][found.batch].removed.add(found.id)
            else:
                self._files.delete((api, key), file_id)
            return True

    def _outputs(self, api: str, key: str, now: float) -> list[RemoteFile]:
        keeps = self._settings.batch_retention
        jobs = [job for job in self._jobs[api, key].values() if job.closed and now < job.ended_at + keeps]
        return [file for job in jobs for file in job.results_files(now, keeps)]

    # batches

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
        problems: Sequence[Problem] = (),
    ) -> RemoteBatch:
        """Create a batch and return it.

        Args:
            entries: its requests.
            label: what the client writes on it.
            model: whose enqueued tokens it counts for.
            endpoint: what its lines are sent to.
            file_id: the file it came in.
            problems: why it will fail its validation.

        Raises:
            BatchBackendError: ``no_such_file`` or ``enqueued``; nothing was created.
            Lost: the client hears nothing; the batch may exist, or come to exist.
        """
        with self._lock:
            self.advance(now)
            index = self._creates[api]
            self._creates[api] += 1
            label = dict(label or {})
            name = _PREFIXES.get(api, "") + self._rng.identity("batch", self._generation, api, index)
            faults = self._rng.of_batch(api, index, label)
            if "fail_validation" in faults and not problems:
                problems = [Problem("invalid_request", "The batch could not be validated.")]
            job = Job(
                name, index, api, key, model, endpoint, label, file_id, entries, tuple(problems), faults,
                self._rng, self._course(index, api, now, len(entries), faults, failing=bool(problems)),
            )  # fmt: skip
            return self._accept(job, now)

    def _accept(self, job: Job, now: float) -> RemoteBatch:
        if "dropped_create" in job.faults:
            self._book_create(job, now, "dropped")
            raise Lost("reset_before")
        if not self._has_file(job, now):
            self._book_create(job, now, "refused")
            raise BatchBackendError("no_such_file", f"File {job.file_id} does not exist.")
        if not self._fails_late(job) and (problem := self._crowded(job, now)) is not None:
            self._book_create(job, now, "refused")
            raise BatchBackendError("enqueued", problem.message)
        if "late_create" in job.faults:
            self._book_create(job, now, "late")
            seconds = self._settings.batch_late_seconds * self._rng.die("late", job.api, job.index)
            self._recourse(job, now + seconds)
            self._coming.append(job)
            self._coming.sort(key=lambda job: job.timeline.landed)
            self.advance(now)
            raise Lost("reset")
        self._book_create(job, now, "lost" if "lost_create" in job.faults else "landed")
        self._land(job)
        self._run(job, now)
        if "lost_create" in job.faults:
            raise Lost("reset")
        return job.seen(now)

    def batch(self, api: str, key: str, batch_id: str, now: float) -> RemoteBatch | None:
        """Return a batch as it is now; ``None`` when there is none, or it cannot be found yet."""
        with self._lock:
            job = self._job(api, key, batch_id, now)
            if job is None or self._hidden(job, "get_lag", self._settings.batch_get_lag, now):
                return None
            return job.seen(now)

    def batches(self, api: str, key: str, now: float) -> list[RemoteBatch]:
        """Return the batches of an account that lists show, the newest first."""
        with self._lock:
            self.advance(now)
            lag = self._settings.batch_list_lag
            jobs = [job for job in self._jobs[api, key].values() if not job.deleted]
            shown = [job.seen(now) for job in jobs if not self._hidden(job, "list_lag", lag, now)]
            return sorted(shown, key=lambda batch: (-batch.created_at, -batch.index))

    def cancel(self, api: str, key: str, batch_id: str, now: float) -> RemoteBatch | None:
        """Cancel a batch and return it; after its end nothing changes. ``None`` when there is none.

        Its lines that have run keep their results; it ends after ``batch_cancel_seconds``.
        """
        with self._lock:
            job = self._job(api, key, batch_id, now)
            if job is None:
                return None
            if not job.closed and job.cancelled_at is None:
                job.cancel(now, self._settings.batch_cancel_seconds)
                self._ledger.batch_event({"batch": job.id, "event": "cancelled", "at": now})
                self._run(job, now)
            return job.seen(now)

    def delete(self, api: str, key: str, batch_id: str, now: float) -> bool:
        """Take a batch out of sight; False when there is none. What runs goes on."""
        with self._lock:
            job = self._job(api, key, batch_id, now)
            if job is not None:
                job.deleted = True
            return job is not None

    # results

    def outputs(self, api: str, key: str, batch_id: str, now: float) -> list[Line]:
        """Return the results of a batch that has ended, as its faults leave them.

        Raises:
            BatchBackendError: ``not_found``, ``not_ended``, ``gone`` or ``unavailable``.
        """
        with self._lock:
            return results(self._ended(api, key, batch_id, now))

    def fetch(
        self,
        api: str,
        key: str,
        batch_id: str,
        now: float,
        *,
        write: Callable[[Line], bytes],
        part: str | None = None,
    ) -> Fetched:
        """Return a download of results, damaged as the batch's faults say.

        Args:
            write: makes a line's JSON, without its end.
            part: ``succeeded`` or ``failed`` (all others) for those lines; ``all`` or ``None`` for all.

        Raises:
            BatchBackendError: as :meth:`outputs`.
        """
        with self._lock:
            job = self._ended(api, key, batch_id, now)
            lines = results(job, part)
            pieces = written(lines, write)
            body: bytes | list[bytes] = b"".join(pieces)
            if "cut_download" in job.faults and part not in job.fetched:
                begin, whole = cut_short(pieces, self._rng.die("cut", job.id, part))
                body, lines = [begin] if begin else b"", lines[:whole]
            job.fetched.add(part)
            return Fetched(body, lambda: self.delivered(batch_id, lines))

    def size(
        self, api: str, key: str, batch_id: str, now: float, *, write: Callable[[Line], bytes], part: str
    ) -> int:
        """Return the bytes of an undamaged download; see :meth:`fetch`. 0 while there is none."""
        with self._lock:
            try:
                job = self._ended(api, key, batch_id, now)
            except BatchBackendError:
                return 0
            return sum(map(len, written(results(job, part), write)))

    def delivered(self, batch_id: str, lines: Sequence[Line]) -> None:
        """Book that lines went out whole; those that do not carry their own answer are left out."""
        with self._lock:
            if true := [line.position for line in lines if line.true and line.outcome == "succeeded"]:
                self._ledger.batch_event({"batch": batch_id, "event": "delivered", "positions": true})

    def _ended(self, api: str, key: str, batch_id: str, now: float) -> Job:
        job = self._job(api, key, batch_id, now)
        if job is None:
            raise BatchBackendError("not_found", f"No batch found with id '{batch_id}'.")
        check_ready(job, now, self._settings.batch_retention, self._settings.batch_results_outage)
        return job

    # the course of time

    def advance(self, now: float) -> None:
        """Let happen what was due until now."""
        with self._lock:
            while self._coming and self._coming[0].timeline.landed <= now:
                job = self._coming.pop(0)
                if self._has_file(job, job.timeline.landed):
                    self._land(job)
                else:
                    self._ledger.batch_event({"batch": job.id, "event": "fenced"})
            for job in tuple(self._active):
                self._run(job, now)

    def _has_file(self, job: Job, now: float) -> bool:
        return job.file_id is None or self._files.get((job.api, job.key), job.file_id, now) is not None

    def _land(self, job: Job) -> None:
        landed = job.timeline.landed
        if not job.problems and self._fails_late(job) and (problem := self._crowded(job, landed)) is not None:
            job.problems = (problem,)
            self._recourse(job, landed)
        self._jobs[job.api, job.key][job.id] = job
        self._active.append(job)
        self._ledger.batch_event({"batch": job.id, "event": "landed", "at": landed})

    def _run(self, job: Job, now: float) -> None:
        if job.closed:
            return
        if lines := job.advance(now):
            rows = [
                [line.position, line.custom_id, line.prompt, line.at, line.billed, line.lost]
                for line in lines
            ]
            self._ledger.batch_event({"batch": job.id, "event": "ran", "lines": rows})
        if now >= job.ended_at:
            job.closed = True
            self._active.remove(job)
            end = {"batch": job.id, "event": "ended", "at": job.ended_at, "state": job.final}
            self._ledger.batch_event(end)

    def _course(
        self, index: int, api: str, landed: float, total: int, faults: frozenset[str], *, failing: bool
    ) -> Timeline:
        turnaround = self._rng.turnaround(api, index)
        return timeline(self._settings, landed, turnaround, total, faults, failing=failing)

    def _recourse(self, job: Job, landed: float) -> None:
        job.follow(
            self._course(job.index, job.api, landed, len(job.entries), job.faults, failing=bool(job.problems))
        )

    def _crowded(self, job: Job, now: float) -> Problem | None:
        return crowded(job, self._active, self._settings.batch_enqueued_tokens, now)

    def _fails_late(self, job: Job) -> bool:
        """Return whether a batch without room for its tokens is created, to fail then: only OpenAI's may."""
        return job.api == "openai" and self._settings.batch_enqueued_refusal == "late"

    def _hidden(self, job: Job, fault: str, seconds: float, now: float) -> bool:
        if fault not in job.faults:
            return False
        return now < job.timeline.landed + seconds * self._rng.die(fault, job.api, job.index)

    def _job(self, api: str, key: str, batch_id: str, now: float) -> Job | None:
        self.advance(now)
        job = self._jobs[api, key].get(batch_id)
        return None if job is None or job.deleted else job

    def _book_create(self, job: Job, now: float, fate: str) -> None:
        self._ledger.batch_event(job.created(now, fate))
