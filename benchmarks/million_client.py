"""Runs the client of one large job in its own process and reports progress on standard output.

    python -m benchmarks.million_client ORDERS

Like a user's script, it submits the rows under a key and reads the results in order as they arrive. After a
kill, it is started again with the same arguments. Each line of output is an object with an event, the Unix
time, the CPU seconds of the process, and its current and peak memory in MB.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from attrs import asdict, define, frozen

from smartbatch import BatchingClient, Job, Request, Result
from smartbatch.emulator import answer_for
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.events import Event, JobProgress, ShardChanged
from smartbatch.jobs.store.sqlite import SqliteDatabase
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.types import Embedding

__all__ = ["Operations", "Orders", "counted", "memory", "prompt_of"]

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
EMBEDDER = "text-embedding-3-small"
PROMPT = 500
"""Default length of a prompt in letters: a short text to classify, with its instruction."""
READ_EVERY = GIVE_EVERY = 1_000
"""Rows between two lines of output."""
_TELLING = threading.Lock()


@frozen(kw_only=True)
class Orders:
    """The job.

    Attributes:
        url: the emulator's URL, without ``/v1``.
        store: path of the store.
        requests: number of rows.
        per_batch: maximum requests per batch.
        provider: the provider of the Batch API.
        letters: length of each prompt.
        dimensions: length of the vectors; 0 requests texts.
        poll: seconds between polls of a batch.
    """

    url: str
    store: str
    requests: int
    per_batch: int
    provider: str = "openai"
    letters: int = PROMPT
    dimensions: int = 0
    poll: float = 0.5

    def line(self) -> str:
        return json.dumps(asdict(self))


def prompt_of(number: int, letters: int = PROMPT) -> str:
    """Return the prompt of a row; all are different."""
    begin = f"Review {number}: is the customer content? "
    return begin + (f"{number * 7919 % 104729} " * letters)[: letters - len(begin)]


def memory() -> tuple[float, float]:
    """Return the current and peak memory of this process in MB.

    A child process inherits the peak that ``getrusage`` reports from its parent.
    """
    found: dict[str, float] = {}
    with open("/proc/self/status") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(rest.split()[0]) / 1024
    return found["VmRSS"], found["VmHWM"]


@define
class Operations:
    """Operations on the store.

    Attributes:
        transactions: number of transactions that wrote.
        written: rows they inserted, changed or deleted.
        reads: statements outside of transactions.
        rows: rows these returned.
    """

    transactions: int = 0
    written: int = 0
    reads: int = 0
    rows: int = 0


def counted(told: Operations) -> None:
    """Count all later operations on SQLite stores of this process in ``told``."""
    write, rows = SqliteDatabase.write, SqliteDatabase.rows

    def counting(self: SqliteDatabase, work: Callable[[Any], Any]) -> Any:
        def counted(tx: Any) -> tuple[Any, int]:
            before = tx.connection.total_changes
            return work(tx), tx.connection.total_changes - before

        done, written = write(self, counted)
        told.transactions += 1
        told.written += written
        return done

    def reading(self: SqliteDatabase, statement: str, *values: object) -> list[tuple[Any, ...]]:
        found = rows(self, statement, *values)
        told.reads += 1
        told.rows += len(found)
        return found

    SqliteDatabase.write = counting  # type: ignore[method-assign]
    SqliteDatabase.rows = reading  # type: ignore[method-assign]


def publish_event(what: str, **more: Any) -> None:
    now, peak = memory()
    figures = {"at": time.time(), "cpu": time.process_time(), "memory": round(now, 1), "peak": round(peak, 1)}
    line = {"what": what, **figures, **more}
    with _TELLING:  # several threads print lines
        print(json.dumps(line), flush=True)


def observe(event: Event) -> None:
    if isinstance(event, ShardChanged):
        publish_event("shard", state=event.after)
    elif isinstance(event, JobProgress):
        publish_event("stored", count=event.succeeded + event.failed + event.cancelled)


def provider_of(orders: Orders) -> Provider:
    if orders.provider == "anthropic":
        return AnthropicProvider("large", orders.url)
    if orders.provider == "gemini":
        return GeminiProvider("large", orders.url)
    return OpenAIProvider("large", f"{orders.url}/v1")


def right(orders: Orders, model: str, number: int, result: Result) -> bool:
    prompt = prompt_of(number, orders.letters)
    if not orders.dimensions:
        return result.text == answer_for(prompt, model)
    return bool(result.embedding == vector_for(prompt, model, orders.dimensions))


def rows(orders: Orders) -> Iterator[Request]:
    for number in range(orders.requests):
        if number % GIVE_EVERY == 0:
            publish_event("given", count=number)
        yield Request(prompt_of(number, orders.letters), id=f"row-{number}")


def read(orders: Orders, model: str, job: Job) -> int:
    """Read all results and return the number of wrong ones."""
    wrong = 0
    for number, result in enumerate(job.results()):
        wrong += result.request_id != f"row-{number}" or not right(orders, model, number, result)
        if (number + 1) % READ_EVERY == 0:
            publish_event("read", count=number + 1)
    return wrong


def work(orders: Orders) -> None:
    operations = Operations()
    counted(operations)
    model = EMBEDDER if orders.dimensions else MODELS[orders.provider]
    wanted = {"embedding": Embedding(None, orders.dimensions)} if orders.dimensions else {"max_tokens": 50}
    client = BatchingClient(
        model,
        provider=provider_of(orders),
        store=orders.store,
        batch_poll_interval=orders.poll,
        batch_max_requests=orders.per_batch,
        observers=[observe],
    )
    client.start()
    publish_event("started")
    job = client.submit_batch(rows(orders), key="large", **wanted)
    publish_event("accepted", **asdict(operations))
    began = time.perf_counter()
    job.status()
    publish_event("looked", seconds=time.perf_counter() - began)
    wrong = read(orders, model, job)
    status = job.wait()
    client.stop()
    publish_event(
        "ended",
        wrong=wrong,
        completed=status.completed,
        incidents=len(status.incidents),
        batches=len(status.shards),
        **asdict(operations),
    )


if __name__ == "__main__":
    work(Orders(**json.loads(sys.argv[1])))
