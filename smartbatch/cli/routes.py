"""Which route the rows of a run take: as the store has it, or else as the library chooses."""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Callable
from typing import Any

from attrs import frozen

from smartbatch.cli.questions import Questions
from smartbatch.cli.run_jobs import RunName
from smartbatch.client import BatchingClient
from smartbatch.core.choosing import Decision
from smartbatch.core.wishes import Wishes
from smartbatch.models import Kind, Route

__all__ = ["Chosen", "choose", "decide", "wished"]

_BATCHED = frozenset({Route.BATCH, Route.HYBRID})


@frozen
class Chosen:
    """The route of a run.

    Attributes:
        realtime: all rows go in real time.
        first: rows that go in real time at once, where the others go in a batch.
        wishes: what the route has to meet.
        decision: how it was chosen; ``None`` where jobs of an earlier run go on as they are.
    """

    realtime: bool
    first: int
    wishes: Wishes
    decision: Decision | None


def wished(args: argparse.Namespace) -> dict[str, Any]:
    """Return the wishes among the arguments. A budget is the client's, whatever the route."""
    return {
        "strategy": args.batching_strategy,
        "deadline": args.deadline,
        "prefer": args.prefer,
        "time_value": args.time_value,
    }


def decide(
    client: BatchingClient,
    questions: Questions,
    answered: Callable[[int], bool],
    wishes: Wishes,
) -> Decision:
    """Return the decision for the rows that are not answered; they are read once, one after the other.

    Raises:
        ConfigError: no route meets the wishes.
        InputError: the input changed.
    """
    sketch = client._advisor.sketch(Kind.GENERATE)
    for request in questions.requests(skip=answered, stopped=lambda: False):
        sketch.add(request)
    return client._advisor.consider(sketch, wishes, Kind.GENERATE, batchable=True)


def choose(
    client: BatchingClient,
    questions: Questions,
    keys: array[int],
    output: str | None,
    *,
    answered: Callable[[int], bool],
    args: argparse.Namespace,
) -> Chosen:
    """Return the route of a run.

    What an earlier run of the same line has under way goes on by its own route, unless another one is forced.

    Raises:
        ConfigError: no route meets the wishes; nothing was sent.
        InputError: the input changed.
        StoreError: the store cannot be used.
    """
    wishes = client._wishes({**wished(args), "budget": client.config.budget})
    name = RunName(output, args.model, keys, realtime=False)
    under_way = name.route_under_way(client)
    if under_way is not None and args.batching_strategy in (None, "auto"):
        return Chosen(under_way, 0, wishes, None)
    if args.batching_strategy in ("batch", "hybrid"):
        client._check_batches(Kind.GENERATE, args.fallback)
    decision = decide(client, questions, answered, wishes)
    chosen = decision.chosen
    return Chosen(chosen.route not in _BATCHED, chosen.first, wishes, decision)
