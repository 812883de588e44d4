"""Request ids, fingerprints of identical requests, and cached answers."""

from __future__ import annotations

import itertools
import uuid
from array import array

from attrs import evolve

from smartbatch._clock import SteadyWall
from smartbatch.core.preparation.fingerprint import fingerprint, shares_answer
from smartbatch.core.preparation.structured import Parsed, Problem, read_answer
from smartbatch.errors import AnswerUnread, UnusableAnswer
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.types import Answer, Request, Result, Route, answer_fields


class Admission:
    def __init__(self, model: OpenedModel, setup: RealtimeSetup) -> None:
        config, clock = setup.config, setup.clock
        self._model = model
        self._fallback = setup.fallback
        self._hooks = setup.hooks
        self._deduplicate = config.deduplicate
        self.cache: ResponseCache | None = None
        # two different functions may have the same name, so their answers are not cached
        if config.cache is not None and not model.provider.own_code:
            self.cache = ResponseCache(
                config.cache,
                ttl=config.cache_ttl,
                max_bytes=config.cache_max_bytes,
                wall=SteadyWall(clock),
                now=clock.now,
                publish_event=setup.publish_event,
            )
        self._prefix = f"req-{uuid.uuid4().hex[:8]}-"
        self._numbers = itertools.count(1)  # an iterator, because Ctrl-C inside a generator would end it

    def id_of(self, request: Request) -> str:
        """Return the request's own id, or a new one that is unique across clients and processes."""
        return request.id if request.id is not None else f"{self._prefix}{next(self._numbers)}"

    def keys(self, request: Request) -> tuple[bytes | None, bytes | None]:
        """Return the fingerprints for sharing the answer and for caching it.

        Each is ``None`` if the request does not share or cache its answer.
        """
        shares, keeps = self.shares(request), self.cache is not None
        if request.deduplicate is False or request.call is not None or not self._hooks.shareable:
            keeps = False
        if not shares and not keeps:
            return None, None
        key = fingerprint(request, request.model or self._model.name, self._model.provider.scope)
        return key if shares else None, key if keeps else None

    def fingerprint(self, request: Request) -> bytes | None:
        """Return one of :meth:`keys`, or ``None`` if the request neither shares nor caches its answer."""
        shared, kept = self.keys(request)
        return shared or kept

    def shares(self, request: Request) -> bool:
        return self._hooks.shareable and shares_answer(request, self._deduplicate)

    def cached_result(self, request: Request, key: bytes | None) -> Result | None:
        """Return the cached result if it fits the schema.

        If an internal error prevents reading a cached answer, the result is failed, because sending the
        request again would cost a second time.
        """
        try:
            answer = None if self.cache is None or key is None else self.cache.get(key)
        except AnswerUnread as unread:
            return self._unread(request, Answer(), unread)
        if answer is None:
            return None
        verdict = read_answer(request.params, answer.text, answer.finish_reason)
        if isinstance(verdict, Parsed):
            return self.result_without_call(request, evolve(answer, value=verdict.value), Route.CACHED)
        if not verdict.internal:
            return None
        error = verdict.error(text=answer.text, finish_reason=answer.finish_reason)
        return self._unread(request, answer, error)

    def _unread(self, request: Request, answer: Answer, error: UnusableAnswer) -> Result:
        result = self.result_without_call(request, answer, Route.CACHED)
        error.request_id, error.route = result.request_id, result.route
        return evolve(result, error=error)

    def hook_result(self, request: Request, answer: Answer) -> Result:
        """Return the result of a request that a preprocessing hook answered.

        An answer that does not fit the request fails, but the error keeps its text.
        """
        problem: Problem | None = None
        value = answer.value
        if request.embedding is not None:
            answer, problem = _with_vector(answer, request.embedding.dimensions)
        elif value is None:
            verdict = read_answer(request.params, answer.text, answer.finish_reason)
            if isinstance(verdict, Parsed):
                value = verdict.value
            else:
                problem = verdict
        result = self.result_without_call(request, evolve(answer, value=value), Route.LOCAL)
        if problem is None:
            return result
        problem = evolve(problem, message=f"a preprocess hook answered the request, and {problem.message}")
        error = problem.error(
            text=answer.text, finish_reason=answer.finish_reason, request_id=result.request_id
        )
        error.route = Route.LOCAL
        return evolve(result, error=error)

    def is_unchanged(self, request: Request, result: Result) -> bool:
        """Return False if the result may come from the fallback model or may have been changed by middleware.

        Neither can happen to a batch result.
        """
        if result.route is Route.BATCH:
            return True
        other = None if self._fallback is None else self._fallback.label
        return result.model == self._model.of(request).label != other and not self._hooks.middleware

    def result_without_call(self, request: Request, answer: Answer, route: Route) -> Result:
        """Return the result of a request that was answered without a call and cost nothing."""
        return Result(
            request_id=self.id_of(request),
            parsed=answer.value,
            cost=0.0,
            route=route,
            model=self._model.of(request).label,
            context=request.context,
            row=request.row,
            sample=request.sample,
            **answer_fields(answer),
        )


def _with_vector(answer: Answer, dimensions: int | None) -> tuple[Answer, Problem | None]:
    """Convert the vector of ``answer`` to an array, and report a missing or invalid vector."""
    try:
        vector = None if answer.embedding is None else array("f", answer.embedding)
    except TypeError:
        return evolve(answer, embedding=None), _wrong("its embedding is not a sequence of numbers")
    if not vector:
        return answer, _wrong("it has no vector: return Answer(embedding=[…])")
    if dimensions is not None and len(vector) != dimensions:
        return answer, _wrong(f"its vector has {len(vector)} numbers instead of {dimensions}")
    return evolve(answer, embedding=vector), None


def _wrong(message: str) -> Problem:
    return Problem(message, message, final=True)
