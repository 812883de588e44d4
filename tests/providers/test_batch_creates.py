"""The outcome of a create in all Batch APIs: certainly nothing was created, or unknown."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import threading

import pytest
from asking import request_of, url_of
from batch_sides import ANTHROPIC, OPENAI
from batching import MARK, PATIENCE, fails
from raw_server import hangs, http, resets, says, trickles, vanishes

from smartbatch.errors import ErrorKind, ProviderError
from tests.levels import sampled

HTML = b"<html><title>502 Bad Gateway</title></html>"


def lost(api, side, folder, timeout=PATIENCE) -> ProviderError:
    creation = side.creation(api, folder)

    def once():
        try:
            api.create(creation, timeout)
        except Exception as error:
            raise api.classify(error) from None

    return fails(once)


def cut_refusal(exchange):
    exchange.send(
        http(b'{"type": "error", "error": {"type": "invalid_request_error", "code": 400}}', "400 No")[:-5]
    )
    exchange.close()


@pytest.mark.parametrize("status", sampled([400, 401, 403, 404, 413, 422, 429], keep=3))
def test_a_refusal_of_the_providers_own_says_that_nothing_was_created(api, side, tmp_path, status):
    batches, server = api(says(side.refusal(status), f"{status} No"))
    found = lost(batches, side, tmp_path)
    assert (found.status, found.maybe_billed) == (status, False)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", sampled([302, 408, 409, 500, 502, 503, 504, 529], keep=4))
def test_any_other_status_leaves_it_open(api, side, tmp_path, status):
    batches, server = api(
        says(side.refusal(status), f"{status} No", location="/elsewhere", x_should_retry="true")
    )
    assert lost(batches, side, tmp_path).maybe_billed
    assert len(server.requests) == 1


def test_a_413_of_a_gateway_says_that_nothing_was_created(api, side, tmp_path):
    batches, server = api(says(HTML, "413 Request Entity Too Large", content_type="text/html"))
    found = lost(batches, side, tmp_path)
    assert (found.status, found.maybe_billed, found.exceeds) == (413, False, "bytes")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("the batch has too many requests", "requests"),
        ("the file exceeds the size limit", "bytes"),
        ("the batch has too many tokens", "tokens"),
        ("the rate limit is exceeded", None),
    ],
)
def test_a_refusal_names_the_limit_that_the_batch_exceeds(api, side, tmp_path, text, limit):
    batches, _ = api(says(side.refusal(400, text), "400 Bad"))
    assert getattr(lost(batches, side, tmp_path), "exceeds", None) == limit


@pytest.mark.parametrize("status", sampled([400, 404, 429], keep=2))
@pytest.mark.parametrize(
    "body", sampled([HTML, b"", b'{"error": "no"}', b'{"error": {}}', b"[[[", b'{"detail": "no"}'], keep=3)
)
def test_a_refusal_by_somebody_in_between_leaves_it_open(api, side, tmp_path, status, body):
    batches, server = api(says(body, f"{status} No", content_type="text/html"))
    found = lost(batches, side, tmp_path)
    bare = side is OPENAI and body == b'{"error": "no"}'  # OpenAI-compatible servers refuse requests this way
    assert (found.status, found.maybe_billed) == (status, not bare)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body",
    sampled(
        [
            HTML,
            b"",
            b"{}",
            b"[]",
            b"null",
            b'{"id": "msgbatch_1", "name": "batches/ab',
            b'{"id": null, "name": null}',
            b'{"id": "../../v1/files", "name": "batches/../../v1/files"}',
            b'{"id": "a b", "name": "batches/a b"}',
            json.dumps({"id": "x" * 10_000, "name": "batches/" + "x" * 10_000}).encode(),
            b'{"id": "a\\u0000b", "name": "batches/a\\u0000b"}',
            b'{"error": {"type": "api_error", "message": "no"}, "type": "error"}',
        ],
        keep=5,
    ),
    ids=["html", "empty", "object", "list", "null", "cut", "no-id", "path", "space", "long", "nul", "error"],
)
def test_a_success_that_cannot_be_read_leaves_it_open(api, side, tmp_path, body):
    batches, server = api(says(body))
    assert lost(batches, side, tmp_path).maybe_billed
    assert len(server.requests) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (resets, ErrorKind.NETWORK_ERROR),
        (vanishes, ErrorKind.NETWORK_ERROR),
        (hangs, ErrorKind.TIMEOUT),
        (trickles, ErrorKind.TIMEOUT),
        (lambda exchange: exchange.send(b"SSH-2.0\r\n\r\n"), ErrorKind.INVALID_RESPONSE),
        (cut_refusal, None),
    ],
    ids=["reset", "gone", "silent", "trickle", "no-http", "half-a-refusal"],
)
def test_a_lost_answer_leaves_it_open_and_is_not_asked_for_again(api, side, tmp_path, script, kind):
    batches, server = api(script)
    found = lost(batches, side, tmp_path, timeout=0.3)
    assert (found.kind, found.maybe_billed) == (kind or found.kind, True)
    assert len(server.requests) == 1


def test_a_connection_broken_within_the_request_leaves_the_outcome_open(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take_a_little():
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        thread = threading.Thread(target=take_a_little, daemon=True)
        thread.start()
        provider = ANTHROPIC.provider(f"http://127.0.0.1:{listener.getsockname()[1]}")
        api = provider.batches()
        creation = ANTHROPIC.creation(api, tmp_path, [request_of("x" * 8_000_000)])
        found = fails(lambda: api.create(creation, PATIENCE))
        provider.close()
        thread.join(PATIENCE)
    assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, True)


def test_a_connection_nobody_takes_created_nothing(side, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    provider = side.provider(f"http://127.0.0.1:{port}")
    found = lost(provider.batches(), side, tmp_path)
    assert (found.code, found.maybe_billed) == ("refused", False)


def test_a_name_nobody_knows_created_nothing(side, tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    provider = side.provider("https://provider.invalid")
    found = lost(provider.batches(), side, tmp_path)
    assert (found.code, found.maybe_billed) == ("dns", False)


def test_a_server_nobody_vouches_for_created_nothing(serve, side, tmp_path):
    server = serve(says(side.batch()), tls=True)
    provider = side.provider(url_of(server))
    found = lost(provider.batches(), side, tmp_path)
    assert (found.code, found.maybe_billed) == ("tls", False)
    assert server.requests == []


def test_a_closed_provider_creates_nothing(serve, side, tmp_path):
    server = serve(says(side.batch()))
    provider = side.provider(url_of(server))
    api = provider.batches()
    provider.close()
    assert not lost(api, side, tmp_path).maybe_billed
    assert server.requests == []


def test_a_create_goes_out_on_a_connection_of_its_own(api, side, tmp_path):
    batches, server = api(says(side.batch()))
    batches.get("abc1", PATIENCE)
    assert batches.create(side.creation(batches, tmp_path), PATIENCE).total == 5
    batches.get("abc1", PATIENCE)
    assert (len(server.requests), server.connections) == (3, 3)


def test_a_create_carries_its_mark_as_a_key_against_doubles(api, side, tmp_path):
    batches, server = api(says(side.batch()))
    batches.create(side.creation(batches, tmp_path), PATIENCE)
    assert server.requests[0].headers["idempotency-key"] == MARK


def test_neither_key_nor_prompt_comes_back_in_a_refusal(api, side, tmp_path):
    secret = f"the key {side.key} of https://user:{side.key}@host?key={side.key} is wrong"
    batches, _ = api(says(side.refusal(400, secret), "400 Bad"))
    found = lost(batches, side, tmp_path)
    assert side.key not in repr(pickle.loads(pickle.dumps(found)).__dict__)
    assert "is wrong" in found.message


def test_a_prompt_does_not_come_back_in_anthropics_refusal(serve, tmp_path):
    prompts = ["My diary: today I met Mr Jones at the lake", "Another one"]
    text = "requests.0.params.messages.0: today I met Mr Jones at the lake is not allowed"
    provider = ANTHROPIC.provider(url_of(serve(says(ANTHROPIC.refusal(400, text), "400 Bad"))))
    api = provider.batches()
    creation = ANTHROPIC.creation(api, tmp_path, [request_of(p, system="Be brief.") for p in prompts])
    found = fails(lambda: api.create(creation, PATIENCE))
    provider.close()
    assert "Jones" not in f"{found!r}{found.__dict__}"
    assert (found.status, found.maybe_billed) == (400, False)


def test_a_refusal_says_how_long_to_wait(api, side, tmp_path):
    batches, _ = api(says(side.refusal(429), "429 Slow", retry_after="7"))
    found = lost(batches, side, tmp_path)
    assert (found.kind, found.retry_after) == (ErrorKind.RATE_LIMIT, 7.0)


def test_an_input_that_is_gone_from_the_disk_creates_nothing(serve, tmp_path):
    server = serve(says(ANTHROPIC.batch()))
    provider = ANTHROPIC.provider(url_of(server))
    api = provider.batches()
    creation = ANTHROPIC.creation(api, tmp_path)
    creation.lines.unlink()
    assert not fails(lambda: api.create(creation, PATIENCE)).maybe_billed
    assert server.requests == []
    provider.close()


def test_an_early_refusal_is_heard_while_the_body_is_still_sent(tmp_path):
    answer = http(json.dumps(ANTHROPIC.refusal(413, "too large")).encode(), "413 Too Large")
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                sock.recv(1000)
                sock.sendall(answer)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 20):
                    pass
            done.set()

        threading.Thread(target=refuse, daemon=True).start()
        provider = ANTHROPIC.provider(f"http://127.0.0.1:{listener.getsockname()[1]}")
        api = provider.batches()
        creation = ANTHROPIC.creation(api, tmp_path, [request_of("x" * 8_000_000)])
        found = fails(lambda: api.create(creation, PATIENCE))
        provider.close()
        assert done.wait(PATIENCE)
    assert (found.status, found.maybe_billed) == (413, False)
