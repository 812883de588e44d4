"""The trace of whoever submits a job, kept with the job: a process that carries it on continues that trace.

Does nothing where the application has not imported OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from smartbatch._importing import imported

_R = TypeVar("_R")


def traceparent() -> str | None:
    """Return the current span as the header ``traceparent`` of W3C Trace Context, ``None`` for none."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent")


def under(parent: str | None, call: Callable[[], _R]) -> _R:
    """Return what ``call`` returns, made with the span that ``parent`` names as the current one."""
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
