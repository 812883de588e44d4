"""A result as the store has it."""

from __future__ import annotations

from attrs import evolve, frozen

from smartbatch.types import Result, Route, Usage


@frozen
class StoredResult:
    """A result and where it stands.

    Attributes:
        index: the position of its request, from 0.
        sequence: grows with each result of the store.
        result: the result.
    """

    index: int
    sequence: int
    result: Result


def as_kept(result: Result) -> Result:
    """Return a result that was stored before it was asked for: free of charge, and without a call."""
    kept = evolve(result, usage=Usage(), cost=0.0, latency=0.0, queued=0.0, attempts=0)
    return evolve(kept, route=Route.CACHED) if result.ok else kept
