"""Parsed requests, model outputs, and the parsing steps shared by the three APIs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from attrs import evolve, field, frozen

from smartbatch.emulator.composed_answers import (
    Completion,
    OfferedTools,
    compose,
    count_tokens,
    picture_for,
    with_calls,
)
from smartbatch.emulator.prompt_caching import NO_CACHE, CacheablePrompt, CacheUse, PromptCaching
from smartbatch.emulator.prompt_files import PromptFile
from smartbatch.emulator.settings import EmulatorSettings

PICTURE_WORD: Final = "PNG"
"""A prompt with this word is answered with a PNG that depends on it, if the request allows images."""
PICTURE_TOKENS: Final = 258
HASH_WORD: Final = "SHA-256"
"""A prompt with this word and files is answered with the SHA-256 of each file, one per line."""


class ApiError(Exception):
    """An error response of an emulated API.

    Args:
        status: HTTP status.
        message: also the text of the exception.
        body: the response body in the JSON format of the API.
    """

    def __init__(self, status: int, message: str, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class MalformedBody(Exception):
    """A request body that is not a JSON object; the message gives the reason."""


class InvalidSchema(Exception):
    """A JSON schema for which no instance can be built."""


@frozen
class ModelOutput:
    body: bytes | list[bytes]  # the body of a 200, or the events of a stream
    output_tokens: int  # generated tokens, which determine the latency
    billed: int  # billed tokens, input and output


class ModelCall(ABC):
    """A parsed call of a model, from a real-time request or a batch line."""

    model: str
    prompt: str  # text of the last user message, which identifies the request in the ledger
    charge: int  # tokens charged to the rate limits at admission
    tier: str = "default"
    cache: CacheUse = NO_CACHE  # what it reads and writes; set before it runs
    has_uploads: bool = False  # whether it refers to uploaded files

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt alone, charged to the enqueued-token limit."""
        return self.charge

    def cacheable(self, settings: PromptCaching) -> CacheablePrompt | None:  # noqa: ARG002
        """Return the prompt as the model's cache sees it; ``None`` for a model without a cache."""
        return None

    @abstractmethod
    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        """Return the output.

        Args:
            identity: 24 hexadecimal digits that identify the request.
            refuse: the model refuses, or a filter blocks the prompt, depending on the API.

        Raises:
            ApiError: an error found only when the output is created, such as an invalid schema.
        """


@frozen
class GenerationRequest:
    """A text generation request, without the differences between the APIs."""

    model: str
    prompt: str  # text of the last user message, or of the last message if there is none
    input_tokens: int  # tokens of all messages
    max_tokens: int | None  # ``None`` for no limit
    stop: tuple[str, ...]
    choices: int  # number of answers
    # JSON schema of the answer; empty for any JSON object, ``None`` for text
    schema: Mapping[str, Any] | None
    stream: bool
    include_usage: bool  # whether the stream ends with the usage
    tier: str = "default"
    tools: OfferedTools | None = None
    logprobs: int | None = None  # alternatives per token; ``None`` without log-probabilities
    reasoning: bool = False  # whether the answer shows reasoning
    hidden_tokens: int = 0  # reasoning tokens that the answer does not show
    files: tuple[PromptFile, ...] = ()  # all files in the messages
    file_tokens: Mapping[str, int] = field(factory=dict)  # those of the input that are files, by their kind
    draws: bool = False  # whether the answer may contain a picture
    cache: CacheUse = NO_CACHE

    def with_cache(self, cache: CacheUse) -> GenerationRequest:
        if cache is NO_CACHE:
            return self
        return evolve(self, cache=cache, input_tokens=self.input_tokens + cache.added)

    @property
    def identity(self) -> str:
        """Identifies the request in the ledger."""
        return "\n".join((self.prompt, *self.hashes))

    @property
    def hashes(self) -> list[str]:
        return [file.media.sha256 or "" for file in self.files]

    @property
    def has_uploads(self) -> bool:
        return any(file.is_uploaded for file in self.files)

    @property
    def charge(self) -> int:
        """Tokens charged by OpenAI's limits at admission: the larger of the output limit and the prompt."""
        return max(self.max_tokens or 0, self.input_tokens)


HIDDEN_TOKENS: Final = {
    "none": 0,
    "minimal": 8,
    "low": 32,
    "medium": 128,
    "high": 512,
    "xhigh": 1024,
    "max": 2048,
}
"""Tokens that the simulated model spends on reasoning, by effort."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. ``NaN`` and ``Infinity`` are rejected.

    Raises:
        MalformedBody: the body is not a JSON object.
    """
    try:
        value = _decoder.decode(body.decode())
    except (ValueError, RecursionError):
        raise MalformedBody("We could not parse the JSON body of your request.") from None
    if not isinstance(value, dict):
        raise MalformedBody("Invalid body: expected a JSON object.")
    return value


def measure_prompt(
    model: str, messages: Sequence[tuple[str, str]], system: Iterable[str] = ()
) -> tuple[str, int]:
    """Return the text of the last user message (or of the last message if there is none), and all input
    tokens.

    Args:
        messages: pairs of role and text, at least one.
        system: texts that are not messages but count as input.

    Raises:
        UnicodeEncodeError: a text or the model contains half of a surrogate pair.
    """
    model.encode()
    tokens = sum(count_tokens(text) for text in (*system, *(text for _, text in messages)) if text)
    texts = [text for role, text in messages if role == "user" and text]
    return (texts[-1] if texts else messages[-1][1]), tokens or 1


def asked_schema(enforced: Mapping[str, Any] | None, texts: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the schema enforced by the API, or else the one in the instructions."""
    if enforced:
        return enforced
    instructed = (schema for text in texts if (schema := instructed_schema(text)) is not None)
    return next(instructed, enforced)


def instructed_schema(text: str) -> dict[str, Any] | None:
    """Return the schema in the last line of instructions, if the line before it announces one."""
    instructions, _, written = text.rpartition("\n")
    if "JSON schema" not in instructions.rpartition("\n")[2]:
        return None
    try:
        schema = json.loads(written)
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def complete(settings: EmulatorSettings, request: GenerationRequest) -> Completion:
    """Return the answer to a generation request.

    Raises:
        InvalidSchema: no value follows the schema of the request.
    """
    answers = settings.answers
    if request.files and HASH_WORD in request.prompt:
        answers = {request.prompt: "\n".join(request.hashes), **answers}
    limit = request.max_tokens
    hidden = request.hidden_tokens if limit is None else min(request.hidden_tokens, limit)
    try:
        answer = compose(
            request.prompt,
            request.model,
            seed=settings.seed,
            answers=answers,
            max_tokens=None if limit is None else limit - hidden,
            stop=request.stop,
            schema=request.schema,
        )
        answer = with_calls(answer, request.tools, request.prompt)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if request.schema is None:
            raise
        raise InvalidSchema from error
    if request.draws and PICTURE_WORD in request.prompt:
        answer = evolve(answer, picture=picture_for(request.prompt), tokens=answer.tokens + PICTURE_TOKENS)
    if hidden:
        answer = evolve(answer, hidden_tokens=hidden, tokens=answer.tokens + hidden)
    if not request.reasoning:
        return answer
    reasoning = f"thinking about {count_tokens(request.prompt)} tokens"
    return evolve(answer, reasoning=reasoning, tokens=answer.tokens + count_tokens(reasoning))
