"""The errors that smartbatch raises. Each says what happened, to which request, and what to do next.

No message contains a key, a prompt or an answer: text from a provider passes :func:`scrub` first. All errors
can be pickled, so they can be sent to other processes.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar


class ErrorKind(enum.Enum):
    """The class of a failed call, which decides how it is retried."""

    RATE_LIMIT = "rate_limit"
    """The provider asks for fewer requests or tokens: all calls that share the quota wait."""
    TIMEOUT = "timeout"
    """The call did not end within its total deadline; whether it was billed is unknown."""
    NETWORK_ERROR = "network_error"
    """Connection refused, reset or cut, or a body that did not arrive whole."""
    SERVER_ERROR = "server_error"
    """The provider failed (5xx, overload)."""
    AUTH_ERROR = "auth_error"
    """The key is missing, wrong or not allowed."""
    INVALID_RESPONSE = "invalid_response"
    """A whole answer came, but not in the shape the API promises."""
    CLIENT_ERROR = "client_error"
    """The request itself is wrong (4xx)."""
    UNKNOWN = "unknown"
    """Anything else, for instance an exception of the user's callable."""
    NO_MONEY = "no_money"
    """Credit or a spend limit is used up: waiting does not help."""
    CONTEXT_TOO_LONG = "context_too_long"
    """Prompt and output together exceed the model's context."""


class SmartbatchError(Exception):
    """Root of all errors of this library.

    Args:
        message: what happened and what to do next.
        kind: the :class:`ErrorKind`, if a call failed.
        request_id: the affected request.
        batch_id: the batch the request was part of.

    Attributes:
        attempts: number of calls made for the request.
        route: the :class:`~smartbatch.Route` of the last call; ``None`` if there was none.
    """

    kind: ErrorKind | None = None
    attempts: int = 0
    route: Any = None

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind | None = None,
        request_id: str | None = None,
        batch_id: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        if kind is not None and kind is not self.kind:  # what an error is by its class is not repeated
            self.kind = kind
        self.request_id = request_id
        self.batch_id = batch_id
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)


_E = TypeVar("_E", bound=SmartbatchError)


def _rebuild(cls: type[_E], message: str, state: dict[str, Any]) -> _E:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


@lru_cache(maxsize=256)
def snake_case(name: str) -> str:
    """Return a class name as logs, metrics and outputs spell it."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def kind_name(error: SmartbatchError) -> str:
    """Return the name under which an error is counted: that of its :class:`ErrorKind`, such as
    ``rate_limit``, or else of its class.
    """
    return snake_case(type(error).__name__) if error.kind is None else error.kind.value


def named(error: _E, request_id: str) -> _E:
    """Return ``error`` for a request: itself the first time, then a copy, so that no two futures share one
    exception.
    """
    if error.request_id is not None:
        cause = error.__cause__
        error = _rebuild(type(error), error.message, dict(error.__dict__))
        error.__cause__ = cause
    error.request_id = request_id
    return error


def after_refusal(error: _E, refused: UnusableAnswer) -> _E:
    """Return a copy of ``error`` that also says why the earlier answer was refused."""
    said = _rebuild(type(error), error.message, dict(error.__dict__))
    said.message = f"{error.message}; an answer before it was refused: {refused.message}"
    said.args = (said.message,)
    said.__cause__ = error.__cause__
    return said


class ConfigError(SmartbatchError, ValueError):
    """A setting is out of range, unknown, or contradicts another; the message names the settings."""


class InvalidRequest(SmartbatchError, ValueError):
    """A request is rejected before anything is sent.

    Attributes:
        field: the invalid field, such as ``temperature``.
        row: zero-based position in the list the request is from, if any.
    """

    field: str | None = None
    row: int | None = None


class RowSkipped(SmartbatchError):
    """A row of a table has no request: a field of its prompt is blank and ``on_missing`` is ``"skip"``."""


class InputError(SmartbatchError, ValueError):
    """An input or output file of a run cannot be used; the message names file, row and field."""


class QueueFull(SmartbatchError):
    """The queue has no room, and the client is configured not to wait for it, or has waited long enough."""


class ClientClosed(SmartbatchError):
    """The client was stopped, or the interpreter is exiting, before the request was answered."""


class WrongProcess(SmartbatchError):
    """The future belongs to the parent process: a forked child starts with an empty client."""


class RequestTimeout(SmartbatchError, TimeoutError):
    """The request timed out before an answer arrived."""


class BudgetExceeded(SmartbatchError):
    """The request could cost more than is left of the budget."""


class ProviderError(SmartbatchError):
    """A call to a provider failed.

    Attributes:
        kind: the class of the failure.
        status: HTTP status, if there was an answer.
        code: the provider's own error code.
        retry_after: seconds the provider asked to wait, already limited.
        provider_request_id: the provider's id of the call, for its support.
        maybe_billed: whether the call may have been executed although no answer arrived.
        usage: tokens the failed call was billed for, if the provider reported them.
        refused_parameters: names of parameters that the server rejects, if its error names them.
    """

    kind: ErrorKind = ErrorKind.UNKNOWN
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None
    provider_request_id: str | None = None
    maybe_billed: bool = False
    usage: Any = None
    limits: Any = None
    refused_parameters: tuple[str, ...] = ()


class MissingAnswer(ProviderError):
    """The answer to a shared call does not clearly contain this request's answer; it is sent alone.

    Attributes:
        usage: the request's share of the billed tokens.
        cost: the request's share of the reported cost.
    """

    kind: ErrorKind = ErrorKind.INVALID_RESPONSE
    cost: float | None = None

    def __init__(
        self, message: str = "the shared answer does not clearly contain this request's", **details: Any
    ) -> None:
        super().__init__(message, **details)


class ParameterRejected(ProviderError):
    """The server rejects a parameter, and nothing was run. From now on the provider omits it, so the request
    is sent again at once.

    Attributes:
        omitted: names of the parameters, each with its meaning and the option that sends it anyway.
    """

    omitted: tuple[tuple[str, str], ...] = ()


class ProviderUnavailable(ProviderError):
    """The circuit breaker is open, or the provider was stopped after a permanent error; nothing was sent."""


class RequestCancelled(ProviderError):
    """The request was cancelled before its call started or, if it was streamed, before its end."""


class ListStopped(SmartbatchError):
    """The request was not sent, because the first requests of its list or job all failed with the same error.

    Attributes:
        reason: that error in words, such as ``the API key was rejected (401)``.
    """

    reason: str | None = None

    def summary(self, unsent: int) -> str:
        """Return a sentence about a list of which ``unsent`` rows were not sent."""
        rows = "1 row was" if unsent == 1 else f"{unsent:,} rows were"
        return f"Stopped: {self.reason}. {rows} not sent."


class UnusableAnswer(SmartbatchError):
    """An answer arrived and was paid for, but cannot be used: the base of the two errors below.

    Attributes:
        kind: ``INVALID_RESPONSE``.
        text: the last answer, which was paid for; the message repeats none of it.
        finish_reason: why the last answer ended.
        tries: number of answers from the model.
        usage: tokens of all of them.
    """

    kind: ErrorKind = ErrorKind.INVALID_RESPONSE
    text: str | None = None
    finish_reason: str = "stop"
    tries: int = 1
    usage: Any = None


class ValidationFailed(UnusableAnswer):
    """The model's answer does not fit the schema, and repairs did not help or were not possible.

    It has the attributes of :class:`UnusableAnswer`.
    """


class AnswerUnread(UnusableAnswer):
    """Smartbatch itself failed to read an answer, three times; the answer may be correct.

    It has the attributes of :class:`UnusableAnswer`: ``text`` is the answer, and the request is not sent
    again. In a job and in the response cache the answer is read again at each access, which may succeed
    later; the counts of the job (``status().failed``) stay as stored. Please report the error.
    """

    kind: ErrorKind = ErrorKind.UNKNOWN


class StoreError(SmartbatchError):
    """The store of jobs cannot be used; nothing was sent. The message says where it is and what to do."""


class JobNotFound(SmartbatchError, LookupError):
    """The store has no job with that id or key."""


class JobConflict(SmartbatchError, ValueError):
    """The key belongs to a job with other requests, another model or other parameters."""


class JobTimeout(SmartbatchError, TimeoutError):
    """The job has not ended within the timeout; it continues, and nothing is lost.

    Attributes:
        job_id: the job.
    """

    job_id: str | None = None


class AllRequestsFailed(SmartbatchError):
    """Every request of a list failed.

    Attributes:
        results: the failed results, in order, as a :class:`~smartbatch.ResultList`.
    """

    results: Any = ()


_SECRETS = re.compile(
    r"(?i)(bearer\s+)[\w\-.~+/=]+"
    r"|\b(?:sk|pk|rk|key|sess|org|proj)-[\w\-*]{6,}"
    r"|\bAIza[\w\-]{10,}"
    r"|([?&](?:key|api[_-]?key|token)=)[^&\s]+"
)


def has_secret(text: str, *secrets: str | None) -> bool:
    """Whether ``text`` contains one of ``secrets``, or something that looks like a key."""
    return any(secret and len(secret) >= 4 and secret in text for secret in secrets) or bool(
        _SECRETS.search(text)
    )


def scrub(text: str, *secrets: str | None, limit: int = 300) -> str:
    """Return ``text`` without ``secrets`` and anything that looks like a key, cut to ``limit`` characters.

    Providers repeat keys and parts of prompts in their error messages, so all foreign text is scrubbed.
    """
    for secret in secrets:
        if secret and len(secret) >= 4:
            text = text.replace(secret, "[hidden]")
    text = _SECRETS.sub(lambda m: (m.group(1) or m.group(2) or "") + "[hidden]", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(word: object, known: Iterable[str], prefix: str = "") -> str | None:
    """Return the nearest ``known`` name; all begin with ``prefix``. ``None`` if none is near."""
    if not isinstance(word, str):
        return None
    names = [name.removeprefix(prefix) for name in known]
    near = difflib.get_close_matches(word.removeprefix(prefix)[:80], names, 1)
    return f"{prefix}{near[0]}" if near else None


def did_you_mean(word: object, known: Iterable[str], prefix: str = "") -> str:
    """Return ``; did you mean NAME?`` with the :func:`nearest` name; an empty string if none is near."""
    near = nearest(word, known, prefix)
    return "" if near is None else f"; did you mean {near}?"
