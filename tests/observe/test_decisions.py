"""What the choices of routes brought, in figures, words and logs."""

from __future__ import annotations

import pytest

from smartbatch.events import JobRescued, RouteChosen, RouteScored
from smartbatch.observe.logs import level_of
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.prometheus import PrometheusReporter
from smartbatch.observe.reporters import status_summary
from smartbatch.types import Route


def chosen(route: Route) -> RouteChosen:
    return RouteChosen(
        at=0.0,
        decision_id="decision-1",
        model="m",
        purpose=None,
        requests=40,
        route=route,
        first=0,
        reason="cheap",
        p50=60.0,
        p95=90.0,
        cost=0.5,
        options=(),
    )


def scored(**changes: object) -> RouteScored:
    figures: dict[str, object] = {
        "at": 0.0,
        "decision_id": "decision-1",
        "model": "m",
        "requests": 40,
        "route": Route.BATCH,
        "seconds": 80.0,
        "cost": 0.5,
        "forecast_p50": 60.0,
        "forecast_p95": 90.0,
        "forecast_cost": 0.5,
        "individual_seconds": 20.0,
        "individual_cost": 1.0,
        "batch_seconds": 80.0,
        "batch_cost": 0.5,
        "met": None,
    }
    return RouteScored(**{**figures, **changes})  # type: ignore[arg-type]


@pytest.fixture
def metrics():
    return BatchMetrics()


def test_money_and_time_are_added_up_against_both_plain_routes(metrics):
    metrics(chosen(Route.BATCH))
    metrics(chosen(Route.INDIVIDUAL))
    metrics(scored())
    metrics(scored(route=Route.INDIVIDUAL, seconds=2.0, cost=0.1, individual_cost=0.1, batch_cost=0.05))
    figures = metrics.snapshot().decisions
    assert figures.chosen == {"batch": 1, "individual": 1}
    assert figures.saved_usd == pytest.approx(0.5)
    assert figures.extra_usd == pytest.approx(0.05)
    assert figures.saved_seconds == pytest.approx(78.0)
    assert figures.lost_seconds == pytest.approx(60.0 - 18.0)
    assert (figures.within_p50, figures.within_p95, figures.scored) == (1, 2, 2)


def test_unknown_prices_and_absent_batches_change_no_sum(metrics):
    metrics(scored(cost=None, batch_seconds=None))
    figures = metrics.snapshot().decisions
    assert (figures.saved_usd, figures.extra_usd, figures.saved_seconds) == (0.0, 0.0, 0.0)
    assert figures.scored == 1


def test_deadlines_and_rescues_are_counted_and_a_missed_one_is_a_warning(metrics):
    metrics(scored(met=True))
    metrics(scored(met=False))
    metrics(
        JobRescued(at=0.0, job_id="job-1", shard_id="shard-1", model="m", requests=40, left=100.0, needs=90.0)
    )
    figures = metrics.snapshot().decisions
    assert (figures.deadlines_met, figures.deadlines_missed, figures.rescued) == (1, 1, 1)
    assert level_of(scored(met=False)) == "warning"
    assert level_of(scored(met=True)) == "info"


def test_the_summary_says_what_was_chosen_and_what_it_brought(metrics):
    assert "routes" not in status_summary(metrics.snapshot())
    metrics(chosen(Route.BATCH))
    metrics(scored(met=True))
    text = status_summary(metrics.snapshot())
    assert "routes" in text
    assert "$0.50 less than individual calls, $0 more than batches" in text
    assert "1 of 1 within the 95 % forecast" in text
    assert "1 met, 0 missed" in text


def test_prometheus_gets_them_and_a_reset_forgets_them(metrics):
    reporter = PrometheusReporter(metrics)
    metrics(chosen(Route.HYBRID))
    metrics(scored())
    assert b'smartbatch_routes_total{route="hybrid"} 1.0' in reporter.text()
    assert b"smartbatch_routes_saved_usd 0.5" in reporter.text()
    metrics.reset()
    assert metrics.snapshot().decisions.scored == 0
    assert metrics.snapshot().decisions.chosen == {}
