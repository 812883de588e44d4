"""The figures for Prometheus."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from prometheus_client import REGISTRY, CollectorRegistry
from sample_events import called, ended, started, submitted

from smartbatch.errors import ConfigError, SmartbatchError
from smartbatch.events import BreakerChanged, CooldownStarted
from smartbatch.observe.families import sums_of
from smartbatch.observe.metric import KINDS
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import LaneStatus, Participant, Participants, RealtimeStatus
from smartbatch.observe.prometheus import BUCKET_BOUNDS_SECONDS, PrometheusReporter
from smartbatch.types import Priority, Route, Usage


@pytest.fixture
def metrics():
    return BatchMetrics(max_batch_size=4, now=lambda: 10.0)


def test_a_scrape_reads_the_figures_of_its_moment(metrics):
    registry = PrometheusReporter(metrics).registry
    assert registry.get_sample_value("smartbatch_requests_submitted_total", {"priority": "normal"}) == 0
    for event in (submitted(), started(2), called(2, usage=Usage(7, 3), cost=0.5), ended()):
        metrics(event)
    value = registry.get_sample_value
    assert value("smartbatch_requests_submitted_total", {"priority": "normal"}) == 1
    assert value("smartbatch_requests_ended_total", {"outcome": "succeeded"}) == 1
    assert value("smartbatch_requests_pending", {"state": "waiting"}) == 0
    assert value("smartbatch_tokens_total", {"type": "input"}) == 7
    assert value("smartbatch_cost_usd_total") == 0.5
    assert value("smartbatch_efficiency") == 0.5


@pytest.mark.parametrize("seconds", [[0.0003, 0.5, 0.6, 3.0], [2.5], [200_000.0, 0.1], []])
def test_time_histograms_are_cumulative_and_agree_with_their_count(metrics, seconds):
    for each in seconds:
        metrics(called(seconds=each))
    registry = PrometheusReporter(metrics).registry
    counts = []
    for bound in BUCKET_BOUNDS_SECONDS:
        count = registry.get_sample_value("smartbatch_call_seconds_bucket", {"le": repr(bound)})
        # the last bound, 36 hours, also has what is longer
        assert count == sum(s <= bound for s in seconds) or bound == BUCKET_BOUNDS_SECONDS[-1]
        counts.append(count)
    assert counts == sorted(counts)  # type: ignore[type-var]
    assert registry.get_sample_value("smartbatch_call_seconds_bucket", {"le": "+Inf"}) == len(seconds)
    assert registry.get_sample_value("smartbatch_call_seconds_count") == len(seconds)
    assert registry.get_sample_value("smartbatch_call_seconds_sum") == pytest.approx(sum(seconds))


def test_labels_come_from_closed_sets(metrics):
    reporter = PrometheusReporter(metrics)
    for i in range(1000):
        odd = f"canary {i}"
        metrics(called(error=odd))
        metrics(ended(odd, ok=False, error=odd, model=odd))
        metrics(CooldownStarted(at=0.0, scope=odd, model=odd, seconds=1.0, consecutive=1))
        metrics(BreakerChanged(at=0.0, model=odd, before="closed", after=odd, reason=odd))
    assert b"canary" not in reporter.text()
    allowed = {
        *KINDS,
        *(priority.name.lower() for priority in Priority),
        *("succeeded", "failed", "cancelled", "waiting", "in_flight", "counted", "uncounted"),
        *("input", "output", "closed", "open", "half_open", "stopped"),
        *("met", "missed", "p50", "p95", "all"),
        *(route.value for route in Route),
    }
    for family in reporter.registry.collect():
        for sample in family.samples:
            assert {v for k, v in sample.labels.items() if k != "le"} <= allowed


def test_the_registry_is_its_own_unless_given(metrics):
    assert PrometheusReporter(metrics).registry is not REGISTRY
    shared = CollectorRegistry()
    reporter = PrometheusReporter(metrics, shared)
    assert reporter.registry is shared
    reporter.close()
    assert list(shared.collect()) == []


def test_two_clients_in_one_registry_are_refused(metrics):
    shared = CollectorRegistry()
    PrometheusReporter(metrics, shared)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusReporter(BatchMetrics(), shared)


def participants(metrics: BatchMetrics) -> Participants:
    known = {"library": "0.1.0", "started": 0.0, "host": "h"}
    limit = LaneStatus(model="sim:a", requests_per_minute=600.0, requests_left=40.0, cooldown=2.0)
    lower = evolve(limit, requests_per_minute=500.0, cooldown=0.0, breaker="open")
    one = RealtimeStatus(waiting=3, waits={"limit": 3}, oldest_wait=4.0, workers=4, lanes=(limit,))
    other = RealtimeStatus(waiting=1, waits={"limit": 1}, oldest_wait=9.0, workers=4, lanes=(lower,))
    return Participants(
        place="here",
        sums=sums_of(metrics.snapshot()) | {"shared_operations:publish": 5.0},
        processes=(
            Participant(member="1", pid=1, realtime=one, errors={"timeout": 5.0}, age=1.0, **known),
            Participant(member="2", pid=2, realtime=other, **known),
            Participant(member="3", pid=3, realtime=other, age=60.0, **known),
            Participant(member="4", pid=4, ended=True, age=60.0, **known),
        ),
    )


def test_the_figures_of_all_processes_have_the_names_of_those_of_one(metrics):
    for event in (submitted(), started(2), called(2, usage=Usage(7, 3), cost=0.5, seconds=0.3), ended()):
        metrics(event)

    def added_up(reporter: PrometheusReporter) -> set[tuple[str, str, float]]:
        return {
            (sample.name, str(sample.labels), sample.value)
            for family in reporter.registry.collect()
            if family.type in ("counter", "histogram")
            for sample in family.samples
            if sample.value and "operation" not in sample.labels
        }

    names = [family.name for family in PrometheusReporter(lambda: participants(metrics)).registry.collect()]
    assert len(names) == len(set(names))
    alike = added_up(PrometheusReporter(metrics))
    assert len(alike) > 60
    assert added_up(PrometheusReporter(lambda: participants(metrics))) == alike


def test_what_is_now_is_of_the_processes_that_live(metrics):
    value = PrometheusReporter(lambda: participants(metrics)).registry.get_sample_value
    assert {
        state: value("smartbatch_participants", {"state": state}) for state in ("living", "lost", "ended")
    } == {"living": 2, "lost": 1, "ended": 1}
    assert value("smartbatch_requests_waiting", {"cause": "limit"}) == 4
    assert value("smartbatch_oldest_wait_seconds") == 9
    assert value("smartbatch_workers") == 8
    assert value("smartbatch_limit_requests_per_minute", {"model": "sim:a"}) == 500
    assert value("smartbatch_limit_requests_left", {"model": "sim:a"}) == 40
    assert value("smartbatch_cooldown_left_seconds", {"model": "sim:a"}) == 2
    assert value("smartbatch_breakers_open", {"model": "sim:a"}) == 1
    assert value("smartbatch_last_error_age_seconds", {"kind": "timeout"}) == 6
    assert value("smartbatch_shared_operations_total", {"operation": "publish"}) == 5
    assert value("smartbatch_shared_reachable") == 1


def test_a_place_that_is_unavailable_is_a_figure_and_no_failed_scrape():
    def read() -> Participants:
        raise SmartbatchError("away")

    assert PrometheusReporter(read).text().splitlines()[-1] == b"smartbatch_shared_reachable 0.0"


def test_a_missing_library_names_the_extra(metrics, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"smartbatch-llm\[prometheus\]"):
        PrometheusReporter(metrics)


@pytest.mark.full
def test_listeners_are_imported_without_what_they_show_with():
    code = (
        "import sys, smartbatch.observe.metrics, smartbatch.observe.logs, smartbatch.observe.progress,"
        " smartbatch.observe.reporters, smartbatch.observe.prometheus\n"
        "print({'structlog', 'tqdm', 'prometheus_client', 'IPython'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", ["board.json", "alerts.yml"])
def test_the_examples_name_figures_that_there_are(name, metrics):
    text = (Path(__file__).parents[2] / "examples" / "prometheus" / name).read_text("utf-8")
    offered = list(PrometheusReporter(lambda: participants(metrics)).registry.collect())
    known = {family.name + "_total" * (family.type == "counter") for family in offered}
    known |= {sample.name for family in offered for sample in family.samples}
    labels = {sample.name: set(sample.labels) for family in offered for sample in family.samples}
    named = re.findall(r"\bsmartbatch_[a-z_]+\b", text)
    assert len(named) >= 8
    assert set(named) - known == set()
    for figure, label in re.findall(r"\b(smartbatch_[a-z_]+)\{(\w+)=", text):
        assert label in labels[figure]
