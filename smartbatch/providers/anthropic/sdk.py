"""The ``anthropic`` SDK, held to one request a call, over a transport of ours.

Its lowest call is used, which signs requests and parses nothing. Importing this module imports the SDK.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

import anthropic
import httpx2

from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.sdk_bridge import http_client, live_of, reply_of, through_sdk
from smartbatch.providers.http.transport import Transport

__all__ = ["AnthropicSdk"]


class AnthropicSdk:
    """One SDK client over one transport, for all threads of a process. Its retries are off.

    Args:
        url: the base URL, without the version.
        token: counts where there is no key.
        headers: sent with every request, the API's version among them.
        authorization: whether the SDK may send that header.
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
        _keep_prompts_out_of_logs()
        # Something must be passed for both, or the SDK would look for credentials elsewhere.
        secret: dict[str, Any] = {"auth_token": token} if token and not key else {"api_key": key or "none"}
        sent: dict[str, Any] = (
            dict(headers) if authorization else {**headers, "Authorization": anthropic.Omit()}
        )
        self.client = anthropic.Anthropic(
            **secret,
            base_url=url,
            max_retries=0,
            timeout=600.0,
            default_headers=sent,
            open_telemetry=False,
            http_client=http_client(transport),
        )

    def ask(self, method: Literal["get", "post", "delete"], path: str, timeout: float, **more: Any) -> Reply:
        """Make one request within ``timeout`` seconds in all; return the whole answer, whatever its status.

        ``more`` are ``content``, the encoded body of a post; ``headers`` and ``params`` of this call.
        """
        return through_sdk(lambda: reply_of(self._send(method, path, timeout, **more)))

    def begin(
        self, method: Literal["get", "post"], path: str, timeout: float, accept: str, **more: Any
    ) -> LiveReply | Reply:
        """Return a success once its head has come; of a refusal the whole answer. Otherwise as :meth:`ask`.

        ``accept`` is the content type of what is read in pieces.
        """
        more |= {"headers": {"Accept": accept}, "stream": True}
        return through_sdk(lambda: live_of(self._send(method, path, timeout, **more)))

    def _send(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        content: bytes = b"",
        stream: bool = False,
        **options: Any,
    ) -> httpx2.Response:
        more: dict[str, Any] = {"content": content} if method == "post" else {}
        if stream:
            more |= {"stream": True, "stream_cls": anthropic.Stream[Any]}
        call = getattr(self.client, method)
        found = call(path, cast_to=httpx2.Response, options={"timeout": timeout, **options}, **more)
        assert isinstance(found, httpx2.Response)
        return found


def _not_a_body(record: logging.LogRecord) -> bool:
    return not (isinstance(record.msg, str) and record.msg.startswith("Request options"))


def _keep_prompts_out_of_logs() -> None:
    """At level DEBUG the SDK logs whole requests; only who sets ``ANTHROPIC_LOG`` has asked for that."""
    logger = logging.getLogger("anthropic._base_client")
    if not os.environ.get("ANTHROPIC_LOG") and _not_a_body not in logger.filters:
        logger.addFilter(_not_a_body)
