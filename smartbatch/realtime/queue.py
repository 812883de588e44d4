"""The bounded queue: admission, waiting for room, and counts that always balance."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future

from attrs import define

from smartbatch._clock import Clock, Monitor
from smartbatch._words import duration
from smartbatch.core.limits.budget import Budget
from smartbatch.errors import ClientClosed, QueueFull
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.lane_queue import LaneQueue, Turns
from smartbatch.realtime.ticket import ResultFuture, Ticket, TicketState, Waiter
from smartbatch.types import Priority

_sequence = itertools.count(1)
_SPARE_DEADLINES = 64
"""Deadlines of finished requests that the heap may hold, in addition to one per pending request."""


@define
class RequestCounts:
    """``submitted == waiting + in_flight + succeeded + failed + cancelled`` always holds."""

    submitted: int = 0
    waiting: int = 0
    in_flight: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    def balanced(self) -> bool:
        ended = self.succeeded + self.failed + self.cancelled
        return self.submitted == self.waiting + self.in_flight + ended


class RequestQueue:
    """All tickets of a client, in one queue per lane, with a common bound.

    Methods whose name ends in ``_locked`` require :attr:`monitor`, which guards this queue, the lanes and the
    waiting tickets. Threads that wait for room or for idleness use the same lock.

    Args:
        capacity: maximum number of waiting requests.
        urgent_reserve: additional room for URGENT and HIGH requests, as a share of the capacity, so that
            background work cannot block them.
        block: whether a full queue blocks the caller instead of raising.
        patience: maximum wait for room, in seconds; ``None`` for no limit.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        capacity: int,
        urgent_reserve: float,
        block: bool,
        patience: float | None,
        lock: threading.Lock | None = None,
    ) -> None:
        self._capacity = capacity
        self._reserve = max(1, round(capacity * urgent_reserve))
        self._block = block
        self._patience = patience
        self.monitor: Monitor = clock.monitor(lock)
        self._room = clock.monitor(self.monitor.lock)
        self._urgent_room = clock.monitor(self.monitor.lock)  # for requests that may use the reserve
        self._idle = clock.monitor(self.monitor.lock)
        self.counts = RequestCounts()
        self.turns = Turns()  # calls that urgent requests give up
        self.lanes: dict[Lane, LaneQueue] = {}  # replaced, never changed in place
        self.live: dict[Ticket, None] = {}
        # effects whose futures ended under the lock and are completed after it
        self.settling: dict[object, None] = {}
        # futures cancelled by finalizers, which cannot take the monitor
        self.abandoned: deque[ResultFuture] = deque()
        self.flushing = False  # windows are ignored
        self.closed: ClientClosed | None = None  # error for new requests; None while they are accepted
        self._identical: dict[tuple[bytes, Budget | None], Ticket] = {}  # tickets by fingerprint and payer
        self._deadlines: list[tuple[float, int, Ticket, Waiter]] = []
        self.blocked = 0

    def add_lane(self, lane: Lane) -> None:
        """Serve ``lane`` from now on. Callers are serialized; no lock is needed."""
        self.lanes = {**self.lanes, lane: LaneQueue(lane, self.turns)}

    def has_lane_of(self, ticket: Ticket) -> bool:
        """Return whether ``ticket`` belongs to this queue, not to an earlier run of the client."""
        return ticket.lane in self.lanes

    def admit_locked(self, ticket: Ticket, now: float) -> bool:
        """Queue ``ticket``, or add its waiter to an identical ticket. Return True if it joined one.

        Raises:
            QueueFull: there is no room, and waiting is off or took too long.
            ClientClosed: the client was stopped.
        """
        waiter = ticket.waiters[0]
        # 1. The client was stopped: reject the ticket.
        if self.closed is not None:
            raise _refusal(self.closed, waiter.request_id)
        # 2. An identical request with the same payer waits or is in flight: join it, which needs no room.
        leader = self._leader_locked(ticket)
        # 3. There is no room: raise, or wait for room. An identical request may have arrived during the wait,
        # so check again and release the room.
        if leader is None and self._make_room_locked(waiter, now):
            leader = self._leader_locked(ticket)
            if leader is not None:
                self._notify_room_locked(1)
        if leader is not None:
            self._join_locked(leader, ticket, now)
            return True
        # 4. Queue it in its lane. If it has already timed out, expired_locked removes it.
        self._watch_deadline_locked(ticket, waiter)
        # no function call between these lines, so that Ctrl-C cannot interrupt them
        if ticket.fingerprint is not None:
            self._identical[ticket.fingerprint, ticket.own_budget] = ticket
        self.live[ticket] = None
        waiter.ticket = ticket
        self.counts.submitted += 1
        self.counts.waiting += 1
        self.lanes[ticket.lane].put(ticket, ticket.due, now)
        return False

    def requeue_locked(self, ticket: Ticket, due: float, now: float) -> None:
        """Queue a ticket again after its call, even if there is no room."""
        self.counts.in_flight -= len(ticket.waiters)
        self.counts.waiting += len(ticket.waiters)
        self.lanes[ticket.lane].put(ticket, due, now)

    def start_locked(self, ticket: Ticket, now: float) -> bool:
        """Move a popped ticket and its futures to running. Return False if all were cancelled."""
        for waiter in list(ticket.waiters):
            if not waiter.running and not waiter.begin():
                self._drop_waiter_locked(ticket, waiter)
        if not ticket.waiters:
            self._forget_locked(ticket)
            return False
        self.counts.waiting -= len(ticket.waiters)
        self.counts.in_flight += len(ticket.waiters)
        ticket.state = TicketState.IN_FLIGHT
        ticket.started = now
        self._notify_room_locked(len(ticket.waiters))
        return True

    def close_to_others(self, ticket: Ticket) -> list[Waiter]:
        """Stop identical requests from joining ``ticket`` and return its waiters. Takes the monitor.

        Afterwards, waiters can only leave, by timing out.
        """
        if ticket.fingerprint is None:
            return list(ticket.waiters)
        with self.monitor:
            self.refuse_joining_locked(ticket)
            return list(ticket.waiters)

    def refuse_joining_locked(self, ticket: Ticket) -> None:
        if ticket.fingerprint is not None and self._leader_locked(ticket) is ticket:
            del self._identical[ticket.fingerprint, ticket.own_budget]

    def end_locked(self, ticket: Ticket, *, ok: bool, refused: Collection[Waiter] = ()) -> list[Waiter]:
        """End a ticket. Return the waiters whose futures to complete outside the monitor.

        Args:
            refused: waiters that failed although the call succeeded, because a hook failed their results.
        """
        waiters = ticket.waiters
        if ticket.state is TicketState.IN_FLIGHT:
            self.counts.in_flight -= len(waiters)
        else:
            self.lanes[ticket.lane].remove(ticket)
            self.counts.waiting -= len(waiters)
            self._notify_room_locked(len(waiters))
            waiters = [waiter for waiter in waiters if waiter.running or waiter.begin()]
            self.counts.cancelled += len(ticket.waiters) - len(waiters)
        succeeded = sum(waiter not in refused for waiter in waiters) if ok else 0
        self.counts.succeeded += succeeded
        self.counts.failed += len(waiters) - succeeded
        self._forget_locked(ticket)
        return waiters

    def cancelled_locked(self, ticket: Ticket, waiter: Waiter) -> bool:
        """Remove a waiter whose future was cancelled. Return False if that was already reported.

        If a worker found the cancelled future first and removed it, the thread that cancelled it still
        reports it.
        """
        if waiter.future.waiter is None:
            return False
        waiter.future.waiter = None
        if not waiter.running:
            waiter.begin()
            self._drop_waiter_locked(ticket, waiter)
            if not ticket.waiters:
                self._forget_locked(ticket)  # first, so that workers skip it if Ctrl-C interrupts this method
                self.lanes[ticket.lane].remove(ticket)
        return True

    def expired_locked(self, now: float) -> list[tuple[Ticket, Waiter]]:
        """Remove the waiters that timed out. The caller fails them."""
        late: list[tuple[Ticket, Waiter]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, ticket, waiter = heapq.heappop(self._deadlines)
            # 1. It has already been completed or removed.
            if ticket.state is TicketState.DONE or waiter not in ticket.waiters:
                continue
            # 2. It waits: free its place. If its future has been cancelled, it counts as cancelled.
            # 3. Its call is in flight and continues for the other waiters.
            waiting = ticket.state is TicketState.WAITING
            ticket.waiters.remove(waiter)
            if waiting:
                self.counts.waiting -= 1
                self._notify_room_locked(1)
            else:
                self.counts.in_flight -= 1
            if waiting and not waiter.running and not waiter.begin():
                self.counts.cancelled += 1
            else:
                self.counts.failed += 1
                late.append((ticket, waiter))
            if not ticket.waiters:
                if waiting:
                    self.lanes[ticket.lane].remove(ticket)
                self._forget_locked(ticket)
        return late

    def next_deadline_locked(self) -> float:
        while self._deadlines and _has_ended(self._deadlines[0][2], self._deadlines[0][3]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def remove_abandoned_locked(self) -> list[tuple[Ticket, Waiter]]:
        """Cancel the futures in :attr:`abandoned`. The caller reports them."""
        removed: list[tuple[Ticket, Waiter]] = []
        while self.abandoned:
            waiter = self.abandoned.popleft().waiter
            ticket = None if waiter is None else waiter.ticket
            if waiter is None or ticket is None or not self.has_lane_of(ticket):
                continue  # it has finished, or belongs to an earlier run
            # it cannot be cancelled if its call is in flight
            if Future.cancel(waiter.future) and self.cancelled_locked(ticket, waiter):
                removed.append((ticket, waiter))
        return removed

    def mark_completed(self, effects: object) -> None:
        """Record that futures that ended under the lock are now complete."""
        self.settling.pop(effects, None)
        if self.closed is not None:
            with self.monitor:
                self._idle.notify_all()

    def wake_blocked_locked(self) -> None:
        """Wake all threads that wait for room, because no more requests are accepted."""
        self._room.notify_all()
        self._urgent_room.notify_all()

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until all futures are complete. Return False after ``timeout`` seconds."""
        with self._idle:
            return bool(self._idle.wait_for(lambda: not (self.live or self.settling), timeout))

    def _leader_locked(self, ticket: Ticket) -> Ticket | None:
        fingerprint = ticket.fingerprint
        return None if fingerprint is None else self._identical.get((fingerprint, ticket.own_budget))

    def _notify_room_locked(self, places: int) -> None:
        if self.blocked:
            self._urgent_room.notify(places)
            self._room.notify(places)

    def _make_room_locked(self, waiter: Waiter, now: float) -> bool:
        """Wait for room. Return True if other requests may have arrived during the wait.

        Raises:
            QueueFull: there is no room, and waiting is off or took too long.
            ClientClosed: the client was stopped.
        """
        # 1. There is room within the capacity, plus the reserve for URGENT and HIGH requests.
        urgent = waiter.request.priority >= Priority.HIGH
        limit = self._capacity + (self._reserve if urgent else 0)
        if self.counts.waiting < limit:
            return False
        # 2. The queue is full and does not block: reject the request.
        if not self._block:
            raise QueueFull(
                f"the queue is full ({self.counts.waiting} of {self._capacity} requests wait); try later, "
                f"raise queue_capacity, or set queue_full to 'block'",
                request_id=waiter.request_id,
            )
        # 3. Wait until there is room, the request times out, waiting takes too long, or the client is
        # stopped; the last two raise. A thread that leaves without using its place wakes the next one.
        room = self._urgent_room if urgent else self._room
        timeout = None if waiter.deadline is None else waiter.deadline - now
        impatient = self._patience is not None and (timeout is None or self._patience <= timeout)
        self.blocked += 1
        try:
            room.wait_for(
                lambda: self.counts.waiting < limit or self.closed is not None,
                self._patience if impatient else timeout,
            )
            if self.closed is not None:
                raise _refusal(self.closed, waiter.request_id)
            if impatient and self.counts.waiting >= limit:
                raise QueueFull(
                    f"the queue stayed full for {duration(self._patience or 0)} (queue_timeout)",
                    request_id=waiter.request_id,
                )
        except BaseException:
            self._notify_room_locked(1)
            raise
        finally:
            self.blocked -= 1
        return True

    def _join_locked(self, leader: Ticket, follower: Ticket, now: float) -> None:
        waiter = follower.waiters[0]
        waiter.joined = True
        self._watch_deadline_locked(leader, waiter)
        leader.waiters += (waiter,)  # without a function call, because of Ctrl-C: see admit_locked
        waiter.ticket = leader
        self.counts.submitted += 1
        if leader.state is TicketState.IN_FLIGHT:
            self.counts.in_flight += 1
            waiter.begin()
            return
        self.counts.waiting += 1
        leader.keeps_going = leader.keeps_going or follower.keeps_going
        # the more urgent request decides the order; if one must be sent alone, both are
        key, must_start = min(leader.key, follower.key), min(leader.must_start, follower.must_start)
        urgent, alone = leader.urgent or follower.urgent, leader.alone or follower.alone
        standing = leader.key, leader.must_start, leader.urgent, leader.alone
        if (key, must_start, urgent, alone) != standing:
            self.lanes[leader.lane].remove(leader)
            leader.key, leader.must_start, leader.urgent, leader.alone = key, must_start, urgent, alone
            self.lanes[leader.lane].put(leader, leader.due, now)

    def _watch_deadline_locked(self, ticket: Ticket, waiter: Waiter) -> None:
        if waiter.deadline is None:
            return
        if len(self._deadlines) > 2 * (self.counts.waiting + self.counts.in_flight) + _SPARE_DEADLINES:
            pending = [item for item in self._deadlines if not _has_ended(item[2], item[3])]
            heapq.heapify(pending)
            self._deadlines = pending
        heapq.heappush(self._deadlines, (waiter.deadline, next(_sequence), ticket, waiter))

    def _drop_waiter_locked(self, ticket: Ticket, waiter: Waiter) -> None:
        ticket.waiters.remove(waiter)
        self.counts.waiting -= 1
        self.counts.cancelled += 1
        self._notify_room_locked(1)

    def _forget_locked(self, ticket: Ticket) -> None:
        ticket.state = TicketState.DONE
        self.live.pop(ticket, None)
        self.refuse_joining_locked(ticket)
        if not self.live:
            self._idle.notify_all()


def _has_ended(ticket: Ticket, waiter: Waiter) -> bool:
    return ticket.state is TicketState.DONE or waiter.future.waiter is None


def _refusal(closed: ClientClosed, request_id: str) -> ClientClosed:
    return ClientClosed(closed.message, request_id=request_id)
