"""The rate limit of everything that shares one quota: configured, reported by the provider, or found out.

Five things hold a call back, and the latest of them counts:

* the **configured limits**, as token buckets that start full. A little is kept back because the server's
  clock starts when the first call arrives, not when it leaves;
* the **reported limits**, as the provider's answers state them: buckets that follow the server's own. A
  refusal that they explain proves nothing further;
* the **cooldown** after refusals that prove a limit or are explained by one, common to all;
* the **window**, a limit on calls in flight that grows with success. It exists only while the burst of a
  configured limit is unproven and after a refusal, so that neither at a wrong limit nor at the end of a
  cooldown many calls are refused together;
* the **spacing** of calls at an even rate. It exists only when refusals proved that bursts are not honoured
  (many providers enforce 600 a minute as 10 a second), or that there is a limit nobody configured.

Where other processes share the limit, a sixth comes last: the **lease** of this one's part of it
(:mod:`~smartbatch.core.limits.lease`). The other five stay as they are, with the whole limit.

One refusal proves nothing: shared services refuse at random. The refused request waits by itself, and the
window shrinks. A burst of refusals proves a limit, measured against the calls that were in flight; so does a
second one after a cooldown. No threads and no clock here: the caller holds one lock and passes ``now``.
"""

from __future__ import annotations

import math

from smartbatch.core.limits.accepted_calls import AcceptedCalls
from smartbatch.core.limits.backoff import REFUSED, Cooldown, RandomSource
from smartbatch.core.limits.call_window import CallWindow, FirstRefusal
from smartbatch.core.limits.common_cooldown import CommonCooldown
from smartbatch.core.limits.concurrency_cap import PROBES, ConcurrencyCap
from smartbatch.core.limits.configured_limits import ConfiguredLimits
from smartbatch.core.limits.header_limits import HeaderLimits, Reservation, Traffic, amounts_of, surplus_of
from smartbatch.core.limits.lease import LimitLease, QuotaFacts
from smartbatch.core.limits.lease_ask import NO_BOUND
from smartbatch.core.limits.refusal_evidence import RefusalEvidence
from smartbatch.core.limits.spacing import Spacing
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
        self._spacing = Spacing()
        self._window = CallWindow()
        self._cooldown = CommonCooldown()
        self._evidence = RefusalEvidence()
        self._cap = ConcurrencyCap()
        self._measured = AcceptedCalls()

    def configure(self, max_rpm: float | None, max_tpm: float | None, now: float) -> None:
        """Set the configured limits, a minute; ``None`` means not configured.

        What is owed to a limit stays owed, even if it is removed and configured again: clients that come and
        go do not each get a full bucket.
        """
        configured = max_rpm is not None or max_tpm is not None
        if configured and not self._configured.were_set:
            self._window.prove_burst()
        self._configured.configure(max_rpm, max_tpm, now)

    def approach(self) -> None:
        """Let few calls go first, as nobody knows of a limit; not where one was told, or calls were made."""
        if not self._configured.were_set and not self._traffic.calls:
            self._window.begin()

    @property
    def is_opening(self) -> bool:
        """Whether it approaches a limit that nobody told."""
        return self._window.is_opening

    def lack(self, calls: int, workers: int) -> None:
        """At first contact so many calls wait; if there are workers for all, they go at the first answer."""
        self._window.short_of = calls if calls <= workers else 0

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
        return self._spacing.rate or None

    def look(self, now: float, tokens: float, output: float = 0.0) -> float:
        """Return the earliest time a call that needs ``tokens`` may go: the latest of all five conditions.

        ``now`` means go; infinity means not until a call in flight ends. The end of a call may also make it
        sooner than the time returned, so ask again after each.

        Args:
            tokens: expected input and output.
            output: the part of ``tokens`` that is output, for providers that limit the two apart.
        """
        at = now
        if self._cap.limit < math.inf:
            at = self._cap_opens(now)
        if at == math.inf:
            return at
        if self._traffic.in_flight >= self._window.size:
            opens = self._window.opens(now, self._traffic.in_flight, self._cooldown.until)
            at = max(at, min(opens, self._configured.look_evenly(now)))  # the even rate needs no window
        at = max(at, self._cooldown.until, self._configured.look(now, tokens))
        if self._spacing.bucket is not None:
            at = max(at, self._spacing.bucket.look(now, 1.0))
        if self._header_limits:
            at = max(at, self._header_limits.look(now, tokens, output))
        if at <= now and self.lease is not None:
            at = self.lease.look(now, self._header_limits.costs(tokens, output, now))
        return at

    def take(self, now: float, tokens: float, output: float = 0.0) -> Reservation:
        """Count a call that :meth:`look` let go; its tokens are estimates, settled later."""
        call = Reservation(now, tokens, output)
        self._traffic.start(call)
        self._cap.take(call, now)
        self._window.took(self._traffic.in_flight, now)
        self._configured.take(now, tokens)
        if self._spacing.bucket is not None:
            self._spacing.bucket.take(now, 1.0)
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
        self._cap.accepted(reservation, now)
        self._traffic.accept(now)
        if self._header_limits:
            self._header_limits.accepted(self._traffic, now)
        self._evidence.forget()
        self._cooldown.succeeded(reservation)
        self._let_through(reservation, now)

    def failed(
        self,
        reservation: Reservation,
        now: float,
        actual_tokens: float | None = None,
        actual_output: float | None = None,
    ) -> None:
        """The call ended without an answer and without a refusal; servers count such requests, too."""
        self._end(reservation)
        self._cap.ended(reservation)
        self._settle_tokens(reservation, now, actual_tokens, actual_output)
        self._let_through(reservation, now)

    def dropped(self, reservation: Reservation, now: float) -> None:
        """The call was never sent: return all it took."""
        self._end(reservation)
        self._cap.ended(reservation)
        self._header_limits.drop(now, reservation)
        self._configured.drop(now, reservation.tokens)
        if self._spacing.bucket is not None:
            self._spacing.bucket.settle(now, 1.0)
        if self.lease is not None:
            self.lease.settle(now, reservation.leased)

    def learn(self, report: LimitReport, reservation: Reservation, now: float) -> None:
        """Follow the limits that the answer to an ended call reported. Configured limits stay bounds."""
        alone = self._is_alone
        changed = self._header_limits.learn(report, reservation, self._traffic, now, alone=alone)
        if changed and self.lease is not None:
            self.lease.tell()
        if self._spacing.bucket is not None or self._header_limits.is_window or not alone:
            self._space_even(now)
        if self._window.is_opening and report.requests_remaining is not None:
            self._window.open()
        elif self._window.is_proving and (
            report.requests_remaining is not None or self._configured.rate is None
        ):
            self._window.open()  # the report says how much of the burst is left

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

        1. The reported limits explain the refusal: it proves nothing further, and a cooldown follows.
        2. It is not explained, and stands alone: there is no cooldown. A spaced rate is lowered, otherwise
           the window shrinks. The request waits by itself, also where a cap on calls at once explains it.
        3. Calls are spaced at a rate that was lowered before: calls may be refused at random, and a trial of
           a higher rate finds out (:mod:`~smartbatch.core.limits.rate_trial`).
        4. It came at first contact, and stands alone: no more calls go until one finds out.
        5. Enough of them came together for the first time, at first contact or later: a cap on calls at once
           is supposed (:mod:`~smartbatch.core.limits.concurrency_cap`). There is no cooldown, unless it does
           not hold.
        6. The call was sent after the last cooldown began: a new cooldown, longer than the last one. Where
           the refusal is not explained, calls begin again slowly (:meth:`_restart`).
        7. The call was sent before: it belongs to the same event. Its Retry-After may lengthen the cooldown.
        8. Unexplained refusals add up to evidence; enough of it, measured against the calls in flight, proves
           a limit that nobody named (:meth:`_proven`), once a cooldown. Two do where processes search.

        Args:
            retry_after: seconds the provider asked to wait, already clamped.
            report: what the refusal said about limits; :meth:`learn` need not be called.
        """
        in_flight = max(self.in_flight, reservation.held[0])
        self._give_back(reservation, now)
        spaced = self._header_limits.spaced
        alone = self._is_alone
        explained = self._header_limits.explain(report, reservation, self._traffic, now, alone=alone)
        if explained or not alone:
            self._space_even(now)
        if explained:
            self._evidence.seen(in_flight)
            return self._refused_by_reported(reservation, now, retry_after, rng, spaced=spaced)
        return self._refused_unexplained(reservation, in_flight, now, retry_after, rng)

    def _refused_by_reported(
        self,
        reservation: Reservation,
        now: float,
        retry_after: float | None,
        rng: RandomSource,
        *,
        spaced: bool,
    ) -> Cooldown:
        """The reported limits explain a refusal: case 1 of :meth:`refused`, and 6 or 7.

        Args:
            spaced: the calls were spaced for a small bucket when it came: then their rate is too high.
        """
        if self._spacing.bucket is not None:
            self._spacing.confirm(now)
        self._measured.is_untried = False
        if self._window.is_opening:
            self._window.open()
        proven = self._evidence.is_proof
        if not self._is_alone and self._spacing.bucket is None:
            proven = self._header_limits.repeats >= _UNEVEN
        fresh = reservation.started >= self._cooldown.began
        return self._cool_down(fresh, not spaced, proven, now, retry_after, rng)

    def _refused_unexplained(
        self,
        reservation: Reservation,
        in_flight: int,
        now: float,
        retry_after: float | None,
        rng: RandomSource,
    ) -> Cooldown | None:
        """No reported limit explains a refusal: cases 2 to 8 of :meth:`refused`."""
        fresh = reservation.started >= self._cooldown.began
        narrowed = reservation.started < self._window.narrowed_at  # before what is sent was lowered last
        capped = self._cap.limit < math.inf
        if self._cap.refused(reservation, now, self._traffic.calls):
            return None  # 2: by the cap on calls at once
        if fresh and narrowed and self._spacing.bucket is not None and self._known is None:
            return None  # 2: by a rate that is not used any more
        no_cap = capped and self._cap.limit == math.inf
        if fresh:
            self._evidence.add(reservation.order)
        self._evidence.seen(in_flight)
        if self._is_random(reservation, now):
            return None  # 3
        proven = no_cap or self._evidence.is_proof
        self._measured.is_untried = not self._is_alone and self._spacing.is_untried
        if self._measured.is_untried:
            proven |= self._evidence.is_repeated
            if not proven:
                return None  # 8: the other processes search as well
        if self._window.is_opening:
            answered = self._traffic.accepted > 0
            first = self._window.refuse(reservation, in_flight, now, answered=answered)
            if first is FirstRefusal.PROOF:
                self._measured.since = self._window.began
                if self._is_at_once(now, retry_after, probes=1):
                    self._measured.at_proof = self._rate_at_proof(now + max(retry_after or 0.0, REFUSED))
                    return None  # 5
                return self._cool_down(True, False, True, now, retry_after, rng)
            if self._is_lone(first, now, retry_after):
                return None  # 4
        if proven and not no_cap and self._is_at_once(now, retry_after):
            return None  # 5
        repeated = self._spacing.bucket is not None and self._evidence.is_repeated
        if proven or self._cooldown.consecutive or repeated:
            return self._cool_down(fresh, False, proven, now, retry_after, rng)  # 6 to 8
        if fresh and reservation.started >= self._window.narrowed_at:
            self._give_way(in_flight, now)  # 2: it stands alone
        return None

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
        self._header_limits.confirm()

    def _is_random(self, call: Reservation, now: float) -> bool:
        """Whether a refusal of a spaced call is no reason to lower the rate, as it may be a random one."""
        if self._spacing.bucket is None:
            return False
        rate, lone = self._spacing.rate, self._evidence.is_lone
        if not self._is_alone or not self._spacing.is_random(
            call, self._traffic, now, self._known, lone=lone
        ):
            return False
        self._evidence.clear()
        if self._spacing.rate < rate:
            self._window.narrowed_at = now
        return True

    def _is_lone(self, first: FirstRefusal, now: float, retry_after: float | None) -> bool:
        """Whether a refusal at first contact may be a lone one, or has a cap on calls at once supposed."""
        if first is FirstRefusal.LATER:
            self._window.open()
            return False
        if first is FirstRefusal.AGAIN:
            self._is_at_once(now, retry_after)
        return True

    def _is_at_once(self, now: float, retry_after: float | None, probes: int = PROBES) -> bool:
        """Refusals prove a limit: return whether it may be one on calls at once, and suppose it then.

        1. A cooldown is under way, calls are spaced, or the burst of a configured limit is tested: no.
        2. A cap is known, and does not explain them: it is none.
        3. Otherwise a cap is supposed, unless there was none a while ago; two calls find out.
        """
        if self._cooldown.consecutive or self._spacing.bucket is not None or self._window.is_proving:
            return False
        if self._cap.limit < math.inf:
            self._cap.leave(now)
            return False
        if not self._cap.suppose(now, self._traffic.calls, retry_after, probes):
            return False
        self._evidence.clear()
        self._window.open()
        return True

    def _cap_opens(self, now: float) -> float:
        """Return when the cap on calls at once lets a call go. Where calls beyond it showed that there is
        none, there is a limit of another kind: calls are spaced at the rate that was measured as it was
        proven, or the calls in flight double each second or each round.
        """
        if self._cap.has_passed(now):
            self._cap.leave(now)
            rate = self._measured.take_at_proof(now, alone=self._is_alone)
            if not rate or self._spacing.bucket is not None or not self._spacing.at_measured(rate, now):
                self._window.narrow(self.in_flight + 1.0, now)
        return self._cap.look(now, self.in_flight)

    def _cool_down(
        self,
        fresh: bool,
        explained: bool,
        proven: bool,
        now: float,
        retry_after: float | None,
        rng: RandomSource,
    ) -> Cooldown:
        """Begin a cooldown, or lengthen the one to which a refusal belongs; see :meth:`refused`."""
        cooldown = self._cooldown.refused(now, retry_after, rng, fresh=fresh)
        if fresh and not explained:
            self._restart(now)
        if proven and self._cooldown.judge():
            self._proven(now)
        return cooldown

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
        if self._spacing.bucket is not None:
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
            spaced=self._spacing.settled,
            found=self._spacing.is_found,
            opened=self._window.opened,
        )

    def follow(self, now: float) -> None:
        """Follow what the lease brought from the other processes: their cooldown, and their spaced rate.

        A cooldown of others is one of this process's own, as if a call of it had been refused; calls sent
        before it belong to the same event. Begun again slowly is only where no known limit paces the calls.
        """
        assert self.lease is not None
        under_way = self._header_limits.costs(self._traffic.held_tokens, self._traffic.held_output, now)
        self.lease.owe((float(self.in_flight), *under_way[1:]))
        if self._window.is_opening:
            self._window.join(self.lease.members, self.lease.opened)
        until = self.lease.cooldown(now, self._cooldown.until)
        if until is not None:
            self._cooldown.follow(until, now)
            if self._spacing.bucket is None and not self.lease.is_limited:
                self._restart(now)
        if not self._is_alone:
            self._spacing.confirm(now)  # calls of others, and their slots, would tell nothing of a trial
        rate = self.lease.spacing(self._spacing.settled)
        if rate is not None:
            if rate and not 0.0 < self._spacing.rate <= rate:
                self._judge_elsewhere(now)
            self._spacing.at_told(rate, now, found=self.lease.found)
            if rate:
                self._window.open()
            else:
                self._header_limits.spaced = False

    def _judge_elsewhere(self, now: float) -> None:
        """Another process proved a limit or lowered the rate: the refusals until now belong to that event,
        and what was accepted before it measures nothing."""
        self._evidence.clear()
        self._window.narrowed_at = now
        self._measured.restart(now)

    @property
    def _known(self) -> float | None:
        """Requests a second that are allowed according to the user or the provider."""
        reported = self._header_limits.requests_per_second
        configured = self._configured.rate
        if configured is None or reported is None:
            return reported if configured is None else configured
        return min(configured, reported)

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

    def _let_through(self, reservation: Reservation, now: float) -> None:
        """No limit refused the call: more may go."""
        self._measured.accept(reservation, alone=self._is_alone)
        if reservation.started >= self._cooldown.began:
            self._window.let_through(reservation, now)
        if self._spacing.bucket is None:
            return
        members = 1 if self.lease is None else self.lease.members
        if self._spacing.accepted(reservation, self._traffic, now, self._known):
            self._evidence.disprove()
            self._window.disprove()
        elif members > 1 and self._spacing.is_ahead(self._traffic, now, self._others_rate(now)):
            return
        elif self._spacing.quicken(self._known, now, self._cooldown.began, members):
            self._header_limits.spaced = False
            self._window.prove_burst()

    def _give_way(self, in_flight: int, now: float) -> None:
        """Lower what is sent after a refusal that stands alone: the rate, or the calls in flight."""
        if self._spacing.bucket is not None:
            self._restart(now)
        else:
            self._window.give_way(in_flight, now)
        self._window.narrowed_at = now

    def _restart(self, now: float) -> None:
        """Begin again slowly after a cooldown.

        1. Calls are not spaced: a narrow window that doubles. After a single cooldown near a limit that was
           proven before, it only shrinks to 0.7 of the calls in flight.
        2. Calls are spaced: a lower rate; the lower, the sooner the refusal came.
        """
        if self._spacing.bucket is None:
            self._window.restart(self._evidence.peak, first=self._cooldown.consecutive == 1)
        else:
            others = self._others_rate(now)
            lone = self._evidence.is_lone
            self._spacing.lower(self._traffic, now, known=self._known is not None, lone=lone, others=others)
            self._window.open()

    def _others_rate(self, now: float) -> float:
        """Return the calls a second that other processes had answered lately."""
        if self.lease is None:
            return 0.0
        return self.lease.others_rate(self._spacing.measured_from(now, shared=True))

    def _proven(self, now: float) -> None:
        """A limit below what was tried is proven: space the calls.

        1. A rate is known and calls are not spaced: the server honours no bursts; space them at that rate.
        2. Calls were accepted since the last proof, not too long ago: space them at the measured rate, if
           that is lower than the present one.
        3. Otherwise nothing was measured: the window alone limits.
        """
        self._evidence.clear()
        self._window.proven(self._evidence.peak)
        if self._spacing.bucket is None and self._known is not None:
            self._space_known(now)
        elif self._measured.measures(now, alone=self._is_alone):
            # before the first pause: after each a burst is accepted
            if self._measured.since == self._window.began:
                rate = self._rate_at_proof(self._cooldown.until)
            else:
                spaced = self._spacing.bucket is not None
                rate = self._measured.rate(now, 0, self.lease, spaced=spaced)
            if self._spacing.at_measured(rate, now):
                self._window.open()
        self._measured.proven(now)

    def _rate_at_proof(self, until: float) -> float:
        """Return the calls a second that were let through at first contact, and in the pause until then."""
        under_way = max(0, self._window.sent_before_refusal - self._traffic.accepted)
        return self._measured.rate(until, under_way, self.lease, spaced=self._spacing.bucket is not None)

    def _space_even(self, now: float) -> None:
        """Space the calls at a small bucket of the provider's: it may be a window that does not refill before
        its end; and where others share it, each would keep to it, and all together would not."""
        if self._header_limits.is_even and not self._header_limits.spaced:
            if self._spacing.bucket is None:
                self._space_known(now)
                self._spacing.owe(self._header_limits.ahead(now))
            self._header_limits.spaced = True

    def _space_known(self, now: float) -> None:
        """No bursts are honoured: space the calls at the known rate; then there is no window."""
        self._spacing.at_known(self._known, now)
        self._window.open()
