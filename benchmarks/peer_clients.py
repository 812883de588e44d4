"""How the same work is done with what people use: each peer asks a list of prompts, 64 at a time.

Every peer is given the retries it has (five tries where it lets one say so) and nothing else; the raw loop is
what a careful user writes. A peer returns the answers in order, with ``None`` for what was lost.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3

KEY = "benchmark"
MODEL = "gpt-5-mini"
EMBEDDING_MODEL = "text-embedding-3-small"
DIMENSIONS = 64
WIDE = 64
TRIES = 5
RETRIED = frozenset({408, 409, 429, *range(500, 600)})

Answers = list[str | None]
Vectors = list[list[float] | None]


def _chat(text: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]}


def _embedding(text: str) -> dict[str, Any]:
    return {"model": EMBEDDING_MODEL, "input": text, "dimensions": DIMENSIONS}


# -- this library --------------------------------------------------------------------------------------------


def smartbatch(url: str, texts: Sequence[str]) -> Answers:
    """``client.generate``, with its settings as they come."""
    from smartbatch import BatchingClient

    options = {"api_key": KEY, "base_url": url}
    with BatchingClient(f"openai:{MODEL}", provider_options=options, parallelism=WIDE) as client:
        return [result.text if result.ok else None for result in client.map(texts, strategy="individual")]


def smartbatch_vectors(url: str, texts: Sequence[str]) -> Vectors:
    """``client.submit_embedding`` by each thread."""
    from smartbatch import BatchingClient

    options = {"api_key": KEY, "base_url": url}
    with BatchingClient(f"openai:{EMBEDDING_MODEL}", provider_options=options, parallelism=WIDE) as client:

        def ask(text: str) -> list[float] | None:
            vector = client.submit_embedding(text, dimensions=DIMENSIONS).result().embedding
            return None if vector is None else list(vector)

        return by_threads(ask, texts)


# -- raw urllib3 ---------------------------------------------------------------------------------------------


class _Loop:
    """A pool, five tries, exponential back-off with full jitter, Retry-After obeyed."""

    def __init__(self, url: str, path: str) -> None:
        self._url = url + path
        self._pool = urllib3.PoolManager(maxsize=WIDE, block=True, retries=False)
        self._headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

    def ask(self, body: dict[str, Any]) -> Any:
        content = json.dumps(body).encode()
        for attempt in range(TRIES):
            asked: float | None = 0.0
            try:
                response = self._pool.request("POST", self._url, body=content, headers=self._headers)
                if response.status == 200:
                    return json.loads(response.data)
                asked = float(response.headers.get("Retry-After", 0)) if response.status in RETRIED else None
            except (urllib3.exceptions.HTTPError, ValueError):
                pass
            if asked is None:
                return None
            if attempt + 1 < TRIES:
                time.sleep(asked or random.uniform(0.0, min(8.0, 0.5 * 2**attempt)))
        return None


def raw(url: str, texts: Sequence[str]) -> Answers:
    """``urllib3`` and a thread pool."""
    loop = _Loop(url, "/chat/completions")

    def ask(text: str) -> str | None:
        found = loop.ask(_chat(text))
        return None if found is None else str(found["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(WIDE) as executor:
        return list(executor.map(ask, texts))


def raw_vectors(url: str, texts: Sequence[str]) -> Vectors:
    """``urllib3``, one call a text."""
    loop = _Loop(url, "/embeddings")

    def ask(text: str) -> list[float] | None:
        found = loop.ask(_embedding(text))
        return None if found is None else found["data"][0]["embedding"]

    return by_threads(ask, texts)


def by_threads(ask: Callable[[str], list[float] | None], texts: Sequence[str]) -> Vectors:
    """Have 64 threads ask one text after the other, as the workers of a web application do."""
    vectors: Vectors = [None] * len(texts)

    def work(first: int) -> None:
        for at in range(first, len(texts), WIDE):
            vectors[at] = ask(texts[at])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(WIDE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return vectors


# -- the vendor's SDK ----------------------------------------------------------------------------------------


def sdk_threads(url: str, texts: Sequence[str]) -> Answers:
    """OpenAI's client and its own retries, in a thread pool."""
    import openai

    client = openai.OpenAI(api_key=KEY, base_url=url, max_retries=TRIES - 1)

    def ask(text: str) -> str | None:
        try:
            answer: Any = client.chat.completions.create(**_chat(text))
        except openai.OpenAIError:
            return None
        return str(answer.choices[0].message.content)

    with ThreadPoolExecutor(WIDE) as executor:
        return list(executor.map(ask, texts))


def sdk_vectors(url: str, texts: Sequence[str]) -> Vectors:
    """OpenAI's client, one call a text."""
    import openai

    client = openai.OpenAI(api_key=KEY, base_url=url, max_retries=TRIES - 1)

    def ask(text: str) -> list[float] | None:
        try:
            found = client.embeddings.create(**_embedding(text), encoding_format="float")
        except openai.OpenAIError:
            return None
        return found.data[0].embedding

    return by_threads(ask, texts)


def sdk_asyncio(url: str, texts: Sequence[str]) -> Answers:
    """OpenAI's asyncio client behind a semaphore."""
    import openai

    async def all_of_them() -> Answers:
        gate = asyncio.Semaphore(WIDE)
        async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=TRIES - 1) as client:

            async def ask(text: str) -> str | None:
                async with gate:
                    try:
                        answer: Any = await client.chat.completions.create(**_chat(text))
                    except openai.OpenAIError:
                        return None
                return str(answer.choices[0].message.content)

            return list(await asyncio.gather(*map(ask, texts)))

    return asyncio.run(all_of_them())


# -- libraries above it, where they are installed ------------------------------------------------------------


def litellm(url: str, texts: Sequence[str]) -> Answers:
    """``litellm.completion`` in a thread pool, with its retries."""
    library: Any = importlib.import_module("litellm")

    def ask(text: str) -> str | None:
        asked = {**_chat(text), "model": f"openai/{MODEL}"}
        try:
            answer = library.completion(**asked, api_base=url, api_key=KEY, num_retries=TRIES - 1)
        except Exception:
            return None
        content: str | None = answer.choices[0].message.content
        return content

    with ThreadPoolExecutor(WIDE) as executor:
        return list(executor.map(ask, texts))


def langchain(url: str, texts: Sequence[str]) -> Answers:
    """``ChatOpenAI.batch`` with ``max_concurrency``."""
    library: Any = importlib.import_module("langchain_openai")
    model = library.ChatOpenAI(model=MODEL, api_key=KEY, base_url=url, max_retries=TRIES - 1)
    answers = model.batch(list(texts), {"max_concurrency": WIDE}, return_exceptions=True)
    return [None if isinstance(answer, Exception) else answer.content for answer in answers]


def async_batch_llm(url: str, texts: Sequence[str]) -> Answers:
    """``process_prompts`` over OpenAI's asyncio client."""
    library: Any = importlib.import_module("async_batch_llm")
    openai: Any = importlib.import_module("openai")

    async def all_of_them() -> Answers:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as client:

            async def ask(prompt: str, *, attempt: int, timeout: float | None, state: Any) -> Any:
                del attempt, state
                answer = await client.chat.completions.create(**_chat(prompt), timeout=timeout)
                return library.CallOutcome(answer.choices[0].message.content)

            strategy = library.CallableStrategy(
                ask, identity=library.ArtifactIdentity(provider="openai", model=MODEL)
            )
            batch = await library.process_prompts(
                strategy, [(str(at), text) for at, text in enumerate(texts)], concurrency=WIDE
            )
        found = {each.item_id: each.output if each.success else None for each in batch.results}
        return [found.get(str(at)) for at in range(len(texts))]

    return asyncio.run(all_of_them())


LISTS: dict[str, tuple[str | None, Callable[[str, Sequence[str]], Answers]]] = {
    "smartbatch": (None, smartbatch),
    "urllib3, threads": (None, raw),
    "openai, threads": ("openai", sdk_threads),
    "openai, asyncio": ("openai", sdk_asyncio),
    "litellm, threads": ("litellm", litellm),
    "langchain, batch": ("langchain_openai", langchain),
    "async-batch-llm": ("async_batch_llm", async_batch_llm),
}
"""The peers, with the module that has to be installed for each."""
LONE_VECTORS: dict[str, tuple[str | None, Callable[[str, Sequence[str]], Vectors]]] = {
    "smartbatch": (None, smartbatch_vectors),
    "urllib3, threads": (None, raw_vectors),
    "openai, threads": ("openai", sdk_vectors),
}
"""Those that are asked for one vector by each of 64 threads."""
