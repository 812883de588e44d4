"""A newcomer that cannot go yet costs no more for all those who wait before it (A6, A12)."""

from __future__ import annotations

from scenes import Embedder, InTime, limited

from smartbatch.realtime.lane_queue import LaneQueue
from smartbatch.realtime.ticket import Ticket


def test_a_pause_of_the_quota_is_seen_before_requests_are_gathered(clock, client_of, monkeypatch):
    client = client_of(Embedder(clock, lambda *_: limited(500.0)))
    taken = [0]
    pop = LaneQueue.pop

    def counted(lane_queue: LaneQueue) -> Ticket | None:
        taken[0] += 1
        return pop(lane_queue)

    def come() -> int:
        for number in range(4):
            client.submit_embedding(f"refused {number}")
            clock.sleep(5.0)
        monkeypatch.setattr(LaneQueue, "pop", counted)
        for number in range(300):
            client.submit_embedding(f"t{number}")
            clock.sleep(0.2)  # the window is over, and the collector looks
        return taken[0]

    with clock.held():
        coming = InTime(clock, come)
    assert coming.result() == 0
    client.stop(timeout=0)
