"""Runs 1,000 simulated mixtures of limits, failures, outages and latencies in virtual time.

    python -m benchmarks.mixtures
    python -m benchmarks.mixtures --account
    python -m benchmarks.mixtures --first 17 --seeds 1 --timeline
    python -m benchmarks.mixtures --seeds 200 --with "calls at once"

For each seed, the real client sends 300 rows to the simulated service, and so do clients with a fixed
parallelism and rate. *Goodput* is the time of the best fixed client divided by the time of the real one. A
seed always gives the same run. With ``--account``, the service has prices, and the client has to discover
its limits.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from random import Random
from statistics import median
from typing import Any

from attrs import field, frozen

from benchmarks.mixture_world import Fixed, Mixture, Service, Verdict, best_fixed, draw, tokens_of
from benchmarks.serial_clock import SerialClock
from smartbatch import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.types import Answer, LimitReport, Request, Usage

PATIENCE = 50.0
"""A run is given up if it takes this many times as long as the best fixed one, plus an hour."""


@frozen
class VirtualRun:
    """The outcome of a list.

    Attributes:
        seconds: virtual seconds until the last row completed or the run was given up.
        answered: rows with their answer.
        maybe_billed: rows given up after a failure that may have been billed.
        over: False if the run was given up.
    """

    seconds: float
    answered: int
    maybe_billed: int
    over: bool


def send(
    provider: Provider,
    clock: SerialClock,
    prompts: Sequence[str],
    *,
    seed: int,
    patience: float,
    **settings: Any,
) -> VirtualRun:
    """Send ``prompts`` and wait for all of them, up to ``patience`` virtual seconds."""
    clock.spawned()
    clock.began()
    client = BatchingClient(
        "simulated",
        provider=provider,
        queue_capacity=max(1000, len(prompts)),
        clock=clock,
        rng=Random(seed),
        **settings,
    )
    done = clock.monitor()
    ended: list[float] = []
    answered = maybe_billed = 0

    def note(future: Future[Any]) -> None:
        nonlocal answered, maybe_billed
        with done:
            error = None if future.cancelled() else future.exception()
            answered += not future.cancelled() and error is None
            maybe_billed += isinstance(error, ProviderError) and error.maybe_billed
            ended.append(clock.now())
            if len(ended) == len(prompts):
                done.notify()

    for prompt in prompts:
        client.submit(prompt).add_done_callback(note)
    with done:
        over = bool(done.wait_for(lambda: len(ended) == len(prompts), patience))
        found = VirtualRun(max(ended) if over else clock.now(), answered, maybe_billed, over)
    clock.ended()
    client.stop(timeout=0, cancel_waiting=True)
    return found


class SimulatedProvider(Provider):
    """The service of a mixture as a provider. Threads run one at a time, so it has no lock."""

    def __init__(self, service: Service, clock: SerialClock, *, account: bool) -> None:
        self.name = "mixture"
        self.scope = f"mixture:{service.mixture.seed}:{id(self):x}"
        self.capabilities = Capabilities(priced=account)
        self._service = service
        self._clock = clock

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        row = int(str(request.prompt).split(maxsplit=1)[0])
        service = self._service
        verdict = service.arrive(self._clock.now(), row)
        self._clock.sleep(verdict.seconds)
        service.leave()
        limits = _report(service, self._clock.now())
        if verdict.kind == "good":
            used = Usage(tokens_of(row) - 10, 10)
            return Answer(text=f"answer {row}", usage=used, finish_reason="stop", limits=limits)
        raise _error(verdict, limits)


def _error(verdict: Verdict, limits: LimitReport | None) -> ProviderError:
    kind = ErrorKind.RATE_LIMIT if verdict.status == 429 else ErrorKind.SERVER_ERROR
    if verdict.status == 0:
        kind = ErrorKind.NETWORK_ERROR
    return ProviderError(
        f"simulated: {verdict.kind}",
        kind=kind,
        status=verdict.status or None,
        retry_after=verdict.retry_after,
        maybe_billed=verdict.kind == "reset",
        limits=limits if verdict.status == 429 else None,
    )


def _report(service: Service, now: float) -> LimitReport | None:
    """Return the limits per minute reported by the headers of an answer."""
    if not service.mixture.names_limits:
        return None
    mixture, left_of = service.mixture, service.left(now)
    said: dict[str, Any] = {}
    for name, limit, left in zip(
        ("requests", "tokens"), (mixture.requests, mixture.tokens), left_of, strict=True
    ):
        if limit is not None and left is not None:
            said[f"{name}_limit"] = round(60 * limit.rate)
            said[f"{name}_remaining"] = max(0, math.floor(left))
            said[f"{name}_reset"] = (limit.burst - left) / limit.rate
    return LimitReport(**said) if said else None


@frozen
class Outcome:
    """What came of a mixture.

    Attributes:
        seconds: virtual, until the last answer.
        answered: rows with their answer.
        lost: rows that failed or had no answer when the run was given up, but for the next.
        given_up: rows that were reset after sending until their tries were used up: each of these calls may
            have been billed, so their number is bounded however many fail.
        met: what the calls met.
        best: of fixed width and rate.
        log: when calls arrived and what they met.
    """

    mixture: Mixture
    seconds: float
    answered: int
    lost: int
    given_up: int
    met: dict[str, int]
    best: Fixed
    log: list[tuple[float, str]] = field(factory=list, repr=False)

    @property
    def calls(self) -> int:
        return sum(self.met.values())

    @property
    def goodput(self) -> float:
        """Rows per second, relative to the best fixed run."""
        rows = self.mixture.rows
        return (self.answered / self.seconds) / (rows / self.best.seconds) if self.answered else 0.0

    @property
    def refused(self) -> float:
        """Share of calls refused by a limit."""
        return self.met.get("limit", 0) / self.calls

    @property
    def extra(self) -> float:
        """Calls beyond those required by rows and partial failures."""
        outside = self.met.get("limit", 0) + self.met.get("outage", 0)
        return self.calls / max(1, self.calls - outside)


def run(seed: int, rows: int, *, account: bool = False, keep_log: bool = False) -> Outcome:
    """Run the client on the mixture of a seed, and find the best fixed width and rate."""
    mixture = draw(seed, rows)
    best = best_fixed(mixture)
    clock = SerialClock()
    service = Service(mixture, log=[] if keep_log else None)
    told = mixture.requests if mixture.configured else None
    came = send(
        SimulatedProvider(service, clock, account=account),
        clock,
        [prompt(row) for row in range(rows)],
        seed=seed,
        patience=3600.0 + PATIENCE * best.seconds,
        parallelism=mixture.parallelism,
        max_rpm=None if told is None else max(1, math.floor(60 * told.rate)),
    )
    lost, given_up = rows - came.answered - came.maybe_billed, came.maybe_billed
    met = dict(service.met)
    return Outcome(mixture, came.seconds, came.answered, lost, given_up, met, best, service.log or [])


def prompt(row: int) -> str:
    """Return a prompt with about as many tokens as the service counts."""
    return f"{row} " + "word " * (tokens_of(row) - 10)


# -- the table -----------------------------------------------------------------------------------------------


def run_all(seeds: Iterable[int], rows: int, processes: int, *, account: bool = False) -> Iterable[Outcome]:
    if processes == 1:
        for seed in seeds:
            yield run(seed, rows, account=account)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap(_Job(rows, account), seeds, chunksize=4)


@frozen
class _Job:
    rows: int
    account: bool

    def __call__(self, seed: int) -> Outcome:
        return run(seed, self.rows, account=self.account)


def share(values: Sequence[float], at: float) -> float:
    """Return the quantile ``at``."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))]


def report(outcomes: Sequence[Outcome]) -> None:
    goodput = [each.goodput for each in outcomes]
    limited = [each for each in outcomes if each.mixture.has_limit]
    refused = sum(each.met.get("limit", 0) for each in limited) / max(1, sum(each.calls for each in limited))
    extra = [each.extra for each in outcomes]
    print(f"{len(outcomes):,} mixtures of {outcomes[0].mixture.rows} rows\n")
    print(f"goodput: median {median(goodput):.3f}, worst hundredth {share(goodput, 0.01):.3f}")
    print(f"refused, of all calls where there is a limit: {refused:.1%}")
    print(f"calls over those needed: median {median(extra):.3f}, worst hundredth {share(extra, 0.99):.3f}")
    print(f"rows lost: {sum(each.lost for each in outcomes)}")
    print(f"rows given up after four calls that may be billed: {sum(each.given_up for each in outcomes)}")
    print("\n| mixtures with | number | goodput, median | worst tenth | worst hundredth | refused | lost |")
    print("|" + "---|" * 7)
    for part in sorted({part for each in outcomes for part in each.mixture.parts}):
        print(_row(part, [each for each in outcomes if part in each.mixture.parts]))


def _row(name: str, some: Sequence[Outcome]) -> str:
    goodput = [each.goodput for each in some]
    refused = sum(each.met.get("limit", 0) for each in some) / sum(each.calls for each in some)
    figures = [f"{median(goodput):.2f}", *(f"{share(goodput, at):.2f}" for at in (0.1, 0.01))]
    lost = sum(each.lost for each in some)
    return f"| {name} | {len(some)} | {' | '.join(figures)} | {refused:.1%} | {lost} |"


def describe(outcome: Outcome) -> str:
    best = outcome.best
    rate = "" if best.rate == math.inf else f" at {best.rate:.2f}/s"
    met = ", ".join(f"{name} {count}" for name, count in sorted(outcome.met.items()))
    return (
        f"seed {outcome.mixture.seed}: goodput {outcome.goodput:.3f}, {outcome.seconds:.1f} s; best fixed "
        f"{best.seconds:.1f} s, {best.width} wide{rate}, {best.refused:.0%} refused\n"
        f"    {outcome.mixture}\n    calls: {met}"
        + (f"; LOST {outcome.lost}" if outcome.lost else "")
        + (f"; given up {outcome.given_up}" if outcome.given_up else "")
    )


def timeline(outcome: Outcome, slots: int = 40) -> Iterable[str]:
    """Yield the outcomes of calls in each slice of the run."""
    width = max(outcome.seconds, outcome.log[-1][0]) / slots or 1.0
    found: dict[int, Counter[str]] = {}
    for at, kind in outcome.log:
        found.setdefault(int(at / width), Counter())[kind] += 1
    for slot in range(slots + 1):
        met = found.get(slot, Counter())
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(met.items()))
        yield f"    {slot * width:8.1f} s  {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many mixtures")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rows", type=int, default=300, help="rows of a mixture")
    parser.add_argument("--account", action="store_true", help="unknown limits are approached")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worst", type=int, default=5, help="how many of the worst to describe")
    parser.add_argument(
        "--timeline", action="store_true", help="of one mixture: what its calls met, and when"
    )
    parser.add_argument("--with", dest="part", help="only mixtures with this part, as the table names them")
    options = parser.parse_args()
    began = time.perf_counter()
    if options.seeds == 1:
        outcome = run(options.first, options.rows, account=options.account, keep_log=options.timeline)
        print(describe(outcome))
        if options.timeline:
            print("\n".join(timeline(outcome)))
        return
    seeds: Sequence[int] = range(options.first, options.first + options.seeds)
    if options.part is not None:
        seeds = [seed for seed in seeds if options.part in draw(seed, options.rows).parts]
    outcomes: list[Outcome] = []
    for outcome in run_all(seeds, options.rows, options.processes, account=options.account):
        outcomes.append(outcome)
        if len(outcomes) % 100 == 0:
            print(f"{len(outcomes)} of {len(seeds)}", file=sys.stderr, flush=True)
    report(outcomes)
    lossy = [each for each in outcomes if each.lost]
    worst = sorted(outcomes, key=lambda each: each.goodput)[: options.worst]
    print("\nThe worst, and those that lost rows; repeat one with --first SEED --seeds 1 --timeline\n")
    for each in [*worst, *(each for each in lossy[: options.worst] if each not in worst)]:
        print(describe(each))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
