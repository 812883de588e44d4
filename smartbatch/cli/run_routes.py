"""Which route the rows of a run take that must be asked: as the library chooses, or as it was told."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from attrs import evolve, frozen

from smartbatch.cli.requests import Questions
from smartbatch.client import BatchingClient
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.constraints import Constraints
from smartbatch.types import Kind, Route

__all__ = ["Chooser", "Chosen"]

_BATCHED = frozenset({Route.BATCH, Route.HYBRID})
_FORCED = frozenset({"batch", "hybrid"})


@frozen
class Chosen:
    """The route of the rows that must be asked.

    Attributes:
        realtime: all of them go in real time.
        first: how many go in real time at once, where the others go in a batch.
        constraints: what the route has to meet.
        late_penalty: what missing its deadline counts as.
        route: its name.
        piece: most rows of one batch; ``None`` for as many as the settings allow.
    """

    realtime: bool
    first: int
    constraints: Constraints
    late_penalty: float
    route: Route
    piece: int | None

    @classmethod
    def of(cls, decision: Decision) -> Chosen:
        """Return what a decision means for a run."""
        chosen = decision.chosen
        realtime = chosen.route not in _BATCHED
        return cls(
            realtime, chosen.first, decision.constraints, decision.late_penalty, chosen.route, decision.piece
        )


class Chooser:
    """Chooses for one run. A deadline counts from when this is made, while the input is not read yet.

    Args:
        client: whose settings, prices and experience count.
        questions: the input.
        args: strategy and constraints.

    Raises:
        ConfigError: for constraints that are none, and where batches are asked for and there is no Batch API.
    """

    def __init__(self, client: BatchingClient, questions: Questions, args: argparse.Namespace) -> None:
        self._client = client
        self._questions = questions
        self._began = client._clock.now()
        self._constraints = client._constraints({**_given(args), "budget": client.config.budget})
        if args.batching_strategy in _FORCED:
            client._check_batches(Kind.GENERATE, args.fallback)

    @property
    def batched(self) -> bool:
        """Whether the strategy is the Batch API, and there is one."""
        asked = self._client.config.batching_strategy in _FORCED
        return asked and self._client._batches(Kind.GENERATE)[0] is not None

    def decide(self, needed: bytearray, stopped: Callable[[], bool] = lambda: False) -> Decision | None:
        """Return the decision for the rows with a 1; they are read once, one after the other.

        Args:
            needed: a byte for each row.
            stopped: asked before each row; once true, the decision is given up, with ``None``.

        Raises:
            ConfigError: no route meets the constraints.
            InputError: the input changed.
        """
        client, admission = self._client, self._client._admission
        workload = client._advisor.workload(
            Kind.GENERATE, sum(needed), self._constraints, batchable=True, flexible=client._flexible(())
        )
        for request in self._questions.requests(skip=lambda i: not needed[i], stopped=stopped):
            if admission.cache is not None and admission.recalled(request, admission.fingerprint(request)):
                workload.cached += 1
            else:
                workload.add(request)
        if stopped():
            return None
        room = client._budget.left
        return client._advisor.consider(workload, self._left(), Kind.GENERATE, batchable=True, room=room)

    def _left(self) -> Constraints:
        """Return the constraints with what is left of the time."""
        deadline = self._constraints.deadline
        if deadline is None:
            return self._constraints
        return evolve(
            self._constraints, deadline=max(0.0, deadline - (self._client._clock.now() - self._began))
        )


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "strategy": args.batching_strategy,
        "deadline": args.deadline,
        "prefer": args.prefer,
        "time_value": args.time_value,
    }
