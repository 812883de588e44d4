"""PydanticAI agents as work items: through the same queue, limits, retries and books as everything else.

All runs share one event loop (see :mod:`smartbatch.integrations.event_loop`). With ``Agent.run_sync`` each
worker would have a loop of its own, and the HTTP client that an agent keeps belongs to one: of 200 runs of
one agent on 8 threads, 80 and more failed with "bound to a different event loop" (pydantic-ai 2.68).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from smartbatch.config import BatchingConfig
from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.integrations.event_loop import Tasks
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.providers.foreign_text import PLAIN_ID, short
from smartbatch.types import Answer, Message, Request, Usage

try:
    from pydantic_ai import Agent, messages
    from pydantic_ai.usage import RunUsage
except ImportError as _error:
    raise ImportError(
        "smartbatch.integrations.pydantic_ai needs the extra: pip install 'smartbatch-llm[pydantic-ai]'"
    ) from _error

from smartbatch.integrations.pydantic_ai_errors import is_foreign, meaning

__all__ = ["AgentProvider", "agent_call", "agent_factory_call"]

Factory = Callable[[Request, int], "Agent[Any, Any]"]

CLOSING = 1.0
"""Seconds for closing connections; what takes longer is left to the end of the process."""
DEFAULT_TIMEOUT: float = BatchingConfig().call_timeout


def agent_call(
    agent: Agent[Any, Any],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    model_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Request, int], Answer]:
    """Return a call that runs ``agent``: for ``Request(call=…)``, or as the ``model`` of a client.

    The request's prompt goes to the agent; of a conversation, the last message does, and those before it are
    the history. Its ``system`` is added to the agent's instructions; temperature and the like become model
    settings. An output that is a text is ``Result.text``, any other ``Result.parsed``. Retries of the agent's
    own HTTP client are off, for the client retries; those by which the agent corrects its output are not.

    Args:
        agent: may be shared by any number of calls and clients; not with an event loop of yours that runs
            it at the same time. The HTTP client of its model stays open for the next run, as after ``run``.
        timeout: total seconds of one run.
        model_settings: win over those of the request.
        options: further arguments of ``Agent.run``, such as ``deps``, ``usage_limits`` or ``toolsets``.

    Returns:
        ``call(request, attempt)``; raises ``ProviderError`` for every failure of the run.
    """
    return _named(_Runs(_always(agent), model_settings, options), timeout, agent.name)


def agent_factory_call(
    factory: Factory,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    model_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Request, int], Answer]:
    """Return a call that runs a new agent in each attempt, for instance with another model after a failure.

    As :func:`agent_call`, but an output the agent could not use (``UnexpectedModelBehavior``) is tried once
    more, since the next agent may do better; its kind is ``UNKNOWN``, with the code ``invalid_output``.

    Args:
        factory: ``factory(request, attempt)`` returns the agent; ``attempt`` is 0 for the first.
        timeout, model_settings, options: as for :func:`agent_call`.
    """
    runs = _Runs(factory, model_settings, options, again=True)
    return _named(runs, timeout, getattr(factory, "__name__", None))


class AgentProvider(Provider):
    """An agent as the provider of a client: ``BatchingClient(AgentProvider(agent))``.

    More than a callable: the client's ``call_timeout`` holds, what the agent cannot take is refused at
    submission, and stopping the client cancels the runs under way.

    Args:
        agent: an agent, or a factory as for :func:`agent_factory_call`.
        name: the prefix in logs and metrics, and the name of the quota.
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
        self._runs = _Runs(_always(agent) if fixed else agent, model_settings, options, again=not fixed)
        self._used = False

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        """Run the agent once."""
        self._used = True
        return self._runs.run(request, attempt, timeout)

    def check(self, request: Request, *, model: str) -> None:  # noqa: ARG002
        """Refuse what cannot be given to an agent.

        Raises:
            InvalidRequest: names the field.
        """
        _settings(request)
        _conversation(request)

    def close(self) -> None:
        """Cancel the runs under way and close the connections of the agent's model."""
        self._runs.tasks.cancel()
        model = getattr(self._agent, "model", None)
        if self._used and hasattr(model, "__aenter__"):
            self._used = False
            with contextlib.suppress(Exception):
                self._runs.tasks.run(partial(_close, model), CLOSING)

    def abandon(self) -> None:
        """Forget the parent's runs."""
        self._used = False
        self._runs.tasks.forget()


class _Runs:
    """Runs agents and makes answers of what they return."""

    def __init__(
        self,
        agent_for: Factory,
        model_settings: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> None:
        self.tasks = Tasks()
        self._agent_for = agent_for
        self._model_settings = dict(model_settings or {})
        self._options = dict(options)
        self._again = again

    def run(self, request: Request, attempt: int, timeout: float) -> Answer:
        """Run the agent of this attempt once; the usage of a failed run is on its error."""
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
            options["instructions"] = [request.params.system, *([more] if isinstance(more, str) else more)]

        async def run() -> Any:
            # Nobody else closes the HTTP client of an agent that was made for this attempt.
            async with agent if self._again else contextlib.nullcontext():
                return await agent.run(prompt, message_history=history, infer_name=False, **options)

        try:
            result = self.tasks.run(run, timeout)
        except CancelledError:
            raise _cancelled(_usage(usage)) from None
        except Exception as error:
            verdict = meaning(error, again=self._again, requests=(request,))
            verdict.usage = _usage(usage) or verdict.usage
            if verdict is error:
                raise
            raise verdict from (None if is_foreign(error) else error)
        return _answer(result)


def _always(agent: Any) -> Factory:
    return lambda request, attempt: agent  # noqa: ARG005


def _named(runs: _Runs, timeout: float, name: str | None) -> Callable[[Request, int], Answer]:
    def call(request: Request, attempt: int) -> Answer:
        return runs.run(request, attempt, timeout)

    call.__name__ = name or "agent"
    return call


async def _close(model: Any) -> None:
    async with model:  # who leaves last closes
        pass


def _cancelled(usage: Usage | None) -> ProviderError:
    return ProviderError(
        "the run of the agent was cancelled: the client was stopped, or it cancelled itself",
        kind=ErrorKind.NETWORK_ERROR,
        code="closed",
        maybe_billed=True,
        usage=usage,
    )


_NAMES = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "extra": "extra_body",
}


def _settings(request: Request) -> dict[str, Any]:
    """Return the request's parameters as model settings; those that are not set are left to the agent."""
    params = request.params
    for field in ("schema", "response_format"):
        if getattr(params, field) is not None:
            raise InvalidRequest(f"{field} is not for agents: give the agent an output_type", field=field)
    found = {name: getattr(params, field) for field, name in _NAMES.items()}
    found["stop_sequences"] = None if params.stop is None else list(params.stop)
    return {name: value for name, value in found.items() if value is not None}


def _conversation(request: Request) -> tuple[Any, list[Any] | None]:
    """Return the prompt and the history before it."""
    if isinstance(request.prompt, str):
        return request.prompt, None
    *before, last = request.prompt
    if last.role != "user":
        raise InvalidRequest("the last message to an agent must be the user's", field="prompt")
    return _content(last), [_past(message) for message in before] or None


def _past(message: Message) -> Any:
    content = _content(message)
    match message.role:
        case "user":
            return messages.ModelRequest([messages.UserPromptPart(content)])
        case "system" | "developer" if isinstance(content, str):
            return messages.ModelRequest([messages.SystemPromptPart(content)])
        case "assistant" if isinstance(content, str):
            return messages.ModelResponse([messages.TextPart(content)])
    raise InvalidRequest(
        f"a message of role {message.role!r} with this content cannot be given to an agent", field="prompt"
    )


def _content(message: Message) -> Any:
    if isinstance(message.content, str):
        return message.content
    parts = [_part(part) for part in message.content]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else parts


def _part(part: Mapping[str, Any]) -> Any:
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
            raise InvalidRequest("an image's URL is not well formed", field="prompt") from None
    raise InvalidRequest("agents take content parts of type text and image_url only", field="prompt")


def _answer(result: Any) -> Answer:
    output, response, used = result.output, result.response, result.usage
    cost = None if used.cost is None else float(used.cost)
    said = response.finish_reason
    return Answer(
        text=output if isinstance(output, str) else None,
        value=None if isinstance(output, str) else output,
        usage=_usage(used),
        # An agent ends when it has its output; only these say that something is missing from it.
        finish_reason=said if said in ("length", "content_filter") else "stop",
        model=short(response.model_name, PLAIN_ID),
        provider_request_id=short(response.provider_response_id, PLAIN_ID),
        cost=cost if cost is not None and 0 <= cost < math.inf else None,
    )


def _usage(used: Any) -> Usage | None:
    """The tokens of a run, failed ones included; ``None`` when nobody counted them."""
    if not (used.input_tokens or used.output_tokens):
        return None
    return Usage(
        used.input_tokens,
        used.output_tokens,
        min(used.cache_read_tokens, used.input_tokens),
        min(used.output_reasoning_tokens, used.output_tokens),
        bool(used.unmeasured_requests),
    )
