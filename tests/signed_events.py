"""Webhook events, signed as their senders sign them."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

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
