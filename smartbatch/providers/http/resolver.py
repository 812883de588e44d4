"""Looking up the name of a host within a time; the system's resolver itself knows none."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from typing import Any

from smartbatch._clock import RealClock
from smartbatch._fork import identity

_STALE = 30.0
"""Seconds after which nobody joins a lookup that hangs: the resolver may work again."""

_lookups: dict[tuple[tuple[int, bool], str, int | None], _Lookup] = {}
"""Those under way, by identity (a forked child has none of the parent's threads), host and port."""


def resolve(host: str, port: int | None, deadline: float) -> list[Any]:
    """Return what ``socket.getaddrinfo`` returns for a stream to ``host``.

    A name is looked up on a thread, which may outlast the call. Calls that ask for the same name meanwhile
    share the lookup, so a resolver that hangs holds one thread and not one for each call.

    Args:
        deadline: monotonic seconds.

    Raises:
        OSError: the name cannot be resolved, or was not in time.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return _addresses(host, port)
    key = identity(), host, port
    lookup = _lookups.get(key)
    if lookup is None or time.monotonic() - lookup.began > _STALE:
        mine = _lookups[key] = _Lookup()
        threading.Thread(target=mine.run, args=key, name="smartbatch-resolver", daemon=True).start()
        lookup = mine
    if not RealClock.acquire(lookup.pending, max(0.0, deadline - time.monotonic())):
        raise socket.gaierror(socket.EAI_AGAIN, "the name was not resolved in time")
    lookup.pending.release()
    if lookup.error is not None:
        raise type(lookup.error)(*lookup.error.args)  # each call its own, as a traceback is added to it
    return lookup.found


class _Lookup:
    """One lookup; ``pending`` is locked until it has ended."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.found: list[Any] = []
        self.error: Exception | None = None
        self.pending = threading.Lock()
        self.pending.acquire(blocking=False)

    def run(self, owner: tuple[int, bool], host: str, port: int | None) -> None:
        try:
            self.found = _addresses(host, port)
        except Exception as error:
            self.error = (
                error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "no name")
            )
        finally:
            if _lookups.get((owner, host, port)) is self:
                del _lookups[owner, host, port]
            self.pending.release()


def _addresses(host: str, port: int | None) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
