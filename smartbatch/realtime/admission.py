"""What a client does with a prompt before it is queued: hooks, checks, the cache, and what it will take."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import evolve, fields_dict

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.preparation import tokens, validation
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.errors import ConfigError, InvalidRequest
from smartbatch.events import RequestFinished
from smartbatch.providers.base import Provider
from smartbatch.providers.registry import create as create_provider
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.lane import Lane
from smartbatch.types import Answer, Generation, Prompt, Request, Result, Route

__all__ = ["GENERATION", "Admission", "Preprocess", "generation", "open_model", "with_settings"]

Preprocess: TypeAlias = "Callable[[Request], Request | Answer | str | None]"
"""A hook before the queue: returns the request (changed or not), a local answer, or raises to reject."""

GENERATION = frozenset(fields_dict(Generation))
"""Names of the parameters that are about generating and not about the request."""


class Admission:
    """Turns what callers pass into checked requests, and answers what needs no call.

    Args:
        defaults: the client's generation parameters, checked.
        preprocess: hooks, in order.
    """

    def __init__(
        self,
        provider: Provider,
        model: str,
        config: BatchingConfig,
        clock: Clock,
        defaults: Generation,
        preprocess: Sequence[Preprocess],
    ) -> None:
        self._provider = provider
        self._model = model
        self._config = config
        self._defaults = defaults
        self._hooks = tuple(preprocess)
        self.cache = (
            None
            if config.cache is None
            else ResponseCache(
                config.cache, ttl=config.cache_ttl, max_bytes=config.cache_max_bytes, wall=clock.wall
            )
        )
        self.renew()

    def renew(self) -> None:
        """Take ids of its own, in a new process; no generator: Ctrl-C inside one would end it."""
        self._prefix = f"req-{uuid.uuid4().hex[:8]}-"
        self._numbers = itertools.count(1)
        if self.cache is not None:
            self.cache.abandon()

    def requests(self, prompts: Iterable[Prompt], params: Mapping[str, Any]) -> Iterable[Request]:
        """Return the checked requests of a list, at once for a sequence and lazily for anything else.

        Raises:
            InvalidRequest: names the row.
        """
        checked = self.admitted(prompts, params)
        if not isinstance(prompts, Sequence):
            return checked
        requests = list(checked)
        for request in requests:
            self.check(request)
        return requests

    def admitted(self, prompts: Iterable[Prompt], params: Mapping[str, Any]) -> Iterator[Request]:
        """Return the requests of a list, each checked as it is read.

        Raises:
            InvalidRequest: at once for a single prompt, else when the row is read; it names the row.
        """
        if isinstance(prompts, str | Mapping):
            raise InvalidRequest("prompts must be a list of prompts, not a single one", field="prompts")
        defaults = self.defaults_of(params)
        others = {name: value for name, value in params.items() if name not in GENERATION}
        return (
            validation.normalise(prompt, defaults, row=row, **others) for row, prompt in enumerate(prompts)
        )

    def defaults_of(self, params: Mapping[str, Any]) -> Generation:
        """Return the client's generation parameters with those of ``params`` over them."""
        own = {name: value for name, value in params.items() if name in GENERATION}
        return generation(self._defaults, own) if own else self._defaults

    def preprocessed(self, request: Request) -> Request | Answer:
        """Run the hooks; an answer ends the request without a call."""
        for hook in self._hooks:
            verdict = hook(request)
            if isinstance(verdict, str):
                return Answer(verdict)
            if isinstance(verdict, Answer):
                return verdict
            if verdict is not None:
                request = validation.normalise(verdict, self._defaults)
        if request.timeout is None and self._config.request_timeout is not None:
            request = evolve(request, timeout=self._config.request_timeout)
        return request

    def check(self, request: Request) -> None:
        """Refuse what the provider cannot do, before the request is queued."""
        if request.embedding is not None and not self._provider.capabilities.max_texts:
            raise InvalidRequest(f"{self._provider.name} has no embeddings", field="embedding")
        self._provider.check(request, model=self._model)

    def id_of(self, request: Request) -> str:
        """The request's own id, or one that no other client and process has."""
        return request.id if request.id is not None else f"{self._prefix}{next(self._numbers)}"

    def fingerprint(self, request: Request) -> bytes | None:
        """What requests that may share one answer have in common; ``None`` for one that must not."""
        if not request.deduplicate or request.call is not None:
            return None
        if not self._config.deduplicate and self.cache is None:
            return None
        return fingerprint(request, self._model, self._provider.scope)

    def demand(self, lane: Lane, request: Request, *, priced: bool = False) -> tuple[tuple[int, int], float]:
        """Return estimated input tokens, input and output together, and the most the request can cost in USD.

        Without a budget of the client, unless ``priced``, nothing depends on the cost: it is not computed.
        """
        estimated = tokens.estimate_request(request)
        whole, reserve = lane.demand(request, estimated, priced=priced or self._config.budget is not None)
        return (estimated, whole), reserve

    def recalled(self, request: Request, key: bytes | None) -> Result | None:
        """Return the result the cache has for ``request``, if it has one that fits its schema."""
        answer = None if self.cache is None or key is None else self.cache.get(key)
        if answer is None:
            return None
        verdict = read_answer(request.params, answer.text, answer.finish_reason)
        if not isinstance(verdict, Parsed):
            return None
        return self.settled(request, evolve(answer, value=verdict.value), Route.CACHED)

    def finished(self, request: Request, result: Result, now: float) -> RequestFinished:
        """Return what is told of a request that took no call."""
        error = result.error
        return RequestFinished(
            at=now,
            request_id=result.request_id,
            priority=request.priority,
            model=f"{self._provider.name}:{self._model}",
            ok=error is None,
            cancelled=False,
            error=None if error is None else (error.kind.value if error.kind else type(error).__name__),
            attempts=0,
            queued=0.0,
            seconds=0.0,
            usage=result.usage,
            cost=result.cost,
            route=result.route,
            deduplicated=False,
        )

    def settled(self, request: Request, answer: Answer, route: Route) -> Result:
        """Return the result of a request that took no call and cost nothing."""
        return Result(
            request_id=self.id_of(request),
            text=answer.text,
            parsed=answer.value,
            embedding=answer.embedding,
            cost=0.0,
            route=route,
            finish_reason=answer.finish_reason,
            model=f"{self._provider.name}:{self._model}",
            context=request.context,
        )


def open_model(
    model: str | Provider | Callable[[Request, int], Any],
    provider: Provider | None,
    options: Mapping[str, Any] | None,
    clock: Clock,
) -> tuple[Provider, str]:
    """Return the provider that ``model`` stands for, and the model's name as the provider knows it.

    Raises:
        ConfigError: for an unknown prefix, a missing key, or options that go nowhere.
    """
    if options and (provider is not None or not isinstance(model, str)):
        raise ConfigError("provider_options are for a provider named by prefix; this one is made already")
    if isinstance(model, str):
        if provider is not None:
            return provider, model
        return create_provider(model, clock=clock, options=options)
    if isinstance(model, Provider):
        return model, "default"
    if callable(model):
        from smartbatch.providers.callable import CallableProvider

        return CallableProvider(model), getattr(model, "__name__", "callable")
    raise ConfigError(f"model must be a text, a provider or a callable, not {type(model).__name__}")


def with_settings(config: BatchingConfig, settings: Mapping[str, Any]) -> BatchingConfig:
    """Return ``config`` with ``settings`` over it.

    Raises:
        ConfigError: for an unknown name (the nearest is suggested) or a value out of its range.
    """
    if settings.keys() - fields_dict(BatchingConfig).keys():
        return BatchingConfig.load(environ={}, **settings)  # raises
    return evolve(config, **settings)


def generation(defaults: Generation, params: Mapping[str, Any]) -> Generation:
    """Return checked generation parameters: ``params`` over ``defaults``."""
    return validation.admit_defaults(evolve(defaults, **params) if params else defaults)
