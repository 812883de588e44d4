"""What a report tells, as plain values. ``None`` stands for what is not recorded, and is told as unknown."""

from __future__ import annotations

from typing import Any, TypeVar

from attrs import evolve, field, fields_dict, frozen, has

from smartbatch.core.routing.choice import Decision
from smartbatch.reports.charts import TimelineRow
from smartbatch.reports.sampling import FailureGroup, RequestFigures

_T = TypeVar("_T")


@frozen(kw_only=True)
class ReportIncident:
    """What should not have happened to a job.

    Attributes:
        at: Unix seconds.
        title: in a few words.
        detail: as it is stored.
        money: USD it cost besides the results; ``None`` where that cannot be said.
    """

    at: float
    title: str
    detail: str
    money: float | None


@frozen(kw_only=True)
class ReportedJob:
    """How a job, or a list in real time, went.

    Attributes:
        id, key: of the job; an empty id where it is no job, or the store has it no more.
        state: in a word.
        route: that was chosen, where that is recorded.
        decision: by which its route was chosen; ``None`` where none is stored.
        rescue: what was planned as a batch and sent in real time, and why; ``None`` if there is nothing.
        settings: further facts, such as its deadline: names and words.
        created, finished: Unix seconds; ``finished`` is ``None`` while it goes on.
        paid: USD, results and what no result holds; ``None`` while it goes on, or where a price is unknown.
        individual_cost: USD that the tokens of the results cost in real time, likewise.
        batch_cost: USD that they cost by batch, likewise.
        timeline: its batches; ``None`` where they are not recorded.
        incidents: oldest first; likewise.
    """

    id: str
    key: str | None
    state: str
    route: str | None
    decision: Decision | None = field(default=None, repr=False)
    rescue: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    created: float
    finished: float | None
    paid: float | None
    individual_cost: float | None
    batch_cost: float | None
    timeline: tuple[TimelineRow, ...] | None = field(repr=False)
    incidents: tuple[ReportIncident, ...] | None = field(repr=False)

    @property
    def name(self) -> str:
        """What it is called in words."""
        return f"job {self.id}" if self.id else "the list"


@frozen(kw_only=True)
class ReportData:
    """What a report tells.

    Attributes:
        title: what it is about, such as ``job nightly``.
        place: the store or the file it was read from, without a password.
        made_at: Unix seconds.
        written_at: when the file it was read from was last written; ``None`` where it is a store.
        kind: what was asked for: ``generate``, ``embed``; ``None`` where it is not recorded.
        models: ``provider:model``, those of most requests first.
        parameters: of all requests: names and words, none of them a prompt; ``None`` where not recorded.
        labels: the user's.
        total, succeeded, failed, cancelled: requests; the last three have results.
        skipped: rows of a file that no request was made for.
        truncated, empty, refused: answers with these defects, see :class:`~smartbatch.Result`.
        deduplicated: results that are the answers of equal requests; they are in no distribution.
        dropped: parameters that were left out, with the reasons.
        input_tokens, output_tokens: of all results.
        estimated, unknown: results some of whose tokens are an estimate, or are not known; of a large job,
            of those that were read.
        cost: USD of the results whose price is known.
        unpriced: results whose price is unknown.
        sample: answered requests that distributions are made of, evenly chosen.
        sampled_of: answered requests they were chosen of.
        failures: groups, the largest first.
        failures_read: failed requests that the groups are made of.
        jobs: one, or those whose answers a file has.
        versions: names and versions of what made the report.
    """

    title: str
    place: str
    made_at: float
    written_at: float | None = None
    kind: str | None = None
    models: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    total: int
    succeeded: int
    failed: int
    cancelled: int = 0
    skipped: int = 0
    truncated: int = 0
    empty: int = 0
    refused: int = 0
    deduplicated: int | None = None
    dropped: tuple[tuple[str, str], ...]
    input_tokens: int
    output_tokens: int
    estimated: int = 0
    unknown: int = 0
    cost: float
    unpriced: int
    sample: tuple[RequestFigures, ...] = field(repr=False)
    sampled_of: int
    failures: tuple[FailureGroup, ...] = field(repr=False)
    failures_read: int
    jobs: tuple[ReportedJob, ...]
    versions: tuple[tuple[str, str], ...] = ()


def shortened(value: _T, most: int) -> _T:
    """Return a record with at most ``most`` characters of each text in it, whoever wrote them."""
    found: Any = value
    if isinstance(value, str):
        found = value if len(value) <= most else f"{value[: most - 1]}…"
    elif isinstance(value, tuple):
        found = tuple(shortened(each, most) for each in value)
    elif has(type(value)) and not isinstance(value, Decision):
        record: Any = value
        texts = {name: getattr(record, name) for name in fields_dict(type(record))}
        found = evolve(record, **{name: shortened(each, most) for name, each in texts.items()})
    result: _T = found
    return result
