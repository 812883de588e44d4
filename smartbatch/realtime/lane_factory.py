"""The lanes of a client: for each kind of call, its gates, its window and its layers, wired together."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.batching.packing import BatchCompiler, batch_key, random_word
from smartbatch.core.batching.packing_health import PackingHealth
from smartbatch.core.batching.window import BatchAccumulator, Window
from smartbatch.core.limits.breaker import CircuitBreaker
from smartbatch.core.limits.classifiers import Classifiers
from smartbatch.core.limits.retry import RetryBudget
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.errors import ConfigError
from smartbatch.prices import PriceBook, RateCard
from smartbatch.providers.base import Provider
from smartbatch.providers.flex import FlexTier
from smartbatch.realtime.call.layers import Middleware, build_call
from smartbatch.realtime.lane import Lane, ProviderHealth
from smartbatch.realtime.shared_quota import shared_quota
from smartbatch.types import Embedding, Kind

__all__ = ["LaneFactory"]


@frozen(eq=False)
class _Health:
    """What all lanes of one provider and model share."""

    breaker: CircuitBreaker
    provider_health: ProviderHealth
    retry_budget: RetryBudget
    rates: RateCard | None


class LaneFactory:
    """Builds a lane of one engine when it is first needed, and remembers it.

    Args:
        opened: told of each new lane, so that the engine serves it.
        calibration: returns what is known of a model's tokens, by its name with the provider and the kind of
            request; lanes go on teaching it.
    """

    def __init__(
        self,
        config: BatchingConfig,
        clock: Clock,
        classifiers: Classifiers,
        middleware: Sequence[Middleware],
        opened: Callable[[Lane], None],
        calibration: Callable[[str, Kind], Calibration] = lambda _model, _kind: Calibration(),
    ) -> None:
        self._config = config
        self._calibration = calibration
        self._clock = clock
        self._classifiers = classifiers
        self._middleware = tuple(middleware)
        self._opened = opened
        self._prices = PriceBook(config.prices)
        # Ids of packs are secrets, so they do not come from the dice a user may seed.
        self._words = partial(random_word, random.SystemRandom())
        self._building = threading.Lock()
        self._lanes: dict[tuple[str, str, Embedding | None, bool], Lane] = {}
        self._health: dict[tuple[str, str], _Health] = {}

    def of(
        self, provider: Provider, model: str, embedding: Embedding | None = None, *, flex: bool = False
    ) -> Lane:
        """Return the lane for generating with ``model``, or for vectors of one kind.

        Args:
            flex: the lane of the provider's slower tier; the standard one where there is no such tier, or
                no price of ``model`` in it.

        Raises:
            ConfigError: there is a budget and the model's price is unknown.
        """
        key = (provider.name, model, embedding, flex)
        lane = self._lanes.get(key)
        if lane is not None:
            return lane
        standard = self.of(provider, model, embedding) if flex else None
        with self._building:
            lane = self._lanes.get(key)
            if lane is None and standard is not None:
                lane = self._lanes[key] = self._flex_beside(standard) if embedding is None else standard
            elif lane is None:
                lane = self._build(provider, model, embedding)
                if embedding is None and self._packs(provider):
                    lane.packed = self._build(provider, model, None, packed=True)
                    self._opened(lane.packed)
                self._opened(lane)
                self._lanes[key] = lane  # last, so that no Ctrl-C can leave a lane here that nobody serves
        return lane

    def _flex_beside(self, standard: Lane) -> Lane:
        """Return a lane for the slower tier of the model of ``standard``; that one where there is none."""
        provider, model = standard.provider, standard.model
        tier = provider.flex(model)
        rates = None
        if tier is not None and provider.capabilities.priced:
            rates = self._prices.rates(provider.name, model, self._clock.wall(), "flex")
        if rates is None:
            return standard
        lane = self._build(provider, model, None, tier=tier)
        lane.standard, lane.rates = standard, rates
        self._opened(lane)
        return lane

    def _packs(self, provider: Provider) -> bool:
        """Whether prompts are packed: it was asked for, and the provider cannot share calls by itself."""
        return self._config.packing and self._config.max_batch_size > 1 >= provider.capabilities.max_shared

    def _build(
        self,
        provider: Provider,
        model: str,
        embedding: Embedding | None,
        *,
        packed: bool = False,
        tier: FlexTier | None = None,
    ) -> Lane:
        config, abilities = self._config, provider.capabilities
        label, kind = f"{provider.name}:{model}", Kind.GENERATE if embedding is None else Kind.EMBED
        health = self._health.get((provider.name, model)) or self._new_health(provider, model)
        self._health[provider.name, model] = health
        most, max_tokens = min(abilities.max_shared, config.max_batch_size), math.inf
        compiler: BatchCompiler | None = None
        if embedding is not None:
            most, max_tokens = abilities.max_texts, abilities.max_text_tokens
        elif packed:
            most = config.max_batch_size
            compiler = BatchCompiler(self._words, native_schema=abilities.schemas)
        elif tier is not None:
            most = 1  # the tier is asked for by each request
        return Lane(
            provider=provider,
            model=model,
            label=label,
            accumulator=BatchAccumulator(
                Window(
                    seconds=config.batch_window,
                    max_size=1 if config.batching_strategy == "individual" else max(1, most),
                    min_size=config.min_batch_size,
                    max_wait=config.max_wait,
                )
            ),
            breaker=health.breaker,
            provider_health=health.provider_health,
            retry_budget=health.retry_budget,
            quota=shared_quota(provider.scope, model),
            rates=health.rates,
            calibration=Calibration() if packed else self._calibration(label, kind),
            call=build_call(
                provider,
                model,
                now=self._clock.now,
                classifiers=self._classifiers,
                middleware=self._middleware,
                compiler=compiler,
                tier=tier,
            ),
            max_tokens=max_tokens,
            batch_key=batch_key if packed else attrgetter("isolation_key"),
            packing_health=PackingHealth() if packed else None,
            tier=tier,
        )

    def _new_health(self, provider: Provider, model: str) -> _Health:
        config = self._config
        return _Health(
            CircuitBreaker(
                threshold=config.breaker_threshold,
                pause=config.breaker_pause,
                max_pause=config.breaker_max_pause,
                probes=config.breaker_probes,
            ),
            ProviderHealth(),
            RetryBudget(),
            self._rates(provider, model),
        )

    def _rates(self, provider: Provider, model: str) -> RateCard | None:
        if not provider.capabilities.priced:
            return None
        rates = self._prices.rates(provider.name, model, self._clock.wall())
        if rates is None and self._config.budget is not None and not self._config.allow_unknown_price:
            raise ConfigError(
                f"a budget is set, but the price of {provider.name}:{model} is unknown, so it could not be "
                f"kept: give a price under prices, or set allow_unknown_price"
            )
        return rates
