"""What telling OpenTelemetry costs a request, next to the same spans and records written by hand.

    python -m benchmarks.telemetry

Each round asks the embedded provider the same requests in every way; processor time of the process counts,
the least of all rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch.observe.opentelemetry import OpenTelemetryObserver

MODEL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "sim",
    "gen_ai.request.model": "small",
}
MOST = 1.5
"""How many times as much as by hand it may cost."""
OF_REQUEST = {"smartbatch.model": "sim:small", "smartbatch.route": "individual"}


class ByHand:
    """A middleware that a user would write: the same spans, attributes and records."""

    shareable = True

    def __init__(self, tracers: TracerProvider, meters: MeterProvider) -> None:
        self._tracer, meter = tracers.get_tracer("hand"), meters.get_meter("hand")
        self._tokens = meter.create_histogram("hand.tokens")
        self._duration = meter.create_histogram("hand.duration")
        self._wait = meter.create_histogram("hand.wait")

    def __call__(self, spec: Any, proceed: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
        began, span = time.perf_counter(), self._tracer.start_as_current_span
        with span("smartbatch.request") as request:
            with span("chat small", kind=SpanKind.CLIENT, attributes=MODEL) as call:
                call.set_attributes({"smartbatch.call.id": "1", "smartbatch.call.size": 1, "attempt": 1})
                outcomes = proceed(spec)
                used = {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 17}
                call.set_attributes({**used, "smartbatch.cost_usd": 0.1, "smartbatch.route": "individual"})
            self._duration.record(time.perf_counter() - began, MODEL)
            self._tokens.record(3, {**MODEL, "gen_ai.token.type": "input"})
            self._tokens.record(17, {**MODEL, "gen_ai.token.type": "output"})
            self._wait.record(0.5, OF_REQUEST)
            request.set_attributes({**OF_REQUEST, "id": "1", "attempts": 1, "wait": 0.5, "shared": False})
        return outcomes


def passing(spec: Any, proceed: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
    """A middleware that does nothing: what one costs at all."""
    return proceed(spec)


passing.shareable = True  # type: ignore[attr-defined]


def microseconds(requests: int, **settings: Any) -> float:
    """Return the processor time of a request."""
    with BatchingClient("sim:small?latency=0", parallelism=4, **settings) as client:
        client.generate(["the first one"], progress=False)
        began = time.process_time()
        results = client.generate([f"question {n}" for n in range(requests)], progress=False)
        taken = time.process_time() - began
    if results.failed:
        raise AssertionError("not every request was answered")
    return 1e6 * taken / requests


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args(argv)
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([InMemoryMetricReader()])
    ours = OpenTelemetryObserver(tracer_provider=tracers, meter_provider=meters)
    ways: dict[str, dict[str, Any]] = {
        "off": {"telemetry": "off"},
        "no SDK": {},
        "a middleware": {"telemetry": "off", "middleware": [passing]},
        "by hand": {"telemetry": "off", "middleware": [ByHand(tracers, meters)]},
        "ours": {"observers": [ours]},
    }
    rounds: list[dict[str, float]] = []
    for number in range(args.rounds):  # each way begins a round in its turn
        names = [*ways][number % len(ways) :] + [*ways][: number % len(ways)]
        rounds.append({name: microseconds(args.requests, **ways[name]) for name in names})
    least = {name: min(each[name] for each in rounds) for name in ways}
    for name, taken in least.items():
        print(f"{name:<14}{taken:8.1f} µs of processor time a request")
    mine, hand = least["ours"] - least["off"], least["by hand"] - least["a middleware"]
    ratio, targets = mine / hand, Targets()
    told = targets.at_most(ratio, MOST)
    print(f"ours costs {mine:.0f} µs, by hand {hand:.0f} µs: {ratio:.2f} times as much ({told})")
    print(f"without an SDK {least['no SDK'] - least['off']:.1f} µs")
    targets.exit()


if __name__ == "__main__":
    main()
