"""The settings of an emulator: one frozen value, validated when it is created."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, TypedDict

from attrs import Attribute, Converter, field, fields, frozen

from smartbatch.emulator.batches.batch_settings import (
    BatchFaultFor,
    BatchSettings,
    LineFaultFor,
    in_seconds,
    seconds,
)
from smartbatch.emulator.prompt_caching import PromptCaching, prompt_caching
from smartbatch.errors import ConfigError, did_you_mean
from smartbatch.types import Duration

FaultFor: TypeAlias = "Callable[[int, Mapping[str, Any]], str | None]"
"""``fault_for(index, body)`` names the fault of one request; ``None`` for a random one.

For a request about files or batches, ``body`` is ``{"method": …, "path": …}``.
"""

# the faults of requests, with their effects
FAULTS = {
    "500": "server error after the usual latency",
    "503": "overloaded, at once",
    "no_room": "immediate error: the flex tier has no capacity; only for requests of that tier",
    "429": "immediate rate limit with Retry-After",
    "429_no_header": "immediate rate limit without a time to wait",
    "no_money": "immediate 429: the credit or the daily quota is used up, so waiting does not help",
    "refusal": "the model refuses, or a filter blocks the prompt, depending on the API; billed",
    "reset": "the model runs and is billed, then the connection is reset: the answer is lost",
    "reset_before": "the connection is reset before the model runs",
    "hang": "the model runs and is billed, nothing is sent for hang_seconds, then the connection ends",
    "truncated": "half of the body is sent, then the connection ends",
    "stall": "half of the body is sent, then nothing for hang_seconds, then the connection ends",
    "bad_json": "status 200, a whole body that is not JSON",
    "empty": "status 200, an empty body",
    "html": "status 502 and a gateway's HTML page",
    "html_200": "status 200 and an HTML page, as captive portals send",
    "slow_body": "the body is sent slowly, over hang_seconds",
    "stream_end": "half of a stream's events, then its regular end; for other answers, half of the body",
    "stream_error": "half of a stream's events, then an error event; for other answers, half of the body",
}


def _rates(faults: float | Mapping[str, float]) -> float | Mapping[str, float]:
    if not isinstance(faults, Mapping):
        if not 0 <= faults <= 1:
            raise ConfigError(f"faults must be a rate from 0 to 1, not {faults!r}")
        return faults
    for kind, rate in faults.items():
        if kind not in FAULTS:
            raise ConfigError(f"unknown fault {kind!r}; use one of {', '.join(FAULTS)}")
        if not 0 <= rate <= 1:
            raise ConfigError(f"the rate of fault {kind!r} must be from 0 to 1, not {rate!r}")
    if sum(faults.values()) > 1 + 1e-9:
        raise ConfigError("the rates in faults add up to more than 1")
    return dict(faults)


def _keys(keys: Iterable[str] | None) -> frozenset[str] | None:
    return None if keys is None else frozenset(keys)


def _models(models: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if models is None else tuple(models)


def _between(times: Sequence[Duration] | None, setting: Attribute[Any]) -> tuple[float, ...] | None:
    return None if times is None else tuple(in_seconds(time, setting) for time in times)


@frozen(kw_only=True)
class EmulatorSettings(BatchSettings):
    """The settings of an emulator. Times are seconds, or strings such as ``2s`` and ``500ms``.

    The settings of batches are in :class:`~smartbatch.emulator.batches.batch_settings.BatchSettings`.

    Args:
        latency: median seconds until an answer (or until a stream's first event).
        latency_sigma: sigma of the lognormal distribution of latencies; 0 makes all latencies equal.
        per_token: additional seconds per output token.
        flex: whether the models have the flex tier; if not, requests for this tier fail.
        flex_slower: factor on the latency of answers in the flex tier.
        rpm: requests per minute; ``None`` for no limit.
        tpm: tokens per minute, charged at admission: for OpenAI the larger of the output limit and the
            prompt, for the other APIs the prompt.
        otpm: output tokens per minute, charged when they are generated.
        burst: requests admitted immediately after a pause; ``None`` for one minute's worth.
        enforce: ``"minute"`` is a token bucket that starts full; ``"second"`` admits a sixtieth in each
            second of the server's clock, without bursts.
        count_refused: True if refused requests also count against the limit.
        retry_after: False omits Retry-After from 429 responses.
        limit_headers: False omits the rate limit headers.
        faults: probability of a fault, drawn from common faults, or a mapping of :data:`FAULTS` names to
            probabilities.
        fault_retry_after: the ``Retry-After`` of an injected ``429``, in seconds.
        fault_for: names the fault of a request by its index and body; in-process only.
        outage: ``(start, count)``: this many requests from this index on are answered with 503.
        outage_between: ``(start, end)`` in seconds since the first request: all requests are answered with
            503.
        hang_seconds: duration of the faults ``hang``, ``stall`` and ``slow_body``.
        seed: seed of faults, latencies and answers. The random numbers of a request depend only on the seed
            and the request's index.
        answers: scripted answers by the exact text of the last user message.
        keys: accepted keys; ``None`` accepts any.
        models: existing models; ``None`` accepts any name.
        rejects: parameters that OpenAI's API rejects by name, such as ``seed``, and types of
            ``response_format``, such as ``json_schema``; behaves like a compatible server that lacks them.
        prompt_caching: the prompt caches of the three APIs; ``True`` for the usual ones, ``None`` for none.
        dialect: the host whose API is served instead of the three APIs, such as ``mistral``; see
            :data:`~smartbatch.emulator.hosts.host_api.DIALECTS`.
        dialect_variants: other interpretations of facts that the host's documentation leaves open, by name.
        keep_prompts: True keeps prompt texts in the ledger, not only their SHA-256.
        file_storage: maximum bytes of the uploaded files of an account, above which uploads are rejected;
            ``None`` for no limit.
        file_processing: time until an uploaded file can be used in Gemini's API.
        max_connections: maximum number of open connections; others are answered with 503 and closed.
        max_body: maximum bytes of a request body, except for uploads and batches; ``None`` for the limit of
            the API: 512 MB for OpenAI, 32 MiB for Anthropic, 100 MB for Gemini.

    Raises:
        ConfigError: a value is out of range; the message names the setting.
    """

    latency: float = seconds(0.0)
    latency_sigma: float = 0.0
    per_token: float = seconds(0.0)
    flex: bool = True
    flex_slower: float = 3.0
    rpm: float | None = None
    tpm: float | None = None
    otpm: float | None = None
    burst: float | None = None
    enforce: Literal["minute", "second"] = "minute"
    count_refused: bool = False
    retry_after: bool = True
    limit_headers: bool = True
    faults: float | Mapping[str, float] = field(default=0.0, converter=_rates)
    fault_retry_after: float = seconds(1.0)
    fault_for: FaultFor | None = None
    outage: tuple[int, int] | None = None
    outage_between: tuple[float, float] | None = field(
        default=None,
        converter=Converter(_between, takes_field=True),  # type: ignore[misc]
    )
    hang_seconds: float = seconds(30.0)
    seed: int = 0
    answers: Mapping[str, str] = field(factory=dict, repr=False)
    keys: frozenset[str] | None = field(default=None, repr=False, converter=_keys)
    models: tuple[str, ...] | None = field(default=None, converter=_models)
    rejects: frozenset[str] = field(default=frozenset(), converter=frozenset)
    prompt_caching: PromptCaching | None = field(default=None, converter=prompt_caching)
    dialect: str | None = None
    dialect_variants: frozenset[str] = field(default=frozenset(), converter=frozenset)
    keep_prompts: bool = False
    file_storage: int | None = None
    file_processing: float = seconds(0.0)
    max_connections: int = 1024
    max_body: int | None = None

    def __attrs_post_init__(self) -> None:
        for name in (
            *("latency", "latency_sigma", "per_token", "flex_slower"),
            *("hang_seconds", "fault_retry_after", "file_processing"),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")
        for name in ("rpm", "tpm", "otpm", "burst", "max_connections", "max_body", "file_storage"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 1):
                raise ConfigError(f"{name} must be a number of 1 or more, not {value!r}")
        if self.enforce not in ("minute", "second"):
            raise ConfigError(f"enforce must be 'minute' or 'second', not {self.enforce!r}")
        if self.burst is not None and (self.rpm is None or self.enforce == "second"):
            raise ConfigError("burst needs rpm, and contradicts enforce='second', which allows no burst")
        if self.outage is not None and (self.outage[0] < 0 or self.outage[1] < 0):
            raise ConfigError(f"outage must be (start index, count), both 0 or more, not {self.outage!r}")
        if self.prompt_caching is not None and self.dialect is not None:
            raise ConfigError(
                f"prompt_caching contradicts dialect={self.dialect!r}: only the APIs of OpenAI, Anthropic "
                "and Gemini have prompt caches; leave out one of the two"
            )
        self.check_batches()

    @classmethod
    def check_names(cls, params: EmulatorParams) -> dict[str, Any]:
        """Return settings unchanged; raise ``ConfigError`` for unknown names."""
        known = {attribute.name for attribute in fields(cls)}
        if unknown := params.keys() - known:
            near = did_you_mean(min(unknown), known) or f"; known: {', '.join(sorted(known))}"
            raise ConfigError(f"unknown setting {', '.join(sorted(unknown))}{near}")
        return dict(params)


class EmulatorParams(TypedDict, total=False):
    """The settings of an emulator as keywords; see :class:`EmulatorSettings`."""

    latency: Duration
    latency_sigma: float
    per_token: Duration
    flex: bool
    flex_slower: float
    rpm: float | None
    tpm: float | None
    otpm: float | None
    burst: float | None
    enforce: Literal["minute", "second"]
    count_refused: bool
    retry_after: bool
    limit_headers: bool
    faults: float | Mapping[str, float]
    fault_retry_after: Duration
    fault_for: FaultFor | None
    outage: tuple[int, int] | None
    outage_between: tuple[Duration, Duration] | None
    hang_seconds: Duration
    seed: int
    answers: Mapping[str, str]
    keys: Iterable[str] | None
    models: Iterable[str] | None
    rejects: Iterable[str]
    prompt_caching: PromptCaching | bool | None
    dialect: str | None
    dialect_variants: Iterable[str]
    keep_prompts: bool
    file_storage: int | None
    file_processing: Duration
    max_connections: int
    max_body: int | None
    batch_validating: Duration
    batch_queueing: Duration
    batch_turnaround: Duration
    batch_turnaround_sigma: float
    batch_window: Duration
    batch_cancel_seconds: Duration
    batch_retention: Duration
    batch_enqueued_tokens: float | None
    batch_enqueued_refusal: Literal["late", "early"]
    batch_max_lines: int | None
    batch_max_bytes: int | None
    batch_faults: Mapping[str, float]
    batch_fault_for: BatchFaultFor | None
    batch_line_fault_for: LineFaultFor | None
    batch_late_seconds: Duration
    batch_list_lag: Duration
    batch_get_lag: Duration
    batch_results_outage: Duration
    batch_echo_metadata: bool
    batch_echo_input_file: bool
    batch_inline_metadata: bool
    batch_error_details: bool
    batch_webhook_url: str | None
    batch_webhook_secret: str | None
    batch_webhook_faults: Mapping[str, float]
    batch_webhook_late_seconds: Duration


def loopback(host: str) -> str:
    """Return ``host`` as a loopback address.

    Raises:
        ConfigError: the address is not loopback; the emulator serves only this machine.
    """
    address = "127.0.0.1" if host == "localhost" else host
    try:
        if ipaddress.ip_address(address).is_loopback:
            return address
    except ValueError:
        pass
    raise ConfigError(f"host must be a loopback address such as 127.0.0.1, not {host!r}")


def load_answers(path: str | Path, *, prompt_field: str, answer_field: str) -> dict[str, str]:
    """Read scripted answers from a JSON Lines file, skipping blank lines.

    Args:
        prompt_field: the field with the exact text of the prompt.
        answer_field: the field with the text of the answer.

    Raises:
        ConfigError: the file cannot be read, or a line lacks a field; the message names file and line.
    """
    answers: dict[str, str] = {}
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    prompt, answer = _answer_line(line, path, number, prompt_field, answer_field)
                    answers[prompt] = answer
    except OSError as error:
        raise ConfigError(f"answers file {path}: {error.strerror}") from error
    return answers


def _answer_line(line: bytes, path: str | Path, number: int, prompt: str, answer: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except ValueError:
        raise ConfigError(f"answers file {path}, line {number}: not JSON") from None
    for name in (prompt, answer):
        if not isinstance(row, dict) or not isinstance(row.get(name), str):
            raise ConfigError(f"answers file {path}, line {number}: no text in field {name!r}")
    return row[prompt], row[answer]


# the faults drawn, in equal shares, if ``faults`` is a single rate
MIXED = ("500", "503", "429", "429_no_header", "reset", "hang", "truncated")

_NORMAL = NormalDist()
_SCALE = 1 / (1 << 64)


class FaultPlan:
    """The faults and latencies of one emulator.

    Each random number is a hash of the seed and the request's index, so faults do not depend on other
    settings or on the order in which requests finish.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self._settings = settings
        self._seed = b"smartbatch emulator %d " % settings.seed
        rates = settings.faults
        if isinstance(rates, float | int):
            rates = {kind: rates / len(MIXED) for kind in MIXED}
        self._thresholds: list[tuple[float, str]] = []
        total = 0.0
        for kind, rate in rates.items():
            total += rate
            if rate > 0:
                self._thresholds.append((total, kind))

    def fault(self, index: int) -> str | None:
        if self._thresholds:
            uniform = self.uniform(b"fault", index)
            for threshold, kind in self._thresholds:
                if uniform < threshold:
                    return kind
        return None

    def latency(self, index: int, tokens: int) -> float:
        """Return the seconds until a complete answer with ``tokens`` output tokens."""
        return self.first_token(index) + self._settings.per_token * tokens

    def first_token(self, index: int) -> float:
        settings = self._settings
        if not settings.latency_sigma or not settings.latency:
            return settings.latency
        uniform = min(max(self.uniform(b"latency", index), 1e-12), 1 - 1e-12)
        return settings.latency * math.exp(settings.latency_sigma * _NORMAL.inv_cdf(uniform))

    def in_outage(self, index: int, elapsed: float) -> bool:
        """Whether the request is in an outage.

        Args:
            index: the request's index.
            elapsed: seconds since the first request.
        """
        settings = self._settings
        if settings.outage and settings.outage[0] <= index < sum(settings.outage):
            return True
        between = settings.outage_between
        return between is not None and between[0] <= elapsed < between[1]

    def identity(self, index: int) -> str:
        return hashlib.blake2b(self._seed + b"id %d" % index, digest_size=12).hexdigest()

    def uniform(self, what: bytes, index: int) -> float:
        """Return a request's number for this purpose, uniformly distributed in [0, 1)."""
        digest = hashlib.blake2b(self._seed + what + b" %d" % index, digest_size=8).digest()
        return int.from_bytes(digest, "big") * _SCALE
