"""Lanes: requests to one provider and model that share gates, a window and a call.

Tickets wait in a :class:`~smartbatch.realtime.lane_queue.LaneQueue`, one per lane, because a ticket refers to
its lane and imports must not be circular.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Hashable
from functools import partial
from operator import attrgetter

from attrs import define, field, frozen

from smartbatch.core.batching.packing import BatchCompiler, batch_key, packable, random_word
from smartbatch.core.batching.request_batch import BatchAccumulator, Window
from smartbatch.core.limits.circuit_breaker import CircuitBreaker
from smartbatch.core.limits.cooldown import PackingHealth
from smartbatch.core.limits.model_controls import Pause
from smartbatch.core.limits.throttle import AdaptiveThrottle
from smartbatch.core.prefixes.entries import CacheEntries
from smartbatch.core.prefixes.savings import with_writes
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.preparation.tokens import longest_output
from smartbatch.prices import Processing, RateCard
from smartbatch.providers.base import FlexTier, Provider, processing_of
from smartbatch.providers.price_book import PriceBook
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.call import AnswerSharing, CacheReferences, Call, build_call, with_middleware
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.shared_quota import SharedQuota, shared_quota
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Embedding, Kind, Request, Usage

_LATENCY_WEIGHT = 0.2
"""Weight of the latest call in :attr:`Lane.latency`, a moving average over about five calls."""


@define(eq=False)
class ProviderHealth:
    """State of a provider and model, apart from the breaker; shared by their lanes."""

    answered: bool = False  # the provider has answered at least once, even with an error
    open_since: float | None = None  # when the breaker opened, monotonic seconds
    outages: int = 0  # breaker changes received from other processes
    pause: Pause | None = None  # set by a user; no call starts during it


@define(eq=False, repr=False)
class Lane:
    """Gates, window and call of one kind of request. Guarded by the client's monitor.

    Breaker, health and throttle belong to the provider and model. The quota belongs to all clients of the
    process that share the provider's limits.
    """

    provider: Provider
    model: str
    label: str  # provider:model
    accumulator: BatchAccumulator
    breaker: CircuitBreaker
    provider_health: ProviderHealth
    throttle: AdaptiveThrottle
    quota: SharedQuota
    current_rates: Callable[[Processing], RateCard | None]  # the model's prices now
    calibration: Calibration
    call: Call  # the provider's call with its layers
    replay: Call | None  # runs shareable middleware for each further waiter
    max_tokens: float  # maximum estimated input tokens per call
    max_calls: float  # maximum calls in flight
    batch_key: Callable[[Request], Hashable]  # equal for requests that may share a call
    packing_health: PackingHealth | None  # whether packing pays off; None unless the lane packs prompts
    tier: FlexTier | None  # None in a standard lane
    packed: Lane | None = None  # lane for packable requests of the same model
    standard: Lane | None = None  # the standard-price lane of a flex lane
    rules: CachingRules | None = None  # how the provider caches prefixes of prompts, even without marks
    cache: CacheEntries | None = None  # its entries; None unless calls of this lane are marked
    caches: CacheReferences | None = None  # its explicit caches
    in_flight: int = field(default=0, init=False)  # number of requests
    # start and size of each call in flight, by batch id
    _under_way: dict[str, tuple[float, int]] = field(factory=dict, init=False)
    last_size: int = field(default=0, init=False)  # requests in the latest finished call
    last_finished: float = field(default=-math.inf, init=False)  # monotonic seconds
    latency: float = field(default=0.0, init=False)  # seconds per call; 0 while unknown
    # when the last closed gate may open, monotonic seconds
    held_until: float = field(default=-math.inf, init=False)
    # end of the last reported wait for limits, monotonic seconds
    reported_wait_until: float = field(default=-math.inf, init=False)

    @property
    def shares(self) -> bool:
        return self.accumulator.window.max_size > 1

    def demand(self, request: Request, estimated: int, *, priced: bool) -> tuple[int, float]:
        """Return the tokens of ``request`` and, if ``priced``, its maximum cost in USD.

        ``estimated`` is the number of input tokens estimated from the text.
        """
        calibration = self.calibration.of(request)
        given = calibration.input(estimated)
        made = 0 if request.embedding else calibration.output(request.params.max_tokens)
        if not priced or request.call is not None:
            return given + made, 0.0
        rates = self._highest_rates(request)
        if rates is None:
            return given + made, 0.0
        long = 0 if request.cache is None else request.cache.long
        most = with_writes(calibration.most(request), request, estimated, long=long)
        return given + made, rates.expected_cost(most)

    def max_lost_cost(self, request: Request) -> float:
        """Return the maximum cost in USD of a call whose answer is lost; 0 if the price is unknown."""
        rates = self._highest_rates(request)
        if rates is None or request.call is not None:
            return 0.0
        limit = self.provider.capabilities.output_limit
        most = 0 if request.embedding else longest_output(request.params.max_tokens, limit)
        return rates.expected_cost(self.calibration.of(request).most(request, most))

    def max_cost_of_cache(self, tokens: int) -> float:
        """Return the maximum cost in USD of an explicit cache of this size for an hour; 0 if unknown."""
        rates, storage = self.rates, None if self.rules is None else self.rules.storage
        if rates is None or storage is None:
            return 0.0
        return rates.cost(Usage(explicit_cache_tokens=math.ceil(tokens * (1 + storage))))

    def release_unneeded_caches(self) -> Callable[[], None] | None:
        """Return a function that deletes the explicit caches that are no longer needed, or ``None``."""
        explicit, caches = None if self.cache is None else self.cache.explicit, self.caches
        keys = None if explicit is None else explicit.take_unneeded()
        return partial(caches.release, self.provider, self.model, keys) if caches and keys else None

    @property
    def rates(self) -> RateCard | None:
        """The price of a request that is answered in the lane's own tier."""
        return self.current_rates("standard" if self.standard is None else "flex")

    def names_unpriced_tier(self, request: Request) -> bool:
        """Whether a request names the priority tier of a model with a known price, but not for that tier."""
        standard, priority = self.current_rates("standard"), self.current_rates("priority")
        return self._names_priority(request) and standard is not None and priority is None

    def _highest_rates(self, request: Request) -> RateCard | None:
        """Return the prices of the most expensive tier that may answer a request.

        A request for the flex tier may be answered by the standard one.
        """
        priority = self.current_rates("priority") if self._names_priority(request) else None
        return priority or self.current_rates("standard")

    def _names_priority(self, request: Request) -> bool:
        tier = self.provider.flex(self.model) if request.params.extra else None
        return tier is not None and processing_of(tier.named_in(request)) == "priority"

    def lane_for(self, request: Request, now: float) -> Lane:
        """Return the lane in which ``request`` waits.

        A request that the flex tier does not accept, or that names a tier itself, waits in the standard lane;
        a packable one waits in the packed lane while packing pays off.
        """
        if self.standard is not None and not self._takes(request, now):
            return self.standard.lane_for(request, now)
        packed = self.packed
        return self if packed is None or packed.packing_paused(now) or not packable(request) else packed

    def packing_paused(self, now: float) -> bool:
        """Return whether packing is temporarily off in this packed lane."""
        return self.packing_health is not None and self.packing_health.off_until(now) > now

    def started(self, batch_id: str, size: int, now: float) -> None:
        self.in_flight += size
        if self.shares:
            self._under_way[batch_id] = now, size

    def finished(self, batch_id: str, size: int, seconds: float, now: float) -> None:
        self.in_flight -= size
        self._under_way.pop(batch_id, None)
        self.last_size = size
        self.last_finished = now
        self.latency += (seconds - self.latency) * (_LATENCY_WEIGHT if self.latency else 1.0)

    @property
    def is_full(self) -> bool:
        """Whether the host allows no further call until one ends. Shared calls count once per request."""
        return self.in_flight >= self.max_calls

    @property
    def calls(self) -> list[tuple[float, int]]:
        """Expected end and size of each call in flight, if calls are shared."""
        return [(began + self.latency, size) for began, size in self._under_way.values()]

    def _takes(self, request: Request, now: float) -> bool:
        return self.tier is not None and self.tier.suits(request) and self.quota.flex.is_open(now)


_Place = tuple[str, str]
"""Name and scope of a provider."""


@frozen(eq=False, repr=False)
class _ModelState:
    breaker: CircuitBreaker
    provider_health: ProviderHealth
    throttle: AdaptiveThrottle
    cache: CacheEntries | None  # None if the provider caches nothing that can be marked


class LaneFactory:
    """Builds each lane of an engine when it is first needed.

    Args:
        opened: called with each new lane, so that the engine serves it.
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
        # ids in packed prompts are secrets, so a generator that the user may seed is unsuitable
        self._words = partial(random_word, random.SystemRandom())
        self._building = threading.Lock()
        self._lanes: dict[tuple[_Place, str, Embedding | None, bool], Lane] = {}
        self._models: dict[tuple[_Place, str], _ModelState] = {}
        self._calibrations: dict[tuple[_Place, str, Kind], Calibration] = {}

    def of(
        self, provider: Provider, model: str, embedding: Embedding | None = None, *, flex: bool = False
    ) -> Lane:
        """Return the lane for ``model`` and one kind of request.

        A flex lane falls back to the standard lane if the provider has no flex tier or no flex price. Prices
        and token counts are read before the factory's lock is acquired. A caller that holds a lock must call
        :meth:`read` first.

        Raises:
            ConfigError: there is a budget and the model's price is unknown.
        """
        key = (_place(provider), model, embedding, flex)
        lane = self._lanes.get(key)
        if lane is not None:
            return lane
        standard = self.of(provider, model, embedding) if flex else None
        has_flex = flex and embedding is None and self._has_flex(provider, model)
        calibration = self.read(provider, model, Kind.GENERATE if embedding is None else Kind.EMBED)
        with self._building:
            lane = self._lanes.get(key)
            if lane is None and standard is not None:
                lane = self._flex_lane(standard, calibration) if has_flex else standard
                self._lanes[key] = lane
            elif lane is None:
                lane = self._build(provider, model, embedding, calibration)
                if embedding is None and self._packs(provider):
                    lane.packed = self._build(provider, model, None, calibration, packed=True)
                    self._opened(lane.packed)
                self._opened(lane)
                self._lanes[key] = lane  # stored last, so that Ctrl-C cannot leave an unserved lane
        return lane

    def cache_of(self, provider: Provider, model: str) -> CacheEntries | None:
        """Return a model's cache entries; ``None`` without entries, or before the model's first request."""
        state = self._models.get((_place(provider), model))
        return None if state is None else state.cache

    def read(self, provider: Provider, model: str, kind: Kind = Kind.GENERATE) -> Calibration:
        """Read prices and token counts of a model once, and wait until its provider is ready.

        No lock may be held.

        Raises:
            ConfigError: there is a budget and the model's price is unknown.
        """
        key = (_place(provider), model, kind)
        found = self._calibrations.get(key)
        if found is None:
            label = f"{provider.name}:{model}"
            calibration = self._setup.calibration(label, kind)
            self._rates(provider, model)  # imports the table of prices
            has_budget = self._config.budget is not None and not self._config.allow_unknown_price
            if has_budget and provider.capabilities.priced:
                self._prices.check_known([(label, "standard")], self._clock.wall())
            provider.ready()
            found = self._calibrations.setdefault(key, calibration)
        return found

    def _flex_lane(self, standard: Lane, calibration: Calibration) -> Lane:
        provider, model = standard.provider, standard.model
        lane = self._build(provider, model, None, calibration, tier=provider.flex(model))
        lane.standard = standard
        self._opened(lane)
        return lane

    def _packs(self, provider: Provider) -> bool:
        """Requests to providers that can share calls themselves are not packed."""
        return self._config.packing and self._config.max_batch_size > 1 >= provider.capabilities.max_shared

    def _build(
        self,
        provider: Provider,
        model: str,
        embedding: Embedding | None,
        calibration: Calibration,
        *,
        packed: bool = False,
        tier: FlexTier | None = None,
    ) -> Lane:
        abilities = provider.capabilities
        if embedding is not None:
            most = abilities.max_texts
        elif packed:
            most = self._config.max_batch_size
        elif tier is not None:
            most = 1  # each request names the tier itself
        else:
            most = min(abilities.max_shared, self._config.max_batch_size)
        rules = None if embedding is not None else provider.caching(model)
        if rules is not None and self._setup.caches is None:
            rules = rules.without_explicit()
        state = self._models.setdefault((_place(provider), model), self._new_state(rules))
        marks = embedding is None and most == 1 and self._config.prompt_caching == "auto"
        hooks, fallback = self._setup.hooks, self._setup.fallback
        sharing = replay = None
        if hooks.shareable and (hooks.middleware or self._cache is not None):
            sharing = AnswerSharing(self._cache, provider, model, stores=bool(hooks.middleware))
        if sharing is not None and hooks.middleware:
            replay = with_middleware(sharing.recorded_answers, provider, hooks.middleware)
        return Lane(
            provider=provider,
            model=model,
            label=f"{provider.name}:{model}",
            accumulator=BatchAccumulator(self._window(most)),
            breaker=state.breaker,
            provider_health=state.provider_health,
            throttle=state.throttle,
            quota=shared_quota(provider.scope, model),
            current_rates=partial(self._rates, provider, model),
            calibration=Calibration(calibration) if packed else calibration,
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
                checks=fallback is not None and provider is fallback.provider,
                references=self._setup.references,
                caches=self._setup.caches if marks else None,
            ),
            max_tokens=math.inf if embedding is None else abilities.max_text_tokens,
            max_calls=abilities.calls_of(model),
            batch_key=batch_key if packed else attrgetter("isolation_key"),
            packing_health=PackingHealth() if packed else None,
            tier=tier,
            rules=rules,
            cache=state.cache if marks else None,
            caches=self._setup.caches,
        )

    def _window(self, most: int) -> Window:
        config = self._config
        return Window(
            seconds=config.batch_window,
            max_size=1 if config.strategy == "individual" else max(1, most),
            min_size=config.min_batch_size,
            max_wait=config.max_wait,
        )

    def _new_state(self, rules: CachingRules | None) -> _ModelState:
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
            None if rules is None else CacheEntries(rules),
        )

    def _rates(self, provider: Provider, model: str, processing: Processing = "standard") -> RateCard | None:
        if not provider.capabilities.priced:
            return None
        return self._prices.rates(provider.name, model, self._clock.wall(), processing)

    def _has_flex(self, provider: Provider, model: str) -> bool:
        return provider.flex(model) is not None and self._rates(provider, model, "flex") is not None


def _place(provider: Provider) -> _Place:
    """Return the name and the scope, because several servers or accounts may have the same provider name and
    models.
    """
    return provider.name, provider.scope
