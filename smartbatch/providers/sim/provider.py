"""The embedded provider: the emulator's answers, limits, faults and batches without a key or a network.

An answer depends only on its request and the seed. A fault depends on the seed, the prompt and the
attempt.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from smartbatch._fork import PerProcess
from smartbatch._words import seconds_of
from smartbatch.chats import texts_in
from smartbatch.emulator.composed_answers import OfferedTools, logprobs_of, words_of
from smartbatch.emulator.limits import Limits
from smartbatch.emulator.parsed_requests import (
    HIDDEN_TOKENS,
    GenerationRequest,
    InvalidSchema,
    complete,
    measure_prompt,
)
from smartbatch.emulator.prompt_files import PromptFile, tokens_by_kind
from smartbatch.emulator.settings import EmulatorSettings, FaultPlan
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.media import returned_file
from smartbatch.providers.answer_parts import token_logprobs
from smartbatch.providers.base import AnswerStream, Capabilities, MadeStream, Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.media_parts import check_parts, translated
from smartbatch.providers.sim.parts import PARTS, files_in
from smartbatch.types import Answer, Duration, Message, Request, ToolCall, Usage

_EMULATED = {"500": "500", "503": "503", "429": "429", "timeout": "hang", "network": "reset"}
FAULTS = tuple(_EMULATED)
"""Kinds of faults. A single rate is split evenly between them."""
_VALIDATION_SHARE = 0.1
"""Fraction of a batch's turnaround spent on validation."""


class SimProvider(Provider):
    """Answers any prompt as the emulator does, with a digest of the prompt or a value that fits the schema.

    Args:
        sleep: waits for the given seconds of simulated latency; a clock's ``sleep``.
        now: returns monotonic seconds; a clock's ``now``.
        latency: median time of a call.
        latency_sigma: spread of a lognormal latency; 0 for equal latencies.
        per_token: additional time per token of the answer.
        rpm: requests per minute, starting with a full bucket. ``None`` for no limit.
        tpm: tokens per minute, prompt and answer together; a larger call waits for a full bucket.
        faults: share of calls that fail, 0 to 1, or a share for each of :data:`FAULTS`.
        seed: changes latencies, faults and answers.
        wall: returns Unix seconds, used for batches; a clock's ``wall``.
        batch_seconds: time from the creation of a batch to its end, regardless of limits and latencies.
    """

    name = "sim"
    capabilities = Capabilities(max_shared=1, streams=True, priced=False)

    def __init__(
        self,
        *,
        sleep: Callable[[float], None],
        now: Callable[[], float],
        latency: Duration = 0.05,
        latency_sigma: float = 0.0,
        per_token: Duration = 0.0,
        rpm: float | None = None,
        tpm: float | None = None,
        faults: float | Mapping[str, float] = 0.0,
        seed: int = 0,
        wall: Callable[[], float] = time.time,
        batch_seconds: Duration = 0.2,
    ) -> None:
        try:
            turnaround = seconds_of("batch_seconds", batch_seconds)
            if turnaround == math.inf:
                raise ConfigError("batch_seconds must be finite")
            self._settings = settings = EmulatorSettings(
                latency=seconds_of("latency", latency),
                latency_sigma=latency_sigma,
                per_token=seconds_of("per_token", per_token),
                rpm=rpm,
                tpm=tpm,
                faults=_emulated(faults),
                seed=seed,
                batch_validating=_VALIDATION_SHARE * turnaround,
                batch_turnaround=turnaround,
            )
        except ConfigError as error:
            raise ConfigError(f"sim: {error}") from None
        self._sleep = sleep
        self._now = now
        self._wall = wall
        self._plan = FaultPlan(settings)
        self._limits = Limits(settings)
        self._lock = PerProcess(threading.Lock)
        account = (settings.latency, latency_sigma, settings.per_token, rpm, tpm, settings.faults, seed)
        self.scope = f"sim:{hashlib.sha256(repr(account).encode()).hexdigest()[:12]}"

    def check(self, request: Request, *, model: str) -> None:  # noqa: ARG002
        check_parts(request.prompt, PARTS)

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        answer, index, fault = self._admit(request, model, attempt)
        self._spend(self._plan.latency(index, _tokens(answer)), timeout)
        if fault is not None:
            raise _error(fault)
        return answer

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:
        """Connection faults occur half-way; other faults occur before the first word."""
        return MadeStream(self._speak(request, model, attempt, timeout))

    def batches(self) -> BatchApi:
        from smartbatch.providers.sim.batches import SimBatches

        return SimBatches(
            self.scope, self._settings, answer_to=self._answer_in_batch, error_of=_error, wall=self._wall
        )

    def _answer_in_batch(self, request: Request, model: str, wire_id: str) -> Answer | str:
        """The fault depends on the line's id, so a request sent again may succeed."""
        fault = self._plan.fault(_index(wire_id, 0))
        if fault is not None:
            return fault
        try:
            return self._answer(_parsed(request, model))
        except InvalidSchema:
            return "400"

    def _speak(
        self, request: Request, model: str, attempt: int, timeout: float
    ) -> Generator[str, None, Answer]:
        answer, index, fault = self._admit(request, model, attempt)
        words = words_of(answer.text or "")
        pause = self._settings.per_token * _tokens(answer) / max(1, len(words))
        fails_at = len(words) // 2 if fault in ("hang", "reset") else 0
        began = self._now()
        self._spend(self._plan.first_token(index), timeout)
        for position, word in enumerate(words):
            if fault is not None and position == fails_at:
                raise _error(fault)
            self._spend(pause, timeout - (self._now() - began))
            yield word
        if fault is not None and not words:
            raise _error(fault)
        return answer

    def _admit(self, request: Request, model: str, attempt: int) -> tuple[Answer, int, str | None]:
        """Return the answer, the index of its latency and fault, and the fault."""
        asked = _parsed(request, model)
        try:
            answer = self._answer(asked)
        except InvalidSchema:
            raise _error("400") from None
        index = _index(asked.identity, attempt)
        fault = self._plan.fault(index)
        if self._limits:
            tokens = asked.input_tokens + _tokens(answer)
            with self._lock.get():
                exceeded = self._limits.admit(self._now(), min(tokens, int(self._settings.tpm or tokens)))
            if exceeded is not None:
                raise _error("429", exceeded.wait)
        if fault == "429":
            raise _error(fault, self._settings.fault_retry_after)
        return answer, index, fault

    def _answer(self, asked: GenerationRequest) -> Answer:
        said = complete(self._settings, asked)
        identity = self._plan.identity(_index(asked.identity, 0)) if said.calls else ""
        logprobs = None if asked.logprobs is None else logprobs_of(words_of(said.text), asked.logprobs)
        return Answer(
            text=said.text,
            usage=Usage(asked.input_tokens, said.tokens, reasoning_tokens=said.reasoning_tokens),
            finish_reason=said.finish_reason,
            model=asked.model,
            tool_calls=tuple(
                ToolCall(f"call_{identity}_{number}", call.name, call.arguments)
                for number, call in enumerate(said.calls)
            ),
            logprobs=token_logprobs(logprobs),
            files=(returned_file(said.picture),) if said.picture else (),
        )

    def _spend(self, seconds: float, left: float) -> None:
        self._sleep(min(seconds, max(0.0, left)))
        if seconds > left:
            raise _error("hang")


def prompt_text(request: Request) -> str:
    """Return the text of the last user message, or of the last message if there is none."""
    return measure_prompt("", _messages(request.prompt))[0]


def _messages(prompt: str | Sequence[Message]) -> list[tuple[str, str]]:
    if isinstance(prompt, str):
        return [("user", prompt)]
    return [(message.role, "".join(texts_in(message.content))) for message in prompt]


def _parsed(request: Request, model: str) -> GenerationRequest:
    chat = translated(request.prompt, PARTS)
    params, messages = request.params, _messages(chat)
    prompt, tokens = measure_prompt(model, messages, (params.system or "",))
    files = tuple(PromptFile("", media, media.size or 0) for media in files_in(chat))
    counted = tokens_by_kind(model, files)
    tools = None
    if params.tools:
        offered = {tool.name: tool.parameters for tool in params.tools}
        tools = OfferedTools(offered, params.tool_choice or "auto", answered=messages[-1][0] == "tool")
    return GenerationRequest(
        model=model,
        prompt=prompt,
        input_tokens=tokens + counted.total(),
        max_tokens=params.max_tokens,
        stop=params.stop or (),
        choices=1,
        schema=_schema_of(params.response_format) if params.schema is None else params.schema,
        stream=False,
        include_usage=False,
        tools=tools,
        logprobs=int(params.logprobs is not True and params.logprobs) if params.logprobs else None,
        files=files,
        file_tokens=counted,
        draws=True,
        hidden_tokens=HIDDEN_TOKENS[params.reasoning_effort or "none"],
    )


def _schema_of(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the schema in a ``response_format``; empty for any object, ``None`` for plain text."""
    if form is None or form.get("type") not in ("json_object", "json_schema"):
        return None
    inner = form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _tokens(answer: Answer) -> int:
    return answer.usage.output_tokens if answer.usage is not None else 0


def _index(text: str, attempt: int) -> int:
    """Derive the index by which the emulator chooses a latency and a fault."""
    return int.from_bytes(hashlib.sha256(f"{attempt}\0{text}".encode()).digest()[:8], "big")


def _emulated(faults: float | Mapping[str, float]) -> dict[str, float]:
    rates = faults if isinstance(faults, Mapping) else dict.fromkeys(FAULTS, faults / len(FAULTS))
    for kind in rates:
        if kind not in FAULTS:
            raise ConfigError(f"unknown fault {kind!r}; the faults are {', '.join(FAULTS)}")
    return {_EMULATED[kind]: rate for kind, rate in rates.items()}


def _error(fault: str, wait: float | None = None) -> ProviderError:
    match fault:
        case "hang":
            return ProviderError("simulated: no answer in time", kind=ErrorKind.TIMEOUT, maybe_billed=True)
        case "reset":
            return ProviderError("simulated: reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)
        case "429":
            text, code = "simulated: 429, slow down", "rate_limit_exceeded"
            return ProviderError(text, kind=ErrorKind.RATE_LIMIT, status=429, code=code, retry_after=wait)
        case "400":
            return ProviderError("simulated: 400, invalid schema", kind=ErrorKind.CLIENT_ERROR, status=400)
    return ProviderError(f"simulated: {fault}", kind=ErrorKind.SERVER_ERROR, status=int(fault))


def _rates(text: str) -> float | dict[str, float]:
    if ":" not in text:
        return float(text)
    return {kind: float(rate) for kind, rate in (entry.split(":") for entry in text.split(","))}


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "latency": ("latency", str),
    "sigma": ("latency_sigma", float),
    "per_token": ("per_token", str),
    "rpm": ("rpm", float),
    "tpm": ("tpm", float),
    "batch_seconds": ("batch_seconds", str),
    "faults": ("faults", _rates),
    "seed": ("seed", int),
}
"""For each option: the argument that it sets, and the parser of its value."""


def parse_options(text: str) -> dict[str, Any]:
    """Parse settings such as ``latency=0.2&sigma=0.5&faults=0.02&rpm=600&tpm=90000&per_token=0.01&seed=3``.

    ``faults`` may also be a share per kind, as in ``faults=503:0.1,429:0.05``.

    Raises:
        ConfigError: an option is unknown, or a value is not a number.
    """
    options: dict[str, Any] = {}
    for name, value in urllib.parse.parse_qsl(text, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigError(f"sim: unknown option {name!r}; the options are {', '.join(_OPTIONS)}")
        keyword, read = _OPTIONS[name]
        try:
            options[keyword] = read(value)
        except ValueError:
            raise ConfigError(f"sim: {name}={value!r} is not a number") from None
    return options
