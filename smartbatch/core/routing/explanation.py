"""Describes a decision: what happens, how long it takes and what it costs, and on demand all figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from attrs import frozen

from smartbatch._words import UNKNOWN, duration, money, number, plural, share, size
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.rescue import HIGHEST_LEVEL
from smartbatch.core.routing.workload import AnswerLengths, Cost, FileLoad
from smartbatch.types import Route, Strategy
from smartbatch.views.model import Cell, DataTable, Note, Part

_SAMPLE_ROWS = 20  # rows that give a good estimate of the answer length
_BUSY_SHARE = 0.9  # share of the rate limits above which they determine the time
_LONG_SECONDS = 5.0  # duration of a real-time list above which more parallel calls are suggested
_CERTAIN_SHARE = 0.945  # probability of meeting the deadline that needs no warning


@frozen
class Voice:
    """How a text addresses its reader."""

    unit: str  # name of a list item, such as "row"
    lead: str = "Sending"  # first word of the first sentence
    is_command: bool = False  # name settings as command-line options
    is_sample: bool = False  # the list is a sample, for which the caller never uses a batch

    def setting(self, name: str, value: str | None = None) -> str:
        if self.is_command:
            return f"--{name}" + (f" {value}" if value else "")
        return name + (f'="{value}"' if value else "")


IN_PYTHON = Voice("request")
ON_COMMAND_LINE = Voice("row", is_command=True)
OF_SAMPLE = Voice("row", is_command=True, is_sample=True)
IN_REPORTS = Voice("request", lead="Planned")


def explain(
    decision: Decision,
    *,
    details: bool = False,
    voice: Voice = IN_PYTHON,
    now: datetime | None = None,
) -> str:
    """Describe a decision in a few sentences, one per line.

    Args:
        details: adds the forecast of each route, the constraints and the figures behind the decision.
        now: local time; without it, later times are given as durations.
    """
    lines = [
        f"{load_in_words(decision, voice)}.",
        *plan_lines(decision, voice=voice, now=now),
    ]
    if details:
        lines += ["", *_detail_lines(decision)]
    return "\n".join(lines)


def plan_lines(decision: Decision, *, voice: Voice = IN_PYTHON, now: datetime | None = None) -> Iterator[str]:
    """Yield what will happen and the alternative, what is uncertain, and what would be faster."""
    if not decision.load.requests:
        yield f"Nothing to send: every {voice.unit} is already answered."
        return
    yield " ".join(_headline(decision, voice, now))
    if (answers := decision.load.answers) is not None and (words := _lengths(decision, answers, voice)):
        yield words
    saved = "" if decision.chosen.cost is None else cache_saving(decision.chosen.cost)
    if saved:
        yield f"The provider's cache saves {saved} on prefixes that prompts share; this is not guaranteed."
    yield from _unmarked(decision, voice)
    if words := _faster(decision, voice):
        yield words


def cache_saving(cost: Cost) -> str:
    """Return what the provider's cache saves, with its range; empty if it saves nothing."""
    if not cost.saved:
        return ""
    return f"about {money(cost.saved)} ({money(cost.saved_low)} to {money(cost.saved_high)})"


def expected_reads(decisions: Sequence[Decision]) -> str:
    """Return the range of the forecast share of input tokens that are read from the provider's cache; empty
    if it is unknown or 0.
    """
    costs = [cost for decision in decisions if (cost := decision.chosen.cost) is not None]
    low, high = sum(cost.read_low for cost in costs), sum(cost.read_high for cost in costs)
    if not high or len(costs) < len(decisions):
        return ""
    given = sum(decision.load.tokens_in for decision in decisions)
    return f"expected {share(low / given)} to {share(high / given)}"


def _unmarked(decision: Decision, voice: Voice) -> Iterator[str]:
    """Yield why nothing is saved on shared prefixes that are no longer marked in real time."""
    if decision.chosen.batches and not decision.chosen.first:
        return
    for reason, requests in (decision.load.unmarked or {}).items():
        shared = f"a shared prefix of {plural(requests, voice.unit)}"
        yield f"The provider's cache is no longer used for {shared}, so nothing is saved there: {reason}."


def load_in_words(decision: Decision, voice: Voice = IN_PYTHON) -> str:
    load = decision.load
    words = plural(load.requests, voice.unit)
    if load.files is not None:
        words += f" with {files_in_words(load.files)}"
    words += f", about {load.tokens_in:,.0f} input tokens"
    if load.files is not None:
        words += f" ({load.files.tokens:,.0f} for the files)"
    if load.answers is not None:
        words += f" and {load.tokens_out:,.0f} output tokens"
    if load.repeats:
        words += f"; {number(load.repeats)} of them are repeated, and a job pays for those once"
    if load.duplicates:
        words += f"; {number(load.duplicates)} more are duplicates and share an answer"
    if load.cached:
        words += f"; {number(load.cached)} more are answered from the cache"
    return words


def files_in_words(files: FileLoad) -> str:
    return plural(files.count, "file") + (f" ({size(files.bytes)})" if files.bytes else "")


def _headline(decision: Decision, voice: Voice, now: datetime | None) -> Iterator[str]:
    chosen, deadline = decision.chosen, decision.constraints.deadline
    if chosen.batches:
        usually = f"usually done in {duration(chosen.p50)}, almost certainly "
        if chosen.rescue_at is not None and chosen.rescue_at < chosen.p50:
            usually = "almost certainly done "
        yield f"{voice.lead} {_route_in_words(decision)}: {usually}within {duration(chosen.p95)}."
        if chosen.rescue_at is not None:
            yield f"Anything unfinished {_moment(chosen.rescue_at, now)} is sent in real time."
        if chosen.untried:
            yield "No batch has been observed yet, so these times are assumptions."
        yield _against_real_time(decision)
    else:
        cost = "price unknown" if chosen.cost is None else money(chosen.cost.expected)
        yield f"{voice.lead} {_route_in_words(decision)}: about {duration(chosen.p50)}, {cost}."
        yield _against_batch(decision, voice)
    if deadline is not None and chosen.odds < min(HIGHEST_LEVEL, _CERTAIN_SHARE):
        yield f"The deadline may be missed: the chance of meeting it is {share(chosen.odds)}."
    budget = decision.constraints.budget
    if budget is not None and chosen.cost is not None and chosen.cost.high > budget:
        yield f"This may cost more than the budget of {money(budget)}; sending stops before it is exceeded."


def _route_in_words(decision: Decision) -> str:
    chosen = decision.chosen
    batches = "a batch" if chosen.batches == 1 else f"{number(chosen.batches)} batches"
    if chosen.first:
        rest = decision.load.by_job - chosen.first
        return f"{number(chosen.first)} in real time and {number(rest)} as {batches}"
    if chosen.batches:
        return f"as {batches}"
    return {
        Route.PACKED: "in real time, several per call",
        Route.FLEX: "in real time on the flex tier",
    }.get(chosen.route, "in real time")


def _against_real_time(decision: Decision) -> str:
    """Return what a batch costs, and why its requests are not sent in real time.

    1. Real time would be too late, or too expensive.
    2. Real time costs more. Its duration shows what the wait is worth.
    """
    chosen, other, deadline = decision.chosen, decision.alone, decision.constraints.deadline
    takes = f"take about {duration(other.p50)}"
    if chosen.cost is None or other.cost is None:
        return f"The price is unknown; real time would {takes}."
    cost, price = money(chosen.cost.expected), money(other.cost.expected)
    if deadline is not None and other.p95 > deadline:
        why = f"{takes}, too long for the deadline"
    elif (budget := decision.constraints.budget) is not None and other.cost.low > budget:
        why = f"cost {price}, more than the budget"
    else:
        why = f"{takes} {'but' if other.p50 < chosen.p50 else 'and'} cost {price}"
    return f"This costs {cost}; real time would {why}."


def _against_batch(decision: Decision, voice: Voice) -> str:
    """Return why a list that is sent in real time is not a batch.

    1. There is no Batch API for it, or the list is too short for one.
    2. A batch is too late or too expensive.
    3. A batch saves too little for its risk or for the wait.
    """
    load, asked, chosen, batch = decision.load, decision.constraints, decision.chosen, decision.batch
    if any(route is Route.BATCH for route, _ in decision.closed) or batch is None:
        if load.requests <= asked.at_once:
            return f"Lists of up to {plural(asked.at_once, voice.unit)} are never sent as a batch."
        if voice.is_sample:
            return "Samples are never sent as a batch."
        if asked.strategy is Strategy.INDIVIDUAL:
            return f"Batches are ruled out by {voice.setting('strategy', 'individual')}."
        if batch is None:
            return "A batch is not possible for this list."
        return f"Lists of fewer than {plural(asked.threshold, voice.unit)} are never sent as a batch."
    listed = next((each for each in decision.options if each.route is Route.BATCH), batch)
    if asked.budget is not None and batch.cost is not None and batch.cost.low > asked.budget:
        return "A batch would exceed the budget, too."
    saving = None
    if chosen.cost is not None and batch.cost is not None:
        saving = chosen.cost.expected - batch.cost.expected
    if saving is None:
        gain = "A batch would"
    elif money(saving) == "$0" or saving < 0:
        gain = "A batch would save nothing and"
    else:
        gain = f"A batch would save {money(saving)} but"
    if asked.deadline is not None and (listed.ruled_out or not listed.feasible):
        return f"{gain} risk missing the deadline."
    if batch.p50 > chosen.p50:
        return f"{gain} take {duration(batch.p50)} or more."
    return f"{gain} take up to {duration(batch.p95)}."


def _lengths(decision: Decision, answers: AnswerLengths, voice: Voice) -> str:
    """Return the assumed answer length on which the costs are based, if no answer has been observed yet."""
    if answers.seen:
        return ""
    tokens = plural(round(answers.tokens), "token")
    if answers.by_schema:
        words = f"Answer length estimated from the schema: {tokens}."
    elif answers.unlimited:
        words = f"Answer length unknown; assuming {tokens}."
    else:
        words = f"Answer length unknown; assuming {tokens}, or max_tokens if that is less."
    if decision.load.requests > _SAMPLE_ROWS:
        words += f" Run {_SAMPLE_ROWS} {voice.unit}s first for a better estimate."
    return words


def _faster(decision: Decision, voice: Voice) -> str:
    """Return what would make the list faster.

    1. It waits for a batch: real time, if that is faster and within the budget.
    2. It is sent on the slower tier: the standard tier.
    3. Its calls use up the known limits: higher limits.
    4. It has more calls than may run in parallel: more parallel calls.
    """
    chosen, other, asked = decision.chosen, decision.alone, decision.constraints
    if chosen.batches:
        if other.p50 >= chosen.p50:
            return ""
        if asked.budget is not None and other.cost is not None and other.cost.expected > asked.budget:
            return "For a faster run, raise the budget."
        forced = asked.strategy is not Strategy.AUTO
        setting = voice.setting("strategy", "individual") if forced else voice.setting("prefer", "speed")
        return f"For a faster run, use {setting}."
    if chosen.route is Route.FLEX:
        return f"For a faster run, use {voice.setting('prefer', 'speed')}."
    if chosen.quota is not None and chosen.quota >= _BUSY_SHARE:
        return "The rate limit determines the time; a higher one would make this faster."
    if 0 < decision.calls_at_once < chosen.calls and chosen.p50 >= _LONG_SECONDS:
        calls = number(decision.calls_at_once)
        return f"For a faster run, allow more than {calls} calls at once ({voice.setting('parallelism')})."
    return ""


def _moment(seconds: float, now: datetime | None) -> str:
    if now is None:
        return f"after {duration(seconds)}"
    at = now + timedelta(seconds=seconds)
    return f"at {at:%H:%M}" if at.date() == now.date() else f"at {at:%H:%M on %d %b}"


# -- details -------------------------------------------------------------------------------------------------


def decision_parts(decision: Decision, voice: Voice = IN_REPORTS) -> Iterator[Part]:
    """Yield the parts of a page: the decision in words, the table of routes, and the figures behind it."""
    yield Note(f"{load_in_words(decision)}.")
    yield from map(Note, plan_lines(decision, voice=voice))
    yield _table(decision)
    yield from map(Note, _figures(decision))


def _detail_lines(decision: Decision) -> Iterator[str]:
    # imported late, because only details need it
    from smartbatch.views.terminal import UNLIMITED_WIDTH, table_lines

    table = _table(decision)
    marked = [
        (f"{'> ' if at == table.chosen else '  '}{first}", *rest)
        for at, (first, *rest) in enumerate(table.rows)
    ]
    yield from table_lines(table.columns, marked, UNLIMITED_WIDTH)
    yield ""
    yield from _figures(decision)


def _table(decision: Decision) -> DataTable:
    with_deadline = decision.constraints.deadline is not None
    columns = "route, p50:duration, p95:duration, mean:duration, cost:money, range"
    columns += ", in time, late penalty:money, note" if with_deadline else ", cost with waiting:money, note"
    rows = [_row(option, with_deadline=with_deadline) for option in decision.options]
    rows += [(route.value, *((None,) * (7 if with_deadline else 6)), why) for route, why in decision.closed]
    chosen = next((at for at, option in enumerate(decision.options) if option is decision.chosen), None)
    return DataTable.of("Routes and their forecasts", columns, rows, chosen=chosen)


def _row(option: Option, *, with_deadline: bool) -> tuple[Cell, ...]:
    first = f" ({number(option.first)} at once)" if option.first else ""
    cost = option.cost
    weighed: tuple[Cell, ...] = (share(option.odds), option.late_cost) if with_deadline else (option.weight,)
    return (
        f"{option.route.value}{first}",
        option.p50,
        option.p95,
        option.expected,
        UNKNOWN if cost is None else cost.expected,
        None if cost is None else _range(cost),
        *weighed,
        option.problem or option.ruled_out or None,
    )


def _range(cost: Cost) -> str:
    return f"{money(cost.low)} to {money(cost.high)}"


def _figures(decision: Decision) -> Iterator[str]:
    """Yield the constraints, the reason with its figures, the share of the limits, and the latest rescue."""
    chosen, asked = decision.chosen, decision.constraints
    parts = [f"strategy {asked.strategy.value}", f"prefer {asked.prefer}"]
    if asked.deadline is None:
        parts.append("no deadline")
    else:
        cost = decision.alone.cost
        penalty = (
            "" if cost is None else f" (penalty if missed: {money(decision.late_penalty * cost.expected)})"
        )
        parts.append(f"deadline {duration(asked.deadline)}{penalty}")
    parts.append("no budget" if asked.budget is None else f"budget {money(asked.budget)}")
    parts.append(f"time value {money(asked.time_value)} per hour")
    yield f"Constraints: {', '.join(parts)}."
    if decision.load.answers is not None and (seen := decision.load.answers.seen):
        yield (
            f"Answer length: {plural(round(decision.load.answers.tokens), 'token')} on average in "
            f"{plural(seen, 'answer')}."
        )
    sent = [plural(chosen.calls, "call")] if chosen.calls else []
    sent += [plural(chosen.batches, "batch", "batches")] if chosen.batches else []
    yield f"Chosen: {chosen.route.value}, {' and '.join(sent) or 'no call'}; {decision.reason}."
    if chosen.quota is not None:
        yield f"Limits: uses {share(chosen.quota)} of what the known limits allow in that time."
    if chosen.rescue_at is not None:
        yield (
            f"Rescue: requests not answered after {duration(chosen.rescue_at)} "
            f"({duration(chosen.rescue_needs)} before the deadline) are withdrawn and sent in real time."
        )
