"""Limits of a batch that a server turned out to have: remembered for its account and model.

A batch above them is refused before anything of it is run. Its requests then go in shards of half the size,
again and again until the server takes one, and later jobs are cut that small from the beginning.
"""

from __future__ import annotations

import math

from attrs import asdict, evolve, frozen

from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps.context import StepContext
from smartbatch.providers.batch_refusals import Measure


@frozen(kw_only=True)
class ServerLimits:
    """The most that a batch may have, by what was refused; infinity where nothing was."""

    requests: float = math.inf
    bytes: float = math.inf
    tokens: float = math.inf


def known(step: StepContext) -> ServerLimits:
    """Return what is known of the job's account and model."""
    learned = step.store.facts.recall(_key(step))
    return ServerLimits(**learned) if isinstance(learned, dict) else ServerLimits()


def halve(step: StepContext, shard: ShardRow, exceeded: Measure) -> None:
    """Remember that a shard was above a limit: half of it is what is tried next."""
    limits = known(step)
    sizes = {"requests": shard.size, "bytes": shard.bytes, "tokens": shard.tokens}
    half = max(1, sizes[exceeded] // 2)
    limits = evolve(limits, **{exceeded: min(getattr(limits, exceeded), half)})
    kept = {name: limit for name, limit in asdict(limits).items() if math.isfinite(limit)}
    step.store.facts.remember(_key(step), kept)


def is_above(step: StepContext, shard: ShardRow) -> bool:
    """Whether a shard that was cut earlier is above a limit that was learned since; one request never is."""
    limits = known(step)
    over = shard.size > limits.requests or shard.bytes > limits.bytes or shard.tokens > limits.tokens
    return shard.size > 1 and over


def _key(step: StepContext) -> str:
    return f"most:{step.job.scope}:{step.job.model}"
