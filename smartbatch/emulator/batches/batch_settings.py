"""The settings of batches, and the names of their faults."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from attrs import Attribute, Converter, field, fields, frozen

from smartbatch._words import seconds_of
from smartbatch.errors import ConfigError
from smartbatch.types import Duration

# ``fault_for(index, label)`` names the faults of a create call and its batch; ``None`` for random ones
BatchFaultFor: TypeAlias = "Callable[[int, Mapping[str, str]], str | Sequence[str] | None]"

# ``fault_for(index, position, custom_id)`` names the fault of a line; ``None`` for a random one
LineFaultFor: TypeAlias = "Callable[[int, int, str | None], str | None]"

# the faults of a create call and of a whole batch, with their effects; rates are probabilities per batch
BATCH_FAULTS = {
    "lost_create": "the batch is created, then the connection is reset before the answer",
    "dropped_create": "the connection is reset before the batch is created",
    "late_create": "the answer is lost, and the batch is created up to batch_late_seconds later",
    "fail_validation": "the batch fails its validation; no line runs",
    "stuck": "the batch never ends, unless it is cancelled",
    "cancelled_elsewhere": "someone cancels the batch in the console when half of its lines have run",
    "expire_part": "the batch expires when half of its lines have run",
    "expire_all": "the batch expires before any line has run",
    "no_money_lines": "every line fails because the credit is used up",
    "list_lag": "the batch is missing from lists for up to batch_list_lag seconds",
    "get_lag": "the batch is not found by its id for up to batch_get_lag seconds",
    "shuffled": "the results are in a different order than the requests",
    "wrong_counts": "the counts do not add up",
    "results_unavailable": "downloads return 503 for batch_results_outage seconds after the end",
    "cut_download": "the first download of each result file is truncated, without an error",
    "odd_status": "an undocumented status during the first half of the run",
    "cancel_completes": "the batch is completed although it was cancelled",
}

# the faults of single lines, with their effects; rates are probabilities per line
LINE_FAULTS = {
    "missing_lines": "the line runs and is billed, but is missing from the results",
    "doubled_lines": "two results under the same id, with different answers",
    "malformed_lines": "the result is truncated or not JSON",
    "swapped_answers": "the result has the answer of another line",
    "status_zero": "a failed line with status code 0 (OpenAI), or without any known error",
    "item_error": "the line fails with an error of the service: sending it again may help",
    "item_invalid": "the line is refused: sending it again does not help",
    "no_usage": "the answer has no token usage",
    "refused_lines": "the whole batch is refused because of the line, before any line has run",
    "foreign_lines": "an additional result whose id belongs to no request",
}

# the faults of webhooks, with their effects; rates are probabilities per batch
WEBHOOK_FAULTS = {
    "lost": "no event is sent",
    "repeated": "the event is sent twice, with the same id",
    "late": "the event is sent up to batch_webhook_late_seconds later",
    "forged": "another event about the batch is sent, signed with another secret",
}

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")  # the only ones to which events are sent

# A batch or line has at most one fault of each group. Faults outside the groups are independent.
_GROUPS = (
    ("lost_create", "dropped_create", "late_create"),
    ("fail_validation", "stuck", "cancelled_elsewhere", "expire_part", "expire_all", "no_money_lines"),
    tuple(name for name in LINE_FAULTS if name != "foreign_lines"),
)


def fault_group(name: str) -> tuple[str, ...]:
    """Return the group of mutually exclusive faults to which a fault belongs."""
    return next((group for group in _GROUPS if name in group), (name,))


def in_seconds(value: Duration, setting: Attribute[Any]) -> float:
    """Return a setting in seconds. Ranges are checked later, together with those of other numbers."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return cast("float", value) if plain else seconds_of(setting.name, value)


def seconds(default: float) -> Any:
    return field(default=default, converter=Converter(in_seconds, takes_field=True))


def _batch_faults(faults: Mapping[str, float]) -> dict[str, float]:
    known = [*BATCH_FAULTS, *LINE_FAULTS]
    for name, rate in faults.items():
        if name not in known:
            raise ConfigError(f"unknown batch fault {name!r}; use one of {', '.join(known)}")
        if not 0 <= rate <= 1:
            raise ConfigError(f"the rate of batch fault {name!r} must be from 0 to 1, not {rate!r}")
    for group in _GROUPS:
        if sum(faults.get(name, 0.0) for name in group) > 1 + 1e-9:
            raise ConfigError(f"the rates of {', '.join(group)} in batch_faults add up to more than 1")
    return dict(faults)


def _webhook_faults(faults: Mapping[str, float]) -> dict[str, float]:
    for name, rate in faults.items():
        if name not in WEBHOOK_FAULTS:
            raise ConfigError(f"unknown webhook fault {name!r}; use one of {', '.join(WEBHOOK_FAULTS)}")
        if not 0 <= rate <= 1:
            raise ConfigError(f"the rate of webhook fault {name!r} must be from 0 to 1, not {rate!r}")
    return dict(faults)


@frozen(kw_only=True)
class BatchSettings:
    """The settings of batches. Times are seconds, or strings such as ``6h30min``.

    Args:
        batch_validating: time from the create call until the batch is queued or its validation fails.
        batch_queueing: time from the validation until the first line runs.
        batch_turnaround: median time from creation to end, including validation and queue.
        batch_turnaround_sigma: sigma of the lognormal distribution of turnarounds; 0 makes all equal.
        batch_window: time from the create call until the lines that have not run expire.
        batch_cancel_seconds: time from a cancel call until the batch has ended.
        batch_retention: time from the end until the results are deleted; 29 days by default, as with
            Anthropic.
        batch_enqueued_tokens: maximum prompt tokens in the unfinished batches of a model.
        batch_enqueued_refusal: above this limit, ``"late"`` creates the batch, whose validation then fails
            (OpenAI only; the other APIs always use ``"early"``); ``"early"`` answers the create call with
            429.
        batch_max_lines: maximum lines of a batch; ``None`` for the provider's limit.
        batch_max_bytes: maximum bytes of a batch's input; ``None`` for the provider's limit.
        batch_faults: rates by the names in :data:`BATCH_FAULTS` and :data:`LINE_FAULTS`.
        batch_fault_for: names the faults of a create call by its index and label; in-process only.
        batch_line_fault_for: names the fault of a line by the index of its batch, its position and its
            custom id; in-process only.
        batch_late_seconds: time within which a late create call takes effect.
        batch_list_lag: time within which a batch with the fault ``list_lag`` appears in lists.
        batch_get_lag: time after which a batch with the fault ``get_lag`` is found by its id, at the latest.
        batch_results_outage: time after the end of a batch with the fault ``results_unavailable`` during
            which downloads fail.
        batch_echo_metadata: False omits the metadata of OpenAI's batches, as some compatible servers do.
        batch_echo_input_file: False omits the id of the input file of OpenAI's batches.
        batch_inline_metadata: False omits the metadata of the inline results of Gemini's batches.
        batch_error_details: True adds ``details``, which the SDK cannot read, to Gemini's error lines.
        batch_webhook_url: the ``http://`` address on this machine to which an event is sent when a batch of
            any API except Anthropic's ends; ``None`` for no events. Takes effect when the server starts.
            Addresses on this machine that a create call names (Gemini, OpenRouter) replace it.
        batch_webhook_secret: the secret with which events are signed, as ``whsec_`` and base64.
        batch_webhook_faults: rates by the names in :data:`WEBHOOK_FAULTS`.
        batch_webhook_late_seconds: time within which late events are sent.
    """

    batch_validating: float = seconds(0.0)
    batch_queueing: float = seconds(0.0)
    batch_turnaround: float = seconds(0.0)
    batch_turnaround_sigma: float = 0.0
    batch_window: float = seconds(86_400.0)
    batch_cancel_seconds: float = seconds(0.0)
    batch_retention: float = seconds(29 * 86_400.0)
    batch_enqueued_tokens: float | None = None
    batch_enqueued_refusal: Literal["late", "early"] = "late"
    batch_max_lines: int | None = None
    batch_max_bytes: int | None = None
    batch_faults: Mapping[str, float] = field(factory=dict, converter=_batch_faults)
    batch_fault_for: BatchFaultFor | None = None
    batch_line_fault_for: LineFaultFor | None = None
    batch_late_seconds: float = seconds(1.0)
    batch_list_lag: float = seconds(1.0)
    batch_get_lag: float = seconds(1.0)
    batch_results_outage: float = seconds(1.0)
    batch_echo_metadata: bool = True
    batch_echo_input_file: bool = True
    batch_inline_metadata: bool = True
    batch_error_details: bool = False
    batch_webhook_url: str | None = None
    batch_webhook_secret: str | None = field(default=None, repr=False)
    batch_webhook_faults: Mapping[str, float] = field(factory=dict, converter=_webhook_faults)
    batch_webhook_late_seconds: float = seconds(1.0)

    def check_batches(self) -> None:
        """Raise ``ConfigError`` for a value out of range; the message names the setting."""
        optional = {"batch_enqueued_tokens", "batch_max_lines", "batch_max_bytes"}
        for attribute in fields(BatchSettings):
            name, value = attribute.name, getattr(self, attribute.name)
            if name in optional:
                if value is not None and not (math.isfinite(value) and value >= 1):
                    raise ConfigError(f"{name} must be a number of 1 or more, not {value!r}")
            elif attribute.type in ("float", float) and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")
        if self.batch_webhook_url is not None:
            self._check_webhooks(self.batch_webhook_url)
        if self.batch_enqueued_refusal not in ("late", "early"):
            raise ConfigError(
                f"batch_enqueued_refusal must be 'late' or 'early', not {self.batch_enqueued_refusal!r}"
            )

    def _check_webhooks(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in LOCAL_HOSTS:
            raise ConfigError(f"batch_webhook_url must be an http:// address on this machine, not {url!r}")
        try:
            key = base64.b64decode((self.batch_webhook_secret or "").removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not key:
            raise ConfigError("batch_webhook_url needs batch_webhook_secret: whsec_ and bytes in base64")


def checked_names(named: str | Sequence[str] | None, known: Mapping[str, Any], hook: str) -> tuple[str, ...]:
    """Return the faults named by a hook.

    Args:
        hook: the name of the setting, for the error.

    Raises:
        ConfigError: a name is not ``known``.
    """
    names = () if named is None else (named,) if isinstance(named, str) else tuple(named)
    for name in names:
        if name not in known:
            raise ConfigError(f"{hook} named an unknown fault {name!r}; use one of {', '.join(known)}")
    return names
