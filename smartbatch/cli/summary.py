"""The summary of a run: counted row by row in constant memory, printed in a few lines at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import Factory, define, evolve

from smartbatch._words import escape, money
from smartbatch.core.limits.failures import pattern_of
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.outcome import ActualCost, rescue_in_words
from smartbatch.errors import ListStopped, SmartbatchError, kind_name
from smartbatch.jobs.status import JobStatus, cost_in_words
from smartbatch.results import defects_in_words
from smartbatch.runs.output_file import Recovered
from smartbatch.runs.output_lines import Amounts
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.types import Result, Route
from smartbatch.views.model import Facts, Note, Part

_LEAST_FASTER: Final = 1.05
"""Least factor that is told; below it nothing was gained."""
_FAILURES_SHOWN: Final = 5
"""Failed rows listed at the end, where they were not printed as they came."""


def failure_line(row: KeyedRow, result: Result) -> str:
    """Return one line about a failed row: number from 0, id where it has one, kind and message."""
    own = "" if row.sample is None else f", sample {row.sample}"
    own += f" (id {escape(str(row.id))[:60]})" if row.id != row.index else ""
    assert result.error is not None
    return f"row {row.index}{own}: {_told(result.error)}"


def _told(error: SmartbatchError) -> str:
    return f"{kind_name(error)}: {escape(error.message)}"


@define
class EqualErrors:
    """Failed rows with the same kind of error and the same message.

    Attributes:
        row: the lowest of them.
        line: about that row.
        told: what it says of the error.
        unsent: they were not sent.
    """

    row: int
    line: str
    told: str
    unsent: bool
    count: int = 1

    @classmethod
    def of(cls, row: KeyedRow, result: Result, error: SmartbatchError) -> EqualErrors:
        """Return the group of one failed row."""
        return cls(row.index, failure_line(row, result), _told(error), _is_unsent(result))

    def add(self, other: EqualErrors) -> None:
        """Count another failed row with the same error; rows may come in any order."""
        if other.row < self.row:
            self.row, self.line, self.told = other.row, other.line, other.told
        self.count += other.count

    def __str__(self) -> str:
        if self.count == 1:
            return self.line
        return f"{self.count:,} rows, first {self.line.removesuffix(self.told)}{self.told}"


def _is_unsent(result: Result) -> bool:
    return result.error is not None and not result.attempts and result.route is None


def amounts_of(result: Result) -> Amounts:
    """Return the tokens, the cost and the defects of one result."""
    guessed = result.usage.unknown or result.usage.estimated
    return Amounts(
        cost=result.cost or 0.0,
        unpriced=int(result.cost is None and result.attempts > 0 and not guessed),
        unbilled=int(result.cost is None and guessed),
        estimated=int(result.usage.estimated),
        unknown=int(result.usage.unknown),
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
        truncated=result.truncated,
        empty=result.empty,
        refused=result.refused,
    )


@define
class RunSummary:
    """Counts over the results of a run.

    Attributes:
        answered, failed: rows by outcome, of this run alone.
        unsent: the failed rows that were not sent.
        stopped: why the run sent no further rows.
        failures: groups of equal errors; rows of further groups are counted in ``failed`` alone.
        retried: rows that took more than one call.
        extra_calls: calls beyond each row's first.
        amounts: of this run alone, over all attempts.
        sequential: seconds of all answering calls, one after another.
        skipped: rows without a request, by the reason.
        together: rows answered by batch or with others in a call, which say nothing of such a sequence.
    """

    answered: int = 0
    failed: int = 0
    unsent: int = 0
    stopped: ListStopped | None = None
    retried: int = 0
    extra_calls: int = 0
    amounts: Amounts = Factory(Amounts)
    sequential: float = 0.0
    together: int = 0
    failures: dict[tuple[str, str], EqualErrors] = Factory(dict)
    skipped: Counter[str] = Factory(Counter)

    def add(self, row: KeyedRow, result: Result) -> None:
        """Count the result of a row that was written."""
        error = result.error
        if isinstance(error, ListStopped):
            self.stopped = error
        elif error is not None:
            key = (kind_name(error), pattern_of(error.message))
            if key in self.failures:
                self.failures[key].add(EqualErrors.of(row, result, error))
            elif len(self.failures) < _FAILURES_SHOWN:
                self.failures[key] = EqualErrors.of(row, result, error)
        self.count(result)

    def count(self, result: Result) -> None:
        """Count one result."""
        self.answered += result.ok
        self.failed += not result.ok
        self.unsent += _is_unsent(result)
        extra = max(0, result.attempts - 1)
        self.retried += extra > 0
        self.extra_calls += extra
        self.amounts.add(amounts_of(result))
        self.sequential += result.latency
        self.together += result.route in (Route.BATCH, Route.SHARED)

    def parts(
        self,
        *,
        wall: float,
        before: Recovered,
        jobs: Sequence[JobStatus] = (),
        failures: bool = True,
        scores: Sequence[tuple[str, str]] = (),
        output: bool = True,
    ) -> tuple[Part, ...]:
        """Return the summary of a run as parts of a view.

        Args:
            wall: seconds the run took.
            before: rows answered earlier; tokens, cost and defects include them.
            jobs: batch jobs of the run; each is listed with its cost.
            failures: list the first failed rows.
            scores: rows that compare the route with its forecast.
            output: the answers are in a file, so defective ones can be replaced; advise how.
        """
        sent = self.failed - self.unsent
        counts = [f"{self.answered:,} answered", f"{sent:,} failed", f"{self.retried:,} retried"]
        if self.extra_calls > self.retried:
            counts[-1] += f" ({self.extra_calls:,} extra calls)"
        if self.unsent:
            counts.insert(2, f"{self.unsent:,} not sent")
        if before.answered:
            counts.append(f"{before.answered:,} already answered, not asked again")
        total = evolve(self.amounts)
        total.add(before.amounts)
        resumed = bool(before.answered or before.resent or before.amounts.cost)
        rows: list[tuple[str, str]] = [("done", ", ".join(counts))]
        if defects := defects_in_words(total):
            rows.append(("answers", f"{defects}{_resend_advice(total) if output else ''}"))
        rows += [
            ("tokens", _tokens_text(total)),
            ("cost", _cost_text(total) + (f"; paid now: {_cost_text(self.amounts)}" if resumed else "")),
            ("wall", f"{in_words(wall)}{self._speedup(wall)}"),
        ]
        rows += [
            ("skipped", f"{_rows(found)} skipped: {reason}") for reason, found in self.skipped.most_common()
        ]
        rows += [("batch", f"{job.id}: {cost_in_words(job)}") for job in jobs]
        if failures:
            groups = sorted(self.failures.values(), key=lambda group: group.row)
            if self.stopped is not None:  # which says what was not sent
                groups = [group for group in groups if not group.unsent]
            more = (sent if self.stopped is not None else self.failed) - sum(each.count for each in groups)
            rows += [("not sent" if group.unsent else "failed", str(group)) for group in groups]
            if more > 0:
                rows.append(("", f"and {more:,} more (-v shows every one)"))
        stopped = [] if self.stopped is None else [Note(self.stopped.summary(self.unsent))]
        return *stopped, Facts((*rows, *scores))

    def _speedup(self, wall: float) -> str:
        factor = self.sequential / wall if wall > 0 else 0.0
        if self.together or factor < _LEAST_FASTER:  # a short run spends its time on starting
            return ""
        return f"; one after another {in_words(self.sequential)}, so {factor:.1f}× faster"


def _resend_advice(amounts: Amounts) -> str:
    """Return what to do about flawed answers."""
    if amounts.truncated:
        return "; --resend truncated with a higher --max-tokens replaces the truncated ones"
    return f"; --resend {'empty' if amounts.empty else 'refused'} replaces them"


def _cost_text(amounts: Amounts) -> str:
    cost = amounts.cost
    unknown = {"price": amounts.unpriced, "cost": amounts.unbilled}
    parts = [f"{_rows(number)} of unknown {what}" for what, number in unknown.items() if number]
    if parts and not cost:
        return f"unknown {'cost' if amounts.unbilled else 'price'}"
    return " and ".join([money(cost), *parts])


def _tokens_text(amounts: Amounts) -> str:
    """Return the tokens; never 0 if they are unknown."""
    marks = {"estimated": amounts.estimated, "of unknown usage": amounts.unknown}
    parts = [f"{_rows(number)} {what}" for what, number in marks.items() if number]
    if amounts.unknown and not (amounts.input_tokens or amounts.output_tokens):
        return "unknown"
    return "; ".join([f"{amounts.input_tokens:,} in, {amounts.output_tokens:,} out", *parts])


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"


def in_words(seconds: float) -> str:
    """Return seconds in words, such as ``3 min 05 s``."""
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def decision_summary(
    decision: Decision, seconds: float, actual: ActualCost, rescue: str | None
) -> Iterator[tuple[str, str]]:
    """Yield rows that compare a decision with what it took, each a name and a text.

    ``seconds`` count from the choice to the last answer. Costs are compared for the tokens that were used,
    times with the forecast. ``rescue`` is why requests of a batch were sent in real time instead.
    """
    chosen, deadline = decision.chosen, decision.constraints.deadline
    first = f", {chosen.first:,} at once" if chosen.first else ""
    yield "route", f"{chosen.route.value}{first}: {decision.reason}"
    if (rescued := rescue_in_words(decision, actual, rescue)) is not None:
        yield "rescued", escape(rescued)
    expected = None if chosen.cost is None else chosen.cost.expected
    yield (
        "forecast",
        f"half in {in_words(chosen.p50)}, 95 of 100 in {in_words(chosen.p95)}{_money(expected)}; "
        f"it took {in_words(seconds)}{_money(actual.paid)}",
    )
    plain = [
        ("individually", decision.alone, actual.individual),
        ("by batch", decision.batch, actual.by_batch),
    ]
    for name, option, cost in plain:
        if option is not None and option.route is not chosen.route:
            yield "against", f"always {name}: {_difference(option, seconds, actual.paid, cost)}"
    if deadline is not None:
        over = seconds - deadline
        yield "deadline", f"missed by {in_words(over)}" if over > 0 else f"met, {in_words(-over)} before it"


def _difference(option: Option, seconds: float, paid: float | None, other: float | None) -> str:
    later = seconds - option.p50
    time = f"{in_words(abs(later))} {'later' if later > 0 else 'sooner'} than its forecast"
    if paid is None or other is None:
        return time
    more = paid - other
    return f"{money(abs(more))} {'more' if more > 0 else 'less'} for the same tokens, {time}"


def _money(cost: float | None) -> str:
    return "" if cost is None else f" for {money(cost)}"
