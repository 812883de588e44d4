"""What answers and refusals say of limits reaches the quota, whichever way a call ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scenes import Scripted

from smartbatch._clock import VirtualClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import CooldownStarted, Event
from smartbatch.realtime import shared_quota
from smartbatch.types import Answer, LimitReport

REPORT = LimitReport(requests_limit=600, requests_remaining=500)


def failure(kind: ErrorKind) -> ProviderError:
    return ProviderError("no", kind=kind, status=400, limits=REPORT)


@pytest.mark.parametrize(
    "said",
    [Answer("yes", limits=REPORT), failure(ErrorKind.CLIENT_ERROR), failure(ErrorKind.RATE_LIMIT)],
    ids=["success", "failure", "refusal"],
)
def test_every_ending_brings_its_report(
    clock: VirtualClock, client_of: Callable[..., Any], said: Answer | ProviderError
) -> None:
    """A first call is enough to know the limit."""
    provider = Scripted(clock, lambda prompt, attempt: said if attempt == 0 else "yes")
    client_of(provider).submit("one").exception(30.0)
    limits = [shared.quota.reported_limits for shared in shared_quota.known_quotas()]
    assert limits == [{"requests": 600}]


def test_calls_refused_together_are_one_pause(clock: VirtualClock, client_of: Callable[..., Any]) -> None:
    """Sixteen refusals, one event."""
    seen: list[Event] = []
    refusal = ProviderError("slow down", kind=ErrorKind.RATE_LIMIT, status=429, retry_after=2.0)
    provider = Scripted(clock, lambda prompt, attempt: refusal if attempt == 0 else "yes")
    results = client_of(provider, parallelism=16, observers=[seen.append]).generate(map(str, range(16)))
    assert results.failed == 0
    assert len([event for event in seen if isinstance(event, CooldownStarted)]) == 1
