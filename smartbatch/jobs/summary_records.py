"""The records of summaries: decisions on routes, groups of errors, and spending by hour."""

from __future__ import annotations

from attrs import define, field, frozen

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import Measured
from smartbatch.types import Usage


@frozen(kw_only=True)
class StoredDecision:
    """A decision on a route, with what it forecast and, once that is known, what it really took.

    Attributes:
        no: grows with every decision of the store; for reading page by page.
        at: Unix seconds.
        model: ``provider:model``.
        job_id: the job that went by it; ``None`` for a list in real time.
        route: that was chosen.
        requests: of the list.
        deadline: seconds it had; ``None`` for none.
        p50, p95: seconds until the last answer, forecast of the chosen route.
        cost: USD, likewise; ``None`` where the price is unknown, here and below.
        individual_p50, individual_cost: forecast of always-individual.
        batch_p50, batch_cost: forecast of always-batch; ``None`` where there is no Batch API for it, or it
            was not to be used.
        measured: ``None`` until the last answer is there, and where there was none.
        decision: with all it rests on; ``None`` where a newer release wrote it, or it was not asked for.
    """

    no: int
    at: float
    model: str
    job_id: str | None
    route: str
    requests: int
    deadline: float | None
    p50: float
    p95: float
    cost: float | None
    individual_p50: float
    individual_cost: float | None
    batch_p50: float | None
    batch_cost: float | None
    measured: Measured | None
    decision: Decision | None = field(repr=False)


@define
class Failures:
    """Requests that failed with the same kind of error and the same message.

    Attributes:
        kind: of the error, see :class:`~smartbatch.errors.ErrorKind`, or its class.
        message: the same for all, see :func:`~smartbatch.core.limits.error_patterns.pattern_of`.
        model: of one of them.
        count: how many.
        item: number of one of them in the store, where it is one of a job.
        request_id: id of one of them, where it is none.
    """

    kind: str
    message: str
    model: str
    count: int = 0
    item: int | None = None
    request_id: str | None = None


@frozen(kw_only=True)
class ErrorGroup:
    """Errors of the same kind and message. Of equal requests of a job, which share an answer, one counts.

    Attributes:
        kind: see :class:`~smartbatch.errors.ErrorKind`; the name of the error's class where it has none.
        message: what all have in common; ``#`` stands for numbers and ids.
        count: requests that failed so.
        first_at, last_at: Unix seconds.
        model: of the latest, as ``provider:model``.
        job_id: the job of the latest one, where it is of one that is still there.
        row: its position in the job.
        request_id: of the latest one; ``None`` where its job was forgotten.
    """

    kind: str
    message: str
    count: int
    first_at: float
    last_at: float
    model: str
    job_id: str | None
    row: int | None
    request_id: str | None


@define
class Spending:
    """What requests of one model by one route came to, within an hour or a part of it.

    Attributes:
        model: ``provider:model``.
        route: the value of a :class:`~smartbatch.Route`; empty for what was not sent.
        requests: that ended.
        failed: of these.
        usd: what they cost, as far as prices are known.
        realtime_usd: what the same tokens cost in real time.
        unpriced: requests whose price is unknown.
        input_tokens, output_tokens: that they used.
        hour: Unix seconds at which the hour began.
    """

    model: str
    route: str
    requests: int = 0
    failed: int = 0
    usd: float = 0.0
    realtime_usd: float = 0.0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    hour: float = 0.0

    def count(self, cost: float | None, usage: Usage, *, failed: bool) -> None:
        """Count a request in real time that ended; what it ``cost`` is ``None`` where no price is known."""
        unpriced = cost is None and (not failed or usage.total_tokens > 0)
        usd, tokens = cost or 0.0, (usage.input_tokens, usage.output_tokens)
        self.add(Spending(self.model, self.route, 1, int(failed), usd, usd, int(unpriced), *tokens))

    def add(self, more: Spending) -> None:
        """Count what further requests of the same model and route came to."""
        self.requests += more.requests
        self.failed += more.failed
        self.usd += more.usd
        self.realtime_usd += more.realtime_usd
        self.unpriced += more.unpriced
        self.input_tokens += more.input_tokens
        self.output_tokens += more.output_tokens
