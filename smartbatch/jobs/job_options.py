"""What a user may say of a job, and what has to be there for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from smartbatch.errors import InvalidRequest

if TYPE_CHECKING:
    from smartbatch.jobs.records import Fallback
    from smartbatch.jobs.status import JobStatus
from typing import TYPE_CHECKING

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.prices import PriceBook, Processing
from smartbatch.providers.registry import OpenedModel
from smartbatch.types import Kind

if TYPE_CHECKING:
    from smartbatch.providers.batch_api import BatchApi

STATUS_TIMEOUT = 30.0
"""Seconds that the store has to say how a job stands: it is locked by others for ten at most."""
KEY = 512
"""Letters of a job's key."""


@frozen
class JobOptions:
    """What a caller gives a job besides its requests.

    Attributes:
        key: the caller's own name for it; the same requests under the same key are the same job.
        metadata: labels, as texts by name.
        fallback: where requests go that a batch has not run; the client's setting when ``None``.
        carry_on: whether this process carries the job on from the beginning.
    """

    key: str | None = None
    metadata: Mapping[str, str] | None = None
    fallback: Fallback | None = None
    carry_on: bool = True


@frozen
class WaitOptions:
    """How a caller waits for a job.

    Attributes:
        timeout: seconds; when ``None``, ``batch_timeout``, or until the deadline where that is later.
        on_progress: called with the status after each change.
        progress: whether a bar is shown, or lines where there is no terminal; in a notebook when ``None``.
    """

    timeout: float | None
    on_progress: Callable[[JobStatus], object] | None
    progress: bool | None


def checked_key(key: str | None) -> str | None:
    """Return a job's key.

    Raises:
        InvalidRequest: it is empty, too long, not printable, or looks like an id.
    """
    if key is None:
        return None
    if not isinstance(key, str) or not key.strip() or len(key) > KEY or not key.isprintable():
        raise InvalidRequest(f"key must be a printable text of 1 to {KEY} letters", field="key")
    if key.startswith("job-"):
        raise InvalidRequest("key must not begin with job-, as the ids of jobs do", field="key")
    return key


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
