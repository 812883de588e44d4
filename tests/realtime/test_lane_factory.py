"""Lanes are built at first use, and nothing is read while others wait for the lock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scenes import Aside, Scripted

from smartbatch._clock import VirtualClock
from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.prices import PriceBook, RateCard
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.lane_factory import LaneFactory
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


def test_prices_are_read_without_the_lock(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of prices is imported when it is first needed, which takes a third of a second."""
    provider = Scripted(clock, priced=True)
    free: list[bool] = []
    rates = PriceBook.rates

    def watched(self: PriceBook, name: str, model: str, *rest: float) -> RateCard | None:
        if model == "slow":
            free.append(Aside(lambda: lanes.of(provider, "quick")).result().model == "quick")
        return rates(self, name, model, *rest)

    monkeypatch.setattr(PriceBook, "rates", watched)
    lanes = factory(clock)
    lanes.of(provider, "slow")
    assert free == [True]


def test_what_was_read_before_is_not_read_again_when_the_lane_is_built(clock: VirtualClock) -> None:
    """A lane that is built under a lock of the caller's, as that of the fallback model, reads nothing."""
    provider = Scripted(clock)
    seen: list[str] = []

    def read(label: str, _: Kind) -> Calibration:
        seen.append(label)
        return Calibration()

    lanes = factory(clock, read)
    lanes.read(provider, "spare")
    seen.clear()
    lanes.of(provider, "spare")
    assert seen == []


def test_all_lanes_of_a_model_share_its_breaker_and_its_health(clock: VirtualClock) -> None:
    """A model that fails in one lane has failed in all of them."""
    lanes = factory(clock, packing=True)
    lane = lanes.of(Scripted(clock), "m")
    packed = lane.packed
    assert packed is not None
    assert (packed.breaker, packed.provider_health) == (lane.breaker, lane.provider_health)
    assert lanes.of(lane.provider, "m") is lane
