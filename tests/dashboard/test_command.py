"""``smartbatch dashboard``: its address, its server, its end."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.dashboard import Served
from smartbatch.cli.main import main
from smartbatch.cli.server_commands import LocalServer
from smartbatch.dashboard import app
from tests.dashboard.visits import LOCAL, TOKEN
from tests.jobs.stores import Bench, new_items


@contextmanager
def serving(shelf: Bench) -> Iterator[LocalServer]:
    board = app(store=shelf.place, shared="off", access=LOCAL)
    server = LocalServer(0, board)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        board.stop()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.full
def test_the_server_streams_to_several_browsers_at_a_time(shelf, opened):
    with serving(shelf) as server:
        streams = []
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
            connection.request("GET", "/live?page=/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
            streams.append(connection.getresponse())
        opened.jobs.accept(shelf.job(key="the new one"), new_items(1))
        for stream in streams:
            assert stream.status == 200
            while b"the new one" not in (line := stream.readline()):
                assert line, "the stream ended"


def test_a_browser_that_goes_away_is_no_error(shelf, opened, capfd):
    with serving(shelf) as server, socket.create_connection(("127.0.0.1", server.server_port)) as half:
        half.sendall(b"GET / HTTP/1.0\r\n")
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_bad_usage(shelf, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--store", shelf.place, "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use" in capfd.readouterr().err
    assert main(["dashboard", "--store", shelf.place, "--port", "70000"]) == 2


@pytest.mark.full
def test_the_command_prints_its_address_serves_and_ends(shelf, opened):
    with Served(shelf.place) as served:
        body, _ = served.get("/")
        assert body
        refused = http.client.HTTPConnection(served.address, timeout=30)
        refused.request("GET", "/")
        assert refused.getresponse().status == 403
    assert served.ended == 0
