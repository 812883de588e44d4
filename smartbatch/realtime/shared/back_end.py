"""Where shared limits are kept: what every back end does."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from smartbatch.core.limits.shared_record import Account, LeaseAsk, LeaseGrant, Member, SharedRecord
from smartbatch.errors import SmartbatchError

VERSION = 3
"""Of the records and of the rules by which they change; processes of different versions do not share."""

TIMEOUT = 2.0
"""Seconds that an exchange may take."""


DAMAGES = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading a record raises that is not as it was written."""


class BackEndUnavailable(SmartbatchError):
    """The back end of shared limits cannot be reached, is slow, or holds a damaged record."""


class BackEndBusy(BackEndUnavailable):
    """Others have used it for :data:`TIMEOUT` seconds without a pause: it is there, and nothing was done."""


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
    """Keeps the records of shared quotas, and those of processes. Used by one thread at a time.

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

    @abstractmethod
    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        """Perform one exchange with the record ``key``, as a whole, by the back end's clock.

        Raises:
            BackEndUnavailable: it cannot be reached; the exchange may have been made. Or it came late, or the
                record is damaged.
        """

    @abstractmethod
    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        """Keep a process's record, and add to the sums of all what its ``sums`` are more than those of its
        last record; than ``before`` where there is none. Records older than
        :data:`~smartbatch.observe.participants.KEPT` seconds go; the sums stay.

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


def record_of(document: dict[str, Any]) -> SharedRecord:
    """Return a record from its stored form."""
    members = {name: Member(**one) for name, one in document.pop("members").items()}
    accounts = {name: Account(**one) for name, one in document.pop("accounts").items()}
    return SharedRecord(**document, members=members, accounts=accounts)


def document_of(record: SharedRecord) -> dict[str, Any]:
    """Return the form in which a record is stored."""
    return asdict(record)
