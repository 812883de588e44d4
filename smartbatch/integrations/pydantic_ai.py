"""PydanticAI agents as work items, with the same queue, limits, retries and metrics as other requests.

All runs share one event loop (see :mod:`smartbatch.integrations.event_loop`). With ``Agent.run_sync`` each
worker would have its own loop, but the HTTP client of an agent belongs to one loop: of 200 runs of one agent
on 8 threads, more than 80 failed with "bound to a different event loop" (pydantic-ai 2.68).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from attrs import define, field

from smartbatch._words import seconds_of
from smartbatch.chats import Part
from smartbatch.config import BatchingConfig
from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError, scrub
from smartbatch.integrations.event_loop import Tasks
from smartbatch.observe import logs
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_ID, PLAIN_WORD, safe_text, short
from smartbatch.providers.limit_headers import RETRY_AFTER_CEILING
from smartbatch.types import Answer, Attempt, Duration, Message, Request, Usage

try:
    from pydantic_ai import Agent, exceptions, messages
    from pydantic_ai.usage import RunUsage
except ImportError as _error:
    raise ImportError(
        "smartbatch.integrations.pydantic_ai needs the extra: pip install 'smartbatch-llm[pydantic-ai]'"
    ) from _error

__all__ = ["AgentProvider", "agent_call", "agent_factory_call"]

Factory = Callable[[Request, int], "Agent[Any, Any]"]

CLOSE_SECONDS = 1.0  # time limit for closing connections; the rest are closed when the process ends
DEFAULT_TIMEOUT: float = BatchingConfig().call_timeout

_CATEGORIES: Sequence[tuple[str, ErrorKind]] = (
    ("ModelQuotaExceededError", ErrorKind.NO_MONEY),
    ("ModelContextWindowExceededError", ErrorKind.CONTEXT_TOO_LONG),
    ("ModelAuthenticationError", ErrorKind.AUTH_ERROR),
    ("ModelRequestTimeout", ErrorKind.TIMEOUT),
    ("ModelTimeoutError", ErrorKind.TIMEOUT),
    ("ModelConnectionError", ErrorKind.NETWORK_ERROR),
    ("ModelRateLimitError", ErrorKind.RATE_LIMIT),
    ("ModelUnavailableError", ErrorKind.SERVER_ERROR),
    ("ModelServerError", ErrorKind.SERVER_ERROR),
    ("ModelRequestRejectedError", ErrorKind.CLIENT_ERROR),
)
"""Error kinds by exception, from specific to general; by name, because a version may lack some."""

_DECIDED = frozenset({ErrorKind.NO_MONEY, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR})
"""Kinds for which the category, from the provider's error, is more precise than the HTTP status."""

_QUOTING = (exceptions.AgentRunError, exceptions.FallbackExceptionGroup, TimeoutError)
"""Errors of PydanticAI itself, not of the user's code."""


def agent_call(
    agent: Agent[Any, Any],
    *,
    timeout: Duration = DEFAULT_TIMEOUT,
    model_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Request, int], Answer]:
    """Return a call that runs ``agent``: for ``Request(call=…)``, or as the ``model`` of a client.

    The agent gets the request's prompt; for a conversation, it gets the last message, and the earlier ones as
    history. The request's ``system`` is added to the agent's instructions; temperature and similar parameters
    become model settings. A string output becomes ``Result.text``, any other output ``Result.parsed``.
    Retries of the agent's HTTP client are off, because the client retries; retries that correct the agent's
    output stay on.

    Args:
        agent: any number of calls and clients may share it, but no other event loop may run it at the same
            time. The HTTP client of its model stays open for the next run, as after ``run``.
        timeout: total time of one run, such as ``"90s"`` or seconds; at most the time left for the attempt.
        model_settings: override those of the request.
        options: further arguments of ``Agent.run``, such as ``deps``, ``usage_limits`` or ``toolsets``.

    Returns:
        ``call(request, attempt)``; raises ``ProviderError`` for every failure of the run.
    """
    return _named(_Runs(_always(agent), dict(model_settings or {}), options), timeout, agent.name)


def agent_factory_call(
    factory: Factory,
    *,
    timeout: Duration = DEFAULT_TIMEOUT,
    model_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Request, int], Answer]:
    """Return a call that runs a new agent in each attempt, for example with another model after a failure.

    Works like :func:`agent_call`, except that an unusable output (``UnexpectedModelBehavior``) is retried
    once, because the next agent may succeed. Its error has the kind ``UNKNOWN`` and the code
    ``invalid_output``.

    Args:
        factory: ``factory(request, attempt)`` returns the agent; ``attempt`` is 0 for the first.
        timeout, model_settings, options: as for :func:`agent_call`.
    """
    runs = _Runs(factory, dict(model_settings or {}), options, again=True)
    return _named(runs, timeout, getattr(factory, "__name__", None))


class AgentProvider(Provider):
    """An agent as the provider of a client: ``BatchingClient(AgentProvider(agent))``.

    Unlike with a callable, the client's ``call_timeout`` applies, requests that an agent cannot process are
    refused at submission, and stopping the client cancels the runs in progress.

    Args:
        agent: an agent, or a factory as for :func:`agent_factory_call`.
        name: prefix in logs and metrics, and name of the quota.
        model_settings, options: as for :func:`agent_call`.
    """

    own_code = True
    capabilities = Capabilities(priced=False)

    def __init__(
        self,
        agent: Agent[Any, Any] | Factory,
        *,
        name: str = "agent",
        model_settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.scope = f"agent:{name}"
        fixed = hasattr(agent, "run")
        self._agent = agent if fixed else None
        self._runs = _Runs(
            _always(agent) if fixed else agent, dict(model_settings or {}), options, again=not fixed
        )
        self._used = False

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        self._used = True
        return self._runs.run(request, attempt, timeout)

    def check(self, request: Request, *, model: str) -> None:  # noqa: ARG002
        """Refuse a request that an agent cannot process.

        Raises:
            InvalidRequest: the request cannot be processed; the message names the field.
        """
        _settings(request)
        _conversation(request)

    def close(self) -> None:
        self._runs.tasks.cancel()
        model: Any = getattr(self._agent, "model", None)

        async def close() -> None:
            async with model:  # the last user to leave closes the connections
                pass

        if self._used and hasattr(model, "__aenter__"):
            self._used = False
            try:
                self._runs.tasks.run(close, CLOSE_SECONDS)
            except Exception as error:  # the client must still stop
                logs.warn("agent_not_closed", agent=self.name, error=type(error).__name__)

    def abandon(self) -> None:
        self._used = False
        self._runs.tasks.abandon_after_fork()


@define(eq=False)
class _Runs:
    _agent_for: Factory
    _model_settings: Mapping[str, Any]
    _options: Mapping[str, Any]
    _again: bool = False
    tasks: Tasks = field(factory=Tasks, init=False)

    def run(self, request: Request, attempt: int, timeout: float) -> Answer:
        """Run the agent of this attempt once. The usage of a failed run is attached to its error."""
        agent = self._agent_for(request, attempt)
        try:
            settings = {"max_retries": 0, **_settings(request), **self._model_settings}
            prompt, history = _conversation(request)
        except InvalidRequest as refused:
            raise ProviderError(str(refused), kind=ErrorKind.CLIENT_ERROR, code="invalid_request") from None
        usage = RunUsage()
        options: dict[str, Any] = {"usage": usage, **self._options, "model_settings": settings}
        if request.params.system:
            more = options.get("instructions") or ()
            # a single string or function becomes a list
            own = more if isinstance(more, list | tuple) else [more]
            options["instructions"] = [request.params.system, *own]

        async def run() -> Any:
            # closes the HTTP client of an agent made for this attempt
            async with agent if self._again else contextlib.nullcontext():
                return await agent.run(prompt, message_history=history, infer_name=False, **options)

        try:
            result = self.tasks.run(run, timeout)
        except CancelledError:
            raise ProviderError(
                "the agent run was cancelled: the client was stopped, or the run cancelled itself",
                kind=ErrorKind.NETWORK_ERROR,
                code="closed",
                maybe_billed=True,
                usage=_usage(usage),
            ) from None
        except Exception as error:
            raised = _provider_error(error, again=self._again, requests=(request,))
            raised.usage = _usage(usage) or raised.usage
            if raised is error:
                raise
            # chain only errors of the user's code, because PydanticAI's own errors quote bodies
            raise raised from (None if isinstance(error, _QUOTING) else error)
        return _answer(result)


def _always(agent: Any) -> Factory:
    return lambda request, attempt: agent  # noqa: ARG005


def _named(runs: _Runs, timeout: Duration, name: str | None) -> Callable[[Request, int], Answer]:
    limit = seconds_of("timeout", timeout)

    def call(request: Request, attempt: int) -> Answer:
        left = min(limit, attempt.timeout) if isinstance(attempt, Attempt) else limit
        return runs.run(request, attempt, left)

    call.__name__ = name or "agent"
    return call


def _settings(request: Request) -> dict[str, Any]:
    params = request.params
    for name in ("schema", "response_format"):
        if getattr(params, name) is not None:
            raise InvalidRequest(
                f"{name} is not supported for agents: set output_type on the agent", field=name
            )
    for name in ("tools", "logprobs", "reasoning_effort"):
        if getattr(request.params, name):
            raise InvalidRequest(
                f"agents do not support {name}: set it on the agent or its model", field=name
            )
    found = {name: getattr(params, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
    found["extra_body"] = params.extra
    found["stop_sequences"] = None if params.stop is None else list(params.stop)
    return {name: value for name, value in found.items() if value is not None}


def _conversation(request: Request) -> tuple[Any, list[Any] | None]:
    if isinstance(request.prompt, str):
        return request.prompt, None
    *before, last = request.prompt
    if last.role != "user":
        raise InvalidRequest("the last message to an agent must be a user message", field="prompt")
    return _content(last), [_past(message) for message in before] or None


def _past(message: Message) -> Any:
    content = _content(message)
    match message.role:
        case "user":
            return messages.ModelRequest([messages.UserPromptPart(content)])
        case "system" | "developer" if isinstance(content, str):
            return messages.ModelRequest([messages.SystemPromptPart(content)])
        case "assistant" if isinstance(content, str) and not message.tool_calls:
            return messages.ModelResponse([messages.TextPart(content)])
    raise InvalidRequest(
        f"an agent cannot process a message with role {message.role!r} and this content", field="prompt"
    )


def _content(message: Message) -> Any:
    if isinstance(message.content, str):
        return message.content
    parts = [_part(part) for part in message.content]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else parts


def _part(part: Part | str) -> Any:
    if not isinstance(part, Mapping):
        part = {"type": "text", "text": part} if isinstance(part, str) else {}
    text, image = part.get("text"), part.get("image_url")
    if part.get("type") == "text" and isinstance(text, str):
        return text
    url = image.get("url") if isinstance(image, Mapping) else None
    if part.get("type") == "image_url" and isinstance(url, str):
        try:
            if url.startswith("data:"):
                return messages.BinaryContent.from_data_uri(url)
            return messages.ImageUrl(url)
        except ValueError:
            raise InvalidRequest("an image has an invalid URL", field="prompt") from None
    raise InvalidRequest("agents support content parts of type text and image_url only", field="prompt")


def _answer(result: Any) -> Answer:
    output, response, used = result.output, result.response, result.usage
    cost = None if used.cost is None else float(used.cost)
    finish = response.finish_reason
    return Answer(
        text=output if isinstance(output, str) else None,
        value=None if isinstance(output, str) else output,
        usage=_usage(used),
        # other reasons occur in complete runs
        finish_reason=finish if finish in ("length", "content_filter") else "stop",
        model=short(response.model_name, PLAIN_ID),
        provider_request_id=short(response.provider_response_id, PLAIN_ID),
        cost=cost if cost is not None and 0 <= cost < math.inf else None,
    )


def _usage(used: Any) -> Usage | None:
    """Return the tokens of a run, even a failed one; ``None`` if none were counted."""
    if not (used.input_tokens or used.output_tokens):
        return None
    return Usage(
        used.input_tokens,
        used.output_tokens,
        min(used.cache_read_tokens, used.input_tokens),
        min(used.output_reasoning_tokens, used.output_tokens),
        bool(used.unmeasured_requests),
        cache_write_tokens=min(used.cache_write_tokens, used.input_tokens),
    )


# -- errors --------------------------------------------------------------------------------------------------


def _provider_error(error: Exception, *, again: bool, requests: Sequence[Request]) -> ProviderError:
    """Classify an exception of a run by its category first, then by its HTTP status.

    Args:
        again: whether another attempt runs another agent, which may produce a usable output.
        requests: requests whose texts must not appear in the error.
    """
    if isinstance(error, ProviderError):  # from a tool that calls this library
        return error
    if isinstance(error, exceptions.FallbackExceptionGroup):  # the last model decides
        last = _provider_error(error.exceptions[-1], again=again, requests=requests)
        last.maybe_billed = True
        return last
    if isinstance(error, exceptions.ModelAPIError):
        return _of_api(error, requests)
    kind, code, text = _of_run(error, again=again)
    return ProviderError(text, kind=kind, code=code, maybe_billed=True)


def _of_api(error: Any, requests: Sequence[Request]) -> ProviderError:
    kind = next(
        (kind for name, kind in _CATEGORIES if isinstance(error, getattr(exceptions, name, ()))), None
    )
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    message = _message(error.body)
    if status is not None and kind not in _DECIDED:
        kind = kind_of_status(status, error.provider_error_code, error.provider_error_type, message)
    wait = error.retry_after
    code = short(error.provider_error_code, PLAIN_WORD) or short(error.provider_error_type, PLAIN_WORD)
    quoted = safe_text(message, requests)
    what = f"answered {status}" if status is not None else f"failed ({type(error).__name__})"
    return ProviderError(
        f"the agent's model {what}{f' {code}' if code else ''}{f': {quoted}' if quoted else ''}",
        kind=kind or ErrorKind.UNKNOWN,
        status=status,
        code=code,
        retry_after=None if wait is None else min(max(wait, 0.0), RETRY_AFTER_CEILING),
        maybe_billed=status in (None, 200, 504) and getattr(error, "phase", None) not in ("pool", "connect"),
    )


def _of_run(error: Exception, *, again: bool) -> tuple[ErrorKind, str | None, str]:
    name = type(error).__name__
    if isinstance(error, TimeoutError):
        return ErrorKind.TIMEOUT, "deadline", "the agent run exceeded its timeout"
    if isinstance(error, exceptions.UsageLimitExceeded):
        return ErrorKind.CLIENT_ERROR, "usage_limit", "the agent run reached its usage_limits"
    if isinstance(error, exceptions.ContentFilterError):
        return ErrorKind.CLIENT_ERROR, "content_filter", "the provider's content filter stopped the agent"
    if isinstance(error, exceptions.OutputTokenLimitExceeded):
        return ErrorKind.INVALID_RESPONSE, "length", "the agent's output was truncated; raise max_tokens"
    if isinstance(error, exceptions.UnexpectedModelBehavior):
        kind = ErrorKind.UNKNOWN if again else ErrorKind.INVALID_RESPONSE
        return kind, "invalid_output", "the agent could not produce a valid output from its model's answers"
    if isinstance(error, exceptions.RunCancelled):
        return ErrorKind.CLIENT_ERROR, "cancelled", "the agent run was cancelled by its own code"
    if isinstance(error, exceptions.ConcurrencyLimitExceeded):
        return ErrorKind.RATE_LIMIT, "concurrency", "the agent's own concurrency limit was reached"
    if isinstance(error, exceptions.UserError):
        return ErrorKind.CLIENT_ERROR, "usage", scrub(f"the agent is used incorrectly: {error.message}")
    kind = ErrorKind.NETWORK_ERROR if isinstance(error, ConnectionError) else ErrorKind.UNKNOWN
    return kind, None, f"the agent run raised {name}"


def _message(body: object) -> str:
    """Return the provider's message in the body of an error, for any API."""
    found: object = body
    if isinstance(found, Mapping) and "error" in found:
        found = found["error"]
    if isinstance(found, Mapping):
        found = found.get("message")
    return found if isinstance(found, str) else ""
