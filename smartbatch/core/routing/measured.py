"""A decision on a route, and what it really took."""

from __future__ import annotations

from attrs import define, field, frozen

from smartbatch.core.routing.choice import Decision


@frozen(kw_only=True)
class Measured:
    """What a decision really took.

    Attributes:
        seconds: from the submission to the last answer.
        cost: USD that was paid; ``None`` where a price is unknown.
        individual_cost: USD the tokens that were really used cost in real time; ``None`` where it is unknown.
        batch_cost: USD the same tokens cost by batch, likewise.
    """

    seconds: float
    cost: float | None
    individual_cost: float | None = None
    batch_cost: float | None = None


@define(eq=False)
class ListDecision:
    """The decision on a list that no job was made of, on its way to the store.

    Attributes:
        at: Unix seconds.
        model: ``provider:model``.
        measured: what it took, once that is known.
        rescue: how many of its requests were sent in real time instead of by batch, and why; likewise.
        no: its number in the store, once it is there.
    """

    at: float
    model: str
    decision: Decision = field(repr=False)
    measured: Measured | None = None
    rescue: str | None = None
    no: int | None = None

    @property
    def route(self) -> str:
        """That was chosen."""
        return self.decision.chosen.route.value
