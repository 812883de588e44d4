"""Options of a job, and checks of its prerequisites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig, checked
from smartbatch.errors import ConfigError, InvalidRequest
from smartbatch.prices import Processing
from smartbatch.providers.price_book import PriceBook
from smartbatch.providers.registry import OpenedModel
from smartbatch.types import Kind

if TYPE_CHECKING:  # these modules import dependencies that most clients do not need
    from smartbatch.jobs.records import Fallback
    from smartbatch.jobs.status import JobStatus
    from smartbatch.providers.batch_api import BatchApi

STATUS_TIMEOUT = 30.0
"""Seconds to wait for the store, which other processes lock for at most ten seconds."""
MAX_KEY_CHARS = 512


@frozen
class JobOptions:
    key: str | None = None  # the same requests under the same key are the same job
    metadata: Mapping[str, str] | None = None
    # for requests that a batch did not process; None for the client's setting
    fallback: Fallback | None = None
    carry_on: bool = True  # run the job in this process from the start


@frozen
class WaitOptions:
    timeout: float | None  # seconds; None for ``batch_timeout``, or until the deadline if that is later
    on_progress: Callable[[JobStatus], object] | None
    progress: bool | None  # show a bar (lines if there is no terminal); None shows a bar only in notebooks


def checked_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not key.strip() or len(key) > MAX_KEY_CHARS or not key.isprintable():
        raise InvalidRequest(
            f"key must be a printable string of 1 to {MAX_KEY_CHARS} characters", field="key"
        )
    if key.startswith("job-"):
        raise InvalidRequest("key must not begin with job-, the prefix of job ids", field="key")
    return key


def batches_of(config: BatchingConfig, model: OpenedModel, kind: Kind) -> tuple[BatchApi | None, str | None]:
    """Return the Batch API for a kind of request, or the reason why there is none."""
    name = model.provider.name
    if not config.batch_enabled:
        return None, "batches are switched off: set batch_enabled"
    api = model.provider.batches()
    if api is None:
        return None, f"{name} {model.provider.without_batches}: choose another provider"
    if kind not in api.abilities.kinds:
        what = "embeddings" if kind is Kind.EMBED else "texts"
        return None, f"{name} has no Batch API for {what}: choose another provider"
    return api, None


def check_batches(config: BatchingConfig, model: OpenedModel, kind: Kind, fallback: str | None) -> None:
    """Raise ConfigError if there is no Batch API and ``fallback`` does not allow real time."""
    _, problem = batches_of(config, model, kind)
    chosen = checked("batch_fallback", config.batch_fallback if fallback is None else fallback)
    if problem is not None and chosen != "individual":
        raise ConfigError(f"{problem}, or allow real time with batch_fallback='individual'")


def check_priced(
    config: BatchingConfig,
    clock: Clock,
    model: OpenedModel,
    fallback: OpenedModel | None,
    *,
    by_batch: bool = False,
) -> None:
    """Raise ConfigError if a price that the budget needs is unknown."""
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
