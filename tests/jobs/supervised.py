"""A supervisor in virtual time whose steps are scripted by a test."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from jobs.runtimes import job_runtime
from jobs.stores import new_items, new_job

from smartbatch._clock import Clock, VirtualClock
from smartbatch.jobs.records import JobLease, JobRow
from smartbatch.jobs.steps import StepResult
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.supervision import Supervision
from smartbatch.jobs.watching import Changes
from smartbatch.jobs.wiring import JobRuntime

T = TypeVar("T")

PATIENCE = 20.0  # real seconds


class _Changes(Changes):
    def __init__(self, clock: Clock, changed: Callable[[str], object]) -> None:
        super().__init__(clock, threading.Lock())
        self._changed = changed

    def notify(self, job_id: str, *, progress: bool = False) -> None:
        super().notify(job_id, progress=progress)
        self._changed(job_id)


def supervision_of(
    runtime: JobRuntime,
    run_step: Callable[[JobLease], StepResult],
    realtime: Any,
    changed: Callable[[str], object] = lambda _: None,
) -> Supervision:
    controls: Any = SimpleNamespace(new_actions=lambda: None)
    changes = _Changes(runtime.clock, changed)
    return Supervision(runtime, changes, set(), controls, run_step, realtime)


class RecordingRunner:
    problem = None

    def on_own_thread(self) -> bool:
        return False

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def offer(self, lease: JobLease) -> None:
        self.told.append(("offer", lease.job_id))

    def recall(self, job_id: str) -> None:
        self.told.append(("recall", job_id))

    def forget(self, job_id: str) -> None:
        self.told.append(("forget", job_id))


class Scene:
    """A store in virtual time, and supervisors whose steps a test scripts."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.place = str(folder / "jobs.db")
        self.realtime = RecordingRunner()
        self.steps: list[tuple[float, str]] = []
        self.reports: list[tuple[str | None, BaseException]] = []
        self.script: Callable[[JobLease, int], StepResult] = lambda *_: StepResult()
        self.serves: Callable[[JobRow], bool] = lambda _: True
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._open: list[SqlStore] = []
        self.store = self.another_store()

    def another_store(self) -> SqlStore:
        store = open_store(self.place, wall=self.clock.wall, rng=random.Random(len(self._open)))
        self._open.append(store)
        return store

    def supervisor(self, store: SqlStore | None = None, *, seed: int = 1) -> Supervision:
        runtime = job_runtime(
            store or self.store,
            self.clock,
            random.Random(seed),
            report=lambda job_id, error: self.reports.append((job_id, error)),
            provider_of=lambda row: object() if self.serves(row) else None,
        )
        return supervision_of(runtime, self._run_step, self.realtime)

    def accept(self, name: str, *, scope: str = "scope-1") -> str:
        row, _ = self.store.jobs.accept(new_job(f"job-{name:0>16}", scope=scope), new_items(2))
        return row.id

    def _run_step(self, lease: JobLease) -> StepResult:
        with self._lock:
            count = self._counts[lease.job_id] = self._counts.get(lease.job_id, 0) + 1
            self.steps.append((self.clock.now(), lease.job_id))
        try:
            return self.script(lease, count)
        finally:
            with self._news:
                self._news.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, PATIENCE), self.steps[-20:]

    @contextmanager
    def held_step(self, end: Callable[[JobLease], StepResult]) -> Iterator[Supervision]:
        """Start a supervisor, and let its first step end with ``end`` after the block."""
        entered, leave = threading.Event(), threading.Event()
        threads: list[threading.Thread] = []

        def step(lease: JobLease, _: int) -> StepResult:
            threads.append(threading.current_thread())
            entered.set()
            leave.wait(PATIENCE)
            return end(lease)

        self.script = step
        supervisor = self.supervisor()
        supervisor.start()
        assert entered.wait(PATIENCE)
        yield supervisor
        leave.set()
        threads[0].join(PATIENCE)
        assert not threads[0].is_alive()

    def in_step(self, work: Callable[[], T]) -> T:
        """Do something on a thread for which the virtual time waits."""
        done: list[T] = []

        def run() -> None:
            self.clock.began()
            try:
                done.append(work())
            finally:
                self.clock.ended()

        thread = threading.Thread(target=run)
        self.clock.spawned()
        thread.start()
        thread.join(PATIENCE)
        return done[0]

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.close()
