"""Lines that type checkers must reject, each marked ``# wrong``; never run."""

from __future__ import annotations

import smartbatch
from smartbatch import BatchingClient, BatchingConfig, Image
from smartbatch.testing import emulator


class City:
    name: str


def misspelt_names(client: BatchingClient, prompts: list[str]) -> None:
    smartbatch.generate(prompts, model="sim:demo", max_tokns=4)  # wrong
    smartbatch.generate(prompts, model="sim:demo", paralelism=4)  # wrong
    smartbatch.embed(prompts, model="sim:demo", paralelism=4)  # wrong
    smartbatch.embed(prompts, model="sim:demo", system="Be brief.")  # wrong
    client.submit("x", max_tokns=4)  # wrong
    client.submit_urgent("x", max_tokns=4)  # wrong
    client.submit_background("x", max_tokns=4)  # wrong
    client.submit_embedding("x", max_tokens=4)  # wrong
    client.stream("x", max_tokns=4)  # wrong
    client.map(prompts, max_tokns=4)  # wrong
    client.map(prompts, templat="{text}")  # wrong
    client.as_completed(prompts, max_tokns=4)  # wrong
    client.generate(prompts, dedline="2h")  # wrong
    client.embed(prompts, dimension=3)  # wrong
    client.plan(prompts, dedline="2h")  # wrong
    client.forecast(prompts, dedline="2h")  # wrong
    client.submit_batch(prompts, metdata={})  # wrong
    client.submit_and_wait(prompts, dedline="2h")  # wrong
    client.generate(prompts, parallelism=4)  # wrong
    BatchingClient("sim:demo", paralelism=4)  # wrong
    BatchingConfig(paralelism=4)  # wrong
    BatchingConfig.load(paralelism=4)  # wrong
    client.generate(prompts).retry_failed(max_token=90)  # wrong
    client.generate(prompts).retry_failed(also="cut")  # wrong
    emulator(latncy=0.1)  # wrong
    emulator().configure(latncy=0.1)  # wrong


def misspelt_words(client: BatchingClient, prompts: list[str]) -> None:
    smartbatch.generate(prompts, model="sim:demo", strategy="individul")  # wrong
    client.generate(prompts, strategy="individul")  # wrong
    client.map(prompts, prefer="sped")  # wrong
    client.map(prompts, reasoning_effort="hgh")  # wrong
    client.map(prompts, on_error="rase")  # wrong
    client.submit("x", priority="urgnt")  # wrong
    client.submit_batch(prompts, batch_fallback="individul")  # wrong
    BatchingClient("sim:demo", strategy="individul")  # wrong
    BatchingConfig(queue_full="blok")  # wrong


def wrong_types(client: BatchingClient, prompts: list[str]) -> None:
    client.submit(["What is it?", 3])  # wrong
    Image("cat.png", file="file-1")  # wrong
    Image("cat.png", name=3)  # wrong
    client.submit("x", max_tokens="4")  # wrong
    client.submit("x", deduplicate="no")  # wrong
    client.generate(prompts, template=4)  # wrong
    client.submit("x", template="{text}")  # wrong
    BatchingClient("sim:demo", parallelism="4")  # wrong
    name: str = client.submit("x", schema=City).result().parsed  # wrong
    size: int = client.generate(prompts, schema=City)[0].parsed  # wrong
    print(name, size, client.submit("x", schema=City).result().parsed.name)  # wrong
    print(smartbatch.embed(prompts, model="sim:demo").vectors.shpe)  # wrong
