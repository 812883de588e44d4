"""A limit that is neither configured nor reported: a rate and a number of calls in flight, estimated from
refusals.

This is congestion control, with refusals instead of lost packets:

* **slow start** (RFC 6928): first contact begins with a few calls and doubles their number with each round of
  answers;
* **a rate**: as BBR paces at the delivery rate, calls cruise just below the measured rate, then probe for a
  higher one, faster with each step that passes. As in BBR's long-term sampling, which is made for policers,
  the rate is derived from the calls admitted between two moments at which the limit was met: a bucket was
  empty at both, so the calls admitted in between equal its refill;
* **a number of calls in flight**, adjusted by the AIMD rule: one more call is tried now and then, and
  refusals lower it below the number at which calls were refused.

Single refusals change nothing, because shared services refuse at random: several in a row, or a share of all
calls, prove a limit. A cap on calls in flight always refuses calls beyond it, and none below it. Therefore a
cap is assumed first; refusals below it show that the limit is a rate. Processes that share a limit follow the
lowest rate that any of them measured, and one process at a time probes for all.
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
"""The same for a known limit whose burst is unknown, and after a pause before which no call was admitted."""

_DOUBLES_IN_S, _DOUBLES_SLOWLY_IN_S = 0.05, 1.0
"""Seconds after which calls in flight double without an answer; the second value applies to known limits and
after refusals. First contact may cost at most half a round trip."""

_UNLIMITED_WINDOW = 4096.0
"""A window this wide has no effect (workers are at most 1,024) and is dropped."""

_PROVING_ROW, _PROVING_SHARE, _RECENT_CALLS = 4, 0.25, 32
"""Four refused calls in a row, or a quarter of the last 32, prove a limit. If 4 % are refused at random,
four in a row occur once in 400,000 calls, and eight of 32 never."""

_GAP_S, _MAX_GAP_S = 1.0, 16.0
"""Seconds until a call beyond the cap is tried; doubled whenever that call is refused."""

_PASSES_IN = 4.0
"""A call that is not refused within this many times the duration of a refusal was admitted: answers may
take minutes."""

_NO_CAP_S = 60.0
"""Seconds after a cap proved wrong during which no other cap is assumed."""

SPACED_SHARE = 0.988
"""Share of a known rate at which calls are spaced: leaves 1.2 ms per 100 ms for irregular arrivals."""

_PEACE_S = 600.0
"""Seconds of calls at the known rate without a refusal after which bursts are tried again."""

_CRUISE_S, _CRUISE_CALLS = 3.5, 35.0
"""Minimum seconds and calls of a cruise: a probe ends with a refusal, and 2 % of calls may be refused. A
limit that rises is met within ten seconds."""

_CRUISE_GAIN = 0.985
"""Share of the measured rate at which calls cruise, so that measuring 1 % too much is harmless."""

_PROBE_GAINS, _SEARCH_GAIN = (1.1, 1.05), 1.5
"""The first step of a probe as a multiple of the measured rate, alternating; BBR's 1.25 costs more than
2 % refusals. The rate of the first contact may be far too low, or that of a burst, so it is left faster."""

_STEP_CALLS, _MIN_STEP_S, _MAX_STEP_S = 2.0, 1.0, 3.0
"""A step of a probe passes when two calls beyond the measured rate were admitted. It lasts at least a
second: a limit counted per second shows within one. The excess doubles with each step."""

_FEW_CALLS, _ENOUGH_CALLS = 3, 16
"""Fewer admitted calls show only that the rate is too high, and are too few to measure the share of random
refusals."""

_REPORTED_IN_S = 0.5
"""Seconds until earlier calls of other processes have been reported."""

_NOISE_WEIGHT, _MAX_NOISE = 0.3, 0.06
"""The weight of the last cruise in the share of random refusals, and the maximum of that share."""

_NOISE_TIMES, _NOISE_CALLS, _SPARED_CALLS = 2.0, 40.0, 2
"""The limit is met when more than twice that share of the calls, and of 40 more, are refused; while cruising,
when two more calls than that are refused."""

_MIN_RATE, _UNLIMITED_RATE = 0.5, 2000.0
"""The lowest rate, and a rate too high to matter, in calls per second."""


class Evidence(Enum):
    """What a refusal shows."""

    ALONE = "alone"  # nothing, since it may be random
    KNOWN = "known"  # the estimates explain it, or were adapted to it
    PROOF = "proof"  # there is a limit below the sent amount: all calls pause


@define
class _Delivery:
    """The calls admitted since the limit was last met."""

    since: float  # when the call that met it was sent
    order: int  # order of the last call sent by then
    refused: int = 0  # later calls that were refused

    def admitted(self, order: int) -> int:
        """Return how many calls were admitted up to the refused call with this order."""
        return order - self.order - max(1, self.refused)

    def rate(self, order: int, at: float) -> float:
        """Return the calls per second admitted up to the call with this order, which was sent at ``at``."""
        return self.admitted(order) / max(at - self.since, 1e-3)


@define(eq=False)
class _CallsInFlight:
    """The maximum number of calls in flight: unlimited, growing from a few, or a cap beyond which one call is
    tried."""

    most: float = math.inf  # infinity while unlimited
    is_opening: bool = False  # doubles with each round of answers
    cap: int = 0  # as assumed; 0 for none
    is_checked: bool = False  # a call has been admitted since
    _first: float = 0.0  # calls in flight at first, while opening
    _began: float = math.inf
    _doubles_in: float = 0.0
    _extra: Reservation | None = None  # the call beyond the cap
    _extra_at: float = math.inf  # when the next one may be sent
    _passes_in: float = 0.0
    _gap: float = _GAP_S
    _step: int = 1

    def unlimit(self) -> None:
        self.most, self.is_opening, self.cap, self._extra = math.inf, False, 0, None

    def open_from(self, calls: float, began: float, doubles_in: float) -> None:
        """Begin with ``calls`` calls at ``began``; infinity stands for the time at which the first one is
        sent."""
        self.unlimit()
        self.most = self._first = max(1.0, calls)
        self.is_opening, self._began, self._doubles_in = True, began, doubles_in

    def assume(self, cap: int, now: float, refused_in: float) -> None:
        """Assume a cap beyond which calls are refused within ``refused_in`` seconds."""
        self.unlimit()
        self.most, self.cap, self.is_checked = float(cap), cap, False
        self._gap, self._step, self._extra_at = _GAP_S, 1, now + _GAP_S
        self._passes_in = max(_PASSES_IN * refused_in, _DOUBLES_IN_S)

    def look(self, now: float, in_flight: int) -> float:
        """Return when one more call may be sent; infinity if not before another call ends."""
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
        """The call shows nothing about limits."""
        if call is self._extra:
            self._extra = None

    def is_beyond(self, call: Reservation, now: float) -> bool:
        """Return whether the refused call was the one beyond the cap. If the cap has grown because of the
        refused call, it shrinks again. Either way the next call beyond the cap is sent later."""
        is_extra = call is self._extra
        if is_extra or 0 < self.cap < self.most <= call.held[0]:
            self.most -= 0.0 if is_extra else 1.0
            self._extra, self._extra_at, self._step = None, now + self._gap, 1
            self._gap = min(2.0 * self._gap, _MAX_GAP_S)
        return is_extra

    @property
    def is_exceeded(self) -> bool:
        """Whether calls beyond the cap were admitted twice, which shows that there is no such cap."""
        return 0 < self.cap < self.most - 1.0

    def _widen(self, now: float) -> None:
        """A call beyond the cap was admitted: the cap grows, by more each time."""
        self._extra, self._extra_at = None, now + _GAP_S
        if self._step > 1:
            self._gap = _GAP_S
        self.most += self._step
        self._step *= 2
        if self.most > _UNLIMITED_WINDOW:
            self.unlimit()


class _PacedCalls:
    """Calls at a measured rate: cycles of a cruise just below it and a probe until the limit is met.

    Args:
        rate: calls per second, as measured.
        delivery: the calls admitted since the limit was last met.
        ceiling: maximum calls per second.
        search: whether to probe at once.
    """

    def __init__(
        self, rate: float, delivery: _Delivery, now: float, *, ceiling: float = math.inf, search: bool = False
    ) -> None:
        self.bucket = Bucket(1.0, 1.0, now, level=0.0)  # spaces the calls
        self.noise = 0.0  # share of calls refused at random
        self._ceiling = ceiling
        self._probe_from: float = math.inf  # the order of the first call of the probe
        self._probes, self._members = True, 1  # whether this process probes, and the number of processes
        self._cycles = 0
        self.begin_cycle(rate, delivery, now)
        if search:
            self._cruise = 0.0

    def begin_cycle(self, rate: float, delivery: _Delivery, now: float) -> None:
        self.rate, self.delivery = min(max(rate, _MIN_RATE), self._ceiling), delivery
        self._cycles += 1
        self._cruise = max(_CRUISE_S, _CRUISE_CALLS / self.rate)
        self.reports_count_from = now + _REPORTED_IN_S
        self._clock, self._clock_at = 0.0, now  # seconds of use, since idle time proves nothing
        self._probe_from = math.inf
        self._gain, self._passed = 1.0, 0.0
        self._send_at(_CRUISE_GAIN * self.rate if self.rate < self._ceiling else self.rate, now)
        self.bucket.level = min(self.bucket.level, 0.0)

    def _send_at(self, rate: float, now: float) -> None:
        rate = min(rate, self._ceiling)
        self.bucket.reshape(now, spaced_capacity(rate), rate)

    def take(self, call: Reservation, now: float, ceiling: float) -> bool:
        """Count a call and advance the cycle; return False once the rate no longer has any effect."""
        self._clock += min(max(0.0, now - self._clock_at), 2.0 * self._members / self.bucket.rate)
        self._clock_at, self._ceiling = max(now, self._clock_at), ceiling
        if self.bucket.rate >= ceiling:
            self.rate = min(self.rate, ceiling)
            self._send_at(ceiling, now)
            has_effect = now - self.delivery.since < _PEACE_S
        else:
            if self._probes and self._clock >= self._cruise:
                self._probe(call)
                self._send_at(self.rate * self._gain, now)
            has_effect = self.bucket.rate < _UNLIMITED_RATE
        self.bucket.take(now, 1.0)
        return has_effect

    def _probe(self, call: Reservation) -> None:
        """Begin a probe, or its next step once this one has passed or lasted too long."""
        surplus = call.order - self.delivery.order - self.delivery.refused - self.rate * self._clock
        if self._probe_from == math.inf:
            self._probe_from, self._cruise_refused = call.order, self.delivery.refused
            self._gain = _PROBE_GAINS[self._cycles % len(_PROBE_GAINS)] if self._cruise else _SEARCH_GAIN
            self._step_at, self._step_surplus = self._clock, 0.0
            return
        passes = surplus >= self._step_surplus + _STEP_CALLS
        if self._clock < self._step_at + (_MIN_STEP_S if passes else _MAX_STEP_S):
            return
        if passes:
            self._passed = self.rate * self._gain
        self._gain = 1.0 + 2.0 * (self._gain - 1.0)
        self._step_at, self._step_surplus = self._clock, surplus

    def is_met(self, order: int) -> bool:
        """Return whether more calls than expected at random were refused, up to this refused call."""
        if not self._probes:
            return False
        refused, first = self.delivery.refused - _SPARED_CALLS, float(self.delivery.order)
        if self._is_probed(order) and self._cruise:
            refused, first = self.delivery.refused - self._cruise_refused, self._probe_from
        return refused > _NOISE_TIMES * self.noise * (order - first + _NOISE_CALLS)

    def meet(self, order: int, at: float, sent: int, now: float) -> None:
        """Measure the rate, because this call, sent at ``at``, met the limit, and begin the next cycle.

        The rate is that of the calls admitted in the cycle, but at least the previous rate if calls cruised
        at it, and at least the last probe step that passed: fewer calls may have been admitted if unused
        capacity is lost.
        """
        rate = self.delivery.rate(order, at) / (1.0 - self.noise)
        if self.delivery.admitted(order) < _FEW_CALLS:
            rate = max(rate, self.rate / 2.0)
        if self._is_probed(order):
            calls = self._probe_from - self.delivery.order
            usual = self._cruise_refused <= _NOISE_TIMES * self.noise * calls
            rate = max(rate, self._passed, self.rate if usual and self._cruise else 0.0)
            if calls >= _ENOUGH_CALLS:
                share = min(self._cruise_refused / calls, _MAX_NOISE)
                self.noise += _NOISE_WEIGHT * (share - self.noise)
        sending = self.bucket.rate
        self.begin_cycle(rate, _Delivery(at, sent), now)
        # calls that a limit counted per second admitted too early are missing at the end of the second
        self.bucket.level = -max(0.0, self.rate * (1.0 - self.rate / sending))

    def _is_probed(self, order: int) -> bool:
        return self._probe_from <= order

    @property
    def is_searching(self) -> bool:
        """Whether the rate was measured at first contact, which may have been a burst."""
        return self._cruise == 0.0

    def follow(self, rate: float, sent: int, now: float) -> None:
        """Adopt the rate of another process. If it is higher, the calls admitted so far still count."""
        if rate < self.rate:
            self.begin_cycle(rate, _Delivery(now, sent), now)
        self.rate = rate
        self._send_at(rate, now)

    def share(self, calls: int, now: float, *, members: int, probes: bool) -> None:
        """Count the ``calls`` of other processes that share the rate, and set whether this one probes."""
        self._members = members
        self._probe_from -= calls
        if probes and not self._probes:
            self.begin_cycle(self.rate, self.delivery, now)
        self._probes = probes


class AdaptiveLimit:
    """A rate and a number of calls in flight. At first it delays nothing, unless it begins slowly."""

    def __init__(self) -> None:
        self._in_flight = _CallsInFlight()
        self._paced: _PacedCalls | None = None
        self._delivery: _Delivery | None = None  # while no rate is known
        self._refusals: deque[Reservation] = deque(maxlen=_RECENT_CALLS)
        self._sent = 0
        self._members = 1  # processes that share the limit
        self._changed = 0  # order of the last call sent before an estimate changed
        self._no_cap_until = -math.inf  # when a cap may be assumed again

    def begin(self, *, is_known: bool) -> None:
        """Begin slowly, at first contact with an unknown limit or one that ``is_known``."""
        if is_known:
            self._in_flight.open_from(_FIRST_CALLS_KNOWN, math.inf, _DOUBLES_SLOWLY_IN_S)
        else:
            self._in_flight.open_from(FIRST_CALLS, math.inf, _DOUBLES_IN_S)

    def open(self) -> None:
        """Stop beginning slowly: something better is known."""
        self._in_flight.unlimit()

    @property
    def is_opening(self) -> bool:
        return self._in_flight.is_opening

    @property
    def rate(self) -> float:
        """Measured calls per second; 0 while unknown."""
        return 0.0 if self._paced is None else self._paced.rate

    @property
    def sending_rate(self) -> float:
        """Calls per second at which calls are spaced now, cruising or probing; 0 while no rate is known."""
        return 0.0 if self._paced is None else self._paced.bucket.rate

    def look(self, now: float, in_flight: int) -> float:
        """Return the earliest time a call may be sent; infinity if not before another call ends."""
        at = now if in_flight < self._in_flight.most == math.inf else self._in_flight.look(now, in_flight)
        if self._paced is not None:
            at = max(at, self._paced.bucket.look(now, 1.0))
        return at

    def take(self, call: Reservation, now: float, ceiling: float) -> None:
        """Count a call that is sent. The rate does not exceed the ``ceiling``."""
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
            self._no_cap_until = now + _NO_CAP_S

    def ended(self, call: Reservation) -> None:
        """The call shows nothing about limits."""
        self._in_flight.ended(call)

    def dropped(self, call: Reservation, now: float) -> None:
        """The call was never sent."""
        self._in_flight.ended(call)
        if self._paced is not None:
            self._paced.bucket.settle(now, 1.0)

    def refused(self, call: Reservation, now: float) -> Evidence:
        """Handle a refusal that no known limit explains. If it proves a limit, :meth:`pause` follows."""
        # 1. Sent before an estimate last changed: the same event.
        if call.order <= self._changed:
            return Evidence.KNOWN
        # 2. The call beyond the cap, which is confirmed.
        if self._in_flight.is_beyond(call, now):
            return Evidence.KNOWN
        self._refusals.append(call)
        delivery = self._delivery if self._paced is None else self._paced.delivery
        if delivery is not None:
            delivery.refused += 1
        # 3. The second refusal below an unchecked cap, or more refusals below a cap than at random: there is
        # no cap.
        at_random = _SPARED_CALLS + _NOISE_TIMES * _MAX_NOISE * (call.order - self._changed)
        if self._in_flight.cap and len(self._refusals) > (at_random if self._in_flight.is_checked else 1):
            self._no_cap_until = now + _NO_CAP_S
            return Evidence.PROOF
        # 4. Proof of a limit: a cap if possible, otherwise a rate.
        if self._is_proof(call):
            return Evidence.KNOWN if self._assume_cap(call, now) else Evidence.PROOF
        # 5. Calls are paced and meet the limit: measure it.
        if self._paced is not None and self._paced.is_met(call.order):
            self._paced.meet(call.order, call.started, self._sent, now)
            self._changed = self._sent
            return Evidence.KNOWN
        # 6. It may be random. Slow start continues, more slowly.
        if self._in_flight.is_opening:
            self._in_flight.open_from(call.held[0] - 1.0, now, _DOUBLES_SLOWLY_IN_S)
        return Evidence.ALONE

    def _since(self, call: Reservation) -> int:
        """Return the order of the last call that no longer counts: only 32 calls and those in flight with
        ``call`` count."""
        return min(call.order - call.held[0], self._sent - _RECENT_CALLS)

    def _recent(self, call: Reservation) -> list[Reservation]:
        """Return the refused calls among the last calls."""
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
        return last - first + 1 >= _PROVING_ROW

    def _assume_cap(self, call: Reservation, now: float) -> bool:
        """Assume a cap below the calls in flight that were refused; return False if it cannot be a cap."""
        cap = min(refused.held[0] for refused in self._recent(call)) - 1
        if cap < 2 or self._paced is not None or now < self._no_cap_until:
            return False
        self._in_flight.assume(cap, now, now - call.started)
        self._change()
        return True

    def pause(self, call: Reservation, until: float, ceiling: float) -> None:
        """Pause all calls until ``until`` and space them, because the refusal of ``call`` proved a limit."""
        self._in_flight.unlimit()
        proof = self._recent(call) or [call]
        delivery, first = self._delivery or _Delivery(call.started, self._sent), proof[0]
        admitted = first.order - 1 - delivery.order - (delivery.refused - len(proof))
        met = _Delivery(first.started, self._sent)
        # 1. A rate was measured before: measure it again.
        if self._paced is not None:
            self._paced.meet(call.order, call.started, self._sent, until)
        # 2. A rate is known.
        elif ceiling < math.inf:
            self._paced = _PacedCalls(ceiling, met, until, ceiling=ceiling)
        # 3. Calls were admitted at first contact: use their rate, including the pause, since they may be a
        #    burst. Other processes have not reported theirs yet.
        elif admitted > 0:
            rate = self._members * admitted / (until - delivery.since)
            self._paced = _PacedCalls(rate, met, until, search=True)
        # 4. No call was admitted: begin slowly after the pause.
        else:
            self._in_flight.open_from(_FIRST_CALLS_AGAIN, until, _DOUBLES_SLOWLY_IN_S)
        self._delivery = None
        self._change()

    def space_at(self, rate: float, now: float) -> None:
        """Bursts are not honoured: space the calls at a known rate."""
        self._in_flight.unlimit()
        self._paced = _PacedCalls(rate, _Delivery(now, self._sent), now, ceiling=rate)
        self._delivery = None
        self._change()

    def owe(self, calls: float) -> None:
        """Delay the next call by the time of ``calls`` calls."""
        assert self._paced is not None
        self._paced.bucket.level -= calls

    def follow(self, rate: float, now: float) -> None:
        """Adopt the rate found by another process; 0 for none."""
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
        """Set the number of processes that share the limit, and whether this one probes for all.

        Args:
            accepted, refused: calls of the others that were answered and refused since the last exchange.
        """
        self._members = members
        if members > 1 and self._in_flight.is_opening and not self._sent:
            self._in_flight.open_from(FIRST_CALLS // members, math.inf, _DOUBLES_IN_S)
        if self._paced is None:
            return
        if now < self._paced.reports_count_from:  # most of these were sent before the cycle began
            refused = 0.0
            accepted = 0.0 if self._paced.is_searching else min(accepted, _REPORTED_IN_S * self._paced.rate)
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
