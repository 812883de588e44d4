"""Anthropic's prompt cache: the marks of a request, and its prompt as blocks.

Source: Anthropic's prompt caching guide of November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.anthropic.parsing import api_error
from smartbatch.emulator.prompt_caching import Block, CacheablePrompt, CacheRates, PromptCaching

_MAX_MARKS = 4
_LOOKBACK = 20
_LIFETIMES = {"5m": 300.0, "1h": 3600.0}
_MARK = "cache_control"
# shortest cached prefix by the beginning of the model's name; other models have the last one
_MINIMUMS = (
    (("claude-opus-4-8",), 1024),
    (("claude-opus-4-7",), 2048),
    (("claude-opus-4-5", "claude-opus-4-6", "claude-haiku-4-5"), 4096),
    (("claude-opus-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-fable", "claude-mythos"), 512),
    (("",), 1024),
)


def check_marks(body: Mapping[str, Any]) -> None:
    """Raise ``ApiError`` if a mark of a request is invalid, or if there are too many."""
    lifetimes = [each for each in (*(part[2] for part in _parts(body)), _lifetime(body)) if each is not None]
    if len(lifetimes) > _MAX_MARKS:
        text = f"A maximum of {_MAX_MARKS} blocks with cache_control may be provided"
        raise api_error(400, f"{text}. Found {len(lifetimes)}.")
    if lifetimes != sorted(lifetimes, reverse=True):
        raise api_error(
            400, "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block."
        )


def cacheable(body: Mapping[str, Any], settings: PromptCaching) -> CacheablePrompt:
    """Return the prompt of a request without invalid marks."""
    model = str(body["model"])
    blocks = [Block(kind, text.encode(), lifetime) for kind, text, lifetime in _parts(body)]
    if (lifetime := _lifetime(body)) is not None:  # stands for a mark of the last block
        blocks[-1] = evolve(blocks[-1], lifetime=blocks[-1].lifetime or lifetime)
    minimum = next(tokens for names, tokens in _MINIMUMS if model.startswith(names))
    return CacheablePrompt(
        json.dumps([model, body.get("output_config"), body.get("thinking")]),
        tuple(blocks),
        minimum if settings.minimum_tokens is None else settings.minimum_tokens,
        CacheRates(read=0.05 if model.startswith("claude-opus-5-5") else 0.1, write=1.25, write_1h=2.0),
        lookback=_LOOKBACK,
        hit_rate=settings.hit_rate,
    )


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Yield the place, the text and the mark's lifetime of each block, in the order of the prompt."""
    for tool in body.get("tools") or ():
        yield "tool", json.dumps(_unmarked(tool)), _lifetime(tool)
    yield from _content("system", body.get("system"))
    for message in body["messages"]:
        yield from _content(message["role"], message["content"])


def _content(kind: str, content: Any) -> Iterator[tuple[str, str, float | None]]:
    if isinstance(content, str):
        yield kind, content, None
    for block in content if isinstance(content, list) else ():
        if block.get("type") == "text":
            yield kind, str(block.get("text")), _lifetime(block)
        elif block.get("type") in ("tool_use", "tool_result"):
            yield kind, json.dumps(_unmarked(block)), _lifetime(block)
        else:  # a file, which the emulator does not bill
            yield f"{kind} {json.dumps(_unmarked(block))}", "", _lifetime(block)


def _unmarked(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != _MARK}


def _lifetime(holder: Mapping[str, Any]) -> float | None:
    mark = holder.get(_MARK)
    if mark is None:
        return None
    if not isinstance(mark, Mapping) or mark.get("type") != "ephemeral":
        raise api_error(400, "cache_control.type: Input should be 'ephemeral'")
    if (lifetime := _LIFETIMES.get(mark.get("ttl", "5m"))) is None:
        raise api_error(400, "cache_control.ttl: Input should be '5m' or '1h'")
    return lifetime
