"""Sends many LLM requests and returns every answer. Synchronous, usable from any number of threads.

Public names load at first use, so ``import smartbatch`` is quick and imports no provider's SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from smartbatch._version import __version__

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient as BatchingClient
    from smartbatch.config import BatchingConfig as BatchingConfig
    from smartbatch.config import ClientParams as ClientParams
    from smartbatch.config import Settings as Settings
    from smartbatch.core.limits.model_controls import ModelLimit as ModelLimit
    from smartbatch.core.limits.model_controls import Pause as Pause
    from smartbatch.errors import AllRequestsFailed as AllRequestsFailed
    from smartbatch.errors import AnswerUnread as AnswerUnread
    from smartbatch.errors import BudgetExceeded as BudgetExceeded
    from smartbatch.errors import ClientClosed as ClientClosed
    from smartbatch.errors import ConfigError as ConfigError
    from smartbatch.errors import ErrorKind as ErrorKind
    from smartbatch.errors import InputError as InputError
    from smartbatch.errors import InvalidRequest as InvalidRequest
    from smartbatch.errors import JobConflict as JobConflict
    from smartbatch.errors import JobNotFound as JobNotFound
    from smartbatch.errors import JobTimeout as JobTimeout
    from smartbatch.errors import ListStopped as ListStopped
    from smartbatch.errors import ProviderError as ProviderError
    from smartbatch.errors import ProviderUnavailable as ProviderUnavailable
    from smartbatch.errors import QueueFull as QueueFull
    from smartbatch.errors import RequestCancelled as RequestCancelled
    from smartbatch.errors import RequestTimeout as RequestTimeout
    from smartbatch.errors import RowSkipped as RowSkipped
    from smartbatch.errors import SmartbatchError as SmartbatchError
    from smartbatch.errors import StoreError as StoreError
    from smartbatch.errors import ValidationFailed as ValidationFailed
    from smartbatch.errors import WrongProcess as WrongProcess
    from smartbatch.jobs.job import Job as Job
    from smartbatch.jobs.records import Action as Action
    from smartbatch.jobs.records import ActionResult as ActionResult
    from smartbatch.jobs.records import JobSelection as JobSelection
    from smartbatch.jobs.records import RetriedRows as RetriedRows
    from smartbatch.jobs.records import StoredResult as StoredResult
    from smartbatch.jobs.status import JobStatus as JobStatus
    from smartbatch.keywords import ConstraintParams as ConstraintParams
    from smartbatch.keywords import EmbeddingListParams as EmbeddingListParams
    from smartbatch.keywords import EmbeddingParams as EmbeddingParams
    from smartbatch.keywords import GenerationParams as GenerationParams
    from smartbatch.keywords import JobParams as JobParams
    from smartbatch.keywords import ListParams as ListParams
    from smartbatch.keywords import RequestParams as RequestParams
    from smartbatch.keywords import SubmitParams as SubmitParams
    from smartbatch.media import Audio as Audio
    from smartbatch.media import Document as Document
    from smartbatch.media import Image as Image
    from smartbatch.observe.list_progress import ListProgress as ListProgress
    from smartbatch.observe.participants import LaneStatus as LaneStatus
    from smartbatch.observe.participants import Participant as Participant
    from smartbatch.observe.participants import Participants as Participants
    from smartbatch.observe.participants import RealtimeStatus as RealtimeStatus
    from smartbatch.plan import Plan as Plan
    from smartbatch.preview import Preview as Preview
    from smartbatch.prices import Price as Price
    from smartbatch.quality.comparison import Comparison as Comparison
    from smartbatch.realtime.text_stream import TextStream as TextStream
    from smartbatch.realtime.ticket import ResultFuture as ResultFuture
    from smartbatch.results import Interrupted as Interrupted
    from smartbatch.results import ResultList as ResultList
    from smartbatch.runs.compared_outputs import compare as compare
    from smartbatch.sharing.publication import participants as participants
    from smartbatch.shortcuts import EmbeddingScriptParams as EmbeddingScriptParams
    from smartbatch.shortcuts import ScriptParams as ScriptParams
    from smartbatch.shortcuts import embed as embed
    from smartbatch.shortcuts import generate as generate
    from smartbatch.shortcuts import job as job
    from smartbatch.shortcuts import list_jobs as list_jobs
    from smartbatch.shortcuts import pause as pause
    from smartbatch.shortcuts import paused as paused
    from smartbatch.shortcuts import resume as resume
    from smartbatch.stored_jobs import StoredJobs as StoredJobs
    from smartbatch.types import Answer as Answer
    from smartbatch.types import Attempt as Attempt
    from smartbatch.types import Embedding as Embedding
    from smartbatch.types import Generation as Generation
    from smartbatch.types import Message as Message
    from smartbatch.types import Priority as Priority
    from smartbatch.types import Request as Request
    from smartbatch.types import Result as Result
    from smartbatch.types import Route as Route
    from smartbatch.types import TokenLogprob as TokenLogprob
    from smartbatch.types import Tool as Tool
    from smartbatch.types import ToolCall as ToolCall
    from smartbatch.types import Usage as Usage
    from smartbatch.views.html import Report as Report

_NAMES_OF = {
    "client": "BatchingClient",
    "config": "BatchingConfig ClientParams Settings",
    "errors": (
        "AllRequestsFailed AnswerUnread BudgetExceeded ClientClosed ConfigError ErrorKind InputError "
        "InvalidRequest JobConflict JobNotFound JobTimeout ListStopped ProviderError ProviderUnavailable "
        "QueueFull RequestCancelled RequestTimeout RowSkipped SmartbatchError StoreError ValidationFailed "
        "WrongProcess"
    ),
    "media": "Audio Document Image",
    "core.limits.model_controls": "ModelLimit Pause",
    "jobs.records": "Action ActionResult JobSelection RetriedRows StoredResult",
    "jobs.job": "Job",
    "jobs.status": "JobStatus",
    "views.html": "Report",
    "results": "Interrupted ResultList",
    "types": (
        "Answer Attempt Embedding Generation Message Priority Request Result Route TokenLogprob Tool "
        "ToolCall Usage"
    ),
    "keywords": (
        "ConstraintParams EmbeddingListParams EmbeddingParams GenerationParams JobParams ListParams "
        "RequestParams SubmitParams"
    ),
    "shortcuts": "EmbeddingScriptParams ScriptParams embed generate job list_jobs pause paused resume",
    "stored_jobs": "StoredJobs",
    "observe.participants": "LaneStatus Participant Participants RealtimeStatus",
    "plan": "Plan",
    "preview": "Preview",
    "prices": "Price",
    "quality.comparison": "Comparison",
    "runs.compared_outputs": "compare",
    "sharing.publication": "participants",
    "realtime.text_stream": "TextStream",
    "realtime.ticket": "ResultFuture",
    "observe.list_progress": "ListProgress",
}
"""The public names of each module, separated by spaces."""

_module_of = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = ["__version__", *sorted(_module_of)]


def __getattr__(name: str) -> Any:
    try:
        module = _module_of[name]
    except KeyError:
        raise AttributeError(f"module 'smartbatch' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"smartbatch.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_module_of})
