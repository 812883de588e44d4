"""OpenAI's prompt caches: the automatic one up to gpt-5.5, and breakpoints from gpt-5.6 on.

Source: OpenAI's prompt caching guide and the types of the ``openai`` SDK 3.57.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.prompt_caching import Block, CacheablePrompt, CacheRates, PromptCaching

_MINIMUM = 1024
_LIFETIME = 1800.0
_MAX_WRITES = 4
_LOOKBACK = 80
_DAY = 86_400.0
_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?")
_FIRST_WITH_BREAKPOINTS = (5, 6)
_OPTIONS, _BREAKPOINT = "prompt_cache_options", "prompt_cache_breakpoint"


def has_breakpoints(model: str) -> bool:
    version = _VERSION.match(model)
    return version is not None and (int(version[1]), int(version[2] or 0)) >= _FIRST_WITH_BREAKPOINTS


def check_caching(body: Mapping[str, Any], given: Any) -> None:
    """Raise ``ApiError`` if a request has options or breakpoints that its model does not accept.

    Args:
        given: the messages or items.
    """
    model = str(body.get("model"))
    breakpoints = [part[_BREAKPOINT] for part in _content_parts(given) if part.get(_BREAKPOINT) is not None]
    options = body.get(_OPTIONS)
    if (breakpoints or options is not None) and not has_breakpoints(model):
        name = _BREAKPOINT if options is None else _OPTIONS
        message = f"Unsupported parameter: '{name}' is not supported with this model."
        raise api_error(400, message, code="unsupported_parameter", param=name)
    if any(not isinstance(each, Mapping) or each.get("mode") != "explicit" for each in breakpoints):
        raise api_error(400, f"Invalid value for '{_BREAKPOINT}.mode': use 'explicit'.", param=_BREAKPOINT)
    if options is not None and (
        not isinstance(options, Mapping)
        or options.get("mode", "implicit") not in ("implicit", "explicit")
        or options.get("ttl", "30m") != "30m"
    ):
        raise api_error(400, f"Invalid value for '{_OPTIONS}'.", code="invalid_value", param=_OPTIONS)
    if body.get("prompt_cache_retention") not in (None, "in_memory", "24h"):
        field = "prompt_cache_retention"
        raise api_error(400, f"Invalid value for '{field}': use 'in_memory' or '24h'.", param=field)


def cacheable(body: Mapping[str, Any], given: Any, settings: PromptCaching) -> CacheablePrompt:
    """Return the prompt of a chat completion or a response.

    Args:
        given: its messages or items.
    """
    model = str(body["model"])
    root = json.dumps(
        [model, *(body.get(name) for name in ("response_format", "text", "reasoning", "reasoning_effort"))]
    )
    minimum = _MINIMUM if settings.minimum_tokens is None else settings.minimum_tokens
    blocks = tuple(_blocks(body, given))
    if has_breakpoints(model):
        return CacheablePrompt(
            root, _written(body, blocks), minimum, CacheRates(write=1.25),
            lookback=_LOOKBACK, hit_rate=settings.hit_rate,
        )  # fmt: skip
    half = model.startswith("gpt-4o")
    return CacheablePrompt(
        root, blocks, minimum, CacheRates(read=0.5 if half else 0.1, batch_read=1.0 if half else None),
        lifetime=_DAY if body.get("prompt_cache_retention") == "24h" else settings.retention,
        hit_rate=settings.hit_rate,
        key=str(body.get("prompt_cache_key") or ""),
        key_requests=settings.key_requests,
    )  # fmt: skip


def _written(body: Mapping[str, Any], blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks with the breakpoints that the request writes: the latest, and the implicit one."""
    implicit = (body.get(_OPTIONS) or {}).get("mode") != "explicit"
    explicit = [place for place, block in enumerate(blocks) if block.lifetime is not None]
    written = set(explicit[-(_MAX_WRITES - implicit) :]) | ({len(blocks) - 1} if implicit else set())
    return tuple(
        evolve(block, lifetime=_LIFETIME if place in written else None) for place, block in enumerate(blocks)
    )


def _blocks(body: Mapping[str, Any], given: Any) -> Iterator[Block]:
    if body.get("tools"):
        yield _block("tools", json.dumps(body["tools"]))
    if isinstance(instructions := body.get("instructions"), str):
        yield _block("developer", instructions)
    if isinstance(given, str):
        yield _block("user", given)
    for item in given if isinstance(given, list) else ():
        role, content = str(item.get("role")), item.get("content")
        if isinstance(content, str):
            yield _block(role, content)
        for part in content if isinstance(content, list) else ():
            lifetime = _LIFETIME if part.get(_BREAKPOINT) is not None else None
            rest = {name: value for name, value in part.items() if name not in (_BREAKPOINT, "text")}
            text = part.get("text") if isinstance(part.get("text"), str) else ""
            kind = role if rest.get("type") in ("text", "input_text") else f"{role} {json.dumps(rest)}"
            yield _block(kind, text, lifetime)
        if calls := item.get("tool_calls") or item.get("arguments") or item.get("output"):
            yield _block(role, json.dumps(calls))


def _block(kind: str, text: str, lifetime: float | None = None) -> Block:
    return Block(kind, text.encode(), lifetime)


def _content_parts(given: Any) -> Iterator[Mapping[str, Any]]:
    for item in given if isinstance(given, list) else ():
        content = item.get("content") if isinstance(item, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping):
                yield part
