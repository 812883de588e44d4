"""What the choices of routes brought: money and time against the two plain routes, and how forecasts did."""

from __future__ import annotations

from attrs import asdict, define, field, frozen

from smartbatch.events import JobRescued, RouteChosen, RouteScored

__all__ = ["DecisionFigures", "DecisionTally"]


@frozen
class DecisionFigures:
    """The choices of routes of a session.

    Attributes:
        chosen: lists and jobs by their route.
        scored: lists whose end was seen, which the figures below are about.
        saved_usd: what they cost less than always-individual would have, by the forecast; below 0 for more.
        extra_usd: what they cost more than always-batch, likewise.
        saved_seconds: what they took less than always-batch, by the forecast; below 0 for more.
        lost_seconds: what they took more than always-individual, likewise.
        within_p50, within_p95: lists that ended within what was forecast for half, and for 95 of 100.
        deadlines_met, deadlines_missed: lists with a deadline.
        rescued: batches that were taken back for a deadline.
    """

    chosen: dict[str, int] = field(factory=dict)
    scored: int = 0
    saved_usd: float = 0.0
    extra_usd: float = 0.0
    saved_seconds: float = 0.0
    lost_seconds: float = 0.0
    within_p50: int = 0
    within_p95: int = 0
    deadlines_met: int = 0
    deadlines_missed: int = 0
    rescued: int = 0


@define
class DecisionTally:
    """Adds up; not thread-safe."""

    figures: dict[str, float] = field(factory=dict)
    chosen: dict[str, int] = field(factory=dict)

    def copy(self) -> DecisionTally:
        """Return one that does not change with this one."""
        return DecisionTally(self.figures.copy(), self.chosen.copy())

    def took(self, event: RouteChosen) -> None:
        """Count a decision."""
        self.chosen[event.route.value] = self.chosen.get(event.route.value, 0) + 1

    def rescued(self, _: JobRescued) -> None:
        """Count a batch that was taken back."""
        self._add("rescued", 1)

    def scored(self, event: RouteScored) -> None:
        """Add what a decision brought."""
        self._add("scored", 1)
        if event.cost is not None:
            if event.individual_cost is not None:
                self._add("saved_usd", event.individual_cost - event.cost)
            if event.batch_cost is not None:
                self._add("extra_usd", event.cost - event.batch_cost)
        if event.batch_seconds is not None:
            self._add("saved_seconds", event.batch_seconds - event.seconds)
        self._add("lost_seconds", event.seconds - event.individual_seconds)
        self._add("within_p50", event.seconds <= event.forecast_p50)
        self._add("within_p95", event.seconds <= event.forecast_p95)
        if event.met is not None:
            self._add("deadlines_met" if event.met else "deadlines_missed", 1)

    def figure(self) -> DecisionFigures:
        """Return the figures."""
        plain = asdict(DecisionFigures())
        counted = {name: type(plain[name])(value) for name, value in self.figures.items()}
        return DecisionFigures(**{**plain, **counted, "chosen": self.chosen.copy()})

    def _add(self, name: str, value: float) -> None:
        self.figures[name] = self.figures.get(name, 0) + value
