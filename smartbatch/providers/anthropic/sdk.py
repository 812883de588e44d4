"""The ``anthropic`` SDK, held to one request a call, over a transport of ours.

Its lowest call is used, which signs requests and parses nothing. Importing this module imports the SDK.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anthropic
import httpx2

from smartbatch.providers.http.cutoff import Cutoff
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.sdk_bridge import ask_through, begin_through, http_client
from smartbatch.providers.http.spooled_body import SpooledBody
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

    def ask(
        self, method: str, path: str, timeout: float, *, spooled: SpooledBody | None = None, **more: Any
    ) -> Reply:
        """Make one request within ``timeout`` seconds in all; return the whole answer, whatever its status.

        ``spooled`` or ``content`` is the body of a post; ``more`` are its ``headers`` and ``params``.
        """
        return ask_through(self._request(method, path, timeout, **more), spooled)

    def begin(
        self,
        method: str,
        path: str,
        timeout: float,
        accept: str,
        *,
        cutoff: Cutoff | None = None,
        **more: Any,
    ) -> LiveReply:
        """As :meth:`ask`, once the head of the answer is there; ``accept`` is its body's content type."""
        send = self._request(method, path, timeout, headers={"Accept": accept}, **more)
        return begin_through(send, cutoff)

    def _request(
        self, method: str, path: str, timeout: float, *, content: bytes = b"", **options: Any
    ) -> Callable[[], object]:
        more: dict[str, Any] = {"content": content} if method == "post" else {}
        options["timeout"] = timeout
        return partial(getattr(self.client, method), path, cast_to=httpx2.Response, options=options, **more)


def _not_a_body(record: logging.LogRecord) -> bool:
    return not (isinstance(record.msg, str) and record.msg.startswith("Request options"))


def _keep_prompts_out_of_logs() -> None:
    """At level DEBUG the SDK logs whole requests; only who sets ``ANTHROPIC_LOG`` has asked for that."""
    logger = logging.getLogger("anthropic._base_client")
    if not os.environ.get("ANTHROPIC_LOG") and _not_a_body not in logger.filters:
        logger.addFilter(_not_a_body)
