"""Reported limits are filled and kept without any configuration: against simulated servers.

64 workers with endless calls, five virtual minutes, the bucket full at the start. What counts is the used
share of the tighter limit after the first minute, and the share of refused calls.
"""

from __future__ import annotations

from statistics import median

import pytest
from core.limits.limit_server import Latency, constant, lognormal
from core.limits.metered_server import Client, Server, capped_high, capped_low, fill, steady

from smartbatch.core.limits.adaptive_limit import SPACED_SHARE
from smartbatch.core.limits.quota import Quota
from tests.levels import sampled

LATENCIES = {
    "5 ms": constant(0.005),
    "50 ms": constant(0.05),
    "500 ms": constant(0.5),
    "around 400 ms": lognormal(0.4),
    "around 2 s": lognormal(2.0),
}
LIMITS = {
    "openai, requests": ("openai", {"requests": 1200, "tokens": 1_000_000}),
    "openai, tokens": ("openai", {"requests": 6000, "tokens": 250_000}),
    "anthropic, requests": ("anthropic", {"requests": 1200, "input": 1_000_000, "output": 1_000_000}),
    "anthropic, input": ("anthropic", {"requests": 4000, "input": 250_000, "output": 1_000_000}),
    "anthropic, output": ("anthropic", {"requests": 4000, "input": 1_000_000, "output": 80_000}),
    "gemini, requests": ("gemini", {"requests": 1300, "input": 1_000_000}),
    "gemini, input": ("gemini", {"requests": 4000, "input": 260_000}),
}


def run(server: Server, latency: Latency, *, seconds: float = 300.0, seed: int = 0, **how: object) -> Client:
    client = Client(Quota(), latency, work=how.pop("work", steady))  # type: ignore[arg-type]
    fill(server, client, seconds=seconds, seed=seed, **how)  # type: ignore[arg-type]
    return client


def used(server: Server, begin: float = 60.0, end: float = 300.0) -> float:
    """The used share of the tighter limit."""
    return max(meter.used(begin, end) for meter in server.meters.values())


@pytest.mark.full
@pytest.mark.parametrize("latency", sampled(LATENCIES))
@pytest.mark.parametrize("limits", sampled(LIMITS, keep=3))
def test_reported_limits_are_used_fully_and_kept(limits: str, latency: str) -> None:
    """99 % of the tighter one is used after the first minute; at most 1 % is refused, with headers 0.1 %."""
    style, minute = LIMITS[limits]
    server = Server(style, minute)
    client = run(server, LATENCIES[latency], jitter=0.005)
    assert used(server) >= 0.99
    assert client.counts.answered > 5000
    assert client.counts.share <= (0.01 if style == "gemini" else 0.001)


@pytest.mark.full
@pytest.mark.parametrize("latency", sampled(["50 ms", "around 400 ms"]))
@pytest.mark.parametrize("work", sampled([capped_high, capped_low]))
def test_a_server_that_charges_otherwise_than_expected_is_followed(work: object, latency: str) -> None:
    """Three times the cost for a high output cap, or only the prompt: 99 % used and 0.1 % refused."""
    server = Server("openai", {"requests": 6000, "tokens": 600_000 if work is capped_high else 250_000})
    client = run(server, LATENCIES[latency], work=work, jitter=0.005)
    assert used(server) >= 0.99
    assert client.counts.share <= 0.001


@pytest.mark.full
@pytest.mark.parametrize("latency", sampled(["5 ms", "500 ms"]))
def test_a_bucket_that_holds_a_second_is_filled_without_bursts(latency: str) -> None:
    """6,000 per minute and at most 100 at once: calls are spaced just below the rate."""
    server = Server("openai", {"requests": 6000}, sizes={"requests": 100})
    client = run(server, LATENCIES[latency], seconds=120.0, jitter=0.005)
    assert used(server, 1.0, 120.0) >= SPACED_SHARE - 0.001
    assert client.counts.share <= 0.001


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_burst_is_used_although_resets_are_whole_seconds(style: str) -> None:
    """6,000 per minute and 150 at once: a reset that stays the same for some calls is not a window."""
    server = Server(style, {"requests": 6000}, sizes={"requests": 150})
    client = run(server, lognormal(0.02, 0.3), seconds=5.0, jitter=0.002)
    assert client.counts.answered >= 0.97 * (150 + 5 * 100)
    assert client.counts.refused <= 6


@pytest.mark.full
@pytest.mark.parametrize(("to", "refusals"), [(2400, 2), (300, 6)])
@pytest.mark.parametrize("latency", sampled(["50 ms", "around 400 ms"]))
def test_a_limit_that_changes_on_the_way_is_filled_as_changed(to: int, refusals: int, latency: str) -> None:
    server = Server("openai", {"requests": 1200, "tokens": 1e6})
    client = run(server, LATENCIES[latency], change=(120.0, {"requests": to}))
    assert server.meters["requests"].used(150.0, 300.0) >= 0.98
    assert client.counts.refused <= refusals


@pytest.mark.full
@pytest.mark.parametrize("latency", sampled(["50 ms", "around 400 ms"]))
@pytest.mark.parametrize("limits", ["openai, requests", "openai, tokens", "anthropic, output"])
def test_two_processes_with_one_limit_fill_it_together(limits: str, latency: str) -> None:
    style, minute = LIMITS[limits]
    answered, refused = [], []
    for seed in range(5):
        server = Server(style, minute)
        stays = Client(Quota(), LATENCIES[latency])
        visits = Client(Quota(), LATENCIES[latency], begin=90.0, end=180.0)
        fill(server, stays, visits, seconds=300.0, seed=seed, jitter=0.005)
        assert used(server, 60.0, 90.0) >= 0.98
        assert used(server, 90.0, 180.0) >= 0.97
        assert used(server, 180.0, 300.0) >= 0.97
        assert stays.counts.share <= 0.01
        # its first 64 calls leave before it knows anything, and meet an empty bucket
        answered.append(visits.counts.answered)
        refused.append((visits.counts.refused - 64) / visits.counts.calls)
    assert median(answered) > 100
    assert median(refused) <= 0.02
