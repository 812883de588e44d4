"""Which route the rows of a run take that must be asked: as the library chooses, or as it was told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch.cli.requests import Questions
from smartbatch.client import BatchingClient
from smartbatch.plan import Plan
from smartbatch.types import Request, Route

__all__ = ["Chooser", "Chosen"]

_BATCHED = frozenset({Route.BATCH, Route.HYBRID})
_FORCED = frozenset({"batch", "hybrid"})
_LEAST = 1e-9
"""Seconds that are left of a deadline that has passed."""


@frozen
class Chosen:
    """The route of the rows that must be asked.

    Attributes:
        plan: the choice with its forecast.
    """

    plan: Plan

    @property
    def realtime(self) -> bool:
        """Whether all of them go in real time."""
        return self.plan.route not in _BATCHED

    @property
    def first(self) -> int:
        """How many go in real time at once, where the others go in a batch."""
        return self.plan.first


class _Interrupted(Exception):
    """The run was interrupted while its rows were being read."""


class Chooser:
    """Chooses for one run. A deadline counts from when this is made, while the input is not read yet.

    Args:
        client: whose settings, prices and history count.
        questions: the input.
        args: strategy and constraints.
        clock: time.

    Raises:
        ConfigError: for constraints that are none, and where batches are asked for and there is no Batch API.
    """

    def __init__(
        self, client: BatchingClient, questions: Questions, args: argparse.Namespace, clock: Clock
    ) -> None:
        self._client = client
        self._questions = questions
        self._clock = clock
        self._began = clock.now()
        self._given = {**_given(args), "budget": client.config.budget, "fallback": args.fallback}
        checked = client.forecast((), count=0, **self._given)  # refuses constraints that are none
        self._deadline = checked.decision.constraints.deadline

    @property
    def batched(self) -> bool:
        """Whether the strategy is the Batch API, and there is one."""
        return self._client.config.batching_strategy in _FORCED and self._client.has_batches()

    def decide(self, needed: bytearray, stopped: Callable[[], bool] = lambda: False) -> Plan | None:
        """Return the plan for the rows with a 1; they are read once, one after the other.

        Args:
            needed: a byte for each row.
            stopped: asked before each row; once true, the decision is given up, with ``None``.

        Raises:
            ConfigError: no route meets the constraints.
            InputError: the input changed.
        """

        def requests() -> Iterator[Request]:
            yield from self._questions.requests(skip=lambda i: not needed[i], stopped=stopped)
            if stopped():
                raise _Interrupted

        given = dict(self._given)
        if self._deadline is not None:  # what is left of it; a little, where it has passed
            given["deadline"] = max(_LEAST, self._deadline - (self._clock.now() - self._began))
        try:
            return self._client.forecast(requests(), count=sum(needed), **given)
        except _Interrupted:
            return None


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "strategy": args.batching_strategy,
        "deadline": args.deadline,
        "prefer": args.prefer,
        "time_value": args.time_value,
    }
