"""Code shared by the web framework integrations: a client per process, created from the framework's settings,
time limits, health, and the command line.
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
from smartbatch._words import duration, seconds_of
from smartbatch.cli.main import main
from smartbatch.client import BatchingClient
from smartbatch.config import APPLICATION_VARIABLES, VARIABLE_PREFIX, BatchingConfig, check_names
from smartbatch.dashboard import Access, Dashboard
from smartbatch.dashboard import app as dashboard_app
from smartbatch.errors import ConfigError, RequestTimeout, SmartbatchError
from smartbatch.jobs.store import default_place
from smartbatch.realtime.setup import HookParams
from smartbatch.stored_jobs import StoredJobs
from smartbatch.types import Generation, Request
from smartbatch.webhooks import app as webhooks_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MARGIN_SECONDS: Final = 1.0  # left before the end of a time limit for the caller to report a timeout
COMMANDS: Final = ("jobs", "plan", "run")  # commands that frameworks also offer

KNOWN: Final = frozenset(
    {"model", "provider_options", "web_timeout", "webhook_secret"}
    | {*fields_dict(BatchingConfig), *fields_dict(Generation)}
)
"""Settings of an application for its client."""

_GENERATION: Final = frozenset(fields_dict(Generation))
# generation parameters
_COMMAND_PARAMETERS: Final = ("system", "max_tokens", "temperature", "seed", "reasoning_effort")
_WAITED_FOR: Final = frozenset(
    {"submit", "submit_urgent", "submit_embedding", "stream", "map", "as_completed", "generate", "embed"}
    | {"submit_and_wait"}
)
"""Methods of a client whose caller waits for the answer."""
_OWN_TIME: Final = frozenset({"deadline", "durable", "key", "strategy"})
"""Keywords of calls that outlive their caller or have their own time limit. Waiting for a job is always
limited, and the job continues."""


# -- time limits ---------------------------------------------------------------------------------------------


@frozen
class TimeLimit:
    of: str  # limited operation, for errors
    seconds: float  # duration
    began: float  # start in monotonic seconds

    def left(self) -> float:
        """Return the seconds until :data:`MARGIN_SECONDS` before the end.

        Raises:
            RequestTimeout: no time is left.
        """
        left = self.seconds - MARGIN_SECONDS - (RealClock.now() - self.began)
        if left <= 0:
            raise RequestTimeout(
                f"no time is left for a request: the {self.of}'s time limit is {duration(self.seconds)}"
            )
        return left


def with_time_left(
    left: float | None, prompt: object, params: Mapping[str, Any], default: float | None
) -> dict[str, Any]:
    """Return the keywords of a call; unless ``left`` is ``None``, they have a ``timeout`` of at most ``left``
    seconds.

    Args:
        prompt: if it is a request with a shorter timeout, that timeout is kept.
        default: timeout in seconds of requests without one; ``None`` for no limit.
    """
    if left is None:
        return {**params}
    own = prompt.timeout if isinstance(prompt, Request) else None
    named = seconds_of("timeout", params.get("timeout", own))
    seconds = default if named is None else named
    return {**params, "timeout": left if seconds is None else min(left, seconds)}


@frozen
class _LimitedClient:
    """A client whose waiting methods respect a time limit, unless a keyword in :data:`_OWN_TIME` is given."""

    _client: BatchingClient
    _limit: TimeLimit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in _WAITED_FOR:
            return found
        return partial(self._wait if name == "submit_and_wait" else self._send, found)

    def _send(self, method: Callable[..., Any], *args: Any, **params: Any) -> Any:
        if not _OWN_TIME & params.keys():
            prompt = args[0] if args else params.get("prompt")
            params = with_time_left(self._limit.left(), prompt, params, self._client.config.request_timeout)
        return method(*args, **params)

    def _wait(self, method: Callable[..., Any], *args: Any, **params: Any) -> Any:
        return method(*args, **with_time_left(self._limit.left(), None, params, None))


# -- settings ------------------------------------------------------------------------------------------------


@frozen
class HostSettings:
    place: str  # name of the settings, for errors
    model: str | None  # ``provider:model``
    web_timeout: float | None  # seconds per web request
    webhook_secret: str | Sequence[str] | None = field(repr=False)
    provider_options: Mapping[str, Any] = field(repr=False)
    generation: Mapping[str, Any]  # generation parameters of all requests
    table: Mapping[str, Any] = field(repr=False)  # settings of ``BatchingConfig``, as given
    config: BatchingConfig  # ``table``, overridden by the environment

    @classmethod
    def of(cls, given: Mapping[str, Any], place: str) -> HostSettings:
        """Read settings, which the variables ``SMARTBATCH_*`` override.

        Raises:
            ConfigError: a setting is unknown or invalid, or settings contradict each other.
        """
        try:
            check_names(given, KNOWN)
            given = {**given, **_variables()}
            table = {name: value for name, value in given.items() if name in fields_dict(BatchingConfig)}
            return cls(
                place=place,
                model=given.get("model"),
                web_timeout=seconds_of("web_timeout", given.get("web_timeout")),
                webhook_secret=given.get("webhook_secret"),
                provider_options=given.get("provider_options") or {},
                generation={name: value for name, value in given.items() if name in _GENERATION},
                table=table,
                config=BatchingConfig.load(table),
            )
        except ConfigError as error:
            raise ConfigError(f"{place}: {error.message}") from None

    def with_store(self, store: str | None) -> HostSettings:
        if store is None or self.config.store is not None:
            return self
        setting: dict[str, Any] = {"store": store}
        return evolve(self, table={**self.table, **setting}, config=evolve(self.config, **setting))


def _variables() -> dict[str, str]:
    found = {name: os.environ.get(name, "").strip() for name in APPLICATION_VARIABLES}
    return {name.removeprefix(VARIABLE_PREFIX).lower(): text for name, text in found.items() if text}


@frozen
class Health:
    ok: bool  # the client can be used
    problem: str | None  # ``"settings"`` or ``"store"``; the log has details
    process: int  # process id
    model: str | None  # ``provider:model``
    waiting: int  # waiting real-time requests
    in_flight: int


class HostClient:
    """The client of an application: created at its first use in each process, and stopped at exit.

    Args:
        hooks: further arguments of the client.

    Attributes:
        jobs: the jobs of the store, which can be read without a key.
    """

    def __init__(self, settings: HostSettings, hooks: HookParams | None) -> None:
        self.settings = settings
        self.jobs = StoredJobs(settings.config)
        self._hooks: HookParams = hooks or {}
        self._clients = PerProcess(self._make)

    def dashboard(self, access: Access | None, *, show_content: bool = False) -> WSGIApplication:
        """Return the dashboard of the application's store, as a WSGI application.

        The framework checks host names. Once the process has a client, the dashboard also shows its queue.
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

    def webhooks(self) -> WSGIApplication:
        """Return the receiver of webhooks for the application's store, as a WSGI application.

        Raises:
            ConfigError: the settings ``webhook_secret`` and ``webhook_url`` are missing, or one is invalid.
        """
        config = self.settings.config
        return webhooks_app(
            config.store or default_place(), secret=self.settings.webhook_secret, url=config.webhook_url
        )

    def get(self, began: float | None = None) -> BatchingClient:
        """Return the client.

        Args:
            began: start of the current web request in monotonic seconds; calls then wait at most until
                ``web_timeout``.

        Raises:
            ConfigError: there is no model, or no key for it.
        """
        client = self._clients.get()
        if began is None or self.settings.web_timeout is None:
            return client
        limit = TimeLimit("web request", self.settings.web_timeout, began)
        return cast(BatchingClient, _LimitedClient(client, limit))

    def health(self) -> Health:
        """Return the health of the client. Reads the store if one is set, and calls no provider."""
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
            arguments: the arguments after it, which override the settings. With another ``--model`` the
                provider options are ignored.
            program: the program name in the usage.
        """
        options = [] if command == "jobs" else self._options(arguments)
        return main([command, *options, *arguments], program=program, settings=self.settings.table)

    def _options(self, arguments: Collection[str]) -> list[str]:
        generation = self.settings.generation
        options = [
            f"--{name.replace('_', '-')}={generation[name]}"
            for name in _COMMAND_PARAMETERS
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
            raise ConfigError(f"{given.place} has no model, such as openai:gpt-5-mini")
        return BatchingClient(
            given.model,
            given.config,
            provider_options=given.provider_options,
            **self._hooks,
            **given.generation,
        )
