"""The rate limit of everything that shares one quota: configured, reported by the provider, or discovered.

The latest of the following times decides when a call may be sent:

* **configured limits**: token buckets that start nearly full, because the server's clock starts when the
  first call arrives, not when it is sent;
* **reported limits**: buckets that follow the server's own, as reported in its answers;
* the **adaptive limit**, estimated from refusals (:mod:`~smartbatch.core.limits.adaptive_limit`);
* the **cooldown** of all calls after refusals that prove a limit or are explained by one;
* the **lease** of this process, if others share the limit (:mod:`~smartbatch.core.limits.lease`).

The caller holds one lock and passes ``now``.
"""

from __future__ import annotations

import math

from smartbatch.core.limits.adaptive_limit import SPACED_SHARE, AdaptiveLimit, Evidence
from smartbatch.core.limits.cooldown import CommonCooldown, Cooldown, RandomSource
from smartbatch.core.limits.lease import LimitLease, QuotaFacts
from smartbatch.core.limits.reported_limits import (
    ReportedLimits,
    Reservation,
    Traffic,
    amounts_of,
    surplus_of,
)
from smartbatch.core.limits.shared_limit import NO_BOUND
from smartbatch.core.limits.token_bucket import ConfiguredLimits
from smartbatch.types import LimitReport

_UNEVEN_REFUSALS = 2
"""Consecutive explained refusals within seconds that prove that the provider allows no bursts, if all
processes stayed within the remainder reported by the provider."""

_NAMING_ANSWERS = 8
"""Answers after which a provider that reports limits would have done so."""

_MINUTE_SECONDS = 60.0


class Quota:
    """The amounts that one provider scope and model may send. Invariant: open reservations = calls in flight.

    Every call is counted by :meth:`take` and ended once by :meth:`succeeded`, :meth:`refused`,
    :meth:`failed` or :meth:`dropped`; the limits reported in its answer are then passed to :meth:`learn`.
    """

    def __init__(self) -> None:
        self.lease: LimitLease | None = None  # lease of this process, if others share the limit
        self._traffic = Traffic()
        self._reported = ReportedLimits()
        self._configured = ConfiguredLimits()
        self._adaptive = AdaptiveLimit()
        self._cooldown = CommonCooldown()

    def configure(self, max_rpm: float | None, max_tpm: float | None, now: float) -> None:
        """Set the configured limits per minute; ``None`` removes one.

        Debt remains even if a limit is removed and configured again, so that clients that come and go do
        not each get a full bucket.
        """
        configured = max_rpm is not None or max_tpm is not None
        if configured and not self._configured.were_set:
            self._adaptive.begin(is_known=True)
        self._configured.configure(max_rpm, max_tpm, now)

    def approach(self) -> None:
        """Begin with a few calls, unless a limit is known or calls were made before."""
        if not self._configured.were_set and not self._traffic.calls:
            self._adaptive.begin(is_known=False)

    @property
    def in_flight(self) -> int:
        return self._traffic.in_flight

    @property
    def reported_limits(self) -> dict[str, float]:
        """Limits per minute that answers reported, by name: requests, tokens, input, output."""
        return self._reported.per_minute()

    @property
    def spaced_rate(self) -> float | None:
        """Rate at which calls are spaced, in calls per second, once refusals have made spacing necessary."""
        return self._adaptive.rate or None

    def look(self, now: float, tokens: float, output: float = 0.0) -> float:
        """Return the earliest time a call that needs ``tokens`` may be sent.

        Infinity means that it has to wait for a call in flight to end. Call this again whenever one ends,
        because the time may then be earlier.

        Args:
            tokens: expected input and output.
            output: the output part of ``tokens``, for providers that limit both separately.
        """
        at = max(
            self._adaptive.look(now, self._traffic.in_flight),
            self._cooldown.until,
            self._configured.look(now, tokens),
        )
        if self._reported:
            at = max(at, self._reported.look(now, tokens, output))
        if at <= now and self.lease is not None:
            at = self.lease.look(now, self._reported.costs(tokens, output, now))
        return at

    def take(self, now: float, tokens: float, output: float = 0.0) -> Reservation:
        """Count a call that :meth:`look` admitted; its tokens are estimates, reconciled later."""
        call = Reservation(now, tokens, output)
        self._traffic.start(call)
        self._adaptive.take(call, now, self._even_rate)
        self._reported.spaced &= self._adaptive.rate > 0.0
        self._configured.take(now, tokens)
        if self.lease is not None:
            call.leased = self._reported.costs(tokens, output, now)
            self.lease.take(now, call.leased)
        if self._reported:
            self._reported.take(now, call)
        return call

    def succeeded(
        self,
        reservation: Reservation,
        now: float,
        actual_tokens: float | None,
        actual_output: float | None = None,
    ) -> None:
        """End an answered call; ``None`` stands for the expected tokens or the expected share of output."""
        self._end(reservation)
        self._settle_tokens(reservation, now, actual_tokens, actual_output)
        self._traffic.accept(now)
        if self._reported:
            self._reported.accepted(self._traffic, now)
        self._cooldown.succeeded(reservation)
        self._adaptive.accepted(reservation, now)

    def failed(
        self,
        reservation: Reservation,
        now: float,
        actual_tokens: float | None = None,
        actual_output: float | None = None,
    ) -> None:
        """End a call without an answer or a refusal; servers count such requests, too."""
        self._end(reservation)
        self._adaptive.ended(reservation)
        self._settle_tokens(reservation, now, actual_tokens, actual_output)

    def dropped(self, reservation: Reservation, now: float) -> None:
        self._end(reservation)
        self._adaptive.dropped(reservation, now)
        self._reported.drop(now, reservation)
        self._configured.drop(now, reservation.tokens)
        if self.lease is not None:
            self.lease.return_surplus(now, reservation.leased)

    def learn(self, report: LimitReport, reservation: Reservation, now: float) -> None:
        """Follow the limits that the answer to an ended call reported. Configured limits remain upper
        bounds."""
        alone = self._is_alone
        changed = self._reported.learn(report, reservation, self._traffic, now, alone=alone)
        if changed and self.lease is not None:
            self.lease.hurry()
        if self._adaptive.rate > 0.0 or self._reported.is_window or not alone:
            self._space_even(now)
        if self._adaptive.is_opening and report.requests_remaining is not None:
            self._adaptive.open()  # the report shows how much of the burst is left

    def refused(
        self,
        reservation: Reservation,
        now: float,
        retry_after: float | None,
        rng: RandomSource,
        report: LimitReport | None = None,
    ) -> Cooldown | None:
        """Handle a rate-limit refusal; return the cooldown that follows for all calls.

        Args:
            retry_after: seconds the provider asked to wait, already clamped.
            report: the limits reported with the refusal; :meth:`learn` need not be called.
        """
        self._give_back(reservation, now)
        fresh = reservation.started >= self._cooldown.until
        alone = self._is_alone
        # 1. The reported limits explain the refusal: start a cooldown. Repeated refusals despite leases also
        #    prove that the provider allows no bursts.
        if self._reported.explain(report, reservation, self._traffic, now, alone=alone):
            self._space_even(now)
            if not alone and not self._adaptive.rate and self._reported.repeats >= _UNEVEN_REFUSALS:
                self._space_known(now)
            self._adaptive.open()
            return self._cooldown.refused(now, retry_after, rng, fresh=fresh)
        evidence = self._adaptive.refused(reservation, now)
        # 2. The call was sent before the last cooldown began: its Retry-After may lengthen that cooldown.
        if not fresh:
            return self._cooldown.refused(now, retry_after, rng, fresh=False)
        # 3. The adaptive limit explains the refusal, or it is a single one: only this request waits.
        again = self._cooldown.consecutive > 0 and not self._adaptive.rate
        if evidence is not Evidence.PROOF and not (again and evidence is Evidence.ALONE):
            return None
        # 4. The refusal proves a limit, or is the first after a cooldown: start a new, longer cooldown, and
        #    space calls at the known or the measured rate.
        cooldown = self._cooldown.refused(now, retry_after, rng, fresh=True)
        self._adaptive.pause(reservation, self._cooldown.until, self._even_rate)
        return cooldown

    def _give_back(self, call: Reservation, now: float) -> None:
        """End a refused call, which used a request but no tokens. If the provider charges more, the
        next report shows it."""
        self._end(call)
        self._configured.return_surplus(now, call.tokens)
        self._reported.drop(now, call)
        if self.lease is not None:
            self.lease.return_surplus(now, (0.0, *call.leased[1:]))
            self.lease.hurry()
        self._traffic.refused_at = now
        self._traffic.refused += 1
        self._reported.confirm()

    @property
    def _is_alone(self) -> bool:
        return self.lease is None or self.lease.members == 1

    def facts(self, now: float) -> QuotaFacts:
        """Return what this process knows about the limits, for the processes that share them.

        If calls are spaced, only the rate limits the requests: the level of a small bucket changes
        completely between exchanges.
        """
        limits = self._reported.known(now, 1 if self.lease is None else self.lease.members)
        rates, unnamed = list(limits.rates), -1.0 if self._traffic.accepted >= _NAMING_ANSWERS else 0.0
        at_most, remaining = limits.at_most, limits.remaining
        learned = [cap or unnamed for cap in limits.caps]
        if self._adaptive.rate > 0.0:
            learned[0] = max(learned[0], _MINUTE_SECONDS * rates[0]) if rates[0] else learned[0]
            at_most, remaining = (NO_BOUND, *at_most[1:4]), (0.0, *remaining[1:4])
        caps = [max(0.0, cap) for cap in learned]
        for d, bucket in enumerate((self._configured.requests, self._configured.tokens)):
            if bucket is not None:
                caps[d] = min(caps[d] or math.inf, bucket.capacity)
                rates[d] = min(rates[d] or math.inf, bucket.rate)
        return QuotaFacts(
            caps=amounts_of(caps),
            rates=amounts_of(rates),
            learned_caps=amounts_of(learned),
            learned_rates=limits.rates,
            at_most=at_most,
            remaining=remaining,
            admitted=limits.admitted if limits.admitted < math.inf else -math.inf,
            accepted=self._traffic.accepted,
            cool_until=self._cooldown.until,
            spaced=self._adaptive.sending_rate if not self._is_alone else self._adaptive.rate,
            refused=self._traffic.refused,
        )

    def follow(self, now: float) -> None:
        """Adopt the cooldown and the spaced rate that other processes reported."""
        assert self.lease is not None
        under_way = self._reported.costs(self._traffic.held_tokens, self._traffic.held_output, now)
        self.lease.owe((float(self.in_flight), *under_way[1:]))
        until = self.lease.cooldown(now, self._cooldown.until)
        if until is not None:
            self._cooldown.follow(until, now)
        self._adaptive.share(*self.lease.others, now, members=self.lease.members, probes=self.lease.probes)
        rate = self.lease.spacing(self._adaptive.sending_rate if not self._is_alone else self._adaptive.rate)
        if rate is not None:
            self._adaptive.follow(rate, now)
            if not rate:
                self._reported.spaced = False

    @property
    def _known(self) -> float | None:
        reported = self._reported.requests_per_second
        configured = self._configured.rate
        if configured is None or reported is None:
            return reported if configured is None else configured
        return min(configured, reported)

    @property
    def _even_rate(self) -> float:
        """The known rate, minus the share kept back if calls are spaced; infinity if none is known."""
        known = self._known
        return math.inf if known is None else SPACED_SHARE * known

    def _end(self, reservation: Reservation) -> None:
        if reservation.ended:
            raise RuntimeError("the reservation is already closed")
        reservation.ended = True
        self._traffic.end(reservation)

    def _settle_tokens(
        self, reservation: Reservation, now: float, actual: float | None, output: float | None
    ) -> None:
        if actual is None:
            return
        self._configured.return_surplus(now, reservation.tokens - actual)
        if self.lease is not None:
            self.lease.return_surplus(now, surplus_of(reservation, actual, output))
        if self._reported:
            self._reported.correct(now, reservation, actual, output)

    def _space_even(self, now: float) -> None:
        """Space the calls because the provider's bucket is small.

        It may be a window that does not refill before it ends; and processes that each stay within it may
        exceed it together.
        """
        if self._reported.is_even and not self._reported.spaced:
            if not self._adaptive.rate:
                self._space_known(now)
                self._adaptive.owe(self._reported.ahead(now))
            self._reported.spaced = True

    def _space_known(self, now: float) -> None:
        if self._even_rate < math.inf:
            self._adaptive.space_at(self._even_rate, now)
