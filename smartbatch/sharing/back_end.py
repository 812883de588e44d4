"""Where processes keep shared limits: back ends read a record, apply the sharing rule and write it back."""

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

Decision: TypeAlias = Callable[[str | None, float], tuple[str, _T]]
"""Returns the new text of a record and a result, from the stored text (``None`` for a new record) and the
time of the back end. It must have no side effects, because Redis may call it several times."""

VERSION = 1
"""Version of the records and of the sharing rule. Processes of different versions do not share."""

TIMEOUT = 2.0
"""Seconds for which a back end waits for a lock, a server or an answer."""


_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading a damaged record raises."""


class BackEndUnavailable(SmartbatchError):
    """The back end of shared limits cannot be reached, is slow, or holds a damaged record."""


class BackEndBusy(BackEndUnavailable):
    """Other processes used the back end for :data:`TIMEOUT` seconds without a pause. Nothing was changed."""


class Incompatible(SmartbatchError):
    """The back end is used by processes of another version, or by another machine, or is of another kind."""


@frozen
class Published:
    """What processes published.

    Attributes:
        records: seconds since each, by the back end's clock, and the record.
        sums: of all processes that ever published.
    """

    records: list[tuple[float, str]]
    sums: dict[str, float]


class BackEnd(ABC):
    """Keeps shared limits, and the records that processes publish. Used by one thread at a time.

    Attributes:
        place: the address for people, without secrets.
    """

    place: str

    @abstractmethod
    def prepare(self) -> bytes:
        """Make what is missing, and return the salt that hides names in this back end.

        Raises:
            BackEndUnavailable: it cannot be reached.
            Incompatible: others use it in another version.
        """

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        """Change the record ``key`` by the sharing rule, in one transaction, and return what is granted.

        Raises:
            BackEndUnavailable: the back end cannot be reached, and the record may have been changed. Or the
                record is damaged, or a later exchange of this client came first; then nothing was changed.
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
    def update(self, key: str, decide: Decision[_T], *, is_durable: bool) -> _T:
        """Read a record, decide, and write it, so that no other process changes it in between.

        Args:
            is_durable: whether the change must survive a loss of power.

        Raises:
            BackEndUnavailable: as :meth:`exchange`.
        """

    @abstractmethod
    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        """Keep a process's record, and add to the totals of all processes what its sums have gained.

        Records older than :data:`~smartbatch.observe.participants.KEPT_SECONDS` are removed; the totals stay.

        Args:
            before: the sums that count as published if the last record of this process is gone.

        Raises:
            BackEndUnavailable: it cannot be reached; the record may have been kept. To publish it, or a later
                one, again counts nothing twice.
        """

    @abstractmethod
    def published(self) -> Published:
        """Return what processes published.

        Raises:
            BackEndUnavailable: it cannot be reached.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the next use opens another."""

    def _gains(self, record: str, last: str | None, before: Mapping[str, float]) -> dict[str, float]:
        """Return what the sums of a published record have gained since the ``last`` one, or since ``before``.

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
        return BackEndUnavailable(f"{self.place} has a damaged record ({type(error).__name__})")


def check_version(found: str, place: str, other: str) -> None:
    """Check the version of the records at a place; ``other`` is what a process of another version may use.

    Raises:
        Incompatible: it is not :data:`VERSION`.
    """
    if found != str(VERSION):
        raise Incompatible(
            f"the limits at {place} are shared by processes of version {found} of their form, and this one "
            f"knows version {VERSION}: use the same smartbatch in all, or another {other}"
        )


def hidden(salt: bytes, name: str) -> str:
    """Return a name that says nothing to who reads the back end: a salted hash of 128 bits."""
    return hashlib.blake2b(name.encode(), key=salt, digest_size=16).hexdigest()


def _record_of(text: str) -> SharedRecord:
    document = json.loads(text)
    members = {name: Member(**one) for name, one in document.pop("members").items()}
    accounts = {name: Account(**one) for name, one in document.pop("accounts").items()}
    return SharedRecord(**document, members=members, accounts=accounts)
