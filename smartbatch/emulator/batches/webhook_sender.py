"""Sends webhooks when batches end: signed events, with losses, repetitions, delays and forgeries."""

from __future__ import annotations

import base64
import heapq
import hmac
import http.client
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from attrs import frozen

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import BatchEnd
from smartbatch.emulator.batches.timeline import BatchRandomness
from smartbatch.emulator.settings import EmulatorSettings

CHECK_SECONDS = 0.02  # between searches for batches that have ended
REPEAT_SECONDS = 0.5  # until a refused delivery is repeated, doubled each time
MAX_TRIES = 8
TIMEOUT_SECONDS = 5.0
_FORGED_SECRET = "whsec_" + base64.b64encode(b"known to nobody, so not valid").decode()
_SUCCEEDED_WORDS = {"gemini": "succeeded"}  # the word for a completed batch in events; others: "completed"


@frozen
class _EventDelivery:
    event_id: str
    body: bytes
    secret: str
    tries: int = 0


class WebhookSender:
    """Sends the events of a backend on its own thread, until :meth:`stop`.

    Args:
        settings: returns the current settings.
    """

    def __init__(self, backend: BatchBackend, settings: Callable[[], EmulatorSettings]) -> None:
        self._backend = backend
        self._settings = settings
        self._stopped = threading.Event()
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, _EventDelivery]] = []
        self._thread = threading.Thread(target=self._run, name="smartbatch-emulator-webhooks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            now = time.monotonic()
            self._backend.advance(now)
            for end in self._backend.take_ends():
                self._plan(end, now)
            while self._due and self._due[0][0] <= now and not self._stopped.is_set():
                self._deliver(heapq.heappop(self._due)[2])

    def _plan(self, end: BatchEnd, now: float) -> None:
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
        event = _EventDelivery(f"evt_{secrets.token_hex(12)}", body, settings.batch_webhook_secret or "")
        share = random.uniform("webhook delay", end.api, end.index)
        at = now + (settings.batch_webhook_late_seconds * share if "late" in faults else 0.0)
        if "lost" not in faults:
            self._schedule(at, event)
        if "repeated" in faults and "lost" not in faults:
            self._schedule(at, event)
        if "forged" in faults:
            self._schedule(
                now, _EventDelivery(f"evt_{secrets.token_hex(12)}", body, _FORGED_SECRET, MAX_TRIES)
            )

    def _schedule(self, at: float, delivery: _EventDelivery) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), delivery))

    def _deliver(self, delivery: _EventDelivery) -> None:
        """Send an event; if the response is not 2xx, send it again later."""
        if not self._is_accepted(delivery) and delivery.tries < MAX_TRIES:
            again = _EventDelivery(delivery.event_id, delivery.body, delivery.secret, delivery.tries + 1)
            self._schedule(time.monotonic() + REPEAT_SECONDS * 2**delivery.tries, again)

    def _is_accepted(self, delivery: _EventDelivery) -> bool:
        url = urlsplit(self._settings().batch_webhook_url or "")
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", url.path or "/", delivery.body, _signed(delivery))
            return 200 <= connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _signed(delivery: _EventDelivery) -> dict[str, str]:
    """Return the headers that Standard Webhooks defines."""
    sent_at = str(int(time.time()))
    key = base64.b64decode(delivery.secret.removeprefix("whsec_"))
    signature = hmac.digest(key, f"{delivery.event_id}.{sent_at}.".encode() + delivery.body, "sha256")
    return {
        "Content-Type": "application/json",
        "webhook-id": delivery.event_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }
