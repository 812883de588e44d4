"""Reporters that output a client's figures as text or as a log entry."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from typing import Protocol, Self, TextIO

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import identity
from smartbatch._words import SafeStream, duration, escape, money, seconds_of, share
from smartbatch.errors import ConfigError
from smartbatch.events import ClientStopped, Event
from smartbatch.observe.logs import EventLogger, clean, get_logger, user_error
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.metrics_snapshot import DecisionFigures, MetricsSnapshot, RouteFigures
from smartbatch.types import Duration


class Reporter(Protocol):
    """Reports the figures of one client."""

    def report(self) -> None:
        """Report the current figures."""


class ConsoleReporter:
    """Prints the figures as a small table, or as JSON. As an observer of a client, it prints a summary of the
    session when the client stops.

    Args:
        metrics: the figures.
        stream: where to print; ``None`` for standard output.
        json: whether a line of JSON is printed instead of a table.
    """

    def __init__(self, metrics: BatchMetrics, stream: TextIO | None = None, *, json: bool = False) -> None:
        self._metrics = metrics
        self._stream = stream
        self._json = json

    def __call__(self, event: Event) -> None:
        if isinstance(event, ClientStopped):
            self.report()

    def report(self) -> None:
        """Print the current figures."""
        stream = SafeStream(self._stream or sys.stdout)
        figures = self._metrics.snapshot()
        stream.write((figures.to_json() if self._json else status_summary(figures)) + "\n")
        stream.flush()


class LogReporter:
    """Logs the figures as an entry named ``metrics``, at level info. As an observer of a client, it logs them
    when the client stops.

    Args:
        metrics: the figures.
        logger: as for :class:`~smartbatch.observe.logs.LogObserver`; if it is ``None`` and
            :func:`~smartbatch.observe.logs.enable` was not called, nothing is logged.
    """

    def __init__(self, metrics: BatchMetrics, logger: EventLogger | logging.Logger | None = None) -> None:
        self._metrics = metrics
        self._logger = get_logger(logger) if logger is not None else None

    def __call__(self, event: Event) -> None:
        if isinstance(event, ClientStopped):
            self.report()

    def report(self) -> None:
        """Log the current figures, if logging is on."""
        logger = self._logger if self._logger is not None else get_logger()
        if logger is not None:
            logger.info("metrics", **clean(self._metrics.snapshot().as_dict()))


class PeriodicReporter:
    """Calls a reporter at intervals, and once more at the end; used in a ``with`` block.

    The reporter's exceptions are logged and do not prevent the next report. A forked child makes no reports.

    Args:
        reporter: such as a :class:`ConsoleReporter`.
        every: time between reports, such as ``"60s"``, or seconds.
        clock: the source of time and waits, which tests replace.
    """

    def __init__(self, reporter: Reporter, every: Duration, clock: Clock | None = None) -> None:
        seconds = seconds_of("every", every)
        if not seconds:
            raise ConfigError(f"every = {every!r:.60} is out of range: give a time above 0")
        self._reporter = reporter
        self._every = seconds
        self._clock = clock or RealClock()
        self._running = False

    def __enter__(self) -> Self:
        self._monitor = self._clock.monitor()
        self._process = identity()
        self._running = True
        self._clock.spawned()
        threading.Thread(target=self._run, name="smartbatch-reports", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if (
            identity() != self._process
        ):  # a forked child has no reporting thread, and its copy of the lock may be locked
            return
        with self._monitor:
            self._running = False
            self._monitor.notify_all()
        self._report()

    def _run(self) -> None:
        self._clock.began()
        due = self._clock.now()
        try:
            while self._is_running_until(due := due + self._every):
                self._report()
        finally:
            self._clock.ended()

    def _is_running_until(self, due: float) -> bool:
        """Wait until the next report is due; return False if the block has ended."""
        with self._monitor:
            while self._running and (left := due - self._clock.now()) > 0:
                self._monitor.wait(left)
            return self._running

    def _report(self) -> None:
        try:
            self._reporter.report()
        except Exception as error:
            user_error("a reporter", error)


def status_summary(snapshot: MetricsSnapshot) -> str:
    """Return the figures as a few lines of text, without zeros."""
    rows = [(name, words) for name, words in _rows(snapshot) if words]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {escape(words)}" for name, words in rows)


def _rows(s: MetricsSnapshot) -> Iterator[tuple[str, str]]:
    """Yield names with their texts; a text is empty if there is nothing to show."""
    yield (
        "requests",
        f"{s.submitted:,} submitted: {s.waiting:,} waiting, {s.in_flight:,} in flight, "
        f"{s.succeeded:,} succeeded, {s.failed:,} failed, {s.cancelled:,} cancelled",
    )
    yield "queue", f"{share(s.queue_utilisation)} full" if s.queue_utilisation else ""
    yield "by priority", _table(s.by_priority)
    yield from _routes(s.by_route)
    yield "without a call", _table({"joined another": s.deduplicated, "answered locally": s.local})
    if s.batches:
        yield (
            "batches",
            f"{s.batches:,} ({_batches(s)}), size mean {s.mean_batch_size:.2f}, "
            f"largest {s.largest_batch}, efficiency {share(s.efficiency)}",
        )
    for name, times in (("queue", s.queue_time), ("call", s.batch_time), ("response", s.response_time)):
        if times.count:
            figures = {"mean": times.mean, "p50": times.p50, "p95": times.p95, "longest": times.longest}
            yield f"{name} time", ", ".join(f"{label} {duration(t)}" for label, t in figures.items())
    if s.workers:
        yield "workers", f"{s.workers}, {share(s.utilisation)} busy over {duration(s.elapsed)}"
    yield "failed calls", _table(s.call_failures)
    yield "failed requests", _table(s.request_failures)
    yield "failed at stop", _number(s.failed_at_stop)
    yield "retries", _number(s.retries, f" ({s.retries_uncounted:,} do not count as attempts)")
    if s.rate_limits or s.cooldowns:
        paused = f"{s.cooldowns:,} pauses, {duration(s.cooldown_seconds)} in total"
        yield "rate limits", f"{s.rate_limits:,} calls refused, {paused}"
    if s.limits_unshared:
        yield "shared limits", f"{s.limits_unshared:,} not shared: their store is unavailable"
    yield "breaker", _table(s.breaker_changes)
    yield "shared prefixes no longer cached", _number(s.caching_stopped)
    yield "parameters dropped", _number(s.parameters_dropped)
    yield "possibly paid twice", _number(s.possible_double_bills)
    if s.usage.total_tokens:
        about = "about " if s.usage.estimated else ""
        parts = {"cached": s.usage.cached_tokens, "written to the cache": s.usage.cache_write_tokens}
        parts_text = ", ".join(f"{count:,} {name}" for name, count in parts.items() if count)
        inward = f"{about}{s.usage.input_tokens:,} in" + (f" ({parts_text})" if parts_text else "")
        yield "tokens", f"{inward}, {about}{s.usage.output_tokens:,} out"
    if s.cost or s.unpriced:
        unknown = f"{s.unpriced:,} requests of unknown price" if s.unpriced else ""
        yield "cost", "; ".join(filter(None, (money(s.cost) if s.cost else "", unknown)))
    if s.jobs_accepted or s.jobs_finished:
        yield "jobs", f"{s.jobs_accepted:,} accepted, {s.jobs_finished:,} finished"
    yield "jobs' batches", _table(s.shard_changes)
    if s.jobs_cost or s.jobs_saved:
        than = _difference(s.jobs_saved, "USD", "less", "more")
        yield "jobs' cost", f"{money(s.jobs_cost)}, {than} than in real time"
    yield "incidents", _number(s.job_incidents)
    yield from _decisions(s.decisions)


def _batches(s: MetricsSnapshot) -> str:
    further = _table({"failed": s.failed_batches, "retried": s.retried_batches})
    return f"{s.shared_batches:,} shared" + (f", {further}" if further else "")


def _routes(by_route: dict[str, RouteFigures]) -> Iterator[tuple[str, str]]:
    """Yield nothing if all requests had the route ``individual``."""
    if set(by_route) <= {"individual"}:
        return
    for name, f in by_route.items():
        tokens = f"{f.input_tokens:,} tokens in, {f.output_tokens:,} out"
        yield f"by route {name}", f"{f.requests:,} requests, {f.failed:,} failed, {tokens}, {money(f.cost)}"


def _decisions(d: DecisionFigures) -> Iterator[tuple[str, str]]:
    yield "moved", _table({"forecasts": d.forecasts_moved, "thresholds": d.thresholds_moved})
    yield "routes", _table(d.chosen)
    if d.scored:
        yield (
            "choices",
            f"{_difference(d.saved_usd, 'USD', 'less', 'more')} than individual calls, "
            f"{_difference(d.extra_usd, 'USD', 'more', 'less')} than batches, for the same tokens; "
            f"{_difference(d.saved_seconds, 's', 'sooner', 'later')} than the forecast of a batch",
        )
        yield (
            "forecasts",
            f"{d.within_p95:,} of {d.scored:,} within the 95 % forecast, {d.within_p50:,} within the median",
        )
    if d.deadlines_met or d.deadlines_missed:
        yield "deadlines", f"{d.deadlines_met:,} met, {d.deadlines_missed:,} missed"
    yield "rescued", _number(d.rescued, " batches withdrawn to meet a deadline")


def _difference(amount: float, unit: str, above: str, below: str) -> str:
    figure = money(abs(amount)) if unit == "USD" else duration(abs(amount))
    return f"{figure} {above if amount >= 0 else below}"


def _table(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n)


def _number(count: int, words: str = "") -> str:
    return f"{count:,}{words}" if count else ""
