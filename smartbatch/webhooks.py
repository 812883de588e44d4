"""Receives webhooks from providers: a WSGI application that stores which batches have changed.

An event is only a reason to poll a batch now: its state is read from the provider's API. Lost, late, repeated
and early events therefore change nothing but the time of a poll.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_fork
from smartbatch.config import given_or_loaded
from smartbatch.errors import ConfigError, StoreError
from smartbatch.jobs.store import SqlStore, check_place, open_store
from smartbatch.observe import logs

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = ["SECRET_VARIABLE", "WebhookReceiver", "app"]

SECRET_VARIABLE: Final = "SMARTBATCH_WEBHOOK_SECRET"
MAX_BODY_BYTES = 65_536
MAX_ID_CHARACTERS = 256  # of an event or a batch
TOLERANCE_SECONDS = 300.0  # between the time in the signature and this machine's clock, in both directions
MIN_SECRET_BYTES = 16
_SECRET_PREFIX = "whsec_"
_BATCH_EVENTS = "batch."  # beginning of the types of events about batches


def app(
    store: str | None = None, *, secret: str | Sequence[str] | None = None, clock: Clock | None = None
) -> WebhookReceiver:
    """Return a WSGI application that receives webhooks about batches, for any server or framework to mount.

    It accepts signatures as defined by Standard Webhooks. Each event is answered after one insert into the
    store, without a call to the provider. The process that runs the job then polls the batch. Nothing is
    opened before the first event, so the application can be made before a server forks.

    Args:
        store: where the jobs are stored: a path or a PostgreSQL address. Defaults to the setting ``store``.
        secret: the provider's signing secret, ``whsec_…``. Several, as a list or separated by spaces, are
            accepted while a secret is rotated, or if several projects send their events here. By default,
            those in the environment variable ``SMARTBATCH_WEBHOOK_SECRET``.
        clock: the time, for tests.

    Raises:
        ConfigError: there is no secret, one is not valid, or the store's address is not valid.
        StoreError: no file can have the store's name.
    """
    given = os.environ.get(SECRET_VARIABLE, "") if secret is None else secret
    secrets = given.split() if isinstance(given, str) else list(given)
    if not secrets:
        raise ConfigError(
            f"no webhook secret: pass secret=, or set {SECRET_VARIABLE} to the secret that the provider "
            "showed when the webhook was created"
        )
    place = store or given_or_loaded(None).store
    if place is not None:
        check_place(place)
    return WebhookReceiver(place, [_key_of(one) for one in secrets], clock or RealClock())


def _key_of(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if len(key) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"a webhook secret is not valid: it must be {_SECRET_PREFIX} followed by at least "
            f"{MIN_SECRET_BYTES} bytes in base64, as the provider shows it"
        )
    return key


class _RefusedEvent(Exception):
    """Ends a request with a status and a reason for the sender."""

    def __init__(self, status: str, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


@final
class WebhookReceiver:
    """The application that :func:`app` returns. Safe from any thread, and after forks."""

    def __init__(self, place: str | None, keys: Sequence[bytes], clock: Clock) -> None:
        self._keys = tuple(keys)
        self._clock = clock
        self._opened = PerProcess(lambda: _OpenedStore(place, clock))

    def __repr__(self) -> str:
        return f"<WebhookReceiver with {len(self._keys)} secrets>"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        headers: tuple[tuple[str, str], ...] = ()
        try:
            status, text = "200 OK", self._receive(environ)
        except _RefusedEvent as refused:
            status, text, headers = refused.status, refused.reason, refused.headers
        except StoreError as error:  # the sender repeats the delivery
            logs.warn("webhook_not_stored", reason=error.message)
            status, text = "503 Service Unavailable", "the event could not be stored; send it again later"
        body = f"{text}\n".encode()
        fixed = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        start_response(status, [*fixed, *headers])
        return [body]

    def close(self) -> None:
        """Close the store of this process. The next event opens it again."""
        if (opened := self._opened.take()) is not None:
            opened.store.close()

    def _receive(self, environ: WSGIEnvironment) -> str:
        if environ["REQUEST_METHOD"] != "POST":
            raise _RefusedEvent("405 Method Not Allowed", "send events with POST", ("Allow", "POST"))
        body = _body_of(environ)
        event_id = str(environ.get("HTTP_WEBHOOK_ID", ""))
        # 1. the signature is wrong, or its time is too far away: refuse the event, which may be forged
        self._check_signature(environ, event_id, body)
        batch_id = _batch_named_by(body)
        # 2. it is not about a batch: accept it, so that it is not sent again
        if batch_id is None:
            return "ignored: not about a batch"
        # 3. otherwise store it; a repeated event changes nothing
        added = self._opened.get().store.webhook_events.add(event_id, batch_id, at=self._clock.wall())
        return "stored" if added else "ignored: received before"

    def _check_signature(self, environ: WSGIEnvironment, event_id: str, body: bytes) -> None:
        sent_at = str(environ.get("HTTP_WEBHOOK_TIMESTAMP", ""))
        signatures = str(environ.get("HTTP_WEBHOOK_SIGNATURE", ""))
        if not (0 < len(event_id) <= MAX_ID_CHARACTERS and sent_at and signatures):
            names = "webhook-id, webhook-timestamp and webhook-signature"
            raise _RefusedEvent("400 Bad Request", f"the headers {names} are required")
        signed = f"{event_id}.{sent_at}.".encode("latin-1", "replace") + body
        expected = [hmac.digest(key, signed, "sha256") for key in self._keys]
        sent = [value for value in map(_decoded_signature, signatures.split()) if value is not None]
        # every pair is compared, so that the time taken reveals nothing about the secrets
        if not sum(hmac.compare_digest(one, other) for one in expected for other in sent):
            raise _RefusedEvent("401 Unauthorized", "the signature is not valid for any configured secret")
        at = int(sent_at) if sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 16 else 0
        if abs(self._clock.wall() - at) > TOLERANCE_SECONDS:
            raise _RefusedEvent("401 Unauthorized", "the timestamp is more than five minutes away")


@final
class _OpenedStore:
    def __init__(self, place: str | None, clock: Clock) -> None:
        self.store: SqlStore = open_store(place, wall=clock.wall, rng=random.SystemRandom())
        on_fork(self)

    def after_fork(self) -> None:
        self.store.abandon()


def _body_of(environ: WSGIEnvironment) -> bytes:
    """Read the body of a request that states its length."""
    length = str(environ.get("CONTENT_LENGTH") or "")
    if not (length.isascii() and length.isdigit()):
        raise _RefusedEvent("411 Length Required", "the header Content-Length is required")
    if len(length) > 10 or int(length) > MAX_BODY_BYTES:
        raise _RefusedEvent("413 Content Too Large", f"an event has at most {MAX_BODY_BYTES:,} bytes")
    try:
        body: bytes = environ["wsgi.input"].read(int(length))
    except OSError:  # the sender stalled or disconnected
        raise _RefusedEvent("400 Bad Request", "the body could not be read") from None
    if len(body) != int(length):
        raise _RefusedEvent("400 Bad Request", "the body is shorter than its Content-Length")
    return body


def _decoded_signature(text: str) -> bytes | None:
    version, _, value = text.partition(",")
    if version != "v1":
        return None
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return None


def _batch_named_by(body: bytes) -> str | None:
    """Return the id of the batch that an event is about; ``None`` if it is about something else."""
    try:
        event: Any = json.loads(body)
        kind, batch_id = event["type"], event["data"]["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not (isinstance(kind, str) and kind.startswith(_BATCH_EVENTS) and isinstance(batch_id, str)):
        return None
    printable = batch_id.isascii() and batch_id.isprintable()
    return batch_id if printable and 0 < len(batch_id) <= MAX_ID_CHARACTERS else None
