"""The figures as text and as a log entry."""

from __future__ import annotations

import io
import json

import structlog
from sample_events import called, ended, retry, started, submitted
from structlog.testing import CapturingLogger

from smartbatch.events import BreakerChanged, ClientStarted, ClientStopped, CooldownStarted
from smartbatch.observe import logs
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.metrics_snapshot import MetricsSnapshot
from smartbatch.observe.reporters import ConsoleReporter, LogReporter, PeriodicReporter, status_summary
from smartbatch.types import Usage


def busy_metrics() -> BatchMetrics:
    metrics = BatchMetrics(max_batch_size=4, now=lambda: 10.0)
    for event in (
        ClientStarted(at=0.0, workers=2),
        submitted("r1"),
        submitted("r2", joined=True),
        submitted("r3"),
        started(2, at=0.0),
        called(2, at=5.0, seconds=5.0, usage=Usage(1200, 30, 200), cost=0.0125, error="rate_limit"),
        retry(counted=False, maybe_billed=True),
        CooldownStarted(at=5.0, scope="key", model="m", seconds=12.0, consecutive=1),
        BreakerChanged(at=5.0, model="m", before="closed", after="open", reason="refused", pause=1.0),
        ended("r1", cost=None, seconds=65.0),
    ):
        metrics(event)
    return metrics


def test_the_summary_of_an_idle_client_is_short():
    assert status_summary(MetricsSnapshot()) == (
        "requests  0 submitted: 0 waiting, 0 in flight, 0 succeeded, 0 failed, 0 cancelled"
    )


def test_a_console_reporter_prints_json_and_a_summary_of_the_session():
    stream = io.StringIO()
    reporter = ConsoleReporter(busy_metrics(), stream, json=True)
    reporter(ClientStarted(at=0.0, workers=2))
    assert stream.getvalue() == ""
    reporter(ClientStopped(at=9.0, failed=0))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["failed_batches"] == 1


def test_a_periodic_reporter_reports_on_time_and_at_the_end(clock, caplog):
    told: list[float] = []

    class Failing:
        def report(self) -> None:
            told.append(clock.now())
            raise OSError("no terminal")

    with PeriodicReporter(Failing(), "1min", clock):
        clock.sleep(150)
    assert told == [60.0, 120.0, 150.0]
    assert "a reporter" in caplog.text


def test_the_queue_is_as_full_as_what_waits_of_its_capacity():
    metrics = BatchMetrics(queue_capacity=4)
    metrics(submitted("r1"))
    assert metrics.snapshot().queue_utilisation == 0.25
    assert "queue        25 % full" in status_summary(metrics.snapshot())


def test_the_summary_tells_what_happened_with_units():
    rows = dict(line.split("  ", 1) for line in status_summary(busy_metrics().snapshot()).splitlines())
    told = {name: words.strip() for name, words in rows.items()}
    assert told == {
        "requests": "3 submitted: 2 waiting, 0 in flight, 1 succeeded, 0 failed, 0 cancelled",
        "by priority": "normal 3",
        "without a call": "joined another 1",
        "batches": "1 (1 shared, failed 1, retried 1), size mean 2.00, largest 2, efficiency 50 %",
        "queue time": "mean 500 ms, p50 500 ms, p95 500 ms, longest 500 ms",
        "call time": "mean 5 s, p50 5 s, p95 5 s, longest 5 s",
        "response time": "mean 65 s, p50 65 s, p95 65 s, longest 65 s",
        "workers": "2, 25 % busy over 10 s",
        "failed calls": "rate_limit 1",
        "retries": "1 (1 do not count as attempts)",
        "rate limits": "1 calls refused, 1 pauses, 12 s in total",
        "breaker": "open 1",
        "possibly paid twice": "1",
        "tokens": "1,200 in (200 cached), 30 out",
        "cost": "$0.01; 1 requests of unknown price",
    }


def test_the_console_reporter_prints_the_summary():
    stream, metrics = io.StringIO(), busy_metrics()
    ConsoleReporter(metrics, stream).report()
    assert stream.getvalue() == status_summary(metrics.snapshot()) + "\n"


def test_a_closed_stream_does_not_hurt_the_reporter():
    stream = io.StringIO()
    stream.close()
    ConsoleReporter(busy_metrics(), stream).report()


def test_the_log_reporter_logs_one_entry_with_all_figures():
    captured, metrics = CapturingLogger(), busy_metrics()
    LogReporter(metrics, structlog.wrap_logger(captured, processors=[])).report()
    (entry,) = captured.calls
    assert entry.method_name == "info"
    assert entry.kwargs == {"event": "metrics"} | metrics.snapshot().as_dict()


def test_the_level_asked_for_holds_on_top_of_the_applications_own():
    captured = CapturingLogger()
    structlog.configure(processors=[], logger_factory=lambda *_: captured)
    try:
        for level, entries in (("warning", 0), ("info", 1)):
            logs.enable(level)
            LogReporter(busy_metrics()).report()
            assert len(captured.calls) == entries
    finally:
        logs.disable()
        structlog.reset_defaults()
