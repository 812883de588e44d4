"""A lane: requests that meet the same provider and model, and so the same gates and the same window."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable
from operator import attrgetter
from queue import PriorityQueue

from attrs import define, field

from smartbatch.core.batching.packing import packable
from smartbatch.core.batching.packing_health import PackingHealth
from smartbatch.core.batching.window import BatchAccumulator, Waiting
from smartbatch.core.limits.breaker import CircuitBreaker
from smartbatch.core.limits.retry import RetryBudget
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.prices import RateCard
from smartbatch.providers.base import Provider
from smartbatch.providers.flex import FlexTier
from smartbatch.realtime.call.layers import Call
from smartbatch.realtime.shared_quota import SharedQuota
from smartbatch.realtime.ticket import Ticket, TicketState
from smartbatch.types import Request, Usage

__all__ = ["Lane", "Standing"]

_sequence = itertools.count(1)
_FADES = 0.2
"""Weight of the latest call in what a call takes: some five calls are remembered."""


_SPARE = 64
"""Entries of a heap that may lie about, passed over when they come up, besides as many as are waiting."""


@define(eq=False)
class Standing:
    """How a provider and model stand, as all their lanes see it; they share the breaker, too.

    Attributes:
        answered: True once the provider gave any answer at all, an error included.
        open_since: since when the breaker has not been closed; ``None`` while it is.
    """

    answered: bool = False
    open_since: float | None = None


@define(eq=False)
class Lane:
    """Waiting tickets of one provider and model, in order of their latest start. Guarded by the monitor.

    So the heap inside the queue is used, and not the queue's own lock, which Ctrl-C could leave locked.

    Attributes:
        provider: the adapter that makes the calls.
        model: the model's name without prefix.
        label: ``provider:model``, as events and errors name it.
        breaker: of this provider and model.
        standing: of this provider and model.
        retry_budget: keeps retries few while the provider fails.
        quota: shared by everybody in the process who shares the provider's limits.
        rates: prices, or ``None`` when they are unknown.
        max_tokens: most estimated input tokens of one call.
        call: the provider's call with its layers around it.
        later: tickets between two tries, by the end of their pause.
        company: what must be equal for requests to travel together.
        health: in a lane whose calls are packed prompts, whether packing pays; ``None`` elsewhere.
        packed: the lane in which packable requests of the same model gather, where there is one.
        tier: in a lane whose calls ask for the provider's slower tier, how they do; ``None`` elsewhere.
        standard: in such a lane, the one of the same model at the standard price.
        held: retries that the retry budget holds back, out of the way of first calls.
    """

    provider: Provider
    model: str
    label: str
    accumulator: BatchAccumulator
    breaker: CircuitBreaker
    standing: Standing
    retry_budget: RetryBudget
    quota: SharedQuota
    rates: RateCard | None
    calibration: Calibration
    call: Call
    max_tokens: float = math.inf
    batch_key: Callable[[Request], Hashable] = attrgetter("isolation_key")
    health: PackingHealth | None = None
    packed: Lane | None = None
    tier: FlexTier | None = None
    standard: Lane | None = None
    waiting: int = 0
    later: list[tuple[float, int, Ticket]] = field(factory=list)
    held: list[tuple[float, int, Ticket]] = field(factory=list)
    queue: PriorityQueue[tuple[float, int, Ticket]] = field(factory=PriorityQueue)
    _musts: list[tuple[float, int, Ticket]] = field(factory=list)
    _arrivals: list[tuple[float, int, Ticket]] = field(factory=list)
    _urgent: int = 0
    _flying: int = 0
    _last_size: int = 0
    _latency: float = 0.0
    _latest: float = -math.inf
    _landed: float = -math.inf

    @property
    def shares(self) -> bool:
        """Whether one call can carry several requests."""
        return self.accumulator.window.max_size > 1

    @property
    def flying(self) -> int:
        """Requests whose call is under way."""
        return self._flying

    def demand(self, request: Request, estimated: int, *, priced: bool) -> tuple[int, float]:
        """Return the tokens ``request`` takes here and, where ``priced``, the most it can cost, USD.

        In the slower tier that is the standard price: the tier may send it away, and it goes on there.

        Args:
            estimated: its input tokens, as its text alone lets expect.
        """
        given = self.calibration.input(estimated)
        made = 0 if request.embedding else self.calibration.output(request.params.max_tokens)
        rates = self.rates if self.standard is None else self.standard.rates
        if not priced or rates is None or request.call is not None:
            return given + made, 0.0
        most = 0 if request.embedding else self.calibration.most_output(request.params.max_tokens)
        return given + made, rates.cost(Usage(given, most))

    def home_of(self, request: Request, now: float) -> Lane:
        """Return the lane in which ``request`` waits: this one, or while packing pays, the one for packs.

        From the slower tier, while that is left alone, it is the standard one; so it is for a request that
        names a tier by itself.
        """
        if self.standard is not None and not self._takes(request, now):
            return self.standard.home_of(request, now)
        packed = self.packed
        return self if packed is None or packed.travels_alone(now) or not packable(request) else packed

    def travels_alone(self, now: float) -> bool:
        """Whether packing is off for the time being."""
        return self.health is not None and self.health.off_until(now) > now

    def _takes(self, request: Request, now: float) -> bool:
        return self.tier is not None and self.tier.is_open_to(request) and self.quota.flex.is_open(now)

    def put(self, ticket: Ticket, due: float, now: float) -> None:
        """Let ``ticket`` wait, from the moment ``due`` on."""
        ticket.state = TicketState.WAITING
        ticket.due = due
        entry = next(_sequence)
        if due > now:
            heapq.heappush(self.later, (due, entry, ticket))
            ticket.paused = True
            ticket.entry = entry
            return
        self._push(ticket, entry)

    def remove(self, ticket: Ticket) -> None:
        """Take a waiting ticket out; its entries in the heaps are passed over when they come up."""
        urgent = self.shares and self._skips_window(ticket)
        if ticket.entry > 0 and not ticket.paused:
            self.waiting -= 1
            self._urgent -= urgent
        ticket.entry = 0
        self._thin()

    def head(self) -> Ticket | None:
        """The ticket that is served next, or ``None``."""
        entries = self.queue.queue
        while entries:
            _, entry, ticket = entries[0]
            if ticket.entry == entry:
                return ticket
            heapq.heappop(self.queue.queue)
        return None

    def pop(self) -> Ticket | None:
        """Take the head out; :meth:`unpop` can put it back at the same place."""
        ticket = self.head()
        if ticket is not None:
            heapq.heappop(self.queue.queue)
            self.waiting -= 1
            if self.shares:
                self._urgent -= self._skips_window(ticket)
            ticket.entry = -ticket.entry
        return ticket

    def unpop(self, ticket: Ticket) -> None:
        """Put back a ticket that was popped a moment ago."""
        ticket.entry = -ticket.entry
        self.waiting += 1
        heapq.heappush(self.queue.queue, (ticket.key, ticket.entry, ticket))
        if self.shares:  # its entries in the other heaps are still there
            self._urgent += self._skips_window(ticket)

    def started(self, size: int) -> None:
        """Note that a call of ``size`` requests begins."""
        self._flying += size

    def landed(self, size: int, seconds: float, now: float) -> None:
        """Note that a call of ``size`` requests has ended, after ``seconds``."""
        self._flying -= size
        self._last_size = size
        self._landed = self._latest = now
        self._latency += (seconds - self._latency) * (_FADES if self._latency else 1.0)

    def _push(self, ticket: Ticket, entry: int) -> None:
        """Let ``ticket`` be served. It counts last and with no call, so Ctrl-C leaves all or nothing."""
        self._thin()
        urgent = False
        if self.shares:
            urgent = self._skips_window(ticket)
            heapq.heappush(self._musts, (ticket.must_start, entry, ticket))
            heapq.heappush(self._arrivals, (ticket.due, entry, ticket))
        heapq.heappush(self.queue.queue, (ticket.key, entry, ticket))
        if ticket.due > self._latest:
            self._latest = ticket.due
        ticket.paused = False
        ticket.entry = entry
        self.waiting += 1
        self._urgent += urgent

    def _thin(self) -> None:
        """Throw out entries of tickets that have left, once they are most of a heap: they hold memory."""
        most = 2 * self.waiting + _SPARE
        if len(self.queue.queue) > most:
            self.queue.queue = _living(self.queue.queue)
        if len(self._arrivals) > most or len(self._musts) > most:
            self._arrivals, self._musts = _living(self._arrivals), _living(self._musts)

    def flush(self, now: float) -> None:
        """Let what waits in the window now wait no longer; what comes later gathers as ever."""
        if self.shares:
            for _, entry, ticket in self.queue.queue:
                if ticket.entry == entry and ticket.must_start > now:
                    ticket.must_start = now
                    heapq.heappush(self._musts, (ticket.must_start, entry, ticket))

    def hold(self, ticket: Ticket) -> None:
        """Take the head, a retry, out of the way until the retry budget has room for one."""
        self.pop()
        ticket.entry = next(_sequence)  # it does not count for the window, where its old entry would be found
        ticket.paused = True
        heapq.heappush(self.held, (ticket.key, ticket.entry, ticket))

    def _release(self, now: float) -> None:
        """Let a held retry wait for service again, or all of them when the whole lane is in doubt."""
        doubted = self.standing.open_since is not None
        while self.held and (doubted or self.retry_budget.look(now) <= now):
            _, entry, ticket = heapq.heappop(self.held)
            if ticket.entry == entry:
                self.put(ticket, ticket.due, now)
                if not doubted:
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
        if not self.shares or self.travels_alone(now):
            return now if self.waiting else math.inf
        view = Waiting(
            count=self.waiting,
            opened=self._earliest(self._arrivals),
            must_start=self._earliest(self._musts),
            urgent=self._urgent > 0,
            in_flight=self._flying,
            flushed=flushed,
            expected=self._last_size,
            newest=self._latest,
            last_finished=self._landed,
            latency=self._latency,
        )
        return self.accumulator.ready(now, view)

    def _earliest(self, heap: list[tuple[float, int, Ticket]]) -> float:
        while heap and heap[0][2].entry != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    @staticmethod
    def _skips_window(ticket: Ticket) -> bool:
        return ticket.alone or ticket.urgent or ticket.group is not None


def _living(heap: list[tuple[float, int, Ticket]]) -> list[tuple[float, int, Ticket]]:
    """Return a new heap of the entries that still count."""
    living = [item for item in heap if item[2].entry == item[1]]
    heapq.heapify(living)
    return living
