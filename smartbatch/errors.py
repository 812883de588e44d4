"""The errors smartbatch raises. Each message says what happened, to which request, and what to do next.

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
    """A limit on requests or tokens was exceeded: all calls that share the quota wait."""
    TIMEOUT = "timeout"
    """The call exceeded its total deadline; it may have been billed."""
    NETWORK_ERROR = "network_error"
    """The connection was refused, reset or cut, or the body arrived incomplete."""
    SERVER_ERROR = "server_error"
    """The provider failed (5xx, overload)."""
    AUTH_ERROR = "auth_error"
    """The key is missing, wrong or lacks permission."""
    INVALID_RESPONSE = "invalid_response"
    """A complete answer arrived, but not in the documented format."""
    CLIENT_ERROR = "client_error"
    """The request is invalid (4xx)."""
    UNKNOWN = "unknown"
    """Anything else, such as an exception raised by the user's callable."""
    NO_MONEY = "no_money"
    """The credit has run out, or a spending limit is reached: waiting does not help."""
    CONTEXT_TOO_LONG = "context_too_long"
    """Prompt and output together exceed the model's context."""


class SmartbatchError(Exception):
    """Base class of all errors of this library.

    Args:
        message: what happened and what to do next.
        kind: the :class:`ErrorKind`, if a call failed.
        request_id: the affected request.
        batch_id: the batch that contained the request.

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
        if kind is not None and kind is not self.kind:  # omit a kind that the class implies
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
    """Return the form of a class name used in logs, metrics and output."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def kind_name(error: SmartbatchError) -> str:
    """Return the name under which an error is counted: its :class:`ErrorKind`, such as ``rate_limit``, or
    else its class.
    """
    return snake_case(type(error).__name__) if error.kind is None else error.kind.value


def named(error: _E, request_id: str) -> _E:
    """Return ``error`` for a request: the object itself the first time, then copies, so that no two futures
    share an exception.
    """
    if error.request_id is not None:
        cause = error.__cause__
        error = _rebuild(type(error), error.message, dict(error.__dict__))
        error.__cause__ = cause
    error.request_id = request_id
    return error


def after_refusal(error: _E, refused: UnusableAnswer) -> _E:
    """Return a copy of ``error`` that also says why the earlier answer was rejected."""
    said = _rebuild(type(error), error.message, dict(error.__dict__))
    said.message = f"{error.message}; an earlier answer was rejected: {refused.message}"
    said.args = (said.message,)
    said.__cause__ = error.__cause__
    return said


class ConfigError(SmartbatchError, ValueError):
    """A setting is out of range, unknown, or contradicts another; the message names the settings."""


class InvalidRequest(SmartbatchError, ValueError):
    """A request is rejected before anything is sent.

    Attributes:
        field: the invalid field, such as ``temperature``.
        row: zero-based position in the list that contains the request, if any.
    """

    field: str | None = None
    row: int | None = None


class RowSkipped(SmartbatchError):
    """A table row was skipped, because a field of its prompt is blank or a file is missing, and
    ``on_missing`` is ``"skip"``.
    """


class InputError(SmartbatchError, ValueError):
    """An input or output file of a run cannot be used; the message names the file, row and field."""


class QueueFull(SmartbatchError):
    """The queue is full, and the client is configured not to wait, or has waited long enough."""


class ClientClosed(SmartbatchError):
    """The client was stopped, or the interpreter is exiting, before the request was answered."""


class WrongProcess(SmartbatchError):
    """The future belongs to the parent process: a forked child starts with an empty client."""


class RequestTimeout(SmartbatchError, TimeoutError):
    """The request timed out before an answer arrived."""


class BudgetExceeded(SmartbatchError):
    """The request could cost more than the rest of the budget."""


class ProviderError(SmartbatchError):
    """A call to a provider failed.

    Attributes:
        kind: the class of the failure.
        status: HTTP status, if there was a response.
        code: the provider's own error code.
        retry_after: seconds to wait as requested by the provider, up to a maximum.
        provider_request_id: the provider's ID for the call, to give to its support.
        maybe_billed: whether the call may have been executed although no answer arrived.
        usage: tokens billed for the failed call, if the provider reported them.
        cost: USD charged for the failed call, if the provider reported it.
        refused_parameters: names of parameters rejected by the server, if its error names them.
    """

    kind: ErrorKind = ErrorKind.UNKNOWN
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None
    provider_request_id: str | None = None
    maybe_billed: bool = False
    usage: Any = None
    cost: float | None = None
    limits: Any = None
    refused_parameters: tuple[str, ...] = ()


class MissingAnswer(ProviderError):
    """The answer to a shared call does not clearly contain this request's answer, so the request is sent
    alone.

    Attributes:
        usage: the request's share of the billed tokens.
        cost: the request's share of the reported cost.
    """

    kind: ErrorKind = ErrorKind.INVALID_RESPONSE

    def __init__(
        self,
        message: str = "the shared answer does not clearly contain this request's answer",
        **details: Any,
    ) -> None:
        super().__init__(message, **details)


class ParameterRejected(ProviderError):
    """The server rejected a parameter before running anything. The provider adapter omits it from now on, and
    the request is sent again immediately.

    Attributes:
        omitted: names of the parameters, each with its meaning and the option that sends it anyway.
    """

    omitted: tuple[tuple[str, str], ...] = ()


class ProviderUnavailable(ProviderError):
    """The circuit breaker is open, or the provider was stopped after a permanent error; nothing was sent."""


class RequestCancelled(ProviderError):
    """The request was cancelled before its call started or, if streamed, before its end."""


class ListStopped(SmartbatchError):
    """The request was not sent, because the first requests of its list or job all failed with the same error.

    Attributes:
        reason: a description of that error, such as ``the API key was rejected (401)``.
    """

    reason: str | None = None

    def summary(self, unsent: int) -> str:
        """Return a sentence that says how many rows were not sent, and why."""
        rows = "1 row was" if unsent == 1 else f"{unsent:,} rows were"
        return f"Stopped: {self.reason}. {rows} not sent."


class UnusableAnswer(SmartbatchError):
    """An answer arrived and was billed, but cannot be used: the base of :class:`ValidationFailed` and
    :class:`AnswerUnread`.

    Attributes:
        kind: ``INVALID_RESPONSE``.
        text: the last answer; the message quotes none of it.
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
    """The model's answer does not fit the schema, and repairs failed or were not possible.

    It has the attributes of :class:`UnusableAnswer`.
    """


class AnswerUnread(UnusableAnswer):
    """Smartbatch failed three times to read an answer, which may be correct.

    It has the attributes of :class:`UnusableAnswer`: ``text`` is the answer, and the request is not sent
    again. In a job and in the response cache the answer is read again at each access, which may succeed
    later; the job's counts (``status().failed``) do not change. Please report the error.
    """

    kind: ErrorKind = ErrorKind.UNKNOWN


class StoreError(SmartbatchError):
    """The store of jobs cannot be used; nothing was sent. The message names the store and what to do."""


class JobNotFound(SmartbatchError, LookupError):
    """The store has no job with that ID or key."""


class JobConflict(SmartbatchError, ValueError):
    """The key belongs to a job with other requests, another model or other parameters."""


class JobTimeout(SmartbatchError, TimeoutError):
    """The job did not finish within the timeout; it continues, and nothing is lost.

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
    """Whether ``text`` contains one of ``secrets``, or anything that looks like a key."""
    return any(secret and len(secret) >= 4 and secret in text for secret in secrets) or bool(
        _SECRETS.search(text)
    )


def scrub(text: str, *secrets: str | None, limit: int = 300) -> str:
    """Return ``text`` without ``secrets`` and anything that looks like a key, cut to ``limit`` characters.

    Providers quote keys and parts of prompts in their error messages, so all text from outside is scrubbed.
    """
    for secret in secrets:
        if secret and len(secret) >= 4:
            text = text.replace(secret, "[hidden]")
    text = _SECRETS.sub(lambda m: (m.group(1) or m.group(2) or "") + "[hidden]", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_provider_error(error: Exception, call: str) -> ProviderError:
    """Return ``error``, or that ``call`` failed with an exception of another type and an unknown outcome."""
    if isinstance(error, ProviderError):
        return error
    return ProviderError(f"{call} failed ({type(error).__name__})", maybe_billed=True)


def nearest(word: object, known: Iterable[str], prefix: str = "") -> str | None:
    """Return the ``known`` name nearest to ``word``; all begin with ``prefix``. ``None`` if none is near."""
    if not isinstance(word, str):
        return None
    names = [name.removeprefix(prefix) for name in known]
    near = difflib.get_close_matches(word.removeprefix(prefix)[:80], names, 1)
    return f"{prefix}{near[0]}" if near else None


def did_you_mean(word: object, known: Iterable[str], prefix: str = "") -> str:
    """Return ``; did you mean NAME?``, or an empty string if no known name is near."""
    near = nearest(word, known, prefix)
    return "" if near is None else f"; did you mean {near}?"
