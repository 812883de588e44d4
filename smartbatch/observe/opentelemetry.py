"""Spans and measurements for OpenTelemetry. Needs the extra ``otel``; off unless an SDK is set up.

Each request has a span, with a child for each call. A call that several requests share is a child of the
first and linked to the others. Batches and jobs have separate spans, linked to the span in which the job was
submitted; the span's context is stored with the job, so another process that resumes the job continues the
trace. Names follow the semantic conventions for generative AI as of November 2026, or begin with
``smartbatch.``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypeVar, get_args

from attrs import frozen

from smartbatch._fork import imported
from smartbatch.chats import Part
from smartbatch.errors import ConfigError
from smartbatch.events import (
    BatchEnded,
    CalledRequest,
    CallFinished,
    CallStarted,
    Event,
    JobFinished,
    JobResultsStored,
    Observer,
    RequestFinished,
)
from smartbatch.providers.hosts import COMPATIBLE, HOSTS
from smartbatch.types import Answer, Kind, Message, Request, ToolCall, Usage

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider


Telemetry: TypeAlias = Literal["auto", "outer", "full"]
"""Which calls are reported as model calls, with their tokens: all (``full``), none (``outer``), or all but
those of the user's functions and providers, which may report their own (``auto``)."""

_SCOPE: Final = "smartbatch"
_SEARCH_SECONDS: Final = 0.1  # minimum between searches for an SDK
_TOKENS: Final = tuple(4.0**power for power in range(14))
_SECONDS: Final = tuple(0.01 * 2.0**power for power in range(14))
_LONG: Final = (*_SECONDS, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 57600.0, 86400.0)

Attributes: TypeAlias = "dict[str, str | int | float | bool]"


@frozen
class _TracedCall:
    span: Span | None
    model: Attributes
    full: bool


_CALL: ContextVar[_TracedCall | None] = ContextVar("smartbatch_call", default=None)


@frozen
class _Instruments:
    tokens: Histogram
    duration: Histogram
    wait: Histogram
    turnaround: Histogram
    saved: Any

    @classmethod
    def of(cls, meter: Meter) -> _Instruments:
        def histogram(name: str, unit: str, about: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=bounds)

        return cls(
            histogram("gen_ai.client.token.usage", "{token}", "Tokens used by a call", _TOKENS),
            histogram("gen_ai.client.operation.duration", "s", "Duration of a call", _SECONDS),
            histogram("smartbatch.request.wait", "s", "Time from submission to the last call", _LONG),
            histogram("smartbatch.batch.turnaround", "s", "Time from a batch's creation to its end", _LONG),
            meter.create_counter("smartbatch.saved", "{USD}", "USD saved by batches compared with real time"),
        )


class OpenTelemetryObserver:
    """An observer that reports requests, calls, batches and jobs to OpenTelemetry.

    The setting ``telemetry`` adds such an observer to a client, unless the client's ``observers`` already
    contain one.

    Args:
        telemetry: which calls are reported as model calls; some may already be reported elsewhere.
        tracer_provider, meter_provider: providers to report to; ``None`` for those of the application, once
            it has set them up.

    Raises:
        ConfigError: ``telemetry`` has an unknown value, or is not ``"auto"`` and ``opentelemetry-api`` is not
            installed.
    """

    def __init__(
        self,
        telemetry: Telemetry = "auto",
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if telemetry not in get_args(Telemetry):
            raise ConfigError(f"telemetry = {telemetry!r} must be one of {', '.join(get_args(Telemetry))}")
        if telemetry != "auto" and not _is_installed():
            raise ConfigError(
                f"telemetry = {telemetry!r} needs the extra 'otel': pip install 'smartbatch-llm[otel]'"
            )
        self._look_again = float("-inf")
        self._telemetry = telemetry
        self._tracer_provider, self._meter_provider = tracer_provider, meter_provider
        self._tracer: Tracer | None = None
        self._instruments: _Instruments | None = None
        self._requests: dict[str, Span] = {}

    def __call__(self, event: Event) -> None:
        handler = self._HANDLERS.get(type(event))
        if handler is not None and self._is_on(event.at):
            handler(self, event)

    def _is_on(self, now: float) -> bool:
        """Search until there is an SDK for spans and one for measurements.

        The search is not repeated for every event, because it reads the environment.
        """
        if self._tracer is None or self._instruments is None:
            trace = sys.modules.get("opentelemetry.trace")
            if trace is None:  # an SDK would have imported ``opentelemetry``
                return False
            if now < self._look_again:
                return self._tracer is not None or self._instruments is not None
            metrics = sys.modules.get("opentelemetry.metrics")
            tracers = self._tracer_provider or trace.get_tracer_provider()
            meters = self._meter_provider or (None if metrics is None else metrics.get_meter_provider())
            if self._tracer is None and not _is_of_api(tracers):
                self._tracer = tracers.get_tracer(_SCOPE)
            if self._instruments is None and meters is not None and not _is_of_api(meters):
                self._instruments = _Instruments.of(meters.get_meter(_SCOPE))
            self._look_again = now + _SEARCH_SECONDS
        return self._tracer is not None or self._instruments is not None

    # -- requests and calls ----------------------------------------------------------------------------------

    def _call_started(self, event: CallStarted) -> None:
        full = self._telemetry == "full" or (self._telemetry == "auto" and not event.own_code)
        model: Attributes = _model(event) if full else {"smartbatch.model": event.model}
        _CALL.set(_TracedCall(None if self._tracer is None else self._begin(event, model, full), model, full))

    def _begin(self, event: CallStarted, model: Attributes, full: bool) -> Span:
        from opentelemetry import context, trace

        assert self._tracer is not None
        asked = [self._request_span(self._tracer, one, event.at) for one in event.requests]
        span = self._tracer.start_span(
            f"{model['gen_ai.operation.name']} {model['gen_ai.request.model']}"
            if full
            else "smartbatch.call",
            trace.set_span_in_context(asked[0]) if asked else None,
            trace.SpanKind.CLIENT if full else trace.SpanKind.INTERNAL,
            {
                **model,
                "smartbatch.call.id": event.batch_id,
                "smartbatch.call.size": event.size,
                "smartbatch.call.attempt": event.attempt,
            },
            [trace.Link(one.get_span_context()) for one in asked[1:]],
        )
        context.attach(trace.set_span_in_context(span))  # never detached: each call has its own context
        return span

    def _request_span(self, tracer: Tracer, request: CalledRequest, now: float) -> Span:
        span = self._requests.get(request.request_id)
        if span is None:
            from opentelemetry import context

            caller = request.variables.copy().run(context.get_current)
            start = time.time_ns() - int(1e9 * max(0.0, now - request.submitted))
            span = tracer.start_span("smartbatch.request", caller, start_time=start)
            self._requests[request.request_id] = span
        return span

    def _call_finished(self, event: CallFinished) -> None:
        call = _CALL.get()
        if call is None:  # an SDK was set up after the call had started
            return
        if call.span is not None:
            found: Attributes = {} if event.route is None else {"smartbatch.route": event.route.value}
            if call.full:
                found |= _usage(event.usage)
            if event.cost is not None:
                found["smartbatch.cost_usd"] = event.cost
            _end(call.span, found, event.error)
        if self._instruments is None or not call.full:
            return
        failed: Attributes = {} if event.error is None else {"error.type": event.error}
        self._instruments.duration.record(event.seconds, {**call.model, **failed})
        for kind, tokens in (("input", event.usage.input_tokens), ("output", event.usage.output_tokens)):
            if tokens:
                self._instruments.tokens.record(tokens, {**call.model, "gen_ai.token.type": kind})

    def _request_finished(self, event: RequestFinished) -> None:
        """End the span of a request; if no call was made, record the whole span."""
        found: Attributes = {"smartbatch.model": event.model}
        if event.route is not None:
            found["smartbatch.route"] = event.route.value
        if self._instruments is not None:
            self._instruments.wait.record(event.queued, found)
        if self._tracer is None:
            return
        span = self._requests.pop(event.request_id, None)
        if span is None:
            start = time.time_ns() - int(1e9 * event.seconds)
            span = self._tracer.start_span("smartbatch.request", start_time=start)
        found = {  # a copy, because the histogram keeps its argument
            **found,
            "smartbatch.request.id": event.request_id,
            "smartbatch.request.attempts": event.attempts,
            "smartbatch.request.wait": event.queued,
            "smartbatch.request.deduplicated": event.deduplicated,
        }
        if event.purpose is not None:
            found["smartbatch.purpose"] = event.purpose
        _end(span, found, "cancelled" if event.cancelled else event.error)

    # -- batches and jobs ------------------------------------------------------------------------------------

    def _batch_ended(self, event: BatchEnded) -> None:
        found: Attributes = {"smartbatch.model": event.model, "smartbatch.batch.state": event.state}
        if self._instruments is not None:
            self._instruments.turnaround.record(event.seconds, found)
        found = {**found, "smartbatch.job.id": event.job_id, "smartbatch.batch.size": event.size}
        if event.batch_id is not None:
            found["smartbatch.batch.id"] = event.batch_id
        failed = None if event.state == "completed" else event.state
        self._linked("smartbatch.batch", event, found, failed)

    def _results_stored(self, event: JobResultsStored) -> None:
        saved = event.realtime_cost - event.cost
        if self._instruments is not None and saved > 0.0 and not event.in_realtime:
            self._instruments.saved.add(saved, {"smartbatch.model": event.model})

    def _job_finished(self, event: JobFinished) -> None:
        found: Attributes = {
            "smartbatch.model": event.model,
            "smartbatch.job.id": event.job_id,
            "smartbatch.job.succeeded": event.succeeded,
            "smartbatch.job.failed": event.failed,
            "smartbatch.job.cancelled": event.cancelled,
            "smartbatch.cost_usd": event.cost,
            "smartbatch.saved_usd": event.realtime_cost - event.cost,
        }
        self._linked("smartbatch.job", event, found, None)

    def _linked(
        self, name: str, ended: BatchEnded | JobFinished, found: Attributes, failed: str | None
    ) -> None:
        """Report a finished batch or job as a separate trace, linked to the job's submitter."""
        if self._tracer is None:
            return
        from opentelemetry import context, trace

        caller = under(ended.traceparent, trace.get_current_span).get_span_context()
        span = self._tracer.start_span(
            name,
            context.Context(),
            links=[] if ended.traceparent is None else [trace.Link(caller)],
            start_time=time.time_ns() - int(1e9 * ended.seconds),
        )
        _end(span, found, failed)

    _HANDLERS: ClassVar[Mapping[type[Event], Any]] = {
        CallStarted: _call_started,
        CallFinished: _call_finished,
        RequestFinished: _request_finished,
        BatchEnded: _batch_ended,
        JobResultsStored: _results_stored,
        JobFinished: _job_finished,
    }


def with_telemetry(telemetry: Telemetry | Literal["off"], observers: Sequence[Observer]) -> list[Observer]:
    """Add an observer for OpenTelemetry, unless there is one or telemetry is off."""
    if telemetry == "off" or any(isinstance(one, OpenTelemetryObserver) for one in observers):
        return list(observers)
    return [OpenTelemetryObserver(telemetry), *observers]


def record_content(spec: Any, proceed: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
    """Middleware for the setting ``telemetry_content``: record a call's prompts and answers in its span.

    If several requests share a call, the messages of all of them are recorded, one request after the other.
    """
    outcomes = proceed(spec)
    call = _CALL.get()
    if call is not None and call.span is not None and call.span.is_recording():
        call.span.set_attributes(_content(spec.requests, outcomes))
    return outcomes


record_content.shareable = True  # type: ignore[attr-defined]  # requests may share an answer


def _content(requests: Sequence[Request], outcomes: Sequence[object]) -> Attributes:
    """Return messages in the format of the conventions, as JSON; vectors are left out."""
    system = [_text(request.params.system) for request in requests if request.params.system]
    asked = [message for request in requests for message in _messages(request)]
    answered = [
        {
            "role": "assistant",
            "parts": [*([_text(outcome.text)] if outcome.text else []), *map(_call, outcome.tool_calls)],
            "finish_reason": outcome.finish_reason,
        }
        for outcome in outcomes
        if isinstance(outcome, Answer) and (outcome.text is not None or outcome.tool_calls)
    ]
    found = {
        "gen_ai.input.messages": asked,
        "gen_ai.output.messages": answered,
        "gen_ai.system_instructions": system,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in found.items() if value}


def _messages(request: Request) -> list[dict[str, Any]]:
    chat = [Message("user", request.prompt)] if isinstance(request.prompt, str) else request.prompt
    return [{"role": message.role, "parts": _message_parts(message)} for message in chat]


def _message_parts(message: Message) -> list[dict[str, Any]]:
    parts = _parts(message.content)
    if message.tool_call_id is not None:
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": parts}]
    return [*(parts if message.content else []), *map(_call, message.tool_calls)]


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments_text if call.arguments is None else call.arguments
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}


def _parts(content: str | Sequence[Part | str]) -> list[dict[str, Any]]:
    """Return the parts of a message; for parts other than text, such as images, only their type."""
    if isinstance(content, str):
        return [_text(content)]
    return [_part(part) for part in content]


def _part(part: Part | str) -> dict[str, Any]:
    if isinstance(part, Mapping):
        return _text(part["text"]) if "text" in part else {"type": part.get("type")}
    return _text(part) if isinstance(part, str) else {"type": part.kind}


def _text(content: str) -> dict[str, str]:
    return {"type": "text", "content": content}


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.trace") is not None
    except ImportError:  # the package ``opentelemetry`` itself is missing
        return False


def _is_of_api(provider: object) -> bool:
    """Whether a provider is the API's placeholder, which records nothing, rather than an SDK's."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _model(event: CallStarted) -> Attributes:
    provider, _, model = event.model.partition(":")
    host = HOSTS.get(provider, COMPATIBLE)
    return {
        "gen_ai.operation.name": "embeddings" if event.kind is Kind.EMBED else host.telemetry_operation,
        "gen_ai.provider.name": host.telemetry_name or provider,
        "gen_ai.request.model": model,
    }


def _usage(usage: Usage) -> Attributes:
    """Input tokens include cache reads and writes."""
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.cache_write_tokens:
        found["gen_ai.usage.cache_write.input_tokens"] = usage.cache_write_tokens
    return found


def _end(span: Span, attributes: Attributes, error: str | None) -> None:
    span.set_attributes(attributes)
    if error is not None:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end()


_R = TypeVar("_R")


def traceparent() -> str | None:
    """Return the current span as a W3C ``traceparent`` header; ``None`` if there is no span."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent")


def under(parent: str | None, call: Callable[[], _R]) -> _R:
    """Run ``call`` with the span from the header ``parent`` as the current span, and return its result."""
    if parent is None or "opentelemetry.trace" not in sys.modules:
        return call()
    context = imported("opentelemetry.context")
    propagator = _propagator()
    token = context.attach(propagator.extract({"traceparent": parent}))
    try:
        return call()
    finally:
        context.detach(token)


def _propagator() -> Any:
    return imported("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
