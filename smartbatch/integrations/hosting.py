"""What applications of web frameworks need: a client by the framework's settings, made at first use in each
process; the time that is left of a limit; health; and the commands of the command line with these settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import evolve, field, fields_dict, frozen

from smartbatch._clock import RealClock
from smartbatch._fork import PerProcess
from smartbatch._words import seconds_of
from smartbatch.cli.main import main
from smartbatch.client import BatchingClient
from smartbatch.config import OF_APPLICATIONS, PREFIX, BatchingConfig, check_names
from smartbatch.dashboard import Access, Dashboard
from smartbatch.dashboard import app as dashboard_app
from smartbatch.errors import ConfigError, RequestTimeout, SmartbatchError
from smartbatch.realtime.setup import HookParams
from smartbatch.stored_jobs import StoredJobs
from smartbatch.types import Generation, Request

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MARGIN: Final = 1.0
"""Seconds before the end of a time limit at which requests are given up, so that their caller can say why."""
COMMANDS: Final = ("jobs", "plan", "run")
"""The commands of the command line that frameworks have as well."""

KNOWN: Final = frozenset(
    {"model", "provider_options", "web_timeout", *fields_dict(BatchingConfig), *fields_dict(Generation)}
)
"""What an application may say of its client."""

_GENERATION: Final = frozenset(fields_dict(Generation))
_OF_COMMANDS: Final = ("system", "max_tokens", "temperature", "seed")
"""Generation parameters that commands take."""
_WAITED_FOR: Final = frozenset(
    {"submit", "submit_urgent", "submit_embedding", "stream", "map", "as_completed", "generate", "embed"}
    | {"submit_and_wait"}
)
"""Methods of a client whose answers somebody waits for."""
_OWN_TIME: Final = frozenset({"deadline", "durable", "key", "strategy"})
"""Keywords of calls that outlive their caller, or say themselves how long they may take; but whoever waits
for a job does so within the limit, and the job goes on."""


# -- time limits ---------------------------------------------------------------------------------------------


@frozen
class TimeLimit:
    """A limit of a host's on what runs now.

    Attributes:
        of: what it is a limit of, as errors name it.
        seconds: from ``began``.
        began: monotonic seconds.
    """

    of: str
    seconds: float
    began: float

    def left(self) -> float:
        """Return the seconds until :data:`MARGIN` before the end.

        Raises:
            RequestTimeout: there are none left.
        """
        left = self.seconds - MARGIN - (RealClock.now() - self.began)
        if left <= 0:
            raise RequestTimeout(
                f"the {self.of}'s time limit of {self.seconds:g} s is too near for a request"
            )
        return left


def within(
    left: float | None, prompt: object, params: Mapping[str, Any], default: float | None
) -> dict[str, Any]:
    """Return the keywords of a call, with a ``timeout`` of at most ``left`` seconds unless that is ``None``.

    Args:
        prompt: what is asked; a request's own time-out stays, if it is shorter.
        default: seconds that requests have which name none themselves; ``None`` for no limit.
    """
    if left is None:
        return {**params}
    own = prompt.timeout if isinstance(prompt, Request) else None
    named = seconds_of("timeout", params.get("timeout", own))
    seconds = default if named is None else named
    return {**params, "timeout": left if seconds is None else min(left, seconds)}


@frozen
class _LimitedClient:
    """A client whose answers are waited for within a time limit; all else is the client's.

    A call with one of :data:`_OWN_TIME` is left as it is, and so is work for later.
    """

    _client: BatchingClient
    _limit: TimeLimit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in _WAITED_FOR:
            return found
        return partial(self._wait if name == "submit_and_wait" else self._ask, found)

    def _ask(self, method: Callable[..., Any], *asked: Any, **params: Any) -> Any:
        if not _OWN_TIME & params.keys():
            prompt = asked[0] if asked else params.get("prompt")
            params = within(self._limit.left(), prompt, params, self._client.config.request_timeout)
        return method(*asked, **params)

    def _wait(self, method: Callable[..., Any], *asked: Any, **params: Any) -> Any:
        return method(*asked, **within(self._limit.left(), None, params, None))


# -- settings ------------------------------------------------------------------------------------------------


@frozen
class HostSettings:
    """What a host application says of its client, checked.

    Attributes:
        place: where it says so, as errors name it.
        model: ``provider:model``; ``None`` where nothing is said.
        web_timeout: seconds that a web request may take; ``None`` for no limit.
        provider_options: arguments of the adapter.
        generation: parameters of all generations.
        table: the settings of :class:`~smartbatch.BatchingConfig` among them, as they were given.
        config: the same with the environment over them.
    """

    place: str
    model: str | None
    web_timeout: float | None
    provider_options: Mapping[str, Any] = field(repr=False)
    generation: Mapping[str, Any]
    table: Mapping[str, Any] = field(repr=False)
    config: BatchingConfig

    @classmethod
    def of(cls, given: Mapping[str, Any], place: str) -> HostSettings:
        """Read settings; the variables ``SMARTBATCH_*`` of the environment win over them.

        Raises:
            ConfigError: one is unknown or out of range, or some contradict each other.
        """
        try:
            check_names(given, KNOWN)
            given = {**given, **_variables()}
            table = {name: value for name, value in given.items() if name in fields_dict(BatchingConfig)}
            return cls(
                place=place,
                model=given.get("model"),
                web_timeout=seconds_of("web_timeout", given.get("web_timeout")),
                provider_options=given.get("provider_options") or {},
                generation={name: value for name, value in given.items() if name in _GENERATION},
                table=table,
                config=BatchingConfig.load(table),
            )
        except ConfigError as error:
            raise ConfigError(f"{place}: {error.message}") from None

    def with_store(self, store: str | None) -> HostSettings:
        """Return the settings with a store where they, and the environment, name none."""
        if store is None or self.config.store is not None:
            return self
        setting: dict[str, Any] = {"store": store}
        return evolve(self, table={**self.table, **setting}, config=evolve(self.config, **setting))


def _variables() -> dict[str, str]:
    """Return what the environment says that is no setting of a client."""
    found = {name: os.environ.get(name, "").strip() for name in OF_APPLICATIONS}
    return {name.removeprefix(PREFIX).lower(): text for name, text in found.items() if text}


@frozen
class Health:
    """How the client of this process is.

    Attributes:
        ok: whether it can be used.
        problem: what it cannot be used for: ``"settings"`` or ``"store"``; the log says more.
        process: the process's id.
        model: ``provider:model``.
        waiting, in_flight: requests in real time; 0 before the first one.
    """

    ok: bool
    problem: str | None
    process: int
    model: str | None
    waiting: int
    in_flight: int


class HostClient:
    """The client of a host application: made at its first use in each process, stopped at the exit.

    Args:
        settings: as checked.
        hooks: further arguments of the client.

    Attributes:
        jobs: those of the store; looking at them needs no key.
    """

    def __init__(self, settings: HostSettings, hooks: HookParams | None) -> None:
        self.settings = settings
        self.jobs = StoredJobs(settings.config)
        self._hooks: HookParams = hooks or {}
        self._clients = PerProcess(self._make)

    def dashboard(self, access: Access | None, *, show_content: bool = False) -> WSGIApplication:
        """Return the dashboard of the application's store, as a WSGI application.

        It answers for any host: the framework checks that. The queue of the client of the process is shown
        once there is one.

        Args:
            access: as in :func:`smartbatch.dashboard.app`.
            show_content: show prompts and answers.
        """

        def made(client: BatchingClient | None) -> Dashboard:
            config = self.settings.config
            return dashboard_app(
                store=config.store,
                shared=config.shared,
                client=client,
                access=access,
                hosts=["*"],
                show_content=show_content,
            )

        idle = PerProcess(lambda: made(None))
        busy = PerProcess(lambda: made(self._clients.get()))

        def dashboard(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            found = idle if self._clients.peek() is None else busy
            return found.get()(environ, start_response)

        return dashboard

    def get(self, began: float | None = None) -> BatchingClient:
        """Return the client.

        Args:
            began: when the web request began that asks, monotonic seconds; its answers are waited for until
                ``web_timeout`` is over.

        Raises:
            ConfigError: there is no model, or no key for it.
        """
        client = self._clients.get()
        if began is None or self.settings.web_timeout is None:
            return client
        limit = TimeLimit("web request", self.settings.web_timeout, began)
        return cast(BatchingClient, _LimitedClient(client, limit))

    def health(self) -> Health:
        """Say how the client is. Looks into the store where one is named; asks nothing of the provider."""
        problem, waiting, in_flight = None, 0, 0
        try:
            client = self.get()
            counts = client.counts
            waiting, in_flight = counts.waiting, counts.in_flight
            if client.config.store is not None:
                client.jobs(limit=1)
        except SmartbatchError as error:
            problem = "settings" if isinstance(error, ConfigError) else "store"
        return Health(problem is None, problem, os.getpid(), self.settings.model, waiting, in_flight)

    def run_command(self, command: str, arguments: Sequence[str], program: str) -> int:
        """Run a command of the command line with these settings and return its exit code.

        Args:
            command: one of :data:`COMMANDS`.
            arguments: those after it; they win over the settings. With another ``--model`` the options of
                the provider do not count.
            program: its name in the usage.
        """
        options = [] if command == "jobs" else self._options(arguments)
        return main([command, *options, *arguments], program=program, settings=self.settings.table)

    def _options(self, arguments: Collection[str]) -> list[str]:
        generation = self.settings.generation
        options = [
            f"--{name.replace('_', '-')}={generation[name]}"
            for name in _OF_COMMANDS
            if generation.get(name) is not None
        ]
        if self.settings.model is None or any(word.partition("=")[0] == "--model" for word in arguments):
            return options
        for name, value in self.settings.provider_options.items():
            options.append(f"--provider-option={name}={json.dumps(value)}")
        return [f"--model={self.settings.model}", *options]

    def _make(self) -> BatchingClient:
        given = self.settings
        if not given.model:
            raise ConfigError(f"{given.place} names no model, such as openai:gpt-5-mini")
        return BatchingClient(
            given.model,
            given.config,
            provider_options=given.provider_options,
            **self._hooks,
            **given.generation,
        )
