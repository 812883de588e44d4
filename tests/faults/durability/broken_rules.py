"""Mutants: safety rules broken on purpose. The checks must see what then happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smartbatch.jobs.steps import recover
from smartbatch.jobs.store import leases
from smartbatch.providers.anthropic.batches import AnthropicBatches
from smartbatch.providers.batch_api import BatchApi, Creation, RemoteBatch
from smartbatch.providers.gemini.batches import GeminiBatches
from smartbatch.providers.openai.batches import OpenAIBatches

MUTANTS = {
    "no fence, settle 0": "what is not found at the first search is sent again, and its input file stays",
    "create repeated": "a create whose answer is lost is sent again, as by an SDK with its retries on",
}
"""The rules that can be broken, in words."""
OWNERLESS = "no epochs"  # A rule for those who share a store: whoever once owned a job goes on writing to it
OWN_CLOCK = "own clock"
"""A rule for those whose clock is set: how long a batch was searched for is measured by it."""


def break_rule(name: str | None) -> None:
    match name:
        case "no fence, settle 0":
            recover._can_fence = lambda step, shard: False
            recover._required_absence = lambda step, shard: 0.0
        case "create repeated":
            apis: tuple[Any, ...] = (OpenAIBatches, AnthropicBatches, GeminiBatches)
            for api in apis:
                api.create = _repeating(api.create)
        case "own clock":
            recover._elapsed = lambda step, since, recorded, listed: step.wall - (since or step.wall)
        case "no epochs":
            leases.JOB_OF_LEASE = _for_anybody(leases.JOB_OF_LEASE)
            leases.RENEW_LEASE = _for_anybody(leases.RENEW_LEASE)
        case None:
            pass
        case _:
            raise ValueError(f"there is no mutant {name!r}")


def _for_anybody(statement: str) -> str:
    return statement.replace("epoch = ? AND owner = ?", "(epoch = ? OR owner = ? OR TRUE)")


def _repeating(
    create: Callable[[BatchApi, Creation, float], RemoteBatch],
) -> Callable[[BatchApi, Creation, float], RemoteBatch]:
    def repeated(api: BatchApi, creation: Creation, timeout: float) -> RemoteBatch:
        try:
            return create(api, creation, timeout)
        except Exception as error:
            if not api.classify(error).maybe_billed:
                raise
            return create(api, creation, timeout)

    return repeated
