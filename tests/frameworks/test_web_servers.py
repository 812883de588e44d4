"""A client at module level under real web servers: each cell of the table in the documentation (F7).

The provider is the emulator in a process of its own; requests go over sockets. One that waits for half a
minute is hung and fails.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from run_script import PACKAGE
from web_servers import GRACE, SERVERS, WORKERS, Provider, Reply, WebServer, provider, run_server

LATENCY = 0.05
SLOW = 1.0


@pytest.fixture(scope="module")
def quick():
    with provider(LATENCY) as running:
        yield running


def at_once(server: WebServer) -> int:
    return min(16, WORKERS * server.at_once)


def all_right(replies: list[Reply]) -> None:
    assert [reply for reply in replies if not reply.is_right] == []


def requests(server: WebServer, quick: Provider, folder: Path) -> None:
    with run_server(server, quick.environ, folder) as running:
        all_right(running.ask_all(200, at_once(server)))


def used_before(server: WebServer, quick: Provider, folder: Path) -> None:
    # in the middle of a call, too, where Python's own fork waits for no thread that holds its lock
    used = {"USED_BEFORE_THE_FORK": "1"} | ({} if server.is_uwsgi else {"BUSY_BEFORE_THE_FORK": "1"})
    with run_server(server, quick.environ | used, folder) as running:
        all_right(running.ask_all(100, at_once(server)))
        running.signal(signal.SIGTERM)
        assert running.ends_within(GRACE), running.log.read_text()


def max_requests(server: WebServer, quick: Provider, folder: Path) -> None:
    with run_server(server, quick.environ, folder, "--max-requests", "20") as running:
        replies = running.ask_all(100, WORKERS)
        all_right(replies)
        assert len({reply.process for reply in replies}) > WORKERS


def sighup(server: WebServer, quick: Provider, folder: Path) -> None:
    with run_server(server, quick.environ, folder) as running:
        before = {reply.process for reply in running.ask_all(20, WORKERS)}
        replies: list[Reply] = []
        going = threading.Thread(target=lambda: replies.extend(running.ask_all(100, WORKERS, "during")))
        going.start()
        running.signal(signal.SIGHUP)
        going.join()
        all_right(replies)
        while (reply := running.ask("after")).process in before:
            assert reply.is_right


def sigterm(server: WebServer, quick: Provider, folder: Path) -> None:
    with provider(SLOW) as slow, run_server(server, slow.environ, folder) as running:
        replies: list[Reply] = []
        count = at_once(server)
        going = threading.Thread(target=lambda: replies.extend(running.ask_all(count, count)))
        going.start()
        slow.wait_for(count)
        running.signal(signal.SIGTERM)
        ended = running.ends_within(GRACE)
        going.join()
        assert ended, running.log.read_text()
        all_right(replies)
        assert slow.received() == count  # nothing is asked twice


SITUATIONS: dict[str, Callable[[WebServer, Provider, Path], None]] = {
    "200 requests": requests,
    "used before the fork": used_before,
    "--max-requests": max_requests,
    "SIGHUP": sighup,
    "SIGTERM": sigterm,
}


def cells() -> list[tuple[WebServer, str]]:
    return [
        (server, situation)
        for server in SERVERS
        for situation in SITUATIONS
        if server.forks_after_import or situation != "used before the fork"
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("server", "situation"), cells(), ids=[f"{server.name}, {situation}" for server, situation in cells()]
)
def test_a_cell(server, situation, quick, tmp_path):
    SITUATIONS[situation](server, quick, tmp_path)


def test_the_table_of_the_documentation_has_these_cells():
    page = (PACKAGE.parent / "docs/reference/web-servers.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"
    ]
    heads, _, *lines = rows
    assert heads == ["server", *SITUATIONS]
    assert [line[0] for line in lines] == [server.name for server in SERVERS]
    said = [
        (line[0], head) for line in lines for head, cell in zip(heads, line, strict=True) if cell == "yes"
    ]
    assert said == [(server.name, situation) for server, situation in cells()]
    assert {cell for line in lines for cell in line[1:]} == {"yes", "–"}
