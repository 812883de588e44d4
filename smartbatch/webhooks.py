"""Receives webhooks from providers: a WSGI application that stores which batches have changed.

An event is only a reason to poll a batch now: its state is read from the provider's API. Lost, late, repeated
and early events therefore change nothing but the time of a poll.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from attrs import frozen

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_fork
from smartbatch.config import given_or_loaded
from smartbatch.errors import ConfigError, StoreError
from smartbatch.jobs.store import SqlStore, check_place, open_store
from smartbatch.jobs.threads import TimedReads
from smartbatch.observe import logs
from smartbatch.setting import revealed
from smartbatch.webhook_signatures import (
    FETCH_SECONDS,
    InvalidSignature,
    KeysUnavailable,
    PublishedKeys,
    check_shared_secret,
    has_token,
    is_web_token,
    key_of_secret,
    token_of,
)

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = ["SECRET_VARIABLE", "WebhookReceiver", "app"]

SECRET_VARIABLE: Final = "SMARTBATCH_WEBHOOK_SECRET"
MAX_BODY_BYTES = 65_536
MAX_ID_CHARACTERS = 256  # of an event or a batch
_BATCH_EVENTS = "batch."  # beginning of the types of events about batches


def app(
    store: str | None = None,
    *,
    secret: str | Sequence[str] | None = None,
    url: str | None = None,
    clock: Clock | None = None,
) -> WebhookReceiver:
    """Return a WSGI application that receives webhooks about batches, for any server or framework to mount.

    It accepts signatures as defined by Standard Webhooks, and events about single batches (see the setting
    ``webhook_url``). Each event is answered after one insert into the store, without a call to the provider,
    with one exception: an event about a single Gemini batch whose signing key is not known yet waits for a
    download of the published keys, at most five seconds. If that is too short, it is answered with 503, so
    that Gemini sends it again.
    The process that runs the job then polls the batch. Nothing is opened before the first event, so the
    application can be made before a server forks.

    Args:
        store: where the jobs are stored: a path or a PostgreSQL address. Defaults to the setting ``store``.
        secret: the provider's signing secret, ``whsec_…``. Several, as a list or separated by spaces, are
            accepted while a secret is rotated, or if several projects send their events here. By default,
            those in the environment variable ``SMARTBATCH_WEBHOOK_SECRET``.
        url: the address to which events about single batches are sent, with a token that proves them.
            Defaults to the setting ``webhook_url``.
        clock: the time, for tests.

    Raises:
        ConfigError: there is neither a secret nor a URL, one is not valid, or the store's address is not
            valid.
        StoreError: no file can have the store's name.
    """
    given = os.environ.get(SECRET_VARIABLE, "") if secret is None else secret
    secrets = given.split() if isinstance(given, str) else list(given)
    config = given_or_loaded(None)
    address = url or config.webhook_url
    if not (secrets or address):
        raise ConfigError(
            f"no webhook secret: set {SECRET_VARIABLE}, or secret= in Python, to the secret that the "
            "provider showed when the webhook was created. Events about single batches need the setting "
            "webhook_url"
        )
    place = store or config.store
    if place is not None:
        check_place(place)
    token = None if address is None else token_of(revealed(address))
    proofs = _Proofs([key_of_secret(one) for one in secrets], token)
    return WebhookReceiver(place, proofs, clock or RealClock())


@frozen(repr=False)
class _Proofs:
    keys: Sequence[bytes]  # in the shared secrets
    token: bytes | None  # in the query of addresses


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

    def __init__(self, place: str | None, proofs: _Proofs, clock: Clock) -> None:
        self._proofs = proofs
        self._clock = clock
        self._opened = PerProcess(lambda: _Opened(place, clock))

    def __repr__(self) -> str:
        return f"<WebhookReceiver with {len(self._proofs.keys)} secrets>"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        headers: tuple[tuple[str, str], ...] = ()
        try:
            status, text = "200 OK", self._receive(environ)
        except _RefusedEvent as refused:
            status, text, headers = refused.status, refused.reason, refused.headers
        except InvalidSignature as error:
            status, text = "401 Unauthorized", str(error)
        except KeysUnavailable:  # the sender repeats the delivery
            logs.warn("webhook_not_checked", reason="the published keys cannot be downloaded")
            status, text = "503 Service Unavailable", "the signature cannot be checked: send it again later"
        except StoreError as error:  # so it does here
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
        # 1. it may be forged: refuse it
        event_id, event = self._checked(environ, body)
        batch_id = _batch_named_by(event)
        # 2. it is not about a batch: accept it, so that it is not sent again
        if batch_id is None:
            return "ignored: not about a batch"
        # 3. otherwise store it; a repeated event changes nothing
        added = self._opened.get().store.webhook_events.add(event_id, batch_id, at=self._clock.wall())
        return "stored" if added else "ignored: received before"

    def _checked(self, environ: WSGIEnvironment, body: bytes) -> tuple[str, Any]:
        """Return the id of an event, and the event.

        Raises:
            InvalidSignature: it may be forged.
        """
        event_id, sent_at, signature = (
            str(environ.get(f"HTTP_WEBHOOK_{name}", "")) for name in ("ID", "TIMESTAMP", "SIGNATURE")
        )
        of_job = has_token(str(environ.get("QUERY_STRING", "")), self._proofs.token)
        # 1. it is about a single Gemini batch: only the claims of its signature are certainly genuine
        if of_job and is_web_token(signature):
            claims = self._opened.get().claims_of(signature, body)
            event = claims if "data" in claims else _decoded(body)
            return _usable_id(event_id or str(claims.get("jti", ""))), event
        # 2. it is about a single batch at OpenRouter, and not signed
        if of_job and not signature:
            sent_id = str(environ.get("HTTP_X_OPENROUTER_IDEMPOTENCY_KEY", ""))
            return _usable_id(sent_id or hashlib.sha256(body).hexdigest()), _decoded(body)
        # 3. it is signed with a shared secret
        if not (event_id and sent_at and signature):
            names = "webhook-id, webhook-timestamp and webhook-signature"
            raise _RefusedEvent("400 Bad Request", f"the headers {names} are required")
        event_id = _usable_id(event_id)
        check_shared_secret(self._proofs.keys, event_id, sent_at, signature, body, self._clock.wall())
        return event_id, _decoded(body)


@final
class _Opened:
    def __init__(self, place: str | None, clock: Clock) -> None:
        self._published = PublishedKeys(clock)
        self._reads = TimedReads(clock)
        self.store: SqlStore = open_store(place, wall=clock.wall, rng=random.SystemRandom())
        on_fork(self)

    def claims_of(self, token: str, body: bytes) -> Mapping[str, Any]:
        """Check a JSON Web Token, and return its claims. A download of keys continues after the time limit.

        Raises:
            InvalidSignature: the event may be forged.
            KeysUnavailable: the keys cannot be downloaded within :data:`FETCH_SECONDS`.
        """
        found = self._reads.read(
            lambda: self._published.claims_of(token, body), FETCH_SECONDS, "smartbatch-webhook-keys"
        )
        if not found:
            raise KeysUnavailable
        return found[0]

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


def _usable_id(event_id: str) -> str:
    if not 0 < len(event_id) <= MAX_ID_CHARACTERS:
        raise _RefusedEvent(
            "400 Bad Request", f"an event needs an id of at most {MAX_ID_CHARACTERS} characters"
        )
    return event_id


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _batch_named_by(event: Any) -> str | None:
    """Return the id of the batch that an event is about; ``None`` if it is about something else."""
    try:
        kind, batch_id = event["type"], event["data"]["id"]
    except (KeyError, TypeError):
        return None
    if not (isinstance(kind, str) and kind.startswith(_BATCH_EVENTS) and isinstance(batch_id, str)):
        return None
    printable = batch_id.isascii() and batch_id.isprintable()
    return batch_id if printable and 0 < len(batch_id) <= MAX_ID_CHARACTERS else None
