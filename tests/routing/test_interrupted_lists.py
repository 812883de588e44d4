"""Lists that are interrupted by Ctrl-C: every answer is kept, and the same call pays for the rest."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from ctrl_c import interrupted_at_every_moment
from jobs.remote import Remote

from smartbatch import BatchingClient, Interrupted, ListProgress
from smartbatch._clock import RealClock
from smartbatch.errors import RequestCancelled
from smartbatch.realtime.bounded_map import BoundedMap, ListOptions
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.results import ResultList
from smartbatch.types import Request, Result, evolve
from tests.levels import sampled

ClientOf = Callable[..., BatchingClient]
REQUESTS = [Request(f"p{number}", id=f"row {number}", context=number) for number in range(30)]


def ctrl_c_at(result: int) -> Callable[[ListProgress], None]:
    def interrupt(progress: ListProgress) -> None:
        if progress.finished == result:
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize("way", sampled(["individual", "batch", "hybrid"], first=1))
def test_each_answer_is_in_its_place_and_so_is_what_has_none(way, client_of, clock, tmp_path):
    client = client_of(Remote(clock), store=str(tmp_path / "jobs.db"), parallelism=2)
    with pytest.raises(Interrupted) as caught:
        client.generate(REQUESTS, strategy=way, on_progress=ctrl_c_at(7))
    results = caught.value.results
    assert [result.context for result in results] == list(range(30))
    assert results.succeeded >= 7
    assert all(result.text is None or result.text.endswith(f" p{at}") for at, result in enumerate(results))
    assert {type(result.error) for result in results if not result.ok} <= {RequestCancelled}
    assert results.succeeded == 30 or way == "individual"
    assert int(str(caught.value).split()[1]) >= 7
    assert client.submit("after").result().ok
    unknown = [result for result in results if not result.ok and result.cost is None]
    assert len(unknown) <= 2 or way != "individual"  # requests in flight; the others were not sent
    assert {result.cost for result in results if not result.ok} <= {0.0, None}
    assert ("outcome unknown" in repr(results)) == bool(unknown)


@pytest.mark.full
def test_copies_of_rows_and_hooks_are_respected_by_an_interrupt(client_of, clock, store):
    client = client_of(
        Remote(clock), post_process=lambda result: evolve(result, text=f"<{result.text}>"), store=store
    )
    with pytest.raises(Interrupted) as caught:
        client.generate(["same"] * 5 + ["other"] * 7, strategy="batch", on_progress=ctrl_c_at(1))
    assert caught.value.results.texts == ["<by batch: same>"] * 5 + ["<by batch: other>"] * 7


@pytest.mark.parametrize("kept", sampled([{}, {"cache": "answers.db"}, {"key": "labels"}], first=2), ids=str)
def test_the_same_call_pays_what_its_message_says(kept, client_of, clock, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    interrupted = threading.Event()

    def reply(prompt: str) -> str:
        if int(prompt[1:]) >= 12:  # the others are answered before the interrupt
            interrupted.wait()
        return prompt

    remote = Remote(clock, reply=reply)
    settings = {name: value for name, value in kept.items() if name == "cache"}
    params: dict[str, Any] = {name: value for name, value in kept.items() if name == "key"}
    client = client_of(remote, store="jobs.db", parallelism=2, **settings)
    prompts = [f"p{number}" for number in range(30)]
    with pytest.raises(Interrupted) as caught:
        client.generate(prompts, strategy="individual", on_progress=ctrl_c_at(10), **params)
    interrupted.set()
    assert client.generate(prompts, strategy="individual", **params).succeeded == 30
    assert (len(remote.asked) == 30) == bool(kept)
    words = str(caught.value)
    assert ("pays for only what is missing" in words) == bool(kept)
    assert ('with key="..." or cache="..." it would pay' in words) == (not kept)
    assert "of 30 results had arrived" in words


@pytest.mark.full
def test_a_loop_over_a_batch_finds_what_it_was_not_given(client_of, clock, tmp_path):
    client = client_of(Remote(clock), store=str(tmp_path / "jobs.db"))
    given: list[Result] = []
    with pytest.raises(Interrupted) as caught:
        given.extend(client.as_completed(REQUESTS, strategy="batch", on_progress=ctrl_c_at(7)))
    assert len(given) == 6
    assert sorted(result.context for result in [*given, *caught.value.results]) == list(range(30))


def test_the_table_of_the_prompts_is_kept(client_of, clock):
    rows = [{"city": f"city {number}"} for number in range(9)]
    client = client_of(Remote(clock), parallelism=1)
    with pytest.raises(Interrupted) as caught:
        client.generate(rows, template="Where is {city}?", on_progress=ctrl_c_at(3))
    table = caught.value.results.to_table()
    assert [row["city"] for row in table] == [row["city"] for row in rows]
    assert table[0]["text"] == "re: Where is city 0?"


def test_an_interrupt_can_be_sent_to_another_process():
    found = pickle.loads(pickle.dumps(Interrupted("said", lambda: ResultList([Result("r", text="a")]))))
    assert (str(found), found.results.texts) == ("said", ["a"])


@pytest.mark.full
def test_no_answer_is_lost_wherever_the_interrupt_comes():
    def submit(request: Request, sink: Callable[[Result], None]) -> ResultFuture:
        future = ResultFuture[Any](lambda act: act(), lambda _: None)
        result = Result(str(request.id), text="answered")
        future.complete(result)
        answered.append(request.id)
        sink(result)
        return future

    def read() -> None:
        nonlocal results
        read_so_far.clear()
        answered.clear()
        requests = [Request(id=str(number)) for number in range(3)]
        results = BoundedMap(requests, submit, RealClock(), ListOptions(ahead=2), lambda _: None)
        read_so_far.extend(results)

    results: Any = None
    answered: list[str | None] = []
    read_so_far: list[Result] = []
    spared = {submit.__code__}  # run by the workers
    for moment in interrupted_at_every_moment(read, spared=spared):
        if results is None:
            continue
        results.close()
        found = {result.request_id for result in [*read_so_far, *results.unread().values()]}
        assert found >= set(answered), f"interrupted at moment {moment}"
