"""Sends webhooks when batches end: signed events, with losses, repetitions, delays and forgeries."""

from __future__ import annotations

import base64
import hashlib
import heapq
import hmac
import http.client
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from attrs import evolve, field, frozen

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import BatchEnd
from smartbatch.emulator.batches.batch_settings import LOCAL_HOSTS
from smartbatch.emulator.batches.timeline import BatchRandomness
from smartbatch.emulator.settings import EmulatorSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

CHECK_SECONDS = 0.02  # between searches for batches that have ended
REPEAT_SECONDS = 0.5  # until a refused delivery is repeated, doubled each time
MAX_TRIES = 8
TIMEOUT_SECONDS = 5.0
KEYS_PATH = "/.well-known/jwks.json"
_KEY_NAME = "emulator"
_TOKEN_LIFETIME_SECONDS = 300
_FORGED_SECRET = "whsec_" + base64.b64encode(b"known to nobody, so not valid").decode()
_SUCCEEDED_WORDS = {"gemini": "succeeded"}  # the word for a completed batch in events; others: "completed"


# returns the headers of a delivery; called for each try, since the time of sending is signed
_Sign: TypeAlias = "Callable[[str, bytes], dict[str, str]]"


@frozen
class _EventDelivery:
    event_id: str
    url: str = field(repr=False)
    body: bytes
    headers: _Sign
    tries: int = 0


class WebhookSender:
    """Sends the events of a backend on its own thread, from :meth:`start` until :meth:`stop`.

    Args:
        keys: sign the events about single batches at Gemini.
        settings: returns the current settings.
    """

    def __init__(
        self, backend: BatchBackend, keys: SigningKeys, settings: Callable[[], EmulatorSettings]
    ) -> None:
        self._backend = backend
        self._keys = keys
        self._settings = settings
        self._stopped = threading.Event()
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, _EventDelivery]] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. A second call has no effect."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="smartbatch-emulator-webhooks", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            now = time.monotonic()
            self._backend.advance(now)
            for end in self._backend.take_ends():
                for url in end.callbacks or (self._settings().batch_webhook_url or "",):
                    self._plan(end, url, now)
            while self._due and self._due[0][0] <= now and not self._stopped.is_set():
                self._deliver(heapq.heappop(self._due)[2])

    def _plan(self, end: BatchEnd, url: str, now: float) -> None:
        """Schedule the deliveries about a batch that has ended, with their faults."""
        settings = self._settings()
        random, rates = BatchRandomness(settings), settings.batch_webhook_faults
        faults = {
            name
            for name, rate in rates.items()
            if random.uniform(f"webhook {name}", end.api, end.index) < rate
        }
        word = _SUCCEEDED_WORDS.get(end.api, end.state) if end.state == "completed" else end.state
        body = json.dumps({"type": f"batch.{word}", "data": {"id": end.batch_id}}).encode()
        share = random.uniform("webhook delay", end.api, end.index)
        at = now + (settings.batch_webhook_late_seconds * share if "late" in faults else 0.0)
        event = self._event(end, url, body)
        if "lost" not in faults:
            self._schedule(at, event)
        if "repeated" in faults and "lost" not in faults:
            self._schedule(at, event)
        if "forged" in faults:
            self._schedule(now, self._event(end, url, body, forged=True))

    def _event(self, end: BatchEnd, url: str, body: bytes, *, forged: bool = False) -> _EventDelivery:
        """Return a delivery, with the signature of its sender or, if it is forged, another one."""
        event_id, tries = f"evt_{secrets.token_hex(12)}", MAX_TRIES if forged else 0
        # 1. to an endpoint of the project: signed with its secret
        if not end.callbacks:
            secret = _FORGED_SECRET if forged else self._settings().batch_webhook_secret or ""
            return _EventDelivery(event_id, url, body, partial(_signed, secret), tries)
        # 2. to an address of a single batch at Gemini: signed with a published key
        if end.api == "gemini":
            sign = partial(self._signed_with_key, url, forged=forged)
            return _EventDelivery(event_id, url, body, sign, tries)
        # 3. to an address of a single batch at OpenRouter: not signed, so a forger lacks the address
        if forged:
            url = f"{url.partition('?')[0]}?token=known-to-nobody-so-not-valid"
        named = {"X-OpenRouter-Idempotency-Key": f"{end.batch_id}-{end.state}"}
        return _EventDelivery(event_id, url, body, lambda _id, _body: named, tries)

    def _signed_with_key(self, url: str, event_id: str, body: bytes, *, forged: bool) -> dict[str, str]:
        at = time.time()
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(int(at)),
            "webhook-signature": self._keys.sign(event_id, url, body, at, forged=forged),
        }

    def _schedule(self, at: float, delivery: _EventDelivery) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), delivery))

    def _deliver(self, delivery: _EventDelivery) -> None:
        """Send an event; if the response is not 2xx, send it again later."""
        if not _is_accepted(delivery) and delivery.tries < MAX_TRIES:
            again = evolve(delivery, tries=delivery.tries + 1)
            self._schedule(time.monotonic() + REPEAT_SECONDS * 2**delivery.tries, again)


def _is_accepted(delivery: _EventDelivery) -> bool:
    """Send an event. Nothing is sent to other machines, although create calls may name them."""
    url = urlsplit(delivery.url)
    if url.scheme != "http" or url.hostname not in LOCAL_HOSTS:
        return True
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=TIMEOUT_SECONDS)
    path = urlunsplit(("", "", url.path or "/", url.query, ""))
    headers = {"Content-Type": "application/json", **delivery.headers(delivery.event_id, delivery.body)}
    try:
        connection.request("POST", path, delivery.body, headers)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _signed(secret: str, event_id: str, body: bytes) -> dict[str, str]:
    """Return the headers that Standard Webhooks defines."""
    sent_at = str(int(time.time()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.digest(key, f"{event_id}.{sent_at}.".encode() + body, "sha256")
    return {
        "webhook-id": event_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


class SigningKeys:
    """The key pair with which Gemini signs events about single batches, and its page. Thread-safe.

    Source: Google's guide to webhooks (September 2026). The claims are not documented; these are assumed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, RSAPrivateKey] = {}

    def published(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key Set."""
        numbers = self._key(_KEY_NAME).public_key().public_numbers()
        n, e = (
            _encoded(each.to_bytes((each.bit_length() + 7) // 8, "big")) for each in (numbers.n, numbers.e)
        )
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_NAME, "n": n, "e": e}
        return {"keys": [key]}

    def sign(self, event_id: str, url: str, body: bytes, at: float, *, forged: bool = False) -> str:
        """Return a JSON Web Token for an event, signed at a Unix time.

        Args:
            forged: sign it with a key that is not published, under the name of the published one.
        """
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        claims = {
            "iss": "generativelanguage.googleapis.com",
            "aud": url,
            "iat": int(at),
            "exp": int(at) + _TOKEN_LIFETIME_SECONDS,
            "jti": event_id,
            "request_body_sha256": hashlib.sha256(body).hexdigest(),
        }
        signed = f"{_json({'alg': 'RS256', 'kid': _KEY_NAME, 'typ': 'JWT'})}.{_json(claims)}"
        key = self._key("forger" if forged else _KEY_NAME)
        return f"{signed}.{_encoded(key.sign(signed.encode(), PKCS1v15(), SHA256()))}"

    def _key(self, name: str) -> RSAPrivateKey:
        from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

        with self._lock:
            if name not in self._keys:  # created at their first use
                self._keys[name] = generate_private_key(65_537, 2048)
            return self._keys[name]


def _json(value: Mapping[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
