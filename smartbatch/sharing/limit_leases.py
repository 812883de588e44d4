"""Leases parts of shared limits in advance for the clients of a process, on a thread that blocks no gate."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Protocol, TypeVar

from attrs import define

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import identity
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event, SharedLimitsLost, SharedLimitsRestored
from smartbatch.observe import logs
from smartbatch.observe.families import OPERATION_SECONDS, OPERATIONS, key_of
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import RECORD_SECONDS, Participant, text_of
from smartbatch.sharing.addresses import full_address, open_back_end
from smartbatch.sharing.back_end import BackEnd, BackEndBusy, BackEndUnavailable, Incompatible, hidden
from smartbatch.sharing.publication import Look, Publication

_T = TypeVar("_T")
_client_numbers = itertools.count(1)

LEAVE_SECONDS = 0.5
"""Maximum seconds for which a stopping client waits until its leases are returned."""

FIRST_WAIT_SECONDS = 10.0
"""Maximum seconds for which a process waits for its first exchange while others keep the back end busy,
because it does not know which part of a limit is safe to use."""

_RETRY_SECONDS, _MAX_RETRY_SECONDS, _INCOMPATIBLE_RETRY_SECONDS = 0.5, 5.0, 60.0
"""Seconds until a failed back end is tried again: after the first failure, at most, and if it is used by
another version, because the other processes may have been upgraded by then."""


class Share(Protocol):
    """A limit that processes share, and this process's lease of it. Called by one thread, without locks."""

    scope: str
    """Identifies the share, together with ``model``, in all processes."""

    @property
    def model(self) -> str: ...

    def publish_event(self, event: Event) -> None: ...

    @property
    def is_used(self) -> bool: ...

    @property
    def waits(self) -> bool:
        """Whether calls are waiting for an exchange, or a lease has to be returned."""
        ...

    def due(self, now: float) -> float: ...

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk: ...

    def adopt(self, grant: LeaseGrant, now: float) -> None: ...

    def lose(self, now: float, incompatible: str) -> int | None:
        """Handle a failed exchange; return the last known number of processes if the back end is now
        considered lost.

        ``incompatible`` is the reason why waiting does not help, or empty.
        """
        ...

    def wake(self) -> None:
        """Let the clients check whether calls can be sent now."""
        ...

    def end(self) -> None: ...


@define(eq=False)
class _Joined:
    share: Share
    lost_at: float = -math.inf  # when the back end became unavailable
    again_at: float = -math.inf  # earliest next attempt
    retry: float = _RETRY_SECONDS  # seconds until the next attempt after a failure
    is_leaving: bool = False
    has_met: bool = False  # an exchange has succeeded


class SharedLeases:
    """Makes the exchanges with one back end for all shares of this process."""

    def __init__(self, back_end: BackEnd, clock: Clock) -> None:
        self._back_end = back_end
        self._clock = clock
        # unique name of this process
        self.member = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._publication = Publication(self.member, clock)
        self._counted: dict[str, float] = {}
        self._is_unavailable = False
        self._monitor = clock.monitor()
        self._left = clock.monitor(self._monitor.lock)
        self._joined: dict[int, _Joined] = {}
        self._salt: bytes | None = None
        self._thread: threading.Thread | None = None
        self._woken = False

    @property
    def place(self) -> str:
        return self._back_end.place

    def join(self, share: Share) -> None:
        """Start sharing a limit with other processes.

        Raises:
            RuntimeError: no thread can be started, so the limit is not shared.
        """
        with self._monitor:
            self._joined[id(share)] = _Joined(share)
            self._begin_locked()

    def publish_client(self, metrics: BatchMetrics, look: Look) -> None:
        """Start publishing a client's state every few seconds; see :class:`Publication`."""
        self._publication.add(metrics, look)
        with self._monitor:
            try:
                self._begin_locked()
            except RuntimeError as error:  # no thread can be started; affects only readers of the records
                logs.warn("shared_limits_not_published", place=self.place, reason=str(error))

    def unpublish_client(self, metrics: BatchMetrics) -> None:
        """Publish only a client's sums from now on; waits up to half a second for the first such record."""
        self._publication.remove(metrics)
        with self._monitor:
            if self._thread is not None and not self._is_unavailable and self._publication.due() == -math.inf:
                self._begin_locked()
                self._left.wait_for(lambda: self._publication.due() > -math.inf, LEAVE_SECONDS)

    def record_with(self, metrics: BatchMetrics) -> Participant | None:
        """Return the current record of this process if it includes the client with these figures.

        ``None`` is also returned if nothing can have been published yet.
        """
        if self._salt is None or not self._publication.includes(metrics):
            return None
        return self._publication.current(self._counted, self._hidden)

    def _begin_locked(self) -> None:
        self._woken = True
        self._monitor.notify()
        if self._thread is None:
            self._start_locked()

    def _start_locked(self) -> None:
        thread = threading.Thread(target=self._run, name="smartbatch-limits", daemon=True)
        self._clock.spawned()
        try:
            thread.start()
        except RuntimeError:
            self._clock.unspawned()
            self._joined.clear()
            raise
        self._thread = thread

    def leave(self, share: Share) -> None:
        """Return the lease and stop sharing; waits up to half a second for the exchange."""
        with self._monitor:
            joined = self._joined.get(id(share))
            if joined is None:
                return
            joined.is_leaving = self._woken = True
            self._monitor.notify()
            self._left.wait_for(lambda: self._joined.get(id(share)) is not joined, LEAVE_SECONDS)

    def wake(self) -> None:
        """Wake the thread because an exchange is due.

        Called under a share's lock. The thread never waits for such a lock while it holds this monitor.
        """
        with self._monitor:
            self._woken = True
            self._monitor.notify()

    def _run(self) -> None:
        self._clock.began()
        try:
            while self._round():
                pass
        finally:
            self._clock.ended()

    def _round(self) -> bool:
        """Make the exchanges that are due, and wait for the next one; return False if nothing is shared."""
        with self._monitor:
            self._woken = False
            all_joined = list(self._joined.values())
        due = min((self._exchanged(joined) for joined in all_joined), default=math.inf)
        due = min(due, self._published())
        # outside the monitor, because it may take locks
        idle = not any(joined.share.waits for joined in all_joined)
        if not self._is_needed:  # close it before another thread that would use it can start
            self._back_end.close()
            self._salt = None
        with self._monitor:
            if not self._is_needed:
                self._thread = None
                return False
            if not self._woken:
                self._monitor.wait(max(0.0, due - self._clock.now()), idle=idle)
        return True

    def _exchanged(self, joined: _Joined) -> float:
        """Make an exchange if it is due; return when the next one is due.

        A share that is leaving is dropped after an exchange, even a failed one. If it leaves during an
        exchange, it returns its leases in the next one, which :meth:`leave` has made due.
        """
        share, now = joined.share, self._clock.now()
        due = max(share.due(now), joined.again_at)
        joined.is_leaving |= not share.is_used
        leaves = joined.is_leaving
        if due > now and not leaves:
            return due
        asked = share.ask(now, leaving=leaves)
        try:
            grant = self._exchange(joined, asked)
        except SmartbatchError as error:
            self._lose(joined, error)
        except Exception as error:  # no error may end this thread, because requests wait for it
            self._lose(joined, BackEndUnavailable(f"{self.place} cannot be used ({type(error).__name__})"))
        else:
            share.adopt(grant, self._clock.now())
            self._restore(joined)
        if leaves:
            share.end()
            with self._monitor:
                if self._joined.get(id(share)) is joined:  # false if the share has joined again
                    del self._joined[id(share)]
                self._left.notify_all()
            return math.inf
        share.wake()
        return max(share.due(self._clock.now()), joined.again_at)

    def _exchange(self, joined: _Joined, asked: LeaseAsk) -> LeaseGrant:
        """Make an exchange. The first one is repeated while the back end is busy, because nothing was
        changed."""
        until = self._clock.now() + (0.0 if joined.has_met else FIRST_WAIT_SECONDS)
        while True:
            try:
                key = self._hidden(f"{joined.share.scope}\n{joined.share.model}")
                grant = self._timed("exchange", partial(self._back_end.exchange, key, asked))
            except BackEndBusy:
                if joined.is_leaving or self._clock.now() >= until:
                    raise
            else:
                joined.has_met = True
                return grant

    @property
    def _is_needed(self) -> bool:
        return bool(self._joined) or self._publication.due() < math.inf

    def _hidden(self, name: str) -> str:
        if self._salt is None:
            self._salt = self._back_end.prepare()
        return hidden(self._salt, name)

    def _timed(self, what: str, operation: Callable[[], _T]) -> _T:
        """Run an operation of the back end, and record its count and duration.

        After a failure, the back end is prepared again before the next operation, because it may have been
        re-created.
        """
        began = self._clock.now()
        try:
            return operation()
        except Exception:
            self._salt = None
            raise
        finally:
            for family, more in ((OPERATIONS, 1.0), (OPERATION_SECONDS, self._clock.now() - began)):
                key = key_of(family, what)
                self._counted[key] = self._counted.get(key, 0.0) + more

    def _published(self) -> float:
        """Publish a record if one is due; return when the next one is due.

        While the back end is unavailable, nothing is published, because an attempt may take seconds and
        delay leases.
        """
        publication = self._publication
        due = publication.due()
        if due > self._clock.now():
            return due
        try:
            if self._is_unavailable:
                raise BackEndUnavailable(self.place)
            self._hidden("")  # prepare the back end before taking locks of clients
            record = publication.record(self._counted, self._hidden)
            text, before = text_of(record), publication.published_sums
            self._timed("publish", lambda: self._back_end.publish(self.member, text, before))
            publication.published_sums = record.sums
        except BackEndUnavailable:
            publication.put_off(RECORD_SECONDS)
        except Exception as error:  # affects only readers of the records, and would happen again
            publication.put_off(math.inf)
            logs.warn("shared_limits_not_published", place=self.place, reason=str(error))
        with self._monitor:
            self._left.notify_all()
        return publication.due()

    def _lose(self, joined: _Joined, error: SmartbatchError) -> None:
        self._is_unavailable = True
        share, now = joined.share, self._clock.now()
        joined.again_at, joined.retry = now + joined.retry, min(2.0 * joined.retry, _MAX_RETRY_SECONDS)
        if isinstance(error, Incompatible):
            joined.again_at = now + _INCOMPATIBLE_RETRY_SECONDS
        processes = share.lose(now, str(error) if isinstance(error, Incompatible) else "")
        if processes is not None:
            joined.lost_at = now
            share.publish_event(
                SharedLimitsLost(
                    at=now,
                    place=self.place,
                    scope=share.scope,
                    model=share.model,
                    reason=str(error),
                    processes=processes,
                )
            )
            logs.warn("shared_limits_lost", place=self.place, reason=str(error))

    def _restore(self, joined: _Joined) -> None:
        self._is_unavailable = False
        joined.again_at, joined.retry = -math.inf, _RETRY_SECONDS
        if joined.lost_at > -math.inf:
            now, share = self._clock.now(), joined.share
            seconds, joined.lost_at = now - joined.lost_at, -math.inf
            share.publish_event(
                SharedLimitsRestored(
                    at=now, place=self.place, scope=share.scope, model=share.model, seconds=seconds
                )
            )


ENQUEUED_RETRY_SECONDS = 60.0
"""Seconds until an unavailable back end is tried again. An attempt may take seconds, and jobs continue
without it."""


class EnqueuedTokens:
    """Exchanges for the enqueued tokens of batches, made by the threads that run jobs. Thread-safe.

    Exchanges are rare, one whenever a batch is created or polled, so each uses a separate connection.
    """

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = full_address(address)
        self._clock = clock
        self._unavailable_until = -math.inf

    def __call__(self, scope: str, model: str, asked: LeaseAsk) -> LeaseGrant | None:
        """Make one exchange; ``None`` while the back end is unavailable."""
        if self._clock.now() < self._unavailable_until:
            return None
        try:
            with closing(open_back_end(self._address, self._clock.now)) as back_end:
                key = hidden(back_end.prepare(), f"enqueued tokens\n{scope}\n{model}")
                return back_end.exchange(key, asked)
        except Exception as error:
            # the limit still holds, because the provider itself refuses too many tokens
            self._unavailable_until = self._clock.now() + ENQUEUED_RETRY_SECONDS
            logs.warn("enqueued_tokens_not_shared", error=type(error).__name__)
            return None


class BudgetOwner(Protocol):
    budget: Budget

    def guard_budget(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` while no other thread reserves or reconciles money."""
        ...

    def recheck_budget(self) -> None:
        """Check again whether waiting requests can be sent."""
        ...

    def publish_event(self, event: Event) -> None: ...


class BudgetShare:
    """The :class:`Share` of a budget.

    Args:
        name: the name of the budget, the same for all clients that share it.
        limit: USD that all of them may spend together.
        owner: the client; only a weak reference is kept.
    """

    model = "budget"

    def __init__(self, leases: SharedLeases, name: str, limit: float, owner: BudgetOwner) -> None:
        self.scope = name
        self.leases = leases
        self._owner = weakref.ref(owner)
        member = f"{leases.member}:{next(_client_numbers)}"  # each client of a process has its own lease
        self._lease = owner.budget.share(limit, member, leases.wake)

    @property
    def is_used(self) -> bool:
        return self._owner() is not None

    @property
    def waits(self) -> bool:
        return self._guarded(self._lease.waits)

    def due(self, now: float) -> float:
        return math.inf if self._owner() is None else self._guarded(lambda: self._lease.due(now))

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk:
        return self._guarded(lambda: self._lease.ask(now, leaving=leaving))

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        self._guarded(lambda: self._lease.adopt(grant, now))

    def lose(self, now: float, incompatible: str) -> int | None:
        begins = self._guarded(lambda: self._lease.lose(now, incompatible))
        grant = self._lease.grant
        return None if not begins else 0 if grant is None else grant.members

    def wake(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner.recheck_budget()

    def publish_event(self, event: Event) -> None:
        owner = self._owner()
        if owner is not None:
            owner.publish_event(event)

    def end(self) -> None:
        """Keep the lease, because jobs may have reserved part of it."""

    def _guarded(self, work: Callable[[], _T]) -> _T:
        owner = self._owner()
        return work() if owner is None else owner.guard_budget(work)


# By process, because a forked child makes separate leases.
_leases: dict[tuple[tuple[int, bool], str, int], SharedLeases] = {}


def shared_leases(address: str, clock: Clock) -> SharedLeases:
    """Return the leases of this process at ``address``.

    Raises:
        ConfigError: the address is invalid, or a package is missing.
    """
    address = full_address(address)
    key = (identity(), address, 0 if isinstance(clock, RealClock) else id(clock))
    found = _leases.get(key)
    return found or _leases.setdefault(key, SharedLeases(open_back_end(address, clock.now), clock))


def leases_of(address: str, clock: Clock, *, has_account: bool) -> SharedLeases | None:
    """Return the leases for a client's setting ``shared``; ``None`` if it shares nothing.

    With ``auto``, limits are shared only if the client has an account at a provider and uses real time.

    Raises:
        ConfigError: as in :func:`shared_leases`.
    """
    alone = not has_account or not isinstance(clock, RealClock)
    return None if address == "off" or (address == "auto" and alone) else shared_leases(address, clock)


def record_with(metrics: BatchMetrics) -> Participant | None:
    """Return the current record of this process that includes the client with these figures, if there is
    one."""
    own = [leases for (process, _, _), leases in list(_leases.items()) if process == identity()]
    return next((found for leases in own if (found := leases.record_with(metrics)) is not None), None)
