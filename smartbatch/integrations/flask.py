"""Flask: a client for each worker process by the application's settings, its commands, a health page, and the
dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast, final

import click
from attrs import asdict
from flask import Blueprint, Flask, Response, current_app, g, has_request_context, request
from flask.cli import AppGroup, with_appcontext
from flask.typing import ResponseReturnValue
from werkzeug.local import LocalProxy

from smartbatch._clock import RealClock
from smartbatch.config import PREFIX
from smartbatch.dashboard import Access
from smartbatch.integrations.hosting import COMMANDS, HostClient, HostSettings
from smartbatch.realtime.setup import HookParams

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from smartbatch.client import BatchingClient

__all__ = ["Smartbatch", "blueprint", "current_smartbatch", "dashboard_blueprint"]

_NAME = "smartbatch"
"""Of the extension, of its blueprint, and of its group of commands."""


@final
class Smartbatch:
    """A client for a Flask application, by its settings ``SMARTBATCH_*``.

    ``app.config`` has ``SMARTBATCH_MODEL``, any setting of :class:`~smartbatch.BatchingConfig`, any
    generation parameter, ``SMARTBATCH_PROVIDER_OPTIONS`` and ``SMARTBATCH_WEB_TIMEOUT``, in capital letters.
    They are read by :meth:`init_app`, which makes no thread, file or connection. Each worker process makes
    its client at the first use of :data:`current_smartbatch`, and stops it at its exit.

    Args:
        app: the application; else call :meth:`init_app`.
        hooks: ``preprocess``, ``post_process``, ``middleware``, ``observers`` and ``classifiers`` of
            :class:`~smartbatch.BatchingClient`.

    Raises:
        ConfigError: a setting is unknown or out of range, or some contradict each other.
    """

    def __init__(self, app: Flask | None = None, **hooks: Unpack[HookParams]) -> None:
        self._hooks = hooks
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give an application its client and its commands.

        Raises:
            ConfigError: as the constructor.
        """
        host = HostClient(HostSettings.of(app.config.get_namespace(PREFIX), "app.config"), self._hooks)
        app.extensions[_NAME] = host
        app.cli.add_command(_commands())
        if host.settings.web_timeout is not None:
            app.before_request(_request_begins)


def _current() -> BatchingClient:
    began = g.get(_BEGAN) if has_request_context() else None
    return _host().get(began)


current_smartbatch = cast("BatchingClient", LocalProxy(_current))
"""The client of the application that runs, in this process. Within a web request that has a time limit, what
is waited for gets what is left of it."""

blueprint = Blueprint(_NAME, __name__, url_prefix=f"/{_NAME}")
"""Pages for those who run the application: ``/smartbatch/health``. ``app.register_blueprint(blueprint)`` adds
them where they are wanted; its ``url_prefix`` names another place."""


@blueprint.get("/health")
def health() -> ResponseReturnValue:
    """Say as JSON how the client of this process is; with status 503 where it cannot be used."""
    found = _host().health()
    return asdict(found), 200 if found.ok else 503


def dashboard_blueprint(
    access: Access | None = None, *, show_content: bool = False, url_prefix: str = f"/{_NAME}/dashboard"
) -> Blueprint:
    """Return a blueprint with the dashboard of the application's jobs.

    Args:
        access: called within each web request, with its WSGI environment; returns ``"all"`` (look and act),
            ``"read"`` or ``None``. Without it every request is answered 403. Acts are noted by the
            ``REMOTE_USER`` of the environment, which it may set.
        show_content: show prompts and answers.
        url_prefix: where it is.
    """
    pages = Blueprint(f"{_NAME}_dashboard", __name__, url_prefix=url_prefix)

    @pages.route("/", defaults={"page": ""}, methods=["GET", "POST"])
    @pages.route("/<path:page>", methods=["GET", "POST"])
    def show(page: str) -> Response:
        host, kept = _host(), f"{_NAME}:{request.blueprint}"
        found: tuple[HostClient, WSGIApplication] | None = current_app.extensions.get(kept)
        if found is None or found[0] is not host:  # init_app may have given it another client since
            found = current_app.extensions[kept] = host, host.dashboard(access, show_content=show_content)
        path = page.encode().decode("latin-1")
        root = request.environ["SCRIPT_NAME"] + request.environ["PATH_INFO"].removesuffix(path)
        placed = {**request.environ, "SCRIPT_NAME": root.rstrip("/"), "PATH_INFO": f"/{path}"}
        return cast(Response, current_app.response_class.from_app(found[1], placed))

    return pages


def _host() -> HostClient:
    try:
        return cast(HostClient, current_app.extensions[_NAME])
    except KeyError:
        raise RuntimeError("this application has no client: call Smartbatch(app), or init_app(app)") from None


_BEGAN = "_smartbatch_began"
"""When the web request began, in the ``g`` of Flask, monotonic seconds."""


def _request_begins() -> None:
    setattr(g, _BEGAN, RealClock.now())


def _commands() -> AppGroup:
    """Return the commands; what they take is for the command line of the library to say."""
    group = AppGroup(_NAME, help="Run, plan and look at LLM requests, with the settings of the application.")
    for name in COMMANDS:
        group.add_command(_command(name))
    return group


def _command(name: str) -> click.Command:
    @click.command(
        name,
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=f"As smartbatch {name}; --help says what it takes.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    @with_appcontext
    def run(context: click.Context, arguments: tuple[str, ...]) -> None:
        context.exit(_host().run_command(name, arguments, f"flask {_NAME}"))

    return run
