"""Requests, answers, results and their parts: frozen classes shared by all packages."""

from __future__ import annotations

import copy
import enum
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeAlias

from attrs import evolve, field, frozen

from smartbatch._words import brief, short
from smartbatch.chats import Message, TokenLogprob, Tool, ToolCall
from smartbatch.errors import SmartbatchError, did_you_mean
from smartbatch.media import Media, as_returned, with_contents
from smartbatch.shared_prefixes import CacheMark
from smartbatch.usage import NO_USAGE as NO_USAGE
from smartbatch.usage import Usage

if TYPE_CHECKING:  # Python 3.11 has no defaults for type variables, but type checkers support them
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", default=Any, covariant=True)
    Vector: TypeAlias = array[float]
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    Vector = array

__all__ = [
    "Answer",
    "Deadline",
    "Duration",
    "Embedding",
    "Generation",
    "Kind",
    "LimitReport",
    "Message",
    "OnError",
    "Prefer",
    "Priority",
    "PriorityName",
    "Prompt",
    "Prompts",
    "Request",
    "Result",
    "Route",
    "Strategy",
    "StrategyName",
    "T",
    "Table",
    "Texts",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "Usage",
    "Vector",
    "evolve",
]


PriorityName: TypeAlias = Literal["urgent", "high", "normal", "low", "deferrable"]
StrategyName: TypeAlias = Literal["auto", "individual", "batch", "hybrid", "threshold"]
Prefer: TypeAlias = Literal["balanced", "speed", "cost"]
OnError: TypeAlias = Literal["result", "raise"]
SchemaMode: TypeAlias = Literal["auto", "json_schema", "json_object", "prompt", "tool"]
ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Duration: TypeAlias = float | str | timedelta
"""Seconds as a number or a string, a string with units such as ``"6h30min"``, or a ``timedelta``."""

Deadline: TypeAlias = "Duration | datetime"
"""A duration such as ``"2h"`` or ``"6h30min"``, or a ``datetime`` with a time zone."""


class Priority(enum.IntEnum):
    """The urgency of a request. Names and numbers are accepted as well."""

    URGENT = 100
    HIGH = 75
    NORMAL = 50
    LOW = 25
    DEFERRABLE = 10

    @classmethod
    def parse(cls, value: Priority | str | int) -> Priority:
        """Return the priority named by ``value`` (``"high"``, ``75`` or a member).

        Raises:
            ValueError: ``value`` is not a priority; the message lists the names.
        """
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            names = ", ".join(f"{p.name.lower()} ({p.value})" for p in cls)
            near = did_you_mean(value, [p.name.lower() for p in cls])
            raise ValueError(f"priority must be one of {names}{near}") from None


class Route(enum.Enum):
    """How a request was answered."""

    INDIVIDUAL = "individual"
    SHARED = "shared"
    LOCAL = "local"
    """Answered by a preprocessing hook, without a call."""
    CACHED = "cached"
    """Answered from the cache, without a call."""
    PACKED = "packed"
    """For lists only: several prompts are packed into one call. The results have the route :attr:`SHARED`."""
    FLEX = "flex"
    """Answered in the provider's cheaper, slower tier."""
    BATCH = "batch"
    """Answered through the provider's Batch API."""
    HYBRID = "hybrid"
    """For lists only: the first few requests in real time, the rest in a batch. Each result has its own
    route.
    """

    @property
    def by_batch(self) -> bool:
        """Whether requests are sent in batches: :attr:`BATCH` and the jobs of :attr:`HYBRID`."""
        return self in (Route.BATCH, Route.HYBRID)


class Strategy(enum.Enum):
    """How the route is chosen."""

    AUTO = "auto"
    """The cheapest route that meets the constraints."""
    INDIVIDUAL = "individual"
    BATCH = "batch"
    HYBRID = "hybrid"
    THRESHOLD = "threshold"
    """A route determined by the number of requests alone."""


class Kind(enum.Enum):
    """The kind of work a request needs."""

    GENERATE = "generate"
    EMBED = "embed"
    """An embedding of a text."""
    CALL = "call"
    """The request's callable makes the call."""


Prompt: TypeAlias = "str | Sequence[Message | Mapping[str, Any] | Media | str] | Request"
"""A prompt: a string, a list of strings and files (one user message), a list of chat messages, or a
:class:`Request`.
"""

RunCallback: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Calls the given function and returns its value; may do something before and after the call."""


def call_now(fn: Callable[[], Any]) -> Any:
    """The :data:`RunCallback` that adds nothing."""
    return fn()


class Table(Protocol):
    """A pandas or Polars dataframe, or an Arrow table: any object that exports its columns to Arrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Prompts: TypeAlias = "Iterable[Prompt | Mapping[str, Any]] | Table"
"""The input of list calls: prompts, or a table or rows as mappings with a template or a column."""
Texts: TypeAlias = "Iterable[str] | Iterable[Mapping[str, Any]] | Table"
"""The input of list calls for embeddings."""

TemplateSource: TypeAlias = "str | PathLike[str]"
OnMissing: TypeAlias = Literal["error", "skip", "empty"]
"""How to treat a row that lacks a field of its prompt; see :class:`~smartbatch.keywords.TableParams`."""

Defect: TypeAlias = Literal["truncated", "empty", "refused"]
DEFECTS: Final[tuple[Defect, ...]] = ("truncated", "empty", "refused")
"""Defects that may make a billed answer unusable; each is a property of :class:`Result`."""
_REFUSALS: Final = frozenset({"refusal", "content_filter"})


WRAPPER_PROPERTY = "answer"
"""The property that wraps an answer whose schema is not an object, for APIs that accept only objects."""


def _schema(value: Any) -> Mapping[str, Any] | None:
    """Also accept classes, which are converted into schemas when the request is accepted."""
    schema: Mapping[str, Any] | None = value
    return schema


def _tools(value: Any) -> tuple[Tool, ...] | None:
    tools: tuple[Tool, ...] | None = value
    return tools


@frozen
class Generation:
    """Parameters of a text generation; ``None`` means "not sent", so the provider's default applies.

    Args:
        system: instruction placed before the conversation.
        max_tokens: maximum output tokens, 1 or more.
        temperature: 0 to 2.
        top_p: above 0, up to 1.
        stop: up to 4 strings that end the output.
        seed: integer for repeatable sampling, if the provider supports it.
        n: number of answers to the prompt, 1 to 128; each is a separate request with its own result.
        reasoning_effort: how much the model reasons before it answers: ``none``, ``minimal``, ``low``,
            ``medium``, ``high``, ``xhigh`` or ``max``. Levels that the model does not have are rejected.
        response_format: the provider's own ``response_format`` value.
        schema: a JSON schema the answer must follow, or a class to instantiate, whose schema is derived when
            the request is accepted (:func:`smartbatch.core.preparation.class_schemas.schema_of`); cannot be
            combined with ``response_format``.
        schema_mode: how the schema is sent: ``json_schema``, ``json_object``, ``prompt``, ``tool``, or
            ``auto``, which tries the first three in this order until the server accepts one.
        tools: functions the model may ask to call: Python functions with type hints, :class:`Tool`, or
            dictionaries in the format of OpenAI or Anthropic.
        tool_choice: ``auto``, ``none``, ``required`` for at least one call, or the name of the tool to call.
        logprobs: True for the log-probability of each token, or 1 to 20 to include that many alternatives.
        extra: additional fields of the request body, passed through unchanged.
    """

    system: str | None = field(default=None, repr=short)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] | None = field(default=None, repr=short)
    seed: int | None = None
    n: int | None = None
    reasoning_effort: str | None = None
    response_format: Mapping[str, Any] | None = field(default=None, repr=short)
    schema: Mapping[str, Any] | None = field(default=None, converter=_schema, repr=short)
    schema_mode: str | None = None
    tools: tuple[Tool, ...] | None = field(default=None, converter=_tools, repr=short)
    tool_choice: str | None = None
    logprobs: int | bool | None = None
    extra: Mapping[str, Any] | None = field(default=None, repr=short)


def _priority(value: Priority | str | int) -> Priority:
    return value if value.__class__ is Priority else Priority.parse(value)


@frozen  # compared for each request, so the faster methods generated by attrs are used
class Embedding:
    """Parameters of an embedding.

    Args:
        task_type: the purpose, in the provider's terms, such as ``RETRIEVAL_DOCUMENT``.
        dimensions: length of the vector; ``None`` for the model's default.
    """

    task_type: str | None = None
    dimensions: int | None = None


class Attempt(int):
    """The number of the attempt, passed to a user's callables: 0 for the first.

    Attributes:
        timeout: seconds allowed for this attempt; the callable must observe it.
        temperature: the request's temperature, or 0.0, 0.25 and 0.5 for repairs of an
            answer that does not fit its schema; ``None`` for the model's default.
    """

    timeout: float
    temperature: float | None

    def __new__(cls, number: int, timeout: float, temperature: float | None = None) -> Self:
        attempt = super().__new__(cls, number)
        attempt.timeout, attempt.temperature = timeout, temperature
        return attempt


@frozen(eq=False)
class Request:
    """One request.

    Args:
        prompt: a string, a list of strings and files, or chat messages; normalized when the client accepts
            it.
        params: generation parameters; ``None`` fields are filled from the client's.
        priority: see :class:`Priority`.
        max_wait: maximum seconds in the window; ``None`` for the client's setting.
        timeout: seconds from submission after which the request fails with ``RequestTimeout``.
        id: the caller's id, returned as ``Result.request_id``; generated if ``None``.
        context: any object, returned unchanged as ``Result.context``.
        purpose: any label, for reports and routing rules.
        isolation_key: requests with different keys never share a call.
        embedding: requests a vector instead of a text; the prompt is the text to embed.
        deduplicate: whether to share the answer of an identical request in flight, in a list or in a job;
            False also bypasses the cache. ``None`` for the client's setting.
        call: your own callable ``call(request, attempt)``, used instead of the provider with the same queue,
            gates and retries. It interprets the prompt and returns an ``Answer``, a string, or any object
            (available as ``Result.parsed``), or a tuple of one of these and its :class:`Usage`. ``attempt``
            is an :class:`Attempt`. ``call`` cannot be combined with an embedding.
        model: a model of the same provider, with or without its prefix; ``None`` for the client's.
        sample: zero-based number of the answer, if ``n`` requests several; set by the library.
        row: position of the prompt in a list, from 0, if it differs from that of the request; set by the
            library.
        cache: prefixes that the prompt shares with other requests; set by the library.
    """

    prompt: str | tuple[Message, ...] = field(default="", repr=short)
    params: Generation = Generation()
    priority: Priority = field(default=Priority.NORMAL, converter=_priority)
    max_wait: float | None = None
    timeout: float | None = None
    id: str | None = field(default=None, repr=brief)
    context: Any = field(default=None, repr=brief)
    purpose: str | None = field(default=None, repr=brief)
    isolation_key: str | None = field(default=None, repr=brief)
    embedding: Embedding | None = None
    deduplicate: bool | None = None
    call: Callable[[Request, Attempt], Any] | None = field(default=None, repr=brief)
    model: str | None = field(default=None, kw_only=True)
    sample: int | None = field(default=None, kw_only=True)
    row: int | None = field(default=None, kw_only=True)
    cache: CacheMark | None = field(default=None, kw_only=True, repr=False)


@frozen
class LimitReport:
    """The limits reported with a provider's answer; ``None`` for those not reported. ``tokens`` counts input
    and output together; providers that limit them separately report ``input`` and ``output``.

    Attributes:
        requests_limit, tokens_limit, input_limit, output_limit: allowed per minute.
        requests_remaining, tokens_remaining, input_remaining, output_remaining: left now.
        requests_reset, tokens_reset, input_reset, output_reset: seconds until the bucket is full again.
        resets_rounded_to: seconds by which the resets may be too long because they are rounded.
    """

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset: float | None = None
    input_limit: int | None = None
    input_remaining: int | None = None
    input_reset: float | None = None
    output_limit: int | None = None
    output_remaining: int | None = None
    output_reset: float | None = None
    resets_rounded_to: float = 0.0


def _files(value: Iterable[Media | bytes]) -> tuple[Media, ...]:
    return tuple(map(as_returned, value))


@frozen
class Answer:
    """A provider's answer to one request.

    Attributes:
        text: the answer's text.
        usage: tokens billed for the call; ``None`` if not reported.
        finish_reason: ``stop``, ``length``, ``content_filter``, ``refusal``, ``tool_calls`` or the provider's
            own term.
        model: the model that answered.
        provider_request_id: the provider's id for the call.
        value: an object instead of a text, returned by a user's callable.
        cost: USD, if the provider reports it.
        limits: the reported limits.
        embedding: the vector, an ``array('f')`` with exactly the numbers received.
        dropped: parameters omitted because the provider does not accept them, each with the reason.
        tier: the provider's name of the service tier that answered; ``None`` if not reported.
        kept: whether the answer comes from the cache; see the setting ``cache``.
        files: the files in the answer; an entry may also be the content as bytes.
        tool_calls, reasoning, logprobs, extra: see :class:`Result`.
    """

    text: str | None = field(default=None, repr=short)
    usage: Usage | None = None
    finish_reason: str = "stop"
    model: str | None = None
    provider_request_id: str | None = None
    value: Any = field(default=None, repr=short)
    cost: float | None = None
    limits: LimitReport | None = None
    embedding: Vector | None = field(default=None, repr=short)
    dropped: tuple[tuple[str, str], ...] = field(default=(), repr=short)
    tier: str | None = None
    kept: bool = False
    tool_calls: tuple[ToolCall, ...] = field(default=(), repr=short)
    reasoning: str | None = field(default=None, repr=short)
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=short)
    extra: Mapping[str, Any] | None = field(default=None, repr=short)
    files: tuple[Media, ...] = field(default=(), kw_only=True, converter=_files)


@frozen(eq=False)
class Result(Generic[T_co]):
    """The result of one request. ``Result[City]`` is the type for a request with ``schema=City``.

    Attributes:
        request_id: the request's id.
        text: the answer's text; ``None`` on failure, unless the answer was rejected after it arrived, by its
            schema or by ``post_process``; then ``error`` has the reason.
        parsed: the decoded object if a schema or JSON format was requested, or what ``call`` returned.
        embedding: the vector, for embeddings.
        tool_calls: the tool calls the model requests.
        reasoning: the model's reasoning, or the provider's summary of it; never part of ``text``.
        logprobs: the log-probabilities of the answer's tokens, if ``logprobs`` was set.
        files: the files in the answer: each is an :class:`Image`, :class:`Audio` or :class:`Document` with
            ``media_type``, ``sha256``, ``size``, ``content()`` and ``save(path)``. A job's files are in its
            folder until it is forgotten.
        extra: other fields the provider returned, undecoded, under the provider's names; ``None`` if none.
        usage: tokens over all attempts, including failed ones if the provider reported them.
        cost: USD of all attempts with a known cost, 0 if nothing was sent or billed; ``None`` if the model's
            price or the cost of every attempt is unknown.
        unconfirmed_cost: USD that may have been billed in addition, because an answer was lost or lacked its
            usage; 0 if the price is unknown.
        paid_before: whether an earlier call or run paid for and stored the answer; ``usage`` and ``cost`` are
            those of that call.
        latency: seconds of the call that answered, or of the last call of a failed request; in a batch, from
            the submission of the batch to the result.
        queued: seconds between submission and the start of that call or batch.
        time_to_first_chunk: for a stream, seconds from the start of that call to the first chunk.
        attempts: number of calls.
        route: how it was sent, even if it failed; ``None`` if it was never sent.
        finish_reason: why the output ended; see :class:`Answer`.
        model: the model that answered, or was requested, as ``provider:model``.
        provider_request_id: the provider's id for the call that answered.
        error: what went wrong; ``None`` on success.
        context: the request's context, unchanged.
        dropped: parameters omitted because the provider does not accept them, with the reasons.
        deduplicated: whether the answer is that of an identical request in flight, or in the same list or
            job; then ``cost`` is 0.
        answers: the result of each answer, if a single request has ``n``; then ``usage``, ``cost`` and
            ``attempts`` are totals, and all other fields are those of the first success.
        row: in a list or a job, the zero-based position of the prompt, if it differs from that of the result,
            as with several answers per prompt.
        sample: in a list or a job, the zero-based number of the answer, if ``n`` requests several.
    """

    request_id: str = field(repr=short)
    text: str | None = field(default=None, repr=short)
    parsed: T_co | None = field(default=None, repr=short)
    embedding: Vector | None = field(default=None, repr=short)
    usage: Usage = NO_USAGE
    cost: float | None = None
    latency: float = 0.0
    queued: float = 0.0
    time_to_first_chunk: float | None = None
    attempts: int = 0
    route: Route | None = None
    finish_reason: str | None = None
    model: str | None = None
    provider_request_id: str | None = None
    error: SmartbatchError | None = field(default=None, repr=short)
    context: Any = field(default=None, repr=short)
    dropped: tuple[tuple[str, str], ...] = field(default=(), repr=short)
    deduplicated: bool = False
    tool_calls: tuple[ToolCall, ...] = field(default=(), repr=short)
    reasoning: str | None = field(default=None, repr=short)
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=short)
    extra: Mapping[str, Any] | None = field(default=None, repr=short)
    unconfirmed_cost: float = 0.0
    paid_before: bool = False
    answers: tuple[Result[T_co], ...] = field(default=(), repr=short)
    files: tuple[Media, ...] = field(default=(), kw_only=True)
    row: int | None = field(default=None, kw_only=True)
    sample: int | None = field(default=None, kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether the request was answered."""
        return self.error is None

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut off by the output limit: its ``finish_reason`` is ``length``."""
        return self.ok and self.finish_reason == "length"

    @property
    def refused(self) -> bool:
        """Whether the model refused to answer, or the provider's content filter withheld the answer."""
        return self.ok and self.finish_reason in _REFUSALS

    @property
    def empty(self) -> bool:
        """Whether an answer that is not a refusal has no text, file, tool call, object or vector."""
        if not self.ok or self.refused or self.files or (self.text is not None and self.text.strip()):
            return False
        calls = self.tool_calls or self.finish_reason == "tool_calls"
        return self.parsed is None and self.embedding is None and not calls

    @property
    def defects(self) -> tuple[Defect, ...]:
        """The values among ``"truncated"``, ``"empty"`` and ``"refused"`` that apply; the first two can occur
        together.
        """
        return tuple(name for name in DEFECTS if getattr(self, name))

    def message(self) -> Message:
        """Return the answer as the assistant message that continues its conversation.

        After it, add a ``tool`` message for each of its :attr:`tool_calls`. The message includes blocks
        that the provider requires unchanged, such as Anthropic's signed thinking and Gemini's images.

        Raises:
            InvalidRequest: a file of the answer can no longer be read.
        """
        blocks = (self.extra or {}).get(MESSAGE_BLOCKS)
        content = self.text or "" if blocks is None else tuple(with_contents(blocks, self.files))
        return Message("assistant", content, tool_calls=self.tool_calls, reasoning=self.reasoning)


MESSAGE_BLOCKS = "message_blocks"
"""Key of ``extra`` for answers with blocks other than text and tool calls: all blocks as received, except the
tool calls.
"""

_COMMON = (
    *("text", "embedding", "finish_reason", "provider_request_id", "dropped"),
    *("tool_calls", "reasoning", "logprobs", "extra", "files"),
)
_values_of = attrgetter(*_COMMON)


def own_parts(answer: Answer | Result) -> dict[str, Any]:
    """Return copies of the mutable parts of an answer, for another recipient."""
    parts: dict[str, Any] = {}
    if answer.embedding is not None:
        parts["embedding"] = answer.embedding[:]
    if answer.tool_calls:
        parts["tool_calls"] = copy.deepcopy(answer.tool_calls)
    if answer.extra is not None:
        parts["extra"] = copy.deepcopy(answer.extra)
    return parts


def answer_fields(answer: Answer | Result) -> dict[str, Any]:
    """Return the fields shared by answers and results, except usage, cost and model."""
    return dict(zip(_COMMON, _values_of(answer), strict=True))
