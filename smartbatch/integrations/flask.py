"""Flask: one client per worker process, configured by the application; commands, a health page and the
dashboard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast, final

import click
from attrs import asdict
from flask import Blueprint, Flask, Response, current_app, g, has_request_context, request
from flask.blueprints import BlueprintSetupState
from flask.cli import AppGroup, with_appcontext
from flask.typing import ResponseReturnValue
from werkzeug.local import LocalProxy

from smartbatch._clock import RealClock
from smartbatch.config import VARIABLE_PREFIX
from smartbatch.dashboard import Access
from smartbatch.integrations.hosting import COMMANDS, HostClient, HostSettings
from smartbatch.realtime.setup import HookParams

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from smartbatch.client import BatchingClient

__all__ = ["Smartbatch", "blueprint", "current_smartbatch", "dashboard_blueprint", "webhook_blueprint"]

_EXTENSION_NAME = "smartbatch"  # name of the extension, its blueprint and its command group
_WEBHOOKS_NAME = f"{_EXTENSION_NAME}_webhooks"


@final
class Smartbatch:
    """A client for a Flask application, configured by its settings ``SMARTBATCH_*``.

    ``app.config`` may contain ``SMARTBATCH_MODEL``, any setting of :class:`~smartbatch.BatchingConfig`, any
    generation parameter, ``SMARTBATCH_PROVIDER_OPTIONS`` and ``SMARTBATCH_WEB_TIMEOUT``, in capital letters.
    :meth:`init_app` reads them and creates no thread, file or connection. Each worker process creates its
    client at the first use of :data:`current_smartbatch`, and stops it at exit.

    Args:
        app: the application; or call :meth:`init_app` later.
        hooks: ``preprocess``, ``post_process``, ``middleware``, ``observers`` and ``classifiers`` of
            :class:`~smartbatch.BatchingClient`.

    Raises:
        ConfigError: a setting is unknown or invalid, or settings contradict each other.
    """

    def __init__(self, app: Flask | None = None, **hooks: Unpack[HookParams]) -> None:
        self._hooks = hooks
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give an application its client and its commands.

        Raises:
            ConfigError: as for the constructor.
        """
        host = HostClient(
            HostSettings.of(app.config.get_namespace(VARIABLE_PREFIX), "app.config"), self._hooks
        )
        if _WEBHOOKS_NAME in app.blueprints:
            host.webhooks()  # only to check the settings
        app.extensions[_EXTENSION_NAME] = host
        app.cli.add_command(_commands())
        if host.settings.web_timeout is not None:
            app.before_request(_request_begins)


def _current() -> BatchingClient:
    began = g.get(_BEGAN_KEY) if has_request_context() else None
    return _host().get(began)


current_smartbatch = cast("BatchingClient", LocalProxy(_current))
"""The client of the current application in this process. In a web request with a time limit, calls that wait
are limited to the time left.
"""

blueprint = Blueprint(_EXTENSION_NAME, __name__, url_prefix=f"/{_EXTENSION_NAME}")
"""Operations pages: ``/smartbatch/health``. Add them with ``app.register_blueprint(blueprint)``; it takes a
``url_prefix`` for another path."""


@blueprint.get("/health")
def health() -> ResponseReturnValue:
    """Return the health of the client of this process as JSON, with status 503 if it cannot be used."""
    found = _host().health()
    return asdict(found), 200 if found.ok else 503


def dashboard_blueprint(
    access: Access | None = None,
    *,
    show_content: bool = False,
    url_prefix: str = f"/{_EXTENSION_NAME}/dashboard",
) -> Blueprint:
    """Return a blueprint with the dashboard of the application's jobs.

    Args:
        access: called in each web request with its WSGI environment; returns ``"all"`` (view and act),
            ``"read"`` or ``None``. Without it every request is answered with 403. Actions are recorded with
            the ``REMOTE_USER`` of the environment, which ``access`` may set.
        show_content: show prompts and answers of jobs, and let all visitors download them.
        url_prefix: path of the dashboard.
    """
    pages = Blueprint(f"{_EXTENSION_NAME}_dashboard", __name__, url_prefix=url_prefix)

    @pages.route("/", defaults={"page": ""}, methods=["GET", "POST"])
    @pages.route("/<path:page>", methods=["GET", "POST"])
    def show(page: str) -> Response:
        host, kept = _host(), f"{_EXTENSION_NAME}:{request.blueprint}"
        found: tuple[HostClient, WSGIApplication] | None = current_app.extensions.get(kept)
        if found is None or found[0] is not host:  # init_app was called again
            found = current_app.extensions[kept] = host, host.dashboard(access, show_content=show_content)
        path = page.encode().decode("latin-1")
        root = request.environ["SCRIPT_NAME"] + request.environ["PATH_INFO"].removesuffix(path)
        placed = {**request.environ, "SCRIPT_NAME": root.rstrip("/"), "PATH_INFO": f"/{path}"}
        return cast(Response, current_app.response_class.from_app(found[1], placed))

    return pages


def webhook_blueprint(url_prefix: str = f"/{_EXTENSION_NAME}/webhooks") -> Blueprint:
    """Return a blueprint that receives webhooks for the application's jobs.

    The secrets are in the setting ``SMARTBATCH_WEBHOOK_SECRET`` of the application or the environment.
    Registering it raises :class:`~smartbatch.ConfigError` if there is neither a secret nor a
    ``webhook_url``, or one is invalid; if :meth:`Smartbatch.init_app` is called later, that does.

    Args:
        url_prefix: path of the address to which the provider sends its events.
    """
    pages = Blueprint(_WEBHOOKS_NAME, __name__, url_prefix=url_prefix)

    @pages.record
    def check(state: BlueprintSetupState) -> None:
        host: HostClient | None = state.app.extensions.get(_EXTENSION_NAME)
        if host is not None:
            host.webhooks()  # only to check the settings

    @pages.post("")
    def receive() -> Response:
        host, kept = _host(), f"{_EXTENSION_NAME}:{request.blueprint}"
        found: tuple[HostClient, WSGIApplication] | None = current_app.extensions.get(kept)
        if found is None or found[0] is not host:  # init_app was called again
            found = current_app.extensions[kept] = host, host.webhooks()
        return cast(Response, current_app.response_class.from_app(found[1], request.environ))

    return pages


def _host() -> HostClient:
    try:
        return cast(HostClient, current_app.extensions[_EXTENSION_NAME])
    except KeyError:
        raise RuntimeError("this application has no client: call Smartbatch(app) or init_app(app)") from None


_BEGAN_KEY = "_smartbatch_began"  # in Flask's ``g``: monotonic seconds at which the web request began


def _request_begins() -> None:
    setattr(g, _BEGAN_KEY, RealClock.now())


def _commands() -> AppGroup:
    group = AppGroup(
        _EXTENSION_NAME, help="Run, plan and view LLM requests, with the settings of the application."
    )
    for name in COMMANDS:
        group.add_command(_command(name))
    return group


def _command(name: str) -> click.Command:
    @click.command(
        name,
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=f"Like smartbatch {name}; see --help.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    @with_appcontext
    def run(context: click.Context, arguments: tuple[str, ...]) -> None:
        context.exit(_host().run_command(name, arguments, f"flask {_EXTENSION_NAME}"))

    return run
