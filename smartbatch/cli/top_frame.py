"""One frame of ``smartbatch top``: what the page *Now* shows, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from smartbatch._words import duration, escape, money
from smartbatch.dashboard.attention import needs_of
from smartbatch.dashboard.outlook import outlook, risk_of
from smartbatch.dashboard.shared_view import SharedView, failures_of
from smartbatch.dashboard.source import Source
from smartbatch.errors import SmartbatchError
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.observe.participants import LaneStatus, RealtimeStatus, merged
from smartbatch.views.model import Column
from smartbatch.views.terminal import TextLine, fitted, table_lines

_JOBS, _LANES, _PROCESSES, _NEEDS = 10, 12, 8, 6
"""Rows of each kind."""
_DAY = 24
"""Hours of spending."""
_BAR = 10
"""Cells of a bar."""

_JOB_COLUMNS = (
    Column("job"),
    Column("state", drop=2),
    Column("done"),
    Column("requests", "number", 3),
    Column("left", "number", 1),
    Column("cost", "number", 4),
    Column("deadline", drop=5),
    Column("model", drop=6),
)
_LANE_COLUMNS = (
    Column("model"),
    Column("requests/min", "number", 2),
    Column("tokens/min", "number", 3),
    Column("waiting", "number", 1),
    Column("in flight", "number", 1),
    Column("waits for", drop=4),
)
_PROCESS_COLUMNS = (
    Column("process"),
    Column("state"),
    Column("waiting", "number", 1),
    Column("in flight", "number", 1),
    Column("USD", "number", 2),
    Column("version", drop=3),
)


def frame(source: Source, width: int, height: int | None) -> list[TextLine]:
    """Return what there is to see now, at most ``height`` lines of ``width`` cells.

    What cannot be read is told in its place.
    """
    lines = list(_lines(source, width))
    if height is not None and len(lines) > height:
        more = TextLine(fitted(f"… {len(lines) - height + 1} more lines: a taller window shows them", width))
        lines = [*lines[: max(0, height - 1)], more]
    return lines


def _lines(source: Source, width: int) -> Iterator[TextLine]:
    shared = source.participants()
    status = merged([one.realtime for one in shared.found.living])
    now = datetime.fromtimestamp(source.clock.wall(), UTC)
    try:
        store = source.store
        place = source.place
        needs = [str(need) for need in needs_of(source, shared)]
        jobs = list(_jobs(source, store, width))
        spending = _spending(source)
    except SmartbatchError as error:
        place, jobs, spending = str(source.config.store), [], ""
        needs = [f"The store cannot be read: {error.message}"]
    yield TextLine(fitted(escape(f"smartbatch  {now:%H:%M:%S} UTC  {place}"), width), "title")
    yield from _needs(needs, width)
    yield from jobs
    yield from _lanes(status, width)
    yield from _realtime(status, width)
    yield TextLine(fitted(f"money      {_money(status)}{spending}", width))
    yield from _failures(shared, width)
    yield from _processes(shared, width)


def _needs(needs: Sequence[str], width: int) -> Iterator[TextLine]:
    if not needs:
        yield TextLine(fitted("needs a person: nothing", width))
    for need in needs[:_NEEDS]:
        yield TextLine(fitted(escape(f"! {need}"), width), "bad")
    if len(needs) > _NEEDS:
        yield TextLine(fitted(f"! and {len(needs) - _NEEDS} more", width), "bad")


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[TextLine]:
    head, *told = table_lines(columns, rows, width)
    yield TextLine("")
    yield TextLine(head, "head")
    yield from map(TextLine, told)


# -- jobs and money


def _jobs(source: Source, store: SqlStore | None, width: int) -> Iterator[TextLine]:
    if store is None:
        yield TextLine(fitted(escape(f"jobs       there is no store yet at {source.place}"), width))
        return
    lines = store.overview.page(JobFilter(unfinished=True), limit=_JOBS + 1)
    if not lines:
        yield TextLine(fitted("jobs       none is under way", width))
        return
    yield from _table(_JOB_COLUMNS, [_job(source, store, line) for line in lines[:_JOBS]], width)
    if len(lines) > _JOBS:
        yield TextLine(fitted("and more: smartbatch jobs", width))


def _job(source: Source, store: SqlStore, line: JobRow) -> tuple[str, ...]:
    shards, times = store.overview.shards([line])[line.id], source.history.turnaround(line.model)
    now = source.now()
    ends, risk = outlook(line, shards, times, now), risk_of(line, shards, times, now)
    left = "?" if ends is None else f"{duration(max(0.0, ends.median - now))}"
    if ends is not None and ends.late > ends.median + 1:
        left += f" to {duration(ends.late - now)}"
    cancelling = line.cancel_requested and line.state is not JobState.DONE
    failed = f", {line.failed:,} failed" if line.failed else ""
    return (
        line.key or line.id,
        "cancelling" if cancelling else line.state.value,
        f"{_bar(line.finished, line.total)} {_percent(line.finished, line.total)}",
        f"{line.finished:,}/{line.total:,}{failed}",
        left,
        f"{money(line.cost)}" + (" + ?" if line.unpriced else ""),
        _deadline(line, risk, now),
        line.model,
    )


def _bar(done: float, total: float) -> str:
    filled = round(_BAR * min(max(done / total, 0.0), 1.0)) if total > 0 else 0
    return "#" * filled + "." * (_BAR - filled)


def _percent(done: float, total: float) -> str:
    return f"{int(100 * done / total) if total > 0 else 100:3d}%"


def _deadline(line: JobRow, risk: float | None, now: float) -> str:
    deadline = line.policy.deadline
    if deadline is None:
        return "-"
    if now > deadline:
        return f"missed {duration(now - deadline)} ago"
    return f"in {duration(deadline - now)}" + ("" if risk is None else f", risk {risk:.0%}")


def _money(status: RealtimeStatus) -> str:
    words = f"{money(status.spent)} in real time"
    return words + (f" of {money(status.budget)}" if status.budget else "")


def _spending(source: Source) -> str:
    hours = source.spending(source.now() - _DAY * 3600)
    paid, realtime = sum(one.usd for one in hours), sum(one.realtime_usd for one in hours)
    return f"; {money(paid)} in {_DAY} hours, {money(realtime - paid)} saved against real time"


# -- real time


def _lanes(status: RealtimeStatus, width: int) -> Iterator[TextLine]:
    if status.lanes:
        yield from _table(_LANE_COLUMNS, [_lane(lane) for lane in status.lanes[:_LANES]], width)


def _lane(lane: LaneStatus) -> tuple[str, ...]:
    tokens = (lane.tokens_used, lane.tokens_per_minute)
    if not lane.tokens_per_minute and lane.input_tokens_per_minute:
        tokens = (lane.input_tokens_used, lane.input_tokens_per_minute)
    waits = [f"breaker {lane.breaker}"] if lane.breaker != "closed" else []
    waits += [f"cooldown {duration(lane.cooldown)}"] if lane.cooldown else []
    waits += ["own share only"] if lane.is_lost else []
    waits += [lane.waits_for] if lane.waits_for else []
    return (
        lane.model,
        _level(lane.requests_used, lane.requests_per_minute),
        _level(*tokens),
        f"{lane.waiting:,}",
        f"{lane.in_flight:,}",
        ", ".join(waits) or "-",
    )


def _level(used: float, limit: float) -> str:
    """Return what the last minute took of a limit."""
    return f"{used:,.0f} of {limit:,.0f}" if limit else f"{used:,.0f}"


def _realtime(status: RealtimeStatus, width: int) -> Iterator[TextLine]:
    waits = ", ".join(f"{name} {count:,}" for name, count in status.waits.items())
    pending = ", ".join(_pending(status, name) for name, count in status.pending.items() if count)
    yield TextLine("")
    oldest = f", the oldest for {duration(status.oldest_wait)}" if status.waiting else ""
    words = f"real time  {status.waiting:,} waiting{oldest}, {status.in_flight:,} in flight"
    yield TextLine(fitted(f"{words}, {status.workers:,} threads", width))
    if pending:
        yield TextLine(fitted(escape(f"           by priority: {pending}"), width))
    if waits:
        yield TextLine(fitted(escape(f"           waiting for: {waits}"), width))
    calls = sum(lane.requests_used for lane in status.lanes)
    if calls:
        tokens = sum(lane.tokens_used for lane in status.lanes)
        told = f"           {calls:,.0f} calls and {tokens:,.0f} tokens in the last minute"
        yield TextLine(fitted(told, width))


def _pending(status: RealtimeStatus, name: str) -> str:
    wait = status.oldest_waits.get(name)
    return f"{name} {status.pending[name]:,}" + ("" if wait is None else f" (the oldest {duration(wait)})")


def _failures(shared: SharedView, width: int) -> Iterator[TextLine]:
    found = failures_of(shared)
    told = ", ".join(
        f"{one.kind} {max(one.calls, one.requests):,.0f}"
        + ("" if one.age is None else f" ({duration(one.age)} ago)")
        for one in found
    )
    yield TextLine(fitted(escape(f"failures   {told or 'none, as far as processes told'}"), width))


def _processes(shared: SharedView, width: int) -> Iterator[TextLine]:
    found = shared.found.processes
    if not found:
        why = "they share nothing" if shared.is_off else "none was heard in the last ten minutes"
        yield TextLine(fitted(f"processes  {why}", width))
        return
    rows = [
        (
            f"{one.host} {one.pid}",
            "living" if one.is_alive else "ended" if one.ended else "LOST",
            f"{one.realtime.waiting:,}",
            f"{one.realtime.in_flight:,}",
            f"{one.realtime.spent:.4f}",
            one.library,
        )
        for one in found[:_PROCESSES]
    ]
    yield from _table(_PROCESS_COLUMNS, rows, width)
    if len(found) > _PROCESSES:
        yield TextLine(fitted(f"and {len(found) - _PROCESSES:,} more", width))
