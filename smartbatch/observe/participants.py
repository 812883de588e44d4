"""Status reports of processes that share limits: typed records, their stored form, and their size limits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from attrs import asdict, astuple, define, evolve, field, fields_dict, frozen

from smartbatch._words import counted, short
from smartbatch.types import Usage

if TYPE_CHECKING:
    from smartbatch.observe.metrics_snapshot import MetricsSnapshot


STEP_SECONDS = 10.0  # length of a counting step
_MAX_STEPS = 180
_MINUTE_SECONDS = 60.0
_MAX_MODELS = 64  # models counted separately; calls of other models count only in totals


@define
class CallCounts:
    calls: float = 0  # started
    requests: float = 0  # requests in these calls
    input_tokens: float = 0  # tokens of finished calls
    output_tokens: float = 0  # tokens of finished calls

    @property
    def tokens(self) -> float:
        return self.input_tokens + self.output_tokens

    def add_counts(self, other: CallCounts, share: float = 1.0) -> None:
        self.calls += other.calls * share
        self.requests += other.requests * share
        self.input_tokens += other.input_tokens * share
        self.output_tokens += other.output_tokens * share


@frozen
class MinuteOfCalls:
    """The calls of all models within a minute."""

    at: float  # Unix seconds at which the minute began
    calls: float  # started
    tokens: float  # tokens of finished calls


class RecentCalls:
    """Counts calls in steps of :data:`STEP_SECONDS` seconds, in bounded memory. The caller holds a lock."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, CallCounts]] = {}

    def started(self, at: float, model: str, size: int) -> None:
        """Count a call of ``size`` requests; ``at`` is in monotonic seconds."""
        counts = self._counts(at, model)
        counts.calls += 1
        counts.requests += size

    def ended(self, at: float, model: str, usage: Usage) -> None:
        counts = self._counts(at, model)
        counts.input_tokens += usage.input_tokens
        counts.output_tokens += usage.output_tokens

    def last_minute(self, now: float) -> dict[str, CallCounts]:
        """Return the calls of the last minute by model; models not counted separately share an empty name. A
        step that began before the minute is counted in part.
        """
        began = now - _MINUTE_SECONDS
        first = int(began // STEP_SECONDS)
        found: dict[str, CallCounts] = {}
        for step in range(first, int(now // STEP_SECONDS) + 1):
            share = 1.0 if step > first else (first + 1) - began / STEP_SECONDS
            for model, counts in self._steps.get(step, {}).items():
                found.setdefault(model, CallCounts()).add_counts(counts, share)
        return found

    def minutes(self, wall: float, now: float) -> tuple[MinuteOfCalls, ...]:
        """Return the minutes with calls in the last half hour, oldest first.

        Args:
            wall: Unix seconds at ``now``.
            now: monotonic seconds.
        """
        found: dict[int, CallCounts] = {}
        oldest = int(now // STEP_SECONDS) - _MAX_STEPS
        for step, by_model in self._steps.items():
            if step > oldest:
                whole = found.setdefault(
                    int((step * STEP_SECONDS + wall - now) // _MINUTE_SECONDS), CallCounts()
                )
                for counts in by_model.values():
                    whole.add_counts(counts)
        return tuple(
            MinuteOfCalls(at * _MINUTE_SECONDS, found[at].calls, found[at].tokens) for at in sorted(found)
        )

    def _counts(self, at: float, model: str) -> CallCounts:
        step = int(at // STEP_SECONDS)
        by_model = self._steps.get(step)
        if by_model is None:
            by_model = self._steps[step] = {}
            for old in [each for each in self._steps if each <= step - _MAX_STEPS]:
                del self._steps[old]
        counts = by_model.get(model)
        if counts is None:
            if len(by_model) >= _MAX_MODELS:
                model = ""
            counts = by_model.setdefault(model, CallCounts())
        return counts


def together(histories: Iterable[Iterable[MinuteOfCalls]]) -> tuple[MinuteOfCalls, ...]:
    found: dict[float, tuple[float, float]] = {}
    for minute in chain.from_iterable(histories):
        calls, tokens = found.get(minute.at, (0.0, 0.0))
        found[minute.at] = calls + minute.calls, tokens + minute.tokens
    return tuple(MinuteOfCalls(at, *found[at]) for at in sorted(found))


RECORD_VERSION = 1  # version of the record format; records of later versions are skipped
RECORD_SECONDS = 5.0  # seconds between records of a process
ALIVE_SECONDS = 15.0  # seconds for which a process counts as alive after its last record
RETENTION_SECONDS = 600.0  # seconds for which a process's last record is kept
MAX_RECORD_BYTES = 32_768  # lanes that do not fit are left out and counted

MAX_LANES = 32
_MAX_TEXT = 120


@frozen(kw_only=True)
class LaneStatus:
    """The requests of one process for one model, and why they are waiting.

    Attributes:
        model: as ``provider:model``.
        quota: the salted hash that identifies the shared limit; the same in all processes that share it.
        waiting, in_flight: number of real-time requests in each state.
        waits_for: why the next request is waiting: ``pause`` (by a user), ``window``, ``breaker``,
            ``cooldown``, ``budget``, ``cache`` (another request writes its prefix to the provider's
            cache), ``limit``, ``slot``, ``retry``; empty if none is waiting.
        breaker: state of the circuit breaker.
        requests_per_minute, tokens_per_minute, input_tokens_per_minute, output_tokens_per_minute: the limits,
            configured, reported or discovered; 0 if unknown.
        requests_left, tokens_left, input_tokens_left, output_tokens_left: the parts that no process has
            leased.
        requests_used, input_tokens_used, output_tokens_used: calls of the last minute, and their tokens.
        spaced_per_minute: calls per minute at which all processes together space their calls; 0 if calls are
            not spaced.
        cooldown: seconds until the pause after a refusal ends.
        processes: number of processes known to share the limit, including this one.
        is_lost: whether the store of the shared limit is unavailable.
        answered: calls answered since the process began.
    """

    model: str
    quota: str = ""
    waiting: int = 0
    in_flight: int = 0
    waits_for: str = ""
    breaker: str = "closed"
    requests_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    input_tokens_per_minute: float = 0.0
    output_tokens_per_minute: float = 0.0
    requests_left: float = 0.0
    tokens_left: float = 0.0
    input_tokens_left: float = 0.0
    output_tokens_left: float = 0.0
    requests_used: float = 0.0
    input_tokens_used: float = 0.0
    output_tokens_used: float = 0.0
    spaced_per_minute: float = 0.0
    cooldown: float = 0.0
    processes: int = 1
    is_lost: bool = False
    answered: int = 0

    @property
    def tokens_used(self) -> float:
        """Tokens of the calls of the last minute."""
        return self.input_tokens_used + self.output_tokens_used


@frozen(kw_only=True)
class RealtimeStatus:
    """Current real-time requests of one client, or of all clients of a process.

    Attributes:
        waiting, in_flight: number of requests in each state.
        pending: unfinished requests, by priority.
        blocked: threads waiting for space in the queue.
        oldest_wait: seconds since the oldest waiting request was submitted; 0 if none is waiting.
        oldest_waits: ``oldest_wait`` by priority.
        waits: waiting requests, by the reason why the first one of their lane is waiting, see
            :class:`LaneStatus`.
        sent: requests in the calls of the last minute.
        workers: threads that make calls.
        unshared: limits that are not shared because their store is unavailable.
        budget, spent: USD that may be spent (0 for no limit), and USD spent.
        unconfirmed: additional USD that may have been billed, for calls whose cost is unknown.
        unleased: the part of the budget that no process has leased, by the salted hash that identifies a
            shared budget.
        lanes: one per model, the busiest first.
        lanes_left_out: number of lanes omitted because there are too many.
        minutes: calls and tokens of each minute with calls in the last half hour, oldest first.
    """

    waiting: int = 0
    in_flight: int = 0
    pending: Mapping[str, int] = field(factory=dict)
    blocked: int = 0
    oldest_wait: float = 0.0
    oldest_waits: Mapping[str, float] = field(factory=dict)
    waits: Mapping[str, int] = field(factory=dict)
    sent: float = 0.0
    workers: int = 0
    unshared: int = 0
    budget: float = 0.0
    spent: float = 0.0
    unconfirmed: float = 0.0
    unleased: Mapping[str, float] = field(factory=dict)
    lanes: tuple[LaneStatus, ...] = field(default=(), repr=partial(counted, "lanes"))
    lanes_left_out: int = 0
    minutes: tuple[MinuteOfCalls, ...] = field(default=(), repr=partial(counted, "minutes"))


@frozen(kw_only=True)
class Participant:
    """The last report of a process that shares limits.

    Attributes:
        member: the unique name of the process.
        host, pid: where it is running.
        library: its version of smartbatch.
        started: Unix seconds at which its first client was created.
        age: seconds since its last record.
        ended: whether this record is the final one, because all its clients were stopped.
        sums: totals since it began, by ``family`` or ``family:label``, as in :class:`Participants`.
        errors: seconds since the last failure of a call or request, by kind, if known.
        realtime: its real-time requests.
    """

    member: str
    host: str
    pid: int
    library: str
    started: float
    age: float = 0.0
    ended: bool = False
    sums: Mapping[str, float] = field(factory=dict, repr=short)
    errors: Mapping[str, float] = field(factory=dict, repr=short)
    realtime: RealtimeStatus = field(factory=RealtimeStatus)

    @property
    def is_alive(self) -> bool:
        """Whether the process reported recently and has not ended."""
        return not self.ended and self.age <= ALIVE_SECONDS


@frozen(kw_only=True)
class Participants:
    """All processes that share limits in one store.

    Attributes:
        place: the store's address, without secrets.
        processes: the processes that reported in the last ten minutes, the latest first.
        sums: totals of all processes that ever reported, by ``family`` or ``family:label``, with the names
            used in Prometheus. Counters never decrease, even when a process ends or is killed.
        unreadable: number of records that were skipped because they are damaged or of a later version.
    """

    place: str
    processes: tuple[Participant, ...] = field(default=(), repr=partial(counted, "processes"))
    sums: Mapping[str, float] = field(factory=dict, repr=short)
    unreadable: int = 0

    @property
    def living(self) -> tuple[Participant, ...]:
        """The live processes."""
        return tuple(one for one in self.processes if one.is_alive)

    @property
    def lost(self) -> tuple[Participant, ...]:
        """Processes that stopped reporting without a final record."""
        return tuple(one for one in self.processes if not one.ended and not one.is_alive)


def with_figures(
    status: RealtimeStatus,
    figures: MetricsSnapshot,
    recent: tuple[Mapping[str, CallCounts], tuple[MinuteOfCalls, ...]],
) -> RealtimeStatus:
    """Return the status with current figures; ``recent`` has the calls of the last minute by model,
    and those of the last half hour by minute.
    """
    used, minutes = recent
    return evolve(
        status,
        lanes=tuple(_used(lane, used.get(lane.model)) for lane in status.lanes),
        sent=round(sum(counts.requests for counts in used.values()), 1),
        minutes=minutes,
        pending={name: count for name, count in figures.pending_by_priority.items() if count},
        workers=figures.workers,
        unshared=figures.limits_unshared,
    )


def _used(lane: LaneStatus, counts: CallCounts | None) -> LaneStatus:
    if counts is None:
        return lane
    return evolve(
        lane,
        requests_used=round(counts.calls, 1),
        input_tokens_used=round(counts.input_tokens),
        output_tokens_used=round(counts.output_tokens),
    )


def merged(statuses: Sequence[RealtimeStatus]) -> RealtimeStatus:
    """Merge the status of several clients. Lanes with the same limit become one, and the unleased part of a
    budget is counted once.
    """
    unleased = _chosen(min, (one.unleased for one in statuses))
    lanes: dict[tuple[str, str], LaneStatus] = {}
    for status in statuses:
        for lane in status.lanes:
            known = lanes.get((lane.model, lane.quota))
            lanes[lane.model, lane.quota] = lane if known is None else _together(known, lane)
    return RealtimeStatus(
        waiting=sum(one.waiting for one in statuses),
        in_flight=sum(one.in_flight for one in statuses),
        pending=_added(one.pending for one in statuses),
        blocked=sum(one.blocked for one in statuses),
        oldest_wait=max((one.oldest_wait for one in statuses), default=0.0),
        oldest_waits=_chosen(max, (one.oldest_waits for one in statuses)),
        waits=_added(one.waits for one in statuses),
        sent=sum(one.sent for one in statuses),
        workers=sum(one.workers for one in statuses),
        unshared=sum(one.unshared for one in statuses),
        budget=sum(one.budget - sum(one.unleased.values()) for one in statuses) + sum(unleased.values()),
        spent=sum(one.spent for one in statuses),
        unconfirmed=sum(one.unconfirmed for one in statuses),
        unleased=unleased,
        lanes=tuple(sorted(lanes.values(), key=lambda lane: (-lane.waiting - lane.in_flight, lane.model))),
        minutes=together(one.minutes for one in statuses),
    )


def _together(one: LaneStatus, other: LaneStatus) -> LaneStatus:
    """Merge two lanes with the same limit: add their requests, and keep the reason why one of them waits."""
    shown = one if one.waiting >= other.waiting else other
    return evolve(
        shown,
        waiting=one.waiting + other.waiting,
        in_flight=one.in_flight + other.in_flight,
        requests_used=one.requests_used + other.requests_used,
        input_tokens_used=one.input_tokens_used + other.input_tokens_used,
        output_tokens_used=one.output_tokens_used + other.output_tokens_used,
        breaker=one.breaker if one.breaker != "closed" else other.breaker,
        cooldown=max(one.cooldown, other.cooldown),
        is_lost=one.is_lost or other.is_lost,
    )


def _added(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def _chosen(
    choose: Callable[[float, float], float], tables: Iterable[Mapping[str, float]]
) -> dict[str, float]:
    chosen: dict[str, float] = {}
    for table in tables:
        for name, figure in table.items():
            chosen[name] = choose(chosen.get(name, figure), figure)
    return chosen


def text_of(one: Participant) -> str:
    """Return the stored form, of at most :data:`MAX_RECORD_BYTES`, with as many lanes as fit."""
    lanes = [evolve(lane, model=lane.model[:_MAX_TEXT]) for lane in one.realtime.lanes[:MAX_LANES]]
    while True:
        left_out = len(one.realtime.lanes) - len(lanes)
        realtime = evolve(one.realtime, lanes=tuple(lanes), lanes_left_out=left_out)
        document = {
            "version": RECORD_VERSION,
            **_plain(evolve(one, host=one.host[:_MAX_TEXT])),
            "sums": one.sums,
            "realtime": _plain(realtime)
            | {"lanes": [_plain(lane) for lane in lanes], "minutes": [*map(astuple, realtime.minutes)]},
        }
        text = json.dumps(document, separators=(",", ":"))
        if len(text) <= MAX_RECORD_BYTES or not lanes:
            return text
        lanes = lanes[: len(lanes) // 2]


def _plain(one: Any) -> dict[str, Any]:
    """Leave out fields that have their default value."""
    plain = asdict(one, recurse=False)
    defaults = {name: attribute.default for name, attribute in fields_dict(type(one)).items()}
    return {name: value for name, value in plain.items() if value and value != defaults[name]}


def participant_of(text: str, age: float) -> Participant | None:
    """Read a stored record; return ``None`` if it is damaged or of a later version."""
    try:
        document = json.loads(text)
        if document["version"] > RECORD_VERSION:
            return None
        realtime = document["realtime"]
        realtime["lanes"] = tuple(_made(LaneStatus, lane) for lane in realtime["lanes"])
        realtime["minutes"] = tuple(MinuteOfCalls(*each) for each in realtime.get("minutes", ()))
        document |= {"realtime": _made(RealtimeStatus, realtime), "age": max(0.0, age)}
        made: Participant = _made(Participant, document)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return made


def _made(kind: type[Any], document: dict[str, Any]) -> Any:
    """Ignore unknown fields, which a later version of the library may add."""
    known = fields_dict(kind)
    return kind(**{name: value for name, value in document.items() if name in known})
