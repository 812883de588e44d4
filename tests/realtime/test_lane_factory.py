"""Lanes are built at first use, and nothing is read while others wait for the lock."""

from __future__ import annotations

from collections.abc import Callable

from scenes import Aside, Scripted

from smartbatch._clock import VirtualClock
from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.realtime.lane import Lane, LaneFactory
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.types import Kind


def factory(
    clock: VirtualClock,
    calibration: Callable[[str, Kind], Calibration] = lambda *_: Calibration(),
    **settings: object,
) -> LaneFactory:
    return LaneFactory(
        RealtimeSetup(BatchingConfig(**settings), clock, calibration=calibration), lambda _: None
    )


def test_a_model_whose_tokens_are_read_holds_up_no_other_model(clock):
    provider = Scripted(clock)
    other: list[Lane] = []

    def read(label: str, _: Kind) -> Calibration:
        if label.endswith(":slow"):
            other.append(Aside(lambda: lanes.of(provider, "quick")).result())
        return Calibration()

    lanes = factory(clock, read)
    lane = lanes.of(provider, "slow")
    assert [each.model for each in (lane, *other)] == ["slow", "quick"]
