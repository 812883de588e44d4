"""The thread that leases: shares that leave and join."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Mapping
from typing import TypeVar

import pytest

from smartbatch._clock import RealClock, VirtualClock
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.errors import SmartbatchError, StoreError
from smartbatch.events import Event
from smartbatch.sharing.back_end import BackEnd, BackEndBusy, Incompatible, Published, RecordUpdate
from smartbatch.sharing.limit_leases import SharedLeases

_T = TypeVar("_T")


class Once:
    """A share that is due once after each join."""

    scope, model = "account", "default"
    is_used, waits = True, False

    def __init__(self) -> None:
        self.at = -math.inf
        self.lost: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def due(self, now: float) -> float:
        return self.at

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk:
        self.at = math.inf
        return LeaseAsk(member="one", leaving=int(leaving))

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        pass

    def lose(self, now: float, incompatible: str) -> int | None:
        self.lost.put(True)
        return None

    def wake(self) -> None:
        pass

    def tell(self, event: Event) -> None:
        pass

    def end(self) -> None:
        pass


class Slow(BackEnd):
    """A back end: ``share`` joins again while its last exchange is in progress."""

    place = "here"
    rejoined = False

    def __init__(self, share: Once) -> None:
        self.leases = SharedLeases(self, RealClock())
        self.share = share
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.closed: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def prepare(self) -> bytes:
        return b"salt"

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        if ask.leaving and not self.rejoined:
            self.rejoined = True
            self.share.at = -math.inf
            self.leases.join(self.share)
        self.asked.put(ask.leaving)
        return super().exchange(key, ask)

    def update(self, key: str, decide: RecordUpdate[_T], *, is_durable: bool) -> _T:
        _, decided = decide(None, 0.0)
        return decided

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        raise AssertionError("no client tells anything")

    def published(self) -> Published:
        raise AssertionError("nobody looks")

    def close(self) -> None:
        self.closed.put(True)


def test_a_share_that_joins_again_before_it_has_left_is_shared() -> None:
    share = Once()
    back_end = Slow(share)
    back_end.leases.join(share)
    assert back_end.asked.get(timeout=10.0) == 0
    back_end.leases.leave(share)
    assert [back_end.asked.get(timeout=10.0) for _ in range(2)] == [1, 0]
    back_end.leases.leave(share)
    assert back_end.closed.get(timeout=10.0)


class LeftMeanwhile(Slow):
    """A back end: ``share`` leaves while its first exchange is in progress."""

    def __init__(self, share: Once) -> None:
        super().__init__(share)
        self.leases = SharedLeases(self, VirtualClock())  # this one's thread waits for itself
        self.rejoined = True

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        if not ask.leaving:
            self.leases.leave(self.share)
        return super().exchange(key, ask)


def test_a_share_leaving_during_an_exchange_returns_its_lease() -> None:
    share = Once()
    back_end = LeftMeanwhile(share)
    back_end.leases.join(share)
    assert [back_end.asked.get(timeout=10.0) for _ in range(2)] == [0, 1]
    assert back_end.closed.get(timeout=10.0)


class Broken(Slow):
    """A back end whose answers cannot be read."""

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        raise ValueError("no answer")


def test_an_answer_that_cannot_be_read_is_a_back_end_that_is_unavailable() -> None:
    share = Once()
    back_end = Broken(share)
    back_end.leases.join(share)
    assert share.lost.get(timeout=5.0)
    back_end.leases.leave(share)
    assert share.lost.get(timeout=5.0)
    assert back_end.closed.get(timeout=5.0)


class Refusing(Slow):
    """A back end that is incompatible at first."""

    def __init__(self, share: Once, error: SmartbatchError, clock: VirtualClock) -> None:
        super().__init__(share)
        self.leases, self.clock, self.error = SharedLeases(self, clock), clock, error
        self.prepared_at: list[float] = []

    def prepare(self) -> bytes:
        self.prepared_at.append(self.clock.now())
        if len(self.prepared_at) == 1:
            raise self.error
        return b"salt"


class Waiting(Once):
    """A share that is due until an exchange was made."""

    def __init__(self) -> None:
        super().__init__()
        self.adopted: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def due(self, now: float) -> float:
        return -math.inf if self.adopted.empty() else math.inf

    @property
    def waits(self) -> bool:
        return self.adopted.empty()

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        self.adopted.put(True)


@pytest.mark.parametrize(
    ("error", "after"), [(StoreError("no disk"), 0.5), (Incompatible("another version"), 60.0)]
)
def test_a_back_end_that_refuses_is_tried_again(error: SmartbatchError, after: float) -> None:
    clock, share = VirtualClock(), Waiting()
    back_end = Refusing(share, error, clock)
    back_end.leases.join(share)
    clock.sleep(100.0)
    back_end.leases.leave(share)
    assert not share.adopted.empty()
    assert back_end.prepared_at == [0.0, after]


class Crowded(Slow):
    """A back end that others use without a pause until a given time."""

    def __init__(self, share: Once, until: float, clock: VirtualClock) -> None:
        super().__init__(share)
        self.leases, self.clock, self.until = SharedLeases(self, clock), clock, until
        self.rejoined = True
        self.tries = 0

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        if self.clock.now() < self.until:
            self.clock.sleep(2.0)
            self.tries += 1
            raise BackEndBusy("database is locked")
        return super().exchange(key, ask)


@pytest.mark.parametrize(("until", "lost"), [(6.0, False), (8.0, False), (12.0, True)])
def test_a_place_that_many_join_at_once_is_waited_for_at_first(until: float, lost: bool) -> None:
    clock, share = VirtualClock(), Waiting()
    back_end = Crowded(share, until, clock)
    back_end.leases.join(share)
    clock.sleep(30.0)
    assert share.adopted.get(timeout=10.0)
    assert share.lost.empty() is not lost
    before, tries = back_end.tries, queue.SimpleQueue[int]()
    share.lose = lambda *_: tries.put(back_end.tries)  # type: ignore[method-assign]
    back_end.until = math.inf  # it has met others: now one try is enough
    back_end.leases.wake()
    assert tries.get(timeout=10.0) == before + 1
    back_end.leases.leave(share)


def test_a_share_says_that_no_thread_can_be_had_and_may_join_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    share = Once()
    back_end = Slow(share)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            back_end.leases.join(share)
    back_end.leases.join(share)
    assert back_end.asked.get(timeout=10.0) == 0
    back_end.leases.leave(share)
