"""A parsed request, what running it returns, and the parsing steps that the three APIs share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from attrs import evolve, frozen

from smartbatch.emulator.composed_answers import Completion, OfferedTools, compose, count_tokens, with_calls
from smartbatch.emulator.settings import EmulatorSettings


class ApiError(Exception):
    """An error response of an emulated API.

    Args:
        status: HTTP status.
        message: for people; also the text of the exception.
        body: the response body in the API's own JSON shape.
    """

    def __init__(self, status: int, message: str, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class MalformedBody(Exception):
    """A request body that is not a JSON object; the message says why."""


class InvalidSchema(Exception):
    """A JSON schema for which no instance can be built."""


@frozen
class ModelOutput:
    """What a model call returns."""

    body: bytes | list[bytes]  # the body of a 200, or the events of a stream
    output_tokens: int  # tokens that were generated; they determine the latency
    billed: int  # tokens that are billed, input and output


class ModelCall(ABC):
    """A parsed call of a model, from a real-time request or from a line of a batch."""

    model: str  # the model's name
    prompt: str  # text of the last user message, which identifies the request in the ledger
    charge: int  # tokens that the rate limits charge at admission
    tier: str = "default"  # the service tier; ``flex`` for the cheaper, slower one

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt alone, which count for the limit of enqueued tokens."""
        return self.charge

    @abstractmethod
    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        """Return the output.

        Args:
            settings: seed and scripted answers.
            identity: 24 hexadecimal digits that identify the request.
            refuse: the model refuses, or a filter blocks the prompt, in the API's own way.

        Raises:
            ApiError: for an error that shows only when the output is made, such as an invalid schema.
        """


@frozen
class GenerationRequest:
    """A text generation request, without the differences between the APIs."""

    model: str  # the model's name
    prompt: str  # text of the last user message, or of the last message if there is none
    input_tokens: int  # tokens of all messages
    max_tokens: int | None  # the output cap; None if there is none
    stop: tuple[str, ...]  # stop sequences
    choices: int  # number of answers
    # JSON schema of the answer; empty for any JSON object, ``None`` for text
    schema: Mapping[str, Any] | None
    stream: bool  # true if the answer is streamed
    include_usage: bool  # true if the stream ends with the usage
    tier: str = "default"  # the service tier
    tools: OfferedTools | None = None  # the tools that are offered, if any
    logprobs: int | None = None  # number of alternatives of each token; ``None`` without log-probabilities
    reasoning: bool = False  # true if the answer shows reasoning

    @property
    def charge(self) -> int:
        """Tokens charged by OpenAI's limits at admission: the larger of the output cap and the prompt."""
        return max(self.max_tokens or 0, self.input_tokens)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; ``NaN`` and ``Infinity`` are rejected.

    Raises:
        MalformedBody: the body is not JSON, or another JSON value.
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
    """Return the text of the last user message (or the last message, without one), and all input tokens.

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
    """Return the schema of an answer: the one that the API enforces, or the one in the instructions."""
    if enforced:
        return enforced
    instructed = (schema for text in texts if (schema := instructed_schema(text)) is not None)
    return next(instructed, enforced)


def instructed_schema(text: str) -> dict[str, Any] | None:
    """Return the schema in the last line of instructions, if the line before announces one."""
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
        InvalidSchema: when no instance of the request's schema can be built.
    """
    try:
        answer = compose(
            request.prompt,
            request.model,
            seed=settings.seed,
            answers=settings.answers,
            max_tokens=request.max_tokens,
            stop=request.stop,
            schema=request.schema,
        )
        answer = with_calls(answer, request.tools, request.prompt)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if request.schema is None:
            raise
        raise InvalidSchema from error
    if not request.reasoning:
        return answer
    reasoning = f"thinking about {count_tokens(request.prompt)} tokens"
    return evolve(answer, reasoning=reasoning, tokens=answer.tokens + count_tokens(reasoning))
