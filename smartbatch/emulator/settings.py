"""What an emulator can be told: one frozen object, checked when it is made."""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from attrs import field, fields, frozen

from smartbatch.emulator.batches.batch_settings import BatchSettings
from smartbatch.errors import ConfigError

__all__ = ["FAULTS", "FaultFor", "Settings", "load_answers", "loopback"]

FaultFor: TypeAlias = "Callable[[int, Mapping[str, Any]], str | None]"
"""``fault_for(index, body)`` names the fault of one request, or returns ``None`` for the seeded plan.

A request about files or batches has no body to look at: it gets ``{"method": …, "path": …}``."""

FAULTS = {
    "500": "server error after the usual latency",
    "503": "overloaded, at once",
    "no_room": "the slower tier has no capacity, said at once; other requests do not meet it",
    "429": "rate limit with Retry-After, at once",
    "429_no_header": "rate limit without any hint how long to wait",
    "no_money": "credit, or the quota of the day, is used up; 429 at once, waiting does not help",
    "refusal": "the model refuses, or a filter blocks the prompt, in the API's own way; billed",
    "reset": "the work is done and billed, then the connection is reset: the answer is lost",
    "reset_before": "the connection is reset before any work",
    "hang": "the work is done and billed, nothing is sent for hang_seconds, then the connection ends",
    "truncated": "half of the body is sent, then the connection ends",
    "stall": "half of the body is sent, then nothing for hang_seconds, then the connection ends",
    "bad_json": "status 200, a whole body that is not JSON",
    "empty": "status 200, an empty body",
    "html": "status 502 and a gateway's HTML page",
    "html_200": "status 200 and an HTML page, as captive portals send",
    "slow_body": "the body trickles in over hang_seconds",
    "stream_end": "half of a stream's events, then its orderly end; half of the body of what is no stream",
    "stream_error": "half of a stream's events, then an error among them; else as stream_end",
}
"""The faults by name, and what a client sees."""


def _rates(faults: float | Mapping[str, float]) -> float | Mapping[str, float]:
    if not isinstance(faults, Mapping):
        if not 0 <= faults <= 1:
            raise ConfigError(f"faults is a rate from 0 to 1, not {faults!r}")
        return faults
    for kind, rate in faults.items():
        if kind not in FAULTS:
            raise ConfigError(f"unknown fault {kind!r}; use one of {', '.join(FAULTS)}")
        if not 0 <= rate <= 1:
            raise ConfigError(f"the rate of fault {kind!r} is from 0 to 1, not {rate!r}")
    if sum(faults.values()) > 1 + 1e-9:
        raise ConfigError("the rates in faults add up to more than 1")
    return dict(faults)


def _keys(keys: Iterable[str] | None) -> frozenset[str] | None:
    return None if keys is None else frozenset(keys)


def _models(models: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if models is None else tuple(models)


@frozen(kw_only=True)
class Settings(BatchSettings):
    """How the emulator behaves; see :class:`~smartbatch.emulator.batches.batch_settings.BatchSettings` for
    batches.

    Args:
        latency: median seconds until an answer (or until a stream's first event).
        latency_sigma: sigma of the lognormal spread around it; 0 makes all latencies equal.
        per_token: further seconds for each token of output.
        flex: whether the models have the slower tier; without it a request for it is refused.
        flex_slower: how many times as long as others an answer in the slower tier takes.
        rpm: requests a minute; ``None`` for no limit.
        tpm: tokens a minute, charged at admission: at OpenAI the larger of the output cap and the prompt,
            elsewhere the prompt.
        otpm: tokens of output a minute, charged as they are made.
        burst: requests that may come at once after a pause; ``None`` for a whole minute's worth.
        enforce: ``"minute"`` is a bucket that starts full; ``"second"`` allows a sixtieth in each
            second of the server's clock and no burst.
        count_refused: True when refused requests use up the limit as well.
        retry_after: False leaves Retry-After out of 429 answers.
        limit_headers: False leaves the headers that tell the limits out.
        faults: rate of a mixture of common faults, or a mapping of :data:`FAULTS` names to rates.
        fault_retry_after: seconds an injected ``429`` asks to wait.
        fault_for: names the fault of a request by its index and body; in-process only.
        outage: ``(start, count)``: requests from this index on, so many, are answered 503.
        outage_between: ``(begin, end)`` in seconds since the first request: all are answered 503.
        hang_seconds: how long the faults ``hang`` and ``slow_body`` last.
        seed: of faults, latencies and answers; the same seed gives the same by request index.
        answers: right answers by the exact text of the last user message.
        keys: keys that are accepted; ``None`` accepts any.
        models: models that exist; ``None`` accepts any name.
        keep_prompts: True keeps prompt texts in the ledger, not only their SHA-256.
        max_connections: connections at once; more are answered 503 and closed.
        max_body: bytes of a request body; more is answered 413. Uploads and batches may have 256 MiB.

    Raises:
        ConfigError: for a value out of its range; the text names the setting.
    """

    latency: float = 0.0
    latency_sigma: float = 0.0
    per_token: float = 0.0
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
    fault_retry_after: float = 1.0
    fault_for: FaultFor | None = None
    outage: tuple[int, int] | None = None
    outage_between: tuple[float, float] | None = None
    hang_seconds: float = 30.0
    seed: int = 0
    answers: Mapping[str, str] = field(factory=dict, repr=False)
    keys: frozenset[str] | None = field(default=None, repr=False, converter=_keys)
    models: tuple[str, ...] | None = field(default=None, converter=_models)
    keep_prompts: bool = False
    max_connections: int = 1024
    max_body: int = 32 * 1024 * 1024

    def __attrs_post_init__(self) -> None:
        for name in (
            *("latency", "latency_sigma", "per_token", "flex_slower"),
            *("hang_seconds", "fault_retry_after"),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is a number of 0 or more, not {value!r}")
        for name in ("rpm", "tpm", "otpm", "burst", "max_connections", "max_body"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 1):
                raise ConfigError(f"{name} is a number of 1 or more, not {value!r}")
        if self.enforce not in ("minute", "second"):
            raise ConfigError(f"enforce is 'minute' or 'second', not {self.enforce!r}")
        if self.burst is not None and (self.rpm is None or self.enforce == "second"):
            raise ConfigError("burst needs rpm, and contradicts enforce='second', which allows no burst")
        if self.outage is not None and (self.outage[0] < 0 or self.outage[1] < 0):
            raise ConfigError(f"outage is (start index, count), both 0 or more, not {self.outage!r}")
        self.check_batches()

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all settings."""
        return frozenset(a.name for a in fields(cls))


def loopback(host: str) -> str:
    """Return ``host`` as an address of this machine.

    Raises:
        ConfigError: for any other address: the emulator is not meant to be reached from outside.
    """
    address = "127.0.0.1" if host == "localhost" else host
    try:
        if ipaddress.ip_address(address).is_loopback:
            return address
    except ValueError:
        pass
    raise ConfigError(f"host is a loopback address such as 127.0.0.1, not {host!r}")


def load_answers(path: str | Path, *, prompt_field: str, answer_field: str) -> dict[str, str]:
    """Read right answers from a file of JSON lines.

    Args:
        path: the file; blank lines are skipped.
        prompt_field: the field with the exact text of the prompt.
        answer_field: the field with the answer's text.

    Raises:
        ConfigError: when the file cannot be read, or a line lacks a field; names file and line.
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
