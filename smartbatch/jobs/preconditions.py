"""What a model must offer before it is asked: a Batch API for a job, and prices for a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.prices import PriceBook, Processing
from smartbatch.providers.registry import OpenedModel
from smartbatch.types import Kind

if TYPE_CHECKING:
    from smartbatch.providers.batch_api import BatchApi


def batches_of(config: BatchingConfig, model: OpenedModel, kind: Kind) -> tuple[BatchApi | None, str | None]:
    """Return the Batch API for a kind of request, or ``None`` and why there is none, with what to do."""
    name = model.provider.name
    if not config.batch_enabled:
        return None, "batches are switched off: set batch_enabled"
    api = model.provider.batches()
    if api is None:
        return None, f"{name} has no Batch API: choose another provider"
    if kind not in api.abilities.kinds:
        what = "vectors" if kind is Kind.EMBED else "texts"
        return None, f"{name} has no Batch API for {what}: choose another provider"
    return api, None


def check_priced(
    config: BatchingConfig,
    clock: Clock,
    model: OpenedModel,
    fallback: OpenedModel | None,
    *,
    by_batch: bool = False,
) -> None:
    """Check that a budget can be kept, also by the model that takes over.

    Raises:
        ConfigError: a price is unknown.
    """
    if config.allow_unknown_price:
        return
    asked: list[tuple[OpenedModel | None, Processing]] = [(model, "standard")]
    asked += [(model, "batch")] if by_batch else []
    asked += [(fallback, "standard")]
    priced = [
        (one.label, processing)
        for one, processing in asked
        if one is not None and one.provider.capabilities.priced
    ]
    PriceBook(config.prices).check_known(priced, clock.wall())
