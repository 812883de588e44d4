"""Providers of jobs: a process can carry a job on when it has the key of the job's account."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from attrs import define

from smartbatch._clock import Clock
from smartbatch.errors import SmartbatchError
from smartbatch.jobs.records import JobRow
from smartbatch.providers.base import Provider
from smartbatch.providers.registry import create

AGAIN = 60.0
"""Seconds until a provider that could not be made is tried again: a key may be set later."""


@define(eq=False)
class _Made:
    """A provider made from the environment for a job's model, or why there is none."""

    provider: Provider | None
    problem: str
    at: float


class Serving:
    """Finds the provider for a job, of the very account it was submitted with.

    Args:
        own: the client's providers; they come first.
        opened: called with a provider that was made here, before it is used.
    """

    def __init__(self, own: Iterable[Provider], *, opened: Callable[[Provider], None], clock: Clock) -> None:
        self._own = tuple(own)
        self._opened = opened
        self._clock = clock
        self._making = threading.Lock()
        self._made: dict[str, _Made] = {}

    def provider_of(self, row: JobRow) -> Provider | None:
        """Return the provider for a job, or ``None`` when this process lacks its key or server."""
        name = row.model.partition(":")[0]
        for provider in self._own:
            if provider.name == name and provider.scope == row.scope:
                return provider
        made = self._from_environment(row.model)
        if made.provider is None or made.provider.scope != row.scope:
            return None
        return made.provider

    def problem_with(self, row: JobRow) -> str | None:
        """Return, in words, why this process cannot carry a job on; ``None`` when it can."""
        if self.provider_of(row) is not None:
            return None
        made = self._from_environment(row.model)
        another = "the key, server or organisation of this process is another"
        name, problem = row.model.partition(":")[0], another if made.provider else made.problem
        return f"needs the {name} account it was submitted with: {problem}"

    def close(self) -> None:
        """Close what was made here."""
        with self._making:
            all_made, self._made = self._made, {}
        for made in all_made.values():
            if made.provider is not None:
                made.provider.close()

    def abandon(self) -> None:
        """In a forked child: forget what was made here without touching the parent's connections."""
        for made in list(self._made.values()):
            if made.provider is not None:
                made.provider.abandon()

    def _from_environment(self, model: str) -> _Made:
        with self._making:
            made = self._made.get(model)
            if made is not None and (made.provider is not None or self._clock.now() - made.at < AGAIN):
                return made
            made = self._made[model] = self._make(model)
        if made.provider is not None:
            self._opened(made.provider)
        return made

    def _make(self, model: str) -> _Made:
        now = self._clock.now()
        try:
            return _Made(create(model, clock=self._clock)[0], "", now)
        except SmartbatchError as error:
            return _Made(None, error.message, now)
        except Exception as error:  # an SDK that is not there, or will not start
            return _Made(None, f"it could not be opened ({type(error).__name__})", now)
