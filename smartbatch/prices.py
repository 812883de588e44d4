"""What a request costs: the user's own table over the bundled one of ``genai-prices``, one request at a time.

Prices with tiers are chosen by the size of a single request, so a cost is worked out for each request by
itself and costs are added, never usages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import Attribute, field, fields, frozen

from smartbatch.errors import ConfigError
from smartbatch.models import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, PriceCalculation

__all__ = ["Price", "PriceBook", "RateCard"]

MILLION = 1_000_000


def _usd(_: Price, attribute: Attribute[Any], value: Any) -> None:
    if value is None and attribute.name == "cached_input":
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"price {attribute.name} = {value!r} must be USD per million tokens, 0 or more")


@frozen
class Price:
    """A model's price in USD per million tokens.

    Args:
        input: prompt tokens.
        output: answer tokens.
        cached_input: prompt tokens read from the provider's cache; the price of ``input`` when ``None``.

    Raises:
        ConfigError: for a price that is negative or not a number.
    """

    input: float = field(validator=_usd)
    output: float = field(validator=_usd)
    cached_input: float | None = field(default=None, validator=_usd)

    @classmethod
    def parse(cls, model: str, table: Price | Mapping[str, Any]) -> Price:
        """Return the price written as ``table`` for ``model``, as in a configuration file.

        Raises:
            ConfigError: for a missing or unknown field, or a bad price; the text names the model.
        """
        if isinstance(table, Price):
            return table
        known = [a.name for a in fields(cls)]
        if not isinstance(table, Mapping) or not {"input", "output"} <= set(table) <= set(known):
            raise ConfigError(f"prices[{model!r}] must have input and output, may have cached_input")
        try:
            return cls(**table)
        except ConfigError as error:
            raise ConfigError(f"prices[{model!r}]: {error}") from None


@frozen
class Band:
    """USD per token for requests of more than ``above`` input tokens."""

    above: int
    input: float
    cached: float
    output: float
    reasoning: float


@frozen
class RateCard:
    """What one model costs now; cheap to ask for every request.

    Attributes:
        source: the table it comes from, such as ``genai-prices 0.2.3`` or ``user``.
        bands: rates by size of the request, smallest first.
        per_request: USD for each request on top.
        valid_until: Unix seconds after which the price book must be asked again.
    """

    source: str
    bands: tuple[Band, ...]
    per_request: float = 0.0
    valid_until: float = math.inf
    _exact: Callable[[Usage], float] | None = None

    def cost(self, usage: Usage) -> float:
        """Return the USD of one request that used ``usage``; never give it a sum over requests."""
        if self._exact is not None:
            return self._exact(usage)
        tokens = usage.input_tokens
        bands = self.bands
        band = bands[0]
        if len(bands) > 1:
            for band in reversed(bands):
                if tokens > band.above:
                    break
        cached = usage.cached_tokens
        if cached > tokens:  # some servers count the cache apart from the prompt
            cached = tokens
        thought = usage.reasoning_tokens
        return (
            (tokens - cached) * band.input
            + cached * band.cached
            + (usage.output_tokens - thought) * band.output
            + thought * band.reasoning
            + self.per_request
        )


class PriceBook:
    """Finds rate cards. May be used from any thread.

    Args:
        user: prices by ``provider:model`` or by model; they win over the bundled table and may name models
            it does not know.
    """

    def __init__(self, user: Mapping[str, Price] | None = None) -> None:
        self._user = {name: _card_of(price) for name, price in (user or {}).items()}
        self._cards: dict[tuple[str, str], RateCard | None] = {}

    def rates(self, provider: str, model: str, wall: float) -> RateCard | None:
        """Return the card of ``model``, or ``None`` when no table has a price for it.

        Args:
            provider: the prefix of the model's name, such as ``openai``.
            model: the name without the prefix.
            wall: the time of the request, Unix seconds; prices change with date and time of day.

        The first call reads the bundled table, which takes some 0.3 s; later ones take a dictionary look-up.
        """
        key = (provider, model)
        try:
            card = self._cards[key]
            if card is None or wall < card.valid_until:
                return card
        except KeyError:
            pass
        card = self._user.get(f"{provider}:{model}") or self._user.get(model)
        if card is None:
            card = _bundled(provider, model, wall)
        self._cards[key] = card
        return card


def _card_of(price: Price) -> RateCard:
    cached = price.input if price.cached_input is None else price.cached_input
    output = price.output / MILLION
    return RateCard("user", (Band(-1, price.input / MILLION, cached / MILLION, output, output),))


def _bundled(provider: str, model: str, wall: float) -> RateCard | None:
    """Read the card of ``model`` out of genai-prices, which is imported here because that takes long."""
    from datetime import UTC, datetime

    import genai_prices

    def calculate(usage: Usage) -> PriceCalculation:
        tokens: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "cache_read_tokens": min(usage.cached_tokens, usage.input_tokens),
            "output_tokens": usage.output_tokens,
            "output_reasoning_tokens": usage.reasoning_tokens,
        }
        return genai_prices.calc_price(
            genai_prices.Usage(**tokens),
            model,
            provider_id=provider,
            genai_request_timestamp=datetime.fromtimestamp(wall, UTC),
        )

    def exact(usage: Usage) -> float:
        return float(calculate(usage).total_price)

    try:
        found = calculate(Usage())
    except LookupError:
        return None
    if not _priced_by_token(found.model_price):
        return None
    # prices with conditions change at a date or an hour: they are looked up again every minute
    valid_until = (wall // 60 + 1) * 60 if isinstance(found.model.prices, list) else math.inf
    source = f"genai-prices {genai_prices.__version__}"
    card = RateCard(source, _bands(found.model_price), _per_request(found.model_price), valid_until)
    if _agrees(card, exact):
        return card
    return RateCard(source, card.bands, card.per_request, valid_until, exact)


def _priced_by_token(price: ModelPrice) -> bool:
    """Tell whether texts have a price: models paid by the hour or the page have none."""
    return price.input_mtok is not None or price.output_mtok is not None or price.requests_kcount is not None


def _per_request(price: ModelPrice) -> float:
    return float(_at(price.requests_kcount, 0) or 0) / 1000


def _bands(price: ModelPrice) -> tuple[Band, ...]:
    """Lay the tiers of all rates over each other, so that one look finds the rates of a request."""
    units = (price.input_mtok, price.cache_read_mtok, price.output_mtok, price.output_reasoning_mtok)
    starts = {tier.start for unit in units for tier in getattr(unit, "tiers", ())}
    bands = []
    for above in [-1, *sorted(starts)]:
        listed = [_at(unit, above + 1) for unit in units]
        entry, output = listed[0] or Decimal(0), listed[2] or Decimal(0)
        cached = entry if listed[1] is None else listed[1]
        reasoning = output if listed[3] is None else listed[3]
        bands.append(Band(above, *(float(rate / MILLION) for rate in (entry, cached, output, reasoning))))
    return tuple(bands)


def _at(unit: Any, tokens: int) -> Decimal | None:
    """Return the rate of a unit for a request of ``tokens`` input tokens: the last tier that lies below."""
    if not hasattr(unit, "tiers"):
        return unit  # type: ignore[no-any-return]
    passed = [tier.price for tier in unit.tiers if tokens > tier.start]
    return passed[-1] if passed else unit.base  # type: ignore[no-any-return]


def _agrees(card: RateCard, exact: Callable[[Usage], float]) -> bool:
    """Compare the card with the library around every tier: prices of another shape are left to it."""
    sizes = {0, 1000, *(size for band in card.bands[1:] for size in (band.above, band.above + 1))}
    usages = [Usage(size, 500, size // 3, 120) for size in sizes]
    return all(math.isclose(card.cost(u), exact(u), rel_tol=1e-9, abs_tol=1e-15) for u in usages)
