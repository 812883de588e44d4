"""The pause until the next poll of a batch whose end is reported by a webhook event."""

from __future__ import annotations

EVENT_POLL_FACTOR = 4
"""A pause is this many times as long as the batch has been running, and at most
:data:`MAX_EVENT_POLL_SECONDS`, which is also the maximum delay by a lost event.
"""
MAX_EVENT_POLL_SECONDS = 900.0


def before_poll(usual: float, age: float, left: float) -> float:
    """Return the seconds until the next poll of a running batch while an event is expected at its end.

    Args:
        usual: pause without webhooks in seconds, which is the minimum.
        age: seconds since the create call.
        left: seconds until the batch must be polled, because it takes too long; infinity for never.
    """
    return max(usual, min(EVENT_POLL_FACTOR * max(usual, age), MAX_EVENT_POLL_SECONDS, left))
