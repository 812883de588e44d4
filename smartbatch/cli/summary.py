"""The summary of a run: counted row by row in constant memory, printed as a few sentences at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import Factory, define, evolve

from smartbatch._words import duration, escape, money, number, plural, share
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import expected_reads
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.outcome import ActualCost, rescue_in_words
from smartbatch.errors import ErrorKind, ListStopped, ProviderError, kind_name
from smartbatch.failure_groups import FailureGroups
from smartbatch.jobs.status import JobStatus, cost_in_words
from smartbatch.quality.recorded_row import row_name
from smartbatch.results import defects_in_words
from smartbatch.runs.output_file import Recovered
from smartbatch.runs.output_lines import Amounts
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.types import Result, Route, Usage

_MIN_SPEEDUP: Final = 1.05  # smaller factors are not worth mentioning
_MAX_SHOWN_GROUPS: Final = 5  # groups of identical errors listed at the end
_REJECTIONS: Final = frozenset(
    {ErrorKind.CLIENT_ERROR, ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY, ErrorKind.CONTEXT_TOO_LONG}
)


def failure_line(row: KeyedRow, result: Result) -> str:
    """Return one line with the row's number, counted from 0, its id and its error."""
    assert result.error is not None
    return f"{_name(row)}: {_error_text(kind_name(result.error), result.error.message)}"


def _name(row: KeyedRow) -> str:
    return row_name(row.index, row.id, row.sample)


def _error_text(kind: str, message: str) -> str:
    return f"{kind}: {escape(message)}"


def _is_unsent(result: Result) -> bool:
    return result.error is not None and not result.attempts and result.route is None


def _is_rejected(result: Result) -> bool:
    error = result.error
    return isinstance(error, ProviderError) and error.kind in _REJECTIONS and not _is_unsent(result)


def amounts_of(result: Result) -> Amounts:
    guessed = result.usage.unknown or result.usage.estimated
    return Amounts(
        cost=result.cost or 0.0,
        unpriced=int(result.cost is None and result.attempts > 0 and not guessed),
        unbilled=int(result.cost is None and guessed),
        estimated=int(result.usage.estimated),
        unknown=int(result.usage.unknown),
        input_tokens=result.usage.input_tokens,
        cached_tokens=result.usage.cached_tokens,
        cache_write_tokens=result.usage.cache_write_tokens,
        output_tokens=result.usage.output_tokens,
        truncated=result.truncated,
        empty=result.empty,
        refused=result.refused,
    )


@define
class RunSummary:
    answered: int = 0  # in this run, as in the counts below
    failed: int = 0
    rejected: int = 0  # failed rows that the provider refused to process
    unsent: int = 0  # failed rows that were never sent
    stopped: ListStopped | None = None  # why the run sent no further rows
    retried: int = 0  # rows that took more than one call
    extra_calls: int = 0  # calls beyond the first one of each row
    amounts: Amounts = Factory(Amounts)  # tokens and cost of this run, including all attempts
    sequential: float = 0.0  # total seconds of the calls that answered
    together: int = 0  # rows answered in batches or shared calls, which ``sequential`` does not cover
    failures: FailureGroups = Factory(FailureGroups)
    skipped: Counter[str] = Factory(Counter)  # rows without a request, by reason

    def count_row(self, row: KeyedRow, result: Result) -> None:
        error = result.error
        if isinstance(error, ListStopped):
            self.stopped = error
        elif error is not None:
            kind, unsent = kind_name(error), _is_unsent(result)
            self.failures.count(kind, error.message, _name(row), row.index, is_unsent=unsent)
        self.count(result)

    def count(self, result: Result) -> None:
        self.answered += result.ok
        self.failed += not result.ok
        self.unsent += _is_unsent(result)
        self.rejected += _is_rejected(result)
        extra = max(0, result.attempts - 1)
        self.retried += extra > 0
        self.extra_calls += extra
        self.amounts.add_amounts(amounts_of(result))
        self.sequential += result.latency
        self.together += result.route in (Route.BATCH, Route.SHARED)

    def render(
        self,
        *,
        wall: float,
        before: Recovered,
        jobs: Sequence[JobStatus] = (),
        failures: bool = True,
        output: bool = True,
        decision: Decision | None = None,
        actual: ActualCost | None = None,
    ) -> str:
        """Return the summary of a run, one sentence per line.

        Args:
            wall: seconds the run took.
            before: rows answered earlier; tokens, cost and flawed answers include them.
            jobs: batch jobs of the run; each is listed with its cost.
            failures: list the first failed rows.
            output: the answers are in a file; advise how to replace flawed ones.
            decision, actual: compare time and cost with the forecast and with the other routes.
        """
        total = evolve(self.amounts)
        total.add_amounts(before.amounts)
        resumed = bool(before.answered or before.resent or before.amounts.cost)
        lines = [f"{self._counts(before)}."]
        if self.stopped is not None:
            lines.insert(0, self.stopped.summary(self.unsent))
        for reason, rows in self.skipped.most_common():
            lines.append(f"{plural(rows, 'row')} skipped: {escape(reason)}.")
        if defects := defects_in_words(total):
            lines.append(f"Flawed answers: {defects}.{_resend_advice(total) if output else ''}")
        expected = "" if decision is None else f" (expected up to {duration(decision.chosen.p95)})"
        lines.append(f"Took {duration(wall)}{expected}{self._speedup(wall)}.")
        compared = "" if decision is None or actual is None else _alternatives(decision, actual)
        now = f", of which {_cost_text(self.amounts)} in this run" if resumed else ""
        lines.append(f"Cost: {_cost_text(total)}{now}{compared}.")
        forecast = "" if decision is None or resumed else expected_reads([decision])
        lines.append(f"Tokens: {_tokens_text(total, forecast)}.")
        lines += [f"Job {job.id}: {cost_in_words(job)}." for job in jobs]
        return "\n".join([*lines, *self._failure_lines()] if failures else lines)

    def _counts(self, before: Recovered) -> str:
        counts = [f"{number(self.answered)} answered"]
        if before.answered:
            counts[0] += f" ({number(before.answered)} more were answered before)"
        failed = self.failed - self.unsent - self.rejected
        for rows, words in (
            (self.rejected, "rejected by the provider"),
            (failed, "failed"),
            (self.unsent, "not sent"),
        ):
            if rows:
                counts.append(f"{number(rows)} {words}")
        if self.retried:
            extra = f" ({number(self.extra_calls)} extra calls)" if self.extra_calls > self.retried else ""
            counts.append(f"{number(self.retried)} retried{extra}")
        return ", ".join(counts)

    def _failure_lines(self) -> Iterator[str]:
        groups, total = list(self.failures.earliest()), self.failed
        if self.stopped is not None:  # the first line counts the unsent rows
            groups = [group for group in groups if not group.is_unsent]
            total -= self.unsent
        for group in groups[:_MAX_SHOWN_GROUPS]:
            rows = group.example if group.count == 1 else f"{group.count:,} rows, first {group.example}"
            text = _error_text(group.kind, group.text)
            yield f"{'Not sent' if group.is_unsent else 'Failed'}: {rows}: {text}"
        if (more := total - sum(each.count for each in groups[:_MAX_SHOWN_GROUPS])) > 0:
            yield f"{plural(more, 'more row')} failed (-v shows each)."

    def _speedup(self, wall: float) -> str:
        factor = self.sequential / wall if wall > 0 else 0.0
        if self.together or factor < _MIN_SPEEDUP:  # most of a short run is startup time
            return ""
        return f", {factor:.1f} times faster than one call after another ({duration(self.sequential)})"


def _resend_advice(amounts: Amounts) -> str:
    if amounts.truncated:
        return " Replace the truncated ones with --resend truncated and a higher --max-tokens."
    return f" Replace them with --resend {'empty' if amounts.empty else 'refused'}."


def _cost_text(amounts: Amounts) -> str:
    unknown = {"price": amounts.unpriced, "cost": amounts.unbilled}
    parts = [f"{plural(rows, 'row')} of unknown {what}" for what, rows in unknown.items() if rows]
    if parts and not amounts.cost:
        return f"unknown {'cost' if amounts.unbilled else 'price'}"
    return " and ".join([money(amounts.cost), *parts])


def _tokens_text(amounts: Amounts, expected: str) -> str:
    """Unknown tokens are not shown as 0.

    Args:
        expected: the forecast of the tokens read from the provider's cache, in words.
    """
    marks = {"estimated": amounts.estimated, "of unknown usage": amounts.unknown}
    parts = [f"{plural(rows, 'row')} {what}" for what, rows in marks.items() if rows]
    if amounts.unknown and not (amounts.input_tokens or amounts.output_tokens):
        return "unknown"
    read = Usage(amounts.input_tokens, cached_tokens=amounts.cached_tokens).cached_share
    written = amounts.cache_write_tokens / amounts.input_tokens if amounts.input_tokens else 0.0
    more = (f", {expected}" if expected else "") + (f", {share(written)} written to it" if written else "")
    cached = f" ({share(read)} read from the provider's cache{more})" if read or written or expected else ""
    tokens = f"{number(amounts.input_tokens)} in{cached}, {number(amounts.output_tokens)} out"
    return "; ".join([tokens, *parts])


def _alternatives(decision: Decision, actual: ActualCost) -> str:
    """Return the clause about what the same tokens would have cost on the other plain routes."""
    others = [
        ("in real time", decision.alone, actual.individual),
        ("as a batch", decision.batch, actual.by_batch),
    ]
    words = [
        f"{money(cost)} {name}"
        for name, option, cost in others
        if option is not None and cost is not None and not _is_alike(option, decision.chosen)
    ]
    if not words or actual.paid is None:
        return ""
    return f"; the same tokens would have cost {' or '.join(words)}"


def _is_alike(option: Option, chosen: Option) -> bool:
    return option.route is chosen.route or {option.route, chosen.route} == {Route.INDIVIDUAL, Route.SHARED}


def outcome_lines(
    decision: Decision, seconds: float, actual: ActualCost, rescue: str | None
) -> Iterator[str]:
    """Yield whether the deadline was met, and how many requests of a batch were sent in real time.

    Args:
        seconds: from the decision to the last answer.
        rescue: why requests of a batch were sent in real time.
    """
    if (rescued := rescue_in_words(decision, actual, rescue)) is not None:
        yield f"{escape(rescued).removesuffix('.')}."
    if (deadline := decision.constraints.deadline) is not None:
        late = seconds - deadline
        if late > 0:
            yield f"Missed the deadline by {duration(late)}."
        else:
            yield f"Met the deadline with {duration(-late)} to spare."
