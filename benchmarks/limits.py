"""How well a limit is filled, and what an outage costs, over real HTTP against an enforcing server.

    python -m benchmarks.limits

*Used* is the share of the requests that the server would have allowed in the time the run took, the burst
at the start included; *refused* is the share of calls answered with 429. Nothing may be lost.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

from benchmarks.server import emulator
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


def filled(title: str, server: list[str], *, burst: int, **settings: Any) -> None:
    """900 requests at 600 a minute."""
    report_use(title, run(900, server, **settings), burst=burst)


def report_use(title: str, came: tuple[int, float, dict[str, Any]], *, burst: int) -> None:
    """Print how much was used of ten requests a second and a burst."""
    lost, wall, report = came
    calls = report["received"]
    print(
        f"{title:<55} lost {lost}  used {900 / (burst + 10 * wall):6.1%}  "
        f"refused {(calls - 900) / calls:5.1%}  in {wall:.1f} s"
    )


def outage(count: int, failures: int) -> None:
    """A server that answers 503 to so many calls in a row, from call 1,000 on; short pauses, to end soon."""
    lost, wall, report = run(
        count, ["--outage", f"1000:{failures}"], breaker_pause=0.02, breaker_max_pause=0.05
    )
    extra = report["received"] - count
    print(
        f"{f'{failures} consecutive 503s within {count:,} requests':<55} lost {lost}  "
        f"extra calls {extra / count:6.1%}  in {wall:.1f} s"
    )


def main() -> None:
    filled("600 a minute, told, full bucket", ["--rpm", "600"], burst=600, max_rpm=600)
    second = ["--rpm", "600", "--enforce", "second"]
    filled("10 a second, no burst, told 600 a minute", second, burst=0, max_rpm=600)
    filled("10 a second, no Retry-After", [*second, "--no-retry-after"], burst=0, max_rpm=600)
    filled("600 a minute, not told", ["--rpm", "600", "--no-limit-headers"], burst=600)
    for api in ("openai", "anthropic", "gemini"):
        filled(f"600 a minute, learned from {api}'s answers", ["--rpm", "600"], burst=600, api=api)
    tokens = ["--tpm", "60000"]  # each call is charged its output cap: 600 a minute again
    filled("60,000 tokens a minute, learned from headers", tokens, burst=600, max_tokens=100)
    outage(5_000, 500)


if __name__ == "__main__":
    main()
