"""Checks budgets under random combinations of durable submits, caches, lost answers and successive clients.

    python -m benchmarks.money_search --seconds 600 --seed 1
    python -m benchmarks.money_search --only 1234

Each seed determines one combination, which runs against the emulator. The emulator's ledger has the billed
amounts. For every client, the amount billed while it runs must not exceed its budget. The amount must be at
least what the client counts as spent, and at most that plus its reservations for lost answers. No client
may find a pause at its first request, unless a call with its key was refused.

Nothing depends on the speed of the machine. A seed that violates an invariant is printed with its
combination. The clients of a process share their counts of tokens per model, so a seed may fail only after
the seeds before it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from smartbatch import BatchingClient, Price, SmartbatchError
from smartbatch.emulator import Emulator
from smartbatch.events import Event, RequestSubmitted
from smartbatch.testing import emulator

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
PRICE = 10.0
"""USD per million input or output tokens, so that the ledger's tokens can be converted to money."""
TINY = 1e-9
TEXTS = ("question", "a long question " * 20, "質問です " * 10, "0f3a-9c " * 15)
"""Prefixes of prompts whose tokens are estimated with different errors."""
FAULTS = ("empty", "reset", "truncated", "bad_json", "html_200", "500", "stream_end", "429")
WAYS = ("submit", "durable", "durable", "keyed", "list", "stream", "closed")


@frozen
class Combination:
    """A combination drawn by a seed; times in seconds, money in USD."""

    seed: int
    provider: str
    budget: float
    max_tokens: int
    clients: int
    ways: tuple[str, ...]
    requests: int
    parallelism: int
    faults: dict[str, float] = field(factory=dict)
    cache: bool = False
    same_key: bool = True
    pause: float = 1.0
    texts: tuple[str, ...] = ("question",)

    @classmethod
    def of(cls, seed: int) -> Combination:
        rng = random.Random(seed)
        count = rng.choice((0, 1, 1, 2, 3))
        return cls(
            seed,
            provider=rng.choice(sorted(MODELS)),
            budget=rng.choice((0.0005, 0.0005, 0.002, 0.01, 0.05)),
            max_tokens=rng.choice((1, 16, 40, 200)),
            clients=rng.choice((1, 2, 3)),
            ways=tuple(rng.sample(WAYS, k=rng.choice((1, 2, 3)))),
            requests=rng.choice((1, 4, 12, 40)),
            parallelism=rng.choice((1, 2, 4, 16)),
            faults={fault: rng.choice((0.05, 0.1, 0.3)) for fault in rng.sample(FAULTS, k=count)},
            cache=rng.random() < 0.5,
            same_key=rng.random() < 0.7,
            pause=rng.choice((0.1, 0.1, 8.0)) if rng.random() < 0.1 else 0.1,
            texts=tuple(rng.sample(TEXTS, k=rng.choice((1, 1, 2, 4)))),
        )


def problems(drawn: Combination, place: Path) -> list[str]:
    """Run a combination and return violations."""
    found: list[str] = []
    settings: dict[str, Any] = {"faults": drawn.faults, "fault_retry_after": drawn.pause, "seed": drawn.seed}
    with emulator(latency=0.002, **settings) as emu:
        billed, refused = 0.0, Counter[str]()  # 429 responses by key
        for number in range(drawn.clients):
            key = f"sk-of-the-search-{0 if drawn.same_key else number}"
            client = _client(drawn, place, emu, key)
            pauses: list[float] = []
            client.observe(partial(_note_pause, client, pauses))
            try:
                _use(client, drawn, random.Random(f"{drawn.seed} {number}"))
            finally:
                client.stop(10.0)
            refusals = sum(call.status == 429 for call in emu.ledger.calls)
            if pauses and max(pauses) > 0 and refusals == refused.total() and not refused[key]:
                found.append(f"client {number} found a pause of {max(pauses):.1f} s")
            refused[key] += refusals - refused.total()
            now = _billed(emu)
            mine, billed = now - billed, now
            counted = client.spent, client.unconfirmed_cost
            told = f"client {number}: billed {mine:.7f}, spent {counted[0]:.7f}, unconfirmed {counted[1]:.7f}"
            if mine > drawn.budget + TINY:
                found.append(f"{told}: above its budget")
            if mine > sum(counted) + TINY:
                found.append(f"{told}: more than it counts")
            if counted[0] > mine + TINY:
                found.append(f"{told}: less than it counts")
    return found


def _client(drawn: Combination, place: Path, emu: Emulator, key: str) -> BatchingClient:
    url = emu.base_url if drawn.provider == "openai" else emu.url
    model = f"{drawn.provider}:{MODELS[drawn.provider]}"
    return BatchingClient(
        model,
        budget=drawn.budget,
        prices={model: Price(PRICE, PRICE, cached_input=PRICE, cache_write=PRICE)},
        max_tokens=drawn.max_tokens,
        parallelism=drawn.parallelism,
        store=str(place / "jobs.db"),
        cache=str(place / "cache.db") if drawn.cache else None,
        shared="off",
        strategy="individual",
        retries=2,
        retry_initial=0.01,
        breaker_pause=0.05,
        breaker_max_pause=0.1,
        outage_patience=3.0,
        call_timeout=5.0,
        provider_options={"api_key": key, "base_url": url},
    )


def _use(client: BatchingClient, drawn: Combination, rng: random.Random) -> None:
    for way in drawn.ways:
        prompts = [f"{rng.choice(drawn.texts)} {rng.randrange(60)}" for _ in range(drawn.requests)]
        for future in list(_asked(client, way, prompts)):
            with contextlib.suppress(SmartbatchError):
                future()


def _asked(client: BatchingClient, way: str, prompts: list[str]) -> Iterator[Callable[[], object]]:
    """Yield a function per answer that waits for it."""
    if way in ("submit", "durable"):
        for prompt in prompts:
            more: dict[str, Any] = {"durable": True} if way == "durable" else {}
            try:
                yield client.submit(prompt, **more).result
            except SmartbatchError:
                continue
    elif way in ("keyed", "list"):
        key = f"list {'+'.join(sorted(set(prompts)))[:80]}" if way == "keyed" else None
        yield lambda: client.generate(prompts, key=key)
    else:
        for prompt in prompts:
            yield lambda prompt=prompt: _streamed(client, prompt, whole=way == "stream")  # type: ignore[misc]


def _streamed(client: BatchingClient, prompt: str, *, whole: bool) -> None:
    with client.stream(prompt) as stream:
        for _ in stream:
            if not whole:
                return


def _billed(emu: Emulator) -> float:
    """Return the USD in the ledger once no call is in flight."""
    until = time.monotonic() + 5.0
    while any(not call.done for call in emu.ledger.calls) and time.monotonic() < until:
        time.sleep(0.005)
    return sum(call.billed for call in emu.ledger.calls) * PRICE / 1e6


def _note_pause(client: BatchingClient, pauses: list[float], event: Event) -> None:
    """Record the rest of a pause when a client gets its first request."""
    if isinstance(event, RequestSubmitted) and not pauses:
        pauses.append(max((lane.cooldown for lane in client.status.lanes), default=0.0))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long combinations are drawn")
    parser.add_argument("--seed", type=int, default=1, help="the first combination")
    parser.add_argument("--only", type=int, help="run one combination and show it")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    import_module("anthropic")  # otherwise the first call would wait for the import
    import_module("google.genai")
    seeds = [options.only] if options.only is not None else None
    end, seed, tried, broken = time.monotonic() + options.seconds, options.seed, Counter[str](), 0
    while (seeds is None and time.monotonic() < end) or seeds:
        drawn = Combination.of(seeds.pop() if seeds else seed)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            found = problems(drawn, Path(place))
        tried[drawn.provider] += 1
        seed += 1
        if found or options.only is not None:
            broken += bool(found)
            print(asdict(drawn), *found, sep="\n  ", flush=True)
    print(f"seeds {options.seed} to {seed - 1}: {dict(tried)}, {broken} with a problem")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
