"""Webhook events, signed as their senders sign them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from smartbatch.cli.server_commands import LocalServer

SECRET = "whsec_" + base64.b64encode(b"the secret of the project").decode()
OTHER_SECRET = "whsec_" + base64.b64encode(b"the secret of another one").decode()


def body_of(batch_id: Any, kind: Any = "batch.completed") -> bytes:
    return json.dumps({"type": kind, "data": {"id": batch_id}}).encode()


def headers_of(body: bytes, at: float, *secrets: str, event_id: str = "evt_1") -> dict[str, str]:
    sent_at = str(int(at))
    signed = f"{event_id}.{sent_at}.".encode() + body
    keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in secrets]
    signatures = [base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


# -- events of single Gemini jobs ----------------------------------------------------------------------------


@cache
def private_key(name: str) -> rsa.RSAPrivateKey:
    """Return a key; the same one for the same name. That of ``short`` is too short."""
    return rsa.generate_private_key(65537, 1024 if name == "short" else 2048)


def web_token(name: str, claims: dict[str, Any], *, kid: str | None = None, alg: str = "RS256") -> str:
    """Return a JSON Web Token signed with the key of that name."""
    parts = [_part(json.dumps(each).encode()) for each in ({"alg": alg, "kid": kid or name}, claims)]
    signed = ".".join(parts)
    signature = private_key(name).sign(signed.encode(), padding.PKCS1v15(), SHA256())
    return f"{signed}.{_part(signature)}"


def digest_claim(body: bytes) -> dict[str, str]:
    return {"request_body_sha256": hashlib.sha256(body).hexdigest()}


def published(*names: str) -> dict[str, Any]:
    """Return the keys of these names in the form of a JSON Web Key Set."""
    keys = []
    for name in names:
        numbers = private_key(name).public_key().public_numbers()
        n, e = (_part(each.to_bytes((each.bit_length() + 7) // 8, "big")) for each in (numbers.n, numbers.e))
        keys.append({"kty": "RSA", "kid": name, "alg": "RS256", "n": n, "e": e})
    return {"keys": keys}


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class KeyServer:
    """Publishes keys.

    Attributes:
        page: the bytes of the answer; ``None`` for an error.
        downloads: number of downloads so far.
        during: called in each download.
    """

    def __init__(self, *names: str) -> None:
        self.page: bytes | None = json.dumps(published(*names)).encode()
        self.downloads = 0
        self.during: Callable[[], object] = lambda: None

    def __call__(self, environ: Any, start_response: Any) -> list[bytes]:
        assert environ["PATH_INFO"] == "/.well-known/jwks.json"
        self.downloads += 1
        self.during()
        start_response("503 Unavailable" if self.page is None else "200 OK", [])
        return [self.page or b""]


@contextmanager
def key_server(*names: str) -> Iterator[tuple[KeyServer, str]]:
    """Serve keys; yield the application and its URL."""
    keys = KeyServer(*names)
    server = LocalServer(0, keys)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield keys, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
