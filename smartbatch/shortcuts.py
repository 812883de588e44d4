"""Functions for scripts and notebooks that need no client: send a list, or use the jobs of a store."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from smartbatch._clock import Clock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig, Settings, check_names
from smartbatch.core.limits.model_controls import Pause
from smartbatch.core.preparation.validation import refuse_for_vectors
from smartbatch.keywords import GenerationParams, ReadingParams, TableParams
from smartbatch.observe.list_progress import OnProgress
from smartbatch.providers.base import Provider
from smartbatch.realtime.setup import HookParams
from smartbatch.results import ResultList, as_interrupted
from smartbatch.routing.list_planner import CONSTRAINTS, split_constraints
from smartbatch.types import Deadline, Embedding, Prompts, T, Texts, evolve

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

_LIST_ARGUMENTS = (
    CONSTRAINTS - {"budget"} | {"key"} | TableParams.__optional_keys__ | ReadingParams.__optional_keys__
)
"""Arguments of a single list. A budget belongs to the client, which sends only this list."""


class EmbeddingScriptParams(Settings, HookParams, TableParams, ReadingParams, total=False):
    """The keywords of :func:`embed`: settings, the client's other arguments, a deadline, a key, and those for
    tables.
    """

    config: BatchingConfig | None
    provider: Provider | None
    provider_options: Mapping[str, Any] | None
    clock: Clock | None
    rng: random.Random | None
    deadline: Deadline | None
    key: str | None


class ScriptParams(GenerationParams[T], EmbeddingScriptParams, total=False):
    """The keywords of :func:`generate`: those of :func:`embed`, and generation parameters."""


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
        prompts: strings, lists of chat messages, or :class:`~smartbatch.Request` objects; or a pandas,
            Polars, Arrow or datasets table, or rows as mappings, with ``template="… {column} …"`` or
            ``column="text"``. The results' ``to_table()`` then returns the table with the answers.
        model: ``provider:model``, such as ``openai:gpt-5-mini``; ``sim:demo`` needs no key and no network.
        progress: True for a progress display, False for none; by default a bar on a terminal or in a
            notebook.
        on_progress: called with a :class:`~smartbatch.ListProgress` for each result that arrives.
        params: all arguments of :class:`~smartbatch.BatchingClient`, including settings and generation
            parameters, the constraints that decide the route (``strategy``, ``deadline``, …), and ``key``,
            see :meth:`~smartbatch.BatchingClient.map`.

    Returns:
        a list of :class:`~smartbatch.Result`; the result of a failed request has an ``.error``.

    Raises:
        InvalidRequest, ConfigError: a request or a setting is invalid; nothing was sent.
        AllRequestsFailed: no request was answered.
        Interrupted: Ctrl-C was pressed; its ``results`` are those received so far, in order.
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
    """Embed every text: ``embed(texts, model="openai:text-embedding-3-small").vectors``.

    Args:
        texts: the texts to embed; or a table as in :func:`generate`.
        model: the ``provider:model`` of an embedding model.
        task_type, dimensions: see :class:`~smartbatch.Embedding`.
        progress, on_progress: see :func:`generate`.
        params: see :func:`generate`; without generation parameters.

    Returns, Raises:
        see :func:`generate`; each result has its ``embedding``.
    """
    refuse_for_vectors(params)
    check_names(params, EmbeddingScriptParams.__optional_keys__)
    embedding = Embedding(task_type, dimensions)
    return _run(texts, model, progress, params, embedding=embedding, on_progress=on_progress)


def job(id_or_key: str, *, store: str | None = None) -> Job:
    """Return a job by its ID or key, in any process and for any model.

    Viewing a job needs no API key. If you wait for it or read results that have not arrived, this process
    runs the jobs of the store for which the environment has API keys, unless another process already does.

    Args:
        id_or_key: ``Job.id``, or the key given to ``submit_batch``.
        store: a path, or a PostgreSQL address; by default ``SMARTBATCH_STORE``, or else the user's own store.

    Raises:
        JobNotFound: the store does not have the job.
        StoreError, ConfigError: the store, or a setting in the environment, cannot be used.
    """
    return _stored(store).job(id_or_key)


def list_jobs(*, store: str | None = None, unfinished: bool = False, limit: int = 1000) -> list[Job]:
    """Return the jobs of a store, newest first, including those of other models and processes. After
    a restart, a notebook finds its jobs this way: ``smartbatch.list_jobs()[0].results()`` resumes the newest
    one.

    Args:
        store: see :func:`job`.
        unfinished: only jobs that have not finished.
        limit: maximum number of jobs.

    Raises:
        StoreError, ConfigError: see :func:`job`.
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
    """Stop all processes that use a store from sending new requests to a model; see :meth:`StoredJobs.pause`.

    Args:
        store: as for :func:`job`.
    """
    return _stored(store).pause(provider, model, reason=reason, by=by)


def resume(
    provider: str, model: str | None = None, *, by: str | None = None, store: str | None = None
) -> bool:
    """End a pause; return False if there is none. See :meth:`StoredJobs.resume`.

    Args:
        store: as for :func:`job`.
    """
    return _stored(store).resume(provider, model, by=by)


def paused(*, store: str | None = None) -> list[Pause]:
    """Return the active pauses of a store, oldest first.

    Args:
        store: as for :func:`job`.
    """
    return _stored(store).paused()


def _stored(store: str | None) -> StoredJobs:
    from smartbatch.jobs.store import resolved_place  # imported late: most programs have no jobs
    from smartbatch.stored_jobs import StoredJobs

    config = BatchingConfig.load(store=store)
    # a relative path refers to another store after ``os.chdir``
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
    settings, of_list = split_constraints(params, _LIST_ARGUMENTS)
    results: ResultList | None = None
    try:
        with BatchingClient(model, **settings) as client:
            results = client.generate(prompts, progress=progress, **more, **of_list)
    except KeyboardInterrupt as error:
        raise as_interrupted(error, results) from None
    return results


_known: list[StoredJobs] = []
"""The stores opened by :func:`job` and :func:`list_jobs`, one per configuration."""


def close_stores() -> None:
    """Release the jobs that this process runs because of :func:`job`, and close their stores."""
    while _known:
        _known.pop().close()
