"""The figures for Prometheus, read at each scrape. Needs the extra ``prometheus``.

Names begin with ``smartbatch_``. Labels come from closed sets (priority, outcome, failure kind, breaker
state, token type), so no prompt, id or model can become a label and the number of series is bounded.
Prometheus takes a counter that falls, after ``BatchMetrics.reset()``, for a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from attrs import fields

from smartbatch.errors import ConfigError
from smartbatch.observe.histogram import TimeStats
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.metrics_snapshot import DecisionFigures, MetricsSnapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

BOUNDS = tuple(2.0**power for power in range(-10, 18))
"""Histogram bounds in seconds, 1 ms to 36 hours, a doubling each."""


class PrometheusReporter:
    """Offers a client's figures to Prometheus through a registry.

    Serve it with any exporter of ``prometheus_client``, for instance
    ``start_http_server(9100, registry=reporter.registry)``, or hand out :meth:`text`.

    Args:
        metrics: whose figures.
        registry: registry to join; one of its own when ``None``, never the global one. A registry holds
            one client.

    Raises:
        ConfigError: when ``prometheus_client`` is not installed.
    """

    def __init__(self, metrics: BatchMetrics, registry: CollectorRegistry | None = None) -> None:
        prometheus = _library()
        self._metrics = metrics
        self._text = prometheus.generate_latest
        self.registry: CollectorRegistry = registry or prometheus.CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Read one snapshot and yield its figures; called by the registry."""
        return _families(self._metrics.snapshot())

    def describe(self) -> Iterator[Metric]:
        """Yield the families without a client's figures; called when the registry is joined."""
        return _families(MetricsSnapshot())

    def text(self) -> bytes:
        """Return the figures in Prometheus' text format."""
        written: bytes = self._text(self.registry)
        return written

    def close(self) -> None:
        """Leave the registry."""
        self.registry.unregister(self)


def _library() -> Any:
    try:
        import prometheus_client
    except ImportError as missing:
        raise ConfigError(
            "figures for Prometheus need the extra 'prometheus': pip install 'smartbatch-llm[prometheus]'"
        ) from missing
    return prometheus_client


def _families(s: MetricsSnapshot) -> Iterator[Metric]:
    yield _counter("requests_submitted", "Requests taken, by priority.", "priority", s.by_priority)
    outcomes = {"succeeded": s.succeeded, "failed": s.failed, "cancelled": s.cancelled}
    yield _counter("requests_ended", "Requests that ended, by outcome.", "outcome", outcomes)
    pending = {"waiting": s.waiting, "in_flight": s.in_flight}
    yield _gauge("requests_pending", "Requests not ended yet, by state.", "state", pending)
    routes = s.by_route
    requests = {name: figures.requests for name, figures in routes.items()}
    yield _counter("route_requests", "Requests that ended, by route.", "route", requests)
    cost = {name: figures.cost for name, figures in routes.items()}
    yield _counter("route_cost_usd", "USD of requests whose price is known, by route.", "route", cost)
    tokens_of = {name: figures.input_tokens + figures.output_tokens for name, figures in routes.items()}
    yield _counter("route_tokens", "Tokens of requests, by route.", "route", tokens_of)
    retries = {"counted": s.retries_counted, "uncounted": s.retries_uncounted}
    yield _counter("retries", "Retries, by whether they cost a try.", "tries", retries)
    tokens = {"input": s.usage.input_tokens, "output": s.usage.output_tokens}
    yield _counter("tokens", "Tokens of all calls and batches.", "type", tokens)
    yield _counter("cost_usd", "USD of calls and batches whose price is known.", "", {"": s.cost})
    d = s.decisions
    yield _counter("routes", "Lists and jobs, by the route that was chosen.", "route", d.chosen)
    deadlines = {"met": d.deadlines_met, "missed": d.deadlines_missed}
    yield _counter("deadlines", "Lists with a deadline, by whether it was met.", "outcome", deadlines)
    within = {"p50": d.within_p50, "p95": d.within_p95, "all": d.scored}
    yield _counter("forecasts", "Lists that ended, by what was forecast.", "within", within)
    yield _counter("batches_rescued", "Batches taken back for a deadline.", "", {"": d.rescued})
    yield from _of_their_names(s)
    yield from _of_their_names(d, "routes_")
    yield _times("queue_seconds", "Submission to the start of the call that answered.", s.queue_time)
    yield _times("call_seconds", "Time of one call.", s.batch_time)
    yield _times("response_seconds", "Submission to the end.", s.response_time)


def _of_their_names(figures: MetricsSnapshot | DecisionFigures, prefix: str = "") -> Iterator[Metric]:
    """Yield the figures that are declared as families of their own."""
    for one in fields(type(figures)):
        family, label = one.metadata["family"], one.metadata["label"]
        if family:
            value = getattr(figures, one.name)
            values = value if label else {"": value}
            yield _family(family, prefix + one.name, one.metadata["help"], label, values)


def _family(kind: str, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a family with one value for each key of ``values``; without a ``label`` there is one key."""
    from prometheus_client import core

    family: Any = getattr(core, f"{kind}MetricFamily")(
        f"smartbatch_{name}", help_text, labels=[label] if label else []
    )
    for key, value in values.items():
        family.add_metric([key] if label else [], value)
    return cast("Metric", family)


_counter = partial(_family, "Counter")
_gauge = partial(_family, "Gauge")


def _times(name: str, help_text: str, times: TimeStats) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    seen = dict(times.octaves)
    # below the smallest seen there is nothing, above the largest seen there is everything
    smallest = min(seen, default=0.0)
    buckets = [(repr(b), seen.get(b, times.count if b >= smallest else 0)) for b in BOUNDS]
    family = HistogramMetricFamily(f"smartbatch_{name}", help_text)
    family.add_metric([], buckets=[*buckets, ("+Inf", times.count)], sum_value=times.total)
    return family
