"""Lanes: the requests to one provider and model, which share gates, a window and a call.

A lane holds no tickets: they wait in a :class:`~smartbatch.realtime.lane_queue.LaneQueue`, one for each lane.
So a ticket may refer to its lane, and no two files import each other.
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
from smartbatch.core.preparation.tokens import Calibration, longest_output
from smartbatch.prices import PriceBook, RateCard
from smartbatch.providers.base import FlexTier, Provider
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.call import AnswerSharing, Call, around, build_call
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.shared_quota import SharedQuota, shared_quota
from smartbatch.types import Embedding, Kind, Request

_WEIGHT = 0.2
"""Of the latest call in :attr:`Lane.latency`, a moving average of some five calls."""


@define(eq=False)
class ProviderHealth:
    """What is known of a provider and model besides the state of their breaker; all their lanes share it.

    Attributes:
        answered: whether the provider gave any answer at all, an error included.
        open_since: when the breaker opened, monotonic seconds; ``None`` while it is closed.
        outages: changes that other processes told of, as far as the breaker followed them.
        pause: a person's, during which no call begins; ``None`` for none.
    """

    answered: bool = False
    open_since: float | None = None
    outages: int = 0
    pause: Pause | None = None


@define(eq=False, repr=False)
class Lane:
    """The gates, the window and the call that requests of one kind share. Guarded by the client's monitor.

    Attributes:
        label: ``provider:model``, as events and errors name it.
        breaker: of this provider and model, as are ``provider_health`` and ``throttle``.
        quota: shared by all clients of the process that share the provider's limits.
        rates: prices, or ``None`` when they are unknown.
        calibration: what calls of this kind have taught about token counts.
        call: the provider's call with its layers around it.
        replay: runs the middleware for one more who asked, over what the provider said; ``None`` where there
            is no middleware, or it must not share.
        max_tokens: most estimated input tokens of one call.
        batch_key: what must be equal for requests to share a call.
        packing_health: in a lane whose calls are packed prompts, whether packing pays; ``None`` elsewhere.
        packed: the lane in which packable requests of the same model gather, where there is one.
        tier: in a lane whose calls ask for the provider's slower tier, how they do; ``None`` elsewhere.
        standard: in such a lane, the one of the same model at the standard price.
        in_flight: requests whose call is under way.
        last_size: requests of the call that ended last.
        last_finished: when that was, monotonic seconds.
        latency: seconds a call takes; 0 while unknown.
        held_until: until when a gate was closed when the collector looked last, monotonic seconds.
        wait_told: until when the limits hold all calls, as was told, monotonic seconds.
    """

    provider: Provider
    model: str
    label: str
    accumulator: BatchAccumulator
    breaker: CircuitBreaker
    provider_health: ProviderHealth
    throttle: AdaptiveThrottle
    quota: SharedQuota
    rates: RateCard | None
    calibration: Calibration
    call: Call
    replay: Call | None
    max_tokens: float
    batch_key: Callable[[Request], Hashable]
    packing_health: PackingHealth | None
    tier: FlexTier | None
    packed: Lane | None = None
    standard: Lane | None = None
    in_flight: int = field(default=0, init=False)
    _under_way: dict[str, tuple[float, int]] = field(factory=dict, init=False)  # when each began, its size
    last_size: int = field(default=0, init=False)
    last_finished: float = field(default=-math.inf, init=False)
    latency: float = field(default=0.0, init=False)
    held_until: float = field(default=-math.inf, init=False)
    wait_told: float = field(default=-math.inf, init=False)

    @property
    def shares(self) -> bool:
        """Whether one call can carry several requests."""
        return self.accumulator.window.max_size > 1

    def demand(self, request: Request, estimated: int, *, priced: bool) -> tuple[int, float]:
        """Return the tokens ``request`` takes here and, where ``priced``, the most it can cost, USD.

        In the slower tier that is the standard price: the tier may refuse it, and then it is sent there.
        ``estimated`` are its input tokens, from its text alone.
        """
        given = self.calibration.input(estimated)
        made = 0 if request.embedding else self.calibration.output(request.params.max_tokens)
        rates = self.rates if self.standard is None else self.standard.rates
        if not priced or rates is None or request.call is not None:
            return given + made, 0.0
        return given + made, rates.cost(rates.expected_usage(*self.calibration.most(request)))

    def most_cost(self, request: Request) -> float:
        """Return the most one call for ``request`` can have cost whose answer is lost, USD; 0 where no price
        is known."""
        rates = self.rates if self.standard is None else self.standard.rates
        if rates is None or request.call is not None:
            return 0.0
        limit = self.provider.capabilities.output_limit
        most = 0 if request.embedding else longest_output(request.params.max_tokens, limit)
        return rates.cost(rates.expected_usage(self.calibration.most_input(request), most))

    def lane_for(self, request: Request, now: float) -> Lane:
        """Return the lane in which ``request`` waits.

        In this order: the standard lane, for a request that the slower tier does not take now or that names a
        tier by itself; the lane for packed prompts, while packing pays and the request can be packed; this
        one.
        """
        if self.standard is not None and not self._takes(request, now):
            return self.standard.lane_for(request, now)
        packed = self.packed
        return self if packed is None or packed.packing_paused(now) or not packable(request) else packed

    def packing_paused(self, now: float) -> bool:
        """Whether this is a lane for packed prompts and packing is off for the time being."""
        return self.packing_health is not None and self.packing_health.off_until(now) > now

    def started(self, batch_id: str, size: int, now: float) -> None:
        """Note that a call of ``size`` requests starts."""
        self.in_flight += size
        if self.shares:
            self._under_way[batch_id] = now, size

    def finished(self, batch_id: str, size: int, seconds: float, now: float) -> None:
        """Note that a call of ``size`` requests has ended, after ``seconds``."""
        self.in_flight -= size
        self._under_way.pop(batch_id, None)
        self.last_size = size
        self.last_finished = now
        self.latency += (seconds - self.latency) * (_WEIGHT if self.latency else 1.0)

    @property
    def calls(self) -> list[tuple[float, int]]:
        """Of each call in flight, when it is expected to end, and its requests; where calls are shared."""
        return [(began + self.latency, size) for began, size in self._under_way.values()]

    def _takes(self, request: Request, now: float) -> bool:
        return self.tier is not None and self.tier.is_open_to(request) and self.quota.flex.is_open(now)


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
