"""Lanes are built at first use, and nothing is read while others wait for the lock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
from inside import engine_of
from scenes import PATIENCE, Aside, Scripted

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.model_controls import ModelControls, ModelLimit
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.providers.base import Capabilities
from smartbatch.realtime.lane import Lane, LaneFactory
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.types import Kind


def factory(
    clock: VirtualClock,
    calibration: Callable[[str, Kind], Calibration] = lambda *_: Calibration(),
    **settings: object,
) -> LaneFactory:
    """A factory whose lanes are not served."""
    return LaneFactory(
        RealtimeSetup(BatchingConfig(**settings), clock, calibration=calibration), lambda _: None
    )


def test_a_model_whose_tokens_are_read_holds_up_no_other_model(clock: VirtualClock) -> None:
    """What is known of tokens may come from a file, and prices from a table that takes a moment to read."""
    provider = Scripted(clock)
    other: list[Lane] = []

    def read(label: str, _: Kind) -> Calibration:
        if label.endswith(":slow"):
            other.append(Aside(lambda: lanes.of(provider, "quick")).result())
        return Calibration()

    lanes = factory(clock, read)
    lane = lanes.of(provider, "slow")
    assert [each.model for each in (lane, *other)] == ["slow", "quick"]


class Watched(Scripted):
    """A provider that says when it is asked what it can do."""

    def __init__(self, clock: VirtualClock, asked: Callable[[], None]) -> None:
        self._asked = asked
        super().__init__(clock)

    @property
    def capabilities(self) -> Capabilities:
        self._asked()
        return self._abilities

    @capabilities.setter
    def capabilities(self, abilities: Capabilities) -> None:
        self._abilities = abilities


def test_a_lane_created_while_a_limit_is_set_gets_that_limit(
    clock: VirtualClock, client_of: Callable[..., BatchingClient]
) -> None:
    """Whoever holds the queue's lock may want a lane himself, which is made by one thread at a time."""
    controls = ModelControls(limits={"scripted:last": ModelLimit("scripted:last", 30.0, None, "me", 0.0)})
    asked, often = itertools.count(1), 0
    held, made = threading.Event(), threading.Event()
    holders: list[Aside] = []

    def hold() -> None:
        with engine.queue.monitor:
            held.set()
            assert made.wait(PATIENCE)

    def as_asked() -> None:
        if next(asked) == 2 * often:  # the last time, with the limits of before in hand
            Aside(lambda: engine.control(controls)).result()
            holders.append(Aside(hold))
            assert held.wait(PATIENCE)

    provider = Watched(clock, as_asked)
    engine = engine_of(client_of(provider, max_rpm=600))
    asked = itertools.count(1)
    engine.lanes.of(provider, "first")
    often = next(asked) - 1
    asked = itertools.count(often + 1)
    lane = Aside(lambda: engine.lanes.of(provider, "last")).result()
    made.set()
    holders[0].result()
    assert lane.quota.quota.facts(clock.now()).rates[0] == pytest.approx(30 / 60, rel=0.01)
