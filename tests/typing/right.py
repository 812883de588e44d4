"""Code that type checkers must accept, with the types they must infer; never run."""

from __future__ import annotations

from array import array
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, assert_type

import polars
from attrs import frozen

import smartbatch
from smartbatch import (
    Audio,
    BatchingClient,
    BatchingConfig,
    Document,
    Image,
    Job,
    ListParams,
    Message,
    Priority,
    Request,
    Result,
    ResultFuture,
    ResultList,
)
from smartbatch.testing import emulator


@frozen
class City:
    name: str


class Entry(TypedDict):
    word: str


CITY = {"type": "object", "properties": {"name": {"type": "string"}}}


def of_a_script(prompts: list[str]) -> None:
    plain = smartbatch.generate(prompts, model="sim:demo", system="Be brief.", parallelism=8, deadline="2h")
    assert_type(plain, ResultList[Any])
    cities = smartbatch.generate(prompts, model="sim:demo", schema=City, strategy="auto", budget="5 USD")
    assert_type(cities[0].parsed, City | None)
    assert_type(cities.retry_failed(also="truncated", max_tokens=90, deadline="1h"), ResultList[City])
    assert_type(cities.failures, ResultList[City])
    rows = [{"photo": "a.png"}]
    smartbatch.generate(
        rows, model="sim:demo", template="{photo}", files={"photo": "image"}, files_root=Path()
    )
    assert_type(smartbatch.generate(prompts, model="sim:demo", schema=CITY)[0].parsed, Any | None)
    vectors = smartbatch.embed(prompts, model="sim:demo", task_type="RETRIEVAL_DOCUMENT", max_rpm=60)
    assert_type(vectors[0].embedding, array[float] | None)
    if isinstance(vectors.vectors, list):
        assert_type(vectors.vectors, list[array[float] | None])
    else:
        print(vectors.vectors.shape)


def of_a_client(client: BatchingClient, prompts: list[str]) -> None:
    assert_type(client.submit("x", priority="high", max_wait="2s"), ResultFuture[Any])
    assert_type(client.submit("x", schema=City).result().parsed, City | None)
    assert_type(client.submit("x", schema=City).outcome, Result[City] | None)
    assert_type(client.submit("x", schema=list[City]).result().parsed, list[City] | None)
    client.submit("x", schema=Literal["a", "b"])
    client.submit("x", schema=City | None)
    client.submit("x", schema=Entry)
    client.submit(["What is it?", Image("cat.png")])
    client.submit([{"role": "user", "content": ["What is it?", Image(b"GIF89a")]}])
    client.submit([Message("user", ("What is it?", Image(file_id="file-1"), {"type": "text", "text": "a"}))])
    client.generate(
        [["What is it?", Image(Path("cat.png"))], ["And this?", Document("a.pdf"), Audio("b.wav")]]
    )
    assert_type(client.submit_urgent("x", schema=City, timeout=timedelta(seconds=9)), ResultFuture[City])
    assert_type(client.submit_background("x", schema=City, priority=Priority.LOW), ResultFuture[City])
    assert_type(client.submit(Request("x"), schema=None, stop="."), ResultFuture[Any])
    for result in client.map(prompts, schema=City, prefer="cost", on_error="raise"):
        assert_type(result, Result[City])
    for result in client.as_completed(prompts, schema=City, ordered=True):
        assert_type(result.parsed, City | None)
    assert_type(client.generate(prompts, schema=City, time_value=1, progress=True), ResultList[City])
    assert_type(smartbatch.list_jobs(unfinished=True), list[Job])
    assert_type(client.submit_and_wait(prompts, schema=City, timeout="1h"), ResultList[City])
    assert_type(client.submit_batch(prompts, schema=City, strategy="batch", key="k"), Job)
    assert_type(client.submit_embedding("x", purpose="search"), ResultFuture[Any])
    client.embed(prompts, deadline=60, purpose="search")
    client.plan(prompts, schema=CITY, budget=0.5).explain()
    assert_type(client.plan(prompts, schema=City).run(), ResultList[City])
    preview = client.preview(prompts, sample=30, sample_seed=7, schema=City, deadline="2h")
    assert_type(preview.results, ResultList[City])
    assert_type(preview.run(budget=2), ResultList[City])
    client.stream("x", temperature=0)
    assert_type(client.stream("x", schema=City).result.parsed, City | None)


def of_tables(client: BatchingClient, frame: polars.DataFrame, rows: list[dict[str, str]]) -> None:
    assert_type(client.generate(frame, template="{text}", schema=City), ResultList[City])
    assert_type(smartbatch.generate(rows, column="text", model="sim:demo").as_dicts(), list[dict[str, Any]])
    smartbatch.embed(frame, column="text", model="sim:demo")
    client.submit_batch(rows, template="{text}")
    assert_type(client.generate(frame, column="text").to_polars(), polars.DataFrame)


def of_settings() -> None:
    config = BatchingConfig.load("settings.yaml", batch_window="200ms", prefer_individual_for=["chat"])
    BatchingClient("sim:demo", config, retries=5, temperature=0, schema=City)
    BatchingConfig(strategy="hybrid", batch_window="200ms", prefer_individual_for=["chat"], budget="5 USD")


def of_tests() -> None:
    with emulator(latency=0.01, faults={"500": 0.1}, ledger_file="ledger.jsonl") as served:
        served.configure(batch_turnaround=2, keys=["a"])


def first(results: ResultList) -> Result:
    """A plain name stands for results of any schema."""
    return results[0]


def of_a_wrapper(client: BatchingClient, prompts: list[str], **params: Unpack[ListParams[City]]) -> None:
    assert_type(client.generate(prompts, **params), ResultList[City])
    first(client.generate(prompts, schema=City))
