"""The keywords of calls, as typed dictionaries that calls with the same keywords share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict

from smartbatch.chats import Tool
from smartbatch.media_content import MediaKind
from smartbatch.types import (
    Attempt,
    Deadline,
    Duration,
    Embedding,
    OnMissing,
    Prefer,
    Priority,
    PriorityName,
    Prompts,
    ReasoningEffort,
    Request,
    SchemaMode,
    StrategyName,
    T,
    TemplateSource,
)

if TYPE_CHECKING:
    from typing import _SpecialForm as SpecialForm  # the type of Literal["a"] for type checkers
else:
    SpecialForm = type(Literal["a"])


class GenerationParams(TypedDict, Generic[T], total=False):
    """Parameters of a text generation, see :class:`~smartbatch.Generation`. ``None`` means "not given".

    ``T`` is the class given as ``schema``, which is also the type of :attr:`~smartbatch.Result.parsed`.
    """

    system: str | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: str | Sequence[str] | None
    seed: int | None
    n: int | None
    reasoning_effort: ReasoningEffort | None
    response_format: Mapping[str, Any] | None
    schema: type[T] | UnionType | SpecialForm | Mapping[str, Any] | None
    schema_mode: SchemaMode | None
    tools: Sequence[Tool | Callable[..., Any] | Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    logprobs: int | bool | None
    extra: Mapping[str, Any] | None


class ConstraintParams(TypedDict, total=False):
    """The constraints that decide the route of a list, as keywords.

    If one is omitted, the client's setting of that name applies; ``deadline`` has no such setting.

    Attributes:
        strategy: ``"auto"``, ``"individual"``, ``"batch"``, ``"hybrid"`` or ``"threshold"``.
        deadline: a string such as ``"2h"`` or ``"6h30min"``, seconds, a ``timedelta``, or a ``datetime`` with
            its time zone.
        budget: maximum to spend on this list, in USD or as ``"5 USD"``; the client's setting covers
            everything the client sends.
        prefer: ``"balanced"``, ``"speed"`` or ``"cost"``; used if there is no deadline.
        time_value: the value of an hour of waiting, in USD.
        keep_going: send all requests, even if the first 20 fail with the same error and none is answered.
    """

    strategy: StrategyName | None
    deadline: Deadline | None
    budget: float | str | None
    prefer: Prefer | None
    time_value: float | None
    keep_going: bool | None


class TableParams(TypedDict, total=False):
    """How prompts are made from the rows of a table, as keywords.

    Attributes:
        template: prompt text with placeholders such as ``{column:.2f}``, or the path of a text or .j2 file.
        column: the column that contains the prompts.
        files: the kind of the files in each column with files: ``"image"``, ``"document"`` or
            ``"audio"``. A cell contains a path, an https URL, bytes or a list of these; the template says
            where in the prompt they are.
        files_root: the folder of ``files``, by default the current one. All paths must lie below it.
        fetch_to: a folder into which the https URLs in ``files`` are fetched. By default, they are passed on
            to the provider.
        max_pixels: larger images in ``files`` are scaled down to this many pixels, see
            :class:`~smartbatch.Image`.
        on_missing: what to do with a row that lacks a field or a file of its prompt: ``"error"`` rejects the
            list, ``"skip"`` returns :class:`~smartbatch.RowSkipped` for it, ``"empty"`` leaves a blank field
            empty.
        examples: table or rows with the fields of the prompt and ``answer``; every prompt begins with them.
    """

    template: TemplateSource | None
    column: str | None
    files: Mapping[str, MediaKind] | None
    files_root: str | PathLike[str] | None
    fetch_to: str | PathLike[str] | None
    max_pixels: int | None
    on_missing: OnMissing | None
    examples: Prompts | None


class RowParams(TypedDict, total=False):
    """The fields of a :class:`Request` that all calls accept, as keywords."""

    priority: Priority | PriorityName | int | None
    id: str | None
    context: Any
    purpose: str | None
    isolation_key: str | None
    deduplicate: bool | None
    model: str | None


class JobParams(GenerationParams[T], ConstraintParams, TableParams, RowParams, total=False):
    """The keywords of jobs: generation parameters, constraints, fields of a request, and those for tables."""

    embedding: Embedding | None


class EmbeddingParams(RowParams, total=False):
    """The fields of an embedding :class:`Request`, as keywords."""

    max_wait: Duration | None
    timeout: Duration | None


class KeyParams(TypedDict, total=False):
    """The keyword under which a list is stored; see :meth:`smartbatch.BatchingClient.map`."""

    key: str | None


class ReadingParams(TypedDict, total=False):
    """Whether an iterator is read on a separate thread; see :meth:`smartbatch.BatchingClient.map`."""

    read_ahead: bool | None


class EmbeddingListParams(
    EmbeddingParams, ConstraintParams, KeyParams, TableParams, ReadingParams, total=False
):
    """The keywords of lists of texts to embed."""


class RequestParams(GenerationParams[T], EmbeddingParams, total=False):
    """The keywords of one request: generation parameters and fields of a :class:`Request`."""

    embedding: Embedding | None
    call: Callable[[Request, Attempt], Any] | None


class SubmitParams(RequestParams[T], KeyParams, total=False):
    """The keywords of a single request; see :meth:`smartbatch.BatchingClient.submit`."""

    durable: bool | None


class ListParams(RequestParams[T], ConstraintParams, KeyParams, TableParams, ReadingParams, total=False):
    """The keywords of lists: those of each request, the constraints, and how a table is read."""
