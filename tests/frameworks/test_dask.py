"""One list for the workers of a Dask cluster: real processes, a real server, and a store they share.

The calls are those that docs/how-to/dask.md shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from frameworks.incidents import named_in_incidents

from smartbatch import BatchingClient, ConfigError, InvalidRequest, JobConflict, ListProgress, ResultList
from smartbatch._clock import RealClock
from smartbatch.cli.main import main
from smartbatch.testing import Emulator, answer_for, emulator

distributed = pytest.importorskip("distributed", reason="distributed is not installed: the test extra has it")
dask = pytest.importorskip("smartbatch.integrations.dask")
cluster = pytest.importorskip("smartbatch.cluster")

UNIT = cluster.UNIT_ROWS

MODEL = "openai:gpt-5-mini"
PATIENCE = 120.0


@pytest.fixture
def scheduler():
    made = distributed.LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=":0")
    with made, distributed.Client(made, set_as_default=False) as client:
        yield client


def ask(server: Emulator, prompts: Any, scheduler: Any, store: str, **settings: Any) -> Any:
    options = {"base_url": server.base_url, "api_key": "any"}
    return dask.map(
        prompts, model=MODEL, scheduler=scheduler, store=store, provider_options=options, **settings
    )


def expected(prompts: list[str]) -> list[str]:
    return [answer_for(prompt, "gpt-5-mini") for prompt in prompts]


@pytest.mark.full
def test_a_list_is_answered_in_order_and_paid_once(scheduler, store, capsys):
    prompts = [f"question {n}" for n in range(250)]
    with emulator(latency=0.01) as server:
        results = ask(server, prompts, scheduler, store)
        assert isinstance(results, ResultList)
        assert results.texts == expected(prompts)
        assert capsys.readouterr().err == ""
        assert ask(server, prompts, scheduler, store, parallelism=2, progress=True).texts == results.texts
        assert "250/250" in capsys.readouterr().err
        assert server.ledger.received == 250


def until(condition: Callable[[], bool]) -> None:
    ended = RealClock.now() + PATIENCE
    while not condition():
        assert RealClock.now() < ended
        RealClock().sleep(0.02)


def threads_of_clients(dask_worker: Any) -> list[str]:
    names = [*(thread.name for thread in threading.enumerate()), *map(str, dask_worker.plugins)]
    return [name for name in names if name.startswith("smartbatch")]


@pytest.mark.full
def test_a_list_without_workers_says_so_and_goes_on_once_one_joins(store, caplog):
    results: list[Any] = []
    made = distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0")
    with made, distributed.Client(made, set_as_default=False) as client, emulator() as server:
        call = threading.Thread(target=lambda: results.extend(ask(server, ["question"], client, store)))
        began = RealClock.now()
        call.start()
        until(lambda: "no Dask worker" in caplog.text)
        assert RealClock.now() - began < 10.0
        assert server.ledger.received == 0
        made.scale(1)
        call.join(PATIENCE)
        assert [result.text for result in results] == expected(["question"])
        assert caplog.text.count("no Dask worker") == 1


@pytest.mark.full
def test_the_clients_of_the_workers_end_with_their_call(scheduler, store, tmp_path):
    shared = store if store.startswith("postgresql") else f"sqlite:///{tmp_path}/limits.db"
    prompts = [f"question {n}" for n in range(120)]

    def interrupt_at(progress: ListProgress) -> None:
        raise KeyboardInterrupt

    with emulator(latency=0.01) as server:
        for key in ("one", "other"):
            assert ask(server, prompts, scheduler, store, key=key, shared=shared, budget=1.0).failed == 0
        with pytest.raises(KeyboardInterrupt):
            ask(server, prompts, scheduler, store, key="third", on_progress=interrupt_at)
        until(lambda: not any(scheduler.run(threads_of_clients).values()))


@pytest.mark.full
def test_the_workers_ask_with_the_key_of_the_call(scheduler, store):
    with emulator() as server:
        for key in ("first", "second"):
            options = {"base_url": server.base_url, "api_key": key}
            results = dask.map(
                [f"question for {key}"],
                model=MODEL,
                scheduler=scheduler,
                store=store,
                provider_options=options,
                strategy="individual",
            )
            assert results.texts == expected([f"question for {key}"])


def kill_one(scheduler: Any) -> None:
    pids = sorted(scheduler.run(os.getpid).values())
    os.kill(pids[0], signal.SIGKILL)


@pytest.mark.full
def test_the_units_of_a_worker_that_is_killed_are_taken_over(scheduler, store):
    prompts = [f"question {n}" for n in range(600)]

    def kill_at(progress: ListProgress) -> None:
        if progress.finished == 100:
            kill_one(scheduler)

    with emulator(latency=0.1) as server:
        results = ask(server, prompts, scheduler, store, parallelism=8, on_progress=kill_at)
        assert results.texts == expected(prompts)
        twice = server.ledger.received - 600
    assert twice <= named_in_incidents(store) < UNIT


@pytest.mark.full
def test_an_interrupted_call_is_continued_by_the_same_call(scheduler, store):
    prompts = [f"question {n}" for n in range(600)]

    def interrupt_at(progress: ListProgress) -> None:
        if progress.finished == 100:
            raise KeyboardInterrupt

    with emulator(latency=0.1) as server:
        with pytest.raises(KeyboardInterrupt):
            ask(server, prompts, scheduler, store, on_progress=interrupt_at)
        for _ in range(2):
            assert ask(server, prompts, scheduler, store).texts == expected(prompts)
        assert server.ledger.received == 600


def run_line(server: Emulator, scheduler: Any, folder: Path) -> list[str]:
    return [
        *("run", str(folder / "questions.txt"), "--model", MODEL, "-o", str(folder / "answers.jsonl")),
        *("--store", str(folder / "jobs.db"), "--dask", scheduler.scheduler.address, "--quiet"),
        *("--provider-option", f"base_url={server.base_url}", "--provider-option", "api_key=any"),
        *("--strategy", "individual"),
    ]


@pytest.mark.full
def test_the_command_line_has_a_file_asked_by_the_workers(scheduler, tmp_path):
    questions = tmp_path / "questions.txt"
    rows = [f"question {n}" for n in range(250)]
    with emulator(latency=0.01) as server:
        for asked in (240, 240, 250):
            questions.write_text("\n".join(rows[:asked]))
            assert main(run_line(server, scheduler, tmp_path)) == 0
            assert server.ledger.received == asked
    answers = [json.loads(line)["text"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert answers == expected(rows)
    asked_there = scheduler.run(lambda: "smartbatch.providers.openai.provider" in sys.modules)
    assert all(asked_there.values())
    with BatchingClient("sim:demo", store=str(tmp_path / "jobs.db")) as client:
        assert client.jobs() == []


def told_run(server: Emulator, scheduler: Any, folder: Path) -> tuple[list[str], list[str]]:
    rows = [f"question {n}" for n in range(400)]
    (folder / "questions.txt").write_text("\n".join(rows))
    line = [word for word in run_line(server, scheduler, folder) if word != "--quiet"]
    return rows, [*line, "--parallelism", "4"]


def written_answers(folder: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "answers.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_a_killed_run_over_the_cluster_is_continued(scheduler, tmp_path, capsys):
    with emulator(latency=0.1) as server:
        rows, line = told_run(server, scheduler, tmp_path)
        with subprocess.Popen([sys.executable, "-m", "smartbatch", *line], stderr=subprocess.PIPE) as process:
            until(lambda: server.ledger.received >= 120)
            process.kill()
        assert main(line) == 0
        assert server.ledger.received == 400
    counts = re.findall(r"([\d,]+)/400", capsys.readouterr().err)
    assert max(int(count) for count in counts) == 400
    assert written_answers(tmp_path) == expected(rows)


@pytest.mark.full
def test_a_run_over_a_cluster_says_what_is_missing(tmp_path, capsys):
    (tmp_path / "questions.txt").write_text("a")
    line = ["run", str(tmp_path / "questions.txt"), "--model", "sim:demo", "--dask", "tcp://127.0.0.1:1"]
    assert main(line) == 2
    assert "give -o as well" in capsys.readouterr().err
    assert main([*line, "-o", str(tmp_path / "answers.jsonl")]) == 2
    assert "workers need a store that all of them reach" in capsys.readouterr().err


@contextlib.contextmanager
def killable_scheduler() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m"]
    scheduler = ["distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard"]
    with contextlib.ExitStack() as stack:
        made = subprocess.Popen([*command, *scheduler], stderr=subprocess.PIPE, text=True)
        stack.callback(made.communicate)
        stack.callback(made.kill)
        assert made.stderr is not None
        address = next(
            found.group() for line in made.stderr if (found := re.search(r"tcp://[\d.]+:\d+", line))
        )
        worker = f"distributed.cli.dask_worker {address} --no-nanny --no-dashboard --nthreads 4".split()
        running = subprocess.Popen([*command, *worker], stderr=subprocess.DEVNULL)
        stack.callback(running.wait)
        stack.callback(running.kill)
        yield address, made.pid


@pytest.mark.full
def test_the_same_call_goes_on_with_another_scheduler(scheduler, tmp_path):
    prompts = [f"question {n}" for n in range(600)]
    store = str(tmp_path / "jobs.db")

    with emulator(latency=0.1) as server:
        with killable_scheduler() as (address, pid):

            def kill_at(progress: ListProgress) -> None:
                if progress.finished == 100:
                    os.kill(pid, signal.SIGKILL)

            with pytest.raises(ConnectionError, match="with another scheduler"):
                ask(server, prompts, address, store, parallelism=8, on_progress=kill_at)
        assert ask(server, prompts, scheduler, store, parallelism=8).texts == expected(prompts)
        assert server.ledger.received - 600 <= named_in_incidents(store) < UNIT


class EndedTask:
    status = "finished"

    def exception(self, timeout: float) -> None:
        assert timeout

    def result(self, timeout: float) -> int:
        raise AssertionError(f"its worker is gone; not waited for {timeout} s")


def test_the_end_of_a_unit_is_known_without_what_its_task_returned():
    unasked: Any = object()
    job: Any = None
    future: Any = EndedTask()
    assert cluster.Cluster(unasked).await_end(cluster.Unit(job, future))


@pytest.mark.full
def test_workers_keep_one_budget(scheduler, store, tmp_path):
    shared = store if store.startswith("postgresql") else f"sqlite:///{tmp_path}/limits.db"
    prompts = [f"question {n}" for n in range(300)]
    with emulator(latency=0.01) as server:
        price = ask(server, ["question 0"], scheduler, store, max_tokens=20).cost
        budget = price * 100
        results = ask(server, prompts, scheduler, store, shared=shared, max_tokens=20, budget=budget)
    assert 0.5 * budget <= results.cost <= budget
    assert {type(result.error).__name__ for result in results if result.error} == {"BudgetExceeded"}


@pytest.mark.full
def test_the_key_of_a_list_that_went_by_batch_is_refused_to_another_list(tmp_path):
    place = str(tmp_path / "jobs.db")
    idle = distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0")
    with idle as made, distributed.Client(made, set_as_default=False) as scheduler:

        def ask_by_batch(prompts: list[str], model: str = "sim:demo?batch_seconds=0") -> Any:
            settings: dict[str, Any] = {"strategy": "batch", "batch_poll_interval": 0.05}
            return dask.map(
                prompts, model=model, scheduler=scheduler, store=place, key="cities", **settings
            ).texts

        prompts = [f"question {n}" for n in range(12)]
        texts = ask_by_batch(prompts)
        assert all(texts)
        for other in ([f"another {n}" for n in range(12)], prompts[:11]):
            with pytest.raises(JobConflict, match="cities"):
                ask_by_batch(other)
        with pytest.raises(JobConflict, match="model or parameters differ"):
            ask_by_batch(prompts, "sim:another?batch_seconds=0")
        assert ask_by_batch(prompts) == texts
        assert ask_by_batch([*prompts, "one more"])[:12] == texts
    with BatchingClient("sim:demo", store=place) as client:
        assert [job.total for job in client.jobs()] == [13]


@pytest.mark.full
def test_bags_and_dataframes_come_back_as_they_were_given(scheduler, tmp_path):
    bag = pytest.importorskip("dask.bag")
    dataframe = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    towns = [f"town {n}" for n in range(30)]
    prompts = [f"Where is {town}?" for town in towns]
    store = str(tmp_path / "jobs.db")
    with emulator() as server:
        given = bag.from_sequence([{"town": town} for town in towns], npartitions=3)
        answered = ask(server, given, scheduler, store, template="Where is {town}?")
        assert answered.npartitions == 3
        with contextlib.closing(distributed.Client(scheduler.cluster)):
            assert [result.text for result in answered.compute()] == expected(prompts)
        frame = pandas.DataFrame({"town": towns}, index=range(100, 130))
        table = dataframe.from_pandas(frame, npartitions=2)
        made = ask(server, table, scheduler, store, template="Where is {town}?")
        assert made.divisions == table.divisions
        computed = made.compute(scheduler="synchronous")
        plain = ask(server, frame, scheduler, store, template=lambda row: f"Where is {row['town']}?")
        for one in (computed, plain):
            assert list(one.columns) == ["town", "answer", "error", "cost"]
            assert list(one["answer"]) == expected(prompts)
            assert list(one.index) == list(frame.index)
            assert one["cost"].sum() > 0
        assert server.ledger.received == 30
        with pytest.raises(InvalidRequest, match=r"give template"):
            ask(server, table, scheduler, store)


@pytest.mark.full
def test_what_cannot_go_is_refused_before_anything_is_sent(scheduler, tmp_path):
    with emulator() as server:
        with pytest.raises(ConfigError, match="the workers need a store"):
            dask.map(["a"], model=MODEL, scheduler=scheduler)
        with pytest.raises(InvalidRequest, match="row 101"):
            ask(server, ["a"] * 101 + [""], scheduler, str(tmp_path / "jobs.db"))
        assert server.ledger.received == 0
