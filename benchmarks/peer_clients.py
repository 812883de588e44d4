"""Sends a list of prompts with other libraries, 64 at a time, with five tries if that can be configured.

Each function returns the answers in order, with ``None`` for lost ones.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.harness import IN_FLIGHT as WIDE
from benchmarks.harness import KEY, MODELS, TRIES, raw
from benchmarks.harness import chat as _chat

MODEL = MODELS["openai"]

Answers = list[str | None]


# -- this library --------------------------------------------------------------------------------------------


def smartbatch(url: str, texts: Sequence[str]) -> Answers:
    """``client.generate`` with default settings."""
    from smartbatch import BatchingClient

    options = {"api_key": KEY, "base_url": url}
    with BatchingClient(f"openai:{MODEL}", provider_options=options, parallelism=WIDE) as client:
        return [result.text if result.ok else None for result in client.map(texts, strategy="individual")]


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


def sdk_asyncio(url: str, texts: Sequence[str]) -> Answers:
    """OpenAI's asyncio client with a semaphore."""
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


# -- other libraries, if installed ---------------------------------------------------------------------------


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
"""Other libraries, with the module required by each."""
