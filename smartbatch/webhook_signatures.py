"""How webhook events are proved to be genuine: a shared secret, keys that Google publishes, or a token.

Sources: the Standard Webhooks specification; Google's guide to webhooks of the Gemini API (September 2026),
which shows that events about a single batch are signed with a JSON Web Token, but not its claims.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import parse_qs, urlsplit

from smartbatch._clock import Clock
from smartbatch.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

TOLERANCE_SECONDS = 300.0  # difference between the time in a signature and this machine's clock
MIN_SECRET_BYTES = 16
MIN_TOKEN_CHARACTERS = 16
MAX_ADDRESS_CHARACTERS = 2_000
SECRET_PREFIX = "whsec_"

KEYS_PATH = "/.well-known/jwks.json"
DEFAULT_KEYS_SERVER: Final = "https://generativelanguage.googleapis.com"
KEYS_SECONDS = 6 * 3600.0  # published keys are used for this long
REFRESH_SECONDS = 60.0  # minimum time between two downloads of the keys
FETCH_SECONDS = 5.0  # maximum time that an event waits for a download
MAX_KEYS_BYTES = 65_536
MIN_KEY_BITS = 2048


class InvalidSignature(Exception):
    """An event may be forged. The message, which is sent to the sender, says why."""


class KeysUnavailable(Exception):
    """The published keys could not be read, so the signature cannot be checked now."""


def key_of_secret(secret: str) -> bytes:
    """Return the key in a shared secret.

    Raises:
        ConfigError: the secret is not valid.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, TypeError, AttributeError):  # not even a string
        key = b""
    if len(key) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"a webhook secret is not valid: it must be {SECRET_PREFIX} followed by at least "
            f"{MIN_SECRET_BYTES} bytes in base64, as the provider shows it"
        )
    return key


def token_of(address: str) -> bytes:
    """Return the token in the query of an address for events about single batches.

    Raises:
        ConfigError: the address or its token is not valid.
    """
    if (flaw := flaw_of_address(address)) is not None:
        raise ConfigError(f"webhook_url {flaw}")
    return _token_in(urlsplit(address).query).encode()


def flaw_of_address(address: str) -> str | None:
    """Return what is wrong with an address for events about single batches, or ``None``."""
    parts = urlsplit(address)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    plain = len(address) <= MAX_ADDRESS_CHARACTERS and address.isascii() and address.isprintable()
    if not (plain and parts.hostname and (parts.scheme == "https" or is_local)):
        return (
            "must be the https:// address at which smartbatch.webhooks.app() receives events, of at most "
            f"{MAX_ADDRESS_CHARACTERS:,} ASCII characters"
        )
    if len(_token_in(parts.query)) < MIN_TOKEN_CHARACTERS:
        return (
            f"must end with ?token= and at least {MIN_TOKEN_CHARACTERS} random characters, such as those of "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return None


def has_token(query: str, token: bytes | None) -> bool:
    """Whether the query of a request contains the token; without a token, no query does.

    Raises:
        InvalidSignature: it contains another token.
    """
    sent = _token_in(query)
    if not sent or token is None:
        return False
    if not hmac.compare_digest(sent.encode(), token):
        raise InvalidSignature("the token in the address is not valid")
    return True


def _token_in(query: str) -> str:
    return parse_qs(query).get("token", [""])[0]


def check_shared_secret(
    keys: Sequence[bytes], event_id: str, sent_at: str, signatures: str, body: bytes, wall: float
) -> None:
    """Check the signatures of Standard Webhooks.

    Args:
        keys: those of all accepted secrets.
        event_id, sent_at, signatures: the headers ``webhook-id``, ``webhook-timestamp`` and
            ``webhook-signature``.
        wall: the current Unix time.

    Raises:
        InvalidSignature: no signature matches, or its time is too far in the past or future.
    """
    signed = f"{event_id}.{sent_at}.".encode("latin-1", "replace") + body
    expected = [hmac.digest(key, signed, "sha256") for key in keys]
    sent = [value for value in map(_decoded_signature, signatures.split()) if value is not None]
    # every pair is compared, so that the time taken reveals nothing about the secrets
    if not sum(hmac.compare_digest(one, other) for one in expected for other in sent):
        raise InvalidSignature("the signature is not valid for any configured secret")
    at = int(sent_at) if sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 16 else 0
    if abs(wall - at) > TOLERANCE_SECONDS:
        raise InvalidSignature("the timestamp is not within five minutes of the current time")


def _decoded_signature(text: str) -> bytes | None:
    version, _, value = text.partition(",")
    if version != "v1":
        return None
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return None


def is_web_token(signature: str) -> bool:
    """Whether a signature is a JSON Web Token."""
    return signature.count(".") == 2 and "," not in signature


@final
class PublishedKeys:
    """The keys with which Google signs events about single Gemini batches. Safe from any thread.

    They are downloaded at the first use, after six hours, and for an unknown key, at most once a minute.

    Args:
        url: their address; by default, on the server in ``GOOGLE_GEMINI_BASE_URL`` or else on Google's.
    """

    def __init__(self, clock: Clock, url: str | None = None) -> None:
        server = os.environ.get("GOOGLE_GEMINI_BASE_URL") or DEFAULT_KEYS_SERVER
        self._url = url or server.rstrip("/") + KEYS_PATH
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Mapping[str, RSAPublicKey] = {}
        self._read_at = self._tried_at = -float("inf")

    def claims_of(self, token: str, body: bytes) -> Mapping[str, Any]:
        """Check a JSON Web Token that signs an event, and return its claims.

        Its signature must be RS256 by a published key. ``iat`` must be at most five minutes away, and ``exp``
        at most five minutes ago; one of them is required. ``request_body_sha256`` must be the body's digest
        if it is present. Audience and issuer are not checked, because their values are not documented.

        Raises:
            InvalidSignature: the event may be forged.
            KeysUnavailable: the keys cannot be downloaded now.
        """
        head, claims, signature = (_decoded_part(part) for part in token.split("."))
        header = _object_in(head)
        if header.get("alg") != "RS256" or not isinstance(header.get("kid"), str):
            raise InvalidSignature("the signature is not RS256 by a published key")
        if not _is_signed(self._key(header["kid"]), signature, token.rpartition(".")[0].encode()):
            raise InvalidSignature("the signature is not valid for its key")
        found = _object_in(claims)
        self._check_times(found)
        digest = found.get("request_body_sha256")
        if digest is not None and digest != hashlib.sha256(body).hexdigest():
            raise InvalidSignature("the signature belongs to another body")
        return found

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, (issued, expires) = self._clock.wall(), (_number(claims.get(name)) for name in ("iat", "exp"))
        if issued is None and expires is None:
            raise InvalidSignature("the signature has no time")
        if issued is not None and abs(now - issued) > TOLERANCE_SECONDS:
            raise InvalidSignature("the signature was not made within five minutes of the current time")
        if expires is not None and now - expires > TOLERANCE_SECONDS:
            raise InvalidSignature("the signature has expired")

    def _key(self, name: str) -> RSAPublicKey:
        now = self._clock.now()
        # events with a known key do not wait for a download. The time is set after the keys, so read it first
        if now - self._read_at <= KEYS_SECONDS and (known := self._keys.get(name)) is not None:
            return known
        with self._lock:
            now = self._clock.now()
            if now - self._read_at > KEYS_SECONDS:
                self._keys = {}
            if name not in self._keys and now - self._tried_at >= REFRESH_SECONDS:
                self._tried_at = now
                self._keys = _download(self._url)
                self._read_at = now
            if name in self._keys:
                return self._keys[name]
            if self._read_at < self._tried_at:  # the latest download failed
                raise KeysUnavailable
        raise InvalidSignature("the signature's key is not published")


def _download(url: str) -> Mapping[str, RSAPublicKey]:
    import requests  # only receivers of these events need it

    try:
        with requests.request("GET", url, timeout=FETCH_SECONDS, allow_redirects=False, stream=True) as reply:
            text = reply.raw.read(MAX_KEYS_BYTES, decode_content=True) if reply.status_code == 200 else b""
        listed = json.loads(text)["keys"]
        return {each["kid"]: _public_key(each) for each in listed if each.get("kty") == "RSA"}
    except Exception as error:  # from the network, or because the page contains no keys
        raise KeysUnavailable from error


def _public_key(published: Mapping[str, Any]) -> RSAPublicKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    exponent, modulus = (int.from_bytes(_decoded_part(published[name]), "big") for name in ("e", "n"))
    if modulus.bit_length() < MIN_KEY_BITS:
        raise ValueError("the key is too short")
    return RSAPublicNumbers(exponent, modulus).public_key()


def _is_signed(key: RSAPublicKey, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature as Unsigned
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        key.verify(signature, signed, PKCS1v15(), SHA256())
    except Unsigned:
        return False
    return True


def _decoded_part(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise InvalidSignature("the signature is not a JSON Web Token") from None


def _object_in(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidSignature("the signature is not a JSON Web Token")
    return value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
