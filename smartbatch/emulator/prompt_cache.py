"""The prompt caches of an emulator: which prefixes are kept, and what a request reads and writes.

It uses no sockets, clocks or random numbers: the time and a drawn number are arguments.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque

from attrs import define, evolve, field, frozen

from smartbatch.emulator.prompt_caching import NO_CACHE, CacheablePrompt, CacheUse, Prefix, PromptCaching

_HOUR = 3600.0
_MINUTE = 60.0


@frozen
class CacheAccess:
    """A request's access to the cache.

    Attributes:
        account: API and key.
        now: monotonic seconds at its arrival.
        chance: a number drawn uniformly from [0, 1), which decides whether a prefix is found.
        line: the batch and the position of a line; ``None`` in real time.
    """

    account: tuple[str, str]
    now: float
    chance: float
    line: tuple[str, int] | None = None


@frozen
class CacheLookup:
    """What a request reads and writes. It changes nothing until :meth:`PromptCaches.keep`."""

    prompt: CacheablePrompt
    access: CacheAccess
    use: CacheUse
    surplus: bool = False  # sent to another machine because its key has too many requests

    @property
    def saved(self) -> float:
        """See :meth:`CacheUse.saved`."""
        return self.use.saved(self.prompt.rates, batch=self.access.line is not None)


@define
class _CachedPrefix:
    """A cached prefix. Times are monotonic seconds."""

    lifetime: float
    readable_at: float
    expires_at: float = 0.0
    lines: dict[str, int] = field(factory=dict)  # position of the last use, by batch


@frozen
class ExplicitCache:
    """A cache that a client created. Times are monotonic seconds."""

    id: str  # with ``cachedContents/``
    account: tuple[str, str]
    model: str
    tokens: int
    created_at: float
    expires_at: float
    storage: float  # price of a token per hour, relative to an input token
    display_name: str | None = None

    @property
    def stored(self) -> float:
        """The price of its storage until it is deleted or expires, in input tokens."""
        return self.tokens * (self.expires_at - self.created_at) / _HOUR * self.storage


class PromptCaches:
    """All prompt caches of an emulator. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # by account, and with OpenAI's automatic cache by machine
        self._entries: dict[tuple[object, ...], dict[bytes, _CachedPrefix]] = defaultdict(dict)
        self._arrivals: dict[tuple[object, ...], deque[float]] = defaultdict(deque)
        self._explicit: dict[str, ExplicitCache] = {}

    def __len__(self) -> int:
        """Return the number of cached prefixes, routes and explicit caches."""
        with self._lock:
            return sum(map(len, self._entries.values())) + len(self._arrivals) + len(self._explicit)

    def look_up(self, prompt: CacheablePrompt, access: CacheAccess, settings: PromptCaching) -> CacheLookup:
        """Return what a request reads and writes.

        Raises:
            Exception: ``prompt.no_such_cache``.
        """
        with self._lock:
            if prompt.explicit is not None:
                found = self._explicit.get(prompt.explicit)
                if found is None or access.line is not None or not _is_live(found, access):
                    assert prompt.no_such_cache is not None
                    raise prompt.no_such_cache
                return CacheLookup(prompt, access, CacheUse(read=found.tokens, added=found.tokens))
            if self._is_surplus(prompt, access):
                return CacheLookup(prompt, access, NO_CACHE, surplus=True)
            read = self._longest(prompt, access, settings)
            return CacheLookup(prompt, access, _use(prompt, 0 if read is None else read.tokens))

    def keep(self, lookup: CacheLookup, begins_at: float) -> None:
        """Write and renew the prefixes of a request that was answered.

        Args:
            begins_at: monotonic seconds at which its answer begins; what it writes is readable from then on.
        """
        prompt, access = lookup.prompt, lookup.access
        if prompt.explicit is not None:
            return
        with self._lock:
            if prompt.key_requests is not None and access.line is None:
                self._arrivals[access.account, prompt.route].append(access.now)
            if lookup.surplus:
                return
            entries = self._entries_of(prompt, access)
            for prefix in prompt.prefixes:
                entry = entries.get(prefix.digest)
                if entry is None or access.now >= entry.expires_at:
                    if prefix.lifetime is None or prefix.tokens < prompt.minimum:
                        continue
                    entry = entries[prefix.digest] = _CachedPrefix(prefix.lifetime, begins_at)
                elif prefix.tokens > lookup.use.read:
                    if prefix.lifetime is None:
                        continue
                    entry.lifetime = max(entry.lifetime, prefix.lifetime)
                    entry.readable_at = min(entry.readable_at, begins_at)
                entry.expires_at = max(entry.expires_at, access.now + entry.lifetime)
                if access.line is not None:
                    batch, position = access.line
                    entry.lines[batch] = position

    def create(self, cache: ExplicitCache) -> None:
        with self._lock:
            self._explicit[cache.id] = cache

    def explicit(self, account: tuple[str, str], now: float) -> list[ExplicitCache]:
        """Return the live explicit caches of an account, newest first."""
        with self._lock:
            caches = reversed(self._explicit.values())
            return [each for each in caches if each.account == account and now < each.expires_at]

    def expire(self, cache: ExplicitCache, at: float) -> ExplicitCache:
        """Change the time at which an explicit cache expires, which is now if it is deleted."""
        with self._lock:
            self._explicit[cache.id] = evolve(cache, expires_at=at)
            return self._explicit[cache.id]

    def prune(self, now: float) -> None:
        """Forget everything that no request after ``now`` can read."""
        with self._lock:
            for place, entries in list(self._entries.items()):
                self._entries[place] = {
                    digest: entry for digest, entry in entries.items() if now < entry.expires_at
                }
                if not self._entries[place]:
                    del self._entries[place]
            for route, arrivals in list(self._arrivals.items()):
                if not arrivals or arrivals[-1] <= now - _MINUTE:
                    del self._arrivals[route]
            self._explicit = {name: each for name, each in self._explicit.items() if now < each.expires_at}

    def _entries_of(self, prompt: CacheablePrompt, access: CacheAccess) -> dict[bytes, _CachedPrefix]:
        machine = prompt.route if prompt.key_requests is not None else b""
        return self._entries[access.account, machine]

    def _is_surplus(self, prompt: CacheablePrompt, access: CacheAccess) -> bool:
        if prompt.key_requests is None or access.line is not None:
            return False
        arrivals = self._arrivals[access.account, prompt.route]
        while arrivals and arrivals[0] <= access.now - _MINUTE:
            arrivals.popleft()
        return len(arrivals) >= prompt.key_requests

    def _longest(
        self, prompt: CacheablePrompt, access: CacheAccess, settings: PromptCaching
    ) -> Prefix | None:
        """Return the longest prefix that the request reads."""
        entries = self._entries_of(prompt, access)
        for prefix in _readable(prompt):
            entry = entries.get(prefix.digest)
            if entry is not None and entry.readable_at <= access.now < entry.expires_at:
                return prefix if access.chance < _hit_rate(prompt, entry, access, settings) else None
        return None


def _is_live(cache: ExplicitCache, access: CacheAccess) -> bool:
    return cache.account == access.account and cache.created_at <= access.now < cache.expires_at


def _readable(prompt: CacheablePrompt) -> list[Prefix]:
    """Return the prefixes for which the cache is searched, longest first."""
    prefixes = prompt.prefixes
    if prompt.lookback is None:
        return list(reversed(prefixes))
    marks = [place for place, prefix in enumerate(prefixes) if prefix.lifetime is not None]
    places = {place for mark in marks for place in range(max(0, mark - prompt.lookback), mark + 1)}
    return [prefixes[place] for place in sorted(places, reverse=True)]


def _hit_rate(
    prompt: CacheablePrompt, entry: _CachedPrefix, access: CacheAccess, settings: PromptCaching
) -> float:
    if access.line is None:
        return prompt.hit_rate
    batch, position = access.line
    is_near = batch in entry.lines and position - entry.lines[batch] <= settings.batch_neighbours
    return settings.batch_hit_rate if is_near else settings.batch_far_hit_rate


def _use(prompt: CacheablePrompt, read: int) -> CacheUse:
    """Return the tokens read and written. Automatic prefixes are written at the price of other input."""
    written = written_1h = 0
    reached = read
    for prefix in prompt.prefixes if prompt.lookback is not None else ():
        if prefix.lifetime is None or prefix.tokens < prompt.minimum or prefix.tokens <= reached:
            continue
        written += prefix.tokens - reached
        written_1h += prefix.tokens - reached if prefix.lifetime >= _HOUR else 0
        reached = prefix.tokens
    return CacheUse(read, written, written_1h)
