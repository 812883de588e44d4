"""The one-liners for scripts and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sized
from typing import Any

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.jobs.job import Job
from smartbatch.observe.progress import Mode, Progress, watched
from smartbatch.results import ResultList
from smartbatch.routing.list_routes import CONSTRAINTS, parted
from smartbatch.store_jobs import service_of
from smartbatch.types import Embedding, Prompt

__all__ = ["embed", "generate", "job"]

_CONSTRAINTS = CONSTRAINTS - {"budget"}
"""Arguments that are about the route of this one list; a budget is the client's, which makes no other."""


def generate(
    prompts: Iterable[Prompt], *, model: str, progress: bool | None = None, **params: Any
) -> ResultList:
    """Send every prompt, wait for every answer, and return the results in order.

    Args:
        prompts: texts, lists of chat messages, or :class:`~smartbatch.Request` objects.
        model: ``provider:model``, such as ``openai:gpt-5-mini``; ``sim:demo`` needs no key and no network.
        progress: True for a progress display, False for none; by default a bar where somebody watches:
            on a terminal or in a notebook.
        params: generation parameters (``system``, ``max_tokens``, …), settings of
            :class:`~smartbatch.BatchingConfig` (``parallelism``, ``max_rpm``, ``budget``, …), the other
            arguments of :class:`~smartbatch.BatchingClient`, and the constraints that decide the route:
            ``strategy``, ``deadline``, ``prefer``, ``time_value``.

    Returns:
        a list of :class:`~smartbatch.Result`; failed requests hold their ``.error``, in their place.

    Raises:
        InvalidRequest, ConfigError: before anything is sent.
        AllRequestsFailed: when not one request was answered.
    """
    settings, constraints = parted(params, _CONSTRAINTS)
    with BatchingClient(model, **settings) as client:
        return _run(client, prompts, progress, **constraints)


def embed(
    texts: Iterable[str],
    *,
    model: str,
    task_type: str | None = None,
    dimensions: int | None = None,
    progress: bool | None = None,
    **params: Any,
) -> ResultList:
    """Turn every text into its vector: ``embed(texts, model="openai:text-embedding-3-small").vectors``.

    Args:
        texts: what to embed.
        model: ``provider:model`` with embeddings.
        task_type: what the vectors are for, in the provider's words, such as ``RETRIEVAL_DOCUMENT``.
        dimensions: length of the vectors; the model's own when ``None``.
        progress, params: as in :func:`generate`.

    Returns, Raises:
        as :func:`generate`; each result has its ``embedding``.
    """
    embedding = Embedding(task_type, dimensions)
    settings, constraints = parted(params, _CONSTRAINTS)
    with BatchingClient(model, **settings) as client:
        return _run(client, texts, progress, embedding=embedding, **constraints)


def job(id_or_key: str, *, store: str | None = None) -> Job:
    """Return a job by its id or key, in any process, whatever model it was submitted for.

    Looking at it needs no key. Waiting for it, or reading results that are still to come, has this process
    carry on the jobs of the store whose accounts it has the keys for, as the environment says, unless another
    process does so already.

    Args:
        id_or_key: as ``Job.id`` or as given to ``submit_batch``.
        store: a path, or a PostgreSQL address; ``SMARTBATCH_STORE``, or else the user's own store, when
            ``None``.

    Raises:
        JobNotFound: the store has none.
        StoreError, ConfigError: the store, or a setting in the environment, cannot be used.
    """
    return service_of(BatchingConfig.load(store=store)).find(id_or_key)


def _run(
    client: BatchingClient, prompts: Iterable[Prompt], progress: bool | None, **params: Any
) -> ResultList:
    total = len(prompts) if isinstance(prompts, Sized) else None
    with Progress(total, mode=_mode(progress)) as display:
        client.observe(display)
        began = RealClock.now()
        results = ResultList()
        for result in client.map(prompts, **params):
            results.append(result)
            display.advance(result)
        results.wall = RealClock.now() - began
    results.raise_if_all_failed()
    return results


def _mode(progress: bool | None) -> Mode:
    if progress is None:
        progress = watched(sys.stderr)
    return "auto" if progress else "quiet"
