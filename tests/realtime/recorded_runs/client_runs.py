"""Runs whole clients in virtual time and records calls, refusals, seconds, cost and order.

After an intended change of behaviour, record the figures again:

    PYTHONPATH=tests:. python -m tests.realtime.recorded_runs.client_runs
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

from attrs import Factory, frozen
from core.batching.pack_models import items_of, written
from core.limits.limit_server import Admit, bucket

from benchmarks.serial_clock import SerialClock
from smartbatch import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import Event
from smartbatch.prices import Price
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.types import Answer, LimitReport, Request, Usage
from tests import figures

RECORDED = Path(__file__).with_name("recorded.txt")
GROUP = "clients"
PATIENCE = 100_000.0
INPUT, OUTPUT = 100, 10
"""Tokens per prompt and answer."""
PRICE = Price(1.0, 4.0)
FIRST = 20
"""Number of recorded pieces of an order."""
_scopes = itertools.count()


@frozen(kw_only=True)
class Run:
    """A client and its server.

    Attributes:
        rows: requests, all submitted at the same moment; ``params`` creates each.
        latency: seconds per accepted call; ``spread`` is the standard deviation of its logarithm.
        admit: whether a call is accepted at its time of arrival; others are rejected as by a rate limit.
        at_once: maximum concurrent calls of the server.
        failing: share of calls that end with a server error.
        down: seconds between which the server is unavailable.
        retry_after: seconds that refusals ask to wait.
        told: requests per minute that answers report and the server allows.
        settings: settings of the client.
    """

    rows: int = 200
    params: Callable[[int], dict[str, Any]] = lambda row: {"prompt": f"row {row}"}
    latency: float = 0.4
    spread: float = 0.0
    admit: Callable[[], Admit] = lambda: lambda at: True
    at_once: int = 1000
    failing: float = 0.0
    down: tuple[float, float] = (0.0, 0.0)
    retry_after: float | None = None
    told: int | None = None
    settings: Mapping[str, Any] = Factory(dict)


def _urgency(row: int) -> dict[str, Any]:
    names = ("low", "normal", "high", "urgent")
    return {"prompt": f"row {row}", "priority": names[row // 10]}


def _told(limit: int) -> Callable[[], Admit]:
    return lambda: bucket(limit / 10, limit / 60)


RUNS = {
    "no limit": Run(rows=400, settings={"parallelism": 32}),
    "no limit, answers of any length": Run(rows=400, spread=0.6, settings={"parallelism": 32}),
    "configured requests": Run(rows=500, settings={"parallelism": 16, "max_rpm": 300}),
    "configured tokens": Run(rows=500, settings={"parallelism": 16, "max_tpm": 20_000}),
    "reported limit": Run(admit=_told(600), told=600, settings={"parallelism": 32}),
    "unreported 20 a second": Run(rows=600, admit=lambda: bucket(1, 20.0), settings={"parallelism": 64}),
    "unreported 600 a minute": Run(rows=600, admit=lambda: bucket(60, 10.0), settings={"parallelism": 64}),
    "unreported 8 at once": Run(rows=600, at_once=8, settings={"parallelism": 64}),
    "refusals that say when": Run(
        admit=lambda: bucket(10, 5.0), retry_after=2.0, settings={"parallelism": 16}
    ),
    "4 % fail": Run(rows=600, failing=0.04, settings={"parallelism": 32}),
    "20 % fail, one retry": Run(rows=300, failing=0.2, settings={"parallelism": 32, "retries": 1}),
    "away for a minute": Run(rows=400, down=(2.0, 62.0), settings={"parallelism": 16}),
    "away from the start": Run(rows=60, down=(0.0, 45.0), settings={"parallelism": 16}),
    "priorities": Run(rows=40, params=_urgency, settings={"parallelism": 2}),
    "priorities at a limit": Run(rows=40, params=_urgency, settings={"parallelism": 8, "max_rpm": 20}),
    "identical requests": Run(params=lambda row: {"prompt": f"row {row % 25}"}, settings={"parallelism": 8}),
    "a budget for some": Run(settings={"parallelism": 8, "budget": 0.01}),
    "packed": Run(rows=120, settings={"parallelism": 8, "packing": True}),
    "packed, 20 % fail": Run(rows=120, failing=0.2, settings={"parallelism": 4, "packing": True}),
}


class _Server(Provider):
    name = "simulated"

    def __init__(self, run: Run, clock: SerialClock) -> None:
        self.scope = f"recorded-{next(_scopes)}"  # also names the model, so that nothing is known about it
        self.capabilities = Capabilities(output_limit=OUTPUT)
        self._run, self._clock, self._rng = run, clock, Random(11)
        self._admit = run.admit()
        self._going = 0
        self.asked: list[tuple[float, list[str]]] = []
        self.ends: Counter[str] = Counter()

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        run, clock = self._run, self._clock
        prompts = _prompts(request)
        self.asked.append((clock.now(), prompts))
        drawn, seconds = self._rng.random(), run.latency * self._rng.lognormvariate(0.0, run.spread)
        begin, end = run.down
        if begin <= clock.now() < end:
            raise self._ended("away", ErrorKind.SERVER_ERROR, 503)
        if self._going >= run.at_once or not self._admit(clock.now()):
            raise self._ended("refused", ErrorKind.RATE_LIMIT, 429)
        self._going += 1
        clock.sleep(seconds)
        self._going -= 1
        if drawn < run.failing:
            raise self._ended("failed", ErrorKind.SERVER_ERROR, 500)
        self.ends["accepted"] += 1
        text = _packed_reply(request) if _is_pack(request) else f"answer to {prompts[0]}"
        usage = Usage(INPUT * len(prompts), OUTPUT * len(prompts))
        limits = None if run.told is None else LimitReport(requests_limit=run.told)
        return Answer(text, usage, finish_reason="stop", limits=limits)

    def _ended(self, how: str, kind: ErrorKind, status: int) -> ProviderError:
        self.ends[how] += 1
        asked = self._run.retry_after if kind is ErrorKind.RATE_LIMIT else None
        return ProviderError(
            f"simulated: {how}", kind=kind, status=status, retry_after=asked, maybe_billed=False
        )


def _is_pack(request: Request) -> bool:
    return "JSON array" in (request.params.system or "")


def _prompts(request: Request) -> list[str]:
    if _is_pack(request):
        return [item["prompt"] for item in items_of(request)]
    return [str(request.prompt)]


def _packed_reply(request: Request) -> str:
    items = items_of(request)
    return written([{"id": one["id"], "answer": f"{one['check']} answer {one['check']}"} for one in items])


def figures_of(run: Run) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        return _figures(run, os.path.join(folder, "jobs.db"))


def _figures(run: Run, store: str) -> dict[str, str]:
    clock, events, ends = SerialClock(), Counter[str](), list[tuple[float, str]]()
    server = _Server(run, clock)

    def observe(event: Event) -> None:
        events[type(event).__name__] += 1

    clock.spawned()
    clock.began()
    client = BatchingClient(
        server.scope,
        provider=server,
        clock=clock,
        rng=Random(5),
        prices={server.scope: PRICE},
        shared="off",
        store=store,
        max_tokens=OUTPUT,
        **run.settings,
    )
    client.observe(observe)
    done = clock.monitor()

    def note(future: Future[Any]) -> None:
        error = future.exception()
        with done:
            ends.append((clock.now(), "answered" if error is None else type(error).__name__))
            if len(ends) == run.rows:
                done.notify()

    for row in range(run.rows):
        client.submit(**run.params(row)).add_done_callback(note)
    with done:
        over = done.wait_for(lambda: len(ends) == run.rows, PATIENCE)
    spent = client.spent
    clock.ended()
    client.stop(timeout=0, cancel_waiting=True)
    order = [int(prompt.split()[1]) for _, prompts in server.asked for prompt in prompts]
    first = list(dict.fromkeys(order))
    found: dict[str, Any] = {
        "calls": len(server.asked),
        **server.ends,
        "requests_sent": len(order),
        "seconds": f"{max(at for at, _ in ends):.3f}" if over else "never",
        "median": f"{statistics.median(at for at, _ in ends):.3f}",
        "usd": f"{spent:.7g}",
        **{f"rows:{how}": count for how, count in sorted(Counter(how for _, how in ends).items())},
        "order": " ".join(figures.runs(first).split()[:FIRST]),
        "overtaken": sum(before > after for before, after in itertools.combinations(first, 2)),
        "packs": sum(len(prompts) > 1 for _, prompts in server.asked),
        "called_at": f"{sum(at for at, _ in server.asked) / len(server.asked):.4f}",
        "events": " ".join(f"{name}:{count}" for name, count in sorted(events.items())),
    }
    return {name: str(figure) for name, figure in found.items() if figure}


if __name__ == "__main__":
    figures.write(RECORDED, {GROUP: {name: figures_of(run) for name, run in RUNS.items()}})
