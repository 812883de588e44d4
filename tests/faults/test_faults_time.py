"""A wall clock that is set while jobs are under way."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from attrs import evolve

from smartbatch.emulator.provider_api import ServerReply
from smartbatch.events import ClockStepped
from tests.faults.world import HOUR, MINUTE, PROVIDERS, Seen, texts, world
from tests.levels import sampled


@pytest.mark.parametrize("ahead", [-HOUR, 24 * HOUR])
@pytest.mark.parametrize("provider", sampled(PROVIDERS))
def test_i1_polls_go_on_when_the_clock_is_set(ahead, new_world):
    w = new_world(batch_turnaround=5 * MINUTE)
    client = w.process(batch_poll_interval=30.0)
    prompts = texts(5)
    job = client.submit_batch(prompts, batch_fallback="individual")
    w.pass_time(MINUTE)
    began = w.clock.now()
    w.clock.set_wall(ahead)
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert w.clock.now() - began < 10 * MINUTE
    assert len(w.creates) == 1
    w.pass_time(MINUTE)
    assert [event.seconds for event in w.events if isinstance(event, ClockStepped)] == [ahead]


LATE = {"batch_faults": {"late_create": 1.0}, "batch_late_seconds": 15 * MINUTE}
UNLISTED = {"batch_faults": {"lost_create": 1.0, "list_lag": 1.0}, "batch_list_lag": 110.0}


@pytest.mark.full
@pytest.mark.parametrize("ahead", sampled([31 * MINUTE, -HOUR]))
@pytest.mark.parametrize(
    ("provider", "fault", "passed"),
    sampled([("anthropic", LATE, 2 * MINUTE), ("openai", UNLISTED, 20.0), ("gemini", UNLISTED, 20.0)]),
)
def test_i1_a_clock_set_between_two_processes_shortens_no_search(provider, fault, passed, ahead, new_world):
    """The provider's clock shows that no time has passed."""
    w = new_world(batch_turnaround=10 * MINUTE, **fault)
    prompts = texts(20)
    first = w.process()
    key = first.submit_batch(prompts, key="reviews").key
    w.pass_time(passed)
    w.stop(first)
    w.clock.set_wall(ahead)
    job = w.process().job(key)
    began = w.clock.now()
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert w.clock.now() - began < HOUR
    assert len(w.creates) == 1


@pytest.mark.full
def test_i1_a_clock_set_back_prolongs_no_search(tmp_path):
    def dropped(index: int, label: str | None) -> tuple[str, ...]:
        return ("dropped_create",) if index == 0 else ()

    with world("anthropic", tmp_path, batch_turnaround=5 * MINUTE, batch_fault_for=dropped) as w:
        prompts = texts(5)
        first = w.process()
        key = first.submit_batch(prompts, key="reviews").key
        w.pass_time(2 * MINUTE)
        w.stop(first)
        w.clock.set_wall(-2 * HOUR)
        job = w.process().job(key)
        began = w.clock.now()
        assert [result.text for result in w.results(job)] == w.right(prompts)
        assert w.clock.now() - began < HOUR


@pytest.mark.full
def test_i1_a_server_that_tells_a_wrong_date_ends_no_search(tmp_path):
    """Both clocks must agree that enough time has passed."""
    with world("anthropic", tmp_path, batch_turnaround=10 * MINUTE, **LATE) as w:

        def ahead(seen: Seen, reply: ServerReply) -> ServerReply:
            later = [("date", formatdate(w.clock.wall() + (seen.at > MINUTE) * HOUR, usegmt=True))]
            return evolve(reply, headers=[*(each for each in reply.headers if each[0] != "date"), *later])

        w.service.alter = ahead
        w.answered_job(texts(20))
        assert len(w.creates) == 1
