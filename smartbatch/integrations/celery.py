"""Celery: one client per worker process. A task that is delivered again finds and resumes its job.

Celery itself is imported only when a :class:`CeleryTasks` is created, in the module that defines the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, final

from smartbatch._clock import RealClock
from smartbatch._words import seconds_of
from smartbatch.client import BatchingClient
from smartbatch.integrations.hosting import TimeLimit, with_time_left
from smartbatch.results import ResultList, ended
from smartbatch.types import Duration, Prompt, Result

__all__ = ["CeleryTasks"]


@final
class CeleryTasks:
    """A client for the tasks of a Celery application.

    The client starts when a worker process runs its first task: after the fork, and without delaying the
    start of the process. When the process ends, calls in progress are given ``grace`` to complete, and jobs
    are released for other processes to resume.

    Args:
        client: for :meth:`generate` and :meth:`submit`, set its ``store`` to one that all workers can reach.
        grace: time for calls in progress when a worker process ends, such as ``"5s"``, or seconds.
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
        """Return the seconds left for the current task, up to one second before its soft time limit, or its
        hard limit if it has no soft one; ``None`` if it has neither.

        Raises:
            RequestTimeout: no time is left.
        """
        task = _current_task()
        hard, soft = task.request.timelimit or (None, None)
        limit = soft or task.soft_time_limit or hard or task.time_limit
        if limit is None:
            return None
        now = RealClock.now()
        return TimeLimit("task", limit, self._began.get(task.request.id, now)).left()

    def ask(self, prompt: Prompt, **params: Any) -> Result[Any]:
        """Send one request and return its result, within its timeout or the task's time limit, whichever is
        shorter.

        If the task is delivered again, the request is sent and paid for again; use :meth:`generate` to avoid
        that.

        Args:
            prompt, params: as for :meth:`BatchingClient.submit <smartbatch.BatchingClient.submit>`.

        Raises:
            RequestTimeout: no answer arrived before the time limit.
            SmartbatchError: the request failed.
        """
        client = self.client.start()  # started before the time is read, because the first start is slow
        params = with_time_left(self.time_left(), prompt, params, client.config.request_timeout)
        return client.submit(prompt, **params).result()

    def generate(
        self, prompts: Iterable[Prompt], *, key: str | None = None, **params: Any
    ) -> ResultList[Any]:
        """Send all prompts as a job and return all results, in order, after the job has ended.

        If the task is delivered again, after its worker was killed or timed out, it resumes the job: answered
        prompts are not sent again, and possible double payments are recorded as incidents.

        Args:
            prompts, params: as for
                :meth:`BatchingClient.submit_and_wait <smartbatch.BatchingClient.submit_and_wait>`.
            key: the job's key; by default derived from the task's id, so that each task has one job.

        Raises:
            JobTimeout: the time limit is near; the job continues.
        """
        left = self.time_left()
        return self.client.submit_and_wait(prompts, key=key or _key(), timeout=left, **params)

    def submit(self, requests: Iterable[Prompt], *, key: str | None = None, **params: Any) -> str:
        """Store all requests as a job and return its key, for a task that calls :meth:`results`.

        If the task is delivered again, nothing is stored twice.

        Args:
            requests, params: as for
                :meth:`BatchingClient.submit_batch <smartbatch.BatchingClient.submit_batch>`.
            key: the job's key; by default derived from the task's id, so that each task has one job.
        """
        key = key or _key()
        self.client.submit_batch(requests, key=key, **params)
        return key

    def results(self, key: str, *, countdown: Duration = 30.0) -> ResultList[Any]:
        """Return the results of a finished job, in order; otherwise retry the task later.

        No worker is blocked in the meantime. If the process that ran the job was killed, this process
        resumes the job.

        Args:
            key: the job's key.
            countdown: time until the task is retried, such as ``"1m"``, or seconds.

        Raises:
            celery.exceptions.Retry: the job has not ended; do not catch this exception.
            JobNotFound: the store has no such job.
        """
        self.client.start()
        job = self.client.job(key)
        status = job.status()
        if not status.done:
            later = seconds_of("countdown", countdown)
            raise _current_task().retry(countdown=later, max_retries=sys.maxsize)  # Celery's default is 3
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
        raise RuntimeError("this must be called inside a Celery task")
    return current_task


def _key() -> str:
    return f"celery-{_current_task().request.id}"
