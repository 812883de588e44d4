"""What the emulator answers: a pure function of the request, so that every answer can be checked."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from smartbatch.emulator.schema_instances import instance

__all__ = ["Composed", "answer_for", "compose", "count_tokens", "cut", "vector_for"]


def answer_for(prompt_text: str, model: str, seed: int = 0) -> str:
    """Return the default answer to a prompt: a sentence with 12 hexadecimal digits of a digest.

    Args:
        prompt_text: the text of the last user message.
        model: the model's name as it was sent.
        seed: the emulator's seed.
    """
    digest = hashlib.sha256(f"{seed}\0{model}\0{prompt_text}".encode()).hexdigest()
    return f"answer {digest[:12]}"


def count_tokens(text: str) -> int:
    """Return the tokens of a text as the emulator counts them: a quarter of its UTF-8 bytes, at least 1."""
    return max(1, len(text.encode()) // 4)


def vector_for(text: str, model: str, dimensions: int) -> array[float]:
    """Return the vector of a text: an ``array('f')`` of unit length, the same on every machine.

    Its numbers are exact in single precision, so they survive JSON as well as base64.

    Args:
        text: the text.
        model: the model's name.
        dimensions: how many numbers.
    """
    digest = hashlib.shake_256(f"{model}\0{text}".encode()).digest(2 * dimensions)
    numbers = array("h", digest)
    if sys.byteorder == "big":
        numbers.byteswap()
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", [number / length for number in numbers])


@frozen
class Composed:
    """An answer before it is put in an API's shape.

    Attributes:
        text: the answer's text.
        finish_reason: ``stop`` or ``length``.
        tokens: of the text.
    """

    text: str
    finish_reason: str
    tokens: int


def compose(
    prompt: str,
    model: str,
    *,
    seed: int,
    answers: Mapping[str, str],
    max_tokens: int | None,
    stop: tuple[str, ...],
    form: Mapping[str, Any] | None,
) -> Composed:
    """Return the answer to a prompt.

    Args:
        prompt: the text of the last user message.
        model: the model's name.
        seed: the emulator's seed.
        answers: scripted answers; found by the exact prompt, they win.
        max_tokens: the text is cut to so many tokens.
        stop: the text ends before the first of these.
        form: a JSON schema the answer follows; an empty one stands for any object.
    """
    text = answers.get(prompt)
    if text is None:
        text = _packed(prompt, model, seed, answers)
    if text is None:
        text = answer_for(prompt, model, seed)
        if form is not None:
            text = json.dumps(instance(form, text) if form else {"answer": text})
    for mark in stop:
        if mark:
            text = text.partition(mark)[0]
    tokens = count_tokens(text)
    if max_tokens is not None and tokens > max_tokens:
        return Composed(cut(text, max_tokens), "length", max_tokens)
    return Composed(text, "stop", tokens)


_PACK = re.compile(r'\[\{"id": "[a-z2-7]{8}", "check": "[a-z2-7]{6}", "prompt": "')
"""How the library begins a prompt that holds several."""


def _packed(prompt: str, model: str, seed: int, answers: Mapping[str, str]) -> str | None:
    """Answer several prompts packed into one as a model would that follows its instructions, or ``None``."""
    if _PACK.match(prompt) is None:
        return None
    try:
        items = json.loads(prompt)
        said = [
            {
                "id": item["id"],
                "answer": f"{item['check']} "
                f"{answers.get(item['prompt']) or answer_for(item['prompt'], model, seed)} {item['check']}",
            }
            for item in items
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return json.dumps({"answers": said}, ensure_ascii=False)


def cut(text: str, tokens: int) -> str:
    """Return the first ``tokens`` tokens of a text, whole characters only."""
    return text.encode()[: tokens * 4].decode(errors="ignore")
