"""The window: a limit on calls in flight that grows with success, for as long as nothing better is known."""

from __future__ import annotations

import enum
import math

from attrs import define, field

from smartbatch.core.limits.header_limits import Reservation

_FIRST, _PROVING = 4.0, 0.5
"""A configured limit starts with 4 calls in flight beyond its even rate and half a call more for each
success, x1.5 a round trip: some ten calls are refused until it is known that a server honours no burst."""

_OPENING, _OPENING_GROWTH = 6.0, 0.5
"""Where nobody told a limit 6 calls go first, and half as many more with each round trip: what is under way
when the limit is met is refused. Twice as many after a refusal that turned out to be a random one."""

_OPENS_EVERY = 0.25
"""Seconds in which they double where answers are slow."""

_TOGETHER = 1.0
"""Seconds in which, where processes begin together, as many calls more as are in flight go with the answers:
what all of them send until each has met the limit by itself is refused. Together they begin with 4."""

_LONE = 2
"""Lone refusals at first contact before one more with as many calls in flight speaks for a cap."""

_PROOF, _PROOF_SHARE = 2, 0.5
"""Refusals of calls sent after a refused one that prove a limit, while none of them is answered, and the
share of these calls that they are: beyond a limit all are refused, and answers take longer than refusals."""

_PROBES_MOST, _PROBES_IN = 0.5, 2.0
"""After a refusal at first contact a call finds out whether more are refused: when half of those in flight
have ended, half a second later at most. Where answers are slow, and none has come yet, after twice the time
that the refusal took: by then it is known of the calls that were sent with it, and a limit refills later."""

_PASSES_IN, _PASSES_LEAST = 10.0, 0.1
"""A call that finds out after a refusal has passed when it is not refused within ten times what that refusal
took, a tenth of a second at least: answers may take a minute."""

_RESTART, _DOUBLING, _DOUBLES_EVERY = 2.0, 1.0, 1.0
_DECREASE = 0.7
"""After a cooldown the window starts at 2 and doubles each round trip or each second, up to 0.7 of the calls
in flight when a limit was proven; then one call more a round. 0.7 is CUBIC's decrease (RFC 9438, 4.6)."""

_WIDE = 4096.0
"""A window this wide limits nobody (workers are at most 1,024) and is dropped."""


class FirstRefusal(enum.Enum):
    """What a refusal at first contact says."""

    LATER = "later"
    """Nothing: the window did not hold calls back when the call was sent, and a refusal was met before."""
    LONE = "lone"
    """Nothing yet: a lone refusal may be a random one."""
    AGAIN = "again"
    """With so many calls in flight it is the third one, and fewer were let through each time: there may be a
    cap on calls at once."""
    PROOF = "proof"
    """There is a limit: calls that were sent after the refused one were refused as well."""


@define(eq=False)
class CallWindow:
    """The most calls in flight.

    Attributes:
        size: infinity while there is no window.
        narrowed_at: when it, or a rate in its place, was lowered last, without a cooldown.
        is_opening: whether it approaches a limit that nobody told.
        began: when the first calls went, at first contact.
        short_of: calls that may go next, where they are few enough to go at once after the first answer.
    """

    size: float = field(default=math.inf, init=False)
    narrowed_at: float = field(default=-math.inf, init=False)
    is_opening: bool = field(default=False, init=False)
    began: float = field(default=math.inf, init=False)
    short_of: int = field(default=0, init=False)
    _together: bool = field(default=False, init=False)  # with other processes
    _grown_at: float = field(default=-math.inf, init=False)
    _held_at: float = field(default=math.inf, init=False)  # when a call was refused at first contact
    _held_from: int = field(default=0, init=False)  # the order of that call
    _passes_in: float = field(default=0.0, init=False)  # seconds until one that finds out has passed
    _probes_at: float = field(default=0.0, init=False)  # when it goes, or has passed
    _probing: bool = field(default=False, init=False)  # whether it is under way
    _opened: float = field(default=0.0, init=False)  # calls in flight when it was refused
    _refused: int = field(default=0, init=False)  # of calls sent after that one
    _lone: int = field(default=0, init=False)  # such refusals that turned out to be lone ones
    _narrowed_to: float = field(default=_RESTART, init=False)
    _filled_at: float = field(default=-math.inf, init=False)
    _growth: float = field(default=_DOUBLING, init=False)
    _threshold: float = field(default=math.inf, init=False)  # doubling below, one a round above

    @property
    def is_proving(self) -> bool:
        """Whether it finds out if the burst of a configured limit is honoured."""
        return self._growth == _PROVING

    def prove_burst(self) -> None:
        self.size, self._growth, self._threshold = _FIRST, _PROVING, math.inf
        self.is_opening = False

    def begin(self) -> None:
        """Approach a limit that nobody told: few calls first, and more with each answer."""
        self.size, self._growth, self._threshold = _OPENING, _DOUBLING, math.inf
        self.is_opening, self._held_at = True, math.inf

    @property
    def opened(self) -> float:
        """Calls in flight to which it opened at first contact without a refusal; else 0. Always finite: other
        processes are told it.
        """
        opens = self.is_opening and self.began < math.inf and self._held_at == math.inf
        return min(self.size, _WIDE) if opens else 0.0

    def join(self, members: int, in_flight: float) -> None:
        """At first contact: so many processes begin together, and some know of so many calls in flight in
        each that were let through; infinity where a limit is known.
        """
        self._together = members > 1
        if in_flight == math.inf:
            self.open()
        elif self._held_at == math.inf:
            first = max(1.0, _FIRST // members) if self._together else _OPENING
            self.size = max(first if self.began == math.inf else self.size, in_flight)

    def open(self) -> None:
        """Limit nothing any more."""
        self.size, self._growth, self.is_opening = math.inf, _DOUBLING, False

    def disprove(self) -> None:
        """What was proven turned out to be no limit: limit nothing, and do not begin slowly for it again."""
        self.open()
        self._threshold = math.inf

    def took(self, in_flight: int, now: float) -> None:
        """Count a call, the last of so many in flight."""
        if in_flight >= self.size:
            self._filled_at = now
            if self.is_opening:  # further ones with time
                self.began = min(self.began, now)
                if self._held_at < math.inf and self._probing:
                    self._go_on()
                elif self._held_at < math.inf:
                    self._probing, self._probes_at, self.size = True, now + self._passes_in, 0.0
                elif in_flight >= self.size + 1.0:
                    self.size = float(in_flight)

    def let_through(self, call: Reservation, now: float) -> None:
        """A call was not refused. One that was sent when the window was not full proves nothing."""
        if self._held_at < math.inf and self.is_opening:
            if call.order > self._held_from:
                self._go_on()
            return
        if call.started > self._filled_at:
            return
        if self.is_opening:
            self.size += self.short_of
            if self._together and now < self._grown_at + _TOGETHER / self.size:
                return
            self._grown_at = now
        slowly = self.is_opening and not self._together and not self._lone
        growth = _OPENING_GROWTH if slowly else self._growth
        self.size += growth if self.size < self._threshold else 1.0 / self.size
        if self.size > _WIDE:
            self.size = math.inf

    def _go_on(self) -> None:
        """The call that was refused was a lone one."""
        self.size, self._held_at = max(_OPENING, self._opened), math.inf
        self._lone += 1

    def opens(self, now: float, in_flight: int, cool_until: float) -> float:
        """Return when the full window lets the next call go, unless a success widens it sooner.

        Answers may take a minute, and a restart that waited only for them would take many: the window also
        doubles each second.
        """
        if self.is_opening:
            return self._opens_next(now, in_flight)
        if self.is_proving or in_flight >= self._threshold:
            return math.inf
        doublings = math.log2((in_flight + 1) / self._narrowed_to)
        return max(now, max(cool_until, self.narrowed_at) + _DOUBLES_EVERY * doublings)

    def _opens_next(self, now: float, in_flight: int) -> float:
        """Return when the next call goes at first contact. The cases, in order:

        1. Nothing is in flight: now.
        2. A call was refused: one more goes and finds out; the others, when that was not refused for a while.
        3. Otherwise the calls in flight double in each quarter of a second.
        """
        if not in_flight:
            return now
        if self._held_at < math.inf:
            return max(now, self._probes_at)
        return max(now, self._filled_at + _OPENS_EVERY * math.log2((in_flight + 1) / in_flight))

    def refuse(self, call: Reservation, in_flight: int, now: float, *, answered: bool) -> FirstRefusal:
        """A call was refused at first contact, of so many in flight; see :class:`FirstRefusal`.

        After the first one, and one that was sent when the window held calls back, no more calls go until one
        shows whether it is a lone one.

        Args:
            answered: whether any call was answered before.
        """
        if self._held_at < math.inf:
            if call.order <= self._held_from:
                return FirstRefusal.LONE
            self._refused += 1
            self._probing, self._probes_at = False, now  # another one finds out
            enough = max(_PROOF, _PROOF_SHARE * (call.order - self._held_from))
            return FirstRefusal.PROOF if self._refused >= enough else FirstRefusal.LONE
        if call.started > self._filled_at and self._lone:
            return FirstRefusal.LATER
        again = self._lone >= _LONE and in_flight >= _DECREASE * self._opened
        seconds = now - call.started
        wait = _PROBES_MOST if answered else min(_PROBES_IN * seconds, _PROBES_MOST)
        self._held_at, self._probes_at = now, now + wait
        self._passes_in = max(_PASSES_IN * seconds, _PASSES_LEAST)
        self._held_from, self._opened = call.order, float(in_flight)
        self._refused, self._probing = 0, False
        self.size = max(1.0, float(in_flight // 2))
        return FirstRefusal.AGAIN if again else FirstRefusal.LONE

    @property
    def sent_before_refusal(self) -> int:
        """Calls sent before the one that was refused at first contact: when that proves a limit, they are
        taken to be accepted, and those sent after it are not.
        """
        return self._held_from - 1

    def narrow(self, in_flight: float, now: float) -> None:
        """Let so many calls be in flight from now on."""
        self.is_opening = False
        self.size = self._narrowed_to = in_flight
        self.narrowed_at = now

    def give_way(self, in_flight: int, now: float) -> None:
        """A call was refused, of so many in flight, and it stands alone."""
        self.narrow(max(_RESTART, _DECREASE * min(in_flight, self.size)), now)

    def restart(self, peak: int, *, first: bool) -> None:
        """Begin again slowly after a cooldown. After the first one in a row near a limit that was proven
        before, it only shrinks to 0.7 of the calls in flight.
        """
        again = first and self._threshold != math.inf
        self.size = max(_RESTART, _DECREASE * peak if again else 0.0)
        self._narrowed_to, self._growth, self.is_opening = _RESTART, _DOUBLING, False

    def proven(self, peak: int) -> None:
        """A limit was proven with so many calls in flight."""
        self._threshold = max(_RESTART, _DECREASE * peak)
