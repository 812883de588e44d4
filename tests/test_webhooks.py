"""Webhooks: which are accepted, and what they change."""

from __future__ import annotations

import base64
import hmac
import io

import pytest
from jobs.remote import LONG, Remote
from signed_events import OTHER_SECRET, SECRET, body_of, headers_of

from smartbatch import webhooks
from smartbatch.errors import ConfigError
from tests.levels import sampled

INTERVAL = 3600.0
TURNAROUND = 100.0


class Sender:
    """Sends events to an application as a provider does."""

    def __init__(self, place, clock, secret=SECRET):
        self.clock = clock
        self.receiver = webhooks.app(place, secret=secret, clock=clock)
        self.text = ""

    def post(self, body, *, event_id="evt_1", secrets=(SECRET,), late=0.0, **environ):
        signed = headers_of(body, self.clock.wall() - late, *secrets, event_id=event_id)
        headers = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in signed.items()}
        return self.send(
            {
                "REQUEST_METHOD": "POST",
                "CONTENT_LENGTH": str(len(body)),
                "wsgi.input": io.BytesIO(body),
                **headers,
                **environ,
            }
        )

    def send(self, environ):
        status = []
        [body] = self.receiver(environ, lambda line, _: status.append(int(line[:3])))
        self.text = body.decode().strip()
        return status[0]

    def event(self, batch_id, kind="batch.completed", **how):
        return self.post(body_of(batch_id, kind), **how)


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "jobs.db")


@pytest.fixture
def sender(place, clock):
    sender = Sender(place, clock)
    yield sender
    sender.receiver.close()


@pytest.fixture
def remote(clock):
    return Remote(clock, turnaround=TURNAROUND)


@pytest.fixture
def client(client_of, remote, place):
    return client_of(remote, store=place, batch_poll_interval=INTERVAL)


def polls(remote):
    return remote.api.calls.count("get")


# -- what an event changes -----------------------------------------------------------------------------------


def test_an_event_has_its_batch_polled_at_once(client, remote, sender, clock):
    began = clock.now()
    job = client.submit_batch(["a", "b"])
    clock.sleep(TURNAROUND)
    before = polls(remote)
    assert sender.event(next(iter(remote.api.made))) == 200
    assert job.wait(LONG).completed == 2
    assert clock.now() - began < TURNAROUND + 10.0
    assert polls(remote) == before + 2  # the last before the download


def test_without_events_a_batch_is_polled_as_its_interval_says(client, remote, clock):
    began = clock.now()
    job = client.submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert clock.now() - began > INTERVAL


def test_an_event_that_comes_before_the_batch_has_ended_costs_one_poll(client, remote, sender, clock):
    job = client.submit_batch(["a", "b"])
    clock.sleep(TURNAROUND / 2)
    before = polls(remote)
    sender.event(next(iter(remote.api.made)))
    clock.sleep(5.0)
    assert polls(remote) == before + 1
    assert job.status().completed == 0
    sender.event(next(iter(remote.api.made)), event_id="evt_2")
    clock.sleep(5.0)
    assert polls(remote) == before + 2


def test_an_event_may_arrive_before_the_batch_is_stored(client, remote, sender, clock):
    sender.event("batch-2")  # files have numbers too
    remote.api.turnaround = 0.0
    began = clock.now()
    job = client.submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    assert list(remote.api.made) == ["batch-2"]
    assert clock.now() - began < 10.0


def test_an_event_does_not_shorten_the_pause_after_a_failed_poll(client, remote, sender, clock):
    client.submit_batch(["a", "b"])
    clock.sleep(30.0)
    remote.api.down = ConnectionError("the network is down")
    for number in range(50):
        sender.event(next(iter(remote.api.made)), event_id=f"evt_{number}")
        clock.sleep(1.0)
    assert polls(remote) < 10


def test_events_about_batches_of_others_change_nothing(client, remote, sender, clock):
    client.submit_batch(["a", "b"])
    clock.sleep(30.0)
    before = len(remote.api.calls)
    for number in range(5):
        assert sender.event(f"batch-of-others-{number}", event_id=f"evt_{number}") == 200
    clock.sleep(10.0)
    assert len(remote.api.calls) == before


@pytest.mark.parametrize("named", ["abc", "batches/abc"])
@pytest.mark.parametrize("known", ["abc", "batches/abc"])
def test_the_path_before_the_name_of_a_batch_does_not_matter(named, known, place, clock):
    sender = Sender(place, clock)
    sender.event(named)
    events = sender.receiver._opened.get().store.webhook_events
    assert events.unused([known, "another"]) == {known: 1}
    events.mark_used(known, 1)
    assert events.unused([known]) == {}
    sender.receiver.close()


# -- polls while events arrive -------------------------------------------------------------------------------


def run_job(client, remote, clock, sender=None, size=2):
    """Run a job, and send an event when its batch ends; return the number of polls, and how late it ended."""
    before, known = polls(remote), set(remote.api.made)
    began = clock.now()
    job = client.submit_batch([f"question {number}" for number in range(size)])
    clock.sleep(remote.api.turnaround)
    if sender is not None:
        [batch_id] = set(remote.api.made) - known
        assert sender.event(batch_id, event_id=f"evt about {batch_id}") == 200
    assert job.wait(LONG).completed == size
    return polls(remote) - before, clock.now() - began - remote.api.turnaround


@pytest.fixture
def often(client_of, remote, place):
    """A client that polls every 30 seconds, as by default."""
    return client_of(remote, store=place)


READS = {6: 3, 25: 4, 60: 7, 360: 27}  # of a batch's state, by the minutes until it ends


@pytest.mark.parametrize("minutes", sampled(list(READS), keep=1))
def test_while_events_arrive_polls_are_as_rare_as_the_page_on_webhooks_says(
    minutes, often, remote, sender, clock
):
    without, _ = run_job(often, remote, clock, sender)
    assert without >= remote.api.turnaround / 30
    remote.api.turnaround = 60.0 * minutes
    count, late = run_job(often, remote, clock, sender, size=1000)
    assert count == READS[minutes]
    assert late <= 10.0


def test_when_events_stop_arriving_polls_are_frequent_again(often, remote, sender, clock):
    remote.api.turnaround = 420.0
    usual, _ = run_job(often, remote, clock, sender)
    lost = [run_job(often, remote, clock) for _ in range(3)]
    assert [count < usual / 2 for count, _ in lost] == [True, True, False]
    assert all(late <= 900.0 for _, late in lost)
    assert lost[2][1] <= 30.0
    assert run_job(often, remote, clock, sender)[0] > usual / 2
    assert run_job(often, remote, clock, sender)[0] <= 4


def test_an_event_ahead_of_the_api_does_not_make_the_next_poll_late(often, remote, sender, clock):
    run_job(often, remote, clock, sender)
    known = set(remote.api.made)
    remote.api.turnaround = 600.0
    job = often.submit_batch(["a", "b"])
    clock.sleep(590.0)
    [batch_id] = set(remote.api.made) - known
    sender.event(batch_id, event_id="evt early")
    clock.sleep(45.0)
    assert job.status().completed == 2


def test_a_batch_that_takes_too_long_is_cancelled_in_time_although_polls_are_rare(
    client_of, remote, place, sender, clock
):
    client = client_of(remote, store=place, batch_timeout=700.0, batch_fallback="individual")
    run_job(client, remote, clock, sender)
    remote.api.turnaround = LONG
    job = client.submit_batch(["a", "b"])
    clock.sleep(720.0)
    assert remote.api.calls.count("cancel") == 1
    assert job.wait(LONG).completed == 2


# -- which events are accepted -------------------------------------------------------------------------------


def stored(sender):
    return sender.receiver._opened.get().store.webhook_events.last()


def test_a_repeated_event_is_answered_and_ignored_for_four_days(sender, clock):
    assert (sender.event("batch-1"), sender.text) == (200, "stored")
    clock.sleep(3.9 * 86_400)
    assert (sender.event("batch-1"), sender.text) == (200, "ignored: received before")


def test_old_events_are_deleted(sender, clock):
    sender.event("batch-1")
    clock.sleep(4.1 * 86_400)
    for number in range(2, 60):
        sender.event("batch-1", event_id=f"evt_{number}")
    assert (sender.event("batch-1"), sender.text) == (200, "stored")


def test_a_forged_event_is_refused(sender):
    body = body_of("batch-1")
    assert sender.event("batch-1", secrets=[OTHER_SECRET]) == 401
    assert sender.event("batch-1", secrets=[]) == 400
    assert sender.post(body, HTTP_WEBHOOK_SIGNATURE="v1") == 401
    assert sender.post(body, HTTP_WEBHOOK_SIGNATURE="v1,§") == 401
    assert sender.post(body, HTTP_WEBHOOK_ID="evt_2") == 401
    assert sender.post(body, **{"wsgi.input": io.BytesIO(body.replace(b"-1", b"-2"))}) == 401
    signed = base64.b64encode(hmac.digest(b"", b"", "sha256")).decode()
    assert sender.post(body, HTTP_WEBHOOK_SIGNATURE=f"v2,{signed}") == 401
    assert stored(sender) == 0


@pytest.mark.parametrize("late", [301.0, -302.0])
def test_an_event_signed_at_another_time_is_refused(late, sender):
    assert sender.event("batch-1", late=late) == 401
    assert "five minutes" in sender.text
    assert sender.event("batch-1", late=0.99 * late) == 200


@pytest.mark.parametrize("at", ["nan", "-1", "1e9", "٣", "9" * 20, ""])
def test_a_time_that_is_no_number_of_seconds_is_refused(at, sender):
    assert sender.event("batch-1", HTTP_WEBHOOK_TIMESTAMP=at) in (400, 401)
    assert stored(sender) == 0


def test_a_signed_time_that_is_no_number_is_refused(sender, monkeypatch):
    monkeypatch.setattr(sender, "clock", type("Odd", (), {"wall": lambda _: 0.0})())
    assert sender.event("batch-1") == 401


def test_two_secrets_are_accepted_while_one_is_rotated(place, clock):
    sender = Sender(place, clock, secret=[OTHER_SECRET, SECRET])
    assert sender.event("batch-1") == 200
    assert sender.event("batch-1", event_id="evt_2", secrets=[OTHER_SECRET]) == 200
    assert sender.event("batch-1", event_id="evt_3", secrets=[OTHER_SECRET, SECRET]) == 200
    sender.receiver.close()


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"REQUEST_METHOD": "GET"}, 405),
        ({"CONTENT_LENGTH": ""}, 411),
        ({"CONTENT_LENGTH": "-1"}, 411),
        ({"CONTENT_LENGTH": "65537"}, 413),
        ({"CONTENT_LENGTH": "9" * 5000}, 413),
        ({"CONTENT_LENGTH": "65536"}, 400),
        ({"HTTP_WEBHOOK_ID": ""}, 400),
        ({"HTTP_WEBHOOK_ID": "x" * 257}, 400),
        ({"HTTP_WEBHOOK_ID": "☃"}, 401),
    ],
)
def test_malformed_requests_are_refused(environ, status, sender):
    assert sender.event("batch-1", **environ) == status
    assert stored(sender) == 0


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"null", b"{", b"\xff", b"[" * 60_000),
        *(b'{"type": 1, "data": {"id": "x"}}', b'{"type": "batch.completed", "data": {"id": 7}}'),
        b'{"type": "batch.completed", "data": {"id": "\\u0000"}}',
        b'{"type": "batch.completed", "data": {"id": ""}}',
        b'{"type": "response.completed", "data": {"id": "resp_1"}}',
    ],
)
def test_signed_events_about_something_else_are_accepted_and_ignored(body, sender):
    assert sender.post(body) == 200
    assert stored(sender) == 0


def test_an_event_that_cannot_be_stored_is_sent_again_by_its_provider(tmp_path, clock):
    (tmp_path / "folder.db").mkdir()
    sender = Sender(str(tmp_path / "folder.db"), clock)
    assert sender.event("batch-1") == 503


@pytest.mark.parametrize("secret", ["", [], "whsec_", "whsec_short", "whsec_§", ["whsec_" + "a" * 40, "x"]])
def test_an_invalid_secret_is_refused_without_being_shown(secret, place):
    with pytest.raises(ConfigError) as caught:
        webhooks.app(place, secret=secret)
    assert not isinstance(secret, str) or len(secret) < 7 or secret[6:] not in str(caught.value)


def test_the_secret_may_be_in_the_environment(place, clock, monkeypatch):
    monkeypatch.setenv(webhooks.SECRET_VARIABLE, f"{OTHER_SECRET} {SECRET}")
    sender = Sender(place, clock, secret=None)
    assert sender.event("batch-1") == 200
    assert SECRET not in repr(sender.receiver)
    sender.receiver.close()
