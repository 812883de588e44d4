"""Estimates the tokens of a request from its characters.

No provider's tokenizer works offline without a vocabulary file. Limits and forecasts need a figure
that is right on average: :func:`estimate_request`, with the model's ratio that :class:`.Calibration`
learns. Budgets need a figure that is never too low: :func:`most_of_request`, raised if more was
billed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from smartbatch.chats import Part
from smartbatch.media import Audio, Media
from smartbatch.media_in_prompts import file_of_part, files_of, text_of_part
from smartbatch.media_tokens import (
    UNKNOWN_MOST_TOKENS,
    UNKNOWN_TOKENS,
    MediaRule,
    media_rule,
)
from smartbatch.types import Message, Request, Usage

# Characters per token, by the length of a character in UTF-8, which indicates the script:
ASCII_CHARS = 4.0  # English prose and code: the rule of thumb in OpenAI's tokenizer guide
TWO_BYTE_CHARS = 2.5  # accented Latin, Greek, Cyrillic, Hebrew, Arabic
THREE_BYTE_CHARS = 1.0  # Chinese, Japanese, Korean, Thai, Indic scripts; typographic punctuation
FOUR_BYTE_CHARS = 0.5  # emoji and rare ideographs: two tokens each

# role and separators of a message (OpenAI's cookbook, "How to count tokens": 3 per message and 1 per role)
MESSAGE_TOKENS = 4
TOOL_TOKENS = 8  # around a tool's name, description and parameters
# maximum tokens of one answer, over all models in common use (OpenAI, Anthropic and Google model pages)
MAX_ANSWER_TOKENS = 128_000


_SMALLEST_TOKEN = re.compile(rb"[A-Za-z][a-z]?|[^ A-Za-z]| (?= )")  # matches at most one token of UTF-8 text


def longest_output(max_tokens: int | None, limit: int | None = None) -> int:
    """Return the maximum output tokens that can be billed for a call.

    ``limit`` is the provider's limit for requests without ``max_tokens``.
    """
    return next(most for most in (max_tokens, limit, MAX_ANSWER_TOKENS) if most is not None)


def estimate(text: str) -> int:
    """Estimate the tokens of a text: 0 for an empty text, otherwise at least 1."""
    if text.isascii():
        return (len(text) + 3) // 4
    return math.ceil(_weigh(text))


def _weigh(text: str) -> float:
    """The lengths of three encodings give the number of characters in each class, far faster than a loop."""
    chars = len(text)
    ascii_chars = len(text.encode("ascii", "ignore"))
    four = len(text.encode("utf-16-le", "surrogatepass")) // 2 - chars
    size = len(text.encode("utf-8", "surrogatepass"))
    # chars = one + two + three + four and size = one + 2 two + 3 three + 4 four
    three = size - ascii_chars - 4 * four - 2 * (chars - ascii_chars - four)
    two = chars - ascii_chars - three - four
    return (
        ascii_chars / ASCII_CHARS + two / TWO_BYTE_CHARS + three / THREE_BYTE_CHARS + four / FOUR_BYTE_CHARS
    )


def most_tokens(text: str) -> int:
    """Return the maximum number of tokens of ``text`` in any tokenizer: about twice the estimate for English.

    A token has at least two letters of a word, and includes the space before the word. Every other byte,
    such as a digit, a punctuation mark, another space or part of another script, may be a token of its
    own.
    """
    return len(_SMALLEST_TOKEN.findall(text.encode("utf-8", "surrogatepass")))


@frozen
class _CountingRule:
    """How the parts of a request are counted. Numbers are tokens, except for ``forms``."""

    text: Callable[[str], int]  # returns the tokens of a text
    frame: int  # around the answer
    message: int  # around a message
    tool: int  # around a tool
    media: int  # a part that is neither text nor a file whose content is known
    file: Callable[[MediaRule, Media], int]  # returns the tokens of a file
    tools: int  # a provider's own instructions for tools
    schema: int  # instructions around a schema
    forms: int  # factor by which a schema may grow in a provider's dialect

    def request(self, request: Request, rule: MediaRule) -> int:
        params, prompt = request.params, request.prompt
        tokens = self.frame
        if isinstance(prompt, str):
            tokens += self.message + self.text(prompt)
        else:
            tokens += sum(self._message(message, rule) for message in prompt)
        if params.system is not None:
            tokens += self.message + self.text(params.system)
        tokens += self.tools if params.tools else 0
        for tool in params.tools or ():
            tokens += self.tool + self.text(f"{tool.name} {tool.description or ''}")
            tokens += self.forms * self._json(tool.parameters)
        for structure in (params.schema, params.response_format):
            if structure:
                tokens += self.schema + self.forms * self._json(structure)
        return tokens + self._json(params.extra) if params.extra else tokens

    def _json(self, value: Any) -> int:
        return self.text(json.dumps(value, ensure_ascii=False, default=str))

    def _message(self, message: Message, rule: MediaRule) -> int:
        content = message.content
        if isinstance(content, str):
            tokens = self.text(content)
        else:
            tokens = sum(self._part(part, rule) for part in content)
        for call in message.tool_calls:
            tokens += self.message + self.text(call.name) + self._json(call.arguments or call.arguments_text)
        return self.message + tokens

    def _part(self, part: Part | str, rule: MediaRule) -> int:
        if not isinstance(part, Mapping):
            return self.text(part) if isinstance(part, str) else self.file(rule, part)
        if (text := text_of_part(part)) is not None:
            return self.text(text) if isinstance(text, str) else self._json(text)
        if part.get("type") != "tool_result":
            file = file_of_part(part)
            return self.media if file is None else self.file(rule, file)
        content = part.get("content") or ""
        if isinstance(content, str):
            return self.text(content)
        return sum(self._part(inner, rule) for inner in content)


_EXPECTED_COUNTS = _CountingRule(
    estimate,
    frame=3,  # from the same source as MESSAGE_TOKENS
    message=MESSAGE_TOKENS,
    tool=TOOL_TOKENS,
    media=UNKNOWN_TOKENS,
    file=MediaRule.expected,
    tools=0,
    schema=0,
    forms=1,
)
_MAXIMUM_COUNTS = _CountingRule(
    most_tokens,
    frame=16,
    message=2 * MESSAGE_TOKENS,
    tool=8 * TOOL_TOKENS,
    media=UNKNOWN_MOST_TOKENS,
    file=MediaRule.most,
    tools=1000,
    schema=200,
    forms=2,
)


_CONTENT_COUNTS = evolve(_EXPECTED_COUNTS, frame=0, message=0, tool=0, schema=0, forms=0)


def estimate_request(request: Request, model: str = "") -> int:
    """Estimate the input tokens of a request: prompt, system text, schema and message frames.

    ``model`` decides how files are counted.
    """
    return _EXPECTED_COUNTS.request(request, media_rule(model))


def estimate_contents(request: Request, model: str = "") -> int:
    """Estimate only texts and files. Some providers bill neither message frames nor schemas."""
    return _CONTENT_COUNTS.request(request, media_rule(model))


def files_in(request: Request, model: str = "") -> Iterator[tuple[int, int]]:
    """Yield the bytes, 0 if unknown, and the estimated tokens of each file in a prompt."""
    rule = media_rule(model)
    for file in map(file_of_part, files_of(request)):
        yield (0, UNKNOWN_TOKENS) if file is None else (file.size or 0, rule.expected(file))


def estimate_audio(request: Request, model: str = "") -> int:
    """Estimate the input tokens that are audio, which some models price differently."""
    return _audio_tokens(request, media_rule(model).expected)


def most_audio(request: Request, model: str = "") -> int:
    return _audio_tokens(request, media_rule(model).most)


def _audio_tokens(request: Request, count: Callable[[Media], int]) -> int:
    files = map(file_of_part, files_of(request))
    return sum(count(file) for file in files if isinstance(file, Audio))


def estimated_usage(request: Request, model: str, output: int) -> Usage:
    """Return the usage of an answered request whose provider reported none.

    ``output`` is the number of output tokens.
    """
    given, audio = estimate_request(request, model), estimate_audio(request, model)
    return Usage(given, output, estimated=True, audio_tokens=audio)


def asks_for_audio(request: Request) -> bool:
    """Whether the answer is audio, requested with the field ``modalities`` of OpenAI's chat completions."""
    wanted = (request.params.extra or {}).get("modalities")
    return isinstance(wanted, Sequence) and "audio" in wanted


def most_of_request(request: Request, model: str = "") -> int:
    """Return the maximum input tokens, including instructions that providers may add for messages, schemas
    and tools.
    """
    return _MAXIMUM_COUNTS.request(request, media_rule(model))


@frozen
class RequestTokens:
    """Estimated input tokens of a request.

    Attributes:
        contents: only texts and files, without message frames and schemas; equal to ``total`` once billed
            tokens have been observed.
        audio: the part of ``total`` that is audio.
        asks_for_audio: whether the answer is audio.
    """

    total: int
    contents: int
    audio: int = 0
    asks_for_audio: bool = False

    @property
    def audio_share(self) -> float:
        return self.audio / self.total if self.total else 0.0
