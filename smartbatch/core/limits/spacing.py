"""Calls at an even rate, where refusals proved that bursts are not honoured, or a limit that nobody named."""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.bucket import Bucket, spaced_capacity
from smartbatch.core.limits.header_limits import Reservation, Traffic
from smartbatch.core.limits.rate_trial import RateTrial

SPACED_SHARE = 0.988
"""Share of the configured rate used when calls are spaced: leaves 1.2 ms in 100 for arrivals out of step."""

_GROWTH, _GROWTH_SCALE = 0.01, 5.0
"""A spaced rate grows by 1 % a second, times ``1 + (t / 5 s)²`` after ``t`` seconds of use without refusal:
careful near the limit, quick when the limit is far."""

_KNOWN_LOWERED, _KNOWN_LOWERED_SOON = 0.97, 0.9
"""A known rate is lowered to these shares by a refusal: after some seconds without one, and sooner."""

_LOWERED, _LOWERED_SOON = 0.92, 0.85
"""The same for one that was not measured at an even rate."""

_MEASURED, _MEASURED_LEAST, _MEASURED_SEARCHING = 5.0, 2.0, 1.0
_USED = 0.85
"""What was accepted in the last five seconds measures the limit within a few per cent, if calls were spaced
for two of them, or one while a rate is searched, and at least 0.85 of the present rate was used."""

_SEARCHED_LEAST = 0.6
"""Where processes searched it together, at least at 0.6 of it."""

_USED_SHARED = 0.4
"""Where processes lease what they send, they send far less than a rate that is too high: it measures from
this share of it on, and the rate is lowered to this share at most, soon after they searched it together."""

_MEASURED_SHARED = 2.0
"""The same in seconds where processes search it together: they answer for each other later, and it grew."""

_HELD_SHARE, _FOUND_LEAST = 0.985, 0.8
"""Then the rate is held at this share of it, and at least at 0.8 of the rate that was refused: what was
accepted while it was searched began far below."""

_OVERSHOT = 0.5
"""Seconds for which the next call waits at most, as too many were sent lately."""

_HOLD, _HOLD_MOST, _NEAR = 4.0, 64.0, 0.04
"""Seconds for which it is held, and once it was found again within 4 %: each try of more is refused."""

_HOLD_SHARED = 12.0
"""Where processes share it, it is held for longer at first, and doubled from then on: it is found again by
what all of them had answered, of which each hears later."""

_FOUND_GROWTH, _FOUND_SCALE = 0.003, 7.0
"""Growth after that, as above."""

_SHARED_GROWTH = 0.05
"""Where processes share it, at most 5 % a second: what they all send until the last has heard of a refusal is
refused as well."""

_LEARNED_SHARE, _SLOWEST, _UNLIMITED = 0.98, 1.0, 2000.0
_SEARCH, _SEARCH_SCALE = 0.07, 2.0
"""A rate measured across cooldowns may be far too low. It is at least 1 call a second, and grows by 7 % a
second, times ``1 + (t / 2 s)²``, until it is refused once, or is 2,000 calls a second, more than threads can
send."""

_SEARCH_TOGETHER, _SEARCH_SHARED = 0.1, 0.3
"""Where processes search it together, by 10 % at first, as each sees a part of what is accepted, and by 30 %
a second at most: by then all of them have heard of a refusal."""

_PAUSE, _IDLE, _WRONG = 1.0, 5.0, 0.75
"""Seconds between two calls that are a pause; seconds of pauses since a limit was found, up to which what
passes measures it; and the share of what passed, below which it was found far too low."""

_AHEAD = 1.5
"""Such a rate does not grow while it is so many times what was accepted lately."""

_AS_LOWERED = 1.05
"""A rate has not grown since it was lowered, up to this many times what it was lowered to."""

_LOWERED_TRIED = 0.97
"""A rate that was refused is lowered to this share, after a trial that showed that there is a limit."""

_FORGOTTEN = 4.0
"""A learned rate that is four times the rate it was refused at limits nothing any more; where processes found
it together only one of 2,000: what nobody used for a while lets a minute's worth pass beyond it."""

_BURST_AGAIN = 600.0
"""Seconds without refusal after which the burst of a configured limit is tried again; doubled each time it
fails."""


@define(eq=False)
class Spacing:
    """An even rate that grows while it is used and not refused.

    Attributes:
        bucket: paces the calls; ``None`` while they are not spaced.
    """

    bucket: Bucket | None = field(default=None, init=False)
    _base: float = field(default=0.0, init=False)  # the rate that was refused last, or the known one
    _searching: bool = field(default=False, init=False)
    _grown_at: float = field(default=0.0, init=False)
    _clean: float = field(default=0.0, init=False)
    _since: float = field(default=0.0, init=False)
    _searched_from: float = field(default=0.0, init=False)
    _idle: float = field(default=0.0, init=False)  # seconds since it was found; infinity where it was told
    _searched_until: float = field(default=-math.inf, init=False)
    _found: float = field(default=0.0, init=False)  # the limit as it was measured last
    _lowered_held: bool = field(default=False, init=False)  # since it is held
    _told: bool = field(default=False, init=False)  # others found a limit
    _passed_found: bool = field(
        default=False, init=False
    )  # what was measured last was more, and not believed
    _hold: float = field(default=0.0, init=False)  # seconds for which the rate is held
    _held_until: float = field(default=-math.inf, init=False)
    _lowered_to: float = field(default=0.0, init=False)
    _lowered_at: float = field(default=math.inf, init=False)
    _trial: RateTrial = field(factory=RateTrial, init=False)
    _burst_at: float = field(default=math.inf, init=False)
    _burst_wait: float = field(default=_BURST_AGAIN, init=False)

    @property
    def rate(self) -> float:
        """Calls a second; 0 while they are not spaced."""
        return 0.0 if self.bucket is None else self.bucket.rate

    @property
    def settled(self) -> float:
        """The rate; during a trial the one of before, which is all that others should hear of."""
        return self._trial.good or self.rate

    @property
    def is_found(self) -> bool:
        """Whether the rate is about the limit: not searched any more, and not in doubt."""
        return self.bucket is not None and not self._searching and not self._trial.good

    @property
    def is_untried(self) -> bool:
        """Whether the search has not got beyond the rate that it began with: that may be a burst's."""
        return self._searching and self.rate <= _AS_LOWERED * self._searched_from

    def at_known(self, known: float | None, now: float) -> None:
        """No bursts are honoured: space the calls at the known rate, and try a burst again later."""
        self._base = known or self._base
        self._at(self._base * SPACED_SHARE, now)
        self._burst_at, self._burst_wait = now + self._burst_wait, 2.0 * self._burst_wait

    def owe(self, calls: float) -> None:
        """Let the next call wait for so many."""
        assert self.bucket is not None
        self.bucket.level -= calls

    def at_measured(self, rate: float, now: float) -> bool:
        """So many calls a second were accepted: space them at a little less, if that is lower than the
        present rate; return whether it is."""
        rate = max(_LEARNED_SHARE * rate, _SLOWEST)
        if self.bucket is not None and rate >= self.bucket.rate:
            return False
        self._at(rate, now)
        self._searching, self._found, self._searched_from = True, 0.0, rate
        return True

    def at_told(self, rate: float, now: float, *, found: bool) -> None:
        """Follow the rate of the other processes; 0 for none. Where theirs has grown, this one has, too. What
        they ``found`` is held here as well, and not searched again.
        """
        if not rate:
            self.bucket = None
        elif self.bucket is not None and rate > self.bucket.rate:
            self.bucket.reshape(now, spaced_capacity(rate), rate)
        else:
            self._told = self._told or found
            if found:
                self._hold_at(rate, now, shared=True)
                self._idle = self._idle if self.bucket is not None else math.inf
            self._base = self._searched_from = rate
            self._at(rate, now)
            if self._searching and found:
                self._searched_until = now
            self._searching = not found

    def lower(self, traffic: Traffic, now: float, *, known: bool, lone: bool, others: float = 0.0) -> None:
        """A call was refused: a lower rate. The cases, in order:

        1. A rate is known: the lower, the sooner the refusal came.
        2. What was accepted lately measures the limit: just below it, for the longer, the more often the same
           was found. The next calls wait for what was sent too much within a second. A rate that is held, and
           was lowered since, is lowered by little, as a ``lone`` refusal may be a random one.
        3. Nothing was measured yet, but others found the rate: just below it.
        4. Nothing was measured: the lower, the sooner the refusal came.

        Args:
            others: calls a second that other processes had answered meanwhile.
        """
        assert self.bucket is not None
        rate, soon = self.bucket.rate, self._clean < _GROWTH_SCALE
        if known:
            slower = rate * (_KNOWN_LOWERED_SOON if soon else _KNOWN_LOWERED)
        elif measured := self._measured(traffic, now, others):
            held = now < self._held_until
            least = _USED_SHARED if self._is_overshot(now, others) else _FOUND_LEAST
            if held and lone and self._lowered_held:
                least = 1.0
            if others and self._searching:
                least, measured = _SEARCHED_LEAST, measured * (1.0 + _SEARCH_SHARED)  # it grew meanwhile
            shared = self._told or others > 0.0
            found = self._believed(min(rate, max(measured, least * rate)), shared=shared)
            slower = found * _HELD_SHARE
            self._hold_at(found, now, shared=shared)
            self._lowered_held = held
        elif now < self._held_until and now - self._since < _MEASURED_LEAST:
            slower = rate * _HELD_SHARE
        else:
            slower = rate * (_LOWERED_SOON if soon and not self._searching else _LOWERED)
        if self._searching:
            self._searching, self._searched_until = False, now
        self._base, self._lowered_to, self._lowered_at = rate, slower, now
        self._at(slower, now)
        if not known:
            self.bucket.level = min(self.bucket.level, -min(rate - slower, _OVERSHOT * slower))

    def _believed(self, measured: float, *, shared: bool) -> float:
        """Return the limit. Far above the one that was found it is believed when it is measured again: what
        nobody used for a while let more pass. At once where it was used all the time, and found far too low.
        """
        far = shared and 0.0 < self._found < (1.0 - _NEAR) * measured
        if self._idle < _IDLE and self._found < _WRONG * measured:
            far = False
        self._passed_found = far and not self._passed_found
        return self._found if self._passed_found else measured

    def is_random(
        self, call: Reservation, traffic: Traffic, now: float, known: float | None, *, lone: bool
    ) -> bool:
        """Return whether a refusal is taken for a random one. The cases, in order:

        1. A trial is under way: it is, also if it ends the trial; then the rate is that of before.
        2. It is known that calls are refused at random: it is; too many together lower the rate all the same.
        3. It is not a ``lone`` one, or was sent before the rate was lowered, or the rate has grown since: no.
        4. Otherwise the rate is in doubt: the refusal may begin a trial.
        """
        assert self.bucket is not None
        rate, good = self.bucket.rate, self._trial.good
        if good:
            if self._trial.refused(call):
                self._end_trial(good, now)
                return good < rate
            return True
        if self._trial.is_noisy:
            if call.started >= self._lowered_at and not self._trial.tolerates():
                self.lower(traffic, now, known=known is not None, lone=False)
            return True
        if not lone or rate > _AS_LOWERED * self._lowered_to or call.started < self._lowered_at:
            return False
        faster = self._trial.doubt(rate, traffic.calls, now)
        if faster:
            self._at(_most(faster, known), now)
        return bool(faster)

    def confirm(self, now: float) -> None:
        """There is a limit: it explains a refusal."""
        good = self._trial.good
        self._trial.trust()
        if good:
            self._end_trial(good, now)

    def accepted(self, call: Reservation, traffic: Traffic, now: float, known: float | None) -> bool:
        """A call was not refused; return whether a trial has shown that there is no limit like that."""
        assert self.bucket is not None
        faster = self._trial.accepted(call, self.bucket.rate, traffic.calls, now)
        if faster and known is None and faster > _UNLIMITED:
            self.bucket = None
            self._trial.trust()
            return True
        if faster:
            self._at(_most(faster, known), now)
        return False

    def _end_trial(self, good: float, now: float) -> None:
        """There is a limit: back to the rate of before, which is held, or searched on from."""
        assert self.bucket is not None
        over = self.bucket.rate - good
        self._searching = good > _AS_LOWERED * self._lowered_to
        if not self._searching:
            good *= _LOWERED_TRIED  # it was refused as well
            self._lowered_to, self._held_until = good, now + self._hold
        self._lowered_at = now
        self._at(good, now)
        self.bucket.level -= min(over, _OVERSHOT * good)

    def measured_from(self, now: float, *, shared: bool) -> float:
        """Return since when what is accepted measures the limit: by one process, or by several."""
        if not shared:
            return max(self._since, now - _MEASURED)
        if self._searching:
            return max(self._since, now - _MEASURED_SHARED)
        return max(self._since, now - _MEASURED, self._searched_until - _MEASURED_SEARCHING)

    def _hold_at(self, found: float, now: float, *, shared: bool) -> None:
        """Hold the rate, and for long once about the same was found again."""
        again = abs(found - self._found) < _NEAR * found
        self._found, self._idle = found, 0.0
        if now >= self._held_until or not again:
            if shared:
                self._hold = min(2.0 * self._hold, _HOLD_MOST) if again else _HOLD_SHARED
            else:
                self._hold = _HOLD_MOST if again else _HOLD
            self._held_until = now + self._hold

    def is_ahead(self, traffic: Traffic, now: float, others: float) -> bool:
        """Whether the rate that processes search together has grown beyond what they send."""
        since, accepted = traffic.accepted_since(self.measured_from(now, shared=True))
        if not self._searching or now - since < _MEASURED_SEARCHING:
            return False
        return self.rate > _AHEAD * ((accepted + 0.5) / (now - since) + others)

    def _is_overshot(self, now: float, others: float) -> bool:
        """Whether processes have only just searched it together, and went on until all had heard."""
        return others > 0.0 and now < self._searched_until + _MEASURED

    def _measured(self, traffic: Traffic, now: float, others: float) -> float:
        """Return the calls a second that were accepted at about the present rate; 0 where nobody can tell."""
        assert self.bucket is not None
        since, accepted = traffic.accepted_since(self.measured_from(now, shared=others > 0.0))
        if now - since < (_MEASURED_SEARCHING if self._searching else _MEASURED_LEAST):
            return 0.0
        # the next answer is half due; in little more than a second one more may be accepted than in the next
        briefly = self._searching and not others and now - since < _MEASURED_LEAST
        more = -1.0 if briefly else 0.5
        rate = (accepted + more) / (now - since) + others
        used = _USED_SHARED if self._is_overshot(now, others) else _USED
        return rate if self._searching or rate > used * self.bucket.rate else 0.0

    def _at(self, rate: float, now: float) -> None:
        if self.bucket is None:
            self.bucket = Bucket(spaced_capacity(rate), rate, now, level=0.0)
            self._since = now
        else:
            self.bucket.reshape(now, spaced_capacity(rate), rate)
            self.bucket.level = max(self.bucket.level, 0.0)
        self._grown_at, self._clean = now, 0.0

    def quicken(self, known: float | None, now: float, cooled_at: float, members: int) -> bool:
        """Let a rate that is used and not refused grow; return whether the burst is to be tried again.

        1. A rate is known: up to that rate; after ten minutes without refusal the burst is tried again.
        2. A rate was measured: not while it is held. It is dropped once it limits nothing any more.
        """
        bucket = self.bucket
        assert bucket is not None
        # idle time proves nothing, so only the time between calls at this rate counts
        step = min(now - self._grown_at, 2.0 * members / bucket.rate)
        self._idle += max(0.0, now - self._grown_at - max(step, _PAUSE))
        self._grown_at = now
        if step <= 0.0 or self._trial.good:
            return False
        if known is None and now < self._held_until and not self._searching:
            return False
        self._clean += step
        growth, scale = (_FOUND_GROWTH, _FOUND_SCALE) if self._found else (_GROWTH, _GROWTH_SCALE)
        growth *= 1.0 + (self._clean / scale) ** 2
        together = self._found > 0.0 and (self._told or members > 1)
        if together:
            growth = min(growth, _SHARED_GROWTH)
        faster = bucket.rate * (1.0 + step * growth)
        if self._searching:
            quicker = 1.0 + (self._clean / _SEARCH_SCALE) ** 2
            growth = _SEARCH * quicker if members == 1 else min(_SEARCH_TOGETHER * quicker, _SEARCH_SHARED)
            faster = bucket.rate * (1.0 + step * growth)
        if known is not None:
            faster = min(faster, known * SPACED_SHARE)
            if now >= self._burst_at and now - cooled_at >= _BURST_AGAIN:
                self.bucket = None
                return True
        elif faster > (_UNLIMITED if self._searching or together else _FORGOTTEN * self._base):
            self.bucket = None
            return False
        if faster != bucket.rate:
            bucket.reshape(now, spaced_capacity(faster), faster)
        return False


def _most(rate: float, known: float | None) -> float:
    """Return the rate, or the known one where that is lower."""
    return rate if known is None else min(rate, known * SPACED_SHARE)
