"""The limits that the user configured, a minute, as token buckets that start full."""

from __future__ import annotations

from smartbatch.core.limits.bucket import Bucket, limit_bucket


class ConfiguredLimits:
    """The buckets of requests and tokens. Without a configured limit they hold nothing back.

    Attributes:
        requests, tokens: the buckets; ``None`` where there is no such limit.
        rate: requests a second; ``None`` where they are not limited.
    """

    def __init__(self) -> None:
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.rate: float | None = None
        self._kept: tuple[Bucket | None, Bucket | None] = (None, None)  # of requests and tokens

    @property
    def were_set(self) -> bool:
        """Whether there is one now, or was one before."""
        return self._kept != (None, None)

    def configure(self, max_rpm: float | None, max_tpm: float | None, now: float) -> None:
        """Set the limits, a minute. What is owed to one stays owed, even if it is removed and set again."""
        requests, tokens = self._kept
        self.requests = limit_bucket(requests, max_rpm, now, counted=True)
        self.tokens = limit_bucket(tokens, max_tpm, now)
        self._kept = (self.requests or requests, self.tokens or tokens)
        self.rate = None if max_rpm is None else max_rpm / 60.0

    def look(self, now: float, tokens: float) -> float:
        """Return the earliest time a call that needs ``tokens`` may go."""
        at = now
        if self.requests is not None:
            at = self.requests.look(now, 1.0)
        if self.tokens is not None:
            at = max(at, self.tokens.look(now, tokens))
        return at

    def take(self, now: float, tokens: float) -> None:
        """Count a call."""
        if self.requests is not None:
            self.requests.take(now, 1.0)
        if self.tokens is not None:
            self.tokens.take(now, tokens)

    def settle(self, now: float, surplus: float) -> None:
        """Return so many tokens that a call did not use."""
        if self.tokens is not None:
            self.tokens.settle(now, surplus)

    def drop(self, now: float, tokens: float) -> None:
        """Return all that a call took which was never sent."""
        self.settle(now, tokens)
        if self.requests is not None:
            self.requests.settle(now, 1.0)
