"""The emulator's answers: a pure function of the request, so that tests can check every answer."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from smartbatch.emulator.schema_instances import instance

_PACK = re.compile(r'\[\{"id": "[a-z2-7]{8}", "check": "[a-z2-7]{6}", "prompt": "')
"""How the library begins a prompt that holds several."""
_WORD = re.compile(r"\s*\S+|\s+")


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


def words_of(text: str) -> list[str]:
    """Return ``text`` in pieces of a word with the space before it; joined they are the text again."""
    return _WORD.findall(text)


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
class ModelToolCall:
    """A call of a tool in an answer."""

    name: str
    arguments: Any


@frozen
class Completion:
    """An answer without an API's JSON around it.

    Attributes:
        text: the answer's text.
        finish_reason: ``stop``, ``length`` or ``tool_calls``.
        tokens: tokens of the text, or of the calls, and of the reasoning.
        calls: the tools that are called; then there is no text.
        reasoning: what the model thought before, if that was asked for.
    """

    text: str
    finish_reason: str
    tokens: int
    calls: tuple[ModelToolCall, ...] = ()
    reasoning: str = ""

    @property
    def reasoning_tokens(self) -> int:
        return count_tokens(self.reasoning) if self.reasoning else 0


def compose(
    prompt: str,
    model: str,
    *,
    seed: int,
    answers: Mapping[str, str],
    max_tokens: int | None,
    stop: tuple[str, ...],
    schema: Mapping[str, Any] | None,
) -> Completion:
    """Return the answer to a prompt.

    Args:
        prompt: the text of the last user message.
        model: the model's name.
        seed: the emulator's seed.
        answers: scripted answers by the exact prompt; they take precedence.
        max_tokens: the text is truncated to this many tokens.
        stop: stop sequences: the text ends before the first of them.
        schema: a JSON schema the answer follows; an empty one stands for any object.
    """
    text = answers.get(prompt)
    if text is None:
        text = packed_answers(prompt, lambda each: answers.get(each) or answer_for(each, model, seed))
    if text is None:
        text = answer_for(prompt, model, seed)
        if schema is not None:
            text = json.dumps(instance(schema, text) if schema else {"answer": text})
    for sequence in stop:
        if sequence:
            text = text.partition(sequence)[0]
    tokens = count_tokens(text)
    if max_tokens is not None and tokens > max_tokens:
        return Completion(cut(text, max_tokens), "length", max_tokens)
    return Completion(text, "stop", tokens)


def cut(text: str, tokens: int) -> str:
    """Return the first ``tokens`` tokens of a text; an incomplete last character is dropped."""
    return text.encode()[: tokens * 4].decode(errors="ignore")


def packed_answers(prompt: str, answer_to: Callable[[str], str]) -> str | None:
    """Answer several prompts packed into one, each as it is answered alone; ``None`` for no pack."""
    if _PACK.match(prompt) is None:
        return None
    try:
        said = [
            {"id": item["id"], "answer": f"{item['check']} {answer_to(item['prompt'])} {item['check']}"}
            for item in json.loads(prompt)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return json.dumps({"answers": said}, ensure_ascii=False)
