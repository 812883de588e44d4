"""The dashboard: one WSGI application for a store, the processes that share limits, and a client's queue."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from smartbatch.dashboard.access import LOOPBACK, Access, TokenAccess
from smartbatch.dashboard.application import DEFAULT_STREAMS, Dashboard
from smartbatch.dashboard.source import Source

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient
    from smartbatch.config import BatchingConfig

__all__ = ["Access", "Dashboard", "TokenAccess", "app"]


def app(
    *,
    config: BatchingConfig | None = None,
    store: str | None = None,
    shared: str | None = None,
    client: BatchingClient | None = None,
    access: Access | None = None,
    hosts: Collection[str] = LOOPBACK,
    show_content: bool = False,
    streams: int = DEFAULT_STREAMS,
) -> Dashboard:
    """Return the dashboard as a WSGI application that any server or framework can mount.

    Nothing is opened before the first request, so it can be made before a server forks.

    Args:
        config: settings, such as prices and hosts. Default to those of the client, or to the environment's.
        store: the store to show: a path or a PostgreSQL address. Defaults to the setting ``store``.
        shared: the place where processes share limits. Defaults to the setting ``shared``.
        client: a client of this process, whose queue is shown as well.
        access: called with the WSGI environment of each request; returns ``"all"`` (view and act), ``"read"``
            (view only) or ``None`` (nothing). Without it every request is answered with 403. ``smartbatch
            dashboard`` uses :class:`TokenAccess`: a token, on this machine only.
        hosts: accepted names in the ``Host`` header, without a port; ``"*"`` for any, if the server or the
            framework checks them.
        show_content: show prompts and answers of jobs, and let all visitors download them.
        streams: maximum number of concurrent live connections per process; fewer than the server has
            threads. Further browsers poll every few seconds.

    Raises:
        ConfigError: a setting cannot be used.
    """
    source = Source(config, store=store, shared=shared, client=client, show_content=show_content)
    return Dashboard(source, access, hosts, streams)
