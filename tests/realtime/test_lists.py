"""Lists: results in order, read lazily, and never lost (B1, B2, B3, B4, A8)."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable

import pytest
from levels import sampled
from scenes import PATIENCE, InTime, eventually, submit_all

from smartbatch._clock import RealClock, VirtualClock, VirtualMonitor
from smartbatch.client import BatchingClient
from smartbatch.errors import (
    AllRequestsFailed,
    ErrorKind,
    InvalidRequest,
    ProviderError,
    RequestCancelled,
)
from smartbatch.providers import MockProvider, SimProvider
from smartbatch.types import Request


def generate_stored(client, texts):
    return client.submit_run(texts, client.forecast(texts)).wait().completed


_STORED: dict[str, Callable[[BatchingClient, list[str]], int]] = {
    "with a key": lambda client, texts: len(client.generate(texts, key="speed")),
    "as a job": generate_stored,
}
_WAYS: dict[str, Callable[[BatchingClient, list[str]], int]] = {
    "generate": lambda client, texts: len(client.generate(texts)),
    "map": lambda client, texts: len(list(client.map(texts))),
    "map of an iterator": lambda client, texts: len(list(client.map(iter(texts)))),
    "as completed": lambda client, texts: len(list(client.as_completed(texts))),
    "submit": lambda client, texts: len([future.result() for future in submit_all(client, texts)]),
    **_STORED,
}


class Timed(MockProvider):
    def __init__(self, clock, latency):
        def answer(request):
            clock.sleep(latency(str(request.prompt)))
            return f"re: {request.prompt}"

        super().__init__(answer)


def mock(clock, latency=1.0, answers=None):
    script = answers or (lambda request: f"re: {request.prompt}")
    return MockProvider(script, latency=latency, sleep=clock.sleep)


def prompts(count):
    return [f"p{i}" for i in range(count)]


def test_progress_is_told_for_each_result_as_it_arrives(clock, client_of):
    client = client_of(Timed(clock, lambda prompt: 9.0 if prompt == "p0" else 1.0), parallelism=4)
    told = []
    results = list(client.map(prompts(7), on_progress=told.append))
    assert [result.text for result in results] == [f"re: p{i}" for i in range(7)]
    assert [(now.finished, now.total, now.failed) for now in told] == [(i, 7, 0) for i in range(1, 8)]
    assert told[2].elapsed < told[-1].elapsed == pytest.approx(9.0)
    assert told[2].remaining == pytest.approx(told[2].elapsed / 3 * 4)
    assert told[-1].remaining == 0


def test_progress_counts_failures_and_costs_and_its_errors_end_no_list(clock, client_of, caplog):
    told = []

    def publish_event(progress):
        told.append(progress)
        raise OSError("disk full")

    bad = ProviderError("no", kind=ErrorKind.CLIENT_ERROR)
    client = client_of(mock(clock, answers=["one", bad, "three"]), parallelism=1)
    results = client.generate(iter(prompts(3)), on_progress=publish_event)
    assert (told[-1].total, told[-1].succeeded, told[-1].failed) == (None, 2, 1)
    assert told[-1].cost == results.cost
    assert "an on_progress callback" in caplog.text


@pytest.mark.parametrize("ask", sampled(_WAYS, keep=2))
def test_twenty_five_items_take_the_time_of_seven_calls(ask, clock, client_of):
    def latency(prompt):
        if prompt == "p0" and ask not in _STORED:  # time is held until all requests are submitted
            eventually(lambda: client.metrics.snapshot().submitted == 25)
        return 1.0

    client = client_of(Timed(clock, latency), parallelism=4)
    assert _WAYS[ask](client, prompts(25)) == 25
    assert clock.now() == pytest.approx(7.0)


class _Waits(VirtualClock):
    def __init__(self):
        super().__init__()
        self.waits = 0
        self._thread = threading.get_ident()

    def monitor(self, lock=None):
        monitor = super().monitor(lock)
        assert isinstance(monitor, VirtualMonitor)
        wait = monitor.wait

        def counted(timeout=None, **how):
            self.waits += threading.get_ident() == self._thread
            return wait(timeout, **how)

        monitor.wait = counted
        return monitor


def test_a_reader_of_a_whole_list_is_not_woken_for_each_result(client_of):
    clock = _Waits()
    client = client_of(mock(clock, 0.01), clock=clock, parallelism=2)
    assert len(client.generate(prompts(200))) == 200
    assert clock.waits <= 20


@pytest.mark.parametrize("kind", [list, iter])
def test_results_come_in_the_order_of_the_prompts(kind, clock, client_of):
    client = client_of(Timed(clock, lambda prompt: int(prompt[1:]) * 7 % 13 / 10), parallelism=8)
    results = list(client.map(kind(prompts(60))))
    assert [result.text for result in results] == [f"re: {p}" for p in prompts(60)]


def test_as_completed_gives_the_quick_ones_first(clock, client_of):
    client = client_of(Timed(clock, lambda prompt: {"a": 3.0, "b": 1.0, "c": 2.0}[prompt]), parallelism=3)
    requests = [Request(prompt, context=i) for i, prompt in enumerate("abc")]
    with clock.held():
        stream = client.as_completed(requests)
    assert [result.context for result in stream] == [1, 2, 0]


def test_a_failed_request_has_its_place(clock, client_of):
    failing = mock(clock, answers=lambda request: ValueError("no") if request.prompt == "p3" else "fine")
    results = client_of(failing).generate(prompts(6))
    assert [result.ok for result in results] == [True, True, True, False, True, True]
    assert isinstance(results[3].error, ProviderError)
    assert (results.succeeded, results.failed) == (5, 1)
    assert results.texts[3] is None


def test_a_failed_request_may_raise(clock, client_of):
    failing = mock(clock, answers=lambda request: ValueError("no") if request.prompt == "p3" else "fine")
    client = client_of(failing)
    seen = []
    with pytest.raises(ProviderError):
        seen.extend(client.map(iter(prompts(6)), on_error="raise"))
    assert client.submit("still usable").result(30).ok


def test_when_all_fail_one_error_tells_why(clock, client_of):
    failing = MockProvider(fail_on=dict.fromkeys(range(1, 10), ErrorKind.CLIENT_ERROR))
    with pytest.raises(AllRequestsFailed, match="all 5 requests failed") as caught:
        client_of(failing).generate(prompts(5))
    assert (caught.value.results.failed, caught.value.results.succeeded) == (5, 0)
    assert caught.value.kind is ErrorKind.CLIENT_ERROR
    assert caught.value.__cause__ is caught.value.results[0].error


def test_an_empty_list_is_answered_at_once(clock, client_of):
    results = client_of(mock(clock)).generate([])
    assert (list(results), results.wall, results.speed_up, results.mean_latency) == ([], 0.0, None, 0.0)


def test_a_bad_row_in_a_list_is_found_before_anything_is_sent(clock, client_of):
    provider = mock(clock)
    with pytest.raises(InvalidRequest, match="row 2") as caught:
        client_of(provider).generate(["fine", "fine too", "", "never"])
    assert (caught.value.row, caught.value.field) == (2, "prompt")
    assert provider.calls == []


@pytest.mark.parametrize("single", ["one prompt", {"role": "user", "content": "x"}])
def test_a_single_prompt_is_no_list(single, clock, client_of):
    with pytest.raises(InvalidRequest, match="list of prompts"):
        client_of(mock(clock)).generate(single)


def test_a_stream_may_be_closed(clock, client_of):
    provider = mock(clock)
    client = client_of(provider, parallelism=2)
    stream = client.map(prompts(100))
    assert next(stream).ok
    stream.close()
    assert list(stream) == []
    assert client.queue_size == 0


def test_ctrl_c_in_the_callers_loop_leaves_the_client_usable(clock, client_of):
    provider = mock(clock)
    client = client_of(provider, parallelism=1)

    def interrupted():
        yield from prompts(20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(client.map(interrupted()))
    assert client.submit("next").result(30).ok
    client.stop()
    assert len(provider.calls) < 20


@pytest.mark.full
def test_a_list_longer_than_the_queue_waits_for_itself(clock, client_of):
    client = client_of(mock(clock), parallelism=4, queue_capacity=100, queue_full="raise")
    others = [client.submit(f"other {i}", priority="deferrable") for i in range(60)]
    assert [result.ok for result in client.map(prompts(500))] == [True] * 500
    assert all(other.result(30).ok for other in others)


def test_parameters_of_a_list_hold_for_each_request(clock, client_of):
    provider = mock(clock)
    client = client_of(provider, temperature=0.5)
    list(client.map(["a", "b"], system="Be brief.", priority="high", purpose="test"))
    for call in provider.calls:
        assert (call.request.params.system, call.request.params.temperature) == ("Be brief.", 0.5)
        assert (call.request.priority.name, call.request.purpose) == ("HIGH", "test")


def test_the_sums_of_a_list_are_those_of_its_results(clock, client_of):
    provider = SimProvider(sleep=clock.sleep, now=clock.now, latency=2.0)
    results = client_of(provider, parallelism=2).generate(prompts(4))
    assert results.total_latency == pytest.approx(8.0)
    assert results.mean_latency == pytest.approx(2.0)
    assert results.usage.output_tokens == sum(result.usage.output_tokens for result in results) > 0
    assert results.cost == 0.0


@pytest.mark.parametrize("lazy", [False, True], ids=["a list", "an endless iterable"])
def test_cancelling_all_ends_the_lists(lazy, clock, client_of):
    provider = mock(clock)
    client = client_of(provider, parallelism=2, queue_capacity=100)
    texts = (f"p{n}" for n in itertools.count()) if lazy else prompts(500)
    results = client.map(texts, strategy="individual")
    first = [next(results), next(results)]
    assert client.cancel_pending() > 0
    rest = list(results)
    assert all(result.ok for result in first)
    answered = [result for result in rest if result.ok]
    assert len(answered) <= 2  # those in flight
    assert {type(result.error) for result in rest if not result.ok} == {RequestCancelled}
    if not lazy:
        assert len(rest) == 498
    assert len(provider.calls) <= 4
    assert client.submit("next").result(PATIENCE).ok


def test_cancelling_all_ends_a_list_that_waits_for_its_iterable(client_of):
    source = queue.Queue()
    source.put("one")
    client = client_of(MockProvider(lambda _: "fine"), clock=RealClock())
    results = client.as_completed(iter(source.get, None))
    assert next(results).ok
    waiting = InTime(RealClock(), lambda: list(results))
    client.cancel_pending()
    assert waiting.result() == []
    source.put("nobody asks this")
