"""Batches and a bad network: rows B4, B9, B11, B12, B13, B15 and B16 of the failure catalogue.

Everything goes over sockets, through the adapters and the vendors' SDKs; see :mod:`tests.faults.world`.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections import Counter
from pathlib import Path

import pytest
from attrs import evolve
from providers.raw_server import RawServer, says

from smartbatch.emulator.provider_api import ServerReply
from tests.faults.world import HOUR, KEY, MINUTE, PROVIDERS, Seen, texts, world
from tests.levels import sampled

pytestmark = pytest.mark.parametrize("provider", sampled(PROVIDERS))

HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Welcome to Airport Wi-Fi</body></html>"


def test_b4_a_create_whose_answer_is_lost_is_sent_once_and_found(provider: str, tmp_path: Path) -> None:
    with world(provider, tmp_path, batch_turnaround=2 * MINUTE, batch_faults={"lost_create": 1.0}) as w:
        prompts = texts(8)
        job = w.process(batch_max_requests=4).submit_batch(prompts)
        results = w.results(job)
        assert [result.text for result in results] == w.right(prompts)
        sent = Counter(record.custom_id for record in w.creates)
        assert set(sent.values()) == {1}  # one create of each shard
        assert len(w.requests("create")) == len(sent)  # and not one more on the wire
        assert [record.outcome for record in w.creates] == ["lost"] * len(sent)
        assert not w.emu.ledger.paid_twice(excluding_lost=False)
        assert not w.incidents(job)


@pytest.mark.parametrize("framed", sampled(["length", "chunked"], keep=1))
def test_b9_results_cut_anywhere_lose_no_item(provider: str, framed: str, tmp_path: Path) -> None:
    """With a Content-Length the cut is an error; without one, the missing ids show it."""
    with world(provider, tmp_path) as w:
        cuts: dict[str, bool] = {}

        def cut_once(seen: Seen, reply: ServerReply) -> ServerReply:
            if seen.what != "download" or reply.status != 200 or seen.path in cuts:
                return reply
            cuts[seen.path] = True
            body = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
            if framed == "length":
                return evolve(reply, body=body, damage="truncated")
            at = len(cuts) * len(body) // (jobs_in_all + 1)
            return evolve(reply, body=[body[:at]] if at else b"")

        w.service.alter = cut_once
        jobs_in_all = 12 if framed == "chunked" else 3
        client = w.process()
        asked = [texts(3, f"job {number}") for number in range(jobs_in_all)]
        jobs = [client.submit_batch(prompts) for prompts in asked]
        for job, prompts in zip(jobs, asked, strict=True):
            assert [result.text for result in w.results(job)] == w.right(prompts)
        assert len(cuts) == len(w.creates) >= jobs_in_all  # fetched again, never sent again
        assert not w.emu.ledger.paid_twice(excluding_lost=False)


@pytest.mark.full
def test_b11_a_bomb_among_the_results_fills_no_memory(provider: str, tmp_path: Path) -> None:
    """400 kB of gzip contain one line of 400 MB. A line may have 64 MB, which may exist twice while it grows;
    20 MiB are allowed on top."""
    press = zlib.compressobj(6, wbits=31)
    parts = [press.compress(b'{"custom_id": "'), *(press.compress(b"x" * 1_000_000) for _ in range(400))]
    bomb = b"".join((*parts, press.compress(b'"}\n'), press.flush()))
    assert len(bomb) < 500_000
    with world(provider, tmp_path) as w:
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
        assert not w.emu.ledger.paid_twice(excluding_lost=False)


@pytest.mark.full
def test_b12_an_input_too_large_for_the_server_is_halved(provider: str, tmp_path: Path) -> None:
    with world(provider, tmp_path) as w:
        limit = 1500

        def too_large(seen: Seen) -> ServerReply | None:
            if seen.what in ("upload", "create") and len(seen.body) > limit:
                return w.refusal(413, "Request too large")
            return None

        w.service.meet = too_large
        job = w.answered_job(texts(16))
        sizes = sorted({shard.size for shard in job.status().shards}, reverse=True)
        assert sizes[0] == 16
        refused = [shard for shard in job.status().shards if shard.state == "dead"]
        assert 1 <= len(sizes) - 1 <= math.log2(16)  # so often was it split
        assert len(refused) <= 1 + 2 + 4  # each half is tried once, and nothing loops
        assert not w.emu.ledger.paid_twice(excluding_lost=False)


@pytest.mark.parametrize("what", sampled(["upload", "list", "create", "get", "download"], keep=2))
def test_b13_a_page_to_sign_in_is_never_taken_for_the_provider(
    provider: str, what: str, tmp_path: Path
) -> None:
    if what == "upload" and provider == "anthropic":
        what = "cancel"  # nothing is uploaded there; nor is anything cancelled: the job must just go through
    with world(provider, tmp_path, batch_turnaround=MINUTE) as w:
        shown: list[float] = []

        def portal(seen: Seen, reply: ServerReply) -> ServerReply:
            if seen.what != what or (shown and seen.at > shown[0] + 5 * MINUTE):
                return reply
            shown.append(seen.at)
            return evolve(reply, body=HTML, content_type="text/html", delivered=None)

        w.service.alter = portal
        job = w.answered_job(texts(5))
        assert shown or what == "cancel"
        assert not w.emu.ledger.paid_twice(excluding_lost=False)
        assert len(w.creates) == 1
        assert not w.incidents(job)


@pytest.mark.full
def test_b15_only_downloads_follow_a_redirect_to_another_host(provider: str, tmp_path: Path) -> None:
    elsewhere = RawServer([says("{}")])
    try:
        with world(provider, tmp_path, batch_turnaround=MINUTE) as w:
            sent_away: set[str] = set()

            def redirect(seen: Seen) -> ServerReply | None:
                if seen.what in sent_away:
                    return None
                sent_away.add(seen.what)
                address = f"http://localhost:{elsewhere.port}"
                return ServerReply(307, b"", headers=[("location", f"{address}{seen.path}")])

            w.service.meet = redirect
            w.answered_job(texts(5))
            assert {"list", "create", "get", "download"} <= sent_away
            followed = elsewhere.requests
            assert [asked.target for asked in followed] == [w.requests("download")[0].path]
            for asked in followed:
                assert asked.head.startswith("GET ")
                assert KEY not in asked.head
                assert not asked.body
            assert not w.emu.ledger.paid_twice(excluding_lost=False)
    finally:
        elsewhere.stop()


@pytest.mark.full
def test_b16_polling_resumes_without_a_burst_after_eight_hours(provider: str, tmp_path: Path) -> None:
    with world(provider, tmp_path, rare=60, batch_turnaround=9 * HOUR) as w:
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
        assert not w.emu.ledger.paid_twice(excluding_lost=False)


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
