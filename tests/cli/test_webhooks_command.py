"""``smartbatch webhooks``: its address, its secret, its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from signed_events import SECRET, body_of, headers_of

from smartbatch import ConfigError, webhooks
from smartbatch.cli.main import main
from smartbatch.cli.server_commands import LocalServer
from smartbatch.jobs.store import open_store


def post(address, body, headers):
    with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request("POST", "/", body, headers)
        with connection.getresponse() as answer:
            return answer.status, answer.read()


def test_events_are_received_over_http(tmp_path):
    receiver = webhooks.app(str(tmp_path / "jobs.db"), secret=SECRET)
    server = LocalServer(0, receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        address, body = f"127.0.0.1:{server.server_port}", body_of("batch_1")
        headers = headers_of(body, time.time(), SECRET)
        assert post(address, body, headers) == (200, b"stored\n")
        assert post(address, body + b" ", headers)[0] == 401
        assert post(address, None, {**headers, "Transfer-Encoding": "chunked"})[0] == 411
        assert post(address, None, {**headers, "Content-Length": "70000"})[0] == 413
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        receiver.close()


def test_a_secret_is_required(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv(webhooks.SECRET_VARIABLE, raising=False)
    assert main(["webhooks", "--store", str(tmp_path / "jobs.db"), "--port", "0"]) == 2
    assert "SMARTBATCH_WEBHOOK_SECRET" in capfd.readouterr().err


@pytest.mark.parametrize("secret", [b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", [None]])
def test_a_secret_that_is_not_a_string_is_invalid(secret, tmp_path):
    with pytest.raises(ConfigError, match="webhook secret is not valid"):
        webhooks.app(str(tmp_path / "jobs.db"), secret=secret)


def test_a_store_that_does_not_exist_is_invalid_usage(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv(webhooks.SECRET_VARIABLE, SECRET)
    assert main(["webhooks", "--store", str(tmp_path / "jobs.bd"), "--port", "0"]) == 2
    assert f"there is no store at {tmp_path}/jobs.bd: " in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_invalid_usage(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv(webhooks.SECRET_VARIABLE, SECRET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["webhooks", "--store", str(tmp_path / "jobs.db"), "--port", port, "--create"]) == 2
    assert f"--port {port}: Address already in use" in capfd.readouterr().err


@pytest.mark.full
def test_the_command_prints_its_address_and_stops(tmp_path):
    place = str(tmp_path / "jobs.db")
    command = (sys.executable, "-m", "smartbatch", "webhooks", "--store", place, "--port", "0", "--create")
    environ = {**os.environ, webhooks.SECRET_VARIABLE: SECRET}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip().removeprefix("http://").removesuffix("/")
        body = body_of("batch_1")
        assert post(address, body, headers_of(body, time.time(), SECRET)) == (200, b"stored\n")
        assert process.stderr.readline() == f"there is no store at {place} yet; the first event creates it\n"
        process.terminate()
    assert process.returncode == 0
    store = open_store(place)
    assert store.webhook_events.unused(["batch_1"]) == {"batch_1": 1}
    store.close()
