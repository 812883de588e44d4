"""The rule of the test world: time moves as far as the test says, whatever else waits for a moment."""

from __future__ import annotations

import threading
from pathlib import Path

from smartbatch._clock import VirtualClock
from tests.faults.world import HOUR, world


def sleep_often(clock: VirtualClock, seconds: float, ended: threading.Event) -> None:
    """Start a registered thread that wakes every ``seconds``, as the one that renews leases does."""

    def run() -> None:
        clock.began()
        try:
            while not ended.is_set():
                clock.sleep(seconds)
        finally:
            clock.ended()

    clock.spawned()
    threading.Thread(target=run, daemon=True).start()


def test_time_passes_exactly_as_far_as_the_test_says(tmp_path: Path) -> None:
    """Though another thread waits for a moment soon after each end of the test's own sleep."""
    ended = threading.Event()
    with world("openai", tmp_path) as w:
        sleep_often(w.clock, 10.0, ended)
        w.pass_time(1.0)
        assert w.clock.now() == 1.0
        w.pass_time(23 * HOUR)
        assert w.clock.now() == 23 * HOUR + 1.0
        ended.set()
