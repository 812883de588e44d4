"""Notebooks with kernels of their own, run as a server runs them: what cells show, interrupts, restarts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_script import PACKAGE

pytestmark = pytest.mark.full
GUARD = 90


class Notebook:
    def __init__(self, client: Any, new_cell: Callable[[str], Any], wait: Callable[..., Any]) -> None:
        self._client = client
        self._new_cell = new_cell
        self._wait = wait

    def run(self, source: str, *, interrupted_at: Path | None = None) -> Cell:
        cells = self._client.nb.cells
        cells.append(self._new_cell(source))
        if interrupted_at is not None:
            threading.Thread(target=self._interrupt, args=(interrupted_at,), daemon=True).start()
        return Cell(self._client.execute_cell(cells[-1], len(cells) - 1))

    def restart(self) -> None:
        self._wait(self._client.km.restart_kernel)(now=True)
        self._wait(self._client.kc.wait_for_ready)(timeout=GUARD)

    def _interrupt(self, when: Path) -> None:
        with when.open() as fifo:  # opens, and ends, when the cell has opened it
            fifo.read()
        asyncio.run(self._client.km.interrupt_kernel())


class Cell:
    def __init__(self, cell: Any) -> None:
        self.outputs = cell.outputs

    def stream(self, name: str) -> str:
        return "".join(each.text for each in self.outputs if each.get("name") == name)

    @property
    def html(self) -> str:
        (shown,) = [each.data for each in self.outputs if each.output_type == "execute_result"]
        return str(shown["text/html"])

    @property
    def error(self) -> Any:
        (raised,) = [each for each in self.outputs if each.output_type == "error"]
        return raised

    def printed(self) -> list[str]:
        assert [each for each in self.outputs if each.output_type == "error"] == []
        return self.stream("stdout").splitlines()


@contextmanager
def notebook(folder: Path) -> Iterator[Notebook]:
    import nbclient  # here: the default tests collect this file, too
    import nbformat.v4
    from jupyter_core.utils import run_sync

    environ = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
        "IPYTHONDIR": str(folder / "ipython"),
        "SMARTBATCH_STORE": str(folder / "jobs.db"),
        "SMARTBATCH_SIM_DIR": str(folder / "sim"),
        "SMARTBATCH_BATCH_POLL_INTERVAL": "1h",
    }
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=GUARD, allow_errors=True)
    with client.setup_kernel(env=environ):
        yield Notebook(client, nbformat.v4.new_code_cell, run_sync)


SETTING = """
import os, smartbatch, sys, threading
from smartbatch import BatchingClient
asked = []
def call(request, attempt):
    asked.append(request.prompt)
    if request.prompt == "waits" and asked.count("waits") == 1:
        with open({fifo!r}, "w"):
            pass
        waiting.wait()
    return f"answer to {{request.prompt}}"
waiting = threading.Event()
client = BatchingClient(call, parallelism=4)
prompts = [*(f"p{{n}}" for n in range(20)), "waits", *(f"p{{n}}" for n in range(20, 500))]
"""


def test_what_cells_show_and_an_interrupt_leaves(tmp_path):
    fifo = tmp_path / "waits"
    os.mkfifo(fifo)
    with notebook(tmp_path) as book:
        assert book.run(SETTING.format(fifo=str(fifo))).printed() == []

        shown = book.run("client.generate([f'text {n}' for n in range(30)])")
        assert "100%|" in shown.stream("stderr")
        assert "30/30" in shown.stream("stderr")
        assert "Warning" not in shown.stream("stderr")
        assert "30 results: 30 succeeded" in shown.html
        assert "individual" in book.run("client.plan(['a', 'b'])").html
        assert "submitted" in book.run("client.metrics").html
        assert book.run("client.generate(['a'], progress=False)").stream("stderr") == ""

        ask = "def ask():\n    return client.generate(prompts, {more})\nresults = ask()"
        first = book.run(ask.format(more=""), interrupted_at=fifo)
        assert first.error.ename == "Interrupted"
        lines = "\n".join(first.error.traceback).splitlines()
        assert len(lines) <= 10
        assert lines[0] == "Traceback (most recent call last):"
        assert "results = ask()" in lines[2]
        assert "return client.generate(prompts, )" in lines[4]
        assert "client.py" in lines[5]
        assert "sys.last_value" in lines[-1]
        assert "pays for all of them" in lines[-1]
        [found] = book.run(
            "results = sys.last_value.results\n"
            "print(len(results), results[0].text, results[20].ok, results.succeeded >= 20)"
        ).printed()
        assert found == "501 answer to p0 False True"

        late = """
waiting.set()
while not sys.last_value.results[20].ok:  # its call was in flight, and is paid
    os.sched_yield()
print(sys.last_value.results[20].text)
"""
        assert book.run(late).printed() == ["answer to waits"]

        again = "waiting = threading.Event(); asked.clear()\n" + ask.format(more="key='labels'")
        second = book.run(again, interrupted_at=fifo)
        assert "key='labels' continues the list" in "\n".join(second.error.traceback)
        third = book.run(
            "waiting.set(); results = ask(); print(len(results), results.succeeded, len(set(asked)))"
        )
        assert third.printed() == ["501 501 501"]
        [paid] = book.run("print(len(asked))").printed()
        assert int(paid) <= 501 + 4  # what was in flight was interrupted, not those that had come


def test_a_restarted_kernel_finds_its_jobs_and_looks_at_once(tmp_path):
    with notebook(tmp_path) as book:
        sent = book.run(
            """
import smartbatch, threading
client = smartbatch.BatchingClient("sim:demo?batch_seconds=0")
job = client.submit_batch(["a", "b", "c"], key="labels")
sent = threading.Event()
job.on_progress(lambda status: sent.set() if any(shard.batch_id for shard in status.shards) else None)
print(sent.wait(60), job.status().finished)
"""
        )
        assert sent.printed() == ["True 0"]
        book.restart()
        found = book.run(
            "import smartbatch\n[job] = smartbatch.list_jobs()\nprint(job.key, job.wait('80s').completed)"
        )
        assert found.printed() == ["labels 3"]
        assert "3 total" in book.run("job").html
        assert "3/3" in book.run("answers = list(job.results())").stream("stderr")
