"""Batches and a bad network: rows B4, B9, B11, B12, B13, B15 and B16 of the failure catalogue."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from pathlib import Path

import pytest
from attrs import evolve

from smartbatch.emulator.provider_api import ServerReply
from tests.faults.world import HOUR, MINUTE, PROVIDERS, Seen, texts
from tests.levels import sampled

pytestmark = pytest.mark.parametrize("provider", sampled(PROVIDERS))

HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Welcome to Airport Wi-Fi</body></html>"


def test_b4_a_create_whose_answer_is_lost_is_sent_once_and_found(new_world):
    w = new_world(batch_turnaround=2 * MINUTE, batch_faults={"lost_create": 1.0})
    prompts = texts(8)
    job = w.process(batch_max_requests=4).submit_batch(prompts)
    results = w.results(job)
    assert [result.text for result in results] == w.right(prompts)
    sent = Counter(record.custom_id for record in w.creates)
    assert set(sent.values()) == {1}  # one create of each shard
    assert len(w.requests("create")) == len(sent)  # and not one more on the wire
    assert [record.outcome for record in w.creates] == ["lost"] * len(sent)
    assert not w.incidents(job)


@pytest.mark.full
def test_b11_a_bomb_among_the_results_fills_no_memory(new_world):
    """400 kB of gzip contain one line of 400 MB. A line may have 64 MB, which may exist twice while it grows;
    20 MiB are allowed on top."""
    press = zlib.compressobj(6, wbits=31)
    parts = [press.compress(b'{"custom_id": "'), *(press.compress(b"x" * 1_000_000) for _ in range(400))]
    bomb = b"".join((*parts, press.compress(b'"}\n'), press.flush()))
    assert len(bomb) < 500_000
    w = new_world()
    thrown: list[str] = []

    def throw(seen: Seen, reply: ServerReply) -> ServerReply:
        if seen.what != "download" or thrown:
            return reply
        thrown.append(seen.path)
        return evolve(reply, body=bomb, headers=[*reply.headers, ("content-encoding", "gzip")])

    w.service.alter = throw
    prompts = texts(3)
    job = w.process().submit_batch(prompts)
    with _Growth() as growth:
        results = w.results(job)
    assert thrown
    assert [result.text for result in results] == w.right(prompts)
    assert growth.most < (2 * 64 + 20) * 2**20


@pytest.mark.parametrize("what", sampled(["upload", "list", "create", "get", "download"], keep=2))
def test_b13_a_page_to_sign_in_is_never_taken_for_the_provider(provider, what, new_world):
    if what == "upload" and provider == "anthropic":
        what = "cancel"  # nothing is uploaded there; nor is anything cancelled: the job must just go through
    w = new_world(batch_turnaround=MINUTE)
    shown: list[float] = []

    def portal(seen: Seen, reply: ServerReply) -> ServerReply:
        if seen.what != what or (shown and seen.at > shown[0] + 5 * MINUTE):
            return reply
        shown.append(seen.at)
        return evolve(reply, body=HTML, content_type="text/html", delivered=None)

    w.service.alter = portal
    job = w.answered_job(texts(5))
    assert shown or what == "cancel"
    assert len(w.creates) == 1
    assert not w.incidents(job)


@pytest.mark.full
def test_b16_polling_resumes_without_a_burst_after_eight_hours(new_world):
    w = new_world(rare=60, batch_turnaround=9 * HOUR)
    client = w.process(batch_poll_interval=5 * MINUTE)
    asked = [texts(3 + number, f"job {number}") for number in range(5)]
    jobs = [client.submit_batch(prompts) for prompts in asked]
    w.pass_time(10 * MINUTE)
    gone, back = w.clock.now(), w.clock.now() + 8 * HOUR
    w.service.meet = lambda seen: (
        ServerReply(0, b"", damage="reset_before") if gone <= seen.at < back else None
    )
    w.pass_time(8 * HOUR)
    tries = sum(gone <= seen.at < back for seen in w.service.seen)
    assert 5 <= tries <= 5 * (8 * HOUR / (5 * MINUTE) + 12)  # the pauses grow, to ten minutes
    w.pass_time(11 * MINUTE)
    polls = [seen for seen in w.requests("get") if back <= seen.at]
    assert len({seen.path for seen in polls}) == 5  # all are looked at again
    assert _most_within(polls, 10.0) <= 5  # and none makes up for what it missed
    for job, prompts in zip(jobs, asked, strict=True):
        assert [result.text for result in w.results(job)] == w.right(prompts)
    assert len(w.creates) == 5


def _most_within(calls: list[Seen], seconds: float) -> int:
    return max(sum(first.at <= call.at < first.at + seconds for call in calls) for first in calls)


class _Growth:
    def __enter__(self) -> _Growth:
        self._before, self.most = _resident(), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, _resident() - self._before)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
