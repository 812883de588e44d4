"""Whether a budget can be kept: only where the prices of all that is asked are known."""

from __future__ import annotations

from collections.abc import Iterable

from smartbatch.errors import ConfigError
from smartbatch.prices import PriceBook, Processing

__all__ = ["check_priced"]


def check_priced(prices: PriceBook, asked: Iterable[tuple[str, Processing]], wall: float) -> None:
    """Check that a budget can be kept.

    Args:
        asked: models, as ``provider:model``, and how their requests are processed.
        wall: Unix seconds, for prices that change.

    Raises:
        ConfigError: a price is unknown.
    """
    for label, processing in asked:
        provider, _, model = label.partition(":")
        if prices.rates(provider, model, wall, processing) is None:
            where = " in batches" if processing == "batch" else ""
            raise ConfigError(
                f"a budget is set, but the price of {label}{where} is unknown, so it could not be kept: "
                "give a price under prices, or set allow_unknown_price"
            )
