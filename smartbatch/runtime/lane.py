"""A lane: requests that meet the same provider and model, and so the same gates and the same window."""

from __future__ import annotations

import heapq
import itertools
import math
from queue import PriorityQueue

from attrs import define, field

from smartbatch.calls.stack import Call
from smartbatch.core.accumulator import BatchAccumulator, Waiting
from smartbatch.core.breaker import CircuitBreaker
from smartbatch.core.retry import RetryBudget
from smartbatch.core.tokens import Calibration
from smartbatch.prices import RateCard
from smartbatch.providers.base import Provider
from smartbatch.runtime.quotas import SharedQuota
from smartbatch.runtime.ticket import Ticket, TicketState

__all__ = ["Lane"]

_sequence = itertools.count(1)


@define(eq=False)
class Lane:
    """Waiting tickets of one provider and model, in order of their latest start. Guarded by the monitor.

    Attributes:
        provider: the adapter that makes the calls.
        model: the model's name without prefix.
        label: ``provider:model``, as events and errors name it.
        breaker: of this provider and model.
        retry_budget: keeps retries few while the provider fails.
        quota: shared by everybody in the process who shares the provider's limits.
        rates: prices, or ``None`` when they are unknown.
        max_tokens: most estimated input tokens of one call.
        in_flight: calls under way.
        call: the provider's call with its layers around it.
        answered: True once the provider gave any answer at all, an error included.
        open_since: since when the breaker has not been closed; ``None`` while it is.
        later: tickets between two tries, by the end of their pause.
        held: retries that the retry budget holds back, out of the way of first calls.
    """

    provider: Provider
    model: str
    label: str
    accumulator: BatchAccumulator
    breaker: CircuitBreaker
    retry_budget: RetryBudget
    quota: SharedQuota
    rates: RateCard | None
    calibration: Calibration
    call: Call
    max_tokens: float = math.inf
    in_flight: int = 0
    answered: bool = False
    open_since: float | None = None
    waiting: int = 0
    later: list[tuple[float, int, Ticket]] = field(factory=list)
    held: list[tuple[float, int, Ticket]] = field(factory=list)
    queue: PriorityQueue[tuple[float, int, Ticket]] = field(factory=PriorityQueue)
    _musts: list[tuple[float, int, Ticket]] = field(factory=list)
    _arrivals: list[tuple[float, int, Ticket]] = field(factory=list)
    _urgent: int = 0
    _last_size: int = 0
    _latest: float = -math.inf
    _landed: float = -math.inf

    @property
    def shares(self) -> bool:
        """Whether one call can carry several requests."""
        return self.accumulator.window.max_size > 1

    def put(self, ticket: Ticket, due: float, now: float) -> None:
        """Let ``ticket`` wait, from the moment ``due`` on."""
        ticket.state = TicketState.WAITING
        ticket.entry = entry = next(_sequence)
        ticket.due = due
        ticket.paused = due > now
        if ticket.paused:
            heapq.heappush(self.later, (due, entry, ticket))
            return
        self._push(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a waiting ticket out; its entries in the heaps are passed over when they come up."""
        if ticket.entry > 0 and not ticket.paused:
            self.waiting -= 1
            if self.shares:
                self._urgent -= self._skips_window(ticket)
        ticket.entry = 0

    def head(self) -> Ticket | None:
        """The ticket that is served next, or ``None``."""
        entries = self.queue.queue
        while entries:
            _, entry, ticket = entries[0]
            if ticket.entry == entry:
                return ticket
            self.queue.get_nowait()
        return None

    def pop(self) -> Ticket | None:
        """Take the head out; :meth:`unpop` can put it back at the same place."""
        ticket = self.head()
        if ticket is not None:
            self.queue.get_nowait()
            self.waiting -= 1
            if self.shares:
                self._urgent -= self._skips_window(ticket)
            ticket.entry = -ticket.entry
        return ticket

    def unpop(self, ticket: Ticket) -> None:
        """Put back a ticket that was popped a moment ago."""
        ticket.entry = -ticket.entry
        self.waiting += 1
        self.queue.put_nowait((ticket.key, ticket.entry, ticket))
        if self.shares:  # its entries in the other heaps are still there
            self._urgent += self._skips_window(ticket)

    def landed(self, size: int, now: float) -> None:
        """Note that a call of ``size`` requests has ended."""
        self._last_size = size
        self._landed = self._latest = now

    def _push(self, ticket: Ticket) -> None:
        self.waiting += 1
        self.queue.put_nowait((ticket.key, ticket.entry, ticket))
        if self.shares:
            self._latest = max(self._latest, ticket.due)
            heapq.heappush(self._musts, (ticket.must_start, ticket.entry, ticket))
            heapq.heappush(self._arrivals, (ticket.due, ticket.entry, ticket))
            self._urgent += self._skips_window(ticket)

    def flush(self, now: float) -> None:
        """Let what waits in the window now wait no longer; what comes later gathers as ever."""
        if self.shares:
            for _, entry, ticket in self.queue.queue:
                if ticket.entry == entry:
                    ticket.must_start = min(ticket.must_start, now)
                    heapq.heappush(self._musts, (ticket.must_start, entry, ticket))

    def hold(self, ticket: Ticket) -> None:
        """Take the head, a retry, out of the way until the retry budget has room for one."""
        self.pop()
        ticket.entry = -ticket.entry
        ticket.paused = True
        heapq.heappush(self.held, (ticket.key, ticket.entry, ticket))

    def _release(self, now: float) -> None:
        """Let a held retry wait for service again, or all of them when the whole lane is in doubt."""
        while self.held and (self.open_since is not None or self.retry_budget.look(now) <= now):
            _, entry, ticket = heapq.heappop(self.held)
            if ticket.entry == entry:
                self.put(ticket, ticket.due, now)
                if self.open_since is None:
                    return

    def promote(self, now: float) -> float:
        """Let retries whose pause is over wait for service; return when the next one is due."""
        self._release(now)
        while self.later:
            due, entry, ticket = self.later[0]
            if ticket.entry != entry:
                heapq.heappop(self.later)
            elif due <= now:
                heapq.heappop(self.later)
                self.put(ticket, due, now)
            else:
                return due
        return math.inf

    def ready(self, now: float, *, flushed: bool) -> float:
        """Ask the accumulator when what waits here may go."""
        if not self.shares:
            return now if self.waiting else math.inf
        view = Waiting(
            count=self.waiting,
            opened=self._earliest(self._arrivals),
            must_start=self._earliest(self._musts),
            urgent=self._urgent > 0,
            in_flight=self.in_flight,
            flushed=flushed,
            expected=self._last_size,
            latest=self._latest,
            landed=self._landed,
        )
        return self.accumulator.ready(now, view)

    def _earliest(self, heap: list[tuple[float, int, Ticket]]) -> float:
        while heap and heap[0][2].entry != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    @staticmethod
    def _skips_window(ticket: Ticket) -> bool:
        return ticket.alone or ticket.urgent or ticket.group is not None
