"""``smartbatch models``: providers by prefix, what they can do, and the prices that are known."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from smartbatch.cli.option_tables import add_options

_HELP = """\
List the providers by the prefix in PROVIDER:MODEL, and whether they have batches, a flex tier and embeddings.
With a prefix: its models with a known price. With PROVIDER:MODEL: that one. Nothing is sent and no key is
needed.

examples:
  smartbatch models
  smartbatch models openai
  smartbatch models anthropic:claude-haiku-5-5 --json
"""
_OPTIONS = """
--config FILE          TOML or YAML file of settings, for your own prices
--json                 JSON lines instead of a table
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand by ``add``, which makes its parser."""
    parser = add("models", help="list providers, and models with their prices", description=_HELP)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a prefix, or PROVIDER:MODEL")
    add_options(parser.add_argument, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Print a row for each provider, or for each model of the names."""
    from smartbatch.cli.standard_output import print_out
    from smartbatch.config import BatchingConfig

    config = BatchingConfig.load(file=args.config)
    if args.names:
        rows = [row for name in args.names for row in _models(name, config.prices)]
    else:
        rows = list(_providers(config.prices))
    if args.json:
        lines = [json.dumps(row) for row in rows]
    else:
        lines = table([[key.replace("_", " ") for key in rows[0]], *map(_words, rows)] if rows else [])
        if args.names:
            lines.append(
                "USD per million tokens; where a price depends on a request's size, that of the smallest."
            )
            unknown = ", ".join(row["model"] for row in rows if row["input"] is None)
            if unknown:
                lines.append(f"no price is known of {unknown}; give one under prices")
    if lines:
        print_out("\n".join(lines))
    return 0


def _providers(prices: Any) -> Iterator[dict[str, Any]]:
    from smartbatch.prices import PriceBook
    from smartbatch.providers import registry

    book, now = PriceBook(prices), time.time()
    for prefix in registry.prefixes():
        provider = registry.example(prefix)
        yield {
            "prefix": f"{prefix}:",
            "batch": provider.batches() is not None,
            "flex": provider.flex("any") is not None,
            "embeddings": provider.capabilities.max_texts > 0,
            "prices_known": sum(book.rates(prefix, each, now) is not None for each in _known(prefix, prices)),
        }


def _known(prefix: str, prices: Any) -> list[str]:
    """Return the models of a prefix that the user's table of prices or the bundled one has."""
    from smartbatch.prices import listed_models

    own = {key.removeprefix(f"{prefix}:") for key in prices if key.startswith(f"{prefix}:")}
    return sorted({*own, *listed_models(prefix)})


def _models(name: str, prices: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each model of a prefix that has a price, or for the model that is named.

    Raises:
        ConfigError: no provider has the prefix.
    """
    from smartbatch.prices import MILLION, PriceBook, Processing
    from smartbatch.providers import registry

    prefix, _, model = name.partition(":")
    if not model and prefix in registry.prefixes():
        named = _known(prefix, prices)
    else:
        prefix, model = registry.parse_model(name if model else f"{prefix}:")
        named = [model]
    book, now = PriceBook(prices), time.time()
    for each in named:
        row: dict[str, Any] = {"model": f"{prefix}:{each}"}
        for processing in get_args(Processing):
            card = book.rates(prefix, each, now, processing)
            for field in ("input", "output"):
                key = field if processing == "standard" else f"{processing}_{field}"
                row[key] = None if card is None else round(getattr(card.bands[0], field) * MILLION, 6)
        if model or row["input"] is not None:
            yield row


def _words(row: dict[str, Any]) -> list[str]:
    written = {None: "-", True: "yes", False: "no"}
    return [written[v] if v is None or isinstance(v, bool) else f"{v}" for v in row.values()]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
