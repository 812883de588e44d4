"""The quota of enqueued tokens of batches: learned from refusals, and kept by waiting.

Providers limit the prompt tokens of one model in batches that have not ended. A batch above the limit is
refused at its create, or minutes later when it is validated; nothing of it is run or billed.

A shard that is too large by itself would be refused for ever. It is too large when the refusal names a limit
below its tokens. It may be when it is refused several times although no other batch of ours is enqueued:
Gemini names no limit, and our count of tokens may be below the provider's. Then shards become smaller, and
grow again with every batch that passes.

Processes with other stores use the same quota. Each store tells what it has enqueued, before a create and at
each poll, and a create waits where all of them together leave no room for it (``shared`` in the settings). It
is checked before the create alone, which the provider may still refuse: other programs use the quota, too.
"""

from __future__ import annotations

import math

from attrs import asdict, frozen

from smartbatch.core.limits.cooldown import backoff
from smartbatch.core.limits.lease_ask import LeaseAsk, MemberLimits, QuotaKind, first
from smartbatch.errors import ProviderError
from smartbatch.jobs.shard_records import ShardRow, ShardState
from smartbatch.jobs.steps.context import Step
from smartbatch.providers.batch_api import enqueued_limit

ALONE = 3
"""Refusals in a row, with no other batch of ours enqueued, after which shards become smaller: fewer may be
caused by other users of the account."""

_STORE = "enqueued:store"

QUOTA_CODES = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded"})
"""Codes of refusals because too many tokens are enqueued, of OpenAI and Azure. Gemini says RESOURCE_EXHAUSTED
at the create, which is an ordinary refusal."""

ENQUEUED = (
    ShardState.SUBMITTING,
    ShardState.UNCERTAIN,
    ShardState.PROVISIONAL,
    ShardState.FENCED,
    ShardState.SUBMITTED,
)


def known_limit(step: Step, named: float = math.inf) -> float:
    """Return the most tokens of the job's model that may be enqueued, or infinity.

    Args:
        named: what the provider says just now; it counts instead of what it said earlier.
    """
    limit = named if math.isfinite(named) else _known(step).limit
    return min(limit or math.inf, step.limits.enqueued_tokens or math.inf)


def room_for(step: Step, shard: ShardRow) -> float:
    """Return 0 when the shard may be created now, else the seconds after which to check again."""
    ours = sum(_ours(step, shard))
    if ours and ours + shard.tokens > known_limit(step):
        return step.limits.poll_interval
    # a wall clock that was set back must not turn minutes into hours
    pause = min(max(0.0, _known(step).until - step.wall), step.limits.longest_pause)
    return pause or (0.0 if _exchanged(step, ours, shard.tokens) else step.limits.poll_interval)


def tell(step: Step, shard: ShardRow, *, ended: bool) -> None:
    """Tell the processes with other stores what is enqueued now; a shard whose batch has ended is not."""
    if step.runtime.wiring.exchange_enqueued is not None:
        _exchanged(step, sum(_ours(step, shard)) + (0 if ended else shard.tokens), 0)


def _exchanged(step: Step, enqueued: int, more: int) -> bool:
    """Tell the processes with other stores what this one has enqueued, and return whether they leave room for
    ``more`` tokens. A limit that any of them knows holds for all."""
    if step.runtime.wiring.exchange_enqueued is None:
        return True
    limit = known_limit(step)
    asked = LeaseAsk(
        member=_store_name(step),
        kind=QuotaKind.ENQUEUED,
        limits=MemberLimits(caps=first(limit if math.isfinite(limit) else 0.0)),
        kept=first(enqueued),
        least=first(more),
        wanted=first(more),
    )
    grant = step.runtime.wiring.exchange_enqueued(step.job.scope, step.job.model, asked)
    return grant is None or not grant.wait


def _store_name(step: Step) -> str:
    """Return a name of the store that no other has, on any machine."""
    facts = step.store.facts
    if facts.recall(_STORE) is None:
        facts.remember(_STORE, f"{step.runtime.rng.getrandbits(128):032x}")
    return str(facts.recall(_STORE))


def refused(step: Step, shard: ShardRow, error: ProviderError | None, reason: str | None) -> bool:
    """Remember a refusal: the limit it names, and a pause that grows while others use the quota.

    Returns:
        True when the shard will not pass as it is, and its items are to be cut anew.
    """
    known = _known(step)
    refusals, most = known.refusals + 1, known.most
    named = enqueued_limit(reason)
    wait = backoff(
        refusals,
        step.runtime.rng,
        first=step.limits.poll_interval,
        longest=step.limits.longest_pause,
        asked=None if error is None else error.retry_after,
    )
    # 1. the shard is above the limit that the refusal names, or the known one: it will not pass as it is
    too_large = shard.tokens > known_limit(step, named)
    # 2. it was refused ALONE times with nothing else of ours enqueued: the same, and shards of the model get
    # half its size
    if not too_large and shard.size > 1 and refusals >= ALONE and not _ours(step, shard):
        too_large, refusals, most = True, 0, max(1, shard.size // 2)
    # 3. otherwise others use the quota: it passes later
    limit = named if math.isfinite(named) else known.limit
    _remember(step, _Known(limit, step.wall + wait, refusals, most))
    return too_large


def known_most(step: Step, otherwise: int) -> int:
    """Return the most requests of a shard where larger ones were refused with no other batch enqueued."""
    return _known(step).most or otherwise


def admitted(step: Step) -> None:
    """Forget the pauses, and let shards grow again: a batch passed."""
    known = _known(step)
    if not (known.refusals or known.most):
        return
    most = 2 * (known.most or 0)
    grown = None if most >= step.limits.max_requests else most or None
    _remember(step, _Known(known.limit, most=grown))


def _ours(step: Step, shard: ShardRow) -> list[int]:
    """Return the tokens of each other shard of the model that is enqueued."""
    return [
        other.tokens
        for other in step.store.shards.in_scope(shard.scope, states=ENQUEUED)
        if other.model == shard.model and other.id != shard.id
    ]


@frozen
class _Known:
    """What was learned of a model's quota.

    Attributes:
        limit: tokens; ``None`` where no refusal named it.
        until: Unix seconds up to which its shards wait.
        refusals: in a row.
        most: requests of a shard; ``None`` where none was too large by itself.
    """

    limit: float | None = None
    until: float = 0.0
    refusals: int = 0
    most: int | None = None


def _known(step: Step) -> _Known:
    learned = step.store.facts.recall(_key(step))
    return _Known(**learned) if isinstance(learned, dict) else _Known()


def _remember(step: Step, known: _Known) -> None:
    step.store.facts.remember(_key(step), asdict(known))


def _key(step: Step) -> str:
    return f"enqueued:{step.job.scope}:{step.job.model}"
