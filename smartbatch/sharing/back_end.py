"""Back ends of shared limits, which read a record, apply the sharing rule and write the record back."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from attrs import asdict, frozen

from smartbatch.core.limits.shared_limit import (
    Account,
    LateExchange,
    LeaseAsk,
    LeaseGrant,
    Member,
    QuotaKind,
    SharedRecord,
    exchange,
)
from smartbatch.errors import SmartbatchError

_T = TypeVar("_T")

RecordUpdate: TypeAlias = Callable[[str | None, float], tuple[str, _T]]

RECORD_VERSION = 1
"""Version of the records and of the sharing rule. Processes with different versions do not share limits."""

TIMEOUT_SECONDS = 2.0
"""Seconds for which a back end waits for a lock, a server or an answer."""


_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""Exceptions raised by reading a damaged record."""


class BackEndUnavailable(SmartbatchError):
    """The back end of shared limits cannot be reached, is slow, or contains a damaged record."""


class BackEndBusy(BackEndUnavailable):
    """Other processes kept the back end busy for :data:`TIMEOUT_SECONDS`. Nothing was changed."""


class Incompatible(SmartbatchError):
    """The back end is used by another version or another machine, or is not one for shared limits."""


@frozen
class Published:
    records: list[tuple[float, str]]  # age in seconds, by the back end's clock, and text of each record
    sums: dict[str, float]  # totals of all processes that ever published


class BackEnd(ABC):
    """Stores shared limits, and the records that processes publish. Used by one thread at a time."""

    place: str  # the address as shown to users, without secrets

    @abstractmethod
    def prepare(self) -> bytes:
        """Create what is missing in the back end, and return the salt that hides names in it.

        Raises:
            BackEndUnavailable: the back end cannot be reached.
            Incompatible: the back end is used by another version.
        """

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        """Change the record ``key`` by the sharing rule, in one transaction, and return the grant.

        Raises:
            BackEndUnavailable: the back end cannot be reached, and the record may have been changed; or
                nothing was changed, because the record is damaged or a later exchange of this client
                arrived first.
        """

        def decide(stored: str | None, now: float) -> tuple[str, LeaseGrant]:
            try:
                record = SharedRecord() if stored is None else _record_of(stored)
                grant = exchange(record, ask, now)
            except _DAMAGES as error:
                raise self._damaged(error) from None
            return json.dumps(asdict(record)), grant

        try:
            return self.update(key, decide, is_durable=ask.kind is QuotaKind.BUDGET)
        except LateExchange as error:
            raise BackEndUnavailable(f"{self.place} cannot be used: {error}") from None

    @abstractmethod
    def update(self, key: str, decide: RecordUpdate[_T], *, is_durable: bool) -> _T:
        """Read a record, call ``decide``, and write the record, without changes by other processes in
        between.

        Args:
            decide: given the stored text (``None`` for a new record) and the back end's time, returns the
                new text of the record and a result. It must have no side effects, because Redis may call it
                several times.
            is_durable: whether the change must survive a power failure.

        Raises:
            BackEndUnavailable: as in :meth:`exchange`.
        """

    @abstractmethod
    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        """Store a process's record, and add the growth of its sums to the totals of all processes.

        Records older than :data:`~smartbatch.observe.participants.RETENTION_SECONDS` are removed; totals are
        kept. If the same record is published again, nothing is counted twice.

        Args:
            before: the sums that count as already published if the last record of this process is gone.

        Raises:
            BackEndUnavailable: the back end cannot be reached; the record may have been stored.
        """

    @abstractmethod
    def published(self) -> Published: ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the next operation opens another."""

    def _gains(self, record: str, last: str | None, before: Mapping[str, float]) -> dict[str, float]:
        """Return the growth of a record's sums since the ``last`` record, or since ``before``.

        They are sorted by name, so that processes lock the rows of the totals in the same order.
        """
        sums: Mapping[str, float] = json.loads(record)["sums"]
        try:
            known: Mapping[str, float] = before if last is None else json.loads(last)["sums"]
            gained = {name: value - known.get(name, 0.0) for name, value in sorted(sums.items())}
        except _DAMAGES as error:
            raise self._damaged(error) from None
        return {name: gain for name, gain in gained.items() if gain}

    def _damaged(self, error: Exception) -> BackEndUnavailable:
        return BackEndUnavailable(f"{self.place} contains a damaged record ({type(error).__name__})")


def check_version(found: str, place: str, other: str) -> None:
    """Check the version of the records; ``other`` names an alternative for processes with another version.

    Raises:
        Incompatible: the version is not :data:`RECORD_VERSION`.
    """
    if found != str(RECORD_VERSION):
        raise Incompatible(
            f"the limits at {place} are stored in version {found} of their format, and this process "
            f"uses version {RECORD_VERSION}: install the same smartbatch everywhere, or use another {other}"
        )


def hidden(salt: bytes, name: str) -> str:
    """Return a name that reveals nothing to readers of the back end: a salted hash of 128 bits."""
    return hashlib.blake2b(name.encode(), key=salt, digest_size=16).hexdigest()


def _record_of(text: str) -> SharedRecord:
    document = json.loads(text)
    members = {name: Member(**one) for name, one in document.pop("members").items()}
    accounts = {name: Account(**one) for name, one in document.pop("accounts").items()}
    return SharedRecord(**document, members=members, accounts=accounts)
