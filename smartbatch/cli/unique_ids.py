"""Whether the ids of many rows are unique, in 8 bytes of memory per row."""

from __future__ import annotations

import hashlib
from array import array
from typing import Final

_AT_ONCE: Final = 100_000
"""Ids that are compared in one set."""


def digest_of_id(id: str | int) -> bytes:
    """Return 64 bits that stand for an id; a number has those of its text."""
    return hashlib.blake2b(str(id).encode("utf-8", "surrogatepass"), digest_size=8).digest()


class UniqueIds:
    """The ids of rows, as digests."""

    def __init__(self) -> None:
        self._digests = array("Q")

    def add(self, id: str | int) -> None:
        """Add the id of the next row."""
        self._digests.frombytes(digest_of_id(id))

    @property
    def suspects(self) -> set[bytes]:
        """The digests that several ids have: of equal ids, or by chance of different ones."""
        parts = len(self._digests) // _AT_ONCE + 1
        found: set[int] = set()
        for part in range(parts):
            seen: set[int] = set()
            for digest in self._digests:
                if digest % parts == part:
                    (found if digest in seen else seen).add(digest)
        return {array("Q", [digest]).tobytes() for digest in found}
