"""What jobs need of the client that started them: its providers, real time, its listeners, its money."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from attrs import frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.lease_ask import LeaseAsk, LeaseGrant
from smartbatch.core.limits.model_controls import ModelControls
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.rescue import Speed
from smartbatch.events import Event
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.retried_rows import Reopening, without_client
from smartbatch.providers.base import Provider
from smartbatch.types import Request, Result, RunCallback, call_now

EnqueuedExchange = Callable[[str, str, LeaseAsk], LeaseGrant | None]
"""Makes an exchange with what processes share of a provider's scope and a model."""


@frozen
class RealtimeItem:
    """An item of a job that is to be asked in real time.

    Attributes:
        request: checked and preprocessed when the job was stored.
        provider, model: who answers; the model's name without prefix.
        sink: gets the result, whatever comes of it, as it came: it is post-processed when it is read.
        own_budget: pays for it, within the client's budget; ``None`` where the client's budget pays.
        alone: whether it shares its call with no other request.
        flex: whether it goes in the provider's slower tier, where there is one.
        keeps_going: whether it is sent although the provider refuses the key, the account or the model.
        traceparent: the span of whoever submitted the job.
    """

    request: Request
    provider: Provider
    model: str
    sink: Callable[[Result], None]
    own_budget: Budget | None
    alone: bool
    flex: bool
    keeps_going: bool
    traceparent: str | None


@frozen(kw_only=True, eq=False, repr=False)
class JobWiring:
    """What jobs need of the client that carries them: real time, listeners, money. Made in one place.

    Attributes:
        providers: the client's own; they come first when the provider of a job is looked for.
        serve: called with a provider that was made for a job, before it is used.
        ask: submits an item in real time.
        drop: cancels what ``ask`` returned, if its call has not started.
        process: the user's post-processing of a result.
        new_future: makes a future whose callbacks run where they hold up nobody.
        tell: takes events; never raises.
        tell_dropped: takes the name of a parameter that was left out of a request, and why.
        exchange_enqueued: makes an exchange with the quota of enqueued tokens that processes share, of a
            provider's scope and a model; ``None`` where nothing is shared. It returns ``None`` while the
            back end is unavailable.
        control: given all that people set for models, whenever it changed in the store.
        report: told what went wrong: the job's id, where it is about one, and the error.
        speed: says how fast requests of a job are answered in real time.
        calibration: says what was learned of the tokens of a job's model.
        run_callback: calls the user's callbacks of progress.
        outer_budget: returns the budget that items of a job with a budget of its own spend from as well.
        reopen: has requests of a job asked again within the client's budget.
        parallelism: returns how many calls the client makes at once.
    """

    providers: tuple[Provider, ...]
    serve: Callable[[Provider], None]
    ask: Callable[[RealtimeItem], Future[Result]]
    drop: Callable[[Future[Result]], None]
    process: Callable[[Result], Result]
    new_future: Callable[[], Any]
    tell: Callable[[Event], None]
    report: Callable[[str | None, BaseException], None]
    speed: Callable[[JobRow], Speed]
    calibration: Callable[[JobRow], Calibration]
    run_callback: RunCallback = call_now
    outer_budget: Callable[[JobRow], Budget | None]
    reopen: Reopening = without_client
    tell_dropped: Callable[[str, str], None]
    control: Callable[[ModelControls], None]
    exchange_enqueued: EnqueuedExchange | None = None
    parallelism: Callable[[], int]
