"""A full queue blocks callers, admits them one by one, and reserves room for urgent requests (A6)."""

from __future__ import annotations

import threading

import pytest
from scenes import PATIENCE, InTime, Scripted, blocked, eventually, submit_all

from smartbatch.errors import ClientClosed, QueueFull, RequestTimeout


class Full:
    def __init__(self, clock, client_of, **settings):
        self.clock = clock
        self.provider = Scripted(clock, latency=settings.pop("latency", 1.0))
        timeout = settings.pop("timeout", None)
        self.client = client_of(self.provider, **{"parallelism": 1, "queue_capacity": 100, **settings})
        self.held = clock.held()
        self.held.__enter__()
        self.client.submit("first")
        self.provider.wait_for(1)
        self.waiting = submit_all(
            self.client, [f"w{i}" for i in range(100)], priority="deferrable", timeout=timeout
        )

    def release(self):
        self.held.__exit__(None, None, None)

    def aside(self, count, work):
        aside = InTime(self.clock, work)
        eventually(lambda: blocked(self.client) == count)
        return aside


@pytest.fixture
def full(clock, client_of):
    return lambda **settings: Full(clock, client_of, **settings)


def test_a_full_queue_blocks_until_a_call_starts(full):
    scene = full()
    caller = scene.aside(1, lambda: (scene.client.submit("late"), scene.clock.now()))
    scene.release()
    future, admitted = caller.result()
    assert admitted == 1.0
    assert future.result(PATIENCE).ok


def test_a_caller_waits_no_longer_than_queue_timeout(full):
    scene = full(latency=1000.0, queue_timeout=2.0)
    caller = scene.aside(1, lambda: scene.client.submit("late"))
    scene.release()
    with pytest.raises(QueueFull, match="queue_timeout"):
        caller.result()
    assert scene.client.counts.submitted == 101


def test_a_caller_waits_no_longer_than_the_time_out_of_its_request(full):
    scene = full(latency=1000.0)
    caller = scene.aside(1, lambda: (scene.client.submit("late", timeout=5.0), scene.clock.now()))
    patient = scene.aside(2, lambda: (scene.client.submit("patient"), scene.clock.now()))
    scene.release()
    future, returned = caller.result()
    assert returned == 5.0
    with pytest.raises(RequestTimeout):
        future.result(PATIENCE)
    assert patient.result()[1] == 1000.0
    scene.client.stop(timeout=0)
    assert "late" not in scene.provider.prompts


def test_a_list_goes_on_where_the_queue_stays_full(full):
    scene = full(latency=1000.0)
    reader = scene.aside(1, lambda: (list(scene.client.map(["a", "b"], timeout=2.0)), scene.clock.now()))
    scene.release()
    results, ended = reader.result()
    assert [type(result.error) for result in results] == [RequestTimeout] * 2
    assert ended == 4.0


def test_a_full_queue_may_raise_at_once(full):
    scene = full(queue_full="raise")
    with pytest.raises(QueueFull, match="100 of 100"):
        scene.client.submit("late")
    scene.release()
    assert scene.client.counts.submitted == 101


def test_there_is_always_room_for_who_is_urgent(full):
    scene = full(queue_full="raise")
    urgent = [
        scene.client.submit(f"h{i}", priority="urgent" if i % 2 else "high", deduplicate=False)
        for i in range(10)
    ]
    with pytest.raises(QueueFull):
        scene.client.submit_urgent("one too many")
    scene.release()
    assert [future.result(PATIENCE).queued for future in urgent[1::2]] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_urgent_caller_is_not_let_in_behind_normal_ones(full):
    scene = full()
    submit_all(scene.client, [f"h{i}" for i in range(10)], priority="high")
    callers = [scene.aside(i + 1, lambda i=i: scene.client.submit(f"normal {i}")) for i in range(5)]
    urgent = scene.aside(6, lambda: scene.client.submit_urgent("urgent"))
    scene.release()
    assert urgent.result().result(PATIENCE).ok
    for caller in callers:
        assert caller.result().result(PATIENCE).ok
    assert scene.provider.prompts.index("urgent") == 2


def test_requests_that_ran_out_of_time_make_room(full):
    scene = full(latency=1000.0, timeout=2.0)
    caller = scene.aside(1, lambda: (scene.client.submit("late"), scene.clock.now()))
    scene.release()
    future, admitted = caller.result()
    assert admitted == 2.0
    for waiting in scene.waiting:
        with pytest.raises(RequestTimeout):
            waiting.result(PATIENCE)
    assert future.result(PATIENCE).ok


def test_cancelled_requests_make_room(full):
    scene = full()
    callers = [scene.aside(i + 1, lambda i=i: scene.client.submit(f"late {i}")) for i in range(3)]
    for future in scene.waiting[:3]:
        assert future.cancel()
    futures = [caller.result() for caller in callers]
    scene.release()
    assert all(future.result(PATIENCE).ok for future in futures)


def test_a_place_is_passed_on_when_who_was_woken_for_it_is_interrupted(full, monkeypatch):
    scene = full()
    monitor = type(scene.clock.monitor())
    waited, unlucky = monitor.wait_for, list[threading.Thread]()

    def interrupted(self, predicate, timeout=None):
        found = waited(self, predicate, timeout)
        if threading.current_thread() in unlucky:
            raise KeyboardInterrupt
        return found

    def submit():
        unlucky.append(threading.current_thread())
        scene.client.submit("interrupted")

    monkeypatch.setattr(monitor, "wait_for", interrupted)
    first = scene.aside(1, submit)
    second = scene.aside(2, lambda: scene.client.submit("next"))
    assert scene.waiting[0].cancel()
    with pytest.raises(KeyboardInterrupt):
        first.result()
    admitted = second.result()
    scene.release()
    assert admitted.result(PATIENCE).ok


def test_a_stop_sends_blocked_callers_away(full):
    scene = full()
    callers = [scene.aside(i + 1, lambda i=i: scene.client.submit(f"late {i}")) for i in range(3)]
    scene.client.stop(timeout=0)
    for caller in callers:
        with pytest.raises(ClientClosed):
            caller.result()
    scene.release()


def test_identical_requests_that_waited_for_room_still_share_a_call(full):
    scene = full()
    callers = [scene.aside(i + 1, lambda: scene.client.submit("same")) for i in range(10)]
    scene.release()
    assert all(caller.result().result(PATIENCE).text == "re: same" for caller in callers)
    scene.client.stop()
    assert scene.provider.prompts.count("same") == 1


def test_joining_an_identical_request_needs_no_room(full):
    scene = full(queue_full="raise")
    follower = scene.client.submit("w7")
    scene.release()
    assert follower.result(PATIENCE).deduplicated
