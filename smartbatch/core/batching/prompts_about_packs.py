"""Prompts that mention other prompts, and therefore must not be packed with them."""

from __future__ import annotations

import re
from functools import cache

_SUSPICIOUS_PATTERN = r"""
    ["'\\]\s*(?:answers?|check|id|prompt)\s*\\?["']\s*:                     # keys of the form above
    | \b(?:ignore|disregard|forget|override|skip)\b[^.\n]{0,40}
      \b(?:instructions?|rules?|prompts?|others?|requests?|items?|everything|above|previous|system)\b
    | \b(?:swap|exchange|switch|rename|renumber|reuse|duplicate)\b[^.\n]{0,40}
      \b(?:ids?|answers?|repl(?:y|ies)|check(?:\ ?words?)?|items?)\b
    | \bother\s+(?:\w+\s+)?
      (?:prompts?|answers?|requests?|items?|questions?|repl(?:y|ies)|entries|ids?|users?|people)\b
    | \b(?:every|all|each)\s+(?:of\s+the\s+)?(?:answers?|prompts?|requests?|repl(?:y|ies)|ids?)\b
    | \bcheck\s+words?\b
    """


def suspicious(prompt: str) -> bool:
    """Whether a prompt mentions other prompts, their answers or the form of a pack, so it is sent alone.

    Answers to prompts that this heuristic misses are still checked; a false alarm costs one call.
    """
    return _suspicious_words().search(prompt) is not None


@cache
def _suspicious_words() -> re.Pattern[str]:
    return re.compile(_SUSPICIOUS_PATTERN, re.IGNORECASE | re.VERBOSE)
