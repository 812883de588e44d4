"""Checks of ``settings.SMARTBATCH`` for ``manage.py check``. No provider is called.

- E001: the setting is missing or invalid.
- E002: the client cannot be created, for example because a key is missing.
- E003: the store cannot be used.
- E004: the view for webhooks has a URL, but there is neither a secret nor an address with a token, or the
  secret is invalid.
- W001: jobs are in a file on this machine, but a database of the project is on another machine.
- W002: a setting is given twice, in the settings and by an environment variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from inspect import unwrap
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.urls import URLPattern, URLResolver, get_resolver

from smartbatch.cli.clients import missing_store
from smartbatch.config import VARIABLE_PREFIX, BatchingConfig, checked_table
from smartbatch.errors import ConfigError, SmartbatchError
from smartbatch.integrations.django.host import PLACE, host, remote_hosts
from smartbatch.integrations.django.urls import webhooks
from smartbatch.integrations.hosting import HostClient
from smartbatch.jobs.store import resolved_place
from smartbatch.stored_jobs import StoredJobs
from smartbatch.webhooks import SECRET_VARIABLE

TAG: Final = "smartbatch"
"""For ``manage.py check --tag smartbatch``."""


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check everything that needs no database server."""
    try:
        found = host()
    except SmartbatchError as error:
        hint = "See how-to/django in the documentation for the keys."
        return [Error(error.message, hint=hint, id="smartbatch.E001")]
    return [*_unusable_client(found), *_unusable_file(found.settings.config), *_warnings(found)]


def check_webhooks(**_: Any) -> list[CheckMessage]:
    """Check the settings of the view for webhooks, if it has a URL."""
    if not (getattr(settings, "ROOT_URLCONF", None) and _has_url(webhooks, get_resolver().url_patterns)):
        return []
    try:
        found = host()
    except SmartbatchError:
        return []  # reported as E001
    try:
        found.webhooks()
    except ConfigError as error:
        hint = f"The secret is 'webhook_secret' in {PLACE}, or the environment variable {SECRET_VARIABLE}."
        return [Error(error.message, hint=hint, id="smartbatch.E004")]
    return []


def _has_url(view: Any, patterns: Sequence[URLPattern | URLResolver]) -> bool:
    return any(
        _has_url(view, one.url_patterns)
        if isinstance(one, URLResolver)
        else unwrap(one.callback) is unwrap(view)
        for one in patterns
    )


def check_server(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check a store on a server, if checks may use databases."""
    try:
        config = host().settings.config
    except SmartbatchError:
        return []  # reported as E001
    if not databases or not _is_server(config):
        return []
    return list(_opened(config))


def _unusable_client(found: HostClient) -> Iterator[CheckMessage]:
    try:
        found.get()
    except SmartbatchError as error:
        hint = "Set the key in the environment of every process; tests can use the model sim:demo."
        yield Error(error.message, hint=hint, id="smartbatch.E002")


def _unusable_file(config: BatchingConfig) -> Iterator[CheckMessage]:
    if _is_server(config):
        return
    if missing_store(config.store) is None:
        yield from _opened(config)
        return
    folder = os.path.dirname(resolved_place(config.store))
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        yield _error(f"the store {config.store} cannot be created: {folder} is not a folder")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield _error(f"the store {config.store} cannot be created: the folder {folder} is not writable")


def _opened(config: BatchingConfig) -> Iterator[CheckMessage]:
    stored = StoredJobs(config)
    try:
        stored.jobs(limit=1)
    except SmartbatchError as error:
        yield _error(error.message)
    finally:
        stored.close(0)


def _error(text: str) -> CheckMessage:
    hint = f"Set 'store' in {PLACE} to a file that all processes can write, or to a PostgreSQL server."
    return Error(text, hint=hint, id="smartbatch.E003")


def _warnings(found: HostClient) -> Iterator[CheckMessage]:
    config, table = found.settings.config, found.settings.table
    hosts = remote_hosts()
    if hosts and not _is_server(config):
        yield CheckWarning(
            f"jobs are kept in a file on this machine, but a database is on {hosts[0]}: other machines would "
            "not find them",
            hint=f"Set 'store' in {PLACE} to a PostgreSQL server, or silence this check if there is only "
            "one machine.",
            id="smartbatch.W001",
        )
    for name, value in checked_table(table, PLACE).items():
        if value != getattr(config, name):
            yield CheckWarning(
                f"{name} is set twice: in {PLACE}, and by the variable "
                f"{VARIABLE_PREFIX}{name.upper()}, which takes precedence",
                hint="Remove one of them.",
                id="smartbatch.W002",
            )


def _is_server(config: BatchingConfig) -> bool:
    return "postgres" in (config.store or "").partition("://")[0]
