"""Quotas of this process. Clients that share a provider's limits share counters and cooldowns.

They are stored by provider scope and model rather than in a client, because a script that creates a client
per list must not get a full burst each time. Each quota has a leaf lock, held only for arithmetic.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from attrs import evolve, frozen

from smartbatch._fork import PerProcess
from smartbatch.core.limits.cooldown import FlexHealth
from smartbatch.core.limits.lease import LimitLease
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.events import Event
from smartbatch.observe import logs
from smartbatch.sharing.limit_leases import SharedLeases

MAX_UNUSED_QUOTAS = 1_000
"""Unused quotas kept for later clients, about 5 kB each. A service with one key per customer would otherwise
accumulate them.
"""


@frozen(eq=False, repr=False)
class _LeaseOwner:
    max_rpm: float | None
    max_tpm: float | None
    wake: Callable[[], None]
    shares: bool


@frozen(eq=False, repr=False)
class Sharing:
    leases: SharedLeases
    scope: str
    model: str
    on_lost: str  # see :class:`~smartbatch.core.limits.lease.LimitLease`
    publish_event: Callable[[Event], None]


class _QuotaShare:
    """A quota as a :class:`~smartbatch.sharing.limit_leases.Share`."""

    def __init__(self, quota: SharedQuota, sharing: Sharing) -> None:
        self.scope, self.model = sharing.scope, sharing.model
        self._publish_event = sharing.publish_event
        self.leases = sharing.leases
        self._shared = quota
        self._lease = LimitLease(self.leases.member, self.leases.wake, sharing.on_lost)
        quota.quota.lease = self._lease

    @property
    def is_used(self) -> bool:
        return self._shared.has_owners

    @property
    def waits(self) -> bool:
        return self._lease.is_used

    def due(self, now: float) -> float:
        with self._shared.lock:
            return self._lease.due(now)

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk:
        with self._shared.lock:
            return self._lease.ask(now, self._shared.quota.facts(now), leaving=leaving)

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        with self._shared.lock:
            self._lease.adopt(grant, now)
            if self._shared.quota.lease is self._lease:  # otherwise a client has attached in the meantime
                self._shared.quota.follow(now)

    def lose(self, now: float, incompatible: str) -> int | None:
        with self._shared.lock:
            grant = self._lease.grant
            lost = self._lease.lose(now, incompatible)
            return (0 if grant is None else grant.members) if lost else None

    def wake(self) -> None:
        self._shared.wake_all()

    def publish_event(self, event: Event) -> None:
        self._publish_event(event)

    def end(self) -> None:
        if self._shared.quota.lease is self._lease:
            self._shared.quota.lease = None


class SharedQuota:
    """A :class:`~smartbatch.core.limits.quota.Quota` with its lock, and the clients that use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards quota and flex; taken after a client's monitor, never before it
        self.quota = Quota()
        self.flex = FlexHealth()
        self._owners: weakref.WeakKeyDictionary[object, _LeaseOwner] = weakref.WeakKeyDictionary()
        self._share: _QuotaShare | None = None

    def attach(
        self,
        owner: object,
        max_rpm: float | None,
        max_tpm: float | None,
        *,
        now: float,
        wake: Callable[[], None],
        sharing: Sharing | None = None,
        has_account: bool = False,
    ) -> None:
        """Let ``owner`` use the quota. The lowest limit of all owners applies; owners are held weakly.

        ``wake`` is called without a lock when a call of another owner ends, another owner leaves, or the
        share of this process grows. The first owner with ``sharing`` decides how the quota is shared. If
        there is an account, an unknown limit is approached slowly.
        """
        with self.lock:
            self._owners[owner] = _LeaseOwner(max_rpm, max_tpm, wake, sharing is not None)
            self._configure_locked(now)
            if has_account:
                self.quota.approach()
            joined: _QuotaShare | None = None
            # a lease without a share is being returned and must not be used
            if sharing is not None and (self.quota.lease is None or self._share is None):
                joined = self._share = _QuotaShare(self, sharing)
        if joined is None:
            return
        try:
            joined.leases.join(joined)
        except RuntimeError as error:  # no thread can be started, so nothing is shared
            joined.end()
            logs.warn("shared_limits_off", error=str(error))

    def limit(self, owner: object, max_rpm: float | None, max_tpm: float | None, now: float) -> None:
        with self.lock:
            known = self._owners.get(owner)
            if known is None or (known.max_rpm, known.max_tpm) == (max_rpm, max_tpm):
                return
            self._owners[owner] = evolve(known, max_rpm=max_rpm, max_tpm=max_tpm)
            self._configure_locked(now)
        self.wake_all()

    def detach(self, owner: object, now: float) -> None:
        """Remove ``owner`` and its limits. Its past usage still counts. No lock may be held."""
        with self.lock:
            self._owners.pop(owner, None)  # a garbage-collected owner is already gone
            if self._owners:
                self._configure_locked(now)
            leaves = None
            if not any(other.shares for other in self._owners.values()):
                leaves, self._share = self._share, None
        if leaves is not None:
            leaves.leases.leave(leaves)
        self.wake_others(owner)

    @property
    def has_owners(self) -> bool:
        return bool(self._owners)

    def wake_all(self) -> None:
        """Make all clients check whether calls may be sent. No lock may be held."""
        with self.lock:
            wakers = [owner.wake for owner in self._owners.values()]
        for wake in wakers:
            wake()

    def wake_others(self, owner: object) -> None:
        """Notify the other clients that a call has ended. No lock may be held."""
        if len(self._owners) == 1 and owner in self._owners:  # usually there are no other clients
            return
        with self.lock:
            wakers = [other.wake for key, other in self._owners.items() if key is not owner]
        for wake in wakers:
            wake()

    def _configure_locked(self, now: float) -> None:
        rpms = [owner.max_rpm for owner in self._owners.values() if owner.max_rpm is not None]
        tpms = [owner.max_tpm for owner in self._owners.values() if owner.max_tpm is not None]
        self.quota.configure(min(rpms, default=None), min(tpms, default=None), now)


class _Quotas:
    """Quotas by provider scope and model; only the latest of those without a client are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], SharedQuota] = {}
        self._most = 2 * MAX_UNUSED_QUOTAS

    def get(self, scope: str, model: str) -> SharedQuota:
        with self._lock:
            quota = self._known.pop((scope, model), None) or SharedQuota()
            self._known[scope, model] = quota
            if len(self._known) > self._most:
                unused = [key for key, known in self._known.items() if not known.has_owners]
                for key in unused[:-MAX_UNUSED_QUOTAS]:
                    del self._known[key]
                self._most = len(self._known) + MAX_UNUSED_QUOTAS
        return quota


# A forked child starts with new quotas: a thread of the parent may hold the inherited locks.
_quotas = PerProcess(_Quotas)


def shared_quota(scope: str, model: str) -> SharedQuota:
    return _quotas.get().get(scope, model)


def forget_all() -> None:
    _quotas.take()
