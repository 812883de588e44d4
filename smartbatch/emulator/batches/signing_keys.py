"""The key pair with which Gemini signs events about single batches, and the page that publishes it.

Source: Google's guide to webhooks (September 2026). The claims are not documented; these are assumed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

KEYS_PATH = "/.well-known/jwks.json"
_KEY_NAME = "emulator"
_LIFETIME_SECONDS = 300


class SigningKeys:
    """Key pairs that are created at their first use. Thread-safe."""

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
            "exp": int(at) + _LIFETIME_SECONDS,
            "jti": event_id,
            "request_body_sha256": hashlib.sha256(body).hexdigest(),
        }
        signed = f"{_json({'alg': 'RS256', 'kid': _KEY_NAME, 'typ': 'JWT'})}.{_json(claims)}"
        key = self._key("forger" if forged else _KEY_NAME)
        return f"{signed}.{_encoded(key.sign(signed.encode(), PKCS1v15(), SHA256()))}"

    def _key(self, name: str) -> RSAPrivateKey:
        from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

        with self._lock:
            if name not in self._keys:
                self._keys[name] = generate_private_key(65_537, 2048)
            return self._keys[name]


def _json(value: Mapping[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
