"""``smartbatch models`` lists providers, and models with their prices; ``smartbatch pause`` and ``smartbatch
resume`` pause a model in all processes that use a store.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

from smartbatch._words import escape
from smartbatch.cli.clients import config_of, missing_store
from smartbatch.cli.printing import ReaderLeft, print_out
from smartbatch.prices import MILLION, Processing
from smartbatch.providers import registry
from smartbatch.providers.hosts import HOSTS
from smartbatch.providers.price_book import PriceBook, listed_models
from smartbatch.stored_jobs import StoredJobs


def run(args: argparse.Namespace) -> int:
    config = config_of(args)
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
                "Prices are in USD per million tokens; if they depend on the request size, for the smallest."
            )
            unknown = ", ".join(row["model"] for row in rows if row["input"] is None)
            if unknown:
                lines.append(f"No known price for {unknown}; set one under prices in a settings file.")
    if lines:
        print_out("\n".join(lines))
    return 0


def _providers(prices: Any) -> Iterator[dict[str, Any]]:
    for prefix in registry.prefixes():
        provider = registry.example(prefix)
        host = HOSTS.get(prefix)
        yield {
            "prefix": f"{prefix}:",
            "key": None if host is None or not host.needs_key else host.key_variable() is not None,
            "batch": provider.batches() is not None,
            "flex": provider.flex("any") is not None,
            "embeddings": provider.capabilities.max_texts > 0,
            "prices_known": len(list(priced(prefix, prices))) if provider.capabilities.priced else None,
        }


def priced(prefix: str, prices: Mapping[str, Any]) -> Iterator[str]:
    """Yield the models with a prefix whose price is known."""
    book, now = PriceBook(prices), time.time()
    return (each for each in _listed(prefix, prices) if book.rates(prefix, each, now) is not None)


def _listed(prefix: str, prices: Mapping[str, Any]) -> list[str]:
    """Return the models with a prefix that are in the user's or the bundled price table."""
    own = {key.removeprefix(f"{prefix}:") for key in prices if key.startswith(f"{prefix}:")}
    return sorted({*own, *listed_models(prefix)})


def _models(name: str, prices: Any) -> Iterator[dict[str, Any]]:
    prefix, _, model = name.partition(":")
    if not model and prefix in registry.prefixes():
        named = _listed(prefix, prices)
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def pause(args: argparse.Namespace) -> int:
    """Pause, resume or list models; return 1 if a model to be resumed is not paused."""
    config = config_of(args)
    path = missing_store(config.store)
    pauses = args.command == "pause" and args.names
    if path is not None and not pauses:  # listing and resuming create no file
        with suppress(ReaderLeft):
            print_out(f"nothing is paused: there is no store at {escape(path)} yet")
        return int(args.command == "resume")
    stored = StoredJobs(config)
    missing = 0
    try:
        for name in args.names:
            with suppress(ReaderLeft):  # continue with the other names
                provider, _, model = name.partition(":")
                if args.command == "pause":
                    print_out(escape(str(stored.pause(provider, model or None, reason=args.reason))))
                elif stored.resume(provider, model or None):
                    print_out(f"{escape(name)} is resumed")
                else:
                    missing += 1
                    print_out(f"{escape(name)} is not paused")
        if not args.names:
            found = [escape(str(pause)) for pause in stored.paused()]
            print_out("\n".join(found) or f"nothing is paused in {stored.place}")
    finally:
        stored.close(0)
    return int(missing > 0)
