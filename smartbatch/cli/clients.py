"""From the arguments of a command to a client, and from a refusal to the option it is about."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Final

from smartbatch.cli.messages import print_event, say
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import (
    ConfigError,
    InputError,
    InvalidRequest,
    JobConflict,
    JobNotFound,
    SmartbatchError,
    StoreError,
)
from smartbatch.jobs.store.opening import default_place
from smartbatch.types import Generation

__all__ = ["REFUSALS", "client_of", "missing_store", "params_of", "report_refusal"]

REFUSALS: Final = (ConfigError, InputError, InvalidRequest, JobConflict, JobNotFound, StoreError)
"""Errors that end a command with exit code 2."""

_OTHER_NAMES: Final = {
    "parallelism = ": "--concurrency",
    "call_timeout = ": "--timeout",
    "batch_poll_interval = ": "--poll-interval",
    "batch_timeout = ": "--batch-timeout",
    "fallback=": "--fallback",
}
"""Settings whose option is called differently, so that an error names both."""

_OF_BATCHES: Final = ("poll_interval", "batch_timeout", "batch_max_requests", "fallback")
"""Options that have no effect in real time."""


def report_refusal(error: SmartbatchError) -> None:
    """Print why a command is refused, and which option that is about."""
    flag = next((f" ({flag})" for key, flag in _OTHER_NAMES.items() if key in error.message), "")
    if isinstance(error, StoreError):
        flag = "; --store names another place for what a run keeps"
    say(f"smartbatch: {error.message}{flag}")


def params_of(args: argparse.Namespace) -> Generation:
    return Generation(
        system=args.system, max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )


def client_of(args: argparse.Namespace, **options: str) -> BatchingClient:
    """Return the client of a run, not started.

    Args:
        options: of the provider; ``--provider-option`` wins over them.

    Raises:
        ConfigError: for settings that cannot be used, such as an unknown model or a missing key.
    """
    for name in _OF_BATCHES if args.batching_strategy == "individual" else ():
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is about batches: leave --batching-strategy individual out")
    given: dict[str, Any] = {
        "parallelism": args.concurrency,
        "max_rpm": args.max_rpm,
        "max_tpm": args.max_tpm,
        "budget": args.budget,
        "call_timeout": args.timeout,
        "retries": args.retries,
        "batching_strategy": args.batching_strategy,
        "store": args.store,
        "batch_poll_interval": args.poll_interval,
        "batch_timeout": args.batch_timeout,
        "batch_max_requests": args.batch_max_requests,
    }
    return BatchingClient(
        args.model,
        config=BatchingConfig.load(file=args.config, **given),
        provider_options={**options, **_provider_options(args.provider_option)},
        system=args.system,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        observers=[print_event] if args.verbose else [],
    )


def _provider_options(pairs: list[str]) -> dict[str, Any]:
    """Read ``K=V`` pairs; a value that is JSON, such as ``true`` or ``30``, is that, anything else a text.

    Raises:
        ConfigError: for a pair without ``=``.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--provider-option {key!r:.40} needs the form K=V, such as api=responses")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    return options


def missing_store(place: str | None) -> str | None:
    """Return the path of a store that does not exist yet; ``None`` where there is one, or a server.

    Args:
        place: the setting ``store``.
    """
    place = place or default_place()
    if "postgres" in place.partition("://")[0]:
        return None
    path = os.path.expanduser(place.removeprefix("sqlite:///"))
    return None if os.path.exists(path) else path
