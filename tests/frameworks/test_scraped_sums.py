"""A Prometheus that scrapes any worker of a web server gets the sums over all, killed ones included."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from itertools import pairwise

import pytest
from run_script import GUARD
from web_servers import SERVERS, Running, provider, run_server

WORKERS = 3
SUCCEEDED = 'smartbatch_requests_ended_total{outcome="succeeded"}'


def scraped_until(running: Running, succeeded: float) -> list[dict[str, float]]:
    scrapes = [running.scrape()]
    until = time.monotonic() + GUARD
    while scrapes[-1].get(SUCCEEDED, 0.0) < succeeded and time.monotonic() < until:
        try:
            running.process.wait(0.2)
        except subprocess.TimeoutExpired:
            scrapes.append(running.scrape())
    return scrapes


@pytest.mark.full
def test_any_worker_answers_with_the_sums_over_all(tmp_path):
    server = next(one for one in SERVERS if one.name == "gunicorn -k gthread")
    with (
        provider(0.01) as emulated,
        run_server(server, emulated.environ, tmp_path, "--workers", str(WORKERS)) as running,
    ):
        replies = running.ask_all(30, 6)
        assert [reply for reply in replies if not reply.is_right] == []
        workers = {reply.process for reply in replies}
        assert len(workers) > 1
        scrapes = scraped_until(running, 30)
        os.kill(workers.pop(), signal.SIGKILL)
        again = running.ask_all(10, 2, "again")
        answered = 30 + sum(reply.is_right for reply in again)  # one may have met the worker that was killed
        scrapes += scraped_until(running, answered)
    counts = [scrape.get(SUCCEEDED, 0.0) for scrape in scrapes]
    assert counts[-1] == answered
    for before, after in pairwise(scrapes):
        fallen = [
            name
            for name, value in before.items()
            if ("_total" in name or "_bucket" in name) and after.get(name, 0.0) < value
        ]
        assert fallen == []
    assert scrapes[-1]['smartbatch_participants{state="living"}'] >= len(workers)
