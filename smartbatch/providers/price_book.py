"""Looks up prices in the user's own table or the bundled one of ``genai-prices``.

For batches, a model's batch rates in the table apply. Without them, the discount that the host documents
for all models applies (:attr:`~smartbatch.providers.hosts.Host.batch_share`); without either, the price is
unknown. The flex tier, which not every model has, is priced only by rates in the table.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

from attrs import asdict, evolve, frozen

from smartbatch._files import check_own, own_folder, state_folder
from smartbatch._fork import imported
from smartbatch._version import __version__
from smartbatch.errors import ConfigError, StoreError, did_you_mean
from smartbatch.prices import MILLION, Band, Price, Processing, RateCard
from smartbatch.providers.hosts import HOSTS
from smartbatch.types import Usage

if TYPE_CHECKING:
    from datetime import datetime

    from genai_prices.types import ModelInfo, ModelPrice, PriceCalculation

_CONTEXTS: Mapping[str, dict[str, str]] = {
    "batch": {"processing": "batch"},
    "flex": {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
}
"""The bundled table's names for batch and flex processing."""

_KEPT_PRICES_FILE = "prices.json"
"""File in the user's state folder that keeps prices of the bundled table for later processes, because
importing genai-prices takes 0.3 s.
"""

_WEEKEND = (5, 6)  # weekdays


class PriceBook:
    """Finds rate cards. Thread-safe.

    Args:
        user: prices by ``provider:model`` or by model; they take precedence over the bundled table and may
            include models that it does not list. A string names a model with the same
            price, as ``provider:model``.
    """

    def __init__(self, user: Mapping[str, Price | str] | None = None) -> None:
        self._user = dict(user or {})
        self._cards: dict[tuple[str, str, Processing], RateCard | None] = {}

    def rates(
        self, provider: str, model: str, wall: float, processing: Processing = "standard"
    ) -> RateCard | None:
        """Return the card of ``model``, or ``None`` if no table has a price for it.

        The first call for a model reads the bundled table, which takes about 0.3 s, and stores the result for
        later processes; later calls are dictionary look-ups.

        Args:
            provider: the prefix of the model's name, such as ``openai``.
            model: the name without the prefix.
            wall: the time of the request, Unix seconds; prices depend on the date and time of day.
            processing: ``batch`` for the price through the provider's Batch API, ``flex`` for its slower
                tier, ``priority`` for its faster one. A user's own price also applies to the faster one.
        """
        key = (provider, model, processing)
        try:
            card = self._cards[key]
            if card is None or wall < card.valid_until:
                return card
        except KeyError:
            pass
        price = self._user.get(f"{provider}:{model}") or self._user.get(model)
        if isinstance(price, str):
            provider, _, model = price.partition(":")
            card = self.rates(provider, model, wall, processing)
        elif price is not None:
            card = _card_of(price, processing)
        else:
            card = _bundled(provider, model, wall, processing)
        self._cards[key] = card
        return card

    def check_references(self, wall: float) -> None:
        """Check that each model named in place of a price has a price.

        Raises:
            ConfigError: a price is unknown; the message suggests the nearest listed model.
        """
        for model, price in self._user.items():
            if not isinstance(price, str):
                continue
            provider, _, name = price.partition(":")
            if self.rates(provider, name, wall) is None:
                near = did_you_mean(name, listed_models(provider))
                raise ConfigError(f"prices[{model!r}] = {price!r}: the price of that model is unknown{near}")

    def check_known(self, asked: Iterable[tuple[str, Processing]], wall: float) -> None:
        """Check that a budget can be enforced.

        Args:
            asked: pairs of a model, as ``provider:model``, and how its requests are processed.
            wall: the current Unix time, because prices change.

        Raises:
            ConfigError: a price is unknown.
        """
        for label, processing in asked:
            provider, _, model = label.partition(":")
            if self.rates(provider, model, wall, processing) is None:
                where = " in batches" if processing == "batch" else ""
                raise ConfigError(
                    f"a budget is set, but the price of {label}{where} is unknown, so the budget "
                    "cannot be enforced: "
                    "add its price to prices, or set allow_unknown_price"
                )


def listed_models(provider: str) -> tuple[str, ...]:
    """Return a provider's models in the bundled table, whether or not they are priced by tokens."""
    table_id = _table_id(provider)
    if table_id is None:
        return ()
    try:
        snapshot = imported("genai_prices.data_snapshot").get_snapshot()
        found = snapshot.find_provider(None, table_id, None)
    except LookupError:
        return ()
    families = HOSTS[provider].families if provider in HOSTS else ()
    listed = map(_name_of, found.models)
    return tuple(name for name in listed if not families or any(each in name for each in families))


def _name_of(model: ModelInfo) -> str:
    """Return a name that the table recognizes, which the model's own ID may not be."""
    clauses = (model.match, *getattr(model.match, "or_", ()))
    names = [model.id, *(each.equals for each in clauses if hasattr(each, "equals"))]
    return next(filter(model.match.is_match, names), model.id)


def _table_id(provider: str) -> str | None:
    """Return the provider's name in the bundled table; ``None`` if the table does not list it."""
    return HOSTS[provider].price_id if provider in HOSTS else provider


def _card_of(price: Price, processing: Processing) -> RateCard | None:
    entry, output = price.input, price.output
    if processing == "flex":
        if price.flex_input is None or price.flex_output is None:
            return None
        entry, output = price.flex_input, price.flex_output
    elif processing == "batch":
        paid = 1 - price.batch_discount
        entry = entry * paid if price.batch_input is None else price.batch_input
        output = output * paid if price.batch_output is None else price.batch_output
    cached = entry if price.cached_input is None else price.cached_input
    if processing != "standard":
        cached = min(cached, entry)
    # cache writes cost the same multiple of input for each kind of processing
    written = entry if price.cache_write is None else price.cache_write * _share_of(entry, price.input)
    longer = written if price.cache_write_1h is None else price.cache_write_1h * _share_of(entry, price.input)
    heard = entry if price.audio_input is None else price.audio_input * _share_of(entry, price.input)
    reheard = heard if price.cached_input is None else cached
    spoken, drawn = (
        output if usd is None else usd * _share_of(output, price.output)
        for usd in (price.audio_output, price.image_output)
    )
    usd = (entry, cached, output, output, written, longer, heard, reheard, spoken, drawn)
    return RateCard("user", (Band(-1, *(each / MILLION for each in usd)),))


def _share_of(price: float, standard: float) -> float:
    return price / standard if standard else 1.0


def _bundled(provider: str, model: str, wall: float, processing: Processing) -> RateCard | None:
    # 1. The table is already imported, and the user may have replaced it: use it.
    if "genai_prices" in sys.modules:
        return _found(provider, model, wall, processing)
    table, name = _table_on_disk(), f"{provider}:{model}"
    if table is None:
        return _found(provider, model, wall, processing)
    # 2. An earlier process stored prices from the same version of the table, and they are still valid.
    #    The errors mean that another version of this library stored them.
    with suppress(TypeError, KeyError, ValueError, AttributeError):
        return _card_kept(_read_kept(table)[name][processing], wall)
    # 3. Import the table, and store its prices for the model.
    cards = {each: _found(provider, model, wall, each) for each in get_args(Processing)}
    if all(card is None or card.exact is None for card in cards.values()):
        shown = {each: None if card is None else asdict(card) for each, card in cards.items()}
        _keep(table, {name: {each: {"since": wall, "card": card} for each, card in shown.items()}})
    return cards[processing]


def _table_on_disk() -> str | None:
    """Identify the version of the table on disk; ``None`` if it is not in a file."""
    spec = find_spec("genai_prices")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = os.path.join(spec.submodule_search_locations[0], "data.py")
    try:
        found = os.stat(path)
    except OSError:
        return None
    return f"{path} {found.st_size} {found.st_mtime_ns} {__version__}"


def _card_kept(kept: Mapping[str, Any], wall: float) -> RateCard | None:
    """Return a stored card.

    Raises:
        ValueError: the card is not valid at ``wall``.
        TypeError, KeyError, AttributeError: the stored value is not a card.
    """
    card = kept["card"]
    if not kept["since"] <= wall < (math.inf if card is None else card["valid_until"]):
        raise ValueError("the stored prices are not valid at this time")
    return card and RateCard(**{**card, "bands": tuple(Band(**band) for band in card["bands"])})


_KEPT_MODELS = 256
"""Maximum number of models with stored prices; the oldest are dropped."""


def _read_kept(table: str) -> dict[str, Any]:
    path = os.path.join(state_folder(), _KEPT_PRICES_FILE)
    try:
        check_own(path)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return dict(found["values"]) if found["of"] == table else {}
    except (OSError, StoreError, ValueError, TypeError, KeyError):
        return {}


def _keep(table: str, values: Mapping[str, Any]) -> None:
    last = dict(list({**_read_kept(table), **values}.items())[-_KEPT_MODELS:])
    path = os.path.join(state_folder(), _KEPT_PRICES_FILE)
    part = f"{path}.{os.getpid()}"
    with suppress(OSError, StoreError):
        own_folder(os.path.dirname(path))
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                json.dump({"of": table, "values": last}, file)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise


def _found(provider: str, model: str, wall: float, processing: Processing) -> RateCard | None:
    standard = _listed(provider, model, wall)
    if standard is None:
        return None
    if processing == "standard":
        return standard.card
    own = _listed(provider, model, wall, _CONTEXTS[processing])
    assert own is not None  # the model is listed, and missing rates default to its standard ones
    if own.rates != standard.rates:
        return own.card
    host = HOSTS.get(provider)
    # not every model has the other tiers, so no general discount or surcharge applies
    if processing != "batch" or host is None or host.batch_share is None:
        return None
    # the table may have batch rates for this model from a later date, so check again then
    cheaper = _cheaper(standard.card, host.batch_share, host.cached_batch_share)
    return evolve(cheaper, valid_until=own.card.valid_until)


def _cheaper(card: RateCard, share: float, cached_share: float) -> RateCard:
    """Multiply the rates by a share; cached input never costs more than other input."""
    bands = []
    for band in card.bands:
        rates = {name: rate * share for name, rate in asdict(band).items() if name != "above"}
        rates["cached"] = min(band.cached * cached_share, rates["input"])
        bands.append(evolve(band, **rates))
    source = f"{card.source}, batch at {share:.0%} as documented"
    exact = card.exact
    whole = None if exact is None else lambda usage: share * exact(usage)
    return evolve(card, source=source, bands=tuple(bands), exact=whole)


@frozen
class _Listed:
    card: RateCard
    rates: Mapping[str, Any]


def _listed(provider: str, model: str, wall: float, context: dict[str, str] | None = None) -> _Listed | None:
    """Return a model's price from genai-prices. The import is deferred because it takes 0.3 s."""
    table_id = _table_id(provider)
    if table_id is None:
        return None
    genai_prices = imported("genai_prices")
    moment = _priced_moment(provider, wall)

    def calculate(usage: Usage) -> PriceCalculation:
        price: PriceCalculation = genai_prices.calc_price(
            genai_prices.Usage(**_table_tokens(usage)),
            model,
            provider_id=table_id,
            genai_request_timestamp=moment,
            price_context=context,
        )
        return price

    def exact(usage: Usage) -> float:
        return float(calculate(usage).total_price)

    try:
        found = calculate(Usage())
    except LookupError:
        return None
    price = found.model_price
    if price.input_mtok is None and price.output_mtok is None and price.requests_kcount is None:
        return None  # models priced by the hour or by the page
    valid_until = _next_change(found.model, wall, variants=context is not None)
    source = f"genai-prices {genai_prices.__version__}"
    bands = _bands(price)
    host = HOSTS.get(provider)
    writes = host is not None and host.writes_cache and any(band.written > band.input for band in bands)
    card = RateCard(source, bands, float(_at(price.requests_kcount, 0) or 0) / 1000, valid_until, writes)
    if not _agrees(card, exact):
        card = evolve(card, exact=exact)
    return _Listed(card, dict(vars(price)))


def _table_tokens(usage: Usage) -> dict[str, int]:
    """Return tokens by the names of genai-prices, which raises errors if parts exceed their total."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - cached)
    reheard = min(usage.cached_audio_tokens, usage.audio_tokens, cached)
    thought = min(usage.reasoning_tokens, usage.output_tokens)
    spoken = min(usage.output_audio_tokens, usage.output_tokens - thought)
    tokens = {
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": cached,
        "cache_write_tokens": written,
        "output_tokens": usage.output_tokens,
        "output_reasoning_tokens": thought,
        "input_audio_tokens": reheard
        + min(usage.audio_tokens - reheard, usage.input_tokens - cached - written),
        "cache_audio_read_tokens": reheard,
        "output_audio_tokens": spoken,
        "output_image_tokens": min(usage.output_image_tokens, usage.output_tokens - thought - spoken),
    }
    if usage.cache_write_1h_tokens:
        tokens["cache_write_1h_tokens"] = min(usage.cache_write_1h_tokens, written)
    return tokens


def _priced_moment(provider: str, wall: float) -> datetime:
    """Return the time whose prices apply at ``wall``."""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(wall, UTC)
    host = HOSTS.get(provider)
    if host is None or host.weekend_price_hour is None or moment.weekday() not in _WEEKEND:
        return moment
    return moment.replace(hour=host.weekend_price_hour)


def _next_change(model: ModelInfo, wall: float, *, variants: bool) -> float:
    """Return the Unix time at which conditional prices may change next."""
    from datetime import UTC, datetime, time, timedelta

    starts = imported("genai_prices.types").StartDateConstraint
    today = datetime.fromtimestamp(wall, UTC).date()
    asked = [*(model.prices if isinstance(model.prices, list) else ())]
    asked += (model.price_variants or ()) if variants else ()
    changes = [math.inf]
    for constraint in (each.constraint for each in asked if each.constraint is not None):
        if isinstance(constraint, starts):
            changes.append(datetime.combine(constraint.start_date, time(), UTC).timestamp())
        else:  # prices depend on the time of day, and some hosts have other hours on weekends
            days = (today, today + timedelta(days=1))
            hours = (constraint.start_time, constraint.end_time, time(tzinfo=UTC))
            changes += [datetime.combine(day, hour).timestamp() for day in days for hour in hours]
    return min(each for each in changes if each > wall)


def _bands(price: ModelPrice) -> tuple[Band, ...]:
    """Merge the tiers of all rates, so that one band has all rates of a request."""
    units = (
        price.input_mtok,
        price.cache_read_mtok,
        price.output_mtok,
        price.output_reasoning_mtok,
        price.cache_write_mtok,
        price.cache_write_1h_mtok,
        price.input_audio_mtok,
        price.cache_audio_read_mtok,
        price.output_audio_mtok,
        price.output_image_mtok,
    )
    starts = {tier.start for unit in units for tier in getattr(unit, "tiers", ())}
    bands = []
    for above in [-1, *sorted(starts)]:
        listed = [_at(unit, above + 1) for unit in units]
        entry, output = listed[0] or Decimal(0), listed[2] or Decimal(0)
        cached = entry if listed[1] is None else listed[1]
        reasoning = output if listed[3] is None else listed[3]
        written = entry if listed[4] is None else listed[4]
        longer = written if listed[5] is None else listed[5]
        heard = entry if listed[6] is None else listed[6]
        reheard = (heard if listed[1] is None else cached) if listed[7] is None else listed[7]
        spoken, drawn = (output if rate is None else rate for rate in listed[8:])
        usd = (entry, cached, output, reasoning, written, longer, heard, reheard, spoken, drawn)
        bands.append(Band(above, *(float(rate / MILLION) for rate in usd)))
    return tuple(bands)


def _at(unit: Any, tokens: int) -> Decimal | None:
    """Return the rate of the highest tier that ``tokens`` input tokens exceed."""
    if not hasattr(unit, "tiers"):
        return unit  # type: ignore[no-any-return]
    passed = [tier.price for tier in unit.tiers if tokens > tier.start]
    return passed[-1] if passed else unit.base  # type: ignore[no-any-return]


def _agrees(card: RateCard, exact: Callable[[Usage], float]) -> bool:
    """Whether the card and the library compute equal costs on both sides of every tier boundary."""
    sizes = {0, 1000, *(size for band in card.bands[1:] for size in (band.above, band.above + 1))}
    usages = [
        Usage(
            size,
            500,
            size // 3,
            120,
            cache_write_tokens=size // 2,
            cache_write_1h_tokens=size // 4,
            audio_tokens=size // 6,
            cached_audio_tokens=size // 12,
            output_audio_tokens=60,
            output_image_tokens=50,
        )
        for size in sizes
    ]
    return all(math.isclose(card.cost(u), exact(u), rel_tol=1e-9, abs_tol=1e-15) for u in usages)
