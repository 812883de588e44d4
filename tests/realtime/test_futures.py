"""The contract of ``concurrent.futures.Future`` (A5)."""

from __future__ import annotations

import concurrent.futures
import threading
from concurrent.futures import ALL_COMPLETED, CancelledError, Future

import pytest
from inside import inside
from scenes import PATIENCE, Aside, Scripted, failure, submit_all

from smartbatch._clock import RealClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import RequestFinished


class Scene:
    def __init__(self, clock, client_of, **settings):
        self.clock = clock
        self.events = []
        self.provider = Scripted(clock, settings.pop("script", lambda prompt, attempt: f"re: {prompt}"))
        self.client = client_of(
            self.provider, **{"parallelism": 1, "observers": [self.events.append], **settings}
        )
        self._held = clock.held()
        self._held.__enter__()
        self.first = self.client.submit("first")
        self.provider.wait_for(1)

    def release(self):
        self._held.__exit__(None, None, None)

    def ended(self):
        return [event for event in self.events if isinstance(event, RequestFinished)]


@pytest.fixture
def scene(clock, client_of):
    return Scene(clock, client_of)


def test_a_failed_requests_future_raises_its_error(clock, client_of):
    scene = Scene(clock, client_of, script=lambda *_: failure(ErrorKind.CLIENT_ERROR, status=400))
    scene.release()
    with pytest.raises(ProviderError) as caught:
        scene.first.result(PATIENCE)
    assert scene.first.exception(PATIENCE) is caught.value
    assert scene.first.outcome is not None
    assert scene.first.outcome.error is caught.value


def test_a_request_is_cancelled_before_its_call_starts(scene):
    waiting = scene.client.submit("waiting")
    assert [waiting.cancel(), waiting.cancel()] == [True, True]
    assert waiting.cancelled()
    counts = scene.client.counts
    assert (counts.cancelled, counts.waiting) == (1, 0)
    scene.release()
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE)
    scene.client.stop()
    assert scene.provider.prompts == ["first"]
    assert [event.cancelled for event in scene.ended()].count(True) == 1


def test_a_request_cannot_be_cancelled_once_its_call_started(scene):
    assert scene.first.running()
    assert not scene.first.cancel()
    scene.release()
    assert scene.first.result(PATIENCE).ok


def test_a_cancel_that_meets_a_start_is_told_all_the_same(scene):
    waiting = scene.client.submit("waiting")
    last = scene.client.submit("last")
    assert Future.cancel(waiting)  # cancelled, but not yet reported when a worker finds it
    scene.release()
    assert last.result(PATIENCE).ok
    assert waiting.cancel()
    engine = inside(scene.client).realtime.engine
    assert engine is not None
    scene.client.stop()
    assert engine.counts().cancelled == 1
    assert engine.counts().balanced()
    assert sorted(event.cancelled for event in scene.ended()) == [False, False, True]
    assert scene.provider.prompts == ["first", "last"]


def test_result_times_out_as_the_standard_library_does(scene):
    with pytest.raises(TimeoutError):
        scene.first.result(timeout=0.01)
    with pytest.raises(concurrent.futures.TimeoutError):
        scene.first.exception(timeout=0.01)
    scene.release()
    assert scene.first.result(PATIENCE).ok


def test_wait_and_as_completed_see_cancelled_requests(scene):
    futures = [scene.first, *submit_all(scene.client, "abc")]
    assert futures[2].cancel()
    scene.release()
    done = concurrent.futures.wait(futures, timeout=PATIENCE, return_when=ALL_COMPLETED).done
    assert done == set(futures)
    assert set(concurrent.futures.as_completed(futures, timeout=PATIENCE)) == set(futures)
    assert [future.cancelled() for future in futures] == [False, False, True, False]


def test_as_completed_hears_of_a_cancel_that_comes_while_it_waits(scene):
    waiting = scene.client.submit("waiting")
    waiter = Aside(lambda: [future.cancelled() for future in concurrent.futures.as_completed([waiting])])
    waiting.cancel()
    assert waiter.result() == [True]
    scene.release()


def test_callbacks_run_once_each_in_the_order_they_were_added(scene):
    called = []
    for i in range(3):
        scene.first.add_done_callback(lambda future, i=i: called.append((i, future is scene.first)))
    scene.release()
    scene.client.stop()
    assert called == [(0, True), (1, True), (2, True)]


def test_a_callback_added_after_the_end_runs_at_once_on_the_callers_thread(scene):
    scene.release()
    scene.first.result(PATIENCE)
    ran_on = []
    scene.first.add_done_callback(lambda _: ran_on.append(threading.current_thread().name))
    assert ran_on == [threading.current_thread().name]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_hurts_nobody(scene, error):
    called = []

    def mistake(_):
        raise error("in a callback")

    scene.first.add_done_callback(mistake)
    scene.first.add_done_callback(lambda _: called.append("next"))
    second = scene.client.submit("second")
    second.add_done_callback(lambda _: called.append("second"))
    scene.release()
    assert second.result(PATIENCE).ok
    scene.client.stop()
    assert called == ["next", "second"]


def test_a_callback_may_wait_for_another_request(client_of):
    go = threading.Event()
    client = client_of(lambda request, attempt: str(go.wait(PATIENCE)), clock=RealClock(), parallelism=1)
    first, second = submit_all(client, ["first", "second"])
    heard = []
    first.add_done_callback(lambda _: heard.append(second.result(PATIENCE).text))
    go.set()
    client.stop()
    assert heard == ["True"]


def test_a_callback_may_submit_and_wait(client_of):
    client = client_of(lambda request, attempt: f"re: {request.prompt}", clock=RealClock(), parallelism=1)
    heard = Future()

    def ask_on(future):
        heard.set_result(client.submit(f"more on {future.result().text}").result(PATIENCE).text)

    client.submit("first").add_done_callback(ask_on)
    assert heard.result(PATIENCE) == "re: more on re: first"


def test_an_observer_that_raises_hurts_nobody(clock, client_of):
    heard = []

    def mistake(event):
        main = threading.current_thread() is threading.main_thread()
        raise (ValueError if main else SystemExit)("in an observer")

    client = client_of(Scripted(clock), parallelism=1, observers=[mistake, heard.append])
    assert [future.result(PATIENCE).ok for future in submit_all(client, "abc")] == [True] * 3
    client.stop()
    assert sum(isinstance(event, RequestFinished) for event in heard) == 3
