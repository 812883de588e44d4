"""The part of a client that answers lists, for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

from smartbatch.jobs.job import Job
from smartbatch.jobs.submission import Fallback
from smartbatch.plan import Plan
from smartbatch.results import ResultList
from smartbatch.routing.list_routes import ListRoutes, common_purpose, parted, whole
from smartbatch.types import Embedding, Prompt, Result, Route

__all__ = ["ListCalls"]

OnError = Literal["result", "raise"]


class ListCalls(ListRoutes):
    """What a client offers for lists; see :class:`~smartbatch.BatchingClient`.

    All of these take, besides their own, the constraints that decide the route:

    - ``strategy``: ``"auto"``, ``"individual"``, ``"batch"``, ``"hybrid"`` or ``"threshold"``;
      ``batching_strategy`` when left out.
    - ``deadline``: a text such as ``"2h"``, seconds, a ``timedelta``, or a ``datetime`` with its time zone.
    - ``budget``: most to spend on this list, in USD or as ``"5 USD"``.
    - ``prefer``: ``"balanced"``, ``"speed"`` or ``"cost"``; counts where there is no deadline.
    - ``time_value``: what an hour of waiting is worth, USD.
    """

    # -- for users -------------------------------------------------------------------------------------------

    def map(
        self, prompts: Iterable[Prompt], *, on_error: OnError | None = None, **params: Any
    ) -> Iterator[Result]:
        """Yield a result for each prompt, in order, reading ahead a bounded number.

        A list is checked as a whole before anything is sent, and its route is chosen; any other iterable is
        read lazily, so it may be endless, and goes in real time unless it is given a ``strategy``, a
        ``deadline`` or a ``prefer``. Leaving the loop early, or Ctrl-C, cancels what has not started.

        Args:
            prompts: texts, chats or requests.
            on_error: ``"result"`` yields failed requests as results with ``.error``, ``"raise"`` raises
                the first one; the client's setting when ``None``.
            params: as in :meth:`submit`, for all of them; and the constraints, see :class:`ListCalls`.

        Raises:
            InvalidRequest: names the row.
            ConfigError: no route meets the constraints; the text names the nearest that would be met.
        """
        return self._answered(prompts, params, on_error or self.config.on_error, ordered=True)

    def as_completed(
        self,
        prompts: Iterable[Prompt],
        *,
        on_error: OnError | None = None,
        ordered: bool = False,
        **params: Any,
    ) -> Iterator[Result]:
        """As :meth:`map`, in the order the answers come. Put a position into each request's ``context``."""
        return self._answered(prompts, params, on_error or self.config.on_error, ordered=ordered)

    def generate(
        self, prompts: Iterable[Prompt], *, on_error: OnError | None = None, **params: Any
    ) -> ResultList:
        """Return all results as a list, in order, with sums over the whole.

        Args:
            prompts, on_error, params: as in :meth:`map`.

        Raises:
            AllRequestsFailed: when not one request was answered; its ``results`` tell why each failed.
            Exception: as :meth:`map`.
        """
        began = self._clock.now()
        results = ResultList(self.map(prompts, on_error=on_error, **params))
        results.wall = self._clock.now() - began
        results.raise_if_all_failed()
        return results

    def embed(
        self,
        texts: Iterable[str],
        *,
        task_type: str | None = None,
        dimensions: int | None = None,
        on_error: OnError | None = None,
        **params: Any,
    ) -> ResultList:
        """Return the vectors of all texts, in order: ``embed(texts).vectors``.

        Raises:
            AllRequestsFailed: as :meth:`generate`.
        """
        embedding = Embedding(task_type, dimensions)
        return self.generate(texts, on_error=on_error, embedding=embedding, **params)

    def plan(self, prompts: Iterable[Prompt], **params: Any) -> Plan:
        """Say what a list would take, by which route, and why; nothing is sent.

        Args:
            prompts, params: as in :meth:`map`.

        Returns:
            a plan; ``print(plan.explain())``, and ``plan.run()`` to execute it.

        Raises:
            InvalidRequest, ConfigError: as :meth:`map`.
        """
        asked = self._asked(whole(prompts), *parted(params))
        return Plan(self._considered(asked), partial(self._carried_out, asked))

    def submit_batch(
        self,
        requests: Iterable[Prompt],
        *,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        fallback: Fallback | None = None,
        **params: Any,
    ) -> Job:
        """Store all requests as a job, and return it; see :meth:`JobSubmission.submit_batch`.

        With any of the constraints the whole list is looked at first: a ``deadline`` that cannot be met, or a
        ``budget`` that will not do, is refused. A job goes by batch unless ``strategy`` says otherwise; with
        ``"auto"`` its route is chosen as that of a list.

        Args:
            requests, key, metadata, fallback: as in :meth:`JobSubmission.submit_batch`.
            params: as there, and the constraints; see :class:`ListCalls`.

        Raises:
            ConfigError: no route meets the constraints; the text names the nearest that would be met.
            Exception: as :meth:`JobSubmission.submit_batch`.
        """
        plain, constrained = parted(params)
        if not constrained:
            return super().submit_batch(requests, key=key, metadata=metadata, fallback=fallback, **plain)
        asked = self._asked(whole(requests), plain, {"strategy": "batch", **constrained}, fallback)
        decision = self._considered(asked)
        self._advisor.tell(decision, common_purpose(asked.requests))
        by_batch = decision.chosen.route in (Route.BATCH, Route.HYBRID)
        return self._submit_rows(
            map(self._prepared, asked.requests),
            asked.kind,
            asked.params,
            realtime=decision.chosen.first if by_batch else None,
            constraints=decision.constraints,
            late_penalty=decision.late_penalty,
            route=decision.chosen.route,
            most=decision.piece,
            key=key,
            metadata=metadata,
            fallback=fallback,
        )

    def _submit_by_count(
        self,
        requests: Iterable[Prompt],
        params: Mapping[str, Any],
        *,
        key: str | None,
        metadata: Mapping[str, str] | None,
        fallback: Fallback | None,
    ) -> Job:
        plain, constrained = parted(params)
        given: dict[str, Any] = {"key": key, "metadata": metadata, "fallback": fallback}
        if not constrained:
            return super()._submit_by_count(requests, plain, **given)
        return self.submit_batch(requests, **given, **plain, **{"strategy": "threshold", **constrained})
