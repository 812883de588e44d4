"""The client of a Django project, by ``settings.SMARTBATCH`` and the project's databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections
from django.utils.module_loading import import_string

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ConfigError
from smartbatch.integrations.django.database_alias import store_of
from smartbatch.integrations.hosting import HostClient, HostSettings
from smartbatch.realtime.setup import HookParams

SETTING: Final = "SMARTBATCH"
PLACE: Final = f"settings.{SETTING}"
_HOOKS: Final = ("preprocess", "middleware", "observers", "classifiers")
"""Keys of lists of callables, or of their dotted paths."""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_hosts: dict[str, HostClient] = {}
"""By the name of the setting: one, or none yet."""
_began: ContextVar[float | None] = ContextVar("smartbatch_web_request", default=None)
"""When the web request began that this thread answers, monotonic seconds."""


def get_client() -> BatchingClient:
    """Return the project's client in this process, made at its first use there and stopped at the exit.

    Within a web request, what is waited for gets what is left of ``web_timeout``.

    Raises:
        ConfigError: ``settings.SMARTBATCH`` is missing or wrong, or there is no key for its model.
    """
    return host().get(_began.get())


def closing_connections(fn: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that closes old connections to databases before ``fn`` and after it.

    On the threads of a client only, where nobody else does: the client's callbacks and hooks have it; own
    functions that it calls (``Request(call=…)``, ``call:module:function``) may take it as a decorator.
    """

    @wraps(fn)
    def closing(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not threading.current_thread().name.startswith("smartbatch-"):
            return fn(*args, **kwargs)
        close_old_connections()
        try:
            return fn(*args, **kwargs)
        finally:
            close_old_connections()

    if getattr(fn, "shareable", False) is True:  # a middleware says so, also by its class
        vars(closing)["shareable"] = True
    return closing


def host() -> HostClient:
    """Return what has the client, made by the settings when it is first asked for.

    Raises:
        ConfigError: as :func:`get_client`, but for the key.
    """
    found = _hosts.get(SETTING)
    return _hosts.setdefault(SETTING, _new_host()) if found is None else found  # ``setdefault`` is atomic


def request_begins(**_: object) -> None:
    """Receiver of ``request_started``."""
    _began.set(RealClock.now())


def request_ends(**_: object) -> None:
    """Receiver of ``request_finished``."""
    _began.set(None)


def setting_changes(*, setting: str, **_: object) -> None:
    """Receiver of ``setting_changed``, which tests send: the next use makes a client by the new settings."""
    if setting in (SETTING, "DATABASES"):
        _hosts.clear()


def _new_host() -> HostClient:
    found = getattr(settings, SETTING, None)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{PLACE} is to be a dictionary, such as {{'model': 'openai:gpt-5-mini'}}")
    given = dict(found)
    alias = given.pop("database", DEFAULT_DB_ALIAS)
    hooks: dict[str, Any] = {
        name: [closing_connections(_callable(one)) for one in given.pop(name)]
        for name in _HOOKS
        if name in given
    }
    if "post_process" in given:
        hooks["post_process"] = _callable(given.pop("post_process"))
    hooks["run_callback"] = _run_callback
    return HostClient(HostSettings.of(given, PLACE).with_store(store_of(alias)), cast(HookParams, hooks))


def _run_callback(call: Callable[[], Any]) -> Any:
    return closing_connections(call)()


def _callable(named: Any) -> Any:
    if not isinstance(named, str):
        return named
    try:
        return import_string(named)
    except ImportError as error:
        raise ConfigError(f"{PLACE}: {error}") from None
