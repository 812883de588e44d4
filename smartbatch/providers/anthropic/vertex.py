"""Anthropic's models at Google Cloud's Vertex AI, through the ``AnthropicVertex`` client.

Sources: Anthropic's guide to Vertex AI, Google's reference for ``rawPredict`` and ``streamRawPredict``, and
the ``anthropic`` SDK 2.14 (November 2026).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from smartbatch._fork import one_at_a_time
from smartbatch.providers.anthropic.bodies import API_VERSION
from smartbatch.providers.anthropic.errors import ERRORS, understand
from smartbatch.providers.anthropic.parts import CLOUD_BLOCKS
from smartbatch.providers.anthropic.provider import DEFAULT_MAX_TOKENS, MessagesProvider, custom_headers
from smartbatch.providers.base import NOT_YET
from smartbatch.providers.error_reader import Refusal
from smartbatch.providers.foreign_text import fields
from smartbatch.providers.google_cloud import PROJECT_VARIABLES, GoogleSignIn, place_of, understand_cloud
from smartbatch.providers.hosts import HOSTS, Host
from smartbatch.providers.http.endpoint import HttpNetwork, own_headers, scope_of, secrets_of, setting
from smartbatch.providers.http.replies import MAX_BODY, Reply
from smartbatch.providers.http.transport import Transport
from smartbatch.types import Duration

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from smartbatch.providers.anthropic.sdk import VertexClaudeSdk

VERTEX_VERSION = "vertex-2023-10-16"  # the version that both guides document


class VertexClaudeProvider(MessagesProvider):
    """Anthropic's models at Vertex AI, in real time.

    Tokens never appear in a string or a ``repr``; a provider cannot be pickled.

    Args:
        region: ``GOOGLE_CLOUD_LOCATION`` or ``CLOUD_ML_REGION`` by default, or else ``global``.
        project: ``GOOGLE_CLOUD_PROJECT`` or ``ANTHROPIC_VERTEX_PROJECT_ID`` by default, or else that of the
            credentials.
        credentials: from ``google-auth``; Application Default Credentials by default.
        base_url: ``GOOGLE_VERTEX_BASE_URL`` or ``VERTEX_BASE_URL`` by default, or else that of the region;
            without the version.
        host: the host's record.
        api_version: ``vertex-2023-10-16``, which sends sampling parameters, or ``2026-10-21``.
        default_max_tokens: sent for requests without ``max_tokens``, which the API requires.
        headers: further headers, treated as secrets.
        connect_timeout: maximum time until an address accepts the connection.
        max_body: maximum bytes of a decoded answer.
        allow_http: whether the token may be sent over plain ``http`` to another machine.

    Raises:
        ConfigError: a setting is invalid. Missing credentials are reported by the first call.
    """

    models = re.compile(r"\w[\w.@-]{0,127}", re.ASCII)
    versions = (VERTEX_VERSION, API_VERSION)
    parts = CLOUD_BLOCKS
    without_batches = NOT_YET

    def __init__(
        self,
        region: str | None = None,
        *,
        project: str | None = None,
        credentials: Credentials | None = None,
        base_url: str | None = None,
        host: Host = HOSTS["vertex"],
        api_version: str = VERTEX_VERSION,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        headers: Mapping[str, str] | None = None,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        allow_http: bool = False,
    ) -> None:
        own = own_headers(headers)
        secrets = secrets_of(own.values(), custom_headers().values())
        where, url = place_of(host, region, base_url, allow_http=allow_http)
        payer = setting(project, *PROJECT_VARIABLES)

        def sdk_over(transport: Transport) -> VertexClaudeSdk:
            with one_at_a_time():
                from smartbatch.providers.anthropic.sdk import VertexClaudeSdk

                account = GoogleSignIn(credentials, payer)
            return VertexClaudeSdk(transport, url.url, own, account, where)

        super().__init__(
            name=host.name,
            scope=scope_of(host.name, url, where, payer),
            api_version=api_version,
            default_max_tokens=default_max_tokens,
            errors=evolve(ERRORS, understand=_understand, secrets=secrets),
            network=HttpNetwork(url, connect_timeout=connect_timeout, max_body=max_body),
            sdk=sdk_over,
        )

    def call(self, body: dict[str, Any], *, stream: bool) -> tuple[str, dict[str, Any]]:
        """The model is in the path, and the version is in the body."""
        operation = "streamRawPredict" if stream else "rawPredict"
        path = f"/publishers/anthropic/models/{body['model']}:{operation}"
        sent = {name: value for name, value in body.items() if name != "model"}
        if stream:
            sent["stream"] = True
        return path, {"anthropic_version": self._version, **sent}


def _understand(reply: Reply, data: Any) -> Refusal:
    """Errors come from Anthropic's API or from Google Cloud, each in its own format."""
    return understand(reply, data) if fields(data).get("type") == "error" else understand_cloud(reply, data)
