"""The public client: its configuration, and one running state per process."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, final

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess
from smartbatch._words import count_of, seconds_of
from smartbatch.config import BatchingConfig, ClientParams, changed, check_names, checked, given_or_loaded
from smartbatch.core.limits.failures import Classifier, Classifiers
from smartbatch.core.preparation.preparer import GENERATION, Preprocess
from smartbatch.errors import StoreError
from smartbatch.events import Observer
from smartbatch.jobs.job_options import STATUS_TIMEOUT, JobOptions, WaitOptions, batches_of
from smartbatch.keywords import (
    EmbeddingListParams,
    EmbeddingParams,
    JobParams,
    ListParams,
    RequestParams,
    SubmitParams,
)
from smartbatch.observe import logs
from smartbatch.observe.list_progress import OnProgress
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import RealtimeStatus
from smartbatch.observe.progress import watched
from smartbatch.observe.reporters import status_summary
from smartbatch.plan import Plan
from smartbatch.providers.base import Provider
from smartbatch.providers.hosts import add_hosts
from smartbatch.providers.registry import ModelChoice, open_model
from smartbatch.realtime.call import Middleware
from smartbatch.realtime.queue import RequestCounts
from smartbatch.realtime.setup import PostProcess, UserHooks
from smartbatch.realtime.text_stream import TextStream
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.results import ResultList, as_interrupted
from smartbatch.routing.advisor import AnnouncedPlan
from smartbatch.routing.lists import ReaderOptions
from smartbatch.running import ClientSettings, RunningState, forget, why_not_settable
from smartbatch.types import (
    Duration,
    Embedding,
    Generation,
    Kind,
    OnError,
    Prompt,
    Prompts,
    Result,
    RunCallback,
    T,
    Texts,
    call_now,
)

if TYPE_CHECKING:
    from smartbatch.jobs.job import Job
    from smartbatch.jobs.records import Fallback, JobRow
    from smartbatch.jobs.status import JobStatus
    from smartbatch.preview import Preview


@final
class BatchingClient:
    """Sends many requests from any number of threads and returns a ``concurrent.futures.Future`` for each.

    The client is a handle. It holds its configuration and one running state per process, which is created at
    first use. Threads start with the first request, or with :meth:`start` or ``with``. In a forked child the
    client works with the same settings, but has none of the parent's threads, sockets or requests. A client
    that is no longer referenced completes its pending requests and stops.

    List calls (:meth:`map`, :meth:`as_completed`, :meth:`generate`, :meth:`embed`, :meth:`plan`) and jobs
    (:meth:`submit_batch`, :meth:`submit_and_wait`) also accept the constraints that decide the route:
    ``strategy``, ``deadline``, ``budget``, ``prefer`` and ``time_value``; see :class:`ConstraintParams`.

    Args:
        model: ``provider:model``, such as ``openai:gpt-5-mini`` or ``sim:demo``; or a :class:`Provider` of
            your own, or a callable ``fn(request, attempt)``.
        config: settings; ``None`` reads them from ``SMARTBATCH_*`` variables.
        provider: an adapter instance, for ``model`` names without a prefix.
        provider_options: arguments of the adapter that the prefix names, such as ``base_url`` or, for
            ``openai:``, ``api="responses"``.
        preprocess: hooks applied in order to each request before it is queued.
        post_process: called with each answered result on a worker thread; returns the result or a changed
            one.
        middleware: layers around each call, outermost first; requests share answers only if each layer has a
            true attribute ``shareable``.
        observers: called with every event.
        classifiers: functions that classify errors, consulted before the provider.
        run_callback: wraps callbacks of futures, ``on_progress`` of jobs and ``post_process``: it calls the
            given function and returns its value, and can act before and after, for example to close
            connections.
        clock, rng: time and random numbers, for tests.
        params: generation parameters for all requests (``system``, ``max_tokens``, ``temperature``,
            ``top_p``, ``stop``, ``seed``, ``response_format``, ``schema``, ``schema_mode``, ``extra``), and
            settings of :class:`BatchingConfig` by name, which override ``config``.

    Raises:
        ConfigError: settings are out of range or contradictory, the prefix is unknown, or the API key is
            missing.
        InvalidRequest: a generation parameter is out of range.
    """

    __slots__ = ("__weakref__", "_config", "_settings", "_states")

    def __init__(
        self,
        model: ModelChoice,
        config: BatchingConfig | None = None,
        *,
        provider: Provider | None = None,
        provider_options: Mapping[str, Any] | None = None,
        preprocess: Sequence[Preprocess] = (),
        post_process: PostProcess | None = None,
        middleware: Sequence[Middleware] = (),
        observers: Sequence[Observer] = (),
        classifiers: Sequence[Classifier] = (),
        run_callback: RunCallback = call_now,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **params: Unpack[ClientParams[Any]],
    ) -> None:
        given: dict[str, Any] = dict(params)
        check_names(given, {*ClientParams.__optional_keys__, *(BatchingClient.__init__.__kwdefaults__ or ())})
        own = {name: given.pop(name) for name in params if name not in GENERATION}
        config = given_or_loaded(config, **own)
        add_hosts(config.hosts)
        clock = clock or RealClock()
        opened = open_model(model, provider, provider_options, clock)
        verdicts = Classifiers(classifiers, logs.user_error)
        hooks = UserHooks(post_process, tuple(middleware), verdicts, run_callback)
        self._config = config
        self._settings = settings = ClientSettings.of(
            config, clock, rng, opened, provider_options, Generation(**given), preprocess, hooks, observers
        )
        self._states = PerProcess(lambda: RunningState(settings))

    def __setattr__(self, name: str, value: Any) -> None:
        """Reject assignments that would have no effect."""
        if name not in BatchingClient.__slots__:
            raise AttributeError(why_not_settable(BatchingClient, name, value))
        object.__setattr__(self, name, value)

    def __del__(self) -> None:
        """Finish pending requests and stop, on another thread."""
        if hasattr(self, "_states"):  # false if the settings were rejected
            forget(self._states)

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, **params: Unpack[SubmitParams[T]]) -> ResultFuture[T]:
        """Queue one request and return its future.

        Args:
            prompt: a string, a list of chat messages, or a :class:`Request`.
            params: fields of :class:`Request` (``priority``, ``context``, ``timeout``, …) and of
                :class:`Generation` (``system``, ``max_tokens``, …); they override the client's. With
                ``durable=True`` or a ``key`` the request is stored before this method returns, and repeating
                the call returns the stored answer.

        Returns:
            a future of :class:`Result`; it raises the error of a failed request.

        Raises:
            InvalidRequest: the request cannot be sent; the message names the field.
            QueueFull: the queue is full, and ``queue_full`` is ``"raise"`` or ``queue_timeout`` has passed.
            JobConflict: the ``key`` belongs to another request.
            StoreError: a durable request could not be stored.
            ClientClosed: the client was stopped.
        """
        return self._running.submit_prompt(prompt, params)

    def submit_urgent(self, prompt: Prompt, **params: Unpack[SubmitParams[T]]) -> ResultFuture[T]:
        """Like :meth:`submit`, but use the next free slot, without a window."""
        params.setdefault("priority", "urgent")
        return self.submit(prompt, **params)

    def submit_background(self, prompt: Prompt, **params: Unpack[SubmitParams[T]]) -> ResultFuture[T]:
        """Like :meth:`submit`, but send the request after all more urgent ones, or in a batch if
        ``deferrable`` allows it.
        """
        params.setdefault("priority", "deferrable")
        return self.submit(prompt, **params)

    def submit_embedding(
        self,
        text: str,
        *,
        task_type: str | None = None,
        dimensions: int | None = None,
        **params: Unpack[EmbeddingParams],
    ) -> ResultFuture:
        """Queue one text for embedding and return the future of its :class:`Result`.

        Texts submitted at the same time, by any threads, share a call up to the provider's limit. An idle
        client sends a text immediately.

        Args:
            text: the text to embed.
            task_type, dimensions: see :class:`Embedding`.
            params: fields of :class:`Request`, such as ``priority`` and ``context``.

        Returns:
            a future; ``result().embedding`` is an ``array('f')`` with exactly the numbers the provider sent.

        Raises:
            InvalidRequest: see :meth:`submit`; also raised if the provider does not support embeddings.
        """
        return self.submit(text, embedding=Embedding(task_type, dimensions), **params)

    def stream(self, prompt: Prompt, **params: Unpack[RequestParams[T]]) -> TextStream[T]:
        """Queue one request, like :meth:`submit`, and return its answer as text chunks while it is generated.

        The request passes through the same queue, limits, breaker and budget as any other. It is retried
        until its first chunk arrives, but not afterwards. The answer arrives as one chunk if the provider
        cannot stream, and with ``strategy="batch"``, when its batch has ended. A slow reader slows down the
        call; chunks not read within ``call_timeout`` are lost.

        Returns:
            an iterator of strings; afterwards its ``result`` has usage, cost and ``time_to_first_chunk``.

        Raises:
            InvalidRequest: see :meth:`submit`; also raised for an embedding.
            QueueFull, ClientClosed: see :meth:`submit`.
        """
        return self._running.routing.stream(prompt, params)

    # -- lists -----------------------------------------------------------------------------------------------

    def map(
        self,
        prompts: Prompts,
        *,
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        **params: Unpack[ListParams[T]],
    ) -> Iterator[Result[T]]:
        """Yield the result of each prompt, in order, reading a limited number of prompts ahead.

        If the prompts have a length and an order, like a list or a column of a table, they are all checked
        and a route is chosen before anything is sent. Any other iterable is read lazily, may be endless, and
        is sent in real time unless ``strategy``, ``deadline`` or ``prefer`` is given. Leaving the loop early,
        or Ctrl-C, cancels requests that have not started.

        A lazily read iterable is read on a separate thread, in the caller's context, so answers are yielded
        while it waits for the next prompt. ``read_ahead=False`` reads it on the thread that reads the
        results, as database cursors require.

        With a ``key`` the whole list, which must be finite, is stored before anything is sent, and nothing is
        cancelled. The same call with the same key, in any process, resumes it and sends only what is missing,
        including rows added at the end.

        Args:
            prompts: strings, chats or requests; or a pandas, Polars, Arrow or datasets table, or rows as
                mappings, with ``template="… {column} …"`` or ``column="text"`` in ``params``.
            on_error: ``"result"`` yields failed requests as results with ``.error``, ``"raise"`` raises the
                first one; ``None`` for the client's setting.
            on_progress: called with a :class:`~smartbatch.ListProgress` for each result that arrives, on the
                thread that reads the list; for a batch, for each result read.
            progress: True for a progress bar (lines of text without a terminal), False for none; by default a
                bar in a notebook.
            params: as in :meth:`submit`, for all requests; and the constraints, see
                :class:`ConstraintParams`.

        Raises:
            InvalidRequest: a row is invalid, which the message names, or the value is not a list of prompts,
                such as a table without a template.
            ConfigError: no route meets the constraints; the message names the nearest constraints that can be
                met.
            JobConflict, StoreError: see :meth:`submit_batch`; only with a ``key``.
            Interrupted: Ctrl-C was pressed while waiting for a result; it has the results not yet yielded.
        """
        options = ReaderOptions(on_error, on_progress, progress)
        return self._running.routing.map_results(prompts, params, self, options)

    def as_completed(
        self,
        prompts: Prompts,
        *,
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        ordered: bool = False,
        **params: Unpack[ListParams[T]],
    ) -> Iterator[Result[T]]:
        """Like :meth:`map`, but in order of arrival; each request's ``context`` identifies its result."""
        options = ReaderOptions(on_error, on_progress, progress, ordered)
        return self._running.routing.map_results(prompts, params, self, options)

    def generate(
        self,
        prompts: Prompts,
        *,
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        **params: Unpack[ListParams[T]],
    ) -> ResultList[T]:
        """Return the results of :meth:`map` as a list, in order, with totals.

        Args:
            progress: as in :meth:`map`, but by default there is also a bar on a terminal.

        Raises:
            AllRequestsFailed: no request was answered; its ``results`` show why each failed.
            Interrupted: Ctrl-C was pressed; its ``results`` are those received so far, in order.
            Exception: see :meth:`map`.
        """
        if progress is None:
            progress = watched(sys.stderr)
        options = ReaderOptions(on_error, on_progress, progress)
        try:
            return self._running.routing.collected(prompts, params, self, options)
        except KeyboardInterrupt as error:
            raise as_interrupted(error) from None

    def embed(
        self,
        texts: Texts,
        *,
        task_type: str | None = None,
        dimensions: int | None = None,
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        **params: Unpack[EmbeddingListParams],
    ) -> ResultList:
        """Like :meth:`generate`, for embeddings: ``embed(texts).vectors`` has the vectors in order."""
        wanted = Embedding(task_type, dimensions)
        return self.generate(
            texts, on_error=on_error, on_progress=on_progress, progress=progress, embedding=wanted, **params
        )

    def plan(self, prompts: Prompts, **params: Unpack[ListParams[T]]) -> Plan[T]:
        """Plan a list for :meth:`map`: the route it would take, and why. Nothing is sent.

        Returns:
            a plan: ``print(plan.explain())`` describes it, and ``plan.run()`` executes it.

        Raises:
            InvalidRequest, ConfigError: see :meth:`map`.
        """
        try:
            return self._running.routing.plan(prompts, params, self)
        except KeyboardInterrupt as error:
            raise as_interrupted(error) from None

    def preview(
        self,
        prompts: Prompts,
        *,
        sample: int = 20,
        sample_seed: int = 0,
        by: str | None = None,
        progress: bool | None = None,
        **params: Unpack[ListParams[T]],
    ) -> Preview[T]:
        """Send a random sample of a list in real time and plan the other rows, see :meth:`Preview.run`.

        Args:
            prompts, params: see :meth:`map`, for the whole list; without a ``key``.
            sample: number of rows, spread over the list.
            sample_seed: the same seed draws the same rows.
            by: a column of the table; each of its values contributes rows in proportion to its frequency.
            progress: see :meth:`generate`.

        Raises:
            InvalidRequest, ConfigError, Interrupted: see :meth:`generate`.
        """
        from smartbatch.preview import SampleOptions, preview  # imported late: rarely needed

        options = SampleOptions(sample, sample_seed, by, progress)
        return preview(self, self._running.planner, prompts, options, params)

    def forecast(
        self, prompts: Prompts, *, count: int | None = None, **params: Unpack[ListParams[Any]]
    ) -> Plan:
        """Plan any number of prompts, like :meth:`plan`. They are read once and not stored.

        The plan cannot be run; :meth:`submit_run` stores the prompts as a job that follows it.

        Args:
            prompts, params: see :meth:`map`.
            count: maximum number of prompts, if known.

        Raises:
            InvalidRequest, ConfigError: see :meth:`map`.
        """
        return self._running.planner.forecast(prompts, params, count)

    def announce_plan(self, plan: Plan) -> AnnouncedPlan:
        """Report a plan run by :meth:`submit_run` to observers, and return an object that scores it."""
        return self._running.advisor.announce(plan.decision)

    # -- jobs ------------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        requests: Prompts,
        *,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        batch_fallback: Fallback | None = None,
        **params: Unpack[JobParams[Any]],
    ) -> Job:
        """Store all requests as a job for the provider's Batch API, and return the job.

        Rows are first checked one by one, so the iterator can have any length; if a row is invalid, nothing
        is stored or sent. When this method returns, the job is on disk: this process runs it, and if the
        process dies, any other process that uses the store resumes it.

        With constraints, the whole list is planned first: a ``deadline`` that cannot be met, or a ``budget``
        that is too small, is rejected. A job is sent as a batch unless ``strategy`` selects another route;
        with ``"auto"`` its route is chosen like that of a list.

        Args:
            requests: like ``prompts`` of :meth:`map`; either all for texts or all for embeddings.
            key: your own name for the job. The same requests under the same key are the same job, so a script
                can be repeated without sending anything twice. Requests added at the end are added to the
                job.
            metadata: labels, strings by name.
            batch_fallback: what to do with requests that an expired, failed or late batch did not process:
                ``"batch"`` for a new batch or ``"individual"`` for real time; ``None`` for the setting. With
                ``"individual"``, jobs are accepted even if batches are switched off or the provider has none.
            params: as in :meth:`submit`, for all requests; and the constraints, see
                :class:`ConstraintParams`.

        Raises:
            InvalidRequest: a request is invalid; the message names the row and the field.
            ConfigError: the provider has no Batch API for these requests, batches are switched off, or no
                route meets the constraints; the message names the nearest constraints that can be met.
            JobConflict: the key belongs to a job with other rows, another model or other parameters.
            StoreError: the store cannot be used.
            ClientClosed: the client was stopped.
        """
        options = JobOptions(key, metadata, batch_fallback)
        try:
            return self._handle(self._running.routing.submit_batch(requests, params, options))
        except KeyboardInterrupt as error:
            raise as_interrupted(error) from None

    def submit_run(
        self,
        requests: Iterable[Prompt],
        plan: Plan,
        *,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        carry_on: bool = True,
    ) -> Job:
        """Store requests as a job that follows a plan made for them.

        If the route is in real time, the job is *attended*: only a process that submitted or names it runs
        it, and its requests fail as they would without a job. So an interrupted run causes no further cost
        until it is resumed.

        Args:
            requests: those the plan was made for, see :meth:`forecast`; read once.
            plan: sets the route, deadline and budget; the deadline counts from now.
            key, metadata: see :meth:`submit_batch`.
            carry_on: whether this process runs the job; if false, it is only stored, for a process that names
                it.

        Raises:
            Exception: see :meth:`submit_batch`.
        """
        options = JobOptions(key, metadata, carry_on=carry_on)
        return self._handle(self._running.routing.submit_planned(requests, plan, options))

    def submit_and_wait(
        self,
        requests: Prompts,
        *,
        timeout: Duration | None = None,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        batch_fallback: Fallback | None = None,
        on_progress: Callable[[JobStatus], object] | None = None,
        progress: bool | None = None,
        **params: Unpack[JobParams[T]],
    ) -> ResultList[T]:
        """Submit a job, wait until it finishes, and return all results in order.

        Fewer than ``batch_threshold`` requests, or any number without a Batch API, are sent in real time.
        They still form a job, so they survive the process. This is the ``"threshold"`` strategy, unless
        ``strategy`` selects another one.

        Args:
            requests, key, metadata, batch_fallback, params: see :meth:`submit_batch`.
            timeout: such as ``"2h"``, or seconds; by default ``batch_timeout``, or until the deadline if that
                is later.
            on_progress: called with the :class:`~smartbatch.JobStatus` after each change.
            progress: see :meth:`map`.

        Raises:
            JobTimeout: the timeout has passed; the job continues.
            Interrupted: Ctrl-C was pressed; the job continues.
            AllRequestsFailed: no request was answered.
            Exception: see :meth:`submit_batch`.
        """
        began = self._settings.clock.now()
        wait = WaitOptions(seconds_of("timeout", timeout), on_progress, progress)
        running = self._running
        options = JobOptions(key, metadata, batch_fallback)
        try:
            row = running.routing.submit_by_count(requests, params, options)
            return running.jobs.results_of(self._handle(row), wait, began, requests)
        except KeyboardInterrupt as error:
            raise as_interrupted(error) from None

    def jobs(self, limit: int = 1000) -> list[Job]:
        """Return the jobs of the store, newest first, including those of other models and processes.

        Raises:
            ConfigError: ``limit`` is not a number of 0 or more.
            StoreError: the store cannot be used, or does not answer within 30 seconds.
        """
        most, engine = count_of("limit", limit), self._running.jobs.engine
        rows = engine.client_store.read_within(
            lambda: engine.store.jobs.latest(limit=most), STATUS_TIMEOUT, StoreError
        )
        return [self._handle(row) for row in rows]

    def job(self, id_or_key: str, *, reserve: bool = False) -> Job:
        """Return a job by its ID or its key.

        Args:
            reserve: reserve the job's remaining cost in this client's budget.

        Raises:
            JobNotFound: the store has no such job.
            StoreError: the store cannot be used.
        """
        jobs = self._running.jobs
        return self._handle(jobs.adopt(id_or_key) if reserve else jobs.engine.find(id_or_key))

    def has_batches(self, kind: Literal["generate", "embed"] = "generate") -> bool:
        """Whether the provider's Batch API accepts requests of a kind.

        Raises:
            ValueError: ``kind`` is neither ``"generate"`` nor ``"embed"``.
        """
        return batches_of(self.config, self._settings.model, Kind(kind))[0] is not None

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the threads, including after a stop. Has no effect if they are running."""
        self._running.start()
        return self

    def stop(self, timeout: Duration | None = None, *, cancel_waiting: bool = False) -> None:
        """Accept no more requests, complete the pending ones, and end the threads. Can be called more than
        once.

        Args:
            timeout: such as ``"30s"``, or seconds; requests unanswered by then fail with ``ClientClosed``.
                ``None`` waits for all requests.
            cancel_waiting: cancel requests that have not started, complete those in flight, and leave jobs in
                the store.

        If called from a signal handler that interrupted this library, or on a thread of the client (by an
        observer or a middleware), it returns immediately and the client stops in the background, because
        waiting there could take forever.
        """
        self._running.stop_from_anywhere(seconds_of("timeout", timeout), cancel_waiting=cancel_waiting)

    def set_parallelism(self, calls: int) -> None:
        """Allow up to ``calls`` concurrent calls from now on, including those of running lists and jobs.

        Calls in flight are not interrupted. A forked child inherits the value; other clients are not
        affected.

        Raises:
            ConfigError: ``calls`` is out of the range of the setting ``parallelism``.
        """
        calls = checked("parallelism", calls)
        self._config = changed(self._config, parallelism=calls)
        self._settings.parallelism.calls = calls
        self._running.realtime.resize(calls)

    def stop_jobs(self) -> None:
        """Start no further call of any job; calls in progress continue. The first half of :meth:`stop`."""
        self._running.halt_jobs()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish pending requests; after an exception, only those in flight, within ``exit_grace``."""
        if kind is None:
            self.stop()
            return
        reason = f"the with block ended with {kind.__name__}"
        self._running.stop(self.config.exit_grace, reason, cancel_waiting=True)

    def cancel_pending(self) -> int:
        """Cancel all requests whose call has not started, and return their number.

        The real-time lists they belong to send nothing more: the remaining rows get results with the error
        :class:`RequestCancelled`, and a lazily read iterable ends. Jobs and lists with a ``key`` continue.
        """
        return self._running.stored.cancel_pending()

    def flush(self) -> None:
        """Send the requests waiting in windows now."""
        self._running.stored.flush()

    # -- status ----------------------------------------------------------------------------------------------

    @property
    def config(self) -> BatchingConfig:
        """The settings."""
        return self._config

    @property
    def model(self) -> str:
        """The model's name without the provider's prefix."""
        return self._settings.model.name

    @property
    def queue_size(self) -> int:
        """Number of waiting requests, including those between two tries."""
        return self.counts.waiting

    @property
    def counts(self) -> RequestCounts:
        """Real-time requests by state since the last start in this process; kept after a stop, and always
        balanced. Requests in batches have a :meth:`Job.status`.
        """
        return self._running.realtime.counts

    @property
    def metrics(self) -> BatchMetrics:
        """The metrics of this process."""
        return self._running.metrics

    @property
    def status(self) -> RealtimeStatus:
        """The current status of real-time requests in this process: waiting requests, the reason they wait,
        and the use of limits. :func:`smartbatch.participants` has the status of all processes, a few seconds
        old.
        """
        return self._running.status

    @property
    def uses_store(self) -> bool:
        """Whether the client uses a store: one was configured, or there are jobs."""
        return self._running.uses_store

    @property
    def spent(self) -> float:
        """USD spent so far, if prices are known: all calls, and the results of jobs stored by this process.
        With a budget, it includes the cost of the client's jobs in other processes.
        """
        return self._running.spent

    @property
    def unconfirmed_cost(self) -> float:
        """USD that may have been billed in addition to :attr:`spent`: a call counts at its maximum cost if
        its answer was lost or its usage was not reported. A budget reserves this amount permanently.
        """
        return self._running.realtime.budget.unconfirmed

    def status_summary(self) -> str:
        """Return a few lines for users: answered and waiting requests, and the cost."""
        return status_summary(self.metrics.snapshot())

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with every event from now on; thread-safe."""
        self._settings.observers.append(observer)

    def __repr__(self) -> str:
        return f"<BatchingClient {self._settings.model.label} {self._running.realtime.state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a BatchingClient cannot be pickled: it has threads and connections. Create one in each process"
        )

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _running(self) -> RunningState:
        return self._states.get()

    def _handle(self, row: JobRow) -> Job:
        """Return a handle that keeps this client alive, because waiting needs its threads."""
        from smartbatch.jobs.job import Job

        return Job(lambda: self._running.jobs.engine, row)
