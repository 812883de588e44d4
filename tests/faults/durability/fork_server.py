"""A fork server: everything is imported, and a worker is forked in a few milliseconds.

    python -m tests.faults.durability.fork_server LOG

Reads a line of JSON from standard input for each command and answers each with a line: ``{"run": task}``
forks a worker and returns ``{"pid": …}``, ``{"reap": pid}`` waits for its end and returns
``{"status": …, "cpu": seconds}``.
It has no second thread and opens no client, so that a child begins as a fresh process would.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.faults.durability.worker_task import WorkerTask

ROOT = Path(__file__).parents[3]


class ForkServer:
    """The process, as the tests hold it. Several loops may share one."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._asking = threading.Lock()
        # the state of the workers is the test's, and not that of the user who runs it
        names = ("PATH", "HOME", "TMPDIR", "LANG", "XDG_STATE_HOME")
        kept = {name: value for name, value in os.environ.items() if name in names}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.durability.fork_server", str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=kept,
            text=True,
        )

    def run(self, task: WorkerTask) -> int:
        return int(self._ask({"run": task.line()})["pid"])

    def reap(self, pid: int) -> tuple[int, float]:
        ended = self._ask({"reap": pid})
        return int(ended["status"]), float(ended["cpu"])

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server has ended: {self.log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _serve() -> None:
    from tests.faults.durability import worker

    worker.warm_up()
    if threading.active_count() > 1:
        raise RuntimeError("a fork server must not have threads: a fork would cut them off")
    # Where the allocations of the imports happen to end decides when a child collects garbage for the first
    # time. Through all that was imported that takes longer than many a worker runs, in each of them.
    gc.collect()
    gc.freeze()
    alive: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        if "run" in command:
            pid = os.fork()
            if not pid:
                _be_worker(command["run"])
            alive.add(pid)
            answer: dict[str, float] = {"pid": pid}
        else:
            pid = command["reap"]
            _, status, used = os.wait4(pid, 0)
            alive.discard(pid)
            answer = {"status": os.waitstatus_to_exitcode(status), "cpu": used.ru_utime + used.ru_stime}
        print(json.dumps(answer), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _be_worker(task: str) -> None:
    from tests.faults.durability import worker

    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    code = 1
    try:
        worker.run_worker(WorkerTask(**json.loads(task)))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    _serve()
