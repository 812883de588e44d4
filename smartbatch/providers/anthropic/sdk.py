"""The ``anthropic`` SDK, limited to one request per call, over this library's transport.

Its lowest-level call signs requests and parses nothing. Importing this module imports the SDK.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import anthropic
import httpx2

from smartbatch.providers.google_cloud import GoogleSignIn
from smartbatch.providers.http.sdk_bridge import SdkCalls, http_client, unusable_credentials
from smartbatch.providers.http.transport import Transport

_MAX_SECONDS = 600.0  # the SDK's own timeout; every call sets another


class MessagesSdk(SdkCalls):
    """Makes calls through one of the clients of ``anthropic``, whose base URL is ``url``."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        make: Callable[..., anthropic.Anthropic | anthropic.AnthropicBedrock | anthropic.AnthropicVertex],
        headers: Mapping[str, Any],
        **account: Any,
    ) -> None:
        super().__init__(transport)
        self._url = url.rstrip("/")
        _keep_prompts_out_of_logs()
        self.client = make(
            **account,
            base_url=url,
            max_retries=0,
            timeout=_MAX_SECONDS,
            default_headers=headers,
            open_telemetry=False,
            http_client=http_client(transport),
        )

    def url_of(self, path: str) -> str:
        """Complete URLs are returned unchanged."""
        return path if "://" in path else self._url + path

    def send(self, method: str, path: str, timeout: float, *, body: bytes = b"", **more: Any) -> object:
        """``more`` may contain ``headers`` and ``params``; ``data`` and ``files`` are the parts of a form."""
        content: dict[str, Any] = {"content": body} if method == "post" else {}
        if "files" in more:
            content = {"body": more.pop("data"), "files": more.pop("files")}
        options = {"timeout": timeout, **more}
        return getattr(self.client, method)(path, cast_to=httpx2.Response, options=options, **content)


class AnthropicSdk(MessagesSdk):
    """Makes calls to Anthropic's own API.

    ``url`` has no version. ``token`` is used if there is no key. ``headers`` are sent with every
    request and include the API version. If ``authorization`` is False, the SDK sends no
    ``Authorization`` header.
    """

    def __init__(
        self,
        transport: Transport,
        url: str,
        key: str | None,
        token: str | None,
        headers: Mapping[str, str],
        *,
        authorization: bool,
    ) -> None:
        # One of them must be set; otherwise the SDK looks for credentials elsewhere.
        secret: dict[str, Any] = {"auth_token": token} if token and not key else {"api_key": key or "none"}
        sent: dict[str, Any] = (
            dict(headers) if authorization else {**headers, "Authorization": anthropic.Omit()}
        )
        super().__init__(transport, url, anthropic.Anthropic, sent, **secret)


class BedrockSdk(MessagesSdk):
    """Makes calls to Amazon Bedrock, signed with AWS credentials or with a Bedrock API key.

    ``account`` are the arguments of ``AnthropicBedrock``. Credentials that it does not contain are those that
    boto3 finds, which also renews them.
    """

    reuses_heads = False  # the signature is that of one body

    def __init__(self, transport: Transport, url: str, headers: Mapping[str, str], **account: Any) -> None:
        # the signature covers this header, which the transport sets
        sent = {**headers, "Accept-Encoding": "identity"}
        super().__init__(transport, url, anthropic.AnthropicBedrock, sent, **account)

    def send(self, method: str, path: str, timeout: float, *, body: bytes = b"", **more: Any) -> object:
        """Raise ``ProviderError`` if the credentials cannot be loaded or renewed."""
        from botocore.exceptions import BotoCoreError, HTTPClientError

        try:
            return super().send(method, path, timeout, body=body, **more)
        except (BotoCoreError, RuntimeError) as error:  # botocore raises both
            found = error
        reason = type(found).__name__ if isinstance(found, BotoCoreError) else "none, or they have expired"
        raise unusable_credentials("AWS", reason, network=isinstance(found, HTTPClientError))


class VertexClaudeSdk(MessagesSdk):
    """Makes calls to Google Cloud. ``url`` has no version; paths are below that of the project and region."""

    reuses_heads = False  # a head has a token, which expires

    def __init__(
        self, transport: Transport, url: str, headers: Mapping[str, str], sign_in: GoogleSignIn, region: str
    ) -> None:
        account = sign_in.account()
        project = account.pop("project")
        super().__init__(
            transport,
            f"{url.rstrip('/')}/v1/projects/{project}/locations/{region}",
            anthropic.AnthropicVertex,
            headers,
            project_id=project,
            region=region,
            **account,
        )
        self._sign_in = sign_in

    def send(self, method: str, path: str, timeout: float, *, body: bytes = b"", **more: Any) -> object:
        self._sign_in.refresh(timeout)
        return super().send(method, path, timeout, body=body, **more)


def _not_a_body(record: logging.LogRecord) -> bool:
    return not (isinstance(record.msg, str) and record.msg.startswith("Request options"))


def _keep_prompts_out_of_logs() -> None:
    """The SDK logs complete requests at level DEBUG, so only ``ANTHROPIC_LOG`` can enable that level."""
    logger = logging.getLogger("anthropic._base_client")
    if not os.environ.get("ANTHROPIC_LOG") and _not_a_body not in logger.filters:
        logger.addFilter(_not_a_body)
