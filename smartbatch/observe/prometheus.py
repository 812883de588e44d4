"""Figures for Prometheus, read at each scrape. Needs the extra ``prometheus``.

Names begin with ``smartbatch_``. Prometheus treats a counter that falls, after ``BatchMetrics.reset()``, as a
restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from smartbatch.errors import ConfigError, SmartbatchError
from smartbatch.observe.families import OPERATED, REACHABLE, families_of, live_families, times_of
from smartbatch.observe.metric import Family, Values
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.metrics_snapshot import MetricsSnapshot
from smartbatch.observe.participants import Participants

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

BUCKET_BOUNDS_SECONDS = tuple(2.0**power for power in range(-10, 18))
"""Histogram bounds in seconds, doubling from 1 ms to 36 hours."""

ReadParticipants = Callable[[], Participants]
"""A function such as :func:`smartbatch.participants`."""


class PrometheusReporter:
    """Provides the figures of a client, or of all processes that share its limits, to Prometheus.

    Serve them with any exporter of ``prometheus_client``, such as ``start_http_server(9100,
    registry=reporter.registry)``, or return :meth:`text` from a request handler.

    ``PrometheusReporter(smartbatch.participants)`` provides totals over all processes, so any worker of a web
    server can report them. The totals are a few seconds old. While the store of shared limits is
    unavailable, the only figure is ``smartbatch_shared_reachable`` with the value 0.

    Args:
        metrics: the figures of a client; or a function that reads those of all processes,
            ``smartbatch.participants`` or ``functools.partial(smartbatch.participants, "redis://…")``.
        registry: the registry to join; ``None`` for a new one, never the global one. A registry can contain
            one client, or one store of shared limits.

    Raises:
        ConfigError: ``prometheus_client`` is not installed.
    """

    def __init__(
        self, metrics: BatchMetrics | ReadParticipants, registry: CollectorRegistry | None = None
    ) -> None:
        prometheus = _library()
        self._metrics = metrics
        self._text = prometheus.generate_latest
        self.registry: CollectorRegistry = registry or prometheus.CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Read and yield the current figures; called by the registry."""
        metrics = self._metrics
        if isinstance(metrics, BatchMetrics):
            return _of_client(metrics.snapshot())
        try:
            return _of_participants(metrics())
        except SmartbatchError:
            return iter([_metric(REACHABLE, {"": 0.0})])

    def describe(self) -> Iterator[Metric]:
        """Yield the families without figures; called when the registry is joined."""
        if isinstance(self._metrics, BatchMetrics):
            return _of_client(MetricsSnapshot())
        return _of_participants(Participants(place=""))

    def text(self) -> bytes:
        """Return the figures in the text format of Prometheus."""
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


def _of_client(s: MetricsSnapshot) -> Iterator[Metric]:
    for family, figures in families_of(s):
        yield _metric(family, figures)
    for family, times in times_of(s):
        seen = dict(times.octaves)
        # bounds below the shortest duration count nothing, and bounds above the longest count all
        smallest = min(seen, default=0.0)
        counts = [seen.get(b, times.count if b >= smallest else 0) for b in BUCKET_BOUNDS_SECONDS]
        yield _histogram(family, counts, times.count, times.total)


def _of_participants(found: Participants) -> Iterator[Metric]:
    """Yield totals summed over all processes, and current values of the live processes."""
    yield _metric(REACHABLE, {"": 1.0})
    sums: dict[str, dict[str, float]] = {}
    for key, value in found.sums.items():
        name, _, label = key.partition(":")
        sums.setdefault(name, {})[label] = value
    nothing = MetricsSnapshot()
    for family, figures in (*families_of(nothing), *((family, {}) for family in OPERATED)):
        if family.adds_up:
            yield _metric(family, {**figures, **sums.get(family.name, {})})
    for family, _ in times_of(nothing):
        ended = sums.get(family.name, {})
        total = ended.pop("sum", 0.0)
        by_bound = {float(bound): count for bound, count in ended.items()}
        counts = [
            sum(count for bound, count in by_bound.items() if bound <= most) for most in BUCKET_BOUNDS_SECONDS
        ]
        yield _histogram(family, counts, sum(by_bound.values()), total)
    for family, figures in live_families(found):
        yield _metric(family, figures)


def _metric(family: Family, figures: Values) -> Metric:
    """Return a family with a value for each key of ``figures``; a family without a label has one key."""
    from prometheus_client import core

    made: Any = getattr(core, f"{family.kind}MetricFamily")(
        f"smartbatch_{family.name}", family.help, labels=[family.label] if family.label else []
    )
    for key, value in figures.items():
        made.add_metric([key] if family.label else [], value)
    return cast("Metric", made)


def _histogram(family: Family, counts: Sequence[float], count: float, total: float) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    made = HistogramMetricFamily(f"smartbatch_{family.name}", family.help)
    buckets = [(repr(bound), each) for bound, each in zip(BUCKET_BOUNDS_SECONDS, counts, strict=True)]
    made.add_metric([], buckets=[*buckets, ("+Inf", count)], sum_value=total)
    return made
