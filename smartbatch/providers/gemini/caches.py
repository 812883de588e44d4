"""Gemini's explicit caches, and requests that begin with one.

Sources: Google's guide and reference for ``cachedContents`` (November 2026), and the requests that
``google-genai`` 3.6 sends. A request with a cache must not contain a system instruction, tools or a tool
configuration; those of the cache apply.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.media import Audio
from smartbatch.providers.cache_api import CacheApi, RemoteCache
from smartbatch.providers.conversation import INSTRUCTIONS
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import unusable, whole
from smartbatch.providers.gemini.bodies import generate_body, resource
from smartbatch.providers.gemini.files import is_own_error
from smartbatch.providers.http.batch_calls import CheckedCalls, check_id
from smartbatch.shared_prefixes import SharedPrefix
from smartbatch.types import Message, Request

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

CACHED_FIELDS = ("systemInstruction", "tools", "toolConfig")
_ID = re.compile(r"cachedContents/[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_CACHES_PER_PAGE = 1000
_SPLIT_CALLS = ("tool_use", "tool_result")


def body_of(request: Request, model: str) -> dict[str, Any]:
    """Return the body of a call, without the prefix that its explicit cache contains."""
    mark = request.cache
    if mark is None or mark.cache_id is None:
        return generate_body(request, model)
    _, rest = _split(request, mark.prefixes[-1])
    body = generate_body(evolve(request, prompt=rest), model)
    for name in CACHED_FIELDS:
        body.pop(name, None)
    return {**body, "cachedContent": mark.cache_id}


class GeminiCaches(CacheApi):
    """Explicit caches of the Gemini API.

    Args:
        version: begins the paths, with a slash; empty for the SDK's own version.
    """

    def __init__(self, scope: str, errors: ErrorReader, sdk: Callable[[], GeminiSdk], version: str) -> None:
        self.scope = scope
        self._version = version
        self._sdk = sdk
        self._calls = CheckedCalls(errors, is_own_error)

    def takes(self, request: Request, prefix: SharedPrefix) -> bool:
        """Audio has prices of its own; calls of tools and their results must not be separated."""
        cached, rest = _split(request, prefix)
        if not rest or any(message.role in INSTRUCTIONS for message in rest):
            return False
        contents = (message.content for message in (*cached, *rest))
        parts = [part for content in contents if not isinstance(content, str) for part in content]
        return not any(
            isinstance(part, Audio) or (isinstance(part, Mapping) and part.get("type") in _SPLIT_CALLS)
            for part in parts
        )

    def create(
        self, name: str, request: Request, model: str, prefix: SharedPrefix, lifetime: float, timeout: float
    ) -> RemoteCache:
        cached, _ = _split(request, prefix)
        whole_body = generate_body(evolve(request, prompt=cached), model)
        body = {each: whole_body[each] for each in ("contents", *CACHED_FIELDS) if whole_body.get(each)}
        body |= {"model": resource(model), "displayName": name, "ttl": f"{lifetime:.0f}s"}
        reply = self._calls.checked(
            self._sdk().ask("post", f"{self._version}cachedContents", timeout, body=body)
        )
        try:
            return _read(self._calls.decoded(reply))
        except ProviderError as error:
            error.maybe_billed = True
            raise

    def find(self, name: str, timeout: float) -> RemoteCache | None:
        deadline, after = time.monotonic() + timeout, ""
        while (left := deadline - time.monotonic()) > 0:
            path = f"{self._version}cachedContents?pageSize={_CACHES_PER_PAGE}"
            path += f"&pageToken={quote(after, safe='')}" if after else ""
            reply = self._sdk().ask("get", path, left)
            data, caches = self._calls.listed(reply, "cachedContents", may_lack=True)
            for cache in caches:
                if isinstance(cache, dict) and cache.get("displayName") == name:
                    return _read(cache)
            token = data.get("nextPageToken")
            if not isinstance(token, str) or not token:
                return None
            after = token
        raise ProviderError("the list of caches was not read in time", kind=ErrorKind.TIMEOUT)

    def delete(self, cache_id: str, timeout: float) -> None:
        path = check_id(cache_id, _ID, "a cache's id")
        reply = self._sdk().ask("delete", f"{self._version}{path}", timeout)
        try:
            self._calls.checked(reply)
        except ProviderError as error:
            if error.maybe_billed or error.status not in (403, 404):  # a missing cache is a 403 as well
                raise


def _read(data: dict[str, Any]) -> RemoteCache:
    usage = data.get("usageMetadata")
    tokens = whole(usage.get("totalTokenCount")) if isinstance(usage, dict) else None
    if not tokens:
        raise unusable("the service did not report the tokens of a cache", status=200)
    return RemoteCache(check_id(data.get("name"), _ID, "a cache's id"), tokens)


def _split(request: Request, prefix: SharedPrefix) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Split the messages of a request into those up to the end of ``prefix`` and the rest."""
    prompt = request.prompt
    messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    first, at = messages[: max(0, prefix.message)], prefix.message
    rest = messages[at + 1 :]
    if at >= 0:
        cached, ending = _cut(messages[at], prefix)
        first = (*first, cached)
        rest = rest if ending is None else (ending, *rest)
    return first, rest


def _cut(message: Message, prefix: SharedPrefix) -> tuple[Message, Message | None]:
    content = message.content
    if isinstance(content, str):
        end = prefix.chars
        left = "" if end is None else content[end:]
        return evolve(message, content=content[:end]), evolve(message, content=left) if left else None
    before, after = content[: prefix.part + 1], content[prefix.part + 1 :]
    last, end = before[-1], prefix.chars
    text = last.get("text") if isinstance(last, Mapping) else None
    if end is not None and isinstance(last, Mapping) and isinstance(text, str) and text[end:]:
        before = (*before[:-1], {**last, "text": text[:end]})
        after = ({**last, "text": text[end:]}, *after)
    return evolve(message, content=before), evolve(message, content=after) if after else None
