"""The embedded provider: answers without a key or a network, the same every time.

Latency, limits and faults can be set, so that a demo or a test meets what a real provider does. Every answer
is a function of its prompt, and every fault of seed, prompt and attempt.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Mapping
from statistics import NormalDist
from typing import Any

from smartbatch._fork import PerProcess
from smartbatch._settings import seconds_in, seconds_of
from smartbatch.emulator.composed_answers import packed_answers, words_of
from smartbatch.emulator.schema_instances import instance
from smartbatch.emulator.tool_calls import called_tools
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream, Capabilities, Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.made_stream import MadeStream
from smartbatch.types import Answer, Duration, Request, TokenLogprob, ToolCall, Usage

FAULTS = ("500", "503", "429", "timeout", "network")
"""The kinds of faults; a single rate is shared evenly between them."""

_NUMBERS = {
    "latency": "latency",
    "sigma": "latency_sigma",
    "per_token": "per_token",
    "rpm": "rpm",
    "tpm": "tpm",
    "batch_seconds": "batch_seconds",
}
_DURATIONS = frozenset({"latency", "per_token", "batch_seconds"})


class SimProvider(Provider):
    """Answers any prompt with a short sentence that carries a digest of the prompt.

    Args:
        sleep: waits for the simulated latency, seconds; a clock's ``sleep``.
        now: monotonic seconds; a clock's ``now``.
        latency: median seconds of a call.
        latency_sigma: spread of a lognormal latency; 0 for equal latencies.
        per_token: further seconds for each token of the answer.
        rpm: requests a minute; a full bucket at the first call. ``None`` for no limit.
        tpm: tokens a minute, prompt and answer together.
        faults: share of calls that fail, 0 to 1, or a share for each of :data:`FAULTS`.
        seed: changes latencies and faults, and the wording.
        wall: Unix seconds; a clock's ``wall``. Batches run by it.
        batch_seconds: from the create of a batch to its end. Like limits, latencies do not concern a batch.
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
        latency = seconds_of("sim: latency", latency)
        per_token = seconds_of("sim: per_token", per_token)
        batch_seconds = seconds_of("sim: batch_seconds", batch_seconds)
        for label, value in (
            ("latency", latency),
            ("sigma", latency_sigma),
            ("per_token", per_token),
            ("batch_seconds", batch_seconds),
        ):
            if not 0 <= value < math.inf:
                raise ConfigError(f"sim: {label}={value!r} must be 0 or more")
        for label, limit in (("rpm", rpm), ("tpm", tpm)):
            if limit is not None and not 1 <= limit < math.inf:
                raise ConfigError(f"sim: {label}={limit!r} must be at least 1")
        self._sleep = sleep
        self._now = now
        self._latency = latency
        self._sigma = latency_sigma
        self._per_token = per_token
        self._faults = _fault_table(faults)
        self._seed = seed
        self._wall = wall
        self._batch_seconds = batch_seconds
        self._lock = PerProcess(threading.Lock)
        self._requests = None if rpm is None else _Bucket(rpm)
        self._tokens = None if tpm is None else _Bucket(tpm)
        settings = (latency, latency_sigma, per_token, rpm, tpm, self._faults, seed)
        self.scope = f"sim:{hashlib.sha256(repr(settings).encode()).hexdigest()[:12]}"

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        """Answer after the simulated latency, or fail as the settings say.

        Raises:
            ProviderError: for a fault, a limit, or a latency above ``timeout``.
        """
        answer, usage, seconds, fault = self._accept(request, model, attempt)
        self._spend(seconds + self._per_token * usage.output_tokens, timeout)
        _raise_fault(fault)
        return answer

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:
        """Answer word by word: the first after the latency, the others with the delay of ``per_token``.

        Faults of the connection come half-way, others before the first word.

        Reading it raises what :meth:`generate` raises.
        """
        return MadeStream(self._speak(request, model, attempt, timeout))

    def batches(self) -> BatchApi:
        """Return the Batch API; what it keeps outlives this process."""
        from smartbatch.providers.sim.batches import SimBatches

        return SimBatches(
            self.scope,
            answer_to=self._answer_in_batch,
            fault_of=_fault,
            wall=self._wall,
            seconds=self._batch_seconds,
        )

    def _answer_in_batch(self, request: Request, model: str, wire_id: str) -> Answer | str:
        """The answer to a line; its fault depends on its id, so a line that is sent again has a new one."""
        attempt = int.from_bytes(hashlib.sha256(wire_id.encode()).digest()[:4], "big")
        _, fault = self._latency_and_fault(prompt_text(request), attempt)
        return self._compose(request, model) if fault is None else fault

    def _speak(
        self, request: Request, model: str, attempt: int, timeout: float
    ) -> Generator[str, None, Answer]:
        answer, usage, latency, fault = self._accept(request, model, attempt)
        words = words_of(answer.text or "")
        throughput = self._per_token * usage.output_tokens / max(1, len(words))
        fails_at = len(words) // 2 if fault in ("network", "timeout") else 0
        began = self._now()
        self._spend(latency, timeout)
        for position, word in enumerate(words):
            if position == fails_at:
                _raise_fault(fault)
            self._spend(throughput, timeout - (self._now() - began))
            yield word
        return answer

    def _accept(self, request: Request, model: str, attempt: int) -> tuple[Answer, Usage, float, str | None]:
        """Return the answer to come, its usage, the seconds until it begins, and its fault."""
        answer = self._compose(request, model)
        usage = answer.usage or Usage()
        seconds, fault = self._latency_and_fault(prompt_text(request), attempt)
        wait = self._admit(usage.total_tokens)
        if wait > 0 or fault == "429":
            raise _refused(wait or 1.0)
        return answer, usage, seconds, fault

    def _spend(self, seconds: float, left: float) -> None:
        self._sleep(min(seconds, max(0.0, left)))
        if seconds > left:
            _raise_fault("timeout")

    def _compose(self, request: Request, model: str) -> Answer:
        prompt = prompt_text(request)
        params = request.params
        text, finish = packed_answers(prompt, lambda each: answer_text(each, model, self._seed)), "stop"
        if text is None:
            text = answer_text(prompt, model, self._seed)
            form = params.schema if params.schema is not None else _schema_of(params.response_format)
            if form is not None:
                text = json.dumps(instance(form, text) if form else {"answer": text})
            if params.max_tokens is not None and count_tokens(text) > params.max_tokens:
                text, finish = text[: 4 * params.max_tokens], "length"
        calls = _calls(request, text)
        if calls:
            text, finish = "", "tool_calls"
        made = count_tokens(text) + sum(count_tokens(json.dumps(call.arguments)) for call in calls)
        usage = Usage(count_tokens(prompt) + count_tokens(params.system or ""), made)
        logprobs = _logprobs(text, params.logprobs) if params.logprobs else None
        return Answer(
            text=text, usage=usage, finish_reason=finish, model=model, tool_calls=calls, logprobs=logprobs
        )

    def _latency_and_fault(self, prompt: str, attempt: int) -> tuple[float, str | None]:
        """Seconds and fault of this attempt: the same for the same seed, prompt and attempt."""
        if not self._sigma and not self._faults:
            return self._latency, None
        rng = hashlib.sha256(f"{self._seed}\0{attempt}\0{prompt}".encode(errors="replace")).digest()
        seconds = self._latency
        if self._sigma:
            seconds *= math.exp(self._sigma * NormalDist().inv_cdf(_fraction(rng[:8])))
        drawn = _fraction(rng[8:16])
        for fault, rate in self._faults:
            if drawn < rate:
                return seconds, fault
            drawn -= rate
        return seconds, None

    def _admit(self, tokens: int) -> float:
        """Take room for one request; seconds until there is some, 0 when it was taken."""
        if self._requests is None and self._tokens is None:
            return 0.0
        with self._lock.get():
            now = self._now()
            wanted = [(bucket, n) for bucket, n in ((self._requests, 1), (self._tokens, tokens)) if bucket]
            wait = max(bucket.wait(now, n) for bucket, n in wanted)
            if wait <= 0:
                for bucket, n in wanted:
                    bucket.level -= n
            return wait


class _Bucket:
    """So much a minute, full at first use. More than a bucket holds waits for a full one."""

    def __init__(self, per_minute: float) -> None:
        self.capacity = self.level = float(per_minute)
        self._at: float | None = None

    def wait(self, now: float, n: float) -> float:
        rate = self.capacity / 60.0
        if self._at is not None:
            self.level = min(self.capacity, self.level + (now - self._at) * rate)
        self._at = now
        return max(0.0, (min(n, self.capacity) - self.level) / rate)


def answer_text(prompt: str, model: str, seed: int) -> str:
    """Return the simulated answer: a sentence with the first 12 hexadecimal digits of the prompt's SHA-256.

    ``seed`` chooses the wording.
    """
    digest = hashlib.sha256(prompt.encode(errors="surrogatepass")).hexdigest()[:12]
    words = len(prompt.split())
    openings = ("Here is", "This is", "You get")
    return f"{openings[seed % 3]} the simulated answer {digest} of {model} to your {words} words."


def count_tokens(text: str) -> int:
    """Return the tokens of a text as the simulation counts them: a quarter of its UTF-8 bytes, rounded up."""
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return (size + 3) // 4


def prompt_text(request: Request) -> str:
    """Return the text a request asks: its prompt, or the text of its last user message."""
    if isinstance(request.prompt, str):
        return request.prompt
    for message in reversed(request.prompt):
        if message.role == "user":
            if isinstance(message.content, str):
                return message.content
            return "".join(str(part["text"]) for part in message.content if "text" in part)
    return ""


def _calls(request: Request, text: str) -> tuple[ToolCall, ...]:
    """The calls of an answer that calls tools instead of saying ``text``."""
    params, prompt = request.params, request.prompt
    if not params.tools:
        return ()
    offered = {tool.name: tool.parameters for tool in params.tools}
    answered = not isinstance(prompt, str) and prompt[-1].role == "tool"
    asked = prompt_text(request)
    names = called_tools(list(offered), params.tool_choice or "auto", asked, answered=answered)
    digest = hashlib.sha256(asked.encode(errors="surrogatepass")).hexdigest()[:12]
    return tuple(
        ToolCall(f"call-{digest}-{number}", name, instance(offered[name], text))
        for number, name in enumerate(names)
    )


def _logprobs(text: str, asked: int | bool) -> tuple[TokenLogprob, ...] | None:
    """Log-probabilities of the words of an answer."""
    alternatives = 0 if asked is True else int(asked)
    tokens = [(word, -0.125 * (place % 8)) for place, word in enumerate(words_of(text))]
    return (
        tuple(
            TokenLogprob(word, said, tuple((f"{word}{n or ''}", said - n) for n in range(alternatives)))
            for word, said in tokens
        )
        or None
    )


def parse_options(text: str) -> dict[str, Any]:
    """Return the settings in ``latency=0.2&sigma=0.5&faults=0.02&rpm=600&tpm=90000&per_token=0.01&seed=3``.

    ``faults`` also takes a share for each kind, as in ``faults=503:0.1,429:0.05``.

    Raises:
        ConfigError: for an unknown option, and for a value that is no number.
    """
    options: dict[str, Any] = {}
    for name, value in urllib.parse.parse_qsl(text, keep_blank_values=True):
        try:
            if name == "seed":
                options[name] = int(value)
            elif name == "faults" and ":" in value:
                pairs = (entry.split(":") for entry in value.split(","))
                options[name] = {kind: float(rate) for kind, rate in pairs}
            elif name == "faults":
                options[name] = float(value)
            elif name in _NUMBERS:
                found = seconds_in(value) if name in _DURATIONS else float(value)
                if found is None:
                    raise ConfigError(
                        f"sim: {name}={value!r} is no duration: write 2s, 90m, 6h30min or seconds"
                    )
                options[_NUMBERS[name]] = found
            else:
                known = ", ".join([*_NUMBERS, "faults", "seed"])
                raise ConfigError(f"sim: has no option {name!r}; it knows {known}")
        except ConfigError:
            raise
        except ValueError:
            raise ConfigError(f"sim: {name}={value!r} is not a number") from None
    return options


def _fault_table(faults: float | Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    table = dict(faults) if isinstance(faults, Mapping) else dict.fromkeys(FAULTS, faults / len(FAULTS))
    for kind, rate in table.items():
        if kind not in FAULTS:
            raise ConfigError(f"sim: there is no fault {kind!r}; it knows {', '.join(FAULTS)}")
        if not 0 <= rate <= 1:
            raise ConfigError(f"sim: faults={rate!r} must be a share between 0 and 1")
    if sum(table.values()) > 1 + 1e-9:
        raise ConfigError("sim: the shares in faults add up to more than 1")
    return tuple((kind, rate) for kind, rate in table.items() if rate > 0)


def _schema_of(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The schema in a ``response_format``; an empty one for any object, ``None`` for plain text."""
    kind = form.get("type") if form else None
    if form is None or kind not in ("json_object", "json_schema"):
        return None
    inner = form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _raise_fault(fault: str | None) -> None:
    if fault is not None:
        raise _fault(fault)


def _fault(fault: str) -> ProviderError:
    if fault == "timeout":
        return ProviderError("simulated: no answer in time", kind=ErrorKind.TIMEOUT, maybe_billed=True)
    if fault == "network":
        return ProviderError("simulated: reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)
    if fault == "429":
        return _refused(1.0)
    number = fault if fault in FAULTS else "500"
    return ProviderError(f"simulated: {number}", kind=ErrorKind.SERVER_ERROR, status=int(number))


def _refused(wait: float) -> ProviderError:
    return ProviderError(
        "simulated: 429, slow down",
        kind=ErrorKind.RATE_LIMIT,
        status=429,
        code="rate_limit_exceeded",
        retry_after=wait,
    )


def _fraction(data: bytes) -> float:
    """Eight bytes as a number strictly between 0 and 1."""
    return (int.from_bytes(data, "big") + 0.5) / 2.0**64
