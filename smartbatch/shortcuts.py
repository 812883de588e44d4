"""One call for scripts and notebooks: a list, or the jobs of a store, without a client of one's own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from smartbatch._clock import Clock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig, Settings, check_names
from smartbatch.core.limits.model_controls import Pause
from smartbatch.core.preparation.validation import refuse_for_vectors
from smartbatch.interrupted import as_interrupted
from smartbatch.observe.list_progress import OnProgress
from smartbatch.providers.base import Provider
from smartbatch.realtime.setup import HookParams
from smartbatch.results import ResultList
from smartbatch.routing.list_planner import CONSTRAINTS, split_constraints
from smartbatch.types import (
    Deadline,
    Embedding,
    GenerationParams,
    Prompts,
    ReadingParams,
    T,
    TableParams,
    Texts,
    evolve,
)

if TYPE_CHECKING:
    from smartbatch.jobs.job import Job
    from smartbatch.stored_jobs import StoredJobs

__all__ = [
    "EmbeddingScriptParams",
    "ScriptParams",
    "close_stores",
    "embed",
    "generate",
    "job",
    "list_jobs",
]

_OF_LIST = (
    CONSTRAINTS - {"budget"} | {"key"} | TableParams.__optional_keys__ | ReadingParams.__optional_keys__
)
"""Arguments that are about this one list; a budget is the client's, which makes no other."""


class EmbeddingScriptParams(Settings, HookParams, TableParams, ReadingParams, total=False):
    """What :func:`embed` takes, as keywords: settings, the client's other arguments, a deadline, a key, and
    how prompts are made of a table."""

    config: BatchingConfig | None
    provider: Provider | None
    provider_options: Mapping[str, Any] | None
    clock: Clock | None
    rng: random.Random | None
    deadline: Deadline | None
    key: str | None


class ScriptParams(GenerationParams[T], EmbeddingScriptParams, total=False):
    """What :func:`generate` takes, as keywords: the same, and parameters of all generations."""


def generate(
    prompts: Prompts,
    *,
    model: str,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    **params: Unpack[ScriptParams[T]],
) -> ResultList[T]:
    """Send every prompt, wait for every answer, and return the results in order.

    Args:
        prompts: texts, lists of chat messages, or :class:`~smartbatch.Request` objects; or a table of pandas,
            Polars, Arrow or datasets, or rows as mappings, with ``template="… {column} …"`` or
            ``column="text"``: then the results' ``to_table()`` gives it back with the answers.
        model: ``provider:model``, such as ``openai:gpt-5-mini``; ``sim:demo`` needs no key and no network.
        progress: True for a progress display, False for none; by default a bar where somebody watches:
            on a terminal or in a notebook.
        on_progress: called with a :class:`~smartbatch.ListProgress` for each result that arrives.
        params: all arguments of :class:`~smartbatch.BatchingClient`, settings and generation parameters
            included, the constraints that decide the route (``strategy``, ``deadline``, …), and ``key``, see
            :meth:`~smartbatch.BatchingClient.map`.

    Returns:
        a list of :class:`~smartbatch.Result`; failed requests hold their ``.error``, in their place.

    Raises:
        InvalidRequest, ConfigError: before anything is sent.
        AllRequestsFailed: when not one request was answered.
        Interrupted: Ctrl-C; its ``results`` are those so far, each in its place.
    """
    check_names(params, ScriptParams.__optional_keys__)
    return _run(prompts, model, progress, params, on_progress=on_progress)


def embed(
    texts: Texts,
    *,
    model: str,
    task_type: str | None = None,
    dimensions: int | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    **params: Unpack[EmbeddingScriptParams],
) -> ResultList:
    """Turn every text into its vector: ``embed(texts, model="openai:text-embedding-3-small").vectors``.

    Args:
        texts: what to embed; a table as in :func:`generate`.
        model: ``provider:model`` with embeddings.
        task_type, dimensions: as in :class:`~smartbatch.Embedding`.
        progress, on_progress: as in :func:`generate`.
        params: as in :func:`generate`, but for the parameters of a generation.

    Returns, Raises:
        as :func:`generate`; each result has its ``embedding``.
    """
    refuse_for_vectors(params)
    check_names(params, EmbeddingScriptParams.__optional_keys__)
    embedding = Embedding(task_type, dimensions)
    return _run(texts, model, progress, params, embedding=embedding, on_progress=on_progress)


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
    return _stored(store).job(id_or_key)


def list_jobs(*, store: str | None = None, unfinished: bool = False, limit: int = 1000) -> list[Job]:
    """Return the jobs of a store, newest first, whatever models and processes they were submitted by.

    A restarted notebook finds its jobs here: ``smartbatch.list_jobs()[0].results()`` resumes the newest.

    Args:
        store: as for :func:`job`.
        unfinished: only those that have not ended.
        limit: at most so many.

    Raises:
        StoreError, ConfigError: as :func:`job`.
    """
    return _stored(store).jobs(unfinished=unfinished, limit=limit)


def pause(
    provider: str,
    model: str | None = None,
    *,
    reason: str | None = None,
    by: str | None = None,
    store: str | None = None,
) -> Pause:
    """Have nothing new sent to a model by any process that uses a store; see :meth:`StoredJobs.pause`.

    Args:
        store: as for :func:`job`.
    """
    return _stored(store).pause(provider, model, reason=reason, by=by)


def resume(
    provider: str, model: str | None = None, *, by: str | None = None, store: str | None = None
) -> bool:
    """End a pause; False where there is none. See :meth:`StoredJobs.resume`.

    Args:
        store: as for :func:`job`.
    """
    return _stored(store).resume(provider, model, by=by)


def paused(*, store: str | None = None) -> list[Pause]:
    """Return the pauses that hold in a store, oldest first.

    Args:
        store: as for :func:`job`.
    """
    return _stored(store).paused()


def _stored(store: str | None) -> StoredJobs:
    from smartbatch.jobs.store import resolved_place  # late: most programs have no job
    from smartbatch.stored_jobs import StoredJobs

    config = BatchingConfig.load(store=store)
    # one that is not named in full is another one after ``os.chdir``
    meant: dict[str, Any] = {"store": resolved_place(config.store)}
    config = evolve(config, **meant)
    stored = next((one for one in _known if one.config == config), None)
    if stored is None:
        stored = StoredJobs(config)
        _known.append(stored)
    return stored


def _run(
    prompts: Prompts, model: str, progress: bool | None, params: Mapping[str, Any], **more: Any
) -> ResultList:
    settings, of_list = split_constraints(params, _OF_LIST)
    results: ResultList | None = None
    try:
        with BatchingClient(model, **settings) as client:
            results = client.generate(prompts, progress=progress, **more, **of_list)
    except KeyboardInterrupt as error:
        raise as_interrupted(error, results) from None
    return results


_known: list[StoredJobs] = []
"""What :func:`job` and :func:`list_jobs` took jobs from: one for each configuration."""


def close_stores() -> None:
    """Give the jobs back that :func:`job` had this process carry on, and close their stores."""
    while _known:
        _known.pop().close()
