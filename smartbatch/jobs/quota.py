"""The enqueued-token quota of batches: learned from refusals, kept to by waiting.

Providers limit the prompt tokens of one model that stand in batches which have not ended. What is over the
limit is refused at the create, or minutes later when the batch is validated; nothing of it was run or billed.
"""

from __future__ import annotations

import math

from smartbatch.core.pauses import pause
from smartbatch.errors import ProviderError
from smartbatch.jobs.records import ShardRow, ShardState
from smartbatch.jobs.work import Work
from smartbatch.providers.batches import enqueued_limit

__all__ = ["QUOTA_CODES", "is_quota", "known_limit", "refused", "room_for"]

QUOTA_CODES = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded"})
"""OpenAI and Azure; Gemini says RESOURCE_EXHAUSTED at the create, which is an ordinary refusal."""

ENQUEUED = (
    ShardState.SUBMITTING,
    ShardState.UNCERTAIN,
    ShardState.PROVISIONAL,
    ShardState.FENCED,
    ShardState.SUBMITTED,
)


def is_quota(code: str | None) -> bool:
    """Whether a refusal means that too many tokens are enqueued."""
    return code in QUOTA_CODES


def known_limit(work: Work) -> float:
    """Return the most tokens of the job's model that may be enqueued, or infinity."""
    learned = work.store.recall(_key(work))
    limit = math.inf if not isinstance(learned, dict) else float(learned.get("limit") or math.inf)
    return min(limit, work.limits.enqueued_tokens or math.inf)


def room_for(work: Work, shard: ShardRow) -> float:
    """Return 0 when the shard may be created now, or else the seconds after which to look again."""
    ours = [
        other.tokens
        for other in work.store.shards_in_scope(shard.scope, states=ENQUEUED)
        if other.model == shard.model and other.id != shard.id
    ]
    if ours and sum(ours) + shard.tokens > known_limit(work):
        return work.limits.poll_interval
    learned = work.store.recall(_key(work))
    until = float(learned.get("until") or 0) if isinstance(learned, dict) else 0.0
    # a wall clock that was put back must not turn minutes into hours
    return min(max(0.0, until - work.wall), work.limits.longest_pause)


def refused(work: Work, error: ProviderError | None, reason: str | None) -> None:
    """Remember a refusal: the limit it names, and a pause that grows while others use the quota."""
    learned = work.store.recall(_key(work))
    known = learned if isinstance(learned, dict) else {}
    refusals = int(known.get("refusals") or 0) + 1
    limit = enqueued_limit(reason)
    wait = pause(
        refusals,
        work.rng,
        first=work.limits.poll_interval,
        longest=work.limits.longest_pause,
        asked=None if error is None else error.retry_after,
    )
    work.store.remember(
        _key(work),
        {
            "limit": limit if math.isfinite(limit) else known.get("limit"),
            "until": work.wall + wait,
            "refusals": refusals,
        },
    )


def admitted(work: Work) -> None:
    """Forget the pauses: a batch passed."""
    learned = work.store.recall(_key(work))
    if isinstance(learned, dict) and learned.get("refusals"):
        work.store.remember(_key(work), {**learned, "until": 0.0, "refusals": 0})


def _key(work: Work) -> str:
    return f"enqueued:{work.job.scope}:{work.job.model}"
