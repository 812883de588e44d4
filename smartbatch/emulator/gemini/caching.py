"""Gemini's prompt caches: the implicit one, and explicit ones under ``/v1beta/cachedContents``.

Source: Google's guide to context caching and the types of ``google-genai`` 3.6, November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.gemini.batches import API_NAME, page_of
from smartbatch.emulator.gemini.parsing import api_error, decode_body, found, texts_of, unknown_url
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.prompt_cache import ExplicitCache
from smartbatch.emulator.prompt_caching import Block, CacheablePrompt, CacheRates, PromptCaching
from smartbatch.emulator.provider_api import BatchContext, ServerReply, json_reply

PATH = re.compile(r"/v1beta/cachedContents(?:/([^/:]+))?")
_LIFETIME = "3600s"
_PAGE, _MAX_PAGE = 50, 1000
_MINIMUM, _MINIMUM_PRO = 1024, 4096
# in a batch, these models' cached tokens cost as much as in real time
_FULL_PRICE_IN_BATCHES = "gemini-2.5"
# price of a token of an explicit cache per hour, relative to an input token
# (https://ai.google.dev/gemini-api/docs/pricing)
_STORAGE = (("gemini-2.5-flash", 1.0 / 0.3), ("gemini-2.5-pro", 4.5 / 1.25), ("", 0.5 / 0.75))


def minimum_of(model: str, settings: PromptCaching) -> int:
    if settings.minimum_tokens is not None:
        return settings.minimum_tokens
    return _MINIMUM_PRO if "pro" in model else _MINIMUM


def rates_of(model: str) -> CacheRates:
    storage = next(price for name, price in _STORAGE if model.startswith(name))
    return CacheRates(batch_read=0.2 if model.startswith(_FULL_PRICE_IN_BATCHES) else None, storage=storage)


def check_cached_content(fields: Mapping[str, Any]) -> None:
    """Raise ``ApiError`` if a request has both an explicit cache and content that belongs to it."""
    if found(fields, "cachedContent") is None:
        return
    if any(found(fields, name) is not None for name in ("systemInstruction", "tools", "toolConfig")):
        message = (
            "CachedContent can not be used with GenerateContent request setting system_instruction, tools or "
            "tool_config."
        )
        raise api_error(400, message)


def cacheable(model: str, fields: Mapping[str, Any], settings: PromptCaching) -> CacheablePrompt:
    """Return the prompt of a ``generateContent`` call."""
    config = found(fields, "generationConfig") or {}
    schema = found(config, "responseJsonSchema") or found(config, "responseSchema")
    name = found(fields, "cachedContent")
    return CacheablePrompt(
        json.dumps([model, schema, found(config, "thinkingConfig")]),
        tuple(_blocks(fields)),
        minimum_of(model, settings),
        rates_of(model),
        lifetime=settings.implicit_lifetime,
        hit_rate=settings.implicit_hit_rate,
        explicit=name if name is None else str(name),
        no_such_cache=_missing(),
    )


def _blocks(fields: Mapping[str, Any]) -> Iterator[Block]:
    if tools := found(fields, "tools"):
        yield _block("tools", json.dumps(tools))
    contents = found(fields, "contents") or []
    instruction = found(fields, "systemInstruction")
    for content in (*([instruction] if instruction is not None else ()), *contents):
        role = "system" if content is instruction else str(content.get("role", "user"))
        parts = content["parts"]
        for part in [parts] if isinstance(parts, Mapping) else parts:
            text = part.get("text")
            if isinstance(text, str):
                yield _block(role, text)
            elif _counts(part):
                yield _block(role, json.dumps(part))
            else:
                yield _block(f"{role} {json.dumps(part)}", "")


def _counts(part: Mapping[str, Any]) -> bool:
    return any(found(part, name) is not None for name in ("functionCall", "functionResponse"))


def _block(kind: str, text: str) -> Block:
    return Block(kind, text.encode())


def answer_caches(head: Head, body: bytes, context: BatchContext, *, key: str) -> ServerReply:
    """Reply to a request about explicit caches, or raise :class:`ApiError`."""
    path = PATH.fullmatch(head.path)
    if path is None or context.settings.prompt_caching is None:
        raise unknown_url(head)
    account, name = (API_NAME, key), path[1]
    if name is None and head.method == "POST":
        return _create(decode_body(body), context, account, context.settings.prompt_caching)
    live = context.backend.caches.explicit(account, context.now)
    if name is None and head.method == "GET":
        return _list(head, live, context)
    cache = next((each for each in live if each.id == f"cachedContents/{name}"), None)
    if cache is None:
        raise _missing()
    match head.method:
        case "GET":
            return json_reply(_shape(cache, context))
        case "PATCH":
            at = context.now + _seconds(found(decode_body(body), "ttl"))
            return _expire(cache, at, context, lambda each: _shape(each, context))
        case "DELETE":
            return _expire(cache, context.now, context, lambda _: {})
    raise unknown_url(head)


def _create(
    fields: Mapping[str, Any], context: BatchContext, account: tuple[str, str], settings: PromptCaching
) -> ServerReply:
    model = found(fields, "model")
    if not isinstance(model, str) or not model.startswith("models/"):
        raise api_error(400, "* CreateCachedContentRequest.cached_content.model: must be models/…")
    for content in found(fields, "contents") or ():
        texts_of(content, "contents")
    model = model.removeprefix("models/")
    tokens = sum(block.tokens for block in _blocks(fields))
    if tokens < (least := minimum_of(model, settings)):
        text = "Cached content is too small."
        raise api_error(400, f"{text} total_token_count={tokens}, min_total_token_count={least}")
    seconds = _seconds(found(fields, "ttl") or _LIFETIME)
    cache = ExplicitCache(
        f"cachedContents/{context.backend.new_id()}", account, model, tokens,
        context.now, context.now + seconds, rates_of(model).storage, found(fields, "displayName"),
    )  # fmt: skip
    context.backend.caches.create(cache)
    return evolve(json_reply(_shape(cache, context)), billed=tokens, cache_saved=-tokens - cache.stored)


def _expire(
    cache: ExplicitCache, at: float, context: BatchContext, shape: Callable[[ExplicitCache], dict[str, Any]]
) -> ServerReply:
    """Change the end of a cache. Its storage was billed in full when it was created."""
    changed = context.backend.caches.expire(cache, at)
    return evolve(json_reply(shape(changed)), cache_saved=cache.stored - changed.stored)


def _seconds(ttl: Any) -> float:
    try:
        seconds = float(str(ttl).removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise api_error(400, "Invalid value at 'cached_content.ttl' (type.googleapis.com/Duration)")
    return seconds


def _list(head: Head, live: list[ExplicitCache], context: BatchContext) -> ServerReply:
    page, token = page_of(head, live, _PAGE, _MAX_PAGE)
    shapes = [_shape(each, context) for each in page]
    return json_reply(
        ({"cachedContents": shapes} if shapes else {}) | ({"nextPageToken": token} if token else {})
    )


def _shape(cache: ExplicitCache, context: BatchContext) -> dict[str, Any]:
    display = {} if cache.display_name is None else {"displayName": cache.display_name}
    return display | {
        "name": cache.id,
        "model": f"models/{cache.model}",
        "createTime": context.rfc3339(cache.created_at),
        "updateTime": context.rfc3339(cache.created_at),
        "expireTime": context.rfc3339(cache.expires_at),
        "usageMetadata": {"totalTokenCount": cache.tokens},
    }


def _missing() -> Exception:
    return api_error(403, "CachedContent not found (or permission denied)")
