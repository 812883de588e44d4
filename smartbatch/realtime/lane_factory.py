"""The lanes of one run of a client: for each kind of call its gates, its window and its layers."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from attrs import frozen

from smartbatch.core.batching.packing import BatchCompiler, batch_key, random_word
from smartbatch.core.batching.request_batch import BatchAccumulator, Window
from smartbatch.core.limits.breaker import CircuitBreaker
from smartbatch.core.limits.suspension import PackingHealth
from smartbatch.core.limits.throttle import AdaptiveThrottle
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.prices import PriceBook, RateCard
from smartbatch.providers.base import FlexTier, Provider
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.call.layers import around, build_call
from smartbatch.realtime.call.sharing import AnswerSharing
from smartbatch.realtime.lane import Lane, ProviderHealth
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.shared_quota import shared_quota
from smartbatch.types import Embedding, Kind

_Place = tuple[str, str]
"""Name and scope of a provider."""


@frozen(eq=False, repr=False)
class _ModelState:
    """What all lanes of one provider and model share."""

    breaker: CircuitBreaker
    provider_health: ProviderHealth
    throttle: AdaptiveThrottle


@frozen(eq=False, repr=False)
class _Knowledge:
    """What was read of one model: its prices and its tokens."""

    rates: RateCard | None
    calibration: Calibration


class LaneFactory:
    """Builds a lane of one engine when it is first needed, and remembers it.

    Args:
        setup: what all parts share.
        opened: told of each new lane, so that the engine serves it.
        cache: answers kept from run to run; ``None`` where there is none.
    """

    def __init__(
        self, setup: RealtimeSetup, opened: Callable[[Lane], None], cache: ResponseCache | None = None
    ) -> None:
        config = setup.config
        self._setup = setup
        self._config = config
        self._clock = setup.clock
        self._opened = opened
        self._cache = cache
        self._prices = PriceBook(config.prices)
        # Ids in packed prompts are secrets, so they do not come from random numbers a user may seed.
        self._words = partial(random_word, random.SystemRandom())
        self._building = threading.Lock()
        self._lanes: dict[tuple[_Place, str, Embedding | None, bool], Lane] = {}
        self._models: dict[tuple[_Place, str], _ModelState] = {}
        self._known: dict[tuple[_Place, str, Kind], _Knowledge] = {}

    def of(
        self, provider: Provider, model: str, embedding: Embedding | None = None, *, flex: bool = False
    ) -> Lane:
        """Return the lane for generating with ``model``, or for vectors of one kind. The cases, in order:

        1. It is there.
        2. ``flex`` asks for the lane of the provider's slower tier: a new one over the standard lane, or that
           itself where there is no such tier, or no price of ``model`` in it.
        3. A new one; where prompts are packed, with a second one for these.

        Prices and token counts are read before the factory's lock is taken. A caller that holds a lock of its
        own calls :meth:`read` before it takes that lock.

        Raises:
            ConfigError: there is a budget and the model's price is unknown.
        """
        key = (_place(provider), model, embedding, flex)
        lane = self._lanes.get(key)
        if lane is not None:
            return lane
        standard = self.of(provider, model, embedding) if flex else None
        flex_rates = self._flex_rates(provider, model) if flex and embedding is None else None
        known = self.read(provider, model, Kind.GENERATE if embedding is None else Kind.EMBED)
        with self._building:
            lane = self._lanes.get(key)
            if lane is None and standard is not None:
                lane = standard if flex_rates is None else self._flex_lane(standard, known, flex_rates)
                self._lanes[key] = lane
            elif lane is None:
                lane = self._build(provider, model, embedding, known)
                if embedding is None and self._packs(provider):
                    lane.packed = self._build(provider, model, None, known, packed=True)
                    self._opened(lane.packed)
                self._opened(lane)
                self._lanes[key] = lane  # last, so that no Ctrl-C can leave a lane here that nobody serves
        return lane

    def read(self, provider: Provider, model: str, kind: Kind = Kind.GENERATE) -> _Knowledge:
        """Read the prices of a model and what is known of its tokens, once, and wait until its provider can
        be called. No lock may be held.

        Raises:
            ConfigError: there is a budget and the model's price is unknown.
        """
        key = (_place(provider), model, kind)
        known = self._known.get(key)
        if known is None:
            calibration = self._setup.calibration(f"{provider.name}:{model}", kind)
            rates = self._rates(provider, model)
            provider.ready()
            known = self._known.setdefault(key, _Knowledge(rates, calibration))
        return known

    def _flex_lane(self, standard: Lane, known: _Knowledge, rates: RateCard) -> Lane:
        """Return a lane for the slower tier of the model of ``standard``."""
        provider, model = standard.provider, standard.model
        lane = self._build(provider, model, None, known, tier=provider.flex(model))
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
        known: _Knowledge,
        *,
        packed: bool = False,
        tier: FlexTier | None = None,
    ) -> Lane:
        """Return a lane. How many requests may share one of its calls, in order:

        1. Vectors: as many texts as the provider takes.
        2. ``packed`` prompts: as many as the settings allow.
        3. The slower ``tier``: one, since each request asks for it by itself.
        4. Otherwise as many as the provider and the settings allow.
        """
        abilities = provider.capabilities
        if embedding is not None:
            most = abilities.max_texts
        elif packed:
            most = self._config.max_batch_size
        elif tier is not None:
            most = 1
        else:
            most = min(abilities.max_shared, self._config.max_batch_size)
        state = self._models.setdefault((_place(provider), model), self._new_state())
        hooks = self._setup.hooks
        sharing = replay = None
        if hooks.shareable and (hooks.middleware or self._cache is not None):
            sharing = AnswerSharing(self._cache, provider, model, stores=bool(hooks.middleware))
        if sharing is not None and hooks.middleware:
            replay = around(sharing.said, provider, hooks.middleware)
        return Lane(
            provider=provider,
            model=model,
            label=f"{provider.name}:{model}",
            accumulator=BatchAccumulator(self._window(most)),
            breaker=state.breaker,
            provider_health=state.provider_health,
            throttle=state.throttle,
            quota=shared_quota(provider.scope, model),
            rates=known.rates,
            calibration=Calibration(known.calibration) if packed else known.calibration,
            replay=replay,
            call=build_call(
                provider,
                model,
                now=self._clock.now,
                classifiers=hooks.classifiers,
                middleware=hooks.middleware,
                innermost=sharing,
                compiler=BatchCompiler(self._words, native_schema=abilities.schemas) if packed else None,
                tier=tier,
            ),
            max_tokens=math.inf if embedding is None else abilities.max_text_tokens,
            batch_key=batch_key if packed else attrgetter("isolation_key"),
            packing_health=PackingHealth() if packed else None,
            tier=tier,
        )

    def _window(self, most: int) -> Window:
        config = self._config
        return Window(
            seconds=config.batch_window,
            max_size=1 if config.strategy == "individual" else max(1, most),
            min_size=config.min_batch_size,
            max_wait=config.max_wait,
        )

    def _new_state(self) -> _ModelState:
        config = self._config
        return _ModelState(
            CircuitBreaker(
                threshold=config.breaker_threshold,
                pause=config.breaker_pause,
                max_pause=config.breaker_max_pause,
                probes=config.breaker_probes,
            ),
            ProviderHealth(),
            AdaptiveThrottle(),
        )

    def _rates(self, provider: Provider, model: str) -> RateCard | None:
        if not provider.capabilities.priced:
            return None
        wall = self._clock.wall()
        if self._config.budget is not None and not self._config.allow_unknown_price:
            self._prices.check_known([(f"{provider.name}:{model}", "standard")], wall)
        return self._prices.rates(provider.name, model, wall)

    def _flex_rates(self, provider: Provider, model: str) -> RateCard | None:
        """Return the prices of the slower tier; ``None`` where there is no such tier, or no price for it."""
        if provider.flex(model) is None or not provider.capabilities.priced:
            return None
        return self._prices.rates(provider.name, model, self._clock.wall(), "flex")


def _place(provider: Provider) -> _Place:
    """Return what tells servers and accounts apart: two of them may have the same models, and one name."""
    return provider.name, provider.scope
