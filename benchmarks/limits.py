"""How well a limit is filled, over real HTTP against an enforcing server.

    python -m benchmarks.limits

*Used* is the share of the rate: of the requests that the server would have allowed in the time the run took,
the burst at the start left out of both; *refused* is the share of calls answered with 429. Nothing may be
lost.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from urllib.request import urlopen

from attrs import frozen

from benchmarks.server import emulator
from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider


def summary(base_url: str) -> dict[str, Any]:
    with urlopen(base_url.removesuffix("/v1") + "/_ledger") as answer:
        report: dict[str, Any] = json.load(answer)
    return report


def provider_of(name: str, base_url: str) -> tuple[str, Provider]:
    """Return a model's name and the adapter that speaks its API to the emulator."""
    root = base_url.removesuffix("/v1")
    if name == "anthropic":
        return "claude-haiku-5-5", AnthropicProvider("benchmark", root)
    if name == "gemini":
        return "gemini-3.8-flash", GeminiProvider("benchmark", root)
    return "gpt-5-mini", OpenAIProvider("benchmark", base_url)


def run(
    count: int, server: list[str], *, api: str = "openai", max_tokens: int | None = None, **settings: Any
) -> tuple[int, float, dict[str, Any]]:
    """Send ``count`` requests; return how many were lost, the wall seconds and the server's summary."""
    with emulator("--latency", "0.05", "--latency-sigma", "0.3", *server) as base_url:
        model, provider = provider_of(api, base_url)
        with BatchingClient(model, provider=provider, parallelism=64, **settings) as client:
            prompts = (f"question {number} of {server} {settings}" for number in range(count))
            results = client.generate(prompts, max_tokens=max_tokens)
        return results.failed, results.wall, summary(base_url)


@frozen
class Wanted:
    """Targets, %: the share used at least, and refused at most."""

    used: float
    refused: float


def filled(
    targets: Targets,
    title: str,
    server: list[str],
    *,
    burst: int,
    wanted: Wanted | None,
    rate: int = 10,
    **settings: Any,
) -> None:
    """Fill so many requests a second for a minute or more behind the burst, and print how well."""
    count = max(900, burst + 600) if rate == 10 else 75 * rate
    lost, wall, report = run(count, server, **settings)
    calls = report["received"]
    used, refused = 100 * (count - burst) / (rate * wall), 100 * (calls - count) / calls
    print(f"{title:<55} lost {lost}  used {used:5.1f} %  refused {refused:4.2f} %  in {wall:.1f} s")
    if wanted is not None:
        print(f"{'':<55} ({targets.at_least(used, wanted.used)}, {targets.at_most(refused, wanted.refused)})")
    targets.at_most(lost, 0)


def main() -> None:
    targets = Targets()
    fill = partial(filled, targets)
    well, by_second = Wanted(used=97, refused=1), Wanted(used=95, refused=2)
    fill("600 a minute, told, full bucket", ["--rpm", "600"], burst=600, wanted=well, max_rpm=600)
    second = ["--rpm", "600", "--enforce", "second"]
    fill("10 a second, no burst, told 600 a minute", second, burst=0, wanted=by_second, max_rpm=600)
    fill("10 a second, no Retry-After", [*second, "--no-retry-after"], burst=0, wanted=by_second, max_rpm=600)
    fill("600 a minute, not told", ["--rpm", "600", "--no-limit-headers"], burst=600, wanted=None)
    for api in ("openai", "anthropic", "gemini"):
        title = f"600 a minute, learned from {api}'s answers"
        fill(title, ["--rpm", "600"], burst=600, wanted=well, api=api)
    first, twenty = Wanted(used=98, refused=0.5), ["--rpm", "1200", "--enforce", "second"]
    for api in ("openai", "anthropic", "gemini"):
        title = f"20 a second, no burst, learned from {api}'s answers"
        fill(title, twenty, burst=0, wanted=first, rate=20, api=api)
    fill("20 a second, no burst, told", twenty, burst=0, wanted=first, rate=20, max_rpm=1200)
    silent = [*twenty, "--no-limit-headers"]
    fill("20 a second, no burst, not told", silent, burst=0, wanted=first, rate=20)
    tokens = ["--tpm", "60000"]  # each call is charged its output cap: 600 a minute again
    fill("60,000 tokens a minute, learned from headers", tokens, burst=600, wanted=well, max_tokens=100)
    targets.exit()


if __name__ == "__main__":
    main()
