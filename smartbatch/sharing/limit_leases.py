"""The thread that leases limits for the clients of a process, ahead of their need; no gate waits for it."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from attrs import define

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import identity
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

LEAVE = 0.5
"""Seconds that a client which ends waits until what it leased is given back."""

FIRST_WAIT = 10.0
"""Seconds for which a process that has met no other waits for a place that others use without a pause, as
happens where many begin in one second: how much is safe next to them, it does not know."""

_RETRY, _RETRY_MOST, _RETRY_INCOMPATIBLE = 0.5, 5.0, 60.0
"""Seconds until a back end that was unavailable is tried again, at first and at most, and one that others use
in another version: they may be renewed."""


class Share(Protocol):
    """Something that processes share, and this one's lease of it. One thread calls it, without any lock."""

    scope: str
    """Name it, with ``model``, for all processes alike."""

    @property
    def model(self) -> str:
        """See ``scope``."""
        ...

    def tell(self, event: Event) -> None:
        """Tell an event to the clients' observers."""
        ...

    @property
    def is_used(self) -> bool:
        """Whether a client uses it; forgotten ones do not."""
        ...

    @property
    def waits(self) -> bool:
        """Whether an exchange is awaited, or something is leased that has to go back."""
        ...

    def due(self, now: float) -> float:
        """Return when the next exchange is due."""
        ...

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk:
        """Return what to tell and ask in an exchange that begins now."""
        ...

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        """Use what that exchange gave."""
        ...

    def lose(self, now: float, incompatible: str) -> int | None:
        """It could not be made; where the back end is lost by that, return the processes seen last.

        ``incompatible`` says why waiting does not help, where it does not; else it is empty.
        """
        ...

    def wake(self) -> None:
        """Tell the clients that calls may go now."""
        ...

    def end(self) -> None:
        """Share it no more."""
        ...


@define(eq=False)
class _Joined:
    """A share and its exchanges."""

    share: Share
    lost_at: float = -math.inf
    again_at: float = -math.inf
    retry: float = _RETRY
    is_leaving: bool = False
    has_met: bool = False


class SharedLeases:
    """Exchanges with one back end for the quotas of this process.

    Args:
        back_end: where the limits are kept.
        clock: time and waiting.

    Attributes:
        member: this process, by a name that no other has.
    """

    def __init__(self, back_end: BackEnd, clock: Clock) -> None:
        self._back_end = back_end
        self._clock = clock
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
        """The back end's address, without secrets."""
        return self._back_end.place

    def join(self, share: Share) -> None:
        """Share something with other processes from now on.

        Raises:
            RuntimeError: no thread can be had for it, so it is not shared.
        """
        with self._monitor:
            self._joined[id(share)] = _Joined(share)
            self._begin_locked()

    def tell_of(self, metrics: BatchMetrics, look: Look) -> None:
        """Publish how a client stands, every few seconds from now on; see :class:`Publication`."""
        self._publication.add(metrics, look)
        with self._monitor:
            try:
                self._begin_locked()
            except RuntimeError as error:  # no thread can be had: nobody but those that look is concerned
                logs.warn("shared_limits_not_published", place=self.place, reason=str(error))

    def tell_end_of(self, metrics: BatchMetrics) -> None:
        """Publish no more of a client than what it counted; waits for that for half a second at most."""
        self._publication.remove(metrics)
        with self._monitor:
            if self._thread is not None and not self._is_unavailable and self._publication.due() == -math.inf:
                self._begin_locked()
                self._left.wait_for(lambda: self._publication.due() > -math.inf, LEAVE)

    def record_with(self, metrics: BatchMetrics) -> Participant | None:
        """Return what this process tells, as it is now; ``None`` unless it tells of a client with these
        figures, and before anything can have been told."""
        if self._salt is None or not self._publication.tells_of(metrics):
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
        """Give back what was leased, and share it no more; waits for that for half a second at most."""
        with self._monitor:
            joined = self._joined.get(id(share))
            if joined is None:
                return
            joined.is_leaving = self._woken = True
            self._monitor.notify()
            self._left.wait_for(lambda: self._joined.get(id(share)) is not joined, LEAVE)

    def wake(self) -> None:
        """An exchange became due. Called under a share's lock, which the thread never waits for in here."""
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
        """Make the exchanges that are due, and wait for the next; False when nothing is shared any more."""
        with self._monitor:
            self._woken = False
            all_joined = list(self._joined.values())
        due = min((self._exchanged(joined) for joined in all_joined), default=math.inf)
        due = min(due, self._published())
        idle = not any(joined.share.waits for joined in all_joined)  # may take locks: not under the monitor
        if not self._is_needed:  # before the next thread can begin, which would use what this one closes
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
        """Make an exchange if it is due; return when the next one is. The cases, in order:

        1. It is not due, and the share does not leave: later.
        2. It is made: what it gave is used.
        3. It fails: it is tried again after a while.

        Where the share leaves, it is forgotten after 2 and 3. One that leaves while an exchange is on its way
        gives back what it has in the next one, which :meth:`leave` has made due.
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
        except Exception as error:  # nothing may end this thread: requests wait for it
            self._lose(joined, BackEndUnavailable(f"{self.place} cannot be used ({type(error).__name__})"))
        else:
            share.adopt(grant, self._clock.now())
            self._restore(joined)
        if leaves:
            share.end()
            with self._monitor:
                if self._joined.get(id(share)) is joined:  # else it joined again meanwhile
                    del self._joined[id(share)]
                self._left.notify_all()
            return math.inf
        share.wake()
        return max(share.due(self._clock.now()), joined.again_at)

    def _exchange(self, joined: _Joined, asked: LeaseAsk) -> LeaseGrant:
        """Make an exchange. One that others leave no room for was not made: the first is made again then."""
        until = self._clock.now() + (0.0 if joined.has_met else FIRST_WAIT)
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
        """Do something at the back end, and count it and its seconds.

        Where it fails, the back end is prepared before the next time: it may have been made anew.
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
        """Publish if that is due; return when the next time is. While the back end is unavailable, leases
        are tried first: a try may take seconds.
        """
        publication = self._publication
        due = publication.due()
        if due > self._clock.now():
            return due
        try:
            if self._is_unavailable:
                raise BackEndUnavailable(self.place)
            self._hidden("")  # what it needs for that, before locks of clients are taken
            record = publication.record(self._counted, self._hidden)
            text, told = text_of(record), publication.told
            self._timed("publish", lambda: self._back_end.publish(self.member, text, told))
            publication.told = record.sums
        except BackEndUnavailable:
            publication.put_off(RECORD_SECONDS)
        except Exception as error:  # nobody but those that look is concerned, and it would be so again
            publication.put_off(math.inf)
            logs.warn("shared_limits_not_published", place=self.place, reason=str(error))
        with self._monitor:
            self._left.notify_all()
        return publication.due()

    def _lose(self, joined: _Joined, error: SmartbatchError) -> None:
        self._is_unavailable = True
        share, now = joined.share, self._clock.now()
        joined.again_at, joined.retry = now + joined.retry, min(2.0 * joined.retry, _RETRY_MOST)
        if isinstance(error, Incompatible):
            joined.again_at = now + _RETRY_INCOMPATIBLE
        processes = share.lose(now, str(error) if isinstance(error, Incompatible) else "")
        if processes is not None:
            joined.lost_at = now
            share.tell(
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
        joined.again_at, joined.retry = -math.inf, _RETRY
        if joined.lost_at > -math.inf:
            now, share = self._clock.now(), joined.share
            seconds, joined.lost_at = now - joined.lost_at, -math.inf
            share.tell(
                SharedLimitsRestored(
                    at=now, place=self.place, scope=share.scope, model=share.model, seconds=seconds
                )
            )


# By process: a forked child leases for itself.
_leases: dict[tuple[tuple[int, bool], str, int], SharedLeases] = {}


def shared_leases(address: str, clock: Clock) -> SharedLeases:
    """Return what leases at ``address`` for this process; ``auto`` is a file in the user's state folder.

    Raises:
        ConfigError: the address cannot be read, or a package is missing.
    """
    address = full_address(address)
    key = (identity(), address, 0 if isinstance(clock, RealClock) else id(clock))
    found = _leases.get(key)
    return found or _leases.setdefault(key, SharedLeases(open_back_end(address, clock.now), clock))


def leases_of(address: str, clock: Clock, *, has_account: bool) -> SharedLeases | None:
    """Return what leases for a client with the setting ``shared``; ``None`` where it shares nothing.

    By itself, with ``auto``, that is only where there is an account at a provider, and time is real.

    Raises:
        ConfigError: as :func:`shared_leases`.
    """
    alone = not has_account or not isinstance(clock, RealClock)
    return None if address == "off" or (address == "auto" and alone) else shared_leases(address, clock)


def record_with(metrics: BatchMetrics) -> Participant | None:
    """Return what this process tells where it tells of the client with these figures, as it is now; ``None``
    where that is nowhere."""
    own = [leases for (process, _, _), leases in list(_leases.items()) if process == identity()]
    return next((found for leases in own if (found := leases.record_with(metrics)) is not None), None)
