"""Actions reach other processes through the store alone, also those that begin after the actor was killed."""

from __future__ import annotations

import pytest
from jobs.stores import Bench, bench
from jobs.test_store_processes import Start, start

from smartbatch import StoredJobs
from smartbatch.config import BatchingConfig

__all__ = ["bench", "start"]  # fixtures

CLIENT = """
from smartbatch import BatchingClient
from smartbatch.events import PauseChanged

def told(event):
    if isinstance(event, PauseChanged):
        say("paused" if event.paused else "resumed", event.by)

client = BatchingClient("sim:demo?latency=0.05", store=place, observers=[told], parallelism=1, shared="off")
client.start()
say("ready")
"""
ASKS = (
    CLIENT
    + """
while hear():
    future = client.submit("p")
    try:
        future.result(1.0)
        say("answered")
    except TimeoutError:
        say("waits")
        future.result()
        say("answered")
"""
)
CARRIES_ON = (
    CLIENT
    + """
if rest:
    job = client.job(rest[0])
else:
    job = client.submit_run([f"p{n}" for n in range(200)], client.forecast(["p"], strategy="individual"))
    say(job.id)
print(job.wait().completed, flush=True)
"""
)
ACTS = """
from smartbatch import BatchingConfig, StoredJobs
stored = StoredJobs(BatchingConfig(store=place))
stored.pause("sim", "demo", by="actor")
say("acted")
hear()
"""


@pytest.mark.full
def test_a_pause_reaches_running_processes_and_later_ones(bench: Bench, start: Start) -> None:
    client = start(ASKS)
    assert client.hear() == "ready"
    client.say("ask")
    assert client.hear() == "answered"
    actor = start(ACTS)
    assert actor.hear() == "acted"
    actor.kill()  # as soon as it is done
    assert client.hear() == "paused actor"
    client.say("ask")
    assert client.hear() == "waits"
    client.kill()
    later = start(ASKS)
    assert later.hear() == "paused actor"  # before its first request
    assert later.hear() == "ready"
    later.say("ask")
    assert later.hear() == "waits"
    stored = StoredJobs(BatchingConfig(store=bench.place))
    assert stored.resume("sim", "demo")
    assert later.hear() == "resumed None"
    assert later.hear() == "answered"
    stored.close(0)


@pytest.mark.full
def test_a_job_killed_in_a_pause_waits_for_its_end_in_the_next_process(bench: Bench, start: Start) -> None:
    first = start(CARRIES_ON)
    assert first.hear() == "ready"
    job_id = first.hear()
    stored = StoredJobs(BatchingConfig(store=bench.place))
    stored.pause("sim", "demo", by="ada")
    assert first.hear() == "paused ada"
    first.kill()
    second = start(CARRIES_ON, job_id)
    assert second.hear() == "paused ada"
    assert second.hear() == "ready"
    job = stored.job(job_id)
    before = job.status()
    assert before.completed < 200
    assert before.note == "sim:demo is paused by ada"
    stored.resume("sim", "demo")
    assert second.hear() == "resumed None"
    assert second.hear() == "200"
    assert sum(incident.kind == "maybe_billed" for incident in job.incidents()) <= 1
    stored.close(0)
