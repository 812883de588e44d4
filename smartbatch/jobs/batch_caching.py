"""Tokens that batches wrote to the provider's cache and read, stored per account and model.

These totals are used when rows are accepted: they may be stored without their shared prefixes. They are used
again when the input of a batch is written, and the decision is stored with its shard, so that the input can
be written again with the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import astuple

from smartbatch.core.prefixes.batch_reads import BatchReads
from smartbatch.shared_prefixes import CachingRules
from smartbatch.usage import Usage

if TYPE_CHECKING:
    from smartbatch.jobs.store import SqlStore


def marks_pay(store: SqlStore, scope: str, model: str, rules: CachingRules, wall: float) -> bool:
    """Whether marks in batches probably save more than they cost. ``model`` is ``provider:model``."""
    return reads_of(store, scope, model).pays(rules, wall)


def reads_of(store: SqlStore, scope: str, model: str) -> BatchReads:
    """Return the tokens that batches of an account and model wrote and read."""
    return _reads(store.facts.recall(_name(scope, model)))


def note_reads(
    store: SqlStore, scope: str, model: str, rules: CachingRules, usage: Usage, wall: float
) -> BatchReads | None:
    """Add the usage of a batch's marked requests; return the totals if marks have ceased to pay off."""

    def changed(value: Any) -> list[float]:
        return list(astuple(_reads(value).plus(usage.cached_tokens, usage.cache_write_tokens, wall)))

    if not (usage.cached_tokens or usage.cache_write_tokens):
        return None
    before = _reads(store.facts.update(_name(scope, model), changed))
    after = reads_of(store, scope, model)
    return after if before.pays(rules, wall) and not after.pays(rules, wall) else None


def _reads(value: Any) -> BatchReads:
    return BatchReads() if value is None else BatchReads(*value)


def _name(scope: str, model: str) -> str:
    return f"batch cache:{scope}:{model}"
