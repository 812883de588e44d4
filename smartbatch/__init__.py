"""smartbatch: many LLM requests in, every answer out. Synchronous, from any number of threads.

The public names load on first use, so ``import smartbatch`` is quick and imports no provider's SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from smartbatch._version import __version__

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient as BatchingClient
    from smartbatch.config import BatchingConfig as BatchingConfig
    from smartbatch.errors import AllRequestsFailed as AllRequestsFailed
    from smartbatch.errors import BudgetExceeded as BudgetExceeded
    from smartbatch.errors import ClientClosed as ClientClosed
    from smartbatch.errors import ConfigError as ConfigError
    from smartbatch.errors import ErrorKind as ErrorKind
    from smartbatch.errors import InputError as InputError
    from smartbatch.errors import InvalidRequest as InvalidRequest
    from smartbatch.errors import JobConflict as JobConflict
    from smartbatch.errors import JobNotFound as JobNotFound
    from smartbatch.errors import JobTimeout as JobTimeout
    from smartbatch.errors import ProviderError as ProviderError
    from smartbatch.errors import ProviderUnavailable as ProviderUnavailable
    from smartbatch.errors import QueueFull as QueueFull
    from smartbatch.errors import RequestCancelled as RequestCancelled
    from smartbatch.errors import RequestTimeout as RequestTimeout
    from smartbatch.errors import SmartbatchError as SmartbatchError
    from smartbatch.errors import StoreError as StoreError
    from smartbatch.errors import ValidationFailed as ValidationFailed
    from smartbatch.errors import WrongProcess as WrongProcess
    from smartbatch.jobs.job import Job as Job
    from smartbatch.jobs.status import JobStatus as JobStatus
    from smartbatch.lists import ResultList as ResultList
    from smartbatch.models import Answer as Answer
    from smartbatch.models import Embedding as Embedding
    from smartbatch.models import Generation as Generation
    from smartbatch.models import Message as Message
    from smartbatch.models import Priority as Priority
    from smartbatch.models import Request as Request
    from smartbatch.models import Result as Result
    from smartbatch.models import Route as Route
    from smartbatch.models import Usage as Usage
    from smartbatch.oneline import embed as embed
    from smartbatch.oneline import generate as generate
    from smartbatch.oneline import job as job
    from smartbatch.plans import Plan as Plan
    from smartbatch.prices import Price as Price
    from smartbatch.runtime.streaming import TextStream as TextStream

_HOMES = {
    "client": ["BatchingClient"],
    "config": ["BatchingConfig"],
    "errors": [
        "AllRequestsFailed",
        "BudgetExceeded",
        "ClientClosed",
        "ConfigError",
        "ErrorKind",
        "InputError",
        "InvalidRequest",
        "JobConflict",
        "JobNotFound",
        "JobTimeout",
        "ProviderError",
        "ProviderUnavailable",
        "QueueFull",
        "RequestCancelled",
        "RequestTimeout",
        "SmartbatchError",
        "StoreError",
        "ValidationFailed",
        "WrongProcess",
    ],
    "jobs.job": ["Job"],
    "jobs.status": ["JobStatus"],
    "lists": ["ResultList"],
    "models": [
        "Answer",
        "Embedding",
        "Generation",
        "Message",
        "Priority",
        "Request",
        "Result",
        "Route",
        "Usage",
    ],
    "oneline": ["embed", "generate", "job"],
    "plans": ["Plan"],
    "prices": ["Price"],
    "runtime.streaming": ["TextStream"],
}
_home_of = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_home_of)]


def __getattr__(name: str) -> Any:
    try:
        home = _home_of[name]
    except KeyError:
        raise AttributeError(f"module 'smartbatch' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"smartbatch.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_home_of])
