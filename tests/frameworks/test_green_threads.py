"""Under gevent the client waits as green threads do, whenever it was imported, made or first used."""

from __future__ import annotations

import textwrap
import threading
from pathlib import Path

import pytest
from providers.raw_server import Exchange, RawServer, chat, says
from run_script import GUARD, run_script
from web_servers import provider

CA = str(Path(__file__).parents[1] / "providers" / "localhost-ca.pem")
pytest.importorskip("gevent", reason="gevent is not installed: the test extra has it")

GREEN = """
import warnings
warnings.simplefilter("ignore")  # patching after an import is what is tried here
import gevent.monkey
from smartbatch import BatchingClient
from exit_scenes import say

class Ticks:
    "Counts how often another green thread has its turn."
    def __init__(self):
        self.count, self.then = 0, lambda: None
        gevent.spawn(self.run)
    def run(self):
        while True:
            gevent.sleep(0.01)
            self.count += 1
            self.then()
"""


def passes(
    script: str, *, out: list[str], environ: dict[str, str] | None = None, guard: float = GUARD
) -> None:
    ended = run_script(GREEN + textwrap.dedent(script), environ=environ, guard=guard)
    assert ended.err == ""
    assert ended.lines == out
    assert ended.code == 0


@pytest.mark.full
def test_a_client_works_before_and_after_patching():
    passes(
        """
        client = BatchingClient("sim:demo", parallelism=4)
        assert client.submit("before").result().ok
        gevent.monkey.patch_all()
        ticks = Ticks()
        jobs = [gevent.spawn(lambda n=n: client.submit(f"after {n}").result().ok) for n in range(50)]
        gevent.joinall(jobs, timeout=15)
        say(f"{[job.value for job in jobs] == [True] * 50} {client.counts.submitted} {ticks.count > 0}")
        """,
        out=["True 50 True"],
    )


@pytest.mark.full
def test_calls_wait_for_their_answers_at_the_same_time_over_tls_too():
    both = threading.Barrier(2)

    def answer(exchange: Exchange) -> None:
        both.wait(20)
        says(chat())(exchange)

    server = RawServer([answer], tls=True)
    passes(
        """
        import urllib3.connectionpool
        client = BatchingClient("openai:gpt-5-mini", parallelism=2, call_timeout=10, retries=0)
        gevent.monkey.patch_all()
        say(str([result.text for result in client.map(["one", "two"])]))
        """,
        out=["['Lima', 'Lima']"],
        environ={"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-test-0000", "SSL_CERT_FILE": CA},
    )
    server.stop()


@pytest.mark.full
@pytest.mark.parametrize(
    "model", ["openai:gpt-5-mini", "anthropic:claude-haiku-5-5", "gemini:gemini-3.8-flash"]
)
def test_every_provider_works_after_the_patching(model):
    with provider(0.05) as service:
        root = service.environ["OPENAI_BASE_URL"].removesuffix("/v1")
        passes(
            f"""
            used, unused = [BatchingClient({model!r}, batch_poll_interval=0.1) for _ in range(2)]
            assert used.submit("before").result().ok
            gevent.monkey.patch_all()
            for client in (used, unused):
                asked = [gevent.spawn(lambda n=n: client.submit(f"p{{n}}").result().ok) for n in range(80)]
                gevent.joinall(asked, timeout=60)
                assert [one.value for one in asked] == [True] * 80
                assert all(result.ok for result in client.submit_and_wait(["r"] * 12, timeout=60))
                say(str(len("".join(client.stream("tell"))) > 0))
            """,
            out=["True"] * 2,
            environ=service.environ
            | dict.fromkeys(("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), root)
            | dict.fromkeys(("ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "sk-test-0000"),
            guard=90,  # importing an SDK takes seconds
        )


@pytest.mark.full
def test_a_store_that_waits_for_a_lock_does_not_stop_other_green_threads(tmp_path):
    passes(
        f"""
        import sqlite3
        client = BatchingClient("sim:demo", store="{tmp_path}/jobs.db", cache="{tmp_path}/answers.db")
        gevent.monkey.patch_all()
        assert client.submit("first").result().ok
        client.submit_batch(["one"]).cancel()
        other = sqlite3.connect("{tmp_path}/jobs.db", isolation_level=None, timeout=0)
        while not other.in_transaction:  # the client's own writes end only if they have their turn
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                gevent.sleep(0.01)
        ticks = Ticks()
        ticks.then = lambda: other.execute("COMMIT") if ticks.count == 30 else None
        job = client.submit_batch(["two"])
        say(f"{{ticks.count >= 30}}")
        job.cancel()
        """,
        out=["True"],
    )
