"""Runtimes and wiring of jobs with defaults for tests."""

from __future__ import annotations

import random
from typing import Any, NoReturn, cast

from attrs import fields_dict

from smartbatch._clock import Clock, SteadyWall
from smartbatch.config import BatchingConfig
from smartbatch.core.forecast import DOCUMENTED_TIMES, Forecaster, Prior
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.routing.offers import Throughput
from smartbatch.core.routing.rescue import Speed
from smartbatch.jobs.client_store import SummaryLog
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wiring import JobRuntime, JobWiring, StepLimits
from smartbatch.observe import logs
from smartbatch.providers.price_book import PriceBook


def step_limits(**changes: Any) -> StepLimits:
    config = BatchingConfig()
    limits: dict[str, Any] = {
        "poll_interval": config.batch_poll_interval,
        "timeout": config.batch_timeout,
        "settle": config.batch_settle,
        "max_requests": config.batch_max_requests,
        "enqueued_tokens": config.batch_enqueued_tokens,
    }
    return StepLimits(**(limits | changes))


def job_wiring(**parts: Any) -> JobWiring:
    usual: dict[str, Any] = {
        "providers": (),
        "serve": lambda _: None,
        "send": _not_wired,
        "drop": lambda _: None,
        "process": lambda result: result,
        "new_future": _not_wired,
        "publish_event": lambda _: None,
        "report": logs.job_error,
        "speed": _assumed_speed,
        "calibration": lambda _: Calibration(),
        "outer_budget": lambda _: None,
        "warn_dropped": lambda _name, _reason: None,
        "control": lambda _: None,
        "parallelism": lambda: 4,
    }
    return JobWiring(**(usual | parts))


def job_runtime(store: SqlStore, clock: object, rng: random.Random, **parts: Any) -> JobRuntime:
    own = {name: parts.pop(name) for name in list(parts) if name in fields_dict(JobRuntime)}
    usual: dict[str, Any] = {
        "summaries": SummaryLog(cast(Clock, clock), lambda: store, part=1),
        "wall": SteadyWall(cast(Clock, clock)),
        "prices": PriceBook(),
        "limits": step_limits(),
        "provider_of": lambda _: None,
        "pause_of": lambda _: None,
        "publish_event": lambda _: None,
        "wiring": job_wiring(**parts),
    }
    return JobRuntime(store=store, clock=cast(Clock, clock), rng=rng, **(usual | own))


def _not_wired(*_: object) -> NoReturn:
    raise AssertionError("this test has no real-time side")


def _assumed_speed(_: JobRow) -> Speed:
    def seen(median: float, p95: float) -> Any:
        return Forecaster(Prior.of(median, p95)).at(0.0)

    throughput = Throughput(seen(2.0, 10.0), parallelism=4)
    return Speed(throughput, seen(150.0, 450.0), Forecaster(Prior(DOCUMENTED_TIMES)).at(0.0))
