"""The rate limit of everything that shares one quota: configured, reported by the provider, or found out.

Four things hold a call back, and the latest of them counts:

* the **configured limits**, as token buckets that start full. A little is kept back because the server's
  clock starts when the first call arrives, not when it leaves;
* the **reported limits**, as the provider's answers state them: buckets that follow the server's own. A
  refusal that they explain proves nothing further;
* the **adaptive limit** of what nobody told: a rate and a number of calls in flight, found out from refusals
  (:mod:`~smartbatch.core.limits.adaptive_limit`);
* the **cooldown** after refusals that prove a limit or are explained by one, common to all.

Where other processes share the limit, a fifth comes last: the **lease** of this one's part of it
(:mod:`~smartbatch.core.limits.lease`). The other four stay as they are, with the whole limit.

No threads and no clock here: the caller holds one lock and passes ``now``.
"""

from __future__ import annotations

import math

from smartbatch.core.limits.adaptive_limit import SPACED_SHARE, AdaptiveLimit, Evidence
from smartbatch.core.limits.cooldown import CommonCooldown, Cooldown, RandomSource
from smartbatch.core.limits.lease import LimitLease, QuotaFacts
from smartbatch.core.limits.reported_limits import HeaderLimits, Reservation, Traffic, amounts_of, surplus_of
from smartbatch.core.limits.shared_limit import NO_BOUND
from smartbatch.core.limits.token_bucket import ConfiguredLimits
from smartbatch.types import LimitReport

_UNEVEN = 2
"""Refusals that followed another one soon, although the leases of all kept to what the provider says is left,
prove that bursts are not honoured."""

_NAMING = 8
"""Answers after which a provider that names a limit would have named it."""

_MINUTE = 60.0


class Quota:
    """What one provider scope and model may send. Invariant: reservations not ended = calls in flight.

    Every call is counted by :meth:`take` and ended once by :meth:`succeeded`, :meth:`refused`,
    :meth:`failed` or :meth:`dropped`; what its answer reported about limits goes to :meth:`learn` afterwards.
    Without a configured limit, a reported limit or a refusal it holds nothing back.
    """

    def __init__(self) -> None:
        self.lease: LimitLease | None = None  # of this process, where others share the limit
        self._traffic = Traffic()
        self._header_limits = HeaderLimits()
        self._configured = ConfiguredLimits()
        self._adaptive = AdaptiveLimit()
        self._cooldown = CommonCooldown()

    def configure(self, max_rpm: float | None, max_tpm: float | None, now: float) -> None:
        """Set the configured limits, a minute; ``None`` means not configured.

        What is owed to a limit stays owed, even if it is removed and configured again: clients that come and
        go do not each get a full bucket.
        """
        configured = max_rpm is not None or max_tpm is not None
        if configured and not self._configured.were_set:
            self._adaptive.begin(told=True)
        self._configured.configure(max_rpm, max_tpm, now)

    def approach(self) -> None:
        """Let few calls go first, as nobody knows of a limit; not where one was told, or calls were made."""
        if not self._configured.were_set and not self._traffic.calls:
            self._adaptive.begin(told=False)

    @property
    def in_flight(self) -> int:
        return self._traffic.in_flight

    @property
    def reported_limits(self) -> dict[str, float]:
        """The limits a minute that answers reported: requests, tokens, input, output."""
        return self._header_limits.per_minute()

    @property
    def spaced_rate(self) -> float | None:
        """Calls a second that calls are spaced to, once refusals made that necessary."""
        return self._adaptive.rate or None

    def look(self, now: float, tokens: float, output: float = 0.0) -> float:
        """Return the earliest time a call that needs ``tokens`` may go: the latest of all conditions.

        ``now`` means go; infinity means not until a call in flight ends. The end of a call may also make it
        sooner than the time returned, so ask again after each.

        Args:
            tokens: expected input and output.
            output: the part of ``tokens`` that is output, for providers that limit the two apart.
        """
        at = max(
            self._adaptive.look(now, self._traffic.in_flight),
            self._cooldown.until,
            self._configured.look(now, tokens),
        )
        if self._header_limits:
            at = max(at, self._header_limits.look(now, tokens, output))
        if at <= now and self.lease is not None:
            at = self.lease.look(now, self._header_limits.costs(tokens, output, now))
        return at

    def take(self, now: float, tokens: float, output: float = 0.0) -> Reservation:
        """Count a call that :meth:`look` let go; its tokens are estimates, settled later."""
        call = Reservation(now, tokens, output)
        self._traffic.start(call)
        self._adaptive.take(call, now, self._even_rate)
        self._header_limits.spaced &= self._adaptive.rate > 0.0
        self._configured.take(now, tokens)
        if self.lease is not None:
            call.leased = self._header_limits.costs(tokens, output, now)
            self.lease.take(now, call.leased)
        if self._header_limits:
            self._header_limits.take(now, call)
        return call

    def succeeded(
        self,
        reservation: Reservation,
        now: float,
        actual_tokens: float | None,
        actual_output: float | None = None,
    ) -> None:
        """The call was answered and used ``actual_tokens``; ``None`` when the provider did not say.

        ``actual_output`` of them were output; ``None`` takes the share that was expected.
        """
        self._end(reservation)
        self._settle_tokens(reservation, now, actual_tokens, actual_output)
        self._traffic.accept(now)
        if self._header_limits:
            self._header_limits.accepted(self._traffic, now)
        self._cooldown.succeeded(reservation)
        self._adaptive.accepted(reservation, now)

    def failed(
        self,
        reservation: Reservation,
        now: float,
        actual_tokens: float | None = None,
        actual_output: float | None = None,
    ) -> None:
        """The call ended without an answer and without a refusal; servers count such requests, too."""
        self._end(reservation)
        self._adaptive.ended(reservation)
        self._settle_tokens(reservation, now, actual_tokens, actual_output)

    def dropped(self, reservation: Reservation, now: float) -> None:
        """The call was never sent: return all it took."""
        self._end(reservation)
        self._adaptive.dropped(reservation, now)
        self._header_limits.drop(now, reservation)
        self._configured.drop(now, reservation.tokens)
        if self.lease is not None:
            self.lease.settle(now, reservation.leased)

    def learn(self, report: LimitReport, reservation: Reservation, now: float) -> None:
        """Follow the limits that the answer to an ended call reported. Configured limits stay bounds."""
        alone = self._is_alone
        changed = self._header_limits.learn(report, reservation, self._traffic, now, alone=alone)
        if changed and self.lease is not None:
            self.lease.tell()
        if self._adaptive.rate > 0.0 or self._header_limits.is_window or not alone:
            self._space_even(now)
        if self._adaptive.is_opening and report.requests_remaining is not None:
            self._adaptive.open()  # the report says how much of the burst is left

    def refused(
        self,
        reservation: Reservation,
        now: float,
        retry_after: float | None,
        rng: RandomSource,
        report: LimitReport | None = None,
    ) -> Cooldown | None:
        """The provider refused the call for its rate limit; return the cooldown that follows for all calls.

        The cases, in order:

        1. The reported limits explain it: a cooldown. It proves nothing further, unless it repeats although
           processes share the limit by leases.
        2. It was sent before the last cooldown began: its Retry-After may lengthen that one.
        3. The adaptive limit explains it, or it stands alone: no cooldown. The request waits by itself.
        4. It proves a limit, or came first after a cooldown: a new cooldown, longer than the last one. Calls
           are spaced at the known rate, or at the one that was measured.

        Args:
            retry_after: seconds the provider asked to wait, already clamped.
            report: what the refusal said about limits; :meth:`learn` need not be called.
        """
        self._give_back(reservation, now)
        fresh = reservation.started >= self._cooldown.until
        alone = self._is_alone
        if self._header_limits.explain(report, reservation, self._traffic, now, alone=alone):
            self._space_even(now)
            if not alone and not self._adaptive.rate and self._header_limits.repeats >= _UNEVEN:
                self._space_known(now)
            self._adaptive.open()
            return self._cooldown.refused(now, retry_after, rng, fresh=fresh)  # 1
        if not alone:
            self._space_even(now)
        evidence = self._adaptive.refused(reservation, now)
        if not fresh:  # 2
            return self._cooldown.refused(now, retry_after, rng, fresh=False)
        again = self._cooldown.consecutive > 0 and not self._adaptive.rate
        if evidence is not Evidence.PROOF and not (again and evidence is Evidence.ALONE):
            return None  # 3
        cooldown = self._cooldown.refused(now, retry_after, rng, fresh=True)
        self._adaptive.pause(reservation, self._cooldown.until, self._even_rate)
        return cooldown  # 4

    def _give_back(self, call: Reservation, now: float) -> None:
        """A call was refused: it used nothing but a request, and where it was charged all the same, the next
        report shows it."""
        self._end(call)
        self._configured.settle(now, call.tokens)
        self._header_limits.drop(now, call)
        if self.lease is not None:
            self.lease.settle(now, (0.0, *call.leased[1:]))
            self.lease.tell()
        self._traffic.refused_at = now
        self._traffic.refused += 1
        self._header_limits.confirm()

    @property
    def _is_alone(self) -> bool:
        """Whether no other process shares the limit by leases."""
        return self.lease is None or self.lease.members == 1

    def facts(self, now: float) -> QuotaFacts:
        """Return what is known here of the limits, for other processes that share them.

        Where calls are spaced, the rate alone bounds the requests: what a small bucket holds comes and goes
        between two exchanges.
        """
        limits = self._header_limits.known(now, 1 if self.lease is None else self.lease.members)
        rates, unnamed = list(limits.rates), -1.0 if self._traffic.accepted >= _NAMING else 0.0
        at_most, remaining = limits.at_most, limits.remaining
        learned = [cap or unnamed for cap in limits.caps]
        if self._adaptive.rate > 0.0:
            learned[0] = max(learned[0], _MINUTE * rates[0]) if rates[0] else learned[0]
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
        """Follow what the lease brought from the other processes: their cooldown, and their spaced rate.

        A cooldown of others is one of this process's own, as if a call of it had been refused; calls sent
        before it belong to the same event.
        """
        assert self.lease is not None
        under_way = self._header_limits.costs(self._traffic.held_tokens, self._traffic.held_output, now)
        self.lease.owe((float(self.in_flight), *under_way[1:]))
        until = self.lease.cooldown(now, self._cooldown.until)
        if until is not None:
            self._cooldown.follow(until, now)
        self._adaptive.share(*self.lease.others, now, members=self.lease.members, probes=self.lease.probes)
        rate = self.lease.spacing(self._adaptive.sending_rate if not self._is_alone else self._adaptive.rate)
        if rate is not None:
            self._adaptive.follow(rate, now)
            if not rate:
                self._header_limits.spaced = False

    @property
    def _known(self) -> float | None:
        """Requests a second that are allowed according to the user or the provider."""
        reported = self._header_limits.requests_per_second
        configured = self._configured.rate
        if configured is None or reported is None:
            return reported if configured is None else configured
        return min(configured, reported)

    @property
    def _even_rate(self) -> float:
        """The known rate, less what is kept back where calls are spaced; infinity where none is known."""
        known = self._known
        return math.inf if known is None else SPACED_SHARE * known

    def _end(self, reservation: Reservation) -> None:
        if reservation.ended:
            raise RuntimeError("a reservation ends once")
        reservation.ended = True
        self._traffic.end(reservation)

    def _settle_tokens(
        self, reservation: Reservation, now: float, actual: float | None, output: float | None
    ) -> None:
        if actual is None:
            return
        self._configured.settle(now, reservation.tokens - actual)
        if self.lease is not None:
            self.lease.settle(now, surplus_of(reservation, actual, output))
        if self._header_limits:
            self._header_limits.settle(now, reservation, actual, output)

    def _space_even(self, now: float) -> None:
        """Space the calls at a small bucket of the provider's: it may be a window that does not refill before
        its end; and where others share it, each would keep to it, and all together would not."""
        if self._header_limits.is_even and not self._header_limits.spaced:
            if not self._adaptive.rate:
                self._space_known(now)
                self._adaptive.owe(self._header_limits.ahead(now))
            self._header_limits.spaced = True

    def _space_known(self, now: float) -> None:
        """No bursts are honoured: space the calls at the known rate."""
        if self._even_rate < math.inf:
            self._adaptive.space_at(self._even_rate, now)
