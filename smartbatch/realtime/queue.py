"""The bounded queue: who is let in, who waits for room, and the counts that always balance."""

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
from smartbatch.core.limits.budget import Budget
from smartbatch.errors import ClientClosed, QueueFull
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.lane_queue import LaneQueue, Turns
from smartbatch.realtime.ticket import ResultFuture, Ticket, TicketState, Waiter
from smartbatch.types import Priority

_sequence = itertools.count(1)
_SPARE = 64
"""Deadlines of ended requests that may be kept, in addition to as many as there are requests."""


@define
class RequestCounts:
    """Requests by where they are.

    ``submitted == waiting + in_flight + succeeded + failed + cancelled`` at every step.
    """

    submitted: int = 0
    waiting: int = 0
    in_flight: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    def balanced(self) -> bool:
        """Whether nothing is lost and nothing counted twice."""
        ended = self.succeeded + self.failed + self.cancelled
        return self.submitted == self.waiting + self.in_flight + ended


class RequestQueue:
    """All tickets of a client, lane by lane (each a ``queue.PriorityQueue``), bounded as a whole.

    Methods that end in ``_locked`` expect :attr:`monitor` to be held. It guards everything here, the lanes
    and the waiting tickets; who waits for room, or for the end of all requests, waits on the same lock.

    Attributes:
        turns: the slots that urgent requests give up.
        lanes: the lanes that are served; replaced as a whole, never changed.
        live: the tickets that have not ended, in the order they came.
        settling: effects whose futures have ended under the lock and are being settled after it.
        abandoned: futures that a finaliser cancelled where it could not take the monitor.
        blocked: threads that wait for room.
        closed: the error of a submit now; ``None`` while requests are taken.
        flushing: whether windows no longer count.

    Args:
        clock: time and waiting.
        capacity: most requests that wait at once.
        urgent_reserve: extra room, as a share of the capacity, for URGENT and HIGH requests only, so that a
            queue full of background work never blocks them.
        block: whether a full queue makes the caller wait, or raises at once.
        patience: longest wait for room, seconds; ``None`` waits for ever.
        lock: of :attr:`monitor`.
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
        self._urgent_room = clock.monitor(self.monitor.lock)  # for those who may use the reserve
        self._idle = clock.monitor(self.monitor.lock)
        self.counts = RequestCounts()
        self.turns = Turns()
        self.lanes: dict[Lane, LaneQueue] = {}
        self.live: dict[Ticket, None] = {}
        self.settling: dict[object, None] = {}
        self.abandoned: deque[ResultFuture] = deque()
        self.flushing = False
        self.closed: ClientClosed | None = None
        self._identical: dict[tuple[bytes, Budget | None], Ticket] = {}  # by what is asked, and who pays
        self._deadlines: list[tuple[float, int, Ticket, Waiter]] = []
        self.blocked = 0

    def add_lane(self, lane: Lane) -> None:
        """Serve ``lane`` from now on. One thread at a time may call it; it needs no lock."""
        self.lanes = {**self.lanes, lane: LaneQueue(lane, self.turns)}

    def has_lane_of(self, ticket: Ticket) -> bool:
        """Whether ``ticket`` came to this queue, and not to that of another run of the client."""
        return ticket.lane in self.lanes

    def admit_locked(self, ticket: Ticket, now: float) -> bool:
        """Let ``ticket`` wait, or let its waiter join an identical one; True when it joined.

        The cases, in order:

        1. The client was stopped: refuse.
        2. An identical request that the same budget pays for is under way: join it. That takes no room.
        3. There is room: let it wait in its lane.
        4. There is none: refuse at once, or wait for room (see :meth:`_make_room_locked`). An identical
           request may have come meanwhile, so case 2 is looked at once more, and the room is passed on. Where
           its time-out is over by then, it is let in all the same: :meth:`expired_locked` takes it out.

        Raises:
            QueueFull: there is no room, and waiting is not configured or took too long.
            ClientClosed: the client was stopped.
        """
        waiter = ticket.waiters[0]
        if self.closed is not None:
            raise _refusal(self.closed, waiter.request_id)
        leader = self._leader_locked(ticket)
        if leader is None and self._make_room_locked(waiter, now):
            leader = self._leader_locked(ticket)
            if leader is not None:
                self._notify_room_locked(1)
        if leader is not None:
            self._join_locked(leader, ticket, now)
            return True
        self._watch_deadline_locked(ticket, waiter)
        # No call between these lines, so that no Ctrl-C can come between them either.
        if ticket.fingerprint is not None:
            self._identical[ticket.fingerprint, ticket.own_budget] = ticket
        self.live[ticket] = None
        waiter.ticket = ticket
        self.counts.submitted += 1
        self.counts.waiting += 1
        self.lanes[ticket.lane].put(ticket, ticket.due, now)
        return False

    def again_locked(self, ticket: Ticket, due: float, now: float) -> None:
        """Let a ticket that was in flight wait once more, from ``due`` on, whether there is room or not."""
        self.counts.in_flight -= len(ticket.waiters)
        self.counts.waiting += len(ticket.waiters)
        self.lanes[ticket.lane].put(ticket, due, now)

    def start_locked(self, ticket: Ticket, now: float) -> bool:
        """Move a ticket that was popped, and its futures, to running; False when all were cancelled."""
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
        """Let no identical request join ``ticket`` any more; returns who waits for it. Takes the monitor.

        From then on its waiters can only become fewer, by their time-outs.
        """
        if ticket.fingerprint is None:
            return list(ticket.waiters)
        with self.monitor:
            self.refuse_joining_locked(ticket)
            return list(ticket.waiters)

    def refuse_joining_locked(self, ticket: Ticket) -> None:
        """Let no identical request join ``ticket`` any more."""
        if ticket.fingerprint is not None and self._leader_locked(ticket) is ticket:
            del self._identical[ticket.fingerprint, ticket.own_budget]

    def end_locked(self, ticket: Ticket, *, ok: bool, refused: Collection[Waiter] = ()) -> list[Waiter]:
        """End ``ticket``, in flight or waiting; returns the waiters to settle once the monitor is free.

        Where it is ``ok``, it is so but for those ``refused``: a hook failed their results.
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
        """Take out a waiter whose future was cancelled; False when that was told before.

        A worker that met the cancelled future first has taken it out already; to tell of it is left to the
        thread that cancelled.
        """
        if waiter.future.waiter is None:
            return False
        waiter.future.waiter = None
        if not waiter.running:
            waiter.begin()
            self._drop_waiter_locked(ticket, waiter)
            if not ticket.waiters:
                self._forget_locked(ticket)  # first: if Ctrl-C comes now, a worker will pass the ticket over
                self.lanes[ticket.lane].remove(ticket)
        return True

    def expired_locked(self, now: float) -> list[tuple[Ticket, Waiter]]:
        """Take out the waiters whose own time-out is over; the caller fails them. For each, in order:

        1. It was settled or taken out before: nothing.
        2. It waits: its place is free. Where its future was cancelled meanwhile, it counts as cancelled.
        3. Its call is under way: the call goes on, for the others who wait for it.
        """
        late: list[tuple[Ticket, Waiter]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, ticket, waiter = heapq.heappop(self._deadlines)
            if ticket.state is TicketState.DONE or waiter not in ticket.waiters:
                continue
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
        """When the time-out of the next waiter is over, monotonic seconds; infinity for none."""
        while self._deadlines and _has_ended(self._deadlines[0][2], self._deadlines[0][3]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def remove_abandoned_locked(self) -> list[tuple[Ticket, Waiter]]:
        """Cancel the futures that a finaliser left in :attr:`abandoned`; the caller tells of them."""
        removed: list[tuple[Ticket, Waiter]] = []
        while self.abandoned:
            waiter = self.abandoned.popleft().waiter
            ticket = None if waiter is None else waiter.ticket
            if waiter is None or ticket is None or not self.has_lane_of(ticket):
                continue  # it has ended, or is another run's
            # it is not cancelled where its call is under way
            if Future.cancel(waiter.future) and self.cancelled_locked(ticket, waiter):
                removed.append((ticket, waiter))
        return removed

    def settled(self, effects: object) -> None:
        """Futures that ended under the lock have been settled after it."""
        self.settling.pop(effects, None)
        if self.closed is not None:
            with self.monitor:
                self._idle.notify_all()

    def wake_blocked_locked(self) -> None:
        """Wake every thread that waits for room: the client takes nothing more."""
        self._room.notify_all()
        self._urgent_room.notify_all()

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until all tickets have ended and their futures are settled; False if that took too long."""
        with self._idle:
            return bool(self._idle.wait_for(lambda: not (self.live or self.settling), timeout))

    def _leader_locked(self, ticket: Ticket) -> Ticket | None:
        """The identical ticket of the same payer that came first and has not ended, if there is one."""
        fingerprint = ticket.fingerprint
        return None if fingerprint is None else self._identical.get((fingerprint, ticket.own_budget))

    def _notify_room_locked(self, places: int) -> None:
        """Wake who waits for room, in both waiting rooms: those of the first may not use the reserve."""
        if self.blocked:
            self._urgent_room.notify(places)
            self._room.notify(places)

    def _make_room_locked(self, waiter: Waiter, now: float) -> bool:
        """Return once there is room; True when that took waiting, so that others may have come meanwhile.
        A request whose own time-out is over needs none.

        The cases, in order:

        1. Fewer wait than may: the capacity, and for URGENT and HIGH requests the reserve as well.
        2. A full queue refuses: raise.
        3. Wait until a place is free, the request's time-out is over, waiting took too long, or the client is
           stopped; the last two raise. A thread that leaves without using the place it was woken for wakes
           the next one.

        Raises:
            QueueFull: in case 2, or when waiting took too long.
            ClientClosed: the client was stopped.
        """
        urgent = waiter.request.priority >= Priority.HIGH
        limit = self._capacity + (self._reserve if urgent else 0)
        if self.counts.waiting < limit:
            return False
        if not self._block:
            raise QueueFull(
                f"the queue is full ({self.counts.waiting} of {self._capacity} requests wait); try later, "
                f"raise queue_capacity, or set queue_full to 'block'",
                request_id=waiter.request_id,
            )
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
                    f"the queue stayed full for {self._patience} s (queue_timeout)",
                    request_id=waiter.request_id,
                )
        except BaseException:  # Ctrl-C included
            self._notify_room_locked(1)
            raise
        finally:
            self.blocked -= 1
        return True

    def _join_locked(self, leader: Ticket, follower: Ticket, now: float) -> None:
        """Let the waiter of ``follower``, an identical request, get the result of ``leader``."""
        waiter = follower.waiters[0]
        waiter.joined = True
        self._watch_deadline_locked(leader, waiter)
        leader.waiters += (waiter,)  # as in admit_locked: no call, no Ctrl-C
        waiter.ticket = leader
        self.counts.submitted += 1
        if leader.state is TicketState.IN_FLIGHT:
            self.counts.in_flight += 1
            waiter.begin()
            return
        self.counts.waiting += 1
        leader.keeps_going = leader.keeps_going or follower.keeps_going
        # The more urgent of the two decides where it waits, and one that goes alone takes the other along.
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
        if len(self._deadlines) > 2 * (self.counts.waiting + self.counts.in_flight) + _SPARE:
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
    """Whether no time-out of ``waiter`` counts any more: also one that left others waiting for the ticket."""
    return ticket.state is TicketState.DONE or waiter.future.waiter is None


def _refusal(closed: ClientClosed, request_id: str) -> ClientClosed:
    """The same refusal, for another request."""
    return ClientClosed(closed.message, request_id=request_id)
