"""The figures of one moment, and their plain form for JSON."""

from __future__ import annotations

import json
from typing import Any

from attrs import asdict, define, field, frozen

from smartbatch.observe.histogram import TimeStats
from smartbatch.types import Usage

__all__ = ["DecisionFigures", "EventCounts", "MetricsSnapshot", "RouteFigures"]

_NO_TIMES = TimeStats()
_NO_TOKENS = Usage()


@frozen
class DecisionFigures:
    """The choices of routes of a session.

    Attributes:
        chosen: lists and jobs by their route.
        scored: lists and jobs whose end was seen, which the figures below are about.
        saved_usd: what they cost less than the same tokens would have cost individually; below 0 for more.
        extra_usd: what they cost more than the same tokens by batch; below 0 for less.
        saved_seconds: what they took less than always-batch, by the forecast; below 0 for more.
        lost_seconds: what they took more than always-individual, likewise.
        within_p50, within_p95: lists that ended within what was forecast for half, and for 95 of 100.
        deadlines_met, deadlines_missed: lists with a deadline.
        rescued: batches that were taken back for a deadline.
    """

    chosen: dict[str, int] = field(factory=dict)
    scored: int = 0
    saved_usd: float = 0.0
    extra_usd: float = 0.0
    saved_seconds: float = 0.0
    lost_seconds: float = 0.0
    within_p50: int = 0
    within_p95: int = 0
    deadlines_met: int = 0
    deadlines_missed: int = 0
    rescued: int = 0


@define
class RouteFigures:
    """The requests that ended by one route.

    Attributes:
        succeeded, failed, cancelled: requests, by how they ended.
        input_tokens, output_tokens: tokens of all their calls, as far as they are known.
        cost: USD of those whose price is known.
    """

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def requests(self) -> int:
        """Requests that ended."""
        return self.succeeded + self.failed + self.cancelled


@define(kw_only=True)
class EventCounts:
    """What the events of a client add up to, since its start or the last ``reset()``.

    Attributes:
        succeeded, failed, cancelled: requests that ended, by how they ended. A request of a job that was not
            asked in real time counts when this process stores its result, as submitted and as ended.
        by_route: the same requests by route: ``individual``, ``shared`` (packed ones, too), ``flex``,
            ``batch``, ``cached``, ``local``, or ``none`` for those without an answer in real time and those
            of jobs that were not sent.
        deduplicated: requests that joined an identical one in flight, or in their job.
        local: requests answered without a call, by preprocessing.
        batches: calls started, retries included; every call carries one batch.
        shared_batches: the batches of two requests or more.
        failed_batches: calls that failed; ``call_failures`` has them by kind.
        retried_batches: calls whose most urgent request had been in a call before.
        sent: requests in calls, counted once for each call.
        batched: the part of ``sent`` that shared a call.
        largest_batch: requests of the largest call.
        call_failures: calls that failed, by kind.
        request_failures: requests that failed for good, by kind.
        retries_counted: retries that cost the request one of its tries.
        retries_uncounted: retries after a limit or during an outage, which cost it none.
        rate_limits: calls the provider refused for its limits.
        cooldowns: pauses begun; ``cooldown_seconds`` their announced length, overlaps counted once.
        breaker_changes: circuit breaker changes, by the state entered.
        parameters_dropped: parameters left out because the provider does not take them.
        usage: tokens of all calls and batches, failed ones included where the provider said.
        cost: USD of all calls and batches whose price is known.
        unpriced: ended requests whose calls have no known price: ``cost`` lacks them.
        possible_double_bills: retries after a call that may have been carried out although no answer came.
        failed_at_stop: requests failed because the time-out of ``stop`` ended.
        jobs_accepted, jobs_finished: jobs stored, and jobs whose last result was stored by this client.
        shard_changes: changes of jobs' batches, by the state entered.
        job_incidents: things that should not have happened to jobs.
        jobs_cost: the part of ``cost`` that is of jobs.
        jobs_saved: USD that this part is less than the same tokens would have cost in real time; below 0 for
            more.
        decisions: what the choices of routes brought.
    """

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    by_route: dict[str, RouteFigures] = field(factory=dict)
    deduplicated: int = 0
    local: int = 0
    batches: int = 0
    shared_batches: int = 0
    failed_batches: int = 0
    retried_batches: int = 0
    sent: int = 0
    batched: int = 0
    largest_batch: int = 0
    call_failures: dict[str, int] = field(factory=dict)
    request_failures: dict[str, int] = field(factory=dict)
    retries_counted: int = 0
    retries_uncounted: int = 0
    rate_limits: int = 0
    cooldowns: int = 0
    cooldown_seconds: float = 0.0
    breaker_changes: dict[str, int] = field(factory=dict)
    parameters_dropped: int = 0
    usage: Usage = _NO_TOKENS
    cost: float = 0.0
    unpriced: int = 0
    possible_double_bills: int = 0
    failed_at_stop: int = 0
    jobs_accepted: int = 0
    jobs_finished: int = 0
    shard_changes: dict[str, int] = field(factory=dict)
    job_incidents: int = 0
    jobs_cost: float = 0.0
    jobs_saved: float = 0.0
    decisions: DecisionFigures = field(factory=DecisionFigures)


@frozen(kw_only=True)
class MetricsSnapshot(EventCounts):
    """All figures of a client at one moment; they belong together.

    ``submitted == waiting + in_flight + succeeded + failed + cancelled`` always holds.

    Attributes:
        elapsed: seconds the client has been running.
        workers: threads that make calls.
        submitted: requests taken, joined ones included.
        waiting: requests that are in no call now: queued, gathered, or due for a retry.
        in_flight: requests that are in a call now.
        by_priority: requests submitted, by the priority's name; ``job`` for those of jobs that were not asked
            in real time.
        mean_batch_size, max_batch_size: requests a call, and the most allowed.
        queue_time: submission to the start of the call that answered.
        batch_time: one call, failed ones included.
        response_time: submission to the end, cancelled requests left out.
        busy_seconds: time workers spent in calls.
        efficiency: see :class:`~smartbatch.observe.metrics.BatchMetrics` for the formula; 0 to 1.
        queue_utilisation: ``waiting / queue_capacity``, 0 to 1; 0 where the capacity is unknown.
        utilisation: ``busy_seconds / (workers × elapsed)``, 0 to 1.
    """

    elapsed: float = 0.0
    workers: int = 0
    submitted: int = 0
    waiting: int = 0
    in_flight: int = 0
    by_priority: dict[str, int] = field(factory=dict)
    mean_batch_size: float = 0.0
    max_batch_size: int = 1
    queue_time: TimeStats = _NO_TIMES
    batch_time: TimeStats = _NO_TIMES
    response_time: TimeStats = _NO_TIMES
    busy_seconds: float = 0.0
    efficiency: float = 0.0
    utilisation: float = 0.0
    queue_utilisation: float = 0.0

    @property
    def total(self) -> int:
        """Requests that ended: ``succeeded + failed + cancelled``."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def retries(self) -> int:
        """All retries, counted or not."""
        return self.retries_counted + self.retries_uncounted

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain dicts, numbers and strings; ``total`` and ``retries`` included."""
        plain: dict[str, Any] = asdict(self, filter=lambda attribute, _: attribute.name != "octaves")
        return plain | {"total": self.total, "retries": self.retries}

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`as_dict` as JSON text.

        Args:
            indent: spaces a level; one line when ``None``.
        """
        return json.dumps(self.as_dict(), indent=indent)
