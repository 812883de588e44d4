"""The thread that leases: what it does with shares that leave and join."""

from __future__ import annotations

import math
import queue
from collections.abc import Mapping

from smartbatch._clock import RealClock
from smartbatch.core.limits.shared_record import LeaseAsk, LeaseGrant, SharedRecord, exchange
from smartbatch.events import Event
from smartbatch.realtime.shared.back_end import BackEnd, Published
from smartbatch.realtime.shared.limit_leases import SharedLeases


class Once:
    """A share that is due once after each joining."""

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

    def lose(self, now: float) -> int | None:
        self.lost.put(True)
        return None

    def wake(self) -> None:
        pass

    def tell(self, event: Event) -> None:
        pass

    def end(self) -> None:
        pass


class Slow(BackEnd):
    """A back end: ``share`` joins again while its last exchange is on the way."""

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
        return exchange(SharedRecord(), ask, 0.0)

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        raise AssertionError("no client tells anything")

    def published(self) -> Published:
        raise AssertionError("nobody looks")

    def close(self) -> None:
        self.closed.put(True)


def test_a_share_that_joins_again_before_it_has_left_is_shared() -> None:
    """A client is stopped and started while the back end is slow."""
    share = Once()
    back_end = Slow(share)
    back_end.leases.join(share)
    assert back_end.asked.get(timeout=10.0) == 0
    back_end.leases.leave(share)
    assert [back_end.asked.get(timeout=10.0) for _ in range(2)] == [1, 0]
    back_end.leases.leave(share)
    assert back_end.closed.get(timeout=10.0)


class Broken(Slow):
    """A back end whose answers cannot be read."""

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        raise ValueError("no answer")


def test_an_answer_that_cannot_be_read_is_a_back_end_that_is_away() -> None:
    """The thread lives on: requests wait for what it brings."""
    share = Once()
    back_end = Broken(share)
    back_end.leases.join(share)
    assert share.lost.get(timeout=5.0)
    back_end.leases.leave(share)
    assert share.lost.get(timeout=5.0)
    assert back_end.closed.get(timeout=5.0)
