"""Measures how fully a rate limit is used, over HTTP against a server that enforces it.

    python -m benchmarks.limits

*Used* is the share of the requests that the server would have allowed in that time, without the initial
burst; *refused* is the share of calls answered with 429.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.harness import IN_FLIGHT, emulator, ledger, provider_of
from smartbatch import BatchingClient

SECOND = ["--enforce", "second"]
CASES: dict[str, tuple[list[str], int, int, str, dict[str, Any]]] = {  # server, burst, rate, API, settings
    "600/min, configured": (["--rpm", "600"], 600, 10, "openai", {"max_rpm": 600}),
    "10/s, 600/min configured": (["--rpm", "600", *SECOND], 0, 10, "openai", {"max_rpm": 600}),
    "600/min, unknown": (["--rpm", "600", "--no-limit-headers"], 600, 10, "openai", {}),
    "600/min, reported by OpenAI": (["--rpm", "600"], 600, 10, "openai", {}),
    "600/min, reported by Anthropic": (["--rpm", "600"], 600, 10, "anthropic", {}),
    "600/min, reported by Gemini": (["--rpm", "600"], 600, 10, "gemini", {}),
    "20/s, configured": (["--rpm", "1200", *SECOND], 0, 20, "openai", {"max_rpm": 1200}),
    "20/s, reported by OpenAI": (["--rpm", "1200", *SECOND], 0, 20, "openai", {}),
    "20/s, unknown": (["--rpm", "1200", *SECOND, "--no-limit-headers"], 0, 20, "openai", {}),
    "60,000 tokens/min, reported": (["--tpm", "60000"], 600, 10, "openai", {"max_tokens": 100}),
}


def run(case: str) -> None:
    server, burst, rate, api, settings = CASES[case]
    count = max(900, burst + 600) if rate == 10 else 75 * rate
    with emulator("--latency", "0.05", "--latency-sigma", "0.3", *server) as base_url:
        model, provider = provider_of(api, base_url)
        with BatchingClient(model, provider=provider, parallelism=IN_FLIGHT, **settings) as client:
            results = client.generate(f"question {number}" for number in range(count))
        calls = ledger(base_url)["received"]
    used, refused = (count - burst) / (rate * results.wall), (calls - count) / calls
    print(
        f"{case:<32} used {used:6.1%}, refused {refused:5.2%}, lost {results.failed}, {results.wall:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append")
    for case in parser.parse_args().case or CASES:
        run(case)


if __name__ == "__main__":
    main()
