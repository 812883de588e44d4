"""Waiting tickets of one lane, in heaps for order of service, retries, calls in flight and windows."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from queue import PriorityQueue
from typing import TypeAlias

from attrs import define

from smartbatch.core.batching.request_batch import Waiting
from smartbatch.core.limits.budget import Budget
from smartbatch.core.prefixes.leads import Lead
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.ticket import Ticket, TicketState

_sequence = itertools.count(1)
_SPARE_ENTRIES = 64
"""Invalid entries a heap may hold in addition to one per waiting request."""

_SHARE_OF_TURNS = 0.05 + 1e-9
"""Share of calls that urgent requests give up. Slightly over 5 %, so that 20 calls give up at least one."""

_NEIGHBOR_SECONDS = 5.0
"""A request overtakes others to be next to those with the same prefix that arrived at most this long
before it. This is less than the difference between the patience of two priorities.
"""

_Heap: TypeAlias = "list[tuple[float, int, Ticket]]"
"""An entry (time, number, ticket) is valid while its number equals the ticket's."""


@define
class Turns:
    """Keeps a stream of urgent requests from starving others.

    One in 20 calls that urgent requests could use is given to a request whose latest start has passed. All
    lanes of a client share it.
    """

    now: float = -math.inf  # time of the current check, monotonic seconds
    credit: float = 0.0  # turns due; each urgent call adds a twentieth, up to one

    def is_due(self, ticket: Ticket) -> bool:
        """Return whether ``ticket``, which is not urgent, is served before urgent ones."""
        return self.credit >= 1.0 and ticket.key <= self.now

    def started(self, *, urgent: bool, before_urgent: bool) -> None:
        """Count a call. ``before_urgent`` means that urgent requests waited for it."""
        if urgent:
            self.credit = min(1.0, self.credit + _SHARE_OF_TURNS)
        elif before_urgent:
            self.credit -= 1.0


class LaneQueue:
    """Serves urgent tickets first, then those that must start first. Guarded by the monitor.

    A ticket that is removed early leaves invalid entries in the heaps, which are skipped later.
    """

    def __init__(self, lane: Lane, turns: Turns) -> None:
        self.lane = lane
        self._turns = turns
        self.waiting = 0
        self._by_prefix: Counter[str | None] = Counter()  # of these, by the longest shared prefix
        self._first_keys: dict[str, float] = {}  # the latest start of the first of them
        self.delayed: _Heap = []  # retries by the end of their backoff
        # tickets that wait for calls in flight, by the budget that has reserved money for them, or by the
        # call that writes their cache entry
        self.held: dict[Budget | Lead, _Heap] = {}
        self._ordered: PriorityQueue[tuple[float, int, Ticket]] = PriorityQueue()
        self._urgent_first: _Heap = []
        self._by_window_end: _Heap = []
        self._by_arrival: _Heap = []
        self._urgent = 0
        self._newest = self._met_at = -math.inf
        self._met = 0  # tickets that waited when the last call ended
        self._shares = lane.shares

    def put(self, ticket: Ticket, due: float, now: float) -> None:
        """Add ``ticket``, which may be served at the time ``due``."""
        ticket.state = TicketState.WAITING
        ticket.due = due
        entry = next(_sequence)
        if due > now:
            heapq.heappush(self.delayed, (due, entry, ticket))
            ticket.paused = True
            ticket.entry = entry
            return
        self._push(ticket, entry)

    def remove(self, ticket: Ticket) -> None:
        urgent = self._shares and _skips_window(ticket)
        if ticket.entry > 0 and not ticket.paused:
            self._count(ticket, -1)
            self._urgent -= urgent
        ticket.entry = 0
        self._compact()

    def head(self) -> Ticket | None:
        """Return a ticket whose turn is due, else an urgent one, else the one with the earliest start."""
        urgent, other = _first(self._urgent_first), _first(self._ordered.queue)
        return other if urgent is None or (other is not None and self._turns.is_due(other)) else urgent

    @property
    def urgent_waits(self) -> bool:
        return _first(self._urgent_first) is not None

    @property
    def waiting_for_calls(self) -> dict[str, int]:
        """Tickets in :attr:`held` by cause, including those that finished since the last check."""
        counts: dict[str, int] = {}
        for until, heap in self.held.items():
            cause = "cache" if isinstance(until, Lead) else "budget"
            counts[cause] = counts.get(cause, 0) + len(heap)
        return counts

    def pop(self) -> Ticket | None:
        ticket = self.head()
        if ticket is not None:
            self.take(ticket)
        return ticket

    def take(self, head: Ticket) -> None:
        heapq.heappop(self._heap_of(head))
        self._count(head, -1)
        if self._shares:
            self._urgent -= _skips_window(head)
        head.entry = -head.entry

    def unpop(self, ticket: Ticket) -> None:
        ticket.entry = -ticket.entry
        self._count(ticket, 1)
        heapq.heappush(self._heap_of(ticket), (ticket.key, ticket.entry, ticket))
        if self._shares:  # its entries in the other heaps were not removed
            self._urgent += _skips_window(ticket)

    def set_aside(self, until: Budget | Lead) -> None:
        """Set the head aside until a budget has room or a cache entry is readable. It keeps its place."""
        ticket = self.pop()
        if ticket is not None:
            ticket.paused = True
            heapq.heappush(self.held.setdefault(until, []), (ticket.key, -ticket.entry, ticket))

    def flush(self, now: float) -> None:
        """Close the window of the tickets that wait now. Later tickets are collected as usual."""
        if self._shares:
            for _, entry, ticket in (*self._ordered.queue, *self._urgent_first):
                if ticket.entry == entry and ticket.must_start > now:
                    ticket.must_start = now
                    heapq.heappush(self._by_window_end, (ticket.must_start, entry, ticket))

    def promote(self, now: float) -> float:
        """Queue retries whose backoff has ended. Return the time of the next retry."""
        while self.delayed:
            due, entry, ticket = self.delayed[0]
            if ticket.entry != entry:
                heapq.heappop(self.delayed)
            elif due <= now:
                heapq.heappop(self.delayed)
                self.put(ticket, due, now)
            else:
                return due
        return math.inf

    def promote_held(self) -> None:
        """Queue tickets that no longer need to wait, or would wait in vain.

        At most one call's tickets are queued per budget, so that the end of a call does not move all of them.
        """
        most = self.lane.accumulator.window.max_size
        for until, heap in list(self.held.items()):
            promoted = 0
            while heap and promoted < most:
                _, entry, ticket = heap[0]
                if ticket.entry == -entry:
                    if until.must_wait(ticket.reserve):
                        break
                    self._push(ticket, entry)
                    promoted += 1
                heapq.heappop(heap)
            if not heap:
                del self.held[until]

    def ready(self, now: float, *, flushed: bool) -> float:
        """Return the time at which the window closes; now for ``flushed`` windows."""
        lane = self.lane
        if not self._shares or lane.packing_paused(now):
            return now if self.waiting else math.inf
        if lane.last_finished > self._met_at:  # the worker checks the queue before its callers submit again
            self._met_at, self._met = lane.last_finished, self.waiting
        view = Waiting(
            count=self.waiting,
            opened=_earliest(self._by_arrival),
            must_start=_earliest(self._by_window_end),
            urgent=self._urgent > 0,
            flushed=flushed,
            expected=lane.last_size + self._met,
            newest=max(self._newest, lane.last_finished),
            last_finished=lane.last_finished,
            latency=lane.latency,
            calls=lane.calls,
        )
        return lane.accumulator.ready(now, view)

    def _push(self, ticket: Ticket, entry: int) -> None:
        """Queue ``ticket``. Counts change last and without a function call, because of Ctrl-C."""
        self._compact()
        if ticket.prefix is not None:
            self._join_neighbors(ticket, ticket.prefix)
        urgent = False
        if self._shares:
            urgent = _skips_window(ticket)
            heapq.heappush(self._by_window_end, (ticket.must_start, entry, ticket))
            heapq.heappush(self._by_arrival, (ticket.due, entry, ticket))
        heapq.heappush(self._heap_of(ticket), (ticket.key, entry, ticket))
        if ticket.due > self._newest:
            self._newest = ticket.due
        ticket.paused = False
        ticket.entry = entry
        self.waiting += 1
        self._urgent += urgent
        if ticket.prefix is not None:
            self._by_prefix[ticket.prefix] += 1

    def others_waiting(self, ticket: Ticket) -> int:
        """Return the number of tickets whose longest shared prefix differs from that of ``ticket``."""
        return self.waiting - self._by_prefix[ticket.prefix]

    def _count(self, ticket: Ticket, change: int) -> None:
        self.waiting += change
        if ticket.prefix is not None:
            self._by_prefix[ticket.prefix] += change
            if not self._by_prefix[ticket.prefix]:
                del self._by_prefix[ticket.prefix]
                self._first_keys.pop(ticket.prefix, None)

    def _join_neighbors(self, ticket: Ticket, prefix: str) -> None:
        """Place a ticket directly after those with the same prefix that arrived shortly before it."""
        first = self._first_keys.get(prefix)
        if first is not None and 0 <= ticket.key - first <= _NEIGHBOR_SECONDS:
            ticket.key = first
        else:
            self._first_keys[prefix] = ticket.key

    def _heap_of(self, ticket: Ticket) -> _Heap:
        return self._urgent_first if ticket.urgent else self._ordered.queue

    def _compact(self) -> None:
        """Drop invalid entries once they make up most of a heap, to save memory."""
        most = 2 * self.waiting + _SPARE_ENTRIES
        if len(self._ordered.queue) > most:
            self._ordered.queue = _valid(self._ordered.queue)
        if len(self._urgent_first) > most:
            self._urgent_first = _valid(self._urgent_first)
        if len(self._by_arrival) > most or len(self._by_window_end) > most:
            self._by_arrival, self._by_window_end = _valid(self._by_arrival), _valid(self._by_window_end)


def _skips_window(ticket: Ticket) -> bool:
    return ticket.alone or ticket.urgent or ticket.group is not None


def _first(heap: _Heap) -> Ticket | None:
    while heap:
        _, entry, ticket = heap[0]
        if ticket.entry == entry:
            return ticket
        heapq.heappop(heap)
    return None


def _earliest(heap: _Heap) -> float:
    while heap and heap[0][2].entry != heap[0][1]:
        heapq.heappop(heap)
    return heap[0][0] if heap else math.inf


def _valid(heap: _Heap) -> _Heap:
    valid = list({item for item in heap if item[2].entry == item[1]})
    heapq.heapify(valid)
    return valid
