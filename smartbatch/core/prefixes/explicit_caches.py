"""Which calls of a list create and read explicit caches, and when a cache is no longer needed.

Requests always find an explicit cache, but its creation costs as much as its tokens, and its storage is
billed by the hour. A list creates one for a prefix if its remaining uses save more than the creation and
an hour of storage cost, compared with the implicit cache, which is found only sometimes. Requests with an
unknown number of uses only read existing caches.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from attrs import define, field, frozen

from smartbatch.core.prefixes.leads import Lead, Urgency
from smartbatch.shared_prefixes import CachingRules, SharedPrefix
from smartbatch.usage import Usage

LIFETIME_SECONDS = 3600.0
"""Requested for each cache. A list that takes longer creates another one if that still pays off."""
RELIED_SECONDS = 0.95 * LIFETIME_SECONDS
"""A cache is read for this long after the start of the call that created it; then another one is created."""
IDLE_SECONDS = 600.0
"""A cache is deleted if no request has used it for this long, even if uses are left."""
MAX_PREFIXES = 4_096
LEAST_READ_SHARE = 0.4
"""An entry was read if at least this share of its estimated tokens, which may be too high, was read."""
_MAX_FAILURES = 2  # creations that had no effect, until no more are tried
_EXPECTED_HITS, _EXPECTED_TRIES = 4.0, 8.0  # of the implicit cache, in addition to those observed


def saved_share(rules: CachingRules, uses: int) -> float:
    """Return the share of a prefix's price that each of its uses saves with a cache that is yet to be
    created and stored for an hour; negative for a loss.
    """
    return 1 - rules.read - (1 + (rules.storage or 0.0)) / uses


def pays(rules: CachingRules, uses: int) -> bool:
    """Whether a cache probably saves more than the implicit one, before any hits of that one are known."""
    return saved_share(rules, uses) > (1 - rules.read) * _EXPECTED_HITS / _EXPECTED_TRIES


@frozen
class ExplicitUse:
    """What a call does with the explicit cache of a prefix."""

    prefix: SharedPrefix
    does: Literal["create", "read"]


@define(eq=False)
class _ListUses:
    """The uses of a prefix by one list."""

    prefix: SharedPrefix  # the same object in all requests of the list
    begun: int = 0  # calls that are under way or were answered
    answered: int = 0
    latest: float = -math.inf  # start of the latest call


@define(eq=False)
class _PrefixState:
    lists: list[_ListUses] = field(factory=list)
    lead: Lead | None = None  # the latest call that created the cache
    exists: bool = False  # the cache may exist
    in_flight: int = 0  # calls that use it
    used: float = -math.inf  # start of the latest call that used it
    failures: int = 0

    def is_live(self, now: float) -> bool:
        lead = self.lead
        return lead is not None and lead.readable and now < lead.started + RELIED_SECONDS

    def uses_by(self, prefix: SharedPrefix) -> _ListUses | None:
        return next((each for each in self.lists if each.prefix is prefix), None)

    @property
    def left(self) -> int:
        """Known uses that have not begun."""
        return sum(max(0, each.prefix.uses - each.begun) for each in self.lists)

    @property
    def is_unneeded(self) -> bool:
        return self.in_flight == 0 and all(each.answered >= each.prefix.uses for each in self.lists)


class ExplicitCaches:
    """The explicit caches of one model, as part of its cache entries.

    Args:
        rules: with a price of storage.
    """

    def __init__(self, rules: CachingRules) -> None:
        self._rules = rules
        self._states: OrderedDict[str, _PrefixState] = OrderedDict()
        self._existing: dict[str, _PrefixState] = {}
        self._unneeded: list[str] = []
        self._hits, self._tries = _EXPECTED_HITS, _EXPECTED_TRIES  # of the implicit cache
        self._works = False
        self._failures = 0

    def choose(self, prefixes: Sequence[SharedPrefix], now: float, *, creates: bool) -> ExplicitUse | None:
        """Choose the explicit cache for a call that starts now; ``None`` if the implicit one saves more.

        Args:
            prefixes: the prefixes of the request, shortest first.
            creates: whether the call may create a cache. If so, it is one of the known uses.
        """
        share = (1 - self._rules.read) * self._hits / self._tries
        best, found = share * prefixes[-1].tokens, None
        for prefix in prefixes:
            state = self._state_of(prefix)
            if creates and prefix.uses:
                self._count(state, prefix, now)
            gain = self._gain(state, prefix, now, creates=creates)
            if gain > best:
                best, found = gain, prefix
        if found is None:
            return None
        state = self._state_of(found)
        state.in_flight += 1
        state.used = now
        return ExplicitUse(found, "read" if state.is_live(now) else "create")

    def led(self, prefix: SharedPrefix, lead: Lead) -> None:
        """Note the call that creates a cache."""
        state = self._existing[prefix.key] = self._state_of(prefix)
        state.lead, state.exists = lead, True

    def lead_of(
        self, prefixes: Sequence[SharedPrefix], now: float, urgency: Urgency, left: float
    ) -> Lead | None:
        """Return the call that is creating a cache, if waiting for it pays off.

        Args:
            left: seconds for which an answer usually has not begun after a call has started.
        """
        for prefix in reversed(prefixes):
            state = self._states.get(prefix.key)
            if state is None or (lead := state.lead) is None or lead.released:
                continue
            seconds = max(0.0, lead.started + left - now)
            return lead if urgency.pays(prefix, 1 - self._rules.read, seconds) else None
        return None

    def reads(self, prefixes: Sequence[SharedPrefix], now: float) -> bool:
        """Whether a cache of one of the prefixes can be read."""
        found = (self._states.get(prefix.key) for prefix in prefixes)
        return any(state is not None and state.is_live(now) for state in found)

    def ended(
        self,
        counted: Sequence[SharedPrefix],
        used: SharedPrefix | None,
        started: float,
        usage: Usage | None,
    ) -> None:
        """Note the end of a call.

        Args:
            counted: the prefixes of the request, if it is one of the known uses.
            used: the prefix whose explicit cache it used.
            usage: ``None`` if the call failed or reported none.
        """
        if used is not None:
            state = self._state_of(used)
            state.in_flight -= 1
            state.used = max(state.used, started)
            lead = state.lead
            if usage is not None and usage.cached_tokens >= LEAST_READ_SHARE * used.tokens:
                self._works = True
            elif lead is not None and lead.released and (usage is not None or not lead.readable):
                state.lead = None
                state.failures += usage is not None  # otherwise, the request failed
                self._failures += usage is not None
        for prefix in counted:
            state = self._state_of(prefix)
            if (uses := state.uses_by(prefix)) is not None:
                uses.begun -= usage is None
                uses.answered += usage is not None
            if state.exists and state.is_unneeded:
                self._release(prefix.key, state)

    def observe_implicit(self, prefix: SharedPrefix, usage: Usage) -> None:
        """Note whether a request found its prefix in the implicit cache."""
        self._tries += 1
        self._hits += usage.cached_tokens >= LEAST_READ_SHARE * prefix.tokens

    def expire(self, now: float) -> float:
        """Release the caches that were not used for long. Return the time of the next release."""
        following = math.inf
        for key, state in list(self._existing.items()):
            at = state.used + IDLE_SECONDS
            if state.in_flight == 0 and at <= now:
                self._release(key, state)
            else:
                following = min(following, max(at, now + 1.0))
        return following

    def take_unneeded(self) -> list[str]:
        """Return the keys of the prefixes whose caches should be deleted. Each is returned once."""
        taken, self._unneeded = self._unneeded, []
        return taken

    def _gain(self, state: _PrefixState, prefix: SharedPrefix, now: float, *, creates: bool) -> float:
        """Return the input tokens that a request saves; a creation is spread over the uses that are left."""
        saved = (1 - self._rules.read) * prefix.tokens
        if state.is_live(now):
            return saved
        left = state.left + 1
        is_led = state.lead is not None and not state.lead.readable
        if not creates or not prefix.uses or is_led or self._gave_up(state):
            return 0.0
        return saved_share(self._rules, left) * prefix.tokens

    def _gave_up(self, state: _PrefixState) -> bool:
        return state.failures >= _MAX_FAILURES or (not self._works and self._failures >= _MAX_FAILURES)

    def _count(self, state: _PrefixState, prefix: SharedPrefix, now: float) -> None:
        uses = state.uses_by(prefix)
        if uses is None:
            # some uses of earlier lists may never come, because their requests failed
            state.lists = [each for each in state.lists if each.latest > now - IDLE_SECONDS]
            uses = _ListUses(prefix)
            state.lists.append(uses)
            state.failures = 0
        uses.begun += 1
        uses.latest = now

    def _release(self, key: str, state: _PrefixState) -> None:
        state.lead, state.exists = None, False
        self._existing.pop(key, None)
        self._unneeded.append(key)

    def _state_of(self, prefix: SharedPrefix) -> _PrefixState:
        state = self._states.get(prefix.key)
        if state is None:
            state = self._states[prefix.key] = _PrefixState()
            if len(self._states) > MAX_PREFIXES:
                key, oldest = next(iter(self._states.items()))
                if not oldest.exists and not oldest.in_flight:
                    del self._states[key]
        return state
