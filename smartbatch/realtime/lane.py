"""A lane: requests to the same provider and model, which meet the same gates and the same window.

It holds no tickets: they wait in a :class:`~smartbatch.realtime.lane_queue.LaneQueue`, of which the client's
queue keeps one for each lane. So a ticket may know its lane, and no two files import each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

from attrs import define, field

from smartbatch.core.batching.packing import packable
from smartbatch.core.batching.request_batch import BatchAccumulator
from smartbatch.core.limits.breaker import CircuitBreaker
from smartbatch.core.limits.model_controls import Pause
from smartbatch.core.limits.suspension import PackingHealth
from smartbatch.core.limits.throttle import AdaptiveThrottle
from smartbatch.core.preparation.tokens import Calibration, longest_output
from smartbatch.prices import RateCard
from smartbatch.providers.base import FlexTier, Provider
from smartbatch.realtime.call.layers import Call
from smartbatch.realtime.shared_quota import SharedQuota
from smartbatch.types import Request

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
