"""Which keys of a long list were seen before, in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from struct import Struct

NEAR = 1_000
"""Distinct keys before one that are near it."""
MOST = 1_500_000
"""Distinct keys that are remembered, in some 7 MB; further ones are compared with these."""
_PARTS = 0xFFF
_PARSE = Struct("<HI")


class DistinctKeys:
    """Remembers 44 bits of each key: of a million distinct ones, one in thirty such lists has two that agree.

    Keys are digests of at least 6 bytes. They are spread over 4,096 sorted arrays, so that one is looked up
    and inserted in less than a microsecond.
    """

    def __init__(self) -> None:
        self._parts: dict[int, array[int]] = {}
        self._count = 0
        self._near: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def is_near(self, key: bytes) -> bool:
        """Whether ``key`` is one of the latest :data:`NEAR` distinct ones; it is one of them from now on."""
        near = self._near
        if key in near:
            return True
        near.add(key)
        self._order.append(key)
        if len(near) > NEAR:
            near.remove(self._order.popleft())
        return False

    def seen(self, key: bytes) -> bool:
        """Whether ``key`` was asked about before."""
        part, digest = _PARSE.unpack_from(key)
        part &= _PARTS
        known = self._parts.get(part)
        if known is None:
            known = self._parts[part] = array("I")
        at = bisect_left(known, digest)
        if at < len(known) and known[at] == digest:
            return True
        if self._count < MOST:
            self._count += 1
            known.insert(at, digest)
        return False
