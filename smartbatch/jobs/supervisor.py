"""The supervisor: a few threads that carry the jobs of a store on, for as long as the process lives.

One thread watches the time: it claims jobs nobody alive owns, renews leases, also while a remote call takes
long, and hands out what is due. A few hands tend jobs, each one step of one job at a time.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from random import Random

from attrs import define

from smartbatch._clock import Clock
from smartbatch.core.limits.backoff import backoff
from smartbatch.errors import SmartbatchError, StoreError
from smartbatch.jobs.dependencies import Asker, StepResult
from smartbatch.jobs.records import JobLease, JobRow
from smartbatch.jobs.store.base import LeaseLost, Store

__all__ = ["HANDS", "LEASE", "LOOK_EVERY", "JobSupervisor"]

LEASE = 15.0
"""Seconds a job belongs to a process that does not renew: so long a frozen one keeps others waiting."""
RENEW_EVERY = 5.0
"""Seconds between renewals: two may fail before the lease is over."""
LOOK_EVERY = 10.0
"""Seconds between looks for jobs that others left, and at what others asked of the own ones."""
HANDS = 4
"""Jobs tended at the same time: a long upload of one must not hold up the polls of the others."""
CLAIMS = 200
"""Jobs claimed in one look, so that the leases of the first are renewed in time."""
LONGEST_PAUSE = 60.0
"""Seconds between two tries of a step that the store, or a mistake of ours, keeps from ending."""


@define(eq=False)
class _Held:
    """A job this process owns."""

    lease: JobLease
    row: JobRow
    due: float = -math.inf
    busy: bool = False
    poked: bool = False
    stumbles: int = 0
    trouble: str | None = None


class JobSupervisor:
    """Owns jobs and tends them. Start it once; after :meth:`stop` it is over.

    Args:
        store: where the jobs are.
        tend: does one step of a job.
        serves: whether this process can do anything for a job.
        unknown: the body with which items of unknown outcome end when a job is taken over, or ``None`` to ask
            them again.
        asker: asks items alone.
        changed: called, with no lock held, after every step.
        report: told of what went wrong: the job's id, where it is about one, and the error.
        clock, rng: time and waiting; dice for pauses.
    """

    def __init__(
        self,
        store: Store,
        *,
        run_step: Callable[[JobLease], StepResult],
        serves: Callable[[JobRow], bool],
        unknown: Callable[[JobRow], bytes | None],
        asker: Asker,
        changed: Callable[[], None],
        report: Callable[[str | None, BaseException], None],
        clock: Clock,
        rng: Random,
    ) -> None:
        self._store = store
        self._run_step = run_step
        self._serves = serves
        self._unknown = unknown
        self._asker = asker
        self._changed = changed
        self._report = report
        self._clock = clock
        self._rng = rng
        self._monitor = clock.monitor()
        self._hands = clock.monitor(self._monitor.lock)
        self._idle = clock.monitor(self._monitor.lock)
        self._held: dict[str, _Held] = {}
        self._ready: deque[_Held] = deque()
        self._mine = threading.local()
        self._threads = self._resting = self._working = 0
        self._look_at = self._renew_at = -math.inf
        self._ahead = clock.wall() - clock.now()
        self._halted = self._stopping = self._watching = False
        self._trouble: str | None = None

    # -- for others ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that watches. Starting twice is fine."""
        with self._monitor:
            if self._watching or self._stopping:
                return
            self._watching = True
            self._spawn_locked(self._watch, "smartbatch-keeper")

    def poke(self, job_id: str | None = None) -> None:
        """Look at a job at once, or for new ones."""
        with self._monitor:
            held = None if job_id is None else self._held.get(job_id)
            if held is None:
                self._look_at = -math.inf
            elif held.busy:
                held.poked = True
            else:
                held.due = -math.inf
            self._monitor.notify()

    def owns(self, job_id: str) -> bool:
        """Whether this process carries the job on."""
        with self._monitor:
            return job_id in self._held

    def trouble(self, job_id: str) -> str | None:
        """What keeps this process from carrying the job on, in words."""
        with self._monitor:
            held = self._held.get(job_id)
            return self._trouble if held is None else held.trouble or self._trouble

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread of the supervisor, in an observer of the user's."""
        return getattr(self._mine, "here", False)

    def halt(self) -> None:
        """Begin no further step and claim nothing more, but keep what is owned: the first half of a stop."""
        with self._monitor:
            self._halted = True
            self._ready.clear()
            self._monitor.notify_all()

    def stop(self, grace: float) -> None:
        """Begin no further step, wait up to ``grace`` seconds for those under way, give all jobs back.

        A step that is not over by then goes on, but cannot write any more.
        """
        until = self._clock.now() + grace
        with self._monitor:
            self._halted = self._stopping = True
            self._monitor.notify_all()
            self._hands.notify_all()
            mine = 1 if self.on_own_thread() else 0
            while self._working > mine:
                remaining = until - self._clock.now()
                if remaining <= 0:
                    break
                self._idle.wait(remaining)
            held = list(self._held.values())
            self._held.clear()
            self._ready.clear()
        for one in held:
            self._give_back(one.lease)

    # -- the thread that watches -----------------------------------------------------------------------------

    def _watch(self) -> None:
        self._clock.began()
        self._mine.here = True
        try:
            while (errand := self._next_errand()) is not None:
                try:
                    errand()
                except BaseException as error:  # nothing may end this thread: leases depend on it
                    self._troubled(None, error)
                finally:
                    self._over()
        finally:
            self._clock.ended()

    def _next_errand(self) -> Callable[[], None] | None:
        """Wait for the next thing to do; hand out jobs that are due meanwhile."""
        with self._monitor:
            while not self._stopping:
                now = self._clock.now()
                errand: Callable[[], None] | None = None
                if self._held and now >= self._renew_at:
                    self._renew_at, errand = now + RENEW_EVERY, self._renew
                elif now >= self._look_at and not self._halted:
                    self._look_at, errand = now + LOOK_EVERY, self._look
                if errand is not None:
                    self._working += 1
                    return errand
                soonest = math.inf
                if not self._halted:
                    soonest = min(self._hand_out_locked(), self._look_at - now)
                if self._held:
                    soonest = min(soonest, self._renew_at - now)
                if soonest > 0:
                    self._monitor.wait(None if soonest == math.inf else soonest)
            return None

    def _hand_out_locked(self) -> float:
        """Queue every job that is due; return the seconds to the next one that will be."""
        wall, soonest = self._clock.wall(), math.inf
        for held in self._held.values():
            if held.busy:
                continue
            if held.due > wall:
                soonest = min(soonest, held.due - wall)
                continue
            held.busy = True
            self._ready.append(held)
        missing = len(self._ready) - self._resting
        if self._ready:
            self._hands.notify(len(self._ready))
        while missing > 0 and self._threads < HANDS:
            missing -= 1
            if not self._spawn_locked(self._work, "smartbatch-jobs"):
                return min(soonest, RENEW_EVERY)
            self._threads += 1
        return soonest

    def _renew(self) -> None:
        with self._monitor:
            leases = [held.lease for held in self._held.values()]
        kept = set(self._store.renew(leases, LEASE))
        self._trouble = None
        for lease in leases:
            if lease not in kept:
                self._drop(lease)

    def _look(self) -> None:
        """Claim what nobody alive owns; notice what others asked of the own jobs."""
        self._notice()
        if self._woke():
            with self._monitor:
                self._look_at = self._clock.now() + 2 * RENEW_EVERY
            return
        claims = 0
        for row in self._store.claimable(limit=100_000):
            if self._halted:
                return
            if not self._serves(row):
                continue
            lease = self._store.claim(row.id, LEASE, unknown=self._unknown(row))
            if lease is None:
                continue
            if not self._take_in(_Held(lease, row)):
                return
            claims += 1
            if claims == CLAIMS:
                self.poke()
                break
        self._trouble = None

    def _woke(self) -> bool:
        """Whether the wall clock ran ahead since the last look: it was set, or the machine slept.

        Then leases are over whose owners are alive, and had no time to renew them.
        """
        before, self._ahead = self._ahead, self._clock.wall() - self._clock.now()
        return self._ahead - before > RENEW_EVERY

    def _take_in(self, held: _Held) -> bool:
        with self._monitor:
            if not self._halted:
                if not self._held:
                    self._renew_at = self._clock.now() + RENEW_EVERY
                self._held[held.lease.job_id] = held
                return True
        self._give_back(held.lease)  # stopped meanwhile
        return False

    def _notice(self) -> None:
        with self._monitor:
            mine = list(self._held.values())
        for held in mine:
            row = self._store.job(held.lease.job_id)
            before, held.row = held.row, row or held.row
            asked = row is not None and row.cancel_requested and not before.cancel_requested
            if asked:
                self._asker.recall(held.lease.job_id)
            if asked or row is None or row.state is not before.state:
                self.poke(held.lease.job_id)

    # -- the hands -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._clock.began()
        self._mine.here = True
        try:
            while (held := self._take()) is not None:
                try:
                    self._step(held)
                finally:
                    self._over()
        finally:
            self._clock.ended()

    def _take(self) -> _Held | None:
        with self._hands:
            while not self._ready and not self._stopping:
                self._resting += 1
                try:
                    self._hands.wait()
                finally:
                    self._resting -= 1
            if self._stopping:
                return None
            self._working += 1
            return self._ready.popleft()

    def _step(self, held: _Held) -> None:
        """Tend one job once; whatever happens, it is tended again."""
        lease = held.lease
        try:
            step_result = self._run_step(lease)
            if step_result.direct and not step_result.finished:
                self._asker.offer(lease)
        except LeaseLost:
            self._drop(lease)
            return
        except BaseException as error:
            self._stumbled(held, error)
            return
        held.stumbles, held.trouble = 0, None
        if step_result.finished:
            self._drop(lease)
        else:
            self._put_back(held, math.inf if step_result.next_at is None else step_result.next_at)
        self._changed()

    def _stumbled(self, held: _Held, error: BaseException) -> None:
        held.stumbles += 1
        if held.stumbles == 1:  # told once, not with every try
            self._troubled(held.lease.job_id, error)
        held.trouble = in_words(error)
        wait = backoff(held.stumbles, self._rng, first=2.0, longest=LONGEST_PAUSE)
        self._put_back(held, self._clock.wall() + wait)

    def _put_back(self, held: _Held, due: float) -> None:
        with self._monitor:
            held.due = -math.inf if held.poked else due
            held.busy = held.poked = False
            self._monitor.notify()

    def _over(self) -> None:
        with self._monitor:
            self._working -= 1
            self._idle.notify_all()

    # -- endings ---------------------------------------------------------------------------------------------

    def _drop(self, lease: JobLease) -> None:
        """Let go of a job: it is finished, or somebody else's."""
        with self._monitor:
            held = self._held.get(lease.job_id)
            if held is not None and held.lease == lease:
                del self._held[lease.job_id]
        self._asker.forget(lease.job_id)
        self._give_back(lease)
        self._changed()

    def _give_back(self, lease: JobLease) -> None:
        try:
            self._store.release(lease)
        except SmartbatchError as error:  # the lease runs out, or the process ends: that says the same
            self._report(lease.job_id, error)

    def _troubled(self, job_id: str | None, error: BaseException) -> None:
        if job_id is None:
            if self._trouble is not None:
                return
            self._trouble = in_words(error)
        self._report(job_id, error)

    def _spawn_locked(self, target: Callable[[], None], name: str) -> bool:
        """Start a daemon thread: a call that never returns must not keep the interpreter from ending."""
        self._clock.spawned()
        try:
            threading.Thread(target=target, name=name, daemon=True).start()
        except RuntimeError as error:  # no thread can be had: a limit of the system, or its end
            self._clock.unspawned()
            self._trouble = in_words(error)
            return False
        return True


def in_words(error: BaseException) -> str:
    """Return what keeps a job from going on; of foreign errors, which may hold anything, the class only."""
    if isinstance(error, StoreError):
        return error.message
    return f"an error inside smartbatch ({type(error).__name__}); it is tried again"
