"""Network behaviour of all providers: deadlines, size limits, TLS, closing and forks."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asking import ask, fails
from raw_server import RawServer, hangs, http, resets, says, trickles, vanishes
from services import SERVICES

from smartbatch.errors import ErrorKind
from tests.levels import sampled

CA = str(Path(__file__).parent / "localhost-ca.pem")

forks = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def in_child(work: Callable[[], bool]) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("script", sampled([hangs, trickles]), ids=["hang", "trickle"])
@pytest.mark.parametrize(
    "tls", [pytest.param(False, id="plain"), pytest.param(True, id="tls", marks=pytest.mark.full)]
)
def test_the_total_deadline_ends_a_call(serve, reach, script, tls, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    found = fails(reach(serve(script, tls=tls)), timeout=0.15)
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.TIMEOUT, "deadline", True)


def test_a_late_answer_goes_to_nobody(serve, reach, service):
    release = threading.Event()

    def late(exchange) -> None:
        release.wait(10)
        exchange.send(http(service.body("late")))

    server = serve(late, says(service.answer("right")))
    provider = reach(server)
    fails(provider, timeout=0.1)
    assert ask(provider, timeout=10).text == "right"  # sent while the first call is unanswered
    release.set()
    assert server.connections == 2


@pytest.mark.parametrize("script", [resets, vanishes])
def test_a_lost_answer_may_have_been_billed(serve, reach, script):
    server = serve(script)
    found = fails(reach(server))
    assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, True)
    assert len(server.requests) == 1


def test_a_refused_connection_was_not_billed(service):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = fails(service.at(f"http://127.0.0.1:{port}"))
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "refused", False)


@pytest.mark.parametrize("framing", sampled(["length", "chunked", "close"], first=1))
def test_a_cut_body_is_never_an_answer(serve, reach, service, framing):
    body = service.body()
    if framing == "length":
        whole = http(body)
    elif framing == "chunked":
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        whole = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        whole = b"HTTP/1.1 200 OK\r\n\r\n" + body
    start = whole.index(b"\r\n\r\n") + 4
    # The end of a chunked body is its last chunk; of an unframed one, the last byte of the JSON.
    end = whole.rindex(b"0\r\n\r\n") if framing == "chunked" else len(whole)
    for size in range(start, end, 60):

        def cut(exchange, size=size) -> None:
            exchange.send(whole[:size])
            exchange.close()

        found = fails(reach(serve(cut)))
        assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, True), size


def test_a_compressed_answer_is_understood(serve, reach, service):
    server = serve(says(gzip.compress(service.body()), content_encoding="gzip"))
    assert ask(reach(server)).text == "Lima"
    assert server.requests[0].headers["accept-encoding"] == "identity"


def test_a_body_above_the_cap_is_not_read(serve, reach):
    bomb = gzip.compress(b"0" * 5_000_000)
    found = fails(reach(serve(says(bomb, content_encoding="gzip")), max_body=1_000_000))
    assert (found.code, found.maybe_billed) == ("too_large", True)


def test_an_untrusted_certificate_ends_the_call_before_anything_is_sent(serve, reach, service):
    server = serve(says(service.answer("x")), tls=True)
    found = fails(reach(server))
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.CLIENT_ERROR, "tls", False)
    assert server.requests == []


def test_a_forwarding_proxy_gets_the_whole_url(serve, service, monkeypatch):
    proxy = serve(says(service.answer("Lima")))
    monkeypatch.setenv("http_proxy", f"http://me:pass%21@127.0.0.1:{proxy.port}")
    provider = service.at("http://llm.internal:8000", allow_http=True)
    assert ask(provider).text == "Lima"
    provider.close()
    sent = proxy.requests[0]
    assert sent.target == f"http://llm.internal:8000{service.path}"
    assert sent.headers["host"] == "llm.internal:8000"
    assert sent.headers["proxy-authorization"] == "Basic bWU6cGFzcyE="


def test_the_path_of_the_base_url_is_kept(serve, service):
    server = serve(says(service.answer("Lima")))
    provider = service.at(f"{url_of_root(server)}/team/a")
    ask(provider)
    provider.close()
    assert server.requests[0].target == f"/team/a{service.path}"


def url_of_root(server: RawServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_connections_are_kept_and_as_many_as_the_workers(serve, reach, service):

    def answers(exchange) -> None:
        exchange.send(http(service.body(f"re: {service.prompt(exchange)}")))

    server = serve(answers)
    provider = reach(server)
    provider.open(8)
    prompts = [f"question {n}" for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda prompt: ask(provider, prompt).text, prompts))
    assert found == [f"re: {prompt}" for prompt in prompts]
    assert server.connections <= 8


def test_every_call_has_the_same_head_though_an_sdk_builds_it_once(serve, reach, service):
    server = serve(says(service.answer("fine")))
    provider = reach(server)
    sdk = getattr(provider, "_sdk", None)
    for prompt, timeout in (("one", 30.0), ("a longer one", 30.0), ("one", 8.0), ("one", 30.0)):
        ask(provider, prompt, timeout=timeout)
    told = [
        {name: value for name, value in request.headers.items() if name != "content-length"}
        for request in server.requests
    ]
    assert told[0] == told[1] == told[3]
    assert server.requests[0].headers["content-length"] != server.requests[1].headers["content-length"]
    changed = {name for name in told[0] if told[0][name] != told[2][name]}
    assert changed <= {"x-server-timeout", "x-stainless-timeout", "x-stainless-read-timeout"}
    assert bool(changed) == (sdk is not None)
    if sdk is not None:
        sdk.get().send = None  # must not be called again
        assert ask(provider, timeout=29.5).text == "fine"


def test_closing_ends_calls_under_way(serve, reach, service):
    server = serve(hangs, hangs, says(service.answer("again")))
    provider = reach(server)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(fails, provider, timeout=60.0) for _ in range(2)]
        for _ in calls:
            assert server.arrived.acquire(timeout=10)
        provider.close()
        errors = [call.result(timeout=10) for call in calls]
    provider.close()
    assert {(e.kind, e.code, e.maybe_billed) for e in errors} == {(ErrorKind.NETWORK_ERROR, "closed", True)}
    assert fails(provider).code == "closed"
    provider.open(2)
    assert ask(provider).text == "again"


@pytest.mark.full
@pytest.mark.parametrize("service", sampled(SERVICES), ids=lambda service: service.name)
def test_making_a_provider_makes_nothing_else(service):
    code = f"""
import socket, sys, threading
made = []
def counted(owner, name):
    make = getattr(owner, name)
    def count(*args, **named):
        if sys._getframe(1).f_globals["__name__"].startswith("smartbatch"):
            made.append(name)
        return make(*args, **named)
    setattr(owner, name, count)
for kind in ("Lock", "RLock"):
    counted(threading, kind)
counted(threading.Thread, "start")
counted(socket.socket, "connect")
from {service.kind.__module__} import {service.kind.__name__}
provider = {service.kind.__name__}(api_key={service.key!r})
assert made == [], made
sdks = [name for name in ("anthropic", "google.genai", "httpx2", "pydantic") if name in sys.modules]
assert sdks == [], sdks
provider.open(4)
provider.ready()
assert "connect" not in made and made.count("start") == ({service.sdk!r} is not None), made
assert {service.sdk!r} in (None, *sys.modules)
del made[:]
provider.open(4)
assert made == [], made
provider.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_first_calls_may_begin_together(serve, service):

    def answers(exchange) -> None:
        exchange.send(http(service.body(service.prompt(exchange))))

    provider = service.at(url_of_root(serve(answers)))
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(lambda n=n: (together.wait(), ask(provider, f"prompt {n}"))[1].text) for n in range(8)
        ]
        assert [call.result(timeout=20) for call in calls] == [f"prompt {n}" for n in range(8)]
    provider.close()


@pytest.mark.usefixtures("service")
class TestForks:
    pytestmark = forks

    def test_a_child_uses_nothing_of_its_parent(self, serve, reach, service):
        release = threading.Event()

        def held(exchange) -> None:
            release.wait(20)
            exchange.send(http(service.body("held")))

        answers = [says(service.answer(text)) for text in ("kept", "idle", "child", "parent")]
        server = serve(answers[0], held, *answers[1:])
        provider = reach(server)
        assert ask(provider).text == "kept"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, provider)  # uses the kept connection
            for _ in range(2):
                assert server.arrived.acquire(timeout=10)
            assert ask(provider).text == "idle"  # uses a second one, which a child could inherit
            # A thread of the parent may hold this lock at the fork.
            with provider.network.realtime._pool.lock():
                in_child(lambda: (provider.open(2), ask(provider).text == "child")[1])
            release.set()
            assert running.result(timeout=10).text == "held"
        assert ask(provider).text == "parent"
        assert server.connections == 3  # two of the parent, one of the child

    def test_a_fork_while_the_client_is_built_hangs_nobody(self, serve, service):
        provider = service.at(url_of_root(serve(says(service.answer("child")))))
        made = getattr(provider, "_sdk", provider.network.realtime._pool)
        with made.lock():
            in_child(lambda: ask(provider).text == "child")
