"""Virtual time behaves like real time, and notifications wake the right waiters."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from smartbatch._clock import RealClock, VirtualClock


def run(clock: VirtualClock, *works: Callable[[], object]) -> None:
    """Run each of ``works`` on a registered thread, and wait for all of them."""

    def registered(work: Callable[[], object]) -> None:
        clock.began()
        try:
            work()
        finally:
            clock.ended()

    threads = [threading.Thread(target=registered, args=(work,), daemon=True) for work in works]
    for _ in threads:
        clock.spawned()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs in virtual time"


@pytest.mark.parametrize("make", [RealClock, VirtualClock])
def test_a_wait_ends_when_its_condition_holds_or_it_times_out(make):
    clock = make()
    monitor, seen = clock.monitor(), list[str]()
    with monitor:
        assert not monitor.wait_for(lambda: seen, 0.001)

    def publish_event() -> None:
        for word in ("", "done"):
            with monitor:
                seen.extend(filter(None, [word]))
                monitor.notify_all()

    with monitor:
        threading.Thread(target=publish_event).start()
        assert monitor.wait_for(lambda: seen) == ["done"]


def test_sleepers_wake_in_the_order_of_their_deadlines(clock):
    woken: list[tuple[float, float]] = []

    def sleeper(seconds: float) -> Callable[[], None]:
        def work() -> None:
            clock.sleep(seconds)
            woken.append((seconds, clock.now()))

        return work

    run(clock, sleeper(3), sleeper(1), sleeper(2))
    assert woken == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_held_time_waits_for_the_scene_to_be_set(clock):
    done = threading.Thread(target=lambda: run(clock, lambda: clock.sleep(1)), daemon=True)
    with clock.held():
        done.start()
        done.join(0.05)  # gives the sleeper a chance to be wrong
        assert clock.now() == 0.0
    done.join(30)
    assert clock.now() == 1.0


def test_a_notified_waiter_does_not_use_up_its_time_out(clock):
    monitor = clock.monitor()
    heard: list[tuple[bool, float]] = []

    def waiter() -> None:
        with monitor:
            heard.append((monitor.wait(10), clock.now()))

    def notifier() -> None:
        clock.sleep(2)
        with monitor:
            monitor.notify()

    run(clock, waiter, notifier)
    assert heard == [(True, 2.0)]
    assert clock.now() == 2.0


def test_a_wait_that_times_out_says_so_and_is_forgotten(clock):
    monitor = clock.monitor()
    heard: list[tuple[str, bool, float]] = []

    def waiter(name: str, timeout: float) -> Callable[[], None]:
        def work() -> None:
            with monitor:
                heard.append((name, monitor.wait(timeout), clock.now()))

        return work

    def notifier() -> None:
        clock.sleep(2)
        with monitor:
            monitor.notify(1)

    run(clock, waiter("short", 1), waiter("long", 9), notifier)
    assert heard == [("short", False, 1.0), ("long", True, 2.0)]


def test_notify_all_wakes_everybody_and_notify_one_wakes_one(clock):
    monitor = clock.monitor()
    woken: list[float] = []

    def waiter() -> None:
        with monitor:
            assert monitor.wait(None)
            woken.append(clock.now())

    def notifier() -> None:
        clock.sleep(1)
        with monitor:
            monitor.notify()
        clock.sleep(1)
        with monitor:
            monitor.notify_all()

    run(clock, waiter, waiter, waiter, notifier)
    assert woken == [1.0, 2.0, 2.0]


def test_two_monitors_on_one_lock_do_not_wake_each_other(clock):
    first = clock.monitor()
    second = clock.monitor(first.lock)
    heard: list[tuple[str, bool]] = []

    def in_first() -> None:
        with first:
            heard.append(("first", first.wait(5)))

    def in_second() -> None:
        with second:
            heard.append(("second", second.wait(5)))

    def notifier() -> None:
        clock.sleep(1)
        with first:
            first.notify_all()

    run(clock, in_first, in_second, notifier)
    assert sorted(heard) == [("first", True), ("second", False)]


def test_a_waiter_that_nobody_registered_does_not_hold_time_up():
    clock = VirtualClock()
    monitor = clock.monitor()
    with monitor:
        assert monitor.wait(7) is False
    assert clock.now() == 7.0


def test_an_idle_wait_ends_when_time_has_passed_it_and_moves_no_time(clock):
    monitor = clock.monitor()
    ended: list[tuple[bool, float]] = []

    begun = threading.Event()

    def wait() -> None:
        with monitor:
            begun.set()
            ended.append((monitor.wait(5.0, idle=True), clock.now()))

    def sleep() -> None:
        clock.sleep(2.0)
        ended.append((True, clock.now()))
        clock.sleep(4.0)

    with clock.held():
        run_later = threading.Thread(target=run, args=(clock, wait))
        run_later.start()
        assert begun.wait(30)
        with monitor:  # free once the other thread waits
            pass
    assert clock.now() == 0.0
    run(clock, sleep)
    run_later.join(30)
    assert ended == [(True, 2.0), (False, 6.0)]


def test_time_stops_when_a_future_of_the_test_completes(clock):
    settled: Future[float] = Future()

    def work() -> None:
        clock.sleep(2)
        settled.set_result(clock.now())
        clock.sleep(1000)

    aside = threading.Thread(target=run, args=(clock, work), daemon=True)
    aside.start()
    assert settled.result(30) == clock.now() == 2.0
    clock.sleep(1)
    assert clock.now() == 3.0
    aside.join(30)
    assert clock.now() == 1002.0


def test_an_interrupted_wait_leaves_the_thread_known(clock):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupted() -> None:
        monitor = clock.monitor()
        with monitor:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            monitor.wait()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGALRM, before)
    run(clock, lambda: clock.sleep(1))
    clock.sleep(1)
    assert clock.now() == 2.0


def test_wall_time_moves_with_virtual_time():
    clock = VirtualClock(start=5.0, wall=1_000.0)
    clock.sleep(3)
    assert (clock.now(), clock.wall()) == (8.0, 1_003.0)


def test_a_real_monitor_wakes_its_waiter():
    clock = RealClock()
    monitor = clock.monitor()
    heard: list[bool] = []

    def waiter() -> None:
        with monitor:
            ready.set()
            heard.append(monitor.wait(30))

    ready = threading.Event()
    thread = threading.Thread(target=waiter, daemon=True)
    thread.start()
    assert ready.wait(30)
    with monitor:
        monitor.notify()
    thread.join(30)
    assert heard == [True]
