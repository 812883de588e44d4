"""Which prefixes of prompts providers cache, as data, and marks in the content of messages.

Sources (November 2026): OpenAI's guide to prompt caching and its upgrade guide to gpt-5.6, Anthropic's guide
to prompt caching, and Google's guide to context caching. The factors are those of the price table
genai-prices; prices of storage are from https://ai.google.dev/gemini-api/docs/pricing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import evolve

from smartbatch.providers.media_parts import PartForm, translated
from smartbatch.shared_prefixes import CachingRules, SharedPrefix
from smartbatch.types import Message, Request

_ANTHROPIC_MINIMUMS = (
    # the first pattern that a model's name contains applies
    (re.compile(r"fable|mythos"), 512),
    (re.compile(r"opus-4-[01]\b|opus-4-2025|opus-4-8|sonnet-4|sonnet-5(?!-5)"), 1024),
    (re.compile(r"opus-4-7"), 2048),
    (re.compile(r"opus-4-[56]|haiku-4"), 4096),
    (re.compile(r"opus-5|sonnet-5-5|haiku-5"), 512),
    (re.compile(r"haiku"), 2048),
)
_ANTHROPIC_MINIMUM = 1024
_OPENAI_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?")
_OPENAI_MINIMUM = 1024
_FIRST_WITH_BREAKPOINTS = (5, 6)
# USD per million tokens and hour, and per million input tokens; the first entry that begins a model's name
# applies
_GEMINI_STORAGE = (("gemini-2.5-flash", 1.0, 0.3), ("gemini-2.5-pro", 4.5, 1.25), ("", 0.5, 0.75))

_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})


@lru_cache
def anthropic_rules(model: str) -> CachingRules:
    """Entries last for five minutes, or for an hour at a higher price, from the start of the latest request
    that used them.
    """
    found = (tokens for name, tokens in _ANTHROPIC_MINIMUMS if name.search(model))
    return CachingRules(
        by="marks",
        min_tokens=next(found, _ANTHROPIC_MINIMUM),
        read=0.1,
        write=1.25,
        long_write=2.0,
        counts_reads=False,
    )


@lru_cache
def openai_rules(model: str) -> CachingRules:
    """From gpt-5.6 on, writes have a price, and each whole prompt is written unless a request turns this
    off. Earlier models cache without marks; a server keeps the prompts that it received in the last
    minutes, and the routing key decides which server receives a prompt.
    """
    version = _OPENAI_VERSION.search(model)
    number = (0, 0) if version is None else (int(version[1]), int(version[2] or 0))
    if number >= _FIRST_WITH_BREAKPOINTS:
        return CachingRules(
            by="marks",
            min_tokens=_OPENAI_MINIMUM,
            read=0.1,
            write=1.25,
            seconds=1800.0,
            automatic=True,
        )
    read = 0.5 if "4o" in model or re.match(r"o\d", model) else 0.1
    return CachingRules(by="key", min_tokens=_OPENAI_MINIMUM, read=read, seconds=300.0)


@lru_cache
def gemini_rules(model: str) -> CachingRules:
    """Implicit caching is not guaranteed, and only the order and the times of requests influence it. Explicit
    caches are, but they have a price of storage.
    """
    stored, plain = next(prices for name, *prices in _GEMINI_STORAGE if model.startswith(name))
    return CachingRules(
        by="order",
        min_tokens=4096 if "pro" in model else 1024,
        read=0.1,
        requests_per_key=math.inf,
        storage=stored / plain,
    )


def with_marks(
    request: Request,
    form: PartForm,
    marks: Sequence[Mapping[str, Any]],
    text_types: Mapping[str, str] | None = None,
) -> Request:
    """Return ``request`` with the fields in ``marks`` in the content parts that end its shared prefixes.

    Text of which only a part is shared is split. The instructions become the first message.

    Args:
        form: the form of the API's parts.
        text_types: the types of its text parts by the role of the message; ``text`` for all others.
    """
    prefixes = () if request.cache is None else request.cache.prefixes
    if not prefixes:
        return request
    params, prompt, types = request.params, request.prompt, text_types or {}
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    messages = [each for each in translated(turns, form) if isinstance(each, Message)]
    for prefix, mark in zip(reversed(prefixes), reversed(marks), strict=True):  # a cut moves later parts
        if 0 <= prefix.message < len(messages):
            message = messages[prefix.message]
            text_type = types.get(message.role, "text")
            content = _marked(message.content, prefix, mark, text_type)
            messages[prefix.message] = evolve(message, content=content)
    if params.system is not None and prefixes[0].message < 0:
        system = {"type": types.get("system", "text"), "text": params.system, **marks[0]}
        messages.insert(0, Message("system", (system,)))
        params = evolve(params, system=None)
    return evolve(request, prompt=tuple(messages), params=params)


def _marked(
    content: str | tuple[Any, ...], prefix: SharedPrefix, mark: Mapping[str, Any], text_type: str
) -> tuple[Any, ...]:
    parts = [{"type": text_type, "text": content}] if isinstance(content, str) else list(content)
    if prefix.part >= len(parts) or parts[prefix.part].get("type") in _UNMARKABLE:
        return tuple(parts)
    part = parts[prefix.part]
    text = part.get("text")
    if part.get("type") == "text":
        part = {**part, "type": text_type}
    if prefix.chars is None or not isinstance(text, str) or not text[prefix.chars :].strip():
        parts[prefix.part] = {**part, **mark}
    else:
        # the rest keeps the mark of a longer prefix that ends in the same text
        rest = {**part, "text": text[prefix.chars :]}
        parts[prefix.part : prefix.part + 1] = [{**part, "text": text[: prefix.chars], **mark}, rest]
    return tuple(parts)
