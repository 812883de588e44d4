"""Compares the cost of input with prompt caching with the cost without, and with that of an oracle.

    python -m benchmarks.caching
    python -m benchmarks.caching --scale 0.1 --provider Anthropic --mode batch

The client sends each workload to emulated providers whose prompt caches have a minimum size, lifetimes,
prices of writes and storage, entries that are readable once the first answer has begun, limits per key, and
hits in batches that are only likely. Costs are in input tokens at the full price.

*Saving* is relative to the same requests without any cache. Providers that cache by themselves save (or cost)
something even with ``prompt_caching="off"``. *Share* is the saving relative to that of an oracle, which knows
the whole workload and the rules of the cache. Fails if a share is below 90 %, or if one of the other
workloads costs more than 1 % more than with ``prompt_caching="off"``.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Literal, get_args

from attrs import frozen

from benchmarks.caching_workloads import BATCH_SECONDS, OTHERS, SHARING, Workload, oracle_saving
from benchmarks.caching_world import MODELS, Mode, Sent, World

_LATENCY = {"latency": 1.0, "latency_sigma": 0.3, "per_token": 0.05, "batch_turnaround": BATCH_SECONDS}
_PARALLELISM = 16
_OFF_SCALE = 0.1
"""Share of a workload whose saving is measured without ``prompt_caching``."""
MIN_SHARE = 0.9
MAX_SURCHARGE = 0.01


@frozen
class Measured:
    """A workload at a provider."""

    sent: Sent
    oracle: float  # the oracle's saving in input tokens

    @property
    def saving(self) -> float:
        return 1 - self.sent.cost / self.sent.full

    @property
    def share(self) -> float:
        return (self.sent.full - self.sent.cost) / self.oracle


def measure(
    workload: Workload, provider: str, mode: Mode, scale: float, prompt_caching: Literal["auto", "off"]
) -> Measured:
    rows = workload.rows(scale)
    client = {"parallelism": _PARALLELISM, "prompt_caching": prompt_caching}
    world = World(MODELS[provider], workload.caching, {**_LATENCY, **workload.settings}, client)
    sent = world.send([row.request for row in rows], mode, gaps=workload.gaps)
    assert not sent.failed, f"{workload.name}, {provider}, {mode}: {sent.failed} requests failed"
    return Measured(sent, oracle_saving(provider, mode, workload, rows, sent.seconds))


def report_sharing(providers: list[str], modes: list[Mode], scale: float, named: str) -> bool:
    """Print the table of savings, and return whether all reach the target."""
    print("| workload | provider | mode | saving, off | saving, auto | oracle | share |\n" + "|---" * 7 + "|")
    good = True
    for workload in SHARING:
        for provider in providers if named in workload.name else ():
            for mode in modes:
                off = measure(workload, provider, mode, scale * _OFF_SCALE, "off")
                auto = measure(workload, provider, mode, scale, "auto")
                good &= auto.share >= MIN_SHARE
                cells = (
                    f"{off.saving:.1%}",
                    f"{auto.saving:.1%}",
                    f"{auto.oracle / auto.sent.full:.1%}",
                    f"{auto.share:.1%}{'' if auto.share >= MIN_SHARE else ' !'}",
                )
                print(f"| {workload.name} | {provider} | {mode} | {' | '.join(cells)} |", flush=True)
    return good


def report_others(providers: list[str], modes: list[Mode], scale: float, named: str) -> bool:
    """Print the cost of the other workloads relative to that without caching."""
    heads = [f"{provider}, {mode}" for provider in providers for mode in modes]
    print(f"\n| cost relative to off | {' | '.join(heads)} |\n" + "|---" * (len(heads) + 1) + "|")
    good = True
    for workload in OTHERS:
        if named not in workload.name:
            continue
        cells = []
        for provider in providers:
            for mode in modes:
                if mode not in workload.modes:
                    cells.append("")
                    continue
                auto = measure(workload, provider, mode, scale, "auto")
                off = measure(workload, provider, mode, scale, "off")
                surcharge = auto.sent.cost / off.sent.cost - 1
                good &= surcharge <= MAX_SURCHARGE
                cells.append(f"{surcharge:+.1%}{'' if surcharge <= MAX_SURCHARGE else ' !'}")
        print(f"| {workload.name} | {' | '.join(cells)} |", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of requests")
    parser.add_argument("--provider", choices=MODELS, action="append", help="only this provider")
    parser.add_argument("--mode", choices=get_args(Mode), action="append", help="only this mode")
    parser.add_argument("--workload", default="", help="only workloads whose names contain this")
    options = parser.parse_args()
    began = time.perf_counter()
    given = (
        options.provider or list(MODELS),
        options.mode or list(get_args(Mode)),
        options.scale,
        options.workload,
    )
    good = report_sharing(*given) & report_others(*given)
    print(f"\n{time.perf_counter() - began:.0f} s; targets {'reached' if good else 'missed'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
