"""The pause of uploads to an account whose file storage is full; the store holds one per account.

It applies to all jobs of the account, in every process that uses the store. It ends after a growing interval,
or earlier if files were deleted; then one upload is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import asdict, evolve, frozen

from smartbatch.core.limits.cooldown import RandomSource, backoff
from smartbatch.jobs.records import HOUR, MINUTE
from smartbatch.jobs.store import SqlStore

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 10 * MINUTE, HOUR
FREED_PAUSE_SECONDS = MINUTE  # minimum pause after a refusal, even if files were deleted
TRIAL_SECONDS = MINUTE


@frozen(kw_only=True)
class StoragePause:
    until: float  # Unix seconds
    refused_at: float  # Unix seconds of the latest refusal
    refusals: int  # in a row
    reason: str  # the provider's message

    def seconds_left(self, wall: float) -> float:
        """Return the seconds until an upload is tried; 0 if it may be tried now."""
        left = self.until - wall
        return left if 0.0 < left <= MAX_PAUSE_SECONDS else 0.0  # more if the system clock was set back

    def after_refusal(self, reason: str, began: float, wall: float, rng: RandomSource) -> StoragePause:
        """Return the pause after the refusal of an upload that began at ``began``, at Unix time ``wall``."""
        refusals = self.refusals + (began > self.refused_at)  # others began before the latest refusal
        wait = backoff(refusals, rng, first=FIRST_PAUSE_SECONDS, longest=MAX_PAUSE_SECONDS)
        return StoragePause(until=wall + wait, refused_at=wall, refusals=refusals, reason=reason)

    def after_deletion(self) -> StoragePause:
        return evolve(self, until=min(self.until, self.refused_at + FREED_PAUSE_SECONDS))

    def during_trial(self, wall: float) -> StoragePause:
        """Return a pause during which no other upload is tried."""
        return evolve(self, until=wall + TRIAL_SECONDS)

    @property
    def note(self) -> str:
        return (
            f"uploads wait, because the provider stores no more files ({self.reason}); delete some, for "
            "example those of finished jobs with smartbatch jobs clean --remote. An upload is tried again at "
            "least once an hour"
        )


NO_PAUSE = StoragePause(until=0.0, refused_at=0.0, refusals=0, reason="")


def read_pause(store: SqlStore, scope: str) -> StoragePause | None:
    """Return the pause of an account; ``None`` if its latest upload was not refused for lack of storage."""
    return _pause(store.facts.recall(_name(scope)))


def change_pause(
    store: SqlStore, scope: str, change: Callable[[StoragePause | None], StoragePause | None]
) -> StoragePause | None:
    """Change the pause of an account in one transaction, and return the earlier one."""

    def changed(value: Any) -> Any:
        pause = change(_pause(value))
        return None if pause is None else asdict(pause)

    return _pause(store.facts.update(_name(scope), changed))


def _pause(value: Any) -> StoragePause | None:
    return StoragePause(**value) if isinstance(value, dict) else None


def _name(scope: str) -> str:
    return f"storage:{scope}"
