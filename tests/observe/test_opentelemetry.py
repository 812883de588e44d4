"""Spans and measurements, read from the exporters in memory of OpenTelemetry's SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from contextvars import copy_context
from typing import Any

import pytest
from attrs import evolve, frozen
from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiProviderNameValues
from opentelemetry.trace import SpanKind, StatusCode

from smartbatch import Attempt, BatchingClient, ConfigError, Request
from smartbatch.events import BatchEnded, CalledRequest, Event, JobFinished, JobResultsStored
from smartbatch.observe.opentelemetry import OpenTelemetryObserver, Telemetry, traceparent
from smartbatch.providers.hosts import HOSTS
from smartbatch.testing import emulator
from smartbatch.types import NO_USAGE, Kind, Route, Usage
from tests.observe.sample_events import called, ended, started


@frozen
class Collected:
    spans: InMemorySpanExporter
    tracers: TracerProvider
    reader: InMemoryMetricReader
    meters: MeterProvider

    def observer(self, telemetry: Telemetry = "auto") -> OpenTelemetryObserver:
        return OpenTelemetryObserver(telemetry, tracer_provider=self.tracers, meter_provider=self.meters)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def measured(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: metric.data.data_points
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def sdk():
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    yield Collected(exporter, tracers, reader, meters)
    tracers.shutdown()
    meters.shutdown()


def failing_once(request: Request, attempt: Attempt) -> str:
    if attempt == 0:
        raise ConnectionError("once")
    return "yes"


def test_a_request_is_a_span_below_its_caller_and_above_its_calls(sdk):
    tracer = sdk.tracers.get_tracer("mine")
    with BatchingClient("sim:demo?latency=0", observers=[sdk.observer()], retry_initial=0.01) as client:
        with tracer.start_as_current_span("view"):
            future = client.submit(Request("x", call=failing_once, id="r1", purpose="labels"))
        future.result(30)
        client.stop()
    (view,), (request,), calls = (
        sdk.named(name) for name in ("view", "smartbatch.request", "smartbatch.call")
    )
    assert request.parent == view.context
    assert [call.parent for call in calls] == [request.context] * 2
    assert [call.attributes["smartbatch.call.attempt"] for call in calls if call.attributes] == [0, 1]
    assert [call.status.status_code for call in calls] == [StatusCode.ERROR, StatusCode.UNSET]
    assert request.attributes is not None
    assert request.attributes["smartbatch.request.id"] == "r1"
    assert request.attributes["smartbatch.purpose"] == "labels"
    assert request.attributes["smartbatch.request.attempts"] == 2


def test_the_span_of_a_call_is_current_while_it_is_made_and_no_longer(sdk):
    seen: list[trace.Span] = []

    def call(request: Request, attempt: Attempt) -> str:
        seen.append(trace.get_current_span())
        return "yes"

    with BatchingClient("sim:demo?latency=0", observers=[sdk.observer()]) as client:
        client.submit(Request("x", call=call)).result(30)
        client.stop()
    assert [span.get_span_context() for span in seen] == [sdk.named("smartbatch.call")[0].context]
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(
    ("host", "name", "operation"),
    [
        ("azure", "azure.ai.openai", "chat"),
        ("groq", "groq", "chat"),
        pytest.param("gemini", "gcp.gemini", "generate_content", marks=pytest.mark.full),
    ],
)
def test_a_call_has_the_name_of_its_host_in_the_conventions(host, name, operation, sdk):
    with emulator() as server:
        url = server.url if host == "gemini" else server.base_url
        options = {"api_key": "key-of-a-test", "base_url": url}
        with BatchingClient(f"{host}:m", provider_options=options, observers=[sdk.observer()]) as client:
            client.submit("hello").result(30)
            client.stop()
    (call,) = sdk.named(f"{operation} m")
    assert call.attributes is not None
    assert call.attributes["gen_ai.provider.name"] == name


def test_the_names_of_hosts_are_those_of_the_conventions():
    known = {each.value for each in GenAiProviderNameValues}
    assert {host.telemetry_name for host in HOSTS.values()} - {None} <= known


def test_a_call_of_a_model_has_the_names_of_the_conventions_and_no_prompt(sdk):
    with BatchingClient("sim:demo?latency=0", observers=[sdk.observer()]) as client:
        used = client.submit("a secret prompt").result(30).usage
        client.stop()
    (call,) = sdk.named("chat demo")
    assert call.kind is SpanKind.CLIENT
    assert call.attributes is not None
    assert call.attributes["gen_ai.provider.name"] == "sim"
    assert call.attributes["gen_ai.usage.input_tokens"] == used.input_tokens
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in sdk.measured()["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": used.input_tokens, "output": used.output_tokens}
    assert sdk.measured()["gen_ai.client.operation.duration"][0].count == 1
    assert sdk.measured()["smartbatch.request.wait"][0].attributes == {
        "smartbatch.model": "sim:demo",
        "smartbatch.route": "individual",
    }
    assert not any("secret" in span.to_json() for span in sdk.spans.get_finished_spans())


@pytest.mark.parametrize(
    ("telemetry", "own_code", "full"),
    [("auto", False, True), ("auto", True, False), ("outer", False, False), ("full", True, True)],
)
def test_tokens_are_counted_here_or_by_those_inside(sdk, telemetry, own_code, full):
    observer = sdk.observer(telemetry)

    def call(request: Request, attempt: Attempt) -> str:
        return "yes"

    with BatchingClient("sim:demo?latency=0", observers=[observer]) as client:
        client.submit(Request("x", call=call if own_code else None)).result(30)
        client.stop()
    assert len(sdk.named("chat demo")) == full
    assert len(sdk.named("smartbatch.call")) == (not full)
    names = {name for span in sdk.spans.get_finished_spans() for name in span.attributes or ()}
    assert any(name.startswith("gen_ai.usage.") for name in names) is full
    assert ("gen_ai.client.operation.duration" in sdk.measured()) is full


def test_the_input_has_the_tokens_that_a_cache_wrote_under_their_new_name(sdk):
    usage = Usage(100, 5, cached_tokens=60, cache_write_tokens=30)
    tell_alone(sdk.observer(), started(), called(usage=usage))
    attributes = sdk.spans.get_finished_spans()[0].attributes
    assert attributes is not None
    assert {name: value for name, value in attributes.items() if name.startswith("gen_ai.usage.")} == {
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_write.input_tokens": 30,
    }


def tell_alone(observer: OpenTelemetryObserver, *events: Event) -> None:
    def publish_event() -> None:
        for event in events:
            observer(event)

    copy_context().run(publish_event)


def asked(request_id: str) -> CalledRequest:
    return CalledRequest(
        request_id=request_id, purpose=None, context=None, submitted=0.0, variables=copy_context()
    )


def test_requests_that_share_a_call_are_linked_to_it(sdk):
    names = ("first", "second", "third")
    requests = []
    for name in names:
        with sdk.tracers.get_tracer("mine").start_as_current_span(name):
            requests.append(asked(name))
    begin = evolve(started(size=3), kind=Kind.EMBED, requests=tuple(requests))
    tell_alone(sdk.observer(), begin, called(size=3), *map(ended, names))
    by_id = {
        span.attributes["smartbatch.request.id"]: span
        for span in sdk.named("smartbatch.request")
        if span.attributes
    }
    assert [by_id[name].parent for name in names] == [sdk.named(name)[0].context for name in names]
    (call,) = sdk.named("embeddings small")
    assert call.parent == by_id["first"].context
    assert [link.context for link in call.links] == [by_id[name].context for name in names[1:]]


def test_a_request_that_was_cancelled_is_a_span_of_its_own(sdk):
    tell_alone(sdk.observer(), ended(ok=False, cancelled=True, attempts=0, route=None))
    (request,) = sdk.named("smartbatch.request")
    assert request.attributes is not None
    assert request.attributes["error.type"] == "cancelled"
    assert request.end_time is not None
    assert request.start_time is not None
    assert request.end_time - request.start_time >= 1.5e9  # as long as it waited


def test_a_job_and_its_batch_are_linked_to_whoever_submitted(sdk):
    observer = sdk.observer()
    with sdk.tracers.get_tracer("mine").start_as_current_span("view"):
        submitted = traceparent()
    for event in batch_events(submitted):
        observer(event)
    (view,), (batch,), (job,) = (sdk.named(name) for name in ("view", "smartbatch.batch", "smartbatch.job"))
    for span in (batch, job):
        assert links_of(span) == [ids_of(view.context)]
        assert span.parent is None
    measured = sdk.measured()
    assert [point.sum for point in measured["smartbatch.batch.turnaround"]] == [600.0]
    assert [point.value for point in measured["smartbatch.saved"]] == [pytest.approx(0.5)]
    assert measured["smartbatch.batch.turnaround"][0].explicit_bounds[-1] == 86_400


@pytest.mark.full
def test_another_process_carries_the_trace_of_a_job_on(sdk, tmp_path):
    tracer, store = sdk.tracers.get_tracer("mine"), str(tmp_path / "jobs.db")
    with BatchingClient("sim:demo?batch_seconds=0.1", store=store) as before:
        for key, strategy in (("by batch", "batch"), ("in real time", "individual")):
            with tracer.start_as_current_span(key):
                plan = before.plan(["one", "two"], strategy=strategy)
                before.submit_run(["one", "two"], plan, key=key, carry_on=False)
        before.stop(cancel_waiting=True)
    sdk.spans.clear()
    views = {}

    def watch(event: Event) -> None:
        if isinstance(event, JobFinished):
            assert event.traceparent is not None
            views[event.job_id] = event.traceparent

    settings = {"store": store, "batch_poll_interval": 0.05}
    with BatchingClient("sim:demo?batch_seconds=0.1", observers=[sdk.observer(), watch], **settings) as after:
        jobs = [after.job(key) for key in ("by batch", "in real time")]
        for job in jobs:
            job.wait(60)
    by_batch, in_real_time = (views[job.id].split("-")[1:3] for job in jobs)
    assert by_batch != in_real_time
    assert [links_of(span) for span in sdk.named("smartbatch.batch")] == [[tuple(by_batch)]]
    assert {links_of(span)[0] for span in sdk.named("smartbatch.job")} == {
        tuple(by_batch),
        tuple(in_real_time),
    }
    requests = [span.parent for span in sdk.named("smartbatch.request")]
    assert [ids_of(parent) for parent in requests] == [tuple(in_real_time)] * 2


def ids_of(context: trace.SpanContext | None) -> tuple[str, str]:
    assert context is not None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def links_of(span: ReadableSpan) -> list[tuple[str, str]]:
    return [ids_of(link.context) for link in span.links]


def test_a_client_tells_the_sdk_of_the_application_by_its_setting(sdk, monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: sdk.tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: sdk.meters)
    for settings in ({}, {"telemetry": "outer"}, {"telemetry": "off"}):
        with BatchingClient("sim:demo?latency=0", **settings) as client:
            client.submit("x").result(30)
    names = sorted(span.name for span in sdk.spans.get_finished_spans())
    assert names == ["chat demo", "smartbatch.call", "smartbatch.request", "smartbatch.request"]


def test_an_observer_of_the_users_counts_instead_of_the_setting(sdk, monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: sdk.tracers)
    with BatchingClient("sim:demo?latency=0", observers=[sdk.observer("outer")]) as client:
        client.submit("x").result(30)
    assert sorted(span.name for span in sdk.spans.get_finished_spans()) == [
        "smartbatch.call",
        "smartbatch.request",
    ]


def test_prompts_and_answers_are_in_the_span_of_a_call_where_that_is_set(sdk):
    chat = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "second"}]
    chat.append({"role": "user", "content": "third"})
    with BatchingClient(
        "sim:demo?latency=0", observers=[sdk.observer()], telemetry_content=True, system="Be brief."
    ) as client:
        answer = client.submit(chat).result(30)
        client.stop()
    (call,) = sdk.named("chat demo")
    assert call.attributes is not None
    said = {name: json.loads(str(call.attributes[f"gen_ai.{name}"])) for name in CONTENT}
    assert [message["role"] for message in said["input.messages"]] == ["user", "assistant", "user"]
    assert said["input.messages"][2]["parts"] == [{"type": "text", "content": "third"}]
    assert said["output.messages"][0]["parts"] == [{"type": "text", "content": answer.text}]
    assert said["output.messages"][0]["finish_reason"] == "stop"
    assert said["system_instructions"] == [{"type": "text", "content": "Be brief."}]


CONTENT = ("input.messages", "output.messages", "system_instructions")


def test_content_is_not_recorded_by_a_client_that_records_nothing():
    with pytest.raises(ConfigError, match="telemetry_content"):
        BatchingClient("sim:demo", telemetry="off", telemetry_content=True)


@pytest.mark.full
def test_without_the_package_only_explicit_telemetry_fails():
    code = """
import sys
sys.modules["opentelemetry"] = None  # as if it was not installed
import smartbatch
assert smartbatch.generate(["x"], model="sim:demo?latency=0")[0].ok
try:
    smartbatch.BatchingClient("sim:demo", telemetry="full")
except smartbatch.ConfigError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'smartbatch-llm[otel]'" in found.stdout


def batch_events(submitted: str | None = None) -> list[Event]:
    shared: dict[str, Any] = {"at": 600.0, "job_id": "j", "model": "sim:m"}
    money: dict[str, Any] = {"cost": 0.5, "realtime_cost": 1.0, "unpriced": 0}
    counts = {"succeeded": 2, "failed": 0, "cancelled": 0}
    times: dict[str, Any] = {"ended_at": 1e9, "seconds": 600.0, "cancelling": None, "traceparent": submitted}
    batch: dict[str, Any] = {"shard_id": "s", "batch_id": "b", "kind": Kind.GENERATE, "size": 2, "tokens": 20}
    route: dict[str, Any] = {"route": Route.BATCH, "in_realtime": False, "deduplicated": 0, "usage": NO_USAGE}
    return [
        BatchEnded(state="completed", **batch, **times, **shared),
        JobResultsStored(**route, **counts, **money, **shared),
        JobFinished(seconds=601.0, traceparent=submitted, **counts, **money, **shared),
    ]


def test_without_an_sdk_nothing_is_told_and_no_span_is_current():
    observer = OpenTelemetryObserver(
        tracer_provider=trace.NoOpTracerProvider(), meter_provider=NoOpMeterProvider()
    )
    seen: list[trace.Span] = []

    def call(request: Request, attempt: Attempt) -> str:
        seen.append(trace.get_current_span())
        return "yes"

    with BatchingClient("sim:demo?latency=0", observers=[observer]) as client:
        client.submit(Request("x", call=call)).result(30)
    assert seen == [trace.INVALID_SPAN]


def test_another_word_for_the_telemetry_is_refused():
    with pytest.raises(ConfigError, match="auto, outer, full"):
        OpenTelemetryObserver("inner")  # type: ignore[arg-type]


@pytest.mark.full
def test_the_library_does_not_import_it():
    code = (
        "import sys, smartbatch, smartbatch.observe.opentelemetry as _; print('opentelemetry' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
