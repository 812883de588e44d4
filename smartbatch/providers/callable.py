"""A user's function as a provider: it makes the calls; the library queues, limits and retries them."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.types import Answer, Attempt, Request, Usage, evolve

OwnCall: TypeAlias = Callable[[Request, Attempt], Any]
OwnManyCall: TypeAlias = Callable[[Sequence[Request], Attempt], Sequence[Any]]
OwnClassifier: TypeAlias = Callable[[Exception], ErrorKind | ProviderError | None]

MAX_SHARED = 10
"""Default maximum number of requests per shared call."""

_COUNTS = (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens"))
"""Names of token counts in Anthropic's and OpenAI's responses and in OpenAI's chat completions."""


class CallableProvider(Provider):
    """Wraps ``fn(request, attempt)``, which may use any client, and is called from several threads.

    The function returns a string, an :class:`~smartbatch.types.Answer` (which can have usage and cost) or any
    other object, which becomes ``Result.parsed``. It may also return ``(value, usage)``, where usage is a
    :class:`~smartbatch.types.Usage`, or a provider's own mapping or object with the numbers of input and
    output tokens. An exception may have the attribute ``usage``; if it was raised ``from`` others, their
    usage is added. The function must respect the call's timeout itself, because a running Python function
    cannot be stopped from outside.

    Args:
        fn: makes one call; ``attempt`` is 0 for the first, ``attempt.timeout`` is the time allowed in
            seconds, and ``attempt.temperature`` is the temperature to use.
        name: the prefix in logs and metrics, and the name of the quota.
        many: ``many(requests, attempt)`` makes one call for several requests and returns one entry per
            request, in order: an answer as above, an exception if only that request failed, or ``None`` if
            the answer is missing. If given, requests share calls.
        max_shared: maximum requests per call of ``many``.
        classify: ``classify(error)`` converts an exception of ``fn``, or returns ``None`` for the default
            conversion.
    """

    own_code = True

    def __init__(
        self,
        fn: OwnCall,
        *,
        name: str = "call",
        many: OwnManyCall | None = None,
        max_shared: int = MAX_SHARED,
        classify: OwnClassifier | None = None,
    ) -> None:
        for label, given in (("fn", fn), ("many", many), ("classify", classify)):
            if given is not None and not callable(given):
                raise ConfigError(f"{label} is a {type(given).__name__}, not a callable")
            if inspect.iscoroutinefunction(given):
                raise ConfigError(
                    f"{label} is a coroutine function; wrap it: lambda *a: asyncio.run({label}(*a))"
                )
        if max_shared < 1:
            raise ConfigError(f"max_shared={max_shared!r} must be at least 1")
        self.name = name
        self.scope = f"call:{name}"
        self.capabilities = Capabilities(max_shared=max_shared if many else 1, priced=False)
        self._fn = fn
        self._many = many
        self._classify = classify

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        return normalise(self._fn(request, Attempt(attempt, timeout, request.params.temperature)))

    def generate_many(
        self,
        requests: Sequence[Request],
        *,
        model: str,
        attempt: int,
        timeout: float,
    ) -> Sequence[Answer | Exception | None]:
        if self._many is None:
            return super().generate_many(requests, model=model, attempt=attempt, timeout=timeout)
        temperatures = {request.params.temperature for request in requests}
        temperature = temperatures.pop() if len(temperatures) == 1 else None
        answers = self._many(requests, Attempt(attempt, timeout, temperature))
        if isinstance(answers, (str, bytes)) or not isinstance(answers, Sequence):
            raise TypeError(
                f"many returned a {type(answers).__name__}; it must return a list with one entry per request"
            )
        return [
            entry if entry is None or isinstance(entry, Exception) else normalise(entry) for entry in answers
        ]

    def classify(self, error: Exception) -> ProviderError:
        said = self._classify(error) if self._classify else None
        if isinstance(said, ProviderError):
            return said
        verdict = super().classify(error)
        if isinstance(said, ErrorKind):
            verdict.kind = said
        return verdict

    def takes_temperature(self, model: str) -> bool:  # noqa: ARG002
        """The function receives the temperature and may use it."""
        return True

    def __repr__(self) -> str:
        return f"CallableProvider({getattr(self._fn, '__qualname__', type(self._fn).__name__)})"


def normalise(value: Any) -> Answer:
    """Convert a function's return value; raise ``TypeError`` for a coroutine, which would never run."""
    if isinstance(value, tuple) and len(value) == 2 and (usage := usage_in(value[1])) is not None:
        return evolve(normalise(value[0]), usage=usage)
    if isinstance(value, Answer):
        return value
    if isinstance(value, str):
        return Answer(text=value)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("the call returned a coroutine; run it inside the function, as in asyncio.run(…)")
    return Answer(value=value)


def usage_in(stated: object) -> Usage | None:
    """Read token counts from a :class:`~smartbatch.types.Usage`, or from a mapping or object that uses a
    provider's names.
    """
    if isinstance(stated, Usage):
        return stated
    for names in _COUNTS:
        if isinstance(stated, Mapping):
            sent, received = (stated.get(name) for name in names)
        else:
            sent, received = (getattr(stated, name, None) for name in names)
        if _is_count(sent) and _is_count(received):
            return Usage(sent, received)
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def usage_of(error: BaseException) -> Usage | None:
    """Add up the usage of an exception and of the exceptions it was raised ``from``."""
    found: dict[int, Usage] = {}
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        stated = getattr(at, "usage", None)
        if (usage := usage_in(stated)) is not None:
            found[id(stated)] = usage  # an outer exception may hold the inner one's usage object
        at = at.__cause__
    usages = list(found.values())
    return sum(usages[1:], usages[0]) if usages else None


def load_callable(path: str) -> OwnCall:
    """Import ``package.module:function``; a ``ConfigError`` names the part that was not found."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"call:{path} must name a module and a function, as in call:my_package.calls:ask")
    try:
        found = pkgutil.resolve_name(path)
    except ImportError as error:
        raise ConfigError(f"call:{path}: importing {module_name} failed: {error}") from error
    except (AttributeError, ValueError):
        raise ConfigError(f"call:{path}: {module_name} has no {attribute}") from None
    if not callable(found):
        raise ConfigError(f"call:{path}: {attribute} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
