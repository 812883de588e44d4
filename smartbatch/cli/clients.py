"""From the arguments of a command to a client."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from attrs import fields_dict

from smartbatch.cli.messages import print_event
from smartbatch.cli.provider_options import options_of
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.validation import admit_defaults
from smartbatch.errors import ConfigError
from smartbatch.jobs.store import is_server, resolved_place
from smartbatch.runs.row_requests import PromptMaker
from smartbatch.types import Embedding, Generation

_PARAMETERS: Final = ("system", "max_tokens", "temperature", "seed")
_OF_BATCHES: Final = ("batch_poll_interval", "batch_timeout", "batch_max_requests", "batch_fallback")
"""Options that have no effect in real time."""
_OF_VECTORS: Final = ("task_type", "dimensions")


def config_of(args: argparse.Namespace) -> BatchingConfig:
    """Return the settings of a command; an option that sets one has its name.

    Raises:
        ConfigError: for a setting that cannot be used.
    """
    names = fields_dict(BatchingConfig)
    settings: dict[str, Any] = {name: value for name, value in vars(args).items() if name in names}
    return BatchingConfig.load(file=args.config, **settings)


def params_of(args: argparse.Namespace) -> Generation:
    return Generation(**{name: getattr(args, name) for name in _PARAMETERS})


def embedding_of(args: argparse.Namespace) -> Embedding | None:
    """Return the kind of vector that ``--embed`` asks for; ``None`` where texts are asked for.

    Raises:
        ConfigError: for an option that has no effect on what is asked for.
    """
    why = "is about answers and has no effect with --embed: leave it out" if args.embed else "needs --embed"
    for name in (*_PARAMETERS, "n") if args.embed else _OF_VECTORS:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} {why}")
    return Embedding(args.task_type, args.dimensions) if args.embed else None


def answers_each(args: argparse.Namespace) -> int:
    """Return how many answers each row gets.

    Raises:
        InvalidRequest: the number cannot be used.
    """
    return 1 if args.n is None else admit_defaults(Generation(n=args.n)).n or 1


def client_of(args: argparse.Namespace, **options: str) -> BatchingClient:
    """Return the client of a run, not started.

    Args:
        options: of the provider; ``--provider-option`` wins over them.

    Raises:
        ConfigError: for settings that cannot be used, such as an unknown model or a missing key.
    """
    for name in _OF_BATCHES if args.strategy == "individual" else ():
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is about batches: leave --strategy individual out")
    return BatchingClient(
        args.model,
        config=config_of(args),
        provider_options={**options, **options_of(args)},
        observers=[print_event] if args.verbose else [],
        **{name: getattr(args, name) for name in _PARAMETERS},
    )


def missing_store(place: str | None) -> str | None:
    """Return the path of a store that does not exist yet; ``None`` where there is one, or a server.

    Args:
        place: the setting ``store``.

    Raises:
        StoreError, ConfigError: it cannot be the place of a store.
    """
    place = resolved_place(place)
    return None if is_server(place) or os.path.exists(place) else place


def prompt_maker(args: argparse.Namespace) -> PromptMaker:
    """Return what makes the prompts of rows as the arguments say.

    Raises:
        InputError: the template cannot be used.
    """
    return PromptMaker(
        template=args.template,
        prompt_field=args.prompt_field,
        id_field=args.id_field,
        on_missing=args.on_missing,
    )
