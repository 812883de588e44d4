"""CPU a request of every provider over a raw ``urllib3`` loop for its API, at 50 ms and with a fast server.

    python -m benchmarks.hot_path

Rounds alternate, and the median of the rounds' ratios counts; the server, :mod:`benchmarks.quick_server`,
runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import urllib3
from attrs import frozen

from benchmarks.server import serving
from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider

KEY = "benchmark"
MOST = 1.25  # times the CPU of the raw loop


@frozen
class Api:
    """How one API is called by hand, and by the client.

    Attributes:
        path: below the server's address.
        headers: that carry the key.
        body: of a prompt.
        read: takes the text out of an answer.
        provider: made with the server's address.
    """

    name: str
    model: str
    path: str
    headers: dict[str, str]
    body: Callable[[str], dict[str, Any]]
    read: Callable[[Any], Any]
    provider: Callable[[str], Provider]


def _chat(text: str) -> dict[str, Any]:
    return {"model": "gpt-5-mini", "messages": [{"role": "user", "content": text}]}


def _message(text: str) -> dict[str, Any]:
    return {**_chat(text), "model": "claude-haiku-4-5", "max_tokens": 4096}


APIS = (
    Api(
        "openai",
        "gpt-5-mini",
        "/v1/chat/completions",
        {"Authorization": f"Bearer {KEY}"},
        _chat,
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda url: OpenAIProvider(KEY, f"{url}/v1"),
    ),
    Api(
        "anthropic",
        "claude-haiku-4-5",
        "/v1/messages",
        {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
        _message,
        lambda answer: answer["content"][0]["text"],
        lambda url: AnthropicProvider(KEY, url),
    ),
    Api(
        "gemini",
        "gemini-2.5-flash",
        "/v1/models/gemini-2.5-flash:generateContent",
        {"x-goog-api-key": KEY},
        lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
        lambda answer: answer["candidates"][0]["content"]["parts"][0]["text"],
        lambda url: GeminiProvider(KEY, url),
    ),
    Api(
        "embeddings",
        "text-embedding-3-small",
        "/v1/embeddings",
        {"Authorization": f"Bearer {KEY}"},
        lambda text: {"model": "text-embedding-3-small", "input": text},
        lambda answer: tuple(answer["data"][0]["embedding"][:2]),
        lambda url: OpenAIProvider(KEY, f"{url}/v1"),
    ),
)


def raw(api: Api, url: str, texts: list[str], in_flight: int) -> list[Any]:
    """The loop a user writes first: a pool, a thread pool, JSON in and out."""
    pool = urllib3.PoolManager(maxsize=in_flight, block=True, retries=False)
    headers = {**api.headers, "Content-Type": "application/json"}
    address = url + api.path

    def ask(text: str) -> Any:
        response = pool.request("POST", address, body=json.dumps(api.body(text)), headers=headers)
        return api.read(json.loads(response.data))

    with ThreadPoolExecutor(in_flight) as executor:
        answers = list(executor.map(ask, texts))
    pool.clear()
    return answers


def ours(api: Api, url: str, texts: list[str], in_flight: int) -> list[Any]:
    """The same through the client; each text is a call of its own."""
    with BatchingClient(api.model, provider=api.provider(url), parallelism=in_flight) as client:
        if api.name == "embeddings":
            vectors = client.embed(texts, strategy="individual").vectors
            return [(vector[0], vector[1]) for vector in vectors if vector is not None]
        return list(client.generate(texts, strategy="individual").texts)


def measure(send: Callable[..., list[Any]], api: Api, url: str, count: int, in_flight: int, mark: str) -> Any:
    """Return CPU and wall seconds of one round of this process."""
    texts = [f"{mark} {number}: how many apples are left in the basket?" for number in range(count)]
    cpu, wall = time.process_time(), time.perf_counter()
    answers = send(api, url, texts, in_flight)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    if None in answers or len(answers) != count or (api.name != "embeddings" and len(set(answers)) != count):
        raise AssertionError("an answer is missing or doubled")
    return spent


def compare(targets: Targets, api: Api, rounds: int, count: int, latency: float, in_flight: int = 64) -> None:
    """One API, ours and raw in turn."""
    ratios, cpus = [], []
    with serving("benchmarks.quick_server", "--latency", str(latency)) as base_url:
        once = partial(measure, api=api, url=base_url.removesuffix("/v1"), in_flight=in_flight)
        for send in (raw, ours):
            once(send, count=300, mark=f"warm {send.__name__}")
        for number in range(rounds):
            theirs = once(raw, count=count, mark=f"raw {number}")
            mine = once(ours, count=count, mark=f"own {number}")
            ratios.append((mine[0] / theirs[0], mine[1] / theirs[1]))
            cpus.append((theirs[0] / count, mine[0] / count))
    cpu, wall = (statistics.median(each) for each in zip(*ratios, strict=True))
    theirs, mine = (1e6 * statistics.median(each) for each in zip(*cpus, strict=True))
    title = f"{api.name}, {count:,} requests at {1000 * latency:g} ms, {in_flight} in flight"
    print(f"{title:<58} CPU {cpu:.2f} ({theirs:.0f}, {mine:.0f} µs), wall {wall:.2f}", end="   ")
    print(f"({targets.at_most(cpu, MOST)})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--api", help="only this one")
    parser.add_argument("--only", choices=("busy", "fast"), help="only with a latency of 50 or of 2 ms")
    parser.add_argument("--requests", type=int, default=20_000, help="of a round with the fast server")
    options = parser.parse_args()
    targets = Targets()
    for api in APIS:
        if options.api not in (None, api.name):
            continue
        if options.only != "fast":
            compare(targets, api, options.rounds, 2_000, 0.05)
        if options.only != "busy":
            compare(targets, api, options.rounds, options.requests, 0.002)
    targets.exit()


if __name__ == "__main__":
    main()
