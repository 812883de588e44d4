"""The dashboard: one WSGI application over a store, the processes that share limits, and a client's queue."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from smartbatch.dashboard.access import LOOPBACK, Access, TokenAccess
from smartbatch.dashboard.application import STREAMS, Dashboard
from smartbatch.dashboard.source import Source

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient

__all__ = ["Access", "Dashboard", "TokenAccess", "app"]


def app(
    *,
    store: str | None = None,
    shared: str | None = None,
    client: BatchingClient | None = None,
    access: Access | None = None,
    hosts: Collection[str] = LOOPBACK,
    show_content: bool = False,
    streams: int = STREAMS,
) -> Dashboard:
    """Return the dashboard as a WSGI application, to be mounted in any server or framework.

    Nothing is opened before the first request, so it may be made before a server forks.

    Args:
        store: the jobs that are shown: a path, or a PostgreSQL address; the client's, or the setting
            ``store``, when ``None``.
        shared: where processes share limits, likewise.
        client: a client of this process, whose queue is shown as well.
        access: called with the WSGI environment of each request; returns ``"all"`` (look and act),
            ``"read"`` or ``None``. Without it every request is answered 403. :class:`TokenAccess` is what
            ``smartbatch dashboard`` uses: a token, from this machine only.
        hosts: names in the ``Host`` header that it answers for, without a port; ``"*"`` for any, where the
            server or the framework checks them.
        show_content: show prompts and answers.
        streams: of live news at a time in a process, fewer than the server has threads; further browsers
            ask every few seconds.

    Raises:
        ConfigError: a setting cannot be used.
    """
    source = Source(store=store, shared=shared, client=client, show_content=show_content)
    return Dashboard(source, access, hosts, streams)
