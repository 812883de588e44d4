"""Celery: one client for each worker process, ended with it, and answers that a second delivery finds again.

Celery itself is imported when a :class:`CeleryTasks` is made, which belongs into the module of the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, final

from smartbatch._clock import RealClock
from smartbatch._words import seconds_of
from smartbatch.client import BatchingClient
from smartbatch.integrations.hosting import TimeLimit, within
from smartbatch.results import ResultList, ended
from smartbatch.types import Duration, Prompt, Result

__all__ = ["CeleryTasks"]


@final
class CeleryTasks:
    """A client for the tasks of a Celery application.

    The client is a handle: each worker process has a running state of its own, which is made by its first
    task, after the fork and not while Celery waits for the process to come up. When the process ends, calls
    under way get ``grace``, and jobs are given back, for other processes to go on with.

    Args:
        client: with a ``store`` that all workers reach, where :meth:`generate` and :meth:`submit` are used.
        grace: time for what is under way when a worker process ends, such as ``"5s"``, or seconds.
    """

    def __init__(self, client: BatchingClient, *, grace: Duration = 5.0) -> None:
        from celery import signals

        self.client = client
        self._grace = seconds_of("grace", grace)
        self._began: dict[str, float] = {}
        signals.task_prerun.connect(self._task_begins, weak=False)
        signals.task_postrun.connect(self._task_ended, weak=False)
        signals.worker_process_shutdown.connect(self._process_ends, weak=False)

    def time_left(self) -> float | None:
        """Return the seconds until a second before the soft time limit of the task that runs, or else its
        hard one; ``None`` without one.

        Raises:
            RequestTimeout: there are none left.
        """
        task = _current_task()
        hard, soft = task.request.timelimit or (None, None)
        limit = soft or task.soft_time_limit or hard or task.time_limit
        if limit is None:
            return None
        now = RealClock.now()
        return TimeLimit("task", limit, self._began.get(task.request.id, now)).left()

    def ask(self, prompt: Prompt, **params: Any) -> Result[Any]:
        """Ask one request and return its result; its time is over with its time-out or the task's time limit,
        whichever is sooner.

        A task that is delivered again asks again, and pays again: :meth:`generate` does not.

        Args:
            prompt, params: as for :meth:`BatchingClient.submit <smartbatch.BatchingClient.submit>`.

        Raises:
            RequestTimeout: no answer came before the time limit.
            SmartbatchError: what the request failed with.
        """
        client = self.client.start()  # before the time is looked at: the first start of a process takes some
        params = within(self.time_left(), prompt, params, client.config.request_timeout)
        return client.submit(prompt, **params).result()

    def generate(
        self, prompts: Iterable[Prompt], *, key: str | None = None, **params: Any
    ) -> ResultList[Any]:
        """Ask all prompts as a job and return all results, in order, when the job has ended.

        A task that is delivered again, after its worker was killed or its time was over, finds the job and
        goes on with it: what is answered is not asked again, and what may be paid twice is an incident.

        Args:
            prompts, params: as for
                :meth:`BatchingClient.submit_and_wait <smartbatch.BatchingClient.submit_and_wait>`.
            key: of the job; by default from the task's id, for one job a task.

        Raises:
            JobTimeout: the time limit is near; the job goes on.
        """
        left = self.time_left()
        return self.client.submit_and_wait(prompts, key=key or _key(), timeout=left, **params)

    def submit(self, requests: Iterable[Prompt], *, key: str | None = None, **params: Any) -> str:
        """Store all requests as a job and return its key, to be handed to a task that calls :meth:`results`.

        A task that is delivered again stores nothing twice.

        Args:
            requests, params: as for
                :meth:`BatchingClient.submit_batch <smartbatch.BatchingClient.submit_batch>`.
            key: of the job; by default from the task's id, for one job a task.
        """
        key = key or _key()
        self.client.submit_batch(requests, key=key, **params)
        return key

    def results(self, key: str, *, countdown: Duration = 30.0) -> ResultList[Any]:
        """Return the results of a job, in order; until it has ended, have the task run again later.

        No worker waits meanwhile. The process carries the job on where its owner was killed.

        Args:
            key: of the job.
            countdown: time until the task runs again, such as ``"1m"``, or seconds.

        Raises:
            celery.exceptions.Retry: the job has not ended; let it pass.
            JobNotFound: the store has none.
        """
        self.client.start()
        job = self.client.job(key)
        status = job.status()
        if not status.done:
            later = seconds_of("countdown", countdown)  # None would mean the task's own number, 3 by default
            raise _current_task().retry(countdown=later, max_retries=sys.maxsize)
        return ended(ResultList(job.results()), status.elapsed)

    def _task_begins(self, task_id: str, **_: Any) -> None:
        self._began[task_id] = RealClock.now()

    def _task_ended(self, task_id: str, **_: Any) -> None:
        self._began.pop(task_id, None)

    def _process_ends(self, **_: Any) -> None:
        self.client.stop(self._grace)


def _current_task() -> Any:
    from celery import current_task

    if not current_task:
        raise RuntimeError("this is for the inside of a Celery task: there is none here")
    return current_task


def _key() -> str:
    return f"celery-{_current_task().request.id}"
