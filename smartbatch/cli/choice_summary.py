"""What the choice of a route came to: the forecast against what it took, and against the plain routes."""

from __future__ import annotations

from collections.abc import Iterator

from smartbatch.cli.summary import in_words
from smartbatch.core.routing.choice import Decision, Option

__all__ = ["verdict"]


def verdict(
    decision: Decision, seconds: float, cost: float | None, rescued: int
) -> Iterator[tuple[str, str]]:
    """Yield rows of the summary: a name and words. What is unknown is left out.

    Args:
        decision: as it was made.
        seconds: from the choice to the last answer.
        cost: USD; ``None`` where the price is unknown.
        rescued: batches that were taken back for the deadline.
    """
    chosen, deadline = decision.chosen, decision.constraints.deadline
    first = f", {chosen.first:,} at once" if chosen.first else ""
    yield "route", f"{chosen.route.value}{first}: {decision.reason}"
    expected = None if chosen.cost is None else chosen.cost.expected
    yield (
        "forecast",
        f"half in {in_words(chosen.p50)}, 95 of 100 in {in_words(chosen.p95)}{_money(expected)}; "
        f"it took {in_words(seconds)}{_money(cost)}",
    )
    against = [("individually", decision.alone), ("by batch", decision.batch)]
    for name, option in against:
        if option is not None and option.route is not chosen.route:
            yield "against", f"always {name}, by the forecast: {_apart(option, seconds, cost)}"
    if deadline is not None:
        over = seconds - deadline
        yield "deadline", f"missed by {in_words(over)}" if over > 0 else f"met, {in_words(-over)} before it"
    if rescued:
        yield "rescued", f"{rescued:,} batches taken back for the deadline"


def _apart(option: Option, seconds: float, cost: float | None) -> str:
    later = seconds - option.p50
    time = f"{in_words(abs(later))} {'later' if later > 0 else 'sooner'}"
    if cost is None or option.cost is None:
        return time
    more = cost - option.cost.expected
    return f"{abs(more):.6f} USD {'more' if more > 0 else 'less'}, {time}"


def _money(cost: float | None) -> str:
    return "" if cost is None else f" for {cost:.6f} USD"
