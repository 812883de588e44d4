"""A plan that observers were told of, held against what it takes."""

from __future__ import annotations

from attrs import define, field

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.events import RouteScored
from smartbatch.routing.advisor import Advisor
from smartbatch.types import Result


@define(eq=False)
class AnnouncedPlan:
    """Adds up the results of a plan that is carried out, and has its forecast scored. One thread uses it.

    Making it tells observers of the plan.

    Attributes:
        actual: what the results cost that were added, and what their tokens cost in real time and by batch.
    """

    _advisor: Advisor
    _decision: Decision
    _purpose: str | None = None
    actual: ActualCost = field(init=False)
    _id: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.actual = self._advisor.actual_cost()
        self._id = self._advisor.tell(self._decision, self._purpose)

    def add(self, result: Result) -> None:
        """Add a result."""
        self.actual.add(result)

    def score(self, seconds: float) -> RouteScored | None:
        """Tell observers what the plan really took; where nothing was answered, nothing: ``None``.

        Args:
            seconds: from the submission to the last answer.
        """
        return self._advisor.score(self._id, self._decision, seconds, self.actual)
