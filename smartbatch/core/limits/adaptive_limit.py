"""Congestion control for a limit that is neither configured nor reported, with refusals instead of lost
packets.

Slow start (RFC 6928) begins with a few calls and doubles their number with each round of answers. Once
refusals prove a limit, a cap on calls in flight is assumed first and adjusted by AIMD. A refusal below the
cap shows that the limit is a rate. Then, as in BBR's long-term sampling, the rate is derived from the calls
admitted between two moments at which the bucket was empty; calls cruise just below that rate and probe for
a higher one.

A single refusal changes nothing, because shared services also refuse at random. Processes that share a
limit use the lowest rate that any of them measured, and only one process at a time probes.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

from attrs import define

from smartbatch.core.limits.reported_limits import Reservation
from smartbatch.core.limits.token_bucket import Bucket, spaced_capacity

FIRST_CALLS = 10
"""Calls in flight at first contact: TCP's initial window (RFC 6928)."""

_FIRST_CALLS_KNOWN, _FIRST_CALLS_AGAIN = 4, 2
"""Calls in flight at first if the limit is known but its burst is not, and after a pause if no call was
admitted."""

_DOUBLING_SECONDS, _SLOW_DOUBLING_SECONDS = 0.05, 1.0
"""Seconds after which calls in flight double without an answer: at first contact, and for known limits or
after refusals."""

_UNLIMITED_WINDOW = 4096.0
"""A window of this many calls has no effect, because there are at most 1,024 workers."""

_PROVING_CALLS, _PROVING_SHARE, _RECENT_CALLS = 4, 0.25, 32
"""Four refused calls in a row, or a quarter of the last 32, prove a limit. If 4 % of calls are refused at
random, four in a row occur once in 400,000 calls."""

_GAP_SECONDS, _MAX_GAP_SECONDS = 1.0, 16.0
"""Seconds before a call beyond the cap is tried; the delay doubles whenever that call is refused."""

_PASSED_FACTOR = 4.0
"""A call counts as admitted if it is not refused within this many times the duration of a refusal. Waiting
for the answer would take too long."""

_NO_CAP_SECONDS = 60.0
"""Seconds to wait after a cap has proved wrong before another one is assumed."""

SPACED_SHARE = 0.988
"""Share of a known rate at which calls are spaced, which leaves 1.2 ms per 100 ms for irregular arrivals."""

_PEACE_SECONDS = 600.0
"""Seconds at the known rate without a refusal before bursts are tried again."""

_CRUISE_SECONDS, _CRUISE_CALLS = 3.5, 35.0
"""Minimum seconds and calls of a cruise: a probe ends with a refusal, and at most 2 % of calls should be
refused."""

_CRUISE_GAIN = 0.985
"""Share of the measured rate at which calls cruise, so that a measurement 1 % too high is harmless."""

_PROBE_GAINS, _SEARCH_GAIN = (1.1, 1.05), 1.5
"""First step of a probe as a multiple of the measured rate, alternating; BBR's 1.25 would cause more than 2 %
refusals. The rate measured at first contact may be far too low, so the first search uses a larger step."""

_STEP_CALLS, _MIN_STEP_SECONDS, _MAX_STEP_SECONDS = 2.0, 1.0, 3.0
"""A probe step passes once two calls beyond the measured rate were admitted. It lasts at least a second,
because a limit may be counted per second. Each step doubles the excess."""

_FEW_CALLS, _ENOUGH_CALLS = 3, 16
"""With fewer admitted calls than the first number, all that is known is that the rate is too high; with fewer
calls than the second, random refusals cannot be measured."""

_REPORTED_SECONDS = 0.5
"""Seconds until earlier calls of other processes have been reported."""

_NOISE_WEIGHT, _MAX_NOISE = 0.3, 0.06
"""Weight of the last cruise in the share of random refusals, and the maximum of that share."""

_NOISE_FACTOR, _NOISE_CALLS, _SPARED_CALLS = 2.0, 40.0, 2
"""The limit is met when more calls are refused than twice the number expected at random for the calls so far
plus 40; while cruising, two further refusals are allowed."""

_MIN_RATE, _UNLIMITED_RATE = 0.5, 2000.0
"""The lowest rate, and a rate too high to matter, in calls per second."""


class Evidence(Enum):
    ALONE = "alone"  # a single refusal, which may be random
    KNOWN = "known"  # explained by the estimates, which may have been adapted to it
    PROOF = "proof"  # a limit exists below the current rate, so all calls pause


@define
class _Delivery:
    since: float  # when the call that met the limit was sent
    order: int  # number of the last call sent at that time
    refused: int = 0  # later calls that were refused

    def admitted(self, order: int) -> int:
        return order - self.order - max(1, self.refused)

    def rate(self, order: int, at: float) -> float:
        return self.admitted(order) / max(at - self.since, 1e-3)


@define(eq=False)
class _CallsInFlight:
    """The maximum number of calls in flight: unlimited, growing, or a cap beyond which one call is tried."""

    most: float = math.inf
    is_opening: bool = False  # doubles with each round of answers
    cap: int = 0  # assumed cap; 0 for none
    is_checked: bool = False  # a call was admitted since the cap was assumed
    _first: float = 0.0  # calls in flight when slow start began
    _began: float = math.inf
    _doubles_in: float = 0.0
    _extra: Reservation | None = None
    _extra_at: float = math.inf  # when the next call beyond the cap may be sent
    _passes_in: float = 0.0
    _gap: float = _GAP_SECONDS
    _step: int = 1

    def unlimit(self) -> None:
        self.most, self.is_opening, self.cap, self._extra = math.inf, False, 0, None

    def open_from(self, calls: float, began: float, doubles_in: float) -> None:
        """Begin slow start with ``calls``; ``began`` is infinite until the first call is sent."""
        self.unlimit()
        self.most = self._first = max(1.0, calls)
        self.is_opening, self._began, self._doubles_in = True, began, doubles_in

    def assume(self, cap: int, now: float, refused_in: float) -> None:
        self.unlimit()
        self.most, self.cap, self.is_checked = float(cap), cap, False
        self._gap, self._step, self._extra_at = _GAP_SECONDS, 1, now + _GAP_SECONDS
        self._passes_in = max(_PASSED_FACTOR * refused_in, _DOUBLING_SECONDS)

    def look(self, now: float, in_flight: int) -> float:
        if self._extra is not None and now >= self._extra.started + self._passes_in:
            self._widen(now)
        if in_flight < self.most:
            return now
        if self.is_opening:
            doublings = math.log2((in_flight + 1) / self._first)
            return max(now, min(self._began, now) + self._doubles_in * doublings)
        if self._extra is not None:
            return self._extra.started + self._passes_in
        return max(now, self._extra_at)

    def take(self, call: Reservation, now: float) -> None:
        if self.is_opening:
            self._began = min(self._began, now)
            self.most = max(self.most, float(call.held[0]))
        elif call.held[0] > self.most:
            self._extra = call

    def accepted(self, call: Reservation, now: float) -> None:
        if call is self._extra:
            self._widen(now)
        elif self.is_opening:
            self.most += 1.0
            if self.most > _UNLIMITED_WINDOW:
                self.unlimit()

    def ended(self, call: Reservation) -> None:
        if call is self._extra:
            self._extra = None

    def is_beyond(self, call: Reservation, now: float) -> bool:
        """Delay the next call beyond the cap after a refusal; return whether the refused call was beyond it.

        If the cap has grown because of this call, it shrinks again.
        """
        is_extra = call is self._extra
        if is_extra or 0 < self.cap < self.most <= call.held[0]:
            self.most -= 0.0 if is_extra else 1.0
            self._extra, self._extra_at, self._step = None, now + self._gap, 1
            self._gap = min(2.0 * self._gap, _MAX_GAP_SECONDS)
        return is_extra

    @property
    def is_exceeded(self) -> bool:
        return 0 < self.cap < self.most - 1.0

    def _widen(self, now: float) -> None:
        """Raise the cap after a call beyond it was admitted, by more each time."""
        self._extra, self._extra_at = None, now + _GAP_SECONDS
        if self._step > 1:
            self._gap = _GAP_SECONDS
        self.most += self._step
        self._step *= 2
        if self.most > _UNLIMITED_WINDOW:
            self.unlimit()


class _PacedCalls:
    """Sends calls in cycles: a cruise just below the measured rate, then a probe until the limit is met."""

    def __init__(
        self, rate: float, delivery: _Delivery, now: float, *, ceiling: float = math.inf, search: bool = False
    ) -> None:
        self.bucket = Bucket(1.0, 1.0, now, level=0.0)
        self.noise = 0.0  # share of calls refused at random
        self._ceiling = ceiling
        self._probe_from: float = math.inf  # number of the first call of the probe
        self._probes, self._members = True, 1
        self._cycles = 0
        self.begin_cycle(rate, delivery, now)
        if search:
            self._cruise = 0.0

    def begin_cycle(self, rate: float, delivery: _Delivery, now: float) -> None:
        self.rate, self.delivery = min(max(rate, _MIN_RATE), self._ceiling), delivery
        self._cycles += 1
        self._cruise = max(_CRUISE_SECONDS, _CRUISE_CALLS / self.rate)
        self.reports_count_from = now + _REPORTED_SECONDS
        self._clock, self._clock_at = 0.0, now  # seconds of use, because idle time proves nothing
        self._probe_from = math.inf
        self._gain, self._passed = 1.0, 0.0
        self._send_at(_CRUISE_GAIN * self.rate if self.rate < self._ceiling else self.rate, now)
        self.bucket.level = min(self.bucket.level, 0.0)

    def _send_at(self, rate: float, now: float) -> None:
        rate = min(rate, self._ceiling)
        self.bucket.reshape(now, spaced_capacity(rate), rate)

    def take(self, call: Reservation, now: float, ceiling: float) -> bool:
        """Return False once the rate is too high to matter."""
        self._clock += min(max(0.0, now - self._clock_at), 2.0 * self._members / self.bucket.rate)
        self._clock_at, self._ceiling = max(now, self._clock_at), ceiling
        if self.bucket.rate >= ceiling:
            self.rate = min(self.rate, ceiling)
            self._send_at(ceiling, now)
            has_effect = now - self.delivery.since < _PEACE_SECONDS
        else:
            if self._probes and self._clock >= self._cruise:
                self._probe(call)
                self._send_at(self.rate * self._gain, now)
            has_effect = self.bucket.rate < _UNLIMITED_RATE
        self.bucket.take(now, 1.0)
        return has_effect

    def _probe(self, call: Reservation) -> None:
        """Start a probe, or its next step if this step has passed or timed out."""
        surplus = call.order - self.delivery.order - self.delivery.refused - self.rate * self._clock
        if self._probe_from == math.inf:
            self._probe_from, self._cruise_refused = call.order, self.delivery.refused
            self._gain = _PROBE_GAINS[self._cycles % len(_PROBE_GAINS)] if self._cruise else _SEARCH_GAIN
            self._step_at, self._step_surplus = self._clock, 0.0
            return
        passes = surplus >= self._step_surplus + _STEP_CALLS
        if self._clock < self._step_at + (_MIN_STEP_SECONDS if passes else _MAX_STEP_SECONDS):
            return
        if passes:
            self._passed = self.rate * self._gain
        self._gain = 1.0 + 2.0 * (self._gain - 1.0)
        self._step_at, self._step_surplus = self._clock, surplus

    def is_met(self, order: int) -> bool:
        if not self._probes:
            return False
        refused, first = self.delivery.refused - _SPARED_CALLS, float(self.delivery.order)
        if self._is_probed(order) and self._cruise:
            refused, first = self.delivery.refused - self._cruise_refused, self._probe_from
        return refused > _NOISE_FACTOR * self.noise * (order - first + _NOISE_CALLS)

    def meet(self, order: int, at: float, sent: int, now: float) -> None:
        """Measure the rate when the call sent at ``at`` meets the limit, and start the next cycle.

        The new rate is not below the previous one, if calls cruised at it, nor below the last probe step that
        passed: fewer calls than the limit allows are admitted if its unused capacity is lost.
        """
        rate = self.delivery.rate(order, at) / (1.0 - self.noise)
        if self.delivery.admitted(order) < _FEW_CALLS:
            rate = max(rate, self.rate / 2.0)
        if self._is_probed(order):
            calls = self._probe_from - self.delivery.order
            usual = self._cruise_refused <= _NOISE_FACTOR * self.noise * calls
            rate = max(rate, self._passed, self.rate if usual and self._cruise else 0.0)
            if calls >= _ENOUGH_CALLS:
                share = min(self._cruise_refused / calls, _MAX_NOISE)
                self.noise += _NOISE_WEIGHT * (share - self.noise)
        sending = self.bucket.rate
        self.begin_cycle(rate, _Delivery(at, sent), now)
        # A limit counted per second admits some calls early, so fewer are left for the end of the second.
        self.bucket.level = -max(0.0, self.rate * (1.0 - self.rate / sending))

    def _is_probed(self, order: int) -> bool:
        return self._probe_from <= order

    @property
    def is_searching(self) -> bool:
        return self._cruise == 0.0

    def follow(self, rate: float, sent: int, now: float) -> None:
        """Adopt the rate of another process. If it is higher, the calls admitted so far still count."""
        if rate < self.rate:
            self.begin_cycle(rate, _Delivery(now, sent), now)
        self.rate = rate
        self._send_at(rate, now)

    def share(self, calls: int, now: float, *, members: int, probes: bool) -> None:
        self._members = members
        self._probe_from -= calls
        if probes and not self._probes:
            self.begin_cycle(self.rate, self.delivery, now)
        self._probes = probes


class AdaptiveLimit:
    """A rate and a maximum number of calls in flight, both unlimited at first."""

    def __init__(self) -> None:
        self._in_flight = _CallsInFlight()
        self._paced: _PacedCalls | None = None
        self._delivery: _Delivery | None = None
        self._refusals: deque[Reservation] = deque(maxlen=_RECENT_CALLS)
        self._sent = 0
        self._members = 1
        self._changed = 0  # number of the last call sent before an estimate changed
        self._no_cap_until = -math.inf

    def begin(self, *, is_known: bool) -> None:
        if is_known:
            self._in_flight.open_from(_FIRST_CALLS_KNOWN, math.inf, _SLOW_DOUBLING_SECONDS)
        else:
            self._in_flight.open_from(FIRST_CALLS, math.inf, _DOUBLING_SECONDS)

    def open(self) -> None:
        self._in_flight.unlimit()

    @property
    def is_opening(self) -> bool:
        return self._in_flight.is_opening

    @property
    def rate(self) -> float:
        return 0.0 if self._paced is None else self._paced.rate

    @property
    def sending_rate(self) -> float:
        """Current rate, in calls per second, at which calls are spaced, cruising or probing; 0 if unknown."""
        return 0.0 if self._paced is None else self._paced.bucket.rate

    def look(self, now: float, in_flight: int) -> float:
        at = now if in_flight < self._in_flight.most == math.inf else self._in_flight.look(now, in_flight)
        if self._paced is not None:
            at = max(at, self._paced.bucket.look(now, 1.0))
        return at

    def take(self, call: Reservation, now: float, ceiling: float) -> None:
        self._sent = call.order
        self._in_flight.take(call, now)
        if self._paced is not None:
            if not self._paced.take(call, now, ceiling):
                self._forget_rate()
                if ceiling < math.inf:
                    self.begin(is_known=True)
        elif self._delivery is None:
            self._delivery = _Delivery(now, call.order - 1)

    def accepted(self, call: Reservation, now: float) -> None:
        self._in_flight.accepted(call, now)
        self._in_flight.is_checked |= call.order > self._changed
        if self._in_flight.is_exceeded:
            self._no_cap_until = now + _NO_CAP_SECONDS

    def ended(self, call: Reservation) -> None:
        self._in_flight.ended(call)

    def dropped(self, call: Reservation, now: float) -> None:
        self._in_flight.ended(call)
        if self._paced is not None:
            self._paced.bucket.return_surplus(now, 1.0)

    def refused(self, call: Reservation, now: float) -> Evidence:
        """Handle a refusal that no known limit explains; the caller pauses all calls if it proves a limit."""
        # 1. Sent before an estimate last changed: part of the same event.
        if call.order <= self._changed:
            return Evidence.KNOWN
        # 2. The call beyond the cap: the cap is confirmed.
        if self._in_flight.is_beyond(call, now):
            return Evidence.KNOWN
        self._refusals.append(call)
        delivery = self._delivery if self._paced is None else self._paced.delivery
        if delivery is not None:
            delivery.refused += 1
        # 3. The second refusal below a cap that no call has confirmed, or more refusals than chance explains:
        #    there is no cap.
        at_random = _SPARED_CALLS + _NOISE_FACTOR * _MAX_NOISE * (call.order - self._changed)
        if self._in_flight.cap and len(self._refusals) > (at_random if self._in_flight.is_checked else 1):
            self._no_cap_until = now + _NO_CAP_SECONDS
            return Evidence.PROOF
        # 4. Proof of a limit: assume a cap if possible, otherwise a rate.
        if self._is_proof(call):
            return Evidence.KNOWN if self._assume_cap(call, now) else Evidence.PROOF
        # 5. Paced calls meet the limit: measure the rate.
        if self._paced is not None and self._paced.is_met(call.order):
            self._paced.meet(call.order, call.started, self._sent, now)
            self._changed = self._sent
            return Evidence.KNOWN
        # 6. It may be random. Slow start continues, more slowly.
        if self._in_flight.is_opening:
            self._in_flight.open_from(call.held[0] - 1.0, now, _SLOW_DOUBLING_SECONDS)
        return Evidence.ALONE

    def _since(self, call: Reservation) -> int:
        """Return the number of the last call to ignore: only the last 32 calls and those in flight with
        ``call`` count."""
        return min(call.order - call.held[0], self._sent - _RECENT_CALLS)

    def _recent(self, call: Reservation) -> list[Reservation]:
        return [refused for refused in self._refusals if refused.order > self._since(call)]

    def _is_proof(self, call: Reservation) -> bool:
        orders = {refused.order for refused in self._recent(call)}
        if len(orders) >= _PROVING_SHARE * (self._sent - self._since(call)):
            return True
        first = last = call.order
        while first - 1 in orders:
            first -= 1
        while last + 1 in orders:
            last += 1
        return last - first + 1 >= _PROVING_CALLS

    def _assume_cap(self, call: Reservation, now: float) -> bool:
        """Assume a cap below the calls in flight that were refused; return False if a cap cannot explain the
        refusal."""
        cap = min(refused.held[0] for refused in self._recent(call)) - 1
        if cap < 2 or self._paced is not None or now < self._no_cap_until:
            return False
        self._in_flight.assume(cap, now, now - call.started)
        self._change()
        return True

    def pause(self, call: Reservation, until: float, ceiling: float) -> None:
        self._in_flight.unlimit()
        proof = self._recent(call) or [call]
        delivery, first = self._delivery or _Delivery(call.started, self._sent), proof[0]
        admitted = first.order - 1 - delivery.order - (delivery.refused - len(proof))
        met = _Delivery(first.started, self._sent)
        # 1. A rate was measured before: measure it again.
        if self._paced is not None:
            self._paced.meet(call.order, call.started, self._sent, until)
        # 2. A rate is known: space calls at it.
        elif ceiling < math.inf:
            self._paced = _PacedCalls(ceiling, met, until, ceiling=ceiling)
        # 3. Calls were admitted at first contact, perhaps as a burst, so their rate is measured over a time
        #    that includes the pause. Other processes have not reported their calls yet, so the same number is
        #    assumed for each.
        elif admitted > 0:
            rate = self._members * admitted / (until - delivery.since)
            self._paced = _PacedCalls(rate, met, until, search=True)
        # 4. No call was admitted: start slowly after the pause.
        else:
            self._in_flight.open_from(_FIRST_CALLS_AGAIN, until, _SLOW_DOUBLING_SECONDS)
        self._delivery = None
        self._change()

    def space_at(self, rate: float, now: float) -> None:
        self._in_flight.unlimit()
        self._paced = _PacedCalls(rate, _Delivery(now, self._sent), now, ceiling=rate)
        self._delivery = None
        self._change()

    def owe(self, calls: float) -> None:
        assert self._paced is not None
        self._paced.bucket.level -= calls

    def follow(self, rate: float, now: float) -> None:
        """Adopt the rate of another process; 0 discards the measured one."""
        if not rate:
            self._forget_rate()
            return
        self._in_flight.unlimit()
        if self._paced is None:
            delivery, self._delivery = self._delivery or _Delivery(now, self._sent), None
            self._paced = _PacedCalls(rate, delivery, now)
        self._paced.follow(rate, self._sent, now)
        self._change()

    def share(self, accepted: float, refused: float, now: float, *, members: int, probes: bool) -> None:
        """Take calls of other processes into account: those since the last exchange, by outcome."""
        self._members = members
        if members > 1 and self._in_flight.is_opening and not self._sent:
            self._in_flight.open_from(FIRST_CALLS // members, math.inf, _DOUBLING_SECONDS)
        if self._paced is None:
            return
        if now < self._paced.reports_count_from:  # most of these calls were sent before the cycle began
            refused = 0.0
            accepted = (
                0.0 if self._paced.is_searching else min(accepted, _REPORTED_SECONDS * self._paced.rate)
            )
        delivery = self._paced.delivery
        delivery.order -= int(accepted + refused)
        delivery.refused += int(refused)
        self._paced.share(int(accepted + refused), now, members=members, probes=probes)
        if refused and self._paced.is_met(self._sent):
            self._paced.meet(self._sent, now, self._sent, now)
            self._change()

    def _forget_rate(self) -> None:
        self._paced = None
        self._change()

    def _change(self) -> None:
        self._changed = self._sent
        self._refusals.clear()
