"""The thread that leases: shares that leave and join, and back ends that refuse."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest

from smartbatch._clock import Clock, RealClock, VirtualClock
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.errors import StoreError
from smartbatch.events import Event
from smartbatch.sharing.back_end import BackEnd, BackEndBusy, Incompatible, Published, RecordUpdate
from smartbatch.sharing.limit_leases import SharedLeases

_T = TypeVar("_T")


class OneShare:
    """A share that is due once after each join, or, if it ``insists``, until an exchange was made."""

    scope, model, is_used = "account", "default", True

    def __init__(self, *, insists: bool = False) -> None:
        self.at, self.insists = -math.inf, insists
        self.lost, self.adopted = SimpleQueue[bool](), SimpleQueue[bool]()

    @property
    def waits(self) -> bool:
        return self.insists and self.adopted.empty()

    def due(self, now: float) -> float:
        return (-math.inf if self.adopted.empty() else math.inf) if self.insists else self.at

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk:
        self.at = math.inf
        return LeaseAsk(member="one", leaving=int(leaving))

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        self.adopted.put(True)

    def lose(self, now: float, incompatible: str) -> int | None:
        self.lost.put(True)
        return None

    def wake(self) -> None: ...

    def publish_event(self, event: Event) -> None: ...

    def end(self) -> None: ...


class Fake(BackEnd):
    """A back end in memory, with the leases that use it; ``before`` is called before each exchange."""

    place = "here"

    def __init__(self, clock: Clock, before: Callable[[LeaseAsk], object] = lambda ask: None) -> None:
        self.leases, self.before = SharedLeases(self, clock), before
        self.asked, self.closed = SimpleQueue[int](), SimpleQueue[bool]()

    def prepare(self) -> bytes:
        return b"salt"

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        self.before(ask)
        self.asked.put(ask.leaving)
        return super().exchange(key, ask)

    def update(self, key: str, decide: RecordUpdate[_T], *, is_durable: bool) -> _T:
        return decide(None, 0.0)[1]

    def publish(self, *_: Any) -> None:
        raise AssertionError("no client is published")

    def published(self) -> Published:
        raise AssertionError("nobody reads the records")

    def close(self) -> None:
        self.closed.put(True)


def test_a_share_that_joins_again_before_it_has_left_is_shared():
    share, rejoined = OneShare(), []

    def join_again(ask: LeaseAsk) -> None:
        if ask.leaving and not rejoined:
            rejoined.append(True)
            share.at = -math.inf
            back_end.leases.join(share)

    back_end = Fake(RealClock(), join_again)
    back_end.leases.join(share)
    assert back_end.asked.get(timeout=10.0) == 0
    back_end.leases.leave(share)
    assert [back_end.asked.get(timeout=10.0) for _ in range(2)] == [1, 0]
    back_end.leases.leave(share)
    assert back_end.closed.get(timeout=10.0)


def test_a_share_leaving_during_an_exchange_returns_its_lease():
    share = OneShare()
    back_end = Fake(VirtualClock(), lambda ask: None if ask.leaving else back_end.leases.leave(share))
    back_end.leases.join(share)
    assert [back_end.asked.get(timeout=10.0) for _ in range(2)] == [0, 1]
    assert back_end.closed.get(timeout=10.0)


def test_an_answer_that_cannot_be_read_is_a_back_end_that_is_unavailable():
    def broken(ask: LeaseAsk) -> None:
        raise ValueError("no answer")

    share, back_end = OneShare(), Fake(RealClock(), broken)
    back_end.leases.join(share)
    assert share.lost.get(timeout=5.0)
    back_end.leases.leave(share)
    assert share.lost.get(timeout=5.0)
    assert back_end.closed.get(timeout=5.0)


@pytest.mark.parametrize(
    ("error", "after"), [(StoreError("no disk"), 0.5), (Incompatible("another version"), 60.0)]
)
def test_a_back_end_that_refuses_is_tried_again(error, after):
    clock, share, prepared_at = VirtualClock(), OneShare(insists=True), list[float]()

    class Refusing(Fake):
        def prepare(self) -> bytes:
            prepared_at.append(clock.now())
            if len(prepared_at) == 1:
                raise error
            return b"salt"

    back_end = Refusing(clock)
    back_end.leases.join(share)
    clock.sleep(100.0)
    back_end.leases.leave(share)
    assert not share.adopted.empty()
    assert prepared_at == [0.0, after]


@pytest.mark.parametrize(("until", "lost"), [(6.0, False), (8.0, False), (12.0, True)])
def test_a_place_that_many_join_at_once_is_waited_for_at_first(until, lost):
    clock, share, tries = VirtualClock(), OneShare(insists=True), list[float]()
    busy_until = [until]

    def crowded(ask: LeaseAsk) -> None:
        if clock.now() < busy_until[0]:
            clock.sleep(2.0)
            tries.append(clock.now())
            raise BackEndBusy("database is locked")

    back_end = Fake(clock, crowded)
    back_end.leases.join(share)
    clock.sleep(30.0)
    assert share.adopted.get(timeout=10.0)
    assert share.lost.empty() is not lost
    before, tried = len(tries), SimpleQueue[int]()
    share.lose = lambda *_: tried.put(len(tries))  # type: ignore[method-assign]
    busy_until[0] = math.inf  # it has met others: now one try is enough
    back_end.leases.wake()
    assert tried.get(timeout=10.0) == before + 1
    back_end.leases.leave(share)


def test_a_share_says_that_no_thread_can_be_had_and_may_join_later(monkeypatch):
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    share, back_end = OneShare(), Fake(RealClock())
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            back_end.leases.join(share)
    back_end.leases.join(share)
    assert back_end.asked.get(timeout=10.0) == 0
    back_end.leases.leave(share)
