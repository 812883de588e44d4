"""Which chats go on: a request that begins with the whole of an earlier one is its next turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from attrs import define

from smartbatch.shared_prefixes import CachingRules

MAX_CHATS = 4_096


@define(eq=False)
class _ChatKind:
    """How many chats of a kind were sent, and how many of them a later request began with."""

    sent: int = 0
    continued: int = 0


@define(eq=False)
class _SentChat:
    kind: _ChatKind
    continued: bool = False


class ContinuedChats:
    """Guarded by the client's monitor."""

    def __init__(self, rules: CachingRules) -> None:
        self._rules = rules
        self._first = _ChatKind()
        self._later = _ChatKind(1, 1)  # a chat that went on once is expected to go on again
        self._chats: OrderedDict[str, _SentChat] = OrderedDict()

    def goes_on(self, turns: Sequence[str]) -> bool:
        """Note a chat, and return whether a later request will probably read all of it.

        Args:
            turns: the keys of its beginnings that end with a message; the last is that of the whole chat.
        """
        kind = self._first
        for key in turns[:-1]:
            earlier = self._chats.get(key)
            if earlier is not None:
                kind = self._later
                earlier.kind.continued += not earlier.continued
                earlier.continued = True
        goes_on = kind.continued * (1 - self._rules.read) > kind.sent * (self._rules.write - 1)
        if turns[-1] not in self._chats:
            self._chats[turns[-1]] = _SentChat(kind)
            kind.sent += 1
            if len(self._chats) > MAX_CHATS:
                self._chats.popitem(last=False)
        return goes_on
