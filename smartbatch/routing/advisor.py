"""Collects what :func:`smartbatch.core.routing.choice.choose` needs to select a route (prices, limits,
waiting requests and observed times), and scores the outcome.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch._words import duration
from smartbatch.config import BatchingConfig
from smartbatch.core.forecast import ForecastAt
from smartbatch.core.prefixes.savings import KnownCaching
from smartbatch.core.routing.choice import Decision, Infeasible, break_even, choose
from smartbatch.core.routing.offers import BatchOffer, Offer, Rounds, Throughput, rounds_of
from smartbatch.core.routing.options import Constraints
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.core.routing.rescue import Speed
from smartbatch.core.routing.workload import Cost, Load, OtherModel, Rates, Workload, expected_usd
from smartbatch.errors import ConfigError
from smartbatch.events import BatchEnded, Event, ForecastMoved, RouteChosen, RouteScored, ThresholdMoved
from smartbatch.jobs.job_options import batches_of
from smartbatch.prices import Processing, RateCard
from smartbatch.providers.price_book import PriceBook
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.realtime import Realtime
from smartbatch.realtime.setup import Parallelism
from smartbatch.realtime.shared_quota import shared_quota
from smartbatch.routing.history import ForecastHistory
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Kind, Request, Result, Route, Strategy, Usage

if TYPE_CHECKING:
    from smartbatch.jobs.records import JobRow
    from smartbatch.providers.batch_api import BatchApi


THRESHOLD_CALLS = 5  # calls in flight for a real-time list with the threshold strategy


@frozen
class _Watched:
    """The latest list that could have been sent as a batch. The batch threshold is reported for similar
    lists.
    """

    load: Load
    offers: Sequence[Offer]
    batch: BatchOffer
    constraints: Constraints

    def threshold(self, forecasts: Mapping[Route, ForecastAt]) -> int | None:
        offers = [
            evolve(offer, throughput=evolve(offer.throughput, call=forecasts[offer.route]))
            for offer in self.offers
        ]
        times = forecasts[Route.BATCH]
        batch = evolve(self.batch, times=times, seen=times.observations > 0)
        return break_even(self.load, offers, batch, self.constraints)


@define(eq=False, repr=False)
class Advisor:
    """Chooses routes for one provider and model."""

    _model: OpenedModel
    _config: BatchingConfig
    _clock: Clock
    _prices: PriceBook
    _history: ForecastHistory
    _realtime: Realtime
    _publish_event: Callable[[Event], None]
    _parallelism: Parallelism
    _numbers: Iterator[int] = field(factory=partial(itertools.count, 1), init=False)
    _watching: threading.Lock = field(factory=threading.Lock, init=False)
    _watched: _Watched | None = field(default=None, init=False)
    _root: OpenedModel | None = None
    _of_models: dict[str, Advisor] = field(factory=dict, init=False)
    # forecasts behind the last reported threshold
    _reported: dict[Route, ForecastAt] = field(factory=dict, init=False)

    @property
    def label(self) -> str:
        return self._model.label

    def workload(
        self, kind: Kind, requests: int, constraints: Constraints, *, batchable: bool, flexible: bool = False
    ) -> Workload:
        """Return an empty workload for at most ``requests`` requests.

        Observations are read from the store if a store is configured, or if the list may become a batch and
        therefore needs one anyway. ``flexible`` allows the flex tier.
        """
        by_batch = requests > constraints.at_once and self._api(kind, constraints, batchable) is not None
        if by_batch or self._config.store is not None:
            self._history.refresh()
        rates = {
            "standard": self._rates("standard"),
            "batch": self._rates("batch"),
            "flex": self._flex_rates() if flexible and kind is Kind.GENERATE else None,
        }
        calibration = self._history.calibration(self._model.label, kind)
        kept = self._config.cache is not None
        caching = None if self._caching is None else self._known_caching(self._caching, by_batch=by_batch)
        return Workload(calibration, rates, kept=kept, caching=caching)

    def for_model(self, model: OpenedModel) -> Advisor:
        if model.name == self._model.name:
            return self
        found = self._of_models.get(model.name)
        if found is None:
            made = evolve(self, model=model, root=self._root or self._model)
            made._numbers, made._of_models = self._numbers, self._of_models
            found = self._of_models.setdefault(model.name, made)
        return found

    def other(self, request: Request, kind: Kind) -> OtherModel | None:
        root = self._root or self._model
        if (request.model or root.name) == self._model.name:
            return None
        model = root.of(request)
        known = self.for_model(model)
        rates = {"standard": known._rates("standard"), "batch": known._rates("batch")}
        return OtherModel(model.name, self._history.calibration(model.label, kind), rates)

    def _prices_of(self, result: Result) -> Prices:
        provider, _, name = (result.model or "").partition(":")
        known = self
        if provider == self._model.provider.name and name != self._model.name:
            known = self.for_model(evolve(self._model, name=name))
        return known._rates("standard"), known._rates("batch")

    def ceilings(self, requests: Iterable[Request], kind: Kind) -> list[float] | None:
        """Return the maximum USD of each real-time request; ``None`` if a price is unknown."""
        most = []
        for request in requests:
            other = self.other(request, kind)
            learned = (
                self._history.calibration(self._model.label, kind) if other is None else other.calibration
            )
            rates = self._rates("standard") if other is None else other.rates["standard"]
            if rates is None:
                return None
            most.append(rates.expected_cost(learned.of(request).most(request)))
        return most

    def limit(self, decision: Decision, requests: Iterable[Request], kind: Kind) -> float | None:
        """Return the USD that a list without a budget may cost on the chosen route.

        1. In a batch, or with an unknown price: no limit. A batch reserves the maximum cost of each request
           while it runs, which may be far more than the forecast.
        2. In real time, only requests in flight reserve their maximum cost. The limit is the high end of the
           forecast plus the maximum cost of the most expensive requests, as many as can be in flight.
        """
        chosen, cost = decision.chosen, decision.chosen.cost
        ceilings = None if chosen.route.by_batch else self.ceilings(requests, kind)
        if cost is None or ceilings is None:
            return None
        per_call = math.ceil(decision.load.requests / max(1, chosen.calls))
        in_flight = self._parallelism.calls * max(1, per_call)
        return cost.high + sum(heapq.nlargest(in_flight, ceilings))

    def consider(
        self,
        workload: Workload,
        constraints: Constraints,
        kind: Kind,
        *,
        batchable: bool,
    ) -> Decision:
        """Choose the route of a list without publishing the decision.

        1. Batches are excluded if the requests may not wait, if there is no Batch API, or if there is no
           store for a job.
        2. The remaining routes are compared. Later reports of the batch threshold refer to this list.
        3. If the budget does not cover the maximum cost of all requests, the batches are sent in rounds.

        Args:
            constraints: contain a budget only if it can be enforced.

        Raises:
            ConfigError: no route meets the constraints; the error names the nearest ones that can be met.
        """
        load = workload.load
        api = self._api(kind, constraints, batchable) if load.requests else None
        if load.requests > constraints.at_once and constraints.strategy is Strategy.AUTO:
            api = api if self._history.stored else None  # a job needs a store
        offers = self._offers(workload, load, kind, constraints)
        batch = None if api is None else self._batch(workload, load, api)
        if batch is not None and load.requests:
            self._watch(_Watched(load, offers, batch, constraints))
        rounds = None if batch is None else self._rounds(workload, constraints.budget)
        if batch is not None and rounds is not None:
            batch = rounds.cut(batch, load.by_job)
        try:
            decision = choose(load, offers, batch, constraints)
        except Infeasible as error:
            raise ConfigError(str(error)) from None
        decision = evolve(decision, calls_at_once=self._parallelism.calls)
        if rounds is None or not decision.chosen.batches or not rounds.in_words():
            return decision
        return evolve(decision, reason=f"{decision.reason}; {rounds.in_words()}")

    def announce(self, decision: Decision, purpose: str | None = None) -> AnnouncedPlan:
        number = f"decision-{next(self._numbers)}"
        return AnnouncedPlan(
            number, self._model.label, decision, purpose, self._prices_of, self._clock, self._publish_event
        )

    def speed(self, row: JobRow) -> Speed:
        """Return how fast requests of a job can be withdrawn from batches and sent in real time."""
        self._history.refresh()
        texts = self._model.provider.capabilities.max_texts if Kind(row.kind) is Kind.EMBED else 1
        route = Route.SHARED if texts > 1 else Route.INDIVIDUAL
        used = (row.input_tokens + row.output_tokens) / row.finished if row.finished else 0.0
        throughput = self._throughput(route, used, per_call=max(1, texts))
        cancelling = self._history.cancelling(self._model.provider.name)
        return Speed(throughput, cancelling, self._history.turnaround(row.model))

    def batch_ended(self, event: BatchEnded) -> None:
        """If no list has been considered yet, report the batch threshold for lists like this batch from now
        on. Called before the forecasts include the batch.
        """
        api, _ = batches_of(self._config, self._model, event.kind)
        if self._watched is not None or event.model != self._model.label or api is None:
            return
        config = self._config
        constraints = Constraints(
            prefer=config.prefer, time_value=config.time_value, threshold=config.batch_threshold
        )
        workload = self.workload(event.kind, event.size, constraints, batchable=True)
        workload.add_alike(event.size, event.tokens // max(1, event.size), event.kind)
        offers = self._offers(workload, workload.load, event.kind, constraints)
        batch = self._batch(workload, workload.load, api)
        self._watch(_Watched(workload.load, offers, batch, constraints))

    def learned(self, event: ForecastMoved) -> None:
        """Report the batch threshold if a changed forecast moved it."""
        with self._watching:
            watched, reported = self._watched, self._reported
        if watched is None:
            return
        now = {route: self._forecast(route) for route in reported}
        before, after = watched.threshold(reported), watched.threshold(now)
        with self._watching:
            another = self._reported[Route.BATCH] is not reported[Route.BATCH]  # another thread reports it
            if another or not _apart(before, after):
                return
            self._reported = {**self._reported, **now}
        reason = (
            f"the median of {event.route.value} answers is now {duration(event.after)}, previously "
            f"{duration(event.before)}: {event.reason}"
        )
        self._publish_event(
            ThresholdMoved(
                at=self._clock.now(),
                model=self._model.label,
                before=before,
                after=after,
                reason=reason,
            )
        )

    def _watch(self, watched: _Watched) -> None:
        routes = [Route.BATCH, *(offer.route for offer in watched.offers)]
        unknown = {route: self._forecast(route) for route in routes if route not in self._reported}
        with self._watching:
            self._watched = watched
            self._reported = {**unknown, **self._reported}

    def _forecast(self, route: Route) -> ForecastAt:
        if route is Route.BATCH:
            return self._history.turnaround(self._model.label)
        return self._history.latency(route, self._model.label)

    def _api(self, kind: Kind, constraints: Constraints, batchable: bool) -> BatchApi | None:
        if not batchable or constraints.strategy is Strategy.INDIVIDUAL:
            return None
        return batches_of(self._config, self._model, kind)[0]

    # -- offers ----------------------------------------------------------------------------------------------

    def _offers(self, workload: Workload, load: Load, kind: Kind, constraints: Constraints) -> list[Offer]:
        """Return the real-time routes; the first is the default."""
        config, abilities = self._config, self._model.provider.capabilities
        tokens = (load.tokens_in + load.tokens_out) / max(1, load.requests)
        standard = workload.cost("standard")
        most = abilities.max_texts if kind is Kind.EMBED else min(abilities.max_shared, config.max_batch_size)
        offers = []
        if most > 1:
            throughput = self._throughput(Route.SHARED, tokens, per_call=min(most, max(1, load.requests)))
            offers.append(Offer(Route.SHARED, throughput, standard))
        individual = self._throughput(Route.INDIVIDUAL, tokens)
        at_once = individual_calls(config, constraints.strategy)
        if at_once is not None:
            individual = evolve(individual, parallelism=min(individual.parallelism, at_once))
        packs = config.packing and kind is Kind.GENERATE and most <= 1 < config.max_batch_size
        if packs:  # the user turned packing on, so it does not depend on forecasts
            throughput = self._throughput(Route.PACKED, tokens, per_call=config.max_batch_size)
            offers.append(Offer(Route.PACKED, throughput, standard))
        offers.append(Offer(Route.INDIVIDUAL, individual, standard, open=not packs))
        flex = workload.cost("flex")
        if flex is not None:
            share = _share(flex, standard, unknown=1.0)
            offers.append(Offer(Route.FLEX, self._throughput(Route.FLEX, tokens), flex, share))
        return offers

    def _throughput(self, route: Route, tokens: float, *, per_call: int = 1) -> Throughput:
        limits = self._limits()
        return Throughput(
            call=self._forecast(route),
            parallelism=self._parallelism.calls,
            per_call=per_call,
            ahead=self._realtime.waiting,
            tokens=tokens,
            rpm=limits.get("requests", math.inf),
            tpm=limits.get("tokens", math.inf),
        )

    def _batch(self, workload: Workload, load: Load, api: BatchApi) -> BatchOffer:
        config = self._config
        most = min(config.batch_max_requests, api.abilities.max_requests)
        batches = math.ceil(load.by_job / most) if load.requests else 1
        enqueued = config.batch_enqueued_tokens
        at_a_time = math.inf
        if enqueued is not None and load.tokens_in:
            at_a_time = max(1, math.floor(enqueued / (load.tokens_in / batches)))
        standard, cost = workload.cost("standard", by_job=True), workload.cost("batch", by_job=True)
        times = self._forecast(Route.BATCH)
        return BatchOffer(
            times=times,
            cost=cost,
            alone=standard,
            cancelling=self._history.cancelling(self._model.provider.name),
            most=most,
            at_a_time=at_a_time,
            share=_share(cost, standard, unknown=0.5),
            seen=times.observations > 0,
        )

    def _rounds(self, workload: Workload, budget: float | None) -> Rounds | None:
        limits = [usd for usd in (budget, self._realtime.budget.room) if usd is not None]
        card, cost = self._rates("batch"), workload.cost("batch", by_job=True)
        if not limits or card is None or cost is None or not workload.requests:
            return None
        added, n = workload.requests, workload.load.by_job
        each = (math.ceil(tokens / added) for tokens in (*workload.tokens_most, workload.audio_in))
        given, made, audio = each
        most = card.expected_cost(Usage(given, made, audio_tokens=audio))
        return rounds_of(n, max(0.0, min(limits)), most, cost.expected / n)

    # -- prices and limits -----------------------------------------------------------------------------------

    def _limits(self) -> dict[str, float]:
        """Return the lowest of the configured, reported and discovered limits per minute."""
        shared = shared_quota(self._model.provider.scope, self._model.name)
        with shared.lock:
            known = dict(shared.quota.reported_limits)
            throughput = shared.quota.spaced_rate
        for name, configured in (("requests", self._config.max_rpm), ("tokens", self._config.max_tpm)):
            if configured is not None:
                known[name] = min(configured, known.get(name, math.inf))
        if throughput is not None:
            known["requests"] = min(60 * throughput, known.get("requests", math.inf))
        return known

    @property
    def _caching(self) -> CachingRules | None:
        uses = self._config.prompt_caching == "auto"
        rules = self._model.provider.caching(self._model.name) if uses else None
        # without a store, nothing could record an explicit cache for deletion
        return rules if rules is None or self._config.store is not None else rules.without_explicit()

    def _known_caching(self, rules: CachingRules, *, by_batch: bool) -> KnownCaching:
        known = KnownCaching(rules, stopped=self._realtime.stopped_prefixes(self._model))
        if not by_batch or rules.by != "marks":
            return known
        reads = self._history.batch_reads(self._model.provider.scope, self._model.label)
        return evolve(known, reads=reads, now=self._clock.wall())

    def _rates(self, processing: Processing) -> RateCard | None:
        if not self._model.provider.capabilities.priced:
            return None
        wall = self._clock.wall()
        card = self._prices.rates(self._model.provider.name, self._model.name, wall, processing)
        if card is None or not card.writes_by_itself or (caching := self._caching) is None:
            return card
        return evolve(card, writes_by_itself=not caching.automatic)  # requests turn off such writes

    def _flex_rates(self) -> RateCard | None:
        """Return the prices of the flex tier; ``None`` if the provider has none or it is currently closed."""
        if not self._config.flex or self._model.provider.flex(self._model.name) is None:
            return None
        is_open = shared_quota(self._model.provider.scope, self._model.name).flex.is_open(self._clock.now())
        return self._rates("flex") if is_open else None


Prices: TypeAlias = "tuple[Rates | None, Rates | None]"


@define(eq=False, repr=False)
class AnnouncedPlan:
    """Adds up the results of a plan in progress and scores its forecast. For one thread.

    Creating it publishes the plan.
    """

    _id: str
    _model: str
    _decision: Decision
    _purpose: str | None
    _prices_of: Callable[[Result], Prices]
    _clock: Clock
    _publish_event: Callable[[Event], None]
    actual: ActualCost = field(factory=ActualCost, init=False)

    def __attrs_post_init__(self) -> None:
        decision = self._decision
        chosen = decision.chosen
        self._publish_event(
            RouteChosen(
                at=self._clock.now(),
                decision_id=self._id,
                model=self._model,
                purpose=self._purpose,
                requests=decision.load.requests,
                route=chosen.route,
                first=chosen.first,
                reason=decision.reason,
                p50=chosen.p50,
                p95=chosen.p95,
                cost=expected_usd(chosen.cost),
                options=tuple(
                    (each.route.value, each.p50, each.p95, expected_usd(each.cost), each.feasible)
                    for each in decision.options
                ),
            )
        )

    @property
    def route(self) -> Route:
        return self._decision.chosen.route

    def add_result(self, result: Result) -> None:
        self.actual.add_result(result, *self._prices_of(result))

    def score(self, seconds: float, actual: ActualCost | None = None) -> RouteScored | None:
        """Publish and return the actual time and cost; ``None`` if nothing was answered.

        Args:
            seconds: from the submission to the last answer.
            actual: the cost, if the results were not added here.
        """
        actual, decision = actual or self.actual, self._decision
        if not actual.answered:
            return None
        chosen, deadline = decision.chosen, decision.constraints.deadline
        alone, batch = decision.alone, decision.batch
        scored = RouteScored(
            at=self._clock.now(),
            decision_id=self._id,
            model=self._model,
            requests=decision.load.requests,
            route=chosen.route,
            seconds=seconds,
            cost=actual.paid,
            forecast_p50=chosen.p50,
            forecast_p95=chosen.p95,
            forecast_cost=expected_usd(chosen.cost),
            individual_seconds=seconds if alone is chosen else alone.p50,
            individual_cost=actual.individual,
            batch_seconds=None if batch is None else seconds if batch is chosen else batch.p50,
            batch_cost=None if batch is None else actual.by_batch,
            met=None if deadline is None else seconds <= deadline,
        )
        self._publish_event(scored)
        return scored


def individual_calls(config: BatchingConfig, strategy: Strategy) -> int | None:
    """Return the maximum calls in flight of a real-time list; ``None`` for the client's own limit."""
    if config.max_parallel_individual is None and strategy is Strategy.THRESHOLD:
        return THRESHOLD_CALLS
    return config.max_parallel_individual


def _apart(before: int | None, after: int | None) -> bool:
    if before is None or after is None:
        return before is not after
    return max(before, after) >= 1.25 * min(before, after)


def _share(cost: Cost | None, standard: Cost | None, *, unknown: float) -> float:
    if cost is None or standard is None or not standard.expected:
        return unknown
    return cost.expected / standard.expected
