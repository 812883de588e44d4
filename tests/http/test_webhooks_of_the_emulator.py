"""Webhooks over HTTP: the emulator sends them, ``smartbatch.webhooks`` receives them, and a client polls."""

from __future__ import annotations

import contextlib
import threading
import time
from http import HTTPStatus

import pytest
from signed_events import OTHER_SECRET, SECRET

from smartbatch import BatchingClient, webhooks
from smartbatch.cli.server_commands import LocalServer
from smartbatch.emulator import WEBHOOK_FAULTS
from smartbatch.errors import ConfigError
from smartbatch.testing import emulator
from tests.levels import sampled

TOKEN = "a-token-that-is-long-enough"


class Receiver:
    """An application that records the statuses of its answers."""

    def __init__(self, place):
        self.statuses = []
        self.application = webhooks.app(place, secret=SECRET, url=f"https://jobs.example/?token={TOKEN}")
        self.server = LocalServer(0, self)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks"

    def __call__(self, environ, start_response):
        def start(status, headers):
            self.statuses.append(HTTPStatus(int(status[:3])))
            return start_response(status, headers)

        return self.application(environ, start)


@pytest.fixture
def receiver(tmp_path):
    receiver = Receiver(str(tmp_path / "jobs.db"))
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield receiver
    receiver.server.shutdown()
    thread.join()
    receiver.server.server_close()
    receiver.application.close()


@contextlib.contextmanager
def services(receiver, tmp_path, name="openai", interval=600.0, **settings):
    sends = {"batch_webhook_url": receiver.url, "batch_webhook_secret": SECRET, **settings}
    with emulator(batch_turnaround=0.2, **sends) as emu:
        options = {"base_url": emu.base_url if name == "openai" else emu.url, "api_key": "k" * 20}
        store = str(tmp_path / "jobs.db")
        with BatchingClient(
            f"{name}:m", provider_options=options, store=store, batch_poll_interval=interval
        ) as client:
            yield emu, client


@pytest.mark.parametrize("name", sampled(["openai", "gemini"]))
def test_a_job_ends_with_its_event_however_rarely_it_is_polled(name, receiver, tmp_path):
    with services(receiver, tmp_path, name) as (emu, client):
        began = time.monotonic()
        job = client.submit_batch([f"question {number}" for number in range(5)])
        assert job.wait(60).completed == 5
        assert time.monotonic() - began < 30  # the first poll alone would come after a minute
        assert emu.ledger.paid_twice() == []
    assert receiver.statuses == [200]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_faulty_events_change_no_result_and_no_cost(seed, receiver, tmp_path):
    faults = dict.fromkeys(WEBHOOK_FAULTS, 0.5)
    settings = {"batch_webhook_faults": faults, "batch_webhook_late_seconds": 0.5, "seed": seed}
    with services(receiver, tmp_path, interval=0.5, **settings) as (emu, client):
        jobs = [client.submit_batch([f"question {job}.{n}" for n in range(5)]) for job in range(8)]
        assert [job.wait(60).completed for job in jobs] == [5] * 8
        assert emu.ledger.summary()["batches"]["creates"] == 8
        assert emu.ledger.paid_twice() == []
        wait_until(lambda: set(receiver.statuses) == {200, 401})
    assert set(receiver.statuses) == {200, 401}


@pytest.mark.full
def test_forged_events_are_refused_and_lost_ones_replaced_by_polls(receiver, tmp_path):
    faults = {"lost": 1.0, "forged": 1.0}
    with services(receiver, tmp_path, interval=0.1, batch_webhook_faults=faults) as (_, client):
        assert client.submit_batch(["a", "b"]).wait(60).completed == 2
        wait_until(lambda: receiver.statuses == [401])
    assert receiver.statuses == [401]


@pytest.mark.full
def test_an_event_is_sent_again_until_it_is_accepted(receiver, tmp_path):
    secret = receiver.application
    receiver.application = webhooks.app(str(tmp_path / "jobs.db"), secret=OTHER_SECRET)
    with services(receiver, tmp_path) as (_, client):
        job = client.submit_batch(["a", "b"])
        wait_until(lambda: receiver.statuses == [401])
        receiver.application = secret
        assert job.wait(60).completed == 2
    assert receiver.statuses == [401, 200]


# -- events of single jobs -----------------------------------------------------------------------------------


@contextlib.contextmanager
def named_by_jobs(name, receiver, tmp_path, monkeypatch, interval=600.0, **settings):
    """Start an emulator and a client whose create calls name the address of the receiver."""
    dialect = {"dialect": name} if name == "openrouter" else {}
    with emulator(batch_turnaround=0.2, **dialect, **settings) as emu:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", emu.url)  # where the receiver finds the keys
        options = {"base_url": emu.base_url if dialect else emu.url, "api_key": "k" * 20}
        with BatchingClient(
            f"{name}:m",
            provider_options=options,
            store=str(tmp_path / "jobs.db"),
            batch_poll_interval=interval,
            webhook_url=f"{receiver.url}?token={TOKEN}",
            allow_unknown_price=True,
        ) as client:
            yield emu, client


@pytest.mark.parametrize("name", sampled(["gemini", "openrouter"], keep=2))
def test_a_create_call_names_the_address_for_its_event(name, receiver, tmp_path, monkeypatch):
    with named_by_jobs(name, receiver, tmp_path, monkeypatch) as (_, client):
        began = time.monotonic()
        assert client.submit_batch(["a", "b"]).wait(60).completed == 2
        assert time.monotonic() - began < 30  # the first poll alone would come after a minute
    assert receiver.statuses == [200]


@pytest.mark.full
@pytest.mark.parametrize("name", ["gemini", "openrouter"])
def test_faulty_events_of_jobs_change_no_result_and_no_cost(name, receiver, tmp_path, monkeypatch):
    faults = {"lost": 0.3, "repeated": 0.5, "late": 0.5, "forged": 0.5}
    settings = {"batch_webhook_faults": faults, "batch_webhook_late_seconds": 0.5}
    with named_by_jobs(name, receiver, tmp_path, monkeypatch, 0.5, **settings) as (emu, client):
        jobs = [client.submit_batch([f"question {job}.{n}" for n in range(5)]) for job in range(8)]
        assert [job.wait(60).completed for job in jobs] == [5] * 8
        assert emu.ledger.paid_twice() == []
        wait_until(lambda: set(receiver.statuses) == {200, 401})
    assert set(receiver.statuses) == {200, 401}


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_webhook_url": "http://127.0.0.1:1/"},
        {"batch_webhook_url": "http://127.0.0.1:1/", "batch_webhook_secret": "whsec_§"},
        {"batch_webhook_url": "https://example.org/", "batch_webhook_secret": SECRET},
        {"batch_webhook_faults": {"lots": 0.1}},
        {"batch_webhook_faults": {"lost": 1.1}},
    ],
)
def test_settings_of_webhooks_are_checked(settings):
    with pytest.raises(ConfigError, match="webhook"):
        emulator(**settings)


def wait_until(condition):
    patience = time.monotonic() + 30
    while not condition() and time.monotonic() < patience:
        threading.Event().wait(0.01)
