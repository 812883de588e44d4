"""Exchanges about the enqueued tokens of batches, which the threads that carry jobs on make by themselves."""

from __future__ import annotations

import math
from contextlib import closing

from smartbatch._clock import Clock
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.observe import logs
from smartbatch.sharing.addresses import full_address, open_back_end
from smartbatch.sharing.back_end import hidden

PAUSE = 60.0
"""Seconds until a back end that was unavailable is tried again: a try may take seconds, and jobs go on
without."""


class EnqueuedTokens:
    """Exchanges with the quotas that the processes at one back end share. Safe from any thread.

    There are few of them, one for each create and poll of a batch, so each has a connection of its own.

    Args:
        address: of the back end.
        clock: its time, where the back end is a file.
    """

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = full_address(address)
        self._clock = clock
        self._unavailable_until = -math.inf

    def __call__(self, scope: str, model: str, asked: LeaseAsk) -> LeaseGrant | None:
        """Make one exchange; ``None`` while the back end is unavailable."""
        if self._clock.now() < self._unavailable_until:
            return None
        try:
            with closing(open_back_end(self._address, self._clock.now)) as back_end:
                key = hidden(back_end.prepare(), f"enqueued tokens\n{scope}\n{model}")
                return back_end.exchange(key, asked)
        except Exception as error:  # the provider refuses what is too much
            self._unavailable_until = self._clock.now() + PAUSE
            logs.warn("enqueued_tokens_not_shared", error=type(error).__name__)
            return None
