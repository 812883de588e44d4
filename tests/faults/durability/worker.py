"""A user's process: submit a job by its key, wait, take note of every answer, end."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, fields

from smartbatch import BatchingClient, Job, Request, Result, StoreError
from smartbatch._clock import RealClock
from smartbatch.cli.main import main
from smartbatch.jobs.wiring import StepLimits
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.hosts import HOSTS
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.providers.price_book import PriceBook
from tests.faults.durability.broken_rules import break_rule
from tests.faults.durability.worker_task import AGAIN, HOST_MODELS, MODELS, WorkerTask, model_of, prompt_of

KEY = "durability"


def warm_up() -> None:
    for module in ("smartbatch.jobs.store.sqlite", "smartbatch.jobs.store.postgres", "smartbatch.cli.run"):
        importlib.import_module(module)
    for name in MODELS:
        provider = provider_of(name, "http://127.0.0.1:9")
        provider.open(1)
        provider.batches()
        for thread in threading.enumerate():  # the import of its SDK
            if thread is not threading.main_thread():
                thread.join()
        PriceBook({}).rates(name, MODELS[name], wall=time.time(), processing="batch")
        provider.close()


def run_worker(task: WorkerTask) -> None:
    began = time.monotonic()
    scale_times(task)
    break_rule(task.mutant)
    _set_environment(task.url)
    if task.clock is not None:
        _follow_clock(Path(task.clock))
    try:
        _work(task, began)
    except (StoreError, NotesLost) as error:
        if not task.may_fail:
            raise
        _log(f"again: {error}")
        raise SystemExit(AGAIN) from error


def _work(task: WorkerTask, began: float) -> None:
    if task.reading in ("command", "rows"):
        _command(task, began)
        return
    client = client_of(task)
    client.start()
    notes = _Notes(Path(task.out))
    notes.write({"up": time.monotonic() - began})
    if task.reading == "carry":
        _carry(client, task)
        client.stop()
        return
    requests = [Request(prompt_of(task.key, n), id=f"q{n}") for n in range(task.size)]
    if task.reading in ("list", "singles"):
        for result in _in_real_time(client, task, requests):
            notes.take(result)
        client.stop()
        return
    job = client.submit_batch(requests, key=task.key, max_tokens=50)
    if task.reading == "none":
        job.wait()
    else:
        for result in _answers(job, task.reading):
            notes.take(result)
    client.stop()


def _in_real_time(client: BatchingClient, task: WorkerTask, requests: list[Request]) -> Iterator[Result]:
    if task.reading == "list":
        return iter(client.as_completed(requests, key=task.key, strategy="individual", max_tokens=50))
    futures = [client.submit(request, durable=True, max_tokens=50) for request in requests]
    return (future.result() for future in futures)


def _command(task: WorkerTask, began: float) -> None:
    os.environ["SMARTBATCH_BATCH_SETTLE"] = str(task.settle)
    if task.capped:
        os.environ["SMARTBATCH_MAX_PARALLEL_INDIVIDUAL"] = str(task.parallelism)
    rows = Path(f"{task.out}.txt")
    try:
        rows.write_text("".join(f"{prompt_of(task.key, n)}\n" for n in range(task.size)))
    except OSError as error:
        raise NotesLost(str(error)) from error
    _Notes(Path(task.out)).write({"up": time.monotonic() - began})
    options = {
        "--model": f"{task.provider}:{model_of(task.provider)}",
        "--store": task.store,
        "-o": task.output,
        "--max-tokens": 50,
    }
    if task.reading == "rows":
        options |= {"--strategy": "individual", "--parallelism": task.parallelism}
    else:
        options |= {
            "--strategy": "batch",
            "--batch-max-requests": task.max_requests,
            "--batch-poll-interval": task.poll,
        }
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["run", str(rows), *(str(word) for pair in options.items() for word in pair)])
    if code == 0:
        return
    _log(f"exit {code}: {said.getvalue()}")
    if not task.may_fail:
        raise SystemExit(1)
    if "remove the file" in said.getvalue():  # as the user is told: it holds other things by now
        with contextlib.suppress(FileNotFoundError):
            os.unlink(task.output)
    raise SystemExit(AGAIN)


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # the log may be full as well
        os.write(2, f"{text}\n".encode())


def _follow_clock(place: Path) -> None:
    with place.open("rb") as file:
        ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    RealClock.wall = staticmethod(lambda: time.time() + struct.unpack("d", ahead)[0])


def _carry(client: BatchingClient, task: WorkerTask) -> None:
    for number in range(task.jobs):
        key = f"{task.key}.{number}"
        client.submit_batch([prompt_of(key, n) for n in range(task.size)], key=key, max_tokens=50)
    while True:
        jobs = client.jobs()
        if len(jobs) >= task.until and all(job.status().state == "done" for job in jobs):
            return
        time.sleep(0.1)


def scale_times(task: WorkerTask) -> None:
    supervision: Any = importlib.import_module("smartbatch.jobs.supervision")
    send_within: Any = fields(StepLimits).send_within.default
    if task.lease is not None:
        share = task.lease / supervision.LEASE_SECONDS
        send_within *= share
        supervision.LEASE_SECONDS *= share
        supervision.RENEW_SECONDS *= share
        supervision.CLAIM_SECONDS *= share
    usual = StepLimits.of
    limits: Any = StepLimits
    limits.of = lambda config: evolve(
        usual(config),
        visibility=task.visibility,
        reread_pause=0.2,
        reread_time=0.2,
        longest_pause=1.0,
        # else the orphans of all earlier jobs, watched every second, take the time of the present one
        orphan_watch=max(10.0, 3 * task.settle),
        send_within=send_within,
    )


def client_of(task: WorkerTask) -> BatchingClient:
    return BatchingClient(
        model_of(task.provider),
        provider=provider_of(task.provider, task.url),
        store=task.store,
        batch_poll_interval=task.poll,
        batch_settle=task.settle,
        batch_max_requests=task.max_requests,
        batch_retention=0,  # what a job left at the provider is deleted while its answers are still read
        parallelism=task.parallelism,
        max_parallel_individual=task.parallelism if task.capped else None,
    )


def provider_of(name: str, url: str) -> Provider:
    if name == "anthropic":
        return AnthropicProvider(KEY, url)
    if name == "gemini":
        return GeminiProvider(KEY, url)
    if name in HOST_MODELS:
        return OpenAIProvider(KEY, url, host=HOSTS[name])
    return OpenAIProvider(KEY, f"{url}/v1")


def _set_environment(url: str) -> None:
    os.environ.update(
        OPENAI_API_KEY=KEY,
        OPENAI_BASE_URL=f"{url}/v1",
        ANTHROPIC_API_KEY=KEY,
        ANTHROPIC_BASE_URL=url,
        GEMINI_API_KEY=KEY,
        GOOGLE_GEMINI_BASE_URL=url,
    )


def _answers(job: Job, reading: str) -> Iterator[Result]:
    if reading == "futures":
        return (future.result() for future in job.futures())
    return job.results(ordered=reading == "ordered")


class NotesLost(Exception):
    pass


class _Notes:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._known: dict[str, str] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            if "id" in row:
                self._known[row["id"]] = row["text"]
        self._handed_out: set[str] = set()

    def take(self, result: Result) -> None:
        name = str(result.request_id)
        if name in self._handed_out:
            self.write({"twice": name})
        self._handed_out.add(name)
        text = result.text if result.ok else f"{result.error}"
        if name not in self._known:
            self.write({"id": name, "text": text})
        elif self._known[name] != text:
            self.write({"changed": name, "from": self._known[name], "to": text})

    def write(self, row: dict[str, object]) -> None:
        line, end = json.dumps(row).encode() + b"\n", os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) == len(line):
                return
        except OSError as error:
            raise NotesLost(str(error)) from error
        os.ftruncate(self._file, end)
        raise NotesLost("only a part of a note could be written")
