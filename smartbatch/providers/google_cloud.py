"""Credentials, project, region and errors of Google Cloud, for every model that it serves."""

from __future__ import annotations

import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve
from urllib3.util import Url

from smartbatch.errors import ConfigError, ErrorKind
from smartbatch.providers.error_reader import Refusal
from smartbatch.providers.gemini.errors import understand
from smartbatch.providers.hosts import Host
from smartbatch.providers.http.endpoint import checked_url, setting
from smartbatch.providers.http.replies import Reply

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

DEFAULT_REGION = "global"
PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID")

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SIGN_IN = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
_PROJECT = re.compile(r"[a-z0-9][a-z0-9.:-]{0,63}")


def place_of(host: Host, region: str | None, base_url: str | None, *, allow_http: bool) -> tuple[str, Url]:
    """Return the region and its checked base URL, without a version."""
    region = setting(region, *host.region_variables) or DEFAULT_REGION
    url = checked_url(
        base_url,
        host.address_variables,
        host.address_in(region),
        carries_secret=True,
        allow_http=allow_http,
    )
    return region, url


class GoogleSignIn:
    """Credentials of Google Cloud, and the project that pays.

    Args:
        credentials: from ``google-auth``; ``None`` for Application Default Credentials, which may take
            seconds to find.
        project: the project's id; ``None`` for that of the credentials.

    Raises:
        ConfigError: there are no credentials, or no project.
    """

    def __init__(self, credentials: Credentials | None, project: str | None) -> None:
        from google import auth
        from google.auth.exceptions import GoogleAuthError

        found = getattr(credentials, "project_id", None)
        if credentials is None:
            try:
                credentials, found = auth.default(scopes=[_SCOPE])
            except GoogleAuthError:
                raise ConfigError(f"no Application Default Credentials: {_SIGN_IN}") from None
        project = project or found
        if project is None:
            raise ConfigError(
                f"no project: set {' or '.join(PROJECT_VARIABLES)}, or the provider option project"
            )
        if not _PROJECT.fullmatch(project):
            raise ConfigError("the Google Cloud project must be given by its id, in lower case")
        self._credentials, self._project = credentials, project
        self._lock = threading.Lock()

    def account(self) -> dict[str, Any]:
        """Return the arguments for an SDK's client."""
        return {"credentials": self._credentials, "project": self._project}

    def refresh(self, timeout: float) -> None:
        """Renew the token if it has expired, once for all threads, within ``timeout`` seconds.

        Raises:
            ProviderError: it cannot be renewed.
        """
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request

        from smartbatch.providers.http.sdk_bridge import unusable_credentials

        if self._credentials.valid:
            return
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._credentials.valid:
                return
            # after waiting for a thread that failed, hardly any time may be left
            request = partial(Request(), timeout=max(0.1, deadline - time.monotonic()))
            try:
                self._credentials.refresh(request)  # type: ignore[no-untyped-call]
                return
            except GoogleAuthError as error:
                problem = error
        network = isinstance(problem, TransportError) or problem.retryable
        raise unusable_credentials("Google", type(problem).__name__, network=network)


def understand_cloud(reply: Reply, data: Any) -> Refusal:
    """Read an error of Google Cloud, and say what to do next."""
    found = understand(reply, data)
    advice = ""
    if reply.status == 401:
        advice = _SIGN_IN
    elif found.kind is ErrorKind.AUTH_ERROR:
        advice = "enable the Vertex AI API in the project, and give the account the role Vertex AI User"
    elif reply.status == 404:
        advice = "check the model's name, and whether the region has it (provider option region)"
    return evolve(found, advice=advice)
