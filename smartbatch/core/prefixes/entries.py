"""The provider's cache entries of one model, and which of them each real-time call uses.

1. An entry is warm for its lifetime, which begins with the start of each call that writes or reads it.
2. If it is not warm, the next call that uses it writes it, if enough uses are left to pay for the write.
3. Until the answer to that call begins, no other call can read the entry. Requests that use it wait if
   waiting saves more than the time is worth. Otherwise, they are sent without a mark, because a second write
   would cost more.
4. Until an entry of the model has been read for the first time, only two calls with the same entry are in
   flight: one that writes it, and one that shows whether it can be read. Other requests wait until one of
   these calls ends, again only if waiting saves more than the time is worth.
5. An entry whose writes are not read, or that is never written, is no longer used.

For a list, the uses of a prefix are known. For single requests, they are only expected: a prefix that
was used shortly before is written if unread writes have cost little so far, and so is the end of a chat
if chats of this client usually go on.

If a provider offers entries that last for an hour, a prefix is written for an hour if its uses have often
been further apart than the usual lifetime, but less than an hour: often enough that reads after such gaps
would have saved more than the writes after longer gaps, and one to begin with, would have cost.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from attrs import define, evolve, field, frozen

from smartbatch.core.prefixes.continued_chats import ContinuedChats
from smartbatch.core.prefixes.explicit_caches import LEAST_READ_SHARE, ExplicitCaches
from smartbatch.core.prefixes.leads import Lead, Urgency
from smartbatch.shared_prefixes import LONG_SECONDS, CacheMark, CachingRules, SharedPrefix
from smartbatch.usage import Usage

MAX_ENTRIES = 4_096
_FIRST_BYTE_SECONDS = 2.0  # assumed time until an answer begins, before any is observed
_FIRST_BYTE_WEIGHT = 0.2  # weight of the latest answer in the mean
_LONGEST_LEAD_FACTOR = 4.0  # requests wait at most this multiple of the usual time
_SHORTEST_LEAD_SECONDS = 5.0
_LONGEST_LEAD_SECONDS = 60.0
_MARGIN = 0.95  # share of the lifetime for which an entry is relied on
_MAX_LOST_WRITES = 2.0  # surcharges of writes by which an entry may cost more than it saves
_MAX_UNPROVEN = 2  # calls in flight with an entry before one of the model has been read for the first time
_MAX_MISSING = 2  # expected writes that the provider did not report
_LOST_SHARE = 0.005  # of all input tokens, which unread writes for expected uses may cost

StopReason = Literal["its writes are not read", "the provider does not cache it"]


@frozen
class Stopped:
    """An entry is no longer used."""

    prefix: SharedPrefix
    reason: StopReason


@frozen
class Chosen:
    """The entries that a call uses."""

    mark: CacheMark | None
    lead: Lead | None = None
    counted: tuple[SharedPrefix, ...] = ()  # prefixes of which the call is one of the known uses
    unmarked: tuple[SharedPrefix, ...] = ()  # prefixes without marks that the provider may read
    server: str | None = None  # where the call is sent without marks: the key of the entry that it uses

    @property
    def uses_explicit(self) -> bool:
        return self.mark is not None and self.mark.explicit is not None


NOTHING = Chosen(None)


@define(eq=False)
class _CacheEntry:
    seen: float = -math.inf  # when a request with this prefix arrived
    known: SharedPrefix | None = None  # as found in the latest list
    begun: int = 0  # calls since then
    gaps_within_hour: int = 0  # between uses, longer than the usual lifetime
    gaps_beyond_hour: int = 0
    long: bool = False  # the latest write was for an hour
    last: float = -math.inf  # start of the latest call that wrote or read it
    lead: Lead | None = None
    marked: int = 0  # calls in flight of which it is the longest marked entry
    proof: Lead | None = None  # released when one of them ends
    writes: int = 0
    lost: float = 0.0  # what writes have cost in addition, less what reads have saved, per token
    missing: int = 0
    stopped: StopReason | None = None
    # starts of calls in the last minute, by server
    by_server: dict[str, deque[float]] = field(factory=dict)


class CacheEntries:
    """Guarded by the client's monitor."""

    def __init__(self, rules: CachingRules) -> None:
        self.rules = rules
        self.first_byte = _FIRST_BYTE_SECONDS  # mean seconds until an answer begins
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()
        self._leads: set[Lead] = set()
        self._sent = 0.0  # input tokens of all calls
        self._works = False  # an entry has been read
        # None if the client creates none
        self.explicit = None if rules.storage is None else ExplicitCaches(rules)
        self._chats = ContinuedChats(rules)
        self._lost = 0.0  # input tokens that writes have cost in addition, less those that reads have saved

    def recognize(
        self,
        ends: Sequence[SharedPrefix],
        now: float,
        *,
        turns: Sequence[str] = (),
        ends_prompt: bool = False,
    ) -> CacheMark | None:
        """Return those of ``ends`` that a single request shares with earlier ones, and remember all of them.

        The end of a chat that will probably go on is added. If it cannot be marked, the provider is left to
        write it, if it does.

        Args:
            ends: every prefix of the request that could be shared, shortest first.
            turns: keys of the beginnings of a chat, see :class:`ContinuedChats`; empty for other prompts.
            ends_prompt: whether the last of ``ends`` is the whole chat.
        """
        found, long = [], 0
        for prefix in ends:
            entry = self._entry(prefix.key)
            is_recent = self._note_use(entry, now)
            recurs = self._recurs(entry)
            if is_recent or recurs:
                found.append(prefix)
                long = len(found) if recurs else long
        if turns and self._chats.goes_on(turns):
            if not ends_prompt:
                return CacheMark(tuple(found), long, implicit=self.rules.automatic)
            if ends and ends[-1] not in found:
                found.append(ends[-1])
        return CacheMark(tuple(found), long) if found else None

    def expect(self, mark: CacheMark, now: float) -> CacheMark:
        """Note the use of a list's shared prefixes, and return their mark with the lifetimes."""
        long = 0
        for place, prefix in enumerate(mark.prefixes, 1):
            entry = self._entry(prefix.key)
            self._note_use(entry, now)
            long = place if self._recurs(entry) else long
        return mark if long == mark.long else evolve(mark, long=long)

    def lead_of(self, mark: CacheMark, now: float, urgency: Urgency) -> Lead | None:
        """Return the call whose answer the request should wait for, if there is one."""
        if self.explicit is not None:
            if self.explicit.reads(mark.prefixes, now):
                return None
            if (lead := self.explicit.lead_of(mark.prefixes, now, urgency, self.first_byte)) is not None:
                return lead
        for prefix in reversed(mark.prefixes):
            key = prefix.key if self.rules.by == "marks" else self._server(prefix, now)
            entry = self._entries.get(key)
            if entry is None or entry.stopped:
                continue
            is_warm = self._is_warm(entry, now)
            lead = entry.proof if is_warm else entry.lead
            if lead is not None and not lead.released:
                left = max(0.0, lead.started + self.first_byte - now)
                return lead if urgency.pays(prefix, 1 - self.rules.read, left) else None
            if is_warm:
                return None
        return None

    def choose(
        self,
        mark: CacheMark | None,
        now: float,
        *,
        automatic: bool,
        urgency: Urgency,
        creates: bool = False,
    ) -> Chosen:
        """Choose the entries for a call that starts now.

        Args:
            automatic: whether the provider would write the end of the prompt itself.
            urgency: what waiting is worth to the requests that would read what the call writes.
            creates: whether the call may create an explicit cache. If so, it is one of the known uses.
        """
        rules = self.rules
        none = Chosen(CacheMark()) if automatic and rules.automatic else NOTHING
        if mark is not None and mark.implicit:
            return Chosen(None, unmarked=mark.prefixes)
        if mark is None or not mark.prefixes:
            return none
        if rules.by != "marks":
            return self._unmarked(mark, now, creates=creates)
        chosen: list[SharedPrefix] = []
        led: list[str] = []
        last_long: SharedPrefix | None = None
        for place, prefix in reversed(tuple(enumerate(mark.prefixes))):  # the longest first
            entry = self._entry(prefix.key)
            self._count(entry, prefix)
            if entry.stopped or len(chosen) == rules.max_marks:
                continue
            if not (self._works or chosen) and entry.marked >= _MAX_UNPROVEN:
                return none
            is_warm, may_last = self._is_warm(entry, now), place < mark.long
            if not is_warm:
                long = may_last and (last_long is not None or self._pays(entry, prefix, urgency, long=True))
                if entry.lead is not None or not (long or self._pays(entry, prefix, urgency, long=False)):
                    continue
                entry.long = long
                led.append(prefix.key)
            chosen.append(prefix)
            if entry.long and may_last:
                last_long = last_long or prefix
            if is_warm:
                break
        if not chosen:
            return none
        longest = self._entry(chosen[0].key)
        longest.marked += 1
        if not self._works and longest.marked == _MAX_UNPROVEN:
            longest.proof = self._add_lead((), now, _LONGEST_LEAD_SECONDS)
        chosen.reverse()
        lasting = 0 if last_long is None else chosen.index(last_long) + 1
        return Chosen(CacheMark(tuple(chosen), lasting), self._new_lead(led, now) if led else None)

    @property
    def stopped(self) -> Mapping[str, StopReason]:
        """Why prefixes are no longer marked, by key."""
        return {key: entry.stopped for key, entry in self._entries.items() if entry.stopped is not None}

    def began(self, lead: Lead, now: float) -> None:
        """Note that the answer to a call has begun, so that its entries are readable."""
        if lead in self._leads:
            self.first_byte += (now - lead.started - self.first_byte) * _FIRST_BYTE_WEIGHT
            self._release(lead, readable=True)

    def expire(self, now: float) -> float:
        """Release the requests that have waited long enough. Return the time of the next release."""
        for lead in [lead for lead in self._leads if lead.until <= now]:
            self._release(lead, readable=False)
        following = min((lead.until for lead in self._leads), default=math.inf)
        return following if self.explicit is None else min(following, self.explicit.expire(now))

    def ended(self, chosen: Chosen, started: float, usage: Usage | None) -> list[Stopped]:
        """Note the end of a call. ``usage`` is ``None`` if it failed or reported none."""
        lead = chosen.lead
        if lead is not None:
            self._release(lead, readable=usage is not None)
        if self.explicit is not None:
            used = chosen.mark.prefixes[-1] if chosen.mark and chosen.uses_explicit else None
            self.explicit.ended(chosen.counted, used, started, usage)
        if self.rules.by == "marks" and chosen.mark is not None and chosen.mark.prefixes:
            longest = self._entry(chosen.mark.prefixes[-1].key)
            longest.marked -= 1
            if longest.proof is not None:
                self._release(longest.proof, readable=False)
        if usage is None:
            return []
        self._sent += usage.input_tokens
        for prefix, own in _own_tokens(chosen.unmarked):
            if usage.cached_tokens >= LEAST_READ_SHARE * prefix.tokens:
                self._learn(prefix, own, None, started, usage, long=False)
        if chosen.mark is None or chosen.uses_explicit:
            return []
        if chosen.server is not None:
            if self.explicit is not None and lead is None:
                self.explicit.observe_implicit(chosen.mark.prefixes[-1], usage)
            entry = self._entry(chosen.server)
            entry.last = max(entry.last, started)
            return []
        return [
            stopped
            for place, (prefix, own) in enumerate(_own_tokens(chosen.mark.prefixes))
            if (stopped := self._learn(prefix, own, lead, started, usage, long=place < chosen.mark.long))
        ]

    def _learn(
        self,
        prefix: SharedPrefix,
        own: int,
        lead: Lead | None,
        started: float,
        usage: Usage,
        *,
        long: bool,
    ) -> Stopped | None:
        entry, rules = self._entry(prefix.key), self.rules
        surcharge, saved = rules.factor_of_write(long=long) - 1, 1 - rules.read
        if usage.cached_tokens >= LEAST_READ_SHARE * prefix.tokens:
            entry.lost -= saved
            self._works = True
            self._lost = max(0.0, self._lost - saved * own)
        elif usage.cache_write_tokens:
            entry.writes += 1
            entry.lost += surcharge
            self._lost += surcharge * own
        else:
            entry.last = -math.inf
            entry.missing += lead is not None and prefix.key in lead.keys
            if entry.missing >= _MAX_MISSING and not entry.writes:
                return self._stop(entry, prefix, "the provider does not cache it")
            return None
        entry.last = max(entry.last, started)
        if entry.lost > _MAX_LOST_WRITES * surcharge:
            return self._stop(entry, prefix, "its writes are not read")
        return None

    def _stop(self, entry: _CacheEntry, prefix: SharedPrefix, reason: StopReason) -> Stopped | None:
        if entry.stopped is not None:
            return None
        entry.stopped = reason
        return Stopped(prefix, reason)

    def _is_warm(self, entry: _CacheEntry, now: float) -> bool:
        return now - entry.last < _MARGIN * (LONG_SECONDS if entry.long else self.rules.seconds)

    def _note_use(self, entry: _CacheEntry, now: float) -> bool:
        """Note a use of a prefix, and return whether the previous one was shortly before."""
        gap = now - max(entry.seen, entry.last)
        if gap >= self.rules.seconds and gap < _MARGIN * LONG_SECONDS:
            entry.gaps_within_hour += 1
        elif gap >= self.rules.seconds and gap < math.inf:
            entry.gaps_beyond_hour += 1
        entry.seen = now
        return gap < self.rules.seconds

    def _recurs(self, entry: _CacheEntry) -> bool:
        """Whether an entry that lasts for an hour would have saved more than it would have cost."""
        rules = self.rules
        if rules.by != "marks" or rules.long_write is None:
            return False
        saved = entry.gaps_within_hour * (1 - rules.read)
        return saved > (1 + entry.gaps_beyond_hour) * (rules.long_write - 1)

    def _count(self, entry: _CacheEntry, prefix: SharedPrefix) -> None:
        if entry.known is not prefix:
            entry.known, entry.begun = prefix, 0
        entry.begun += 1

    def _pays(self, entry: _CacheEntry, prefix: SharedPrefix, urgency: Urgency, *, long: bool) -> bool:
        """Whether enough uses are left, or expected, to pay for a write."""
        readers = prefix.uses - entry.begun
        if not urgency.pays(prefix, 1 - self.rules.read, self.first_byte):
            readers -= urgency.calls - 1  # they start at once, without waiting for the write
        if prefix.uses and readers + 1 >= self.rules.break_even(long=long):
            return True
        if prefix.uses and not long:
            return False
        allowed = (self.rules.write - 1) * prefix.tokens + _LOST_SHARE * self._sent
        return self._lost <= allowed

    def _new_lead(self, keys: Sequence[str], now: float) -> Lead:
        patience = min(_LONGEST_LEAD_SECONDS, _LONGEST_LEAD_FACTOR * self.first_byte)
        return self._add_lead(keys, now, max(_SHORTEST_LEAD_SECONDS, patience))

    def _add_lead(self, keys: Sequence[str], now: float, patience: float) -> Lead:
        lead = Lead(now, now + patience, tuple(keys))
        self._leads.add(lead)
        for key in keys:
            self._entries[key].lead = lead
        return lead

    def _release(self, lead: Lead, *, readable: bool) -> None:
        self._leads.discard(lead)
        lead.released = True
        lead.readable = lead.readable or readable
        for key in lead.keys:
            entry = self._entries.get(key)
            if entry is not None and entry.lead is lead:
                entry.lead = None
                if readable:
                    entry.last = lead.started

    def _unmarked(self, mark: CacheMark, now: float, *, creates: bool) -> Chosen:
        """Choose an explicit cache, or the implicit one."""
        explicit = self.explicit
        if explicit is None:
            return self._routed(mark.prefixes[-1], now)
        known = tuple(prefix for prefix in mark.prefixes if creates and prefix.uses)
        use = explicit.choose(mark.prefixes, now, creates=creates)
        if use is None:
            return evolve(self._routed(mark.prefixes[-1], now), counted=known)
        lead = None
        if use.does == "create":
            lead = self._new_lead((), now)
            explicit.led(use.prefix, lead)
        return Chosen(CacheMark((use.prefix,), explicit=use.does), lead, known)

    def _routed(self, prefix: SharedPrefix, now: float) -> Chosen:
        server = self._server(prefix, now)
        starts, entry = self._entry(prefix.key).by_server, self._entry(server)
        starts.setdefault(server, deque()).append(now)
        leads = entry.lead is None and not self._is_warm(entry, now)
        lead = self._new_lead((server,), now) if leads else None
        routing_key = "" if server == prefix.key else server
        return Chosen(CacheMark((prefix,), routing_key=routing_key), lead, server=server)

    def _server(self, prefix: SharedPrefix, now: float) -> str:
        """Return the first server that may receive another request with the prefix this minute.

        Unless the prefix was first found in a list, the first one is the server that requests without a
        routing key reach: a single request is only found to share a prefix with one that was sent without a
        key, and a conversation has a longer prefix with each request.
        """
        starts = self._entry(prefix.key).by_server
        for server, times in starts.items():
            while times and times[0] <= now - 60.0:
                times.popleft()
            if len(times) < self.rules.requests_per_key:
                return server
        return f"{prefix.key}-{len(starts)}" if starts or prefix.uses else prefix.key

    def _entry(self, key: str) -> _CacheEntry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _CacheEntry()
            if len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return entry


def _own_tokens(prefixes: Sequence[SharedPrefix]) -> Iterator[tuple[SharedPrefix, int]]:
    """Yield prefixes of one prompt, each with the number of tokens that are not in the shorter ones."""
    shorter = 0
    for prefix in prefixes:
        yield prefix, prefix.tokens - shorter
        shorter = prefix.tokens
