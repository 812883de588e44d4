"""Requests, answers, results and what they are made of: frozen classes that all rooms share."""

from __future__ import annotations

import copy
import enum
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, TypedDict

from attrs import evolve, field, frozen

from smartbatch._words import brief, short
from smartbatch.attempt import Attempt as Attempt
from smartbatch.chats import Message, TokenLogprob, Tool, ToolCall
from smartbatch.errors import SmartbatchError, did_you_mean

if TYPE_CHECKING:  # defaults of type variables are no part of Python 3.11; type checkers know them
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", default=Any, covariant=True)
    Vector: TypeAlias = array[float]
    from typing import _SpecialForm as SpecialForm  # how checkers know Literal["a"] and the like
else:
    SpecialForm = type(Literal["a"])
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    Vector = array

__all__ = [
    "Answer",
    "ConstraintParams",
    "Deadline",
    "Duration",
    "Embedding",
    "EmbeddingListParams",
    "EmbeddingParams",
    "Generation",
    "GenerationParams",
    "JobParams",
    "Kind",
    "LimitReport",
    "ListParams",
    "Message",
    "OnError",
    "Prefer",
    "Priority",
    "PriorityName",
    "Prompt",
    "Prompts",
    "Request",
    "RequestParams",
    "Result",
    "Route",
    "Strategy",
    "StrategyName",
    "T",
    "Table",
    "TableParams",
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

Duration: TypeAlias = float | str | timedelta
"""Seconds as a number or a text, a text with units such as ``"2s"``, ``"90m"``, ``"6h30min"``, or a span."""

Deadline: TypeAlias = "Duration | datetime"
"""A duration such as ``"2h"`` or ``"6h30min"``, or a moment with its time zone."""


class Priority(enum.IntEnum):
    """How urgent a request is. Names and numbers are accepted wherever a priority is asked for."""

    URGENT = 100
    HIGH = 75
    NORMAL = 50
    LOW = 25
    DEFERRABLE = 10

    @classmethod
    def parse(cls, value: Priority | str | int) -> Priority:
        """Return the priority named by ``value`` (``"high"``, ``75`` or a member).

        Raises:
            ValueError: for anything else; the text lists the names.
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
    """Of a list: several prompts packed into one call. Each result says :attr:`SHARED`."""
    FLEX = "flex"
    """Answered in the provider's cheaper, slower tier."""
    BATCH = "batch"
    """Answered through the provider's Batch API."""
    HYBRID = "hybrid"
    """Of a list: the first few individually, the rest in a batch. Each result says its own route."""

    @property
    def by_batch(self) -> bool:
        """Whether requests of it go in batches: :attr:`BATCH` and :attr:`HYBRID`, whose lists are jobs."""
        return self in (Route.BATCH, Route.HYBRID)


class Strategy(enum.Enum):
    """How the route is chosen."""

    AUTO = "auto"
    """The cheapest route that meets the constraints."""
    INDIVIDUAL = "individual"
    BATCH = "batch"
    HYBRID = "hybrid"
    THRESHOLD = "threshold"
    """By the number of requests alone."""


class Kind(enum.Enum):
    """What a request asks for."""

    GENERATE = "generate"
    EMBED = "embed"
    """A vector for a text."""
    CALL = "call"
    """A work item: the request's own callable makes the call."""


Prompt: TypeAlias = "str | Sequence[Message | Mapping[str, Any]] | Request"
"""What callers may pass as a prompt: a string, a list of chat messages, or a :class:`Request`."""

RunCallback: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Calls what it is given and returns its value, with something around it."""


def call_now(fn: Callable[[], Any]) -> Any:
    """The :data:`RunCallback` that puts nothing around it."""
    return fn()


class Table(Protocol):
    """A frame of pandas or Polars, a table of Arrow: what hands its columns on as Arrow does."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Prompts: TypeAlias = "Iterable[Prompt] | Iterable[Mapping[str, Any]] | Table"
"""What list calls take: prompts; or a table, or rows as mappings, with a template or a column."""
Texts: TypeAlias = "Iterable[str] | Iterable[Mapping[str, Any]] | Table"
"""What list calls take that ask for vectors."""


@frozen
class Usage:
    """Tokens of one request, over all its attempts.

    Attributes:
        input_tokens: prompt tokens, cached ones included.
        output_tokens: answer tokens, reasoning included.
        cached_tokens: the part of ``input_tokens`` read from the provider's cache.
        reasoning_tokens: the part of ``output_tokens`` spent on reasoning.
        estimated: True when the provider did not say and some of the numbers are our own estimate.
        cache_write_tokens: the part of ``input_tokens`` written to the provider's cache.
        cache_write_1h_tokens: the part of ``cache_write_tokens`` that Anthropic keeps for an hour, at a
            higher price than its five minutes.
        unknown: True when a call may have used tokens that are not counted here, since its answer was lost.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    unknown: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            self.unknown or other.unknown,
        )


NO_USAGE = Usage()


Defect: TypeAlias = Literal["truncated", "empty", "refused"]
DEFECTS: Final[tuple[Defect, ...]] = ("truncated", "empty", "refused")
"""Flaws of answers that were paid for and may be of no use; the properties of :class:`Result`."""
_REFUSALS: Final = frozenset({"refusal", "content_filter"})


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Split ``total`` by ``weights``, 0 or more, into whole numbers that add up to it exactly.

    Where rounding down leaves something, those with the largest remainders get it; weights that are all 0
    split evenly.
    """
    whole = sum(weights)
    if whole <= 0:
        weights, whole = [1] * len(weights), len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for position in by_remainder[: total - sum(parts)]:
        parts[position] += 1
    return parts


WRAPPED = "answer"
"""The property that holds an answer whose schema is no object, where an API takes objects only."""


def _schema(value: Any) -> Mapping[str, Any] | None:
    """Accept classes as well; admission turns them into schemas."""
    schema: Mapping[str, Any] | None = value
    return schema


def _tools(value: Any) -> tuple[Tool, ...] | None:
    """Accept functions and dictionaries as well; admission turns them into tools."""
    tools: tuple[Tool, ...] | None = value
    return tools


@frozen
class Generation:
    """Parameters of a text generation; ``None`` means "not sent", so the provider's default holds.

    Args:
        system: instruction placed before the conversation.
        max_tokens: most tokens of output, 1 or more.
        temperature: 0 to 2.
        top_p: above 0, up to 1.
        stop: up to 4 texts that end the output.
        seed: integer that asks for repeatable sampling, where the provider knows it.
        n: answers to the prompt, 1 to 128: each is a request of its own, with its own result.
        response_format: the provider's own ``response_format`` value.
        schema: a JSON schema the answer must follow, or a class to make objects of, from which the schema is
            made when the request is taken (:func:`smartbatch.core.preparation.class_schemas.schema_of`);
            excludes ``response_format``.
        schema_mode: how a server gets the schema: ``json_schema``, ``json_object``, ``prompt``, ``tool``, or
            ``auto``: the first of the former three that it has not refused.
        tools: functions the model may ask to call: Python functions with type hints, :class:`Tool`, or
            dictionaries in the form of OpenAI or Anthropic.
        tool_choice: ``auto``, ``none``, ``required`` for at least one call, or the name of the tool to call.
        logprobs: True for the log-probability of each token; 1 to 20 for as many alternatives as well.
        extra: further fields of the request body, passed through untouched.
    """

    system: str | None = field(default=None, repr=short)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] | None = field(default=None, repr=short)
    seed: int | None = None
    n: int | None = None
    response_format: Mapping[str, Any] | None = field(default=None, repr=short)
    schema: Mapping[str, Any] | None = field(default=None, converter=_schema, repr=short)
    schema_mode: str | None = None
    tools: tuple[Tool, ...] | None = field(default=None, converter=_tools, repr=short)
    tool_choice: str | None = None
    logprobs: int | bool | None = None
    extra: Mapping[str, Any] | None = field(default=None, repr=short)


def _priority(value: Priority | str | int) -> Priority:
    return value if value.__class__ is Priority else Priority.parse(value)


@frozen  # compared with each request: compiled is quicker
class Embedding:
    """What kind of vector is asked for.

    Args:
        task_type: what it will be used for, in the provider's words, such as ``RETRIEVAL_DOCUMENT``.
        dimensions: length of the vector; the model's own when ``None``.
    """

    task_type: str | None = None
    dimensions: int | None = None


@frozen(eq=False)
class Request:
    """One request as the caller means it.

    Args:
        prompt: a string, or chat messages; normalised when the client takes it.
        params: generation parameters; ``None`` fields are filled from the client's.
        priority: see :class:`Priority`.
        max_wait: most seconds in the window; the client's setting when ``None``.
        timeout: seconds from submission after which the request fails with ``RequestTimeout``.
        id: the caller's id, returned as ``Result.request_id``; generated when ``None``.
        context: any object, returned as ``Result.context`` unchanged.
        purpose: free label for reporting and routing rules.
        isolation_key: requests with different keys never share a call.
        embedding: set for a vector instead of a text; the prompt is then the text to embed.
        deduplicate: whether it shares the answer of an identical request in flight, in a list or in a job;
            False also bypasses the cache. ``None`` follows the client's setting of that name.
        call: own callable ``call(request, attempt)`` that makes the call itself; it goes through the
            same queue, gates and retries. Returns an ``Answer``, a text, or any object
            (found as ``Result.parsed``), or one of these with its :class:`Usage`, as ``(value, usage)``.
            ``attempt`` is an :class:`Attempt`. The prompt is what the callable makes of it; a vector cannot
            be asked for besides.
        model: of the same provider, with or without its prefix; the client's when ``None``.
        sample: the number of the answer, from 0, where ``n`` asked for several; set by the library.
        row: the position of its prompt in a list, from 0, where that is not the position of the request; set
            by the library.
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


@frozen
class LimitReport:
    """What a provider's answer reported about its limits; ``None`` where it reported nothing.

    ``tokens`` are input and output together; a provider that limits them apart fills ``input`` and
    ``output``.

    Attributes:
        requests_limit, tokens_limit, input_limit, output_limit: allowed a minute.
        requests_remaining, tokens_remaining, input_remaining, output_remaining: left now.
        requests_reset, tokens_reset, input_reset, output_reset: seconds until the bucket is full again.
        resets_rounded_to: seconds up to which the resets may be too long, as they are rounded.
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


@frozen
class Answer:
    """What a provider returns for one request.

    Attributes:
        text: the answer's text.
        usage: tokens billed for the call; ``None`` when the provider did not say.
        finish_reason: ``stop``, ``length``, ``content_filter``, ``refusal``, ``tool_calls`` or the
            provider's own word.
        model: the model that answered.
        provider_request_id: the provider's id of the call.
        value: an object instead of a text, for own callables.
        cost: USD, where the provider knows it better than a price table.
        limits: what the answer said about limits.
        embedding: the vector, for embeddings; an ``array('f')``, exact to the wire.
        dropped: parameters the provider does not take and that were left out, each with the reason.
        tier: the tier of service that answered, in the provider's word; ``None`` when it did not say.
        kept: whether it was kept from an earlier call, see the setting ``cache``.
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


@frozen(eq=False)
class Result(Generic[T_co]):
    """The result of one request. ``Result[City]`` is that of a request with ``schema=City``.

    Attributes:
        request_id: the request's id.
        text: the answer's text; ``None`` on failure, but for an answer that came and was refused afterwards,
            because it does not fit its schema or by ``post_process``: then ``error`` says why.
        parsed: the decoded object when a schema or JSON format was asked for, or an own callable's value.
        embedding: the vector, for embeddings.
        tool_calls: the calls of tools that the model asks for.
        reasoning: the model's reasoning, or the provider's summary of it; never part of ``text``.
        logprobs: the log-probabilities of the answer's tokens, if ``logprobs`` asked for them.
        extra: what the provider returned besides, undecoded; ``None`` if nothing. The keys are the
            provider's.
        usage: tokens over all attempts, failed ones included where the provider reported them.
        cost: USD over all attempts whose bill is known, 0 if nothing was sent or billed; ``None`` when the
            model's price is unknown, or no bill is known.
        unconfirmed_cost: USD that attempts may have cost besides, because their answer was lost or did not
            say what it used; 0 when the price is unknown.
        paid_before: True when the answer was stored and paid for by an earlier call or run, whose ``usage``
            and ``cost`` these are.
        latency: seconds of the call that answered, or of the last call of a failed request; by batch, from
            the submission of the batch to the result, which all requests of a batch waited for together.
        queued: seconds between submission and that call's start, or that of the batch.
        time_to_first_chunk: for a stream, seconds from that call's start to the first piece of text.
        attempts: calls made.
        route: how it was sent, also if it failed; ``None`` when it was never sent.
        finish_reason: why the output ended; see :class:`Answer`.
        model: the model that answered, or was asked, as ``provider:model``.
        provider_request_id: the provider's id of the call that answered.
        error: what went wrong; ``None`` on success.
        context: the request's context, unchanged.
        dropped: parameters that were left out because the provider does not take them, with the reasons.
        deduplicated: True when the answer came from an identical request in flight, or of the same list or
            job (then ``cost`` is 0).
        answers: the result of each answer, where a single request asked for several with ``n``; then
            ``usage``, ``cost`` and ``attempts`` are totals, and all else is that of the first that succeeded.
        row: in a list or a job, the position of its prompt, from 0, where that is not the position of the
            result, as with several answers to a prompt.
        sample: in a list or a job, the number of the answer, from 0, where ``n`` asked for several.
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
    row: int | None = field(default=None, kw_only=True)
    sample: int | None = field(default=None, kw_only=True)

    @property
    def ok(self) -> bool:
        """True when the request was answered."""
        return self.error is None

    @property
    def truncated(self) -> bool:
        """True when the output limit cut the answer off: its ``finish_reason`` is ``length``."""
        return self.ok and self.finish_reason == "length"

    @property
    def refused(self) -> bool:
        """True when the model refused to answer, or a content filter of the provider withheld the answer."""
        return self.ok and self.finish_reason in _REFUSALS

    @property
    def empty(self) -> bool:
        """True when the answer has no text but white space, nothing in place of it, and was not refused."""
        if not self.ok or self.refused or (self.text is not None and self.text.strip()):
            return False
        calls = self.tool_calls or self.finish_reason == "tool_calls"
        return self.parsed is None and self.embedding is None and not calls

    @property
    def defects(self) -> tuple[Defect, ...]:
        """Which of ``"truncated"``, ``"empty"`` and ``"refused"`` the answer is; or the first two."""
        return tuple(name for name in DEFECTS if getattr(self, name))

    def message(self) -> Message:
        """Return the answer as the assistant's message that continues its conversation.

        Follow it with a ``tool`` message for each of its :attr:`tool_calls`. Blocks that the provider wants
        back unchanged, such as Anthropic's signed thinking, are in it.
        """
        blocks = (self.extra or {}).get(MESSAGE_BLOCKS)
        content = self.text or "" if blocks is None else tuple(blocks)
        return Message("assistant", content, tool_calls=self.tool_calls, reasoning=self.reasoning)


MESSAGE_BLOCKS = "message_blocks"
"""Key of ``extra``: all blocks of an answer that has others than text and calls of tools, as received; its
calls are not among them."""

_COMMON = (
    *("text", "embedding", "finish_reason", "provider_request_id", "dropped"),
    *("tool_calls", "reasoning", "logprobs", "extra"),
)
_values_of = attrgetter(*_COMMON)


def own_parts(answer: Answer | Result) -> dict[str, Any]:
    """Return copies of the parts of an answer that whoever gets it may change, for one more who gets it."""
    parts: dict[str, Any] = {}
    if answer.embedding is not None:
        parts["embedding"] = answer.embedding[:]
    if answer.tool_calls:
        parts["tool_calls"] = copy.deepcopy(answer.tool_calls)
    if answer.extra is not None:
        parts["extra"] = copy.deepcopy(answer.extra)
    return parts


def answer_fields(answer: Answer | Result) -> dict[str, Any]:
    """Return the fields that answers and results have in common, but for usage, cost and model."""
    return dict(zip(_COMMON, _values_of(answer), strict=True))


class GenerationParams(TypedDict, Generic[T], total=False):
    """Parameters of a text generation, as keywords; see :class:`Generation`. ``None`` means "not given".

    ``T`` is the class given as ``schema``, and so the type of :attr:`Result.parsed`.
    """

    system: str | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: str | Sequence[str] | None
    seed: int | None
    n: int | None
    response_format: Mapping[str, Any] | None
    schema: type[T] | UnionType | SpecialForm | Mapping[str, Any] | None
    schema_mode: SchemaMode | None
    tools: Sequence[Tool | Callable[..., Any] | Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    logprobs: int | bool | None
    extra: Mapping[str, Any] | None


class ConstraintParams(TypedDict, total=False):
    """The constraints that decide the route of a list, as keywords.

    Where one is left out, the client's setting of that name holds; there is none for ``deadline``.

    Attributes:
        strategy: ``"auto"``, ``"individual"``, ``"batch"``, ``"hybrid"`` or ``"threshold"``.
        deadline: a text such as ``"2h"`` or ``"6h30min"``, seconds, a ``timedelta``, or a ``datetime`` with
            its time zone.
        budget: most to spend on this list, in USD or as ``"5 USD"``; the setting is for everything that the
            client does.
        prefer: ``"balanced"``, ``"speed"`` or ``"cost"``; counts where there is no deadline.
        time_value: what an hour of waiting is worth, USD.
        keep_going: send all requests, even if the first 20 fail with the same error and none is answered.
    """

    strategy: StrategyName | None
    deadline: Deadline | None
    budget: float | str | None
    prefer: Prefer | None
    time_value: float | None
    keep_going: bool | None


OnMissing: TypeAlias = Literal["error", "skip", "empty"]
"""What happens to a row that lacks a field of its prompt: it is refused, skipped, or sent without it."""


class TableParams(TypedDict, total=False):
    """How prompts are made from the rows of a table, as keywords.

    Attributes:
        template: prompt text with ``{column}`` or ``{column:.2f}`` placeholders.
        column: the column that has the prompts.
        on_missing: what happens to a row without a field of its prompt: ``"error"`` refuses the list,
            ``"skip"`` gives it a result with :class:`~smartbatch.RowSkipped`, ``"empty"`` leaves it empty.
    """

    template: str | None
    column: str | None
    on_missing: OnMissing | None


class RowParams(TypedDict, total=False):
    """The fields of a :class:`Request` that any call takes, as keywords."""

    priority: Priority | PriorityName | int | None
    id: str | None
    context: Any
    purpose: str | None
    isolation_key: str | None
    deduplicate: bool | None
    model: str | None


class JobParams(GenerationParams[T], ConstraintParams, TableParams, RowParams, total=False):
    """What jobs take, as keywords: parameters of a generation, constraints, fields of a request, and how
    prompts are made of a table."""

    embedding: Embedding | None


class EmbeddingParams(RowParams, total=False):
    """The fields of a :class:`Request` for a vector, as keywords."""

    max_wait: Duration | None
    timeout: Duration | None


class KeyParams(TypedDict, total=False):
    """What has a list stand in the store, as a keyword; see :meth:`smartbatch.BatchingClient.map`."""

    key: str | None


class ReadingParams(TypedDict, total=False):
    """Whether an iterator is read on a thread of its own; see :meth:`smartbatch.BatchingClient.map`."""

    read_ahead: bool | None


class EmbeddingListParams(
    EmbeddingParams, ConstraintParams, KeyParams, TableParams, ReadingParams, total=False
):
    """What lists of texts to embed take, as keywords."""


class RequestParams(GenerationParams[T], EmbeddingParams, total=False):
    """What one request takes, as keywords: parameters of a generation and fields of a :class:`Request`."""

    embedding: Embedding | None
    call: Callable[[Request, Attempt], Any] | None


class SubmitParams(RequestParams[T], KeyParams, total=False):
    """What a request takes that may outlive the process; see :meth:`smartbatch.BatchingClient.submit`."""

    durable: bool | None


class ListParams(RequestParams[T], ConstraintParams, KeyParams, TableParams, ReadingParams, total=False):
    """What lists take: what a request takes, for all of them, constraints, and how a table is read."""
