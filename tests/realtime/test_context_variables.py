"""User code runs with the context variables of the thread that submitted the request."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from smartbatch import BatchingClient, Request
from smartbatch.events import CallFinished, CallStarted, RequestEvent, RequestFinished

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


def test_they_reach_callables_middleware_observers_and_callbacks():
    seen = {}
    called_back = threading.Semaphore(0)

    def note(place):
        seen.setdefault(place, []).append(TENANT.get())

    def layer(spec, proceed):
        note("middleware")
        return proceed(spec)

    def watch(event):
        if isinstance(event, RequestEvent | CallStarted | CallFinished):
            note(event.name)

    def read(result):
        note("post_process")

    def call(request, attempt):
        note("callable")
        return "yes"

    def done(future):
        note("callback")
        called_back.release()

    release = threading.Event()

    def held(request, attempt):
        release.wait(30)
        return call(request, attempt)

    with BatchingClient(
        "sim:demo?latency=0", middleware=[layer], observers=[watch], post_process=read, parallelism=1
    ) as client:
        for tenant, asked in (("red", held), ("blue", call)):
            token = TENANT.set(tenant)
            client.submit(Request("x", call=asked)).add_done_callback(done)
            TENANT.reset(token)
        release.set()
        assert called_back.acquire(timeout=30)
        assert called_back.acquire(timeout=30)
    places = {"middleware", "post_process", "callable", "callback"}
    events = {"request_submitted", "call_started", "call_finished", "request_finished"}
    assert set(seen) == places | events
    assert all(tenants == ["red", "blue"] for tenants in seen.values())
    assert TENANT.get() == "nobody"


def test_what_an_observer_sets_when_a_call_starts_holds_for_that_call_only():
    seen = []

    def watch(event):
        if isinstance(event, CallStarted):
            seen.append(TENANT.get())
            TENANT.set(event.batch_id)

    def call(request, attempt):
        seen.append(TENANT.get())
        return "yes"

    with BatchingClient("sim:demo?latency=0", observers=[watch], parallelism=1) as client:
        for _ in range(2):
            client.submit(Request("x", call=call)).result(30)
    assert seen[::2] == ["nobody", "nobody"]
    assert len(set(seen[1::2])) == 2


def failing_once():
    def call(request, attempt):
        if attempt == 0:
            raise ConnectionError("once")
        return "yes"

    return call


def test_every_event_of_a_request_has_its_id_its_purpose_and_its_context():
    events = []
    context = {"row": 7}
    with BatchingClient("sim:demo?latency=0", observers=[events.append], retry_initial=0.01) as client:
        asked = Request("x", call=failing_once(), id="r7", purpose="labels", context=context)
        client.submit(asked).result(30)
        client.stop()
    told = [event for event in events if isinstance(event, RequestEvent)]
    assert {event.name for event in told} == {"request_submitted", "retry_scheduled", "request_finished"}
    named = told + [
        one for event in events if isinstance(event, CallStarted | CallFinished) for one in event.requests
    ]
    assert len(named) == 7
    assert {(one.request_id, one.purpose) for one in named} == {("r7", "labels")}
    assert all(one.context is context for one in named)


def test_plain_values_of_an_event_do_not_include_the_context():
    events = []
    with BatchingClient("sim:demo?latency=0", observers=[events.append]) as client:
        client.submit("x", context=object(), purpose="labels").result(30)
        client.stop()
    ended = next(event for event in events if isinstance(event, RequestFinished))
    assert ended.fields()["purpose"] == "labels"
    assert all({"context", "requests"}.isdisjoint(event.fields()) for event in events)
