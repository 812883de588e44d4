"""Events of single jobs: signed with published keys (Gemini), or sent to a secret address (OpenRouter)."""

from __future__ import annotations

import io
import json
import socket
import sqlite3
import threading

import pytest
from signed_events import SECRET, body_of, digest_claim, headers_of, key_server, published, web_token

from smartbatch import BatchingConfig, webhooks
from smartbatch._clock import RealClock
from smartbatch.errors import ConfigError

TOKEN = "a-token-that-is-long-enough"
URL = f"https://jobs.example/hooks?token={TOKEN}"
BODY = body_of("batch-1", "batch.succeeded")


class JobSender:
    """Sends events about single jobs to an application."""

    def __init__(self, place, clock, **given):
        self.clock = clock
        self.receiver = webhooks.app(place, url=URL, clock=clock, **{"secret": [SECRET], **given})
        self.text = ""

    def post(self, body=BODY, *, token=TOKEN, **headers):
        environ = {
            "REQUEST_METHOD": "POST",
            "QUERY_STRING": f"token={token}" if token else "",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
        }
        status = []
        [text] = self.receiver(environ, lambda line, _: status.append(int(line[:3])))
        self.text = text.decode().strip()
        return status[0]

    def signed(self, key="google", *, body=BODY, late=0.0, event_id="evt_1", kid=None, alg="RS256", **claims):
        times = {"iat": self.clock.wall() - late, "exp": self.clock.wall() + 60.0 - late}
        token = web_token(key, {**times, **claims}, kid=kid, alg=alg)
        return self.post(body, webhook_id=event_id, webhook_signature=token)

    @property
    def stored(self):
        return self.receiver._opened.get().store.webhook_events.last()


@pytest.fixture
def keys(monkeypatch):
    with key_server("google") as (keys, url):
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)
        yield keys


@pytest.fixture
def sender(tmp_path, clock, keys):
    sender = JobSender(str(tmp_path / "jobs.db"), clock)
    yield sender
    sender.receiver.close()


# -- Gemini --------------------------------------------------------------------------------------------------


def test_an_event_signed_with_a_published_key_is_stored(sender):
    assert (sender.signed(), sender.text) == (200, "stored")
    assert (sender.signed(), sender.text) == (200, "ignored: received before")
    assert sender.signed(**digest_claim(BODY), event_id="evt_2") == 200
    assert list(sender.receiver._opened.get().store.webhook_events.unused(["batch-1"])) == ["batch-1"]


def test_the_event_in_a_signature_counts_rather_than_the_one_in_the_body(sender):
    claims = json.loads(body_of("batch-2", "batch.succeeded"))
    assert sender.signed(**claims) == 200
    events = sender.receiver._opened.get().store.webhook_events
    assert list(events.unused(["batch-1", "batch-2"])) == ["batch-2"]


def test_a_forged_event_of_a_job_is_refused(sender):
    assert sender.signed("forger") == 401
    assert sender.signed("forger", kid="google") == 401
    assert sender.signed(alg="none") == 401
    assert sender.signed(alg="HS256") == 401
    assert sender.signed(**digest_claim(BODY + b" ")) == 401
    for token in ("..", "a.b.c", "e30.e30.", "é.é.é", web_token("google", {}).replace(".", "..", 1)):
        assert sender.post(webhook_id="evt_1", webhook_signature=token) in (400, 401)
    assert sender.stored == 0


@pytest.mark.parametrize("late", [301.0, -302.0])
def test_an_event_of_a_job_signed_at_another_time_is_refused(late, sender):
    assert sender.signed(late=late) == 401
    assert sender.signed(late=0.99 * late) == 200


def test_a_signature_without_any_time_is_refused(sender):
    assert sender.signed(iat=None, exp=None) == 401
    assert sender.signed(iat=None, exp="soon") == 401
    assert sender.signed(iat=None, exp=sender.clock.wall() - 301.0) == 401
    assert sender.signed(iat=None) == 200


def test_published_keys_are_kept_for_six_hours(sender, keys, clock):
    for number in range(5):
        assert sender.signed(event_id=f"evt_{number}") == 200
    assert keys.downloads == 1
    clock.sleep(6 * 3600.0 + 1.0)
    keys.page = json.dumps(published("another")).encode()
    assert sender.signed(event_id="evt_9") == 401  # the key was withdrawn
    assert sender.signed("another", event_id="evt_9") == 200
    assert keys.downloads == 2


def test_an_unknown_key_is_looked_up_at_most_once_a_minute(sender, keys, clock):
    sender.signed()
    keys.page = json.dumps(published("google", "new")).encode()
    for _ in range(5):
        assert sender.signed("new") == 401
    assert keys.downloads == 1
    clock.sleep(60.0)
    assert sender.signed("new") == 200
    assert sender.signed("forger") == 401
    assert keys.downloads == 2


def test_events_with_a_known_key_do_not_wait_for_a_download(sender, keys, clock):
    sender.signed()
    clock.sleep(60.0)
    others = []
    keys.during = lambda: others.append(sender.signed(event_id="evt_2"))
    assert sender.signed("new") == 401
    assert others == [200]


@pytest.mark.parametrize(
    "page", [None, b"", b"{}", b"[1]", json.dumps(published("short")).encode(), b"x" * 100_000]
)
def test_without_the_published_keys_the_provider_sends_the_event_again(page, sender, keys, clock):
    good, keys.page = keys.page, page
    assert [sender.signed() for _ in range(3)] == [503] * 3
    assert keys.downloads == 1
    clock.sleep(60.0)
    keys.page = good
    assert sender.signed() == 200


def test_an_event_waits_for_a_slow_download_for_a_limited_time_only(tmp_path, keys, monkeypatch):
    monkeypatch.setattr(webhooks, "FETCH_SECONDS", 0.05)
    downloads = threading.Event()
    keys.during = downloads.wait
    sender = JobSender(str(tmp_path / "jobs.db"), RealClock())
    assert [sender.signed(), sender.signed()] == [503, 503]
    downloads.set()
    monkeypatch.setattr(webhooks, "FETCH_SECONDS", 30.0)
    assert sender.signed() == 200
    assert keys.downloads == 1
    sender.receiver.close()


# -- OpenRouter ----------------------------------------------------------------------------------------------


def test_an_event_that_is_not_signed_needs_the_token(sender):
    assert sender.post(token=None) == 400
    assert sender.post(token="another-token-of-that-length") == 401
    assert sender.post(token="") == 400
    assert sender.stored == 0
    assert (sender.post(), sender.text) == (200, "stored")


def test_a_repeated_event_without_a_signature_is_ignored(sender):
    assert (sender.post(), sender.text) == (200, "stored")
    assert (sender.post(), sender.text) == (200, "ignored: received before")
    named = {"x_openrouter_idempotency_key": "batch-1-completed"}
    assert (sender.post(**named), sender.text) == (200, "stored")
    assert (sender.post(body_of("batch-1", "batch.failed"), **named), sender.text) == (
        200,
        "ignored: received before",
    )


# -- together with those of a project ------------------------------------------------------------------------


def test_the_token_replaces_no_signature(sender, clock):
    def post(at):
        signed = headers_of(BODY, at, SECRET)
        return sender.post(**{name.replace("-", "_"): value for name, value in signed.items()})

    assert post(clock.wall() - 400.0) == 401
    assert sender.post(webhook_id="evt_1", webhook_timestamp="1", webhook_signature="v1,AAAA") == 401
    assert post(clock.wall()) == 200


def test_without_a_configured_token_events_of_jobs_are_refused(tmp_path, clock, keys):
    receiver = webhooks.app(str(tmp_path / "jobs.db"), secret=SECRET, clock=clock)
    sender = JobSender(str(tmp_path / "jobs.db"), clock)
    sender.receiver.close()
    sender.receiver = receiver
    assert sender.post() == 400
    assert sender.signed() == 400
    assert keys.downloads == 0


def test_the_address_in_the_settings_is_enough(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_WEBHOOK_URL", URL)
    assert TOKEN not in repr(webhooks.app(str(tmp_path / "jobs.db"), clock=clock))
    config = BatchingConfig.load()
    assert TOKEN not in repr(config)
    assert TOKEN not in f"{config.webhook_url}"


@pytest.fixture
def work(monkeypatch):
    """The statements that write to the store, and the calls to other machines, in their order."""
    done = []
    connect, reach = sqlite3.connect, socket.socket.connect

    def connected(*given, **named):
        connection = connect(*given, **named)
        connection.set_trace_callback(
            lambda text: done.append(text.split()[0]) if text[0] not in "PS" else None
        )
        return connection

    monkeypatch.setattr(sqlite3, "connect", connected)
    monkeypatch.setattr(
        socket.socket, "connect", lambda self, at: (done.append("remote call"), reach(self, at))[1]
    )
    return done


def test_an_event_costs_one_insert_and_no_remote_call(work, sender):
    one_insert = ["BEGIN", "INSERT", "DELETE", "COMMIT"]  # old events are deleted in the same transaction
    signed = headers_of(BODY, sender.clock.wall(), SECRET)
    of_project = {name.replace("-", "_"): value for name, value in signed.items()}
    sender.post(body_of("batch-0", "batch.succeeded"))  # opens the store
    for send, expected in (
        (lambda: sender.post(**of_project), one_insert),  # OpenAI, or Gemini for a project
        (lambda: sender.post(**of_project), ["BEGIN", "INSERT", "COMMIT"]),  # repeated
        (lambda: sender.post(), one_insert),  # OpenRouter
        (lambda: sender.signed(event_id="evt_2"), ["remote call", *one_insert]),  # Gemini, for a single batch
        (lambda: sender.signed(event_id="evt_3"), one_insert),  # once its key is known
    ):
        work.clear()
        assert send() == 200
        assert work == expected


@pytest.mark.parametrize(
    "url",
    [
        f"http://jobs.example/hooks?token={TOKEN}",
        f"https:///hooks?token={TOKEN}",
        f"/hooks?token={TOKEN}",
        "https://jobs.example/hooks",
        f"https://jobs.example/höoks?token={TOKEN}",
        f"https://jobs.example/{2000 * 'x'}?token={TOKEN}",
        "https://jobs.example/hooks?token=too-short",
    ],
)
def test_an_invalid_address_is_refused_without_its_token(url, tmp_path):
    for make in (
        lambda: webhooks.app(str(tmp_path / "jobs.db"), url=url),
        lambda: BatchingConfig(webhook_url=url),
    ):
        with pytest.raises(ConfigError, match="webhook_url") as caught:
            make()
        assert not any(word in str(caught.value) for word in (TOKEN, "too-short"))
