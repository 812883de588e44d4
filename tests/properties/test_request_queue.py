"""The request queue under every order of events: its counts add up, and each waiter ends once."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from smartbatch._clock import VirtualClock
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget, SpendReservation
from smartbatch.errors import QueueFull
from smartbatch.providers import MockProvider
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.lane import LaneFactory
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.ticket import CallOptions, ResultFuture, Submission, Ticket, TicketState, Waiter
from smartbatch.types import Priority, Request, Result

CAPACITY = 8
COST = 2.0  # the most that a request of the list may cost, USD


class QueueMachine(RuleBasedStateMachine):
    futures: Bundle[ResultFuture] = Bundle("futures")

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.now = 0.0
        self.queue = RequestQueue(
            self.clock, capacity=CAPACITY, urgent_reserve=0.25, block=False, patience=None
        )
        self.provider = MockProvider(max_shared=4)
        factory = LaneFactory(RealtimeSetup(BatchingConfig(), self.clock), self.queue.add_lane)
        lane = factory.of(self.provider, "m")
        self.lane_queue = self.queue.lanes[lane]
        self.budget = Budget(5 * COST)
        self.holds: list[SpendReservation] = []
        self.started: list[Ticket] = []
        self.waiters: list[Waiter] = []
        self.ends: Counter[str] = Counter()
        self.half_way: list[ResultFuture] = []
        self.told: Counter[str] = Counter()

    # -- what happens ------------------------------------------------------------------------------------

    @rule(
        target=futures,
        question=st.integers(0, 4),
        priority=st.sampled_from(Priority),
        timeout=st.sampled_from([None, 1.0, 3.0]),
        listed=st.booleans(),
    )
    def submit(self, question: int, priority: Priority, timeout: float | None, listed: bool) -> Any:
        future = ResultFuture(lambda work: work(), self.note_cancel)
        request = Request(f"question {question}", priority=priority, timeout=timeout)
        submission = Submission(
            request,
            f"id-{len(self.waiters)}",
            self.lane_queue.lane,
            CallOptions(OpenedModel(self.provider, "m"), own_budget=self.budget if listed else None),
            fingerprint=b"%d" % question,
            reserve=COST,
        )
        waiter = Waiter.of(submission, future, self.now)
        ticket = Ticket.of(submission, waiter)
        before = self.queue.counts.waiting
        try:
            with self.queue.monitor:
                self.queue.admit_locked(ticket, self.now)
        except QueueFull:
            assert before >= CAPACITY
            future.cancel()
            return future
        self.waiters.append(waiter)
        return future

    @rule(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        with self.queue.monitor:
            self.lane_queue.promote(self.now)
            keys = []
            for _ in range(count):
                ticket = self.lane_queue.pop()
                if ticket is None:
                    break
                keys.append(ticket.key)
                if self.queue.start_locked(ticket, self.now):
                    self.started.append(ticket)
            assert keys == sorted(keys)

    @rule()
    def look(self) -> None:
        with self.queue.monitor:
            self.lane_queue.promote(self.now)
            out = [ticket for ticket in (self.lane_queue.pop(), self.lane_queue.pop()) if ticket is not None]
            for ticket in out:
                self.lane_queue.unpop(ticket)
            assert not out or self.lane_queue.head() is out[0]

    @rule()
    def reserve(self) -> None:
        left = self.budget.left
        assert left is not None
        self.holds.append(self.budget.reserve(max(0.0, left - COST / 2)))

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99), cost=st.sampled_from([0.0, COST / 4]))
    def settle_call(self, which: int, cost: float) -> None:
        hold = self.holds.pop(which % len(self.holds))
        self.budget.reconcile(hold, min(cost, hold.usd))

    @rule()
    def look_for_money(self) -> None:
        with self.queue.monitor:
            self.lane_queue.promote_held()
            keys = []
            while (head := self.lane_queue.head()) is not None:
                if head.own_budget is None or not head.own_budget.must_wait(head.reserve):
                    break
                keys.append(head.key)
                self.lane_queue.set_aside(head.own_budget)
            assert keys == sorted(keys)

    @precondition(lambda self: self.started)
    @rule(which=st.integers(0, 99), delay=st.floats(0.0, 5.0))
    def again(self, which: int, delay: float) -> None:
        ticket = self.started.pop(which % len(self.started))
        if ticket.state is TicketState.IN_FLIGHT:
            with self.queue.monitor:
                self.queue.requeue_locked(ticket, self.now + delay, self.now)

    @precondition(lambda self: self.started)
    @rule(which=st.integers(0, 99), ok=st.booleans())
    def end(self, which: int, ok: bool) -> None:
        ticket = self.started.pop(which % len(self.started))
        if ticket.state is TicketState.IN_FLIGHT:
            with self.queue.monitor:
                waiters = self.queue.end_locked(ticket, ok=ok)
            self.settle(waiters)

    @precondition(lambda self: self.lane_queue.waiting)
    @rule()
    def fail_waiting(self) -> None:
        with self.queue.monitor:
            head = self.lane_queue.head()
            waiters = [] if head is None else self.queue.end_locked(head, ok=False)
        self.settle(waiters)

    @rule(future=consumes(futures))
    def cancel(self, future: ResultFuture) -> None:
        future.cancel()

    @rule(future=consumes(futures))
    def cancel_half_way(self, future: ResultFuture) -> None:
        if Future.cancel(future):
            self.half_way.append(future)

    @precondition(lambda self: self.half_way)
    @rule(which=st.integers(0, 99))
    def finish_cancelling(self, which: int) -> None:
        self.half_way.pop(which % len(self.half_way)).cancel()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        with self.queue.monitor:
            late = self.queue.expired_locked(self.now)
            assert self.queue.next_deadline_locked() > self.now
        self.settle([waiter for _, waiter in late])

    # -- what is always true -----------------------------------------------------------------------------

    @invariant()
    def the_counts_balance(self) -> None:
        counts = self.queue.counts
        assert counts.balanced()
        assert counts.submitted == len(self.waiters)
        ended = (counts.succeeded, counts.failed, counts.cancelled)
        assert min(counts.waiting, counts.in_flight, *ended) >= 0
        assert counts.succeeded + counts.failed == sum(self.ends.values())

    @invariant()
    def the_counts_are_those_of_the_tickets(self) -> None:
        live = list(self.queue.live)
        waiting = sum(len(ticket.waiters) for ticket in live if ticket.state is TicketState.WAITING)
        in_flight = sum(len(ticket.waiters) for ticket in live if ticket.state is TicketState.IN_FLIGHT)
        assert (waiting, in_flight) == (self.queue.counts.waiting, self.queue.counts.in_flight)
        assert all(ticket.waiters for ticket in live)

    @invariant()
    def the_lane_holds_each_waiting_ticket_once(self) -> None:
        ready = [
            ticket for ticket in self.queue.live if ticket.state is TicketState.WAITING and not ticket.paused
        ]
        assert self.lane_queue.waiting == len(ready)
        head = self.lane_queue.head()
        assert (head is None) == (not ready)
        if head is not None:
            assert head.key == min(ticket.key for ticket in ready)
        assert (self.lane_queue.ready(self.now, flushed=False) < math.inf) == bool(ready)

    @invariant()
    def each_waiter_ends_once(self) -> None:
        assert all(count == 1 for count in self.told.values())
        assert all(count == 1 for count in self.ends.values())
        assert not any(waiter.future.cancelled() and self.ends[waiter.request_id] for waiter in self.waiters)

    def teardown(self) -> None:
        for future in self.half_way:
            future.cancel()
        for ticket in list(self.queue.live):
            with self.queue.monitor:
                waiters = self.queue.end_locked(ticket, ok=False)
            self.settle(waiters)
        counts = self.queue.counts
        assert (counts.waiting, counts.in_flight, len(self.queue.live)) == (0, 0, 0)
        assert counts.balanced()
        assert all(waiter.future.done() for waiter in self.waiters)
        assert self.lane_queue.waiting == 0
        self.lane_queue.promote_held()
        assert not self.lane_queue.held
        assert counts.cancelled == sum(self.told.values())

    # -- helpers -----------------------------------------------------------------------------------------

    def settle(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            self.ends[waiter.request_id] += 1
            waiter.future.complete(Result(waiter.request_id, text="fine"))

    def note_cancel(self, future: ResultFuture) -> None:
        waiter = future.waiter
        if waiter is None:
            return
        with self.queue.monitor:
            if waiter.ticket is not None and self.queue.cancelled_locked(waiter.ticket, waiter):
                self.told[waiter.request_id] += 1


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(stateful_step_count=60)
