"""Gemini at Google Cloud's Vertex AI, through the ``google-genai`` SDK in its Vertex mode.

Sources: Google's reference for ``publishers.models.generateContent`` and the SDK 3.6 (November 2026). Unlike
the Gemini API, Vertex AI rejects unknown fields, and function calls and their results have no ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from smartbatch._fork import one_at_a_time
from smartbatch.providers.base import NOT_YET
from smartbatch.providers.gemini.bodies import generate_body
from smartbatch.providers.gemini.errors import ERRORS
from smartbatch.providers.gemini.provider import OWN_HEADERS, ContentProvider
from smartbatch.providers.google_cloud import PROJECT_VARIABLES, GoogleSignIn, place_of, understand_cloud
from smartbatch.providers.hosts import HOSTS, Host
from smartbatch.providers.http.endpoint import HttpNetwork, own_headers, scope_of, secrets_of, setting
from smartbatch.providers.http.replies import MAX_BODY
from smartbatch.providers.http.transport import Transport
from smartbatch.types import Duration, Request

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from smartbatch.providers.gemini.sdk import VertexGeminiSdk

_FUNCTION_PARTS = ("functionCall", "functionResponse")


class VertexGeminiProvider(ContentProvider):
    """Gemini models at Vertex AI, in real time.

    Tokens never appear in a string or a ``repr``; a provider cannot be pickled.

    Args:
        region: ``GOOGLE_CLOUD_LOCATION`` or ``CLOUD_ML_REGION`` by default, or else ``global``.
        project: ``GOOGLE_CLOUD_PROJECT`` or ``ANTHROPIC_VERTEX_PROJECT_ID`` by default, or else that of the
            credentials.
        credentials: from ``google-auth``; Application Default Credentials by default.
        base_url: ``GOOGLE_VERTEX_BASE_URL`` or ``VERTEX_BASE_URL`` by default, or else that of the region;
            without the version.
        host: the host's record.
        api_version: the SDK's ``v1beta1`` by default.
        headers: further headers, treated as secrets.
        connect_timeout: maximum time until an address accepts the connection.
        max_body: maximum bytes of a decoded answer.
        allow_http: whether the token may be sent over plain ``http`` to another machine.

    Raises:
        ConfigError: a setting is invalid. Missing credentials are reported by the first call.
    """

    without_batches = NOT_YET

    def __init__(
        self,
        region: str | None = None,
        *,
        project: str | None = None,
        credentials: Credentials | None = None,
        base_url: str | None = None,
        host: Host = HOSTS["vertex"],
        api_version: str = "v1beta1",
        headers: Mapping[str, str] | None = None,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        allow_http: bool = False,
    ) -> None:
        own = own_headers(headers, OWN_HEADERS)
        place, url = place_of(host, region, base_url, allow_http=allow_http)
        payer = setting(project, *PROJECT_VARIABLES)

        def sdk_over(transport: Transport) -> VertexGeminiSdk:
            with one_at_a_time():
                from smartbatch.providers.gemini.sdk import VertexGeminiSdk

                sign_in = GoogleSignIn(credentials, payer)
            return VertexGeminiSdk(transport, url.url, api_version, own, sign_in, place)

        super().__init__(
            name=host.name,
            scope=scope_of(host.name, url, place, payer),
            errors=evolve(ERRORS, understand=understand_cloud, secrets=secrets_of(own.values())),
            network=HttpNetwork(url, connect_timeout=connect_timeout, max_body=max_body),
            sdk=sdk_over,
            api_version=api_version,
        )

    def path(self, request: Request, model: str) -> str:  # noqa: ARG002
        return f"publishers/google/models/{model.removeprefix('models/')}"

    def body(self, request: Request, model: str) -> dict[str, Any]:
        body = generate_body(request, model)
        for content in body["contents"]:
            content["parts"] = [_without_ids(part) for part in content["parts"]]
        return body


def _without_ids(part: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _FUNCTION_PARTS:
        if name in part:
            kept = {key: value for key, value in part[name].items() if key != "id"}
            return {**part, name: kept}
    return part
