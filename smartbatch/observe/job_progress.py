"""How far a job is, for people: the same bar and lines, fed with the job's status instead of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TextIO

from smartbatch._clock import RealClock
from smartbatch.observe.progress import Mode, Progress, _Count
from smartbatch.observe.text import duration, escape

__all__ = ["JobProgressBar"]


class Standing(Protocol):
    """What is shown of a job; see :class:`smartbatch.jobs.status.JobStatus`."""

    @property
    def total(self) -> int: ...
    @property
    def submitted(self) -> int: ...
    @property
    def finished(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def remaining(self) -> float | None: ...
    @property
    def elapsed(self) -> float: ...
    @property
    def cost(self) -> float: ...
    @property
    def unpriced(self) -> int: ...
    @property
    def note(self) -> str | None: ...


class JobProgressBar(Progress):
    """Shows the status it is given; to be used as ``job.on_progress(bar.show)``.

    100 % is shown when every result is stored, and not before: what the provider says it has done is named
    beside it.

    Args:
        total: requests of the job.
        mode, stream, now: as for :class:`~smartbatch.observe.progress.Progress`.
    """

    def __init__(
        self,
        total: int,
        mode: Mode = "auto",
        stream: TextIO | None = None,
        now: Callable[[], float] = RealClock.now,
    ) -> None:
        super().__init__(total, mode, stream, now)
        self._count: _JobCount = _JobCount(total, now(), 0)

    def show(self, status: Standing) -> None:
        """Take over a status."""
        with self._lock:
            self._count.take(status)
        self.update()


class _JobCount(_Count):
    """The figures of a job, and their words; not thread-safe."""

    status: Standing | None = None

    def take(self, status: Standing) -> None:
        """Remember the last status."""
        self.status = status
        self.total = status.total
        self.done = status.finished
        self.notes.clear()
        if status.note:
            self.notes["job"] = (escape(status.note)[:100], None)

    def describe(self, now: float) -> tuple[str, str]:
        """Return the share stored and the words beside it."""
        status = self.status
        if status is None:
            return super().describe(now)
        parts = [f"{status.finished:,}/{status.total:,}"]
        for number, word in (
            (status.submitted if status.submitted != status.finished else 0, "submitted"),
            (status.running, "done at the provider"),
            (status.failed, "failed"),
            (status.cancelled, "cancelled"),
        ):
            if number:
                parts.append(f"{number:,} {word}")
        if status.cost:
            parts.append(("at least " if status.unpriced else "") + f"{status.cost:.4f} USD")
        if status.finished == status.total:
            parts.append(duration(status.elapsed))
        elif status.remaining is not None:
            parts.append(f"about {duration(status.remaining)} left")
        note = self._note(now)
        return self._share(), ", ".join(parts) + (f" ({note})" if note else "")
