"""Servers whose answers are lost or missing: an exchange is made once, whatever its client saw."""

from __future__ import annotations

import os
import re
import signal
import socket
import socketserver
import threading
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from sharing.servers import RedisServer, address_of, redis_server

from smartbatch.core.limits.shared_limit import LeaseAsk, MemberLimits, QuotaKind, Totals
from smartbatch.sharing import postgres_back_end
from smartbatch.sharing.back_end import BackEndUnavailable, Incompatible, hidden
from smartbatch.sharing.postgres_back_end import PostgresBackEnd
from smartbatch.sharing.redis_back_end import RedisBackEnd

__all__ = ["redis_server"]  # fixtures


class Proxy:
    """Forwards connections to the server; while ``loses`` is set, answers to ``EXEC`` are dropped, and the
    connection is closed."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.loses = False
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/{os.getpid() % 16}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        executes = threading.Event()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server.socket))
            threading.Thread(target=self._pass_on, args=(client, server, executes), daemon=True).start()
            while answer := server.recv(65536):
                if self.loses and executes.is_set():
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)

    def _pass_on(self, client: socket.socket, server: socket.socket, executes: threading.Event) -> None:
        try:
            while asked := client.recv(65536):
                if self.loses and b"\r\nEXEC\r\n" in asked:
                    executes.set()
                server.sendall(asked)
            server.shutdown(socket.SHUT_RDWR)
        except OSError:
            """The other side has closed it."""

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy(redis_server):
    made = Proxy(redis_server)
    yield made
    made.close()


LIMIT, QUARTER = [100.0, 0.0, 0.0, 0.0], [25.0, 0.0, 0.0, 0.0]


def test_an_exchange_whose_answer_is_lost_is_not_repeated(proxy):
    back_end = RedisBackEnd(proxy.address)
    key = hidden(back_end.prepare(), str(uuid4()))
    asks = partial(LeaseAsk, "one", limits=MemberLimits(caps=LIMIT))
    assert back_end.exchange(key, asks(least=QUARTER, wanted=QUARTER)).left[0] == 75.0
    proxy.loses = True
    with pytest.raises(BackEndUnavailable, match="cannot be used"):
        back_end.exchange(key, asks(kept=QUARTER, least=QUARTER, wanted=QUARTER))
    proxy.loses = False
    assert proxy.lost == 1
    assert back_end.exchange(key, asks(kept=QUARTER)).left[0] == 50.0
    back_end.close()


def test_money_of_an_exchange_whose_answer_is_lost_is_not_lost(proxy):
    back_end = RedisBackEnd(proxy.address)
    key = hidden(back_end.prepare(), str(uuid4()))
    asks = partial(LeaseAsk, "one", limits=MemberLimits(caps=LIMIT), kind=QuotaKind.BUDGET)
    assert (
        back_end.exchange(key, asks(totals=Totals(number=1), least=QUARTER, wanted=QUARTER)).left[0] == 75.0
    )
    proxy.loses = True
    with pytest.raises(BackEndUnavailable, match="cannot be used"):
        back_end.exchange(
            key, asks(totals=Totals(number=2, drawn=25.0, given=25.0), least=QUARTER, wanted=QUARTER)
        )
    proxy.loses = False
    assert back_end.exchange(key, asks(totals=Totals(number=3, drawn=25.0, given=25.0))).left[0] == 100.0
    back_end.close()


def test_a_frozen_postgresql_is_unavailable_and_used_again(request, tmp_path, monkeypatch):
    name = f"stopped-{uuid4().hex[:8]}"
    address = address_of("postgresql", request, tmp_path)
    back_end = PostgresBackEnd(f"{address}&application_name={name}")
    request.addfinalizer(back_end.close)
    key = hidden(back_end.prepare(), str(uuid4()))
    asks = partial(LeaseAsk, "one", limits=MemberLimits(caps=LIMIT))
    with psycopg.connect(str(request.getfixturevalue("postgres_address"))) as other:
        [(pid,)] = other.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", (name,))
    monkeypatch.setattr(postgres_back_end, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(postgres_back_end, "EXTRA_SECONDS", 0.0)
    os.kill(pid, signal.SIGSTOP)
    later = threading.Timer(5.0, os.kill, (pid, signal.SIGCONT))
    later.start()
    try:
        with pytest.raises(BackEndUnavailable, match=r"no answer within 0\.1 s"):
            back_end.exchange(key, asks(least=QUARTER, wanted=QUARTER))
    finally:
        later.cancel()
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert back_end.exchange(key, asks()).members == 1


class OtherNode(socketserver.BaseRequestHandler):
    """Answers each command like a node of a Redis Cluster that has none of the keys."""

    def handle(self) -> None:
        while asked := self.request.recv(65536):
            commands = len(re.findall(rb"(?:^|\n)\*\d+\r", asked))
            self.request.sendall(commands * b"-MOVED 866 127.0.0.1:1\r\n")


@pytest.mark.full
def test_a_node_of_a_cluster_is_refused_in_words():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OtherNode) as server:
        threading.Thread(target=server.serve_forever).start()
        back_end = RedisBackEnd(f"redis://127.0.0.1:{server.server_address[1]}/0")
        try:
            with pytest.raises(Incompatible, match="is a node of a cluster"):
                back_end.prepare()
        finally:
            back_end.close()
            server.shutdown()
