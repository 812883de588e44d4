"""The jobs engine with real adapters and the emulator."""

from __future__ import annotations

import random

import pytest
from jobs.runtimes import job_runtime, job_wiring, step_limits

from smartbatch._clock import RealClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import ShardChanged
from smartbatch.jobs.acceptance import Items
from smartbatch.jobs.payload import Shared, decode_result, encode_params
from smartbatch.jobs.records import JobPolicy, JobRow, JobState
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.steps import StepResult, run_step
from smartbatch.jobs.steps.step import Step
from smartbatch.jobs.store import open_store
from smartbatch.providers import create
from smartbatch.testing import emulator
from smartbatch.types import Generation, Kind, Request
from tests.levels import sampled

CLOCK = RealClock()


@pytest.fixture
def service():
    with emulator(batch_turnaround=0.02) as emu:
        yield emu


@pytest.fixture
def store(tmp_path):
    opened = open_store(str(tmp_path / "jobs.db"), wall=CLOCK.wall)
    yield opened
    opened.close()


class Bench:
    """One job on one store, carried on until it ends."""

    def __init__(self, store, emu, model, params, **policy):
        options = {"base_url": emu.base_url if model.startswith("openai") else emu.url, "api_key": "k" * 20}
        self.provider, _ = create(model, clock=CLOCK, options=options)
        api = self.provider.batches()
        self.api = api
        self.store = store
        self.events = []
        job = JobRow(
            id="job-1",
            key=None,
            scope=api.scope,
            model=model,
            kind=Kind.GENERATE.value,
            params=encode_params(params),
            metadata={},
            policy=JobPolicy(**policy),
            created_at=CLOCK.wall(),
        )
        requests = [Request(f"question {number}", params) for number in range(6)]
        items = Items(requests, job, Shared(params), wiring=job_wiring(), api=api)
        store.jobs.accept(job, items, digest=items.digest)
        lease = store.leases.claim("job-1", 60)
        assert lease is not None
        self.lease = lease
        self.runtime = job_runtime(
            store,
            CLOCK,
            random.Random(1),
            limits=step_limits(poll_interval=0.02, longest_pause=0.1),
            provider_of=lambda _: self.provider,
            publish_event=self.events.append,
        )

    def until(self, state):
        for _ in range(1000):
            shards = self.store.shards.of_job("job-1")
            if shards and shards[-1].state is state:
                return
            run_step(self.runtime, self.lease)
        raise AssertionError(f"no shard became {state.value}")

    def finish(self):
        for _ in range(20_000):
            job = self.store.jobs.get("job-1")
            assert job is not None
            if job.state is JobState.DONE:
                return job
            run_step(self.runtime, self.lease)
        raise AssertionError("the job did not end")

    def results(self):
        return [decode_result(row.body, request_id=str(row.ix)) for row in self.store.items.results("job-1")]


def test_a_job_that_somebody_forgot_has_no_further_step(store, service):
    bench = Bench(store, service, "openai:gpt-4o-mini", Generation(max_tokens=20))
    bench.finish()
    store.jobs.forget("job-1")
    assert run_step(bench.runtime, bench.lease) == StepResult(None, finished=True)


@pytest.mark.parametrize(("counted", "tries"), [({}, 0), ({"tried": True}, 1)], ids=["not sent", "sent"])
def test_a_discarded_batch_is_a_try_of_its_requests_where_they_were_sent(store, service, counted, tries):
    bench = Bench(store, service, "openai:gpt-4o-mini", Generation(max_tokens=20))
    bench.until(ShardState.READY)
    job, api = store.jobs.get("job-1"), bench.provider.batches()
    step = Step(runtime=bench.runtime, api=api, job=job, lease=bench.lease)
    step.discard(store.shards.of_job("job-1")[0], "a test", **counted)
    assert {item.tries for item in store.items.in_state("job-1")} == {tries}


@pytest.mark.parametrize("model", sampled(["openai:gpt-4o-mini", "gemini:gemini-2.5-flash"]))
def test_a_vanished_input_file_is_uploaded_under_a_new_name(store, service, model):
    bench = Bench(store, service, model, Generation(max_tokens=20))
    bench.until(ShardState.READY)
    first = store.shards.of_job("job-1")[0]
    bench.api.delete_file(first.file_id, 10)

    assert bench.finish().succeeded == 6

    dead, second = store.shards.of_job("job-1")
    assert dead.state is ShardState.DEAD
    assert second.nonce != dead.nonce
    assert not service.ledger.paid_twice(excluding_lost=False)
    bench.provider.close()


def test_a_refused_create_fails_its_requests_with_the_reason(store, service, monkeypatch):
    bench = Bench(store, service, "openai:gpt-4o-mini", Generation(max_tokens=20))

    def refuse(*_):
        raise ProviderError("the model takes no batches", kind=ErrorKind.CLIENT_ERROR, status=400)

    monkeypatch.setattr(bench.api, "create", refuse)
    job = bench.finish()
    assert (job.failed, job.succeeded, job.cost) == (6, 0, 0.0)
    assert {str(result.error) for result in bench.results()} == {"the model takes no batches"}
    ends = [event for event in bench.events if isinstance(event, ShardChanged) and event.after == "dead"]
    assert [event.reason for event in ends] == ["the model takes no batches"]
    bench.provider.close()
