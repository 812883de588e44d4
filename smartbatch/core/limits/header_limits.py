"""All the limits a provider reports for one quota, and what this client sent around each report."""

from __future__ import annotations

from smartbatch.core.limits.reported_bucket import ReportedBucket, Said, Trace
from smartbatch.types import LimitReport

__all__ = ["HeaderLimits", "Reservation", "Traffic"]

_REQUESTS, _TOKENS, _INPUT, _OUTPUT = range(4)

_MINUTE = 60.0
_TELLING = 50.0
"""A reset tells the limit only where it is shorter than this many seconds: later it would be a guess."""

_OTHER = 0.05
"""A limit worked out from a reset is rounded; only a change above this share is a change."""

_SETTLED = 1.0
"""Seconds after a limit became known in which it may refuse again: calls sent before still use it up."""


class Reservation:
    """One call's share of the quota; ended once.

    Attributes:
        started: when it left, monotonic seconds.
        tokens: expected, input and output.
        output: the part of ``tokens`` that is output.
    """

    __slots__ = ("ended", "held", "order", "output", "sent", "started", "tokens")

    def __init__(self, started: float, tokens: float, output: float) -> None:
        self.started = started
        self.tokens = tokens
        self.output = output
        self.ended = False
        self.order = 0
        self.sent = (0.0, 0.0)  # tokens, output: all that had left by then, this call included
        self.held: tuple[int, float, float] = (
            0,
            0.0,
            0.0,
        )  # calls, tokens, output: unanswered then, this call included


class Traffic:
    """What has been sent so far and what of it is unanswered, in expected tokens."""

    __slots__ = ("calls", "held_output", "held_tokens", "in_flight", "output", "refused_at", "tokens")

    def __init__(self) -> None:
        self.calls = self.in_flight = 0
        self.tokens = self.output = self.held_tokens = self.held_output = 0.0
        self.refused_at = float("-inf")

    def leave(self, call: Reservation) -> None:
        """The call is sent."""
        self.calls += 1
        self.in_flight += 1
        self.tokens += call.tokens
        self.output += call.output
        self.held_tokens += call.tokens
        self.held_output += call.output
        call.order = self.calls
        call.sent = self.tokens, self.output
        call.held = self.in_flight, self.held_tokens, self.held_output

    def end(self, call: Reservation) -> None:
        """The call is over."""
        self.in_flight -= 1
        if self.in_flight:
            self.held_tokens -= call.tokens
            self.held_output -= call.output
        else:
            self.held_tokens = self.held_output = 0.0  # roundings do not add up

    def trace(self, what: int, call: Reservation) -> Trace:
        """Return what was sent around ``call``, in units of the limit ``what``."""
        if what == _REQUESTS:
            mark, sent, then, held = (
                float(call.order),
                float(self.calls),
                float(call.held[0]),
                float(self.in_flight),
            )
        else:
            mark = _share(what, *call.sent)
            sent = _share(what, self.tokens, self.output)
            then = _share(what, call.held[1], call.held[2])
            held = _share(what, self.held_tokens, self.held_output)
        since, calls = sent - mark, self.calls - call.order
        opened, calls_open = since + then, calls + call.held[0]
        blurred = call.started <= self.refused_at
        if blurred:
            # the calls that are still out are the better count then
            since, calls = min(since, held), min(calls, self.in_flight)
        return Trace(call.started, call.order, mark, since, opened, held, calls, calls_open, blurred)


class HeaderLimits:
    """The limits learned so far; false while there are none, and then nothing is held back."""

    __slots__ = ("_buckets", "_explained_at")

    def __init__(self) -> None:
        self._buckets: dict[int, ReportedBucket] = {}
        self._explained_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._buckets)

    @property
    def requests_per_second(self) -> float | None:
        """The learned limit of requests, a second."""
        learned = self._buckets.get(_REQUESTS)
        return None if learned is None else learned.limit / _MINUTE

    def minute(self) -> dict[str, float]:
        """Return the learned limits a minute, by name."""
        names = ("requests", "tokens", "input", "output")
        return {names[what]: learned.limit for what, learned in self._buckets.items()}

    def look(self, now: float, tokens: float, output: float) -> float:
        """Return the earliest time a call may go."""
        at = now
        for what, learned in self._buckets.items():
            ready = learned.look(now, _cost(what, tokens, output))
            if ready > at:
                at = ready
        return at

    def take(self, now: float, call: Reservation) -> None:
        """Book a call."""
        for what, learned in self._buckets.items():
            learned.take(now, _cost(what, call.tokens, call.output))

    def settle(self, now: float, call: Reservation, tokens: float, output: float | None) -> None:
        """Correct a booked call to the tokens it really used."""
        if output is None:
            output = tokens * call.output / call.tokens if call.tokens else 0.0
        for what, learned in self._buckets.items():
            if what != _REQUESTS:
                expected = _share(what, call.tokens, call.output)
                learned.settle(now, call.order, expected, _share(what, tokens, output))

    def drop(self, now: float, call: Reservation) -> None:
        """Give back all of a call that was never sent, or was refused."""
        for what, learned in self._buckets.items():
            learned.settle(now, call.order, _cost(what, call.tokens, call.output), 0.0)

    def learn(self, report: LimitReport, call: Reservation, traffic: Traffic, now: float) -> None:
        """Follow what the answer to ``call`` said."""
        for what, said in _said(report):
            learned = self._buckets.get(what)
            limit = said.limit if said.limit else _implied(said)
            if learned is None:
                if limit is None:
                    continue
                learned = self._buckets[what] = ReportedBucket(
                    limit, now, rounded=what != _REQUESTS, late=what == _OUTPUT
                )
            elif not said.limit and limit is not None and abs(limit - learned.limit) < _OTHER * learned.limit:
                limit = None
            learned.learn(Said(limit, said.remaining, said.reset), traffic.trace(what, call), now)

    def explain(self, report: LimitReport | None, call: Reservation, traffic: Traffic, now: float) -> bool:
        """Follow what a refusal said; return whether known limits explain it, so that it proves no others."""
        explained = call.started <= self._explained_at
        if report is not None:
            before = {what: learned.learned_at for what, learned in self._buckets.items()}
            self.learn(report, call, traffic, now)
            for what, said in _said(report):
                learned = self._buckets.get(what)
                if learned is None:
                    continue
                if learned.lacks(said, _cost(what, call.tokens, call.output)):
                    explained = True
                    if call.started > max(self._explained_at, learned.learned_at):
                        learned.give_way(now)
                elif said.limit is not None and said.remaining is None:
                    explained |= self._emptied(
                        learned, learned.learned_at != before.get(what), call, traffic, now
                    )
        if explained and call.started > self._explained_at:
            self._explained_at = now
        return explained

    def _emptied(
        self, learned: ReportedBucket, news: bool, call: Reservation, traffic: Traffic, now: float
    ) -> bool:
        """Begin at nothing with a limit that says not what is left; return whether it explains a refusal."""
        soon = call.started <= learned.learned_at + _SETTLED
        if news or call.started > learned.learned_at:
            learned.empty(now, traffic.calls)
        if not news and not soon:
            learned.space(now)  # the limit was known and kept to, and still it refuses: it honours no bursts
        return news or soon


def _cost(what: int, tokens: float, output: float) -> float:
    return 1.0 if what == _REQUESTS else _share(what, tokens, output)


def _share(what: int, tokens: float, output: float) -> float:
    if what == _TOKENS:
        return tokens
    return output if what == _OUTPUT else tokens - output


def _said(report: LimitReport) -> list[tuple[int, Said]]:
    """Return what ``report`` says about each limit."""
    requests = Said(report.requests_limit, report.requests_remaining, report.requests_reset)
    given = Said(report.input_limit, report.input_remaining, report.input_reset)
    made = Said(report.output_limit, report.output_remaining, report.output_reset)
    found = [(_REQUESTS, requests)] if requests != _NOTHING else []
    if given != _NOTHING:
        found.append((_INPUT, given))
    if made != _NOTHING:
        found.append((_OUTPUT, made))
    if given == made == _NOTHING:  # beside these, a figure for both together is the tighter of the two again
        tokens = Said(report.tokens_limit, report.tokens_remaining, report.tokens_reset)
        if tokens != _NOTHING:
            found.append((_TOKENS, tokens))
    return found


def _implied(said: Said) -> float | None:
    """Return the limit a minute of a bucket that holds a minute's worth and is full after the reset."""
    if not said.remaining or not said.reset or said.reset > _TELLING:
        return None
    return said.remaining / (1.0 - said.reset / _MINUTE)


_NOTHING = Said(None, None, None)
