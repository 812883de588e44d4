"""The thread that leases limits for the clients of a process, ahead of their need; no gate waits for it."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from attrs import define

from smartbatch._clock import Clock
from smartbatch._files import state_folder
from smartbatch._fork import identity
from smartbatch.core.limits.lease import LimitLease
from smartbatch.core.limits.quota import Quota
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event, SharedLimitsLost, SharedLimitsRestored
from smartbatch.observe import logs
from smartbatch.realtime.shared.addresses import open_back_end
from smartbatch.realtime.shared.back_end import BackEnd, BackEndAway, hidden

LEAVE = 0.5
"""Seconds that a client which ends waits until what it leased is given back."""

_RETRY, _RETRY_MOST = 0.5, 5.0
"""Seconds until a back end that was away is tried again: at first, and at most."""


class Leasable(Protocol):
    """A quota of this process, with its lock."""

    lock: threading.Lock
    quota: Quota

    @property
    def has_owners(self) -> bool:
        """Whether a client uses it; forgotten ones do not."""
        ...

    def wake_all(self) -> None:
        """Tell the clients that calls may go now."""
        ...


@define(eq=False)
class _Share:
    """One quota and its lease."""

    quota: Leasable
    lease: LimitLease
    scope: str
    model: str
    tell: Callable[[Event], None]
    key: str = ""
    lost_at: float = -math.inf
    again_at: float = -math.inf
    retry: float = _RETRY
    is_leaving: bool = False


class SharedLeases:
    """Exchanges with one back end for the quotas of this process.

    Args:
        back_end: where the limits are kept.
        clock: time and waiting.
    """

    def __init__(self, back_end: BackEnd, clock: Clock) -> None:
        self._back_end = back_end
        self._clock = clock
        self._member = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._monitor = clock.monitor()
        self._left = clock.monitor(self._monitor.lock)
        self._shares: dict[int, _Share] = {}
        self._salt: bytes | None = None
        self._thread: threading.Thread | None = None
        self._woken = False

    @property
    def place(self) -> str:
        """The back end's address, without secrets."""
        return self._back_end.place

    def join(
        self, quota: Leasable, scope: str, model: str, *, on_lost: str, tell: Callable[[Event], None]
    ) -> None:
        """Share ``quota`` with other processes from now on; no call of it goes before the first exchange.

        Args:
            on_lost: see :class:`~smartbatch.core.limits.lease.LimitLease`.
            tell: told when the back end is lost, and when it is there again.
        """
        share = _Share(quota, LimitLease(self._member, self.wake, on_lost), scope, model, tell)
        with quota.lock:
            quota.quota.lease = share.lease
        with self._monitor:
            self._shares[id(quota)] = share
            self._woken = True
            self._monitor.notify()
            if self._thread is None:
                self._start_locked()

    def _start_locked(self) -> None:
        thread = threading.Thread(target=self._run, name="smartbatch-limits", daemon=True)
        self._clock.spawned()
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be had: each process for itself
            self._clock.unspawned()
            for share in self._shares.values():
                share.quota.quota.lease = None
            self._shares.clear()
            logs.warn("shared_limits_off", error=str(error))
        else:
            self._thread = thread

    def leave(self, quota: Leasable) -> None:
        """Give back what ``quota`` leased, and share it no more; waits for that for half a second at most."""
        with self._monitor:
            share = self._shares.get(id(quota))
            if share is None:
                return
            share.is_leaving = self._woken = True
            self._monitor.notify()
            self._left.wait_for(lambda: self._shares.get(id(quota)) is not share, LEAVE)

    def wake(self) -> None:
        """An exchange became due. Called under a quota's lock, which the thread never waits for in here."""
        with self._monitor:
            self._woken = True
            self._monitor.notify()

    def _run(self) -> None:
        self._clock.began()
        try:
            while self._round():
                pass
        finally:
            self._back_end.close()
            self._clock.ended()

    def _round(self) -> bool:
        """Make the exchanges that are due, and wait for the next; False when nothing is shared any more."""
        with self._monitor:
            self._woken = False
            shares = list(self._shares.values())
        due = min((self._exchanged(share) for share in shares), default=math.inf)
        with self._monitor:
            if not self._shares:
                self._thread = None
                return False
            if not self._woken:
                idle = all(not share.lease.is_used for share in self._shares.values())
                self._monitor.wait(max(0.0, due - self._clock.now()), idle=idle)
        return True

    def _exchanged(self, share: _Share) -> float:
        """Make the exchange of one quota if it is due; return when the next one is."""
        now = self._clock.now()
        with share.quota.lock:
            due = max(share.lease.due(now), share.again_at)
            share.is_leaving |= not share.quota.has_owners
            if due > now and not share.is_leaving:
                return due
            asked = share.lease.ask(now, share.quota.quota.facts(now), leaving=share.is_leaving)
        try:
            if self._salt is None:
                self._salt = self._back_end.prepare()
            share.key = share.key or hidden(self._salt, f"{share.scope}\n{share.model}")
            grant = self._back_end.exchange(share.key, asked)
        except SmartbatchError as error:
            self._lose(share, error)
        else:
            with share.quota.lock:
                now = self._clock.now()
                share.lease.adopt(grant, now)
                share.quota.quota.follow(now)
            self._restore(share)
        if share.is_leaving:
            self._drop(share)
            return math.inf
        share.quota.wake_all()
        with share.quota.lock:
            return max(share.lease.due(self._clock.now()), share.again_at)

    def _drop(self, share: _Share) -> None:
        with share.quota.lock:
            if share.quota.quota.lease is share.lease:
                share.quota.quota.lease = None
        with self._monitor:
            self._shares.pop(id(share.quota), None)
            self._left.notify_all()

    def _lose(self, share: _Share, error: SmartbatchError) -> None:
        now = self._clock.now()
        share.again_at, share.retry = now + share.retry, min(2.0 * share.retry, _RETRY_MOST)
        if not isinstance(error, BackEndAway):
            share.again_at = math.inf  # others use it in another way: it stays so
        with share.quota.lock:
            grant = share.lease.grant
            begins = share.lease.lose(now)
        if begins:
            share.lost_at = now
            share.tell(
                SharedLimitsLost(
                    at=now,
                    place=self.place,
                    scope=share.scope,
                    model=share.model,
                    reason=str(error),
                    processes=0 if grant is None else grant.members,
                )
            )
            logs.warn("shared_limits_lost", place=self.place, reason=str(error))

    def _restore(self, share: _Share) -> None:
        share.again_at, share.retry = -math.inf, _RETRY
        if share.lost_at > -math.inf:
            now = self._clock.now()
            seconds, share.lost_at = now - share.lost_at, -math.inf
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
    if address == "auto":
        address = f"sqlite:///{os.path.join(state_folder(), 'limits.db')}"
    key = (identity(), address, id(clock))
    found = _leases.get(key)
    return found or _leases.setdefault(key, SharedLeases(open_back_end(address, clock.now), clock))
