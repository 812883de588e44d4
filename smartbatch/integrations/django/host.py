"""The client of a Django project, configured by ``settings.SMARTBATCH`` and the project's databases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlencode

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections
from django.utils.connection import ConnectionDoesNotExist
from django.utils.decorators import sync_and_async_middleware
from django.utils.module_loading import import_string

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ConfigError
from smartbatch.integrations.hosting import HostClient, HostSettings
from smartbatch.realtime.setup import HookParams

_SETTINGS: Final = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
"""Database settings, and the corresponding parameters of libpq."""
_HERE: Final = ("", "localhost", "127.0.0.1", "::1")


def store_of(alias: str) -> str | None:
    """Return the store for a database; ``None`` to use the user's own store.

    For PostgreSQL, this is the same server, with separate connections; for SQLite, a file next to the
    database file.
    """
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        raise ConfigError(f"settings.SMARTBATCH: DATABASES has no {alias!r}") from None
    if connection.vendor == "postgresql":
        return _address(connection.settings_dict)
    name = str(connection.settings_dict["NAME"] or "")
    if connection.vendor != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return None
    return f"{os.path.splitext(name)[0]}.smartbatch.db"


def remote_hosts() -> list[str]:
    named = {str(connection.settings_dict.get("HOST") or "") for connection in connections.all()}
    return sorted(host for host in named - set(_HERE) if not host.startswith("/"))


def _address(database: dict[str, Any]) -> str:
    import psycopg

    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = {parameter: database.get(name) for name, parameter in _SETTINGS.items()}
    given |= {name: value for name, value in database.get("OPTIONS", {}).items() if name in known}
    return "postgresql:///?" + urlencode({name: v for name, v in given.items() if v}, quote_via=quote)


SETTING_NAME: Final = "SMARTBATCH"
PLACE: Final = f"settings.{SETTING_NAME}"
_HOOKS: Final = ("preprocess", "middleware", "observers", "classifiers")
"""Settings that are lists of callables or of their dotted paths."""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_hosts: dict[str, HostClient] = {}
"""The project's client, by the name of the setting; at most one."""
_began: ContextVar[float | None] = ContextVar("smartbatch_web_request", default=None)
"""Start of the current web request, in monotonic seconds."""


def get_client() -> BatchingClient:
    """Return the project's client in this process, created at first use and stopped at exit.

    In a web request, calls that wait are limited to the remaining part of ``web_timeout``.

    Raises:
        ConfigError: ``settings.SMARTBATCH`` is missing or invalid, or there is no key for its model.
    """
    return host().get(_began.get())


def closing_connections(fn: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that closes old database connections before and after ``fn``.

    It acts only on the threads of a client, on which Django does not close connections. The client's
    callbacks and hooks are wrapped already; decorate other functions that it calls (such as
    ``Request(call=…)``).
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

    if getattr(fn, "shareable", False) is True:  # set by a middleware or its class
        vars(closing)["shareable"] = True
    return closing


def host() -> HostClient:
    found = _hosts.get(SETTING_NAME)
    # ``setdefault`` is atomic
    return _hosts.setdefault(SETTING_NAME, _new_host()) if found is None else found


def request_begins(**_: object) -> None:
    _began.set(RealClock.now())


def request_ends(**_: object) -> None:
    _began.set(None)


def setting_changes(*, setting: str, **_: object) -> None:
    """Handle ``setting_changed``, which tests send: the next use creates a new client."""
    if setting in (SETTING_NAME, "DATABASES"):
        _hosts.clear()


def _new_host() -> HostClient:
    found = getattr(settings, SETTING_NAME, None)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{PLACE} must be a dictionary, such as {{'model': 'openai:gpt-5-mini'}}")
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


@sync_and_async_middleware
def time_limits(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware that applies ``web_timeout`` under ASGI; under WSGI, signals apply it instead."""
    if not iscoroutinefunction(get_response):
        return get_response

    async def limited(request: Any) -> Any:
        request_begins()
        try:
            return await get_response(request)
        finally:
            request_ends()

    return limited
