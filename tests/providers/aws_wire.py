"""The wire format of Amazon Bedrock: signatures of requests, and frames of event streams."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from raw_server import Exchange

KEY_ID, SECRET, TOKEN = "AKIACANARY1234567890", "canary/secret+1234567890abcdef", "canary-session-token-1234"


def is_signed(exchange: Exchange, region: str) -> bool:
    """Compute the signature again, from what arrived."""
    authorization = exchange.headers["authorization"]
    found = re.search(r"SignedHeaders=([^,]+), ", authorization)
    assert found is not None
    headers = {name: exchange.headers[name] for name in found[1].split(";")}
    url = f"http://{exchange.headers['host']}{exchange.target}"
    request = AWSRequest("POST", url, headers=headers, data=exchange.body)
    request.context["timestamp"] = exchange.headers["x-amz-date"]
    signer = SigV4Auth(Credentials(KEY_ID, SECRET, TOKEN), "bedrock", region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return authorization.endswith(f"Signature={signer.signature(text, request)}")


def frame(payload: bytes, **headers: str) -> bytes:
    """A frame of the type ``application/vnd.amazon.eventstream``; all headers are strings (type 7)."""
    lines = b""
    for name, value in headers.items():
        key, text = f":{name.replace('_', '-')}".encode(), value.encode()
        lines += struct.pack(">B", len(key)) + key + struct.pack(">BH", 7, len(text)) + text
    prelude = struct.pack(">II", 16 + len(lines) + len(payload), len(lines))
    data = prelude + struct.pack(">I", zlib.crc32(prelude)) + lines + payload
    return data + struct.pack(">I", zlib.crc32(data))


def chunk(event: bytes) -> bytes:
    """A frame with one event of Anthropic's own streams."""
    data = event.partition(b"data: ")[2].strip()
    payload = json.dumps({"bytes": base64.b64encode(data).decode(), "p": "abcd"}).encode()
    return frame(payload, event_type="chunk", content_type="application/json", message_type="event")


def exception(name: str, message: str) -> bytes:
    payload = json.dumps({"message": message}).encode()
    return frame(payload, exception_type=name, content_type="application/json", message_type="exception")
