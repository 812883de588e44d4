"""What a seed stands for: a job, its choices, the faults it meets, who else is there, where it crashes."""

from __future__ import annotations

from random import Random
from typing import Any

from attrs import evolve, frozen

from smartbatch.jobs.records import JobPolicy

MINUTE = 60.0
HOUR = 3600.0


@frozen(kw_only=True)
class Flavour:
    name: str  # for people
    api: str  # whose batches the backend keeps
    files: bool = True  # the input is a file, and a deleted one keeps a late create from landing
    named_files: bool = False  # the client chooses a file's id
    labels: bool = True  # batches can be told apart before their end
    shows_mark: bool = True  # they are by the mark itself; else by the file they were made of
    shared: bool = False  # others create batches in the same account


_ANTHROPIC = Flavour(name="anthropic", api="anthropic", files=False, labels=False, shows_mark=False)
FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour(name="openai", api="openai"),
        Flavour(name="gemini", api="gemini", named_files=True),
        _ANTHROPIC,
        Flavour(name="compatible", api="openai", shows_mark=False),
        Flavour(
            name="anthropic-shared", api="anthropic", files=False, labels=False, shows_mark=False, shared=True
        ),
    )
}


@frozen(kw_only=True)
class Plan:
    """One run, completely: two runs of equal plans are equal in every event."""

    seed: int  # of all random numbers
    flavour: str  # a name of :data:`FLAVOURS`
    crash_rate: float = 0.0  # the chance of a crash at each point
    crashes: tuple[int, ...] = ()  # numbers of points to crash at besides
    # number of times something below the library repeats a create whose response was lost (the negative
    # control: SDK retries left on)
    repeats: int = 0
    quiet: bool = False  # no random faults: a small job, one process at a time, and what faults says
    # of the job's first batches, by name, where they are to be had for certain; names of faults of lines meet
    # the first line
    faults: tuple[tuple[str, ...], ...] = ()
    policy: tuple[tuple[str, object], ...] = ()  # choices of the job in place of random ones
    turnaround: float | None = None  # median seconds of a batch, in place of a random one
    items: int | None = None  # requests of the job, in place of a random number; they go in one batch
    cancel_at: float | None = None  # when the job is cancelled, in place of a random moment or never
    # what the provider does against its own word, by name: see :class:`~tests.faults.simulation.
    # simulated_remote.SimApi`
    odd: tuple[str, ...] = ()
    webhooks: bool = False  # events about batches arrive, some of them wrong
    uploads: bool = False  # the prompts contain files, which are uploaded

    def line(self) -> str:
        crash = ",".join(map(str, self.crashes)) or f"p{self.crash_rate:g}"
        more = f" repeats={self.repeats}" if self.repeats else ""
        more += " quiet" if self.quiet else ""
        more += "".join(f" faults={'+'.join(names) or '-'}" for names in self.faults)
        more += "".join(f" {name}={value}" for name, value in self.policy)
        for name in ("turnaround", "items", "cancel_at"):
            value = getattr(self, name)
            more += "" if value is None else f" {name}={value:g}"
        more += "".join(f" {name}" for name in self.odd)
        more += " webhooks" if self.webhooks else ""
        more += " uploads" if self.uploads else ""
        return f"seed={self.seed} flavour={self.flavour} crash={crash}{more}"


@frozen(kw_only=True)
class Scenario:
    items: int  # requests of the job
    max_requests: int  # most of a shard
    policy: JobPolicy  # the job's
    workers: int  # processes on the store
    # cancel_at, resume_after: when a person cancels the job; how long one takes to resume a held one
    cancel_at: float | None
    resume_after: float
    skew: float  # how far the provider's clock is ahead
    calm_at: float  # from then on nothing fails any more
    turnaround: float  # median of a batch
    enqueued_tokens: float | None  # quota of the account
    page: int  # batches in a page of the list
    # lost, dropped, late: chances that a create's answer is lost, and the batch is created, is not, or is
    # created later; of the latter, late by minutes instead of seconds
    lost: float
    dropped: float
    late: float
    # lags, ends, lines: chances of further faults
    lags: float
    ends: float
    lines: float
    calls: float  # chance that a call fails
    freezes: float  # chance at each point that the process stands still
    foreign: float  # chance at each page of the list that somebody else has created a batch
    odd: tuple[str, ...]  # the plan's


def scenario(plan: Plan) -> Scenario:
    rng = Random(f"scenario {plan.flavour} {plan.seed}")
    flavour = FLAVOURS[plan.flavour]
    wild = 0.0 if plan.quiet else rng.choice((0.5, 1.0, 2.0))
    falls_back = rng.random() < 0.4
    policy: dict[str, Any] = {
        "fallback": "individual" if falls_back else "batch",
        "timeout": rng.uniform(10, 40) * MINUTE,
        # with a fence a minute is enough; without one a late create must exist by then
        "settle": rng.choice((1.0, 30.0)) * MINUTE if flavour.files else 30 * MINUTE,
    }
    if rng.random() < 0.1 and not plan.quiet:
        policy["on_unknown"] = "hold"
    if rng.random() < 0.3:
        policy["retention"] = rng.choice((0.0, HOUR))
    policy.update(plan.policy)
    crowd = rng.random() < 0.15 and flavour.api == "openai" and not plan.quiet
    alone = plan.quiet or rng.random() < 0.65
    cancels = rng.random() < (0.0 if plan.quiet else 0.1)
    drawn = Scenario(
        items=rng.choice((2, 3, 3, 4) if plan.quiet else (1, 2, 3, 5, 5, 6, 8, 12)),
        max_requests=2 if plan.quiet else rng.choice((2, 3, 3, 5, 12)),
        policy=JobPolicy(**policy),
        workers=1 if alone else 2,
        cancel_at=rng.uniform(0, 30) * MINUTE if cancels else None,
        resume_after=rng.uniform(0.5, 3) * HOUR,
        skew=rng.choice((0.0, 0.0, -200.0, 200.0)),
        calm_at=rng.uniform(1, 3) * HOUR,
        turnaround=rng.choice((20.0, 120.0, 600.0)) if plan.turnaround is None else plan.turnaround,
        enqueued_tokens=rng.uniform(60, 200) if crowd else None,
        page=rng.choice((2, 3, 100)),
        lost=0.12 * wild,
        dropped=0.05 * wild,
        late=0.10 * wild,
        lags=0.30 * min(wild, 1.0),
        ends=0.05 * wild,
        lines=0.02 * wild,
        calls=0.02 * wild,
        freezes=0.0 if alone else 0.02,
        foreign=0.3 if flavour.shared else 0.0,
        odd=plan.odd,
    )
    if plan.items is not None:
        drawn = evolve(drawn, items=plan.items, max_requests=plan.items)
    return drawn if plan.cancel_at is None else evolve(drawn, cancel_at=plan.cancel_at)
